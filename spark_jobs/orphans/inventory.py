"""Reads a listing made by another program: S3 Inventory's manifest, or a plain CSV file.

    inventory = read_inventory(Path("manifest.json"), "s3://bucket/prefix", None)

Listing a large bucket costs money and hours; S3 writes an inventory every day. Its manifest names
the data files, gzipped CSV with keys quoted as in URLs, and their MD5 sums: they are expected in
the manifest's directory, or in `data` beside it. A missing or changed file makes the whole
inventory invalid.

Other listings are CSV with a header line: key, size_bytes, modified_ms. The caller must say when it
was made, because the file's own time may be that of a copy.

Source: Amazon S3 User Guide, Amazon S3 Inventory (manifest.json, CSV).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus

from diskless.stores.interface import StoredObject
from diskless.stores.s3_client import S3

COLUMNS: Final = ("key", "size_bytes", "modified_ms")
_PIECE: Final = 1 << 20


class InventoryError(Exception):
    """A file is not a whole inventory. One sentence names it."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """An inventory's time and objects; reading `found` may raise InventoryError, OSError."""

    taken_ms: int
    found: Iterator[StoredObject]


def read_inventory(path: Path, uri: str, taken_ms: int | None) -> Inventory:
    """Open an inventory of the store at `uri`.

    Args:    taken_ms: when it was made, ms since 1970; None for a manifest, which has the time.
    Raises:  InventoryError; OSError.
    """
    if path.suffix != ".json":
        path.stat()
        if taken_ms is None:
            raise InventoryError(f"{path}: when was it made? Add --taken-at MS (ms since 1970)")
        return Inventory(taken_ms, _of_csv(path))
    try:
        manifest = json.loads(path.read_bytes())
        schema = [name.strip() for name in manifest["fileSchema"].split(",")]
        places = [schema.index(name) for name in ("Key", "Size", "LastModifiedDate")]
        latest = schema.index("IsLatest") if "IsLatest" in schema else None
        files = [(_beside(path, one["key"]), one["MD5checksum"]) for one in manifest["files"]]
        if manifest["fileFormat"] != "CSV":
            raise InventoryError(f"{path}: its files are {manifest['fileFormat']}, not CSV")
        bucket = uri.removeprefix(S3).partition("/")[0] if uri.startswith(S3) else None
        if manifest["sourceBucket"] != bucket:
            raise InventoryError(
                f"{path} lists bucket {manifest['sourceBucket']}, not --store {uri}"
            )
        created_ms = int(manifest["creationTimestamp"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InventoryError(f"{path} is not a manifest of an S3 Inventory: {error!r}") from None
    for file, md5 in files:
        _verify(file, md5)
    prefix = uri.removeprefix(S3).partition("/")[2]
    return Inventory(created_ms, _of_manifest([file for file, _ in files], places, latest, prefix))


def _beside(manifest: Path, key: str) -> Path:
    name = key.rpartition("/")[2]
    for directory in (manifest.parent, manifest.parent / "data"):
        if (directory / name).is_file():
            return directory / name
    raise InventoryError(f"{manifest} names {name}, which is neither beside it nor in data/")


def _verify(file: Path, md5: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE):
            digest.update(piece)
    if digest.hexdigest() != md5:
        raise InventoryError(f"{file} is not the file that the manifest names: its MD5 differs")


def _of_manifest(
    files: Sequence[Path], places: Sequence[int], latest: int | None, prefix: str
) -> Iterator[StoredObject]:
    key_at, size_at, time_at = places
    below = f"{prefix}/" if prefix else ""
    for file in files:
        for row in _lines(file):
            try:
                key = unquote_plus(row[key_at])
                if (latest is not None and row[latest] != "true") or not row[size_at]:
                    continue  # an older version, or the mark of a deletion
                modified = datetime.fromisoformat(row[time_at]).timestamp()
                size_bytes = int(row[size_at])
            except (IndexError, ValueError) as error:
                raise InventoryError(f"{file}: {row[:6]} is not a valid row: {error}") from None
            if key.startswith(below):
                yield StoredObject(key[len(below) :], size_bytes, int(modified * 1_000))


def _of_csv(path: Path) -> Iterator[StoredObject]:
    rows = _lines(path)
    header = next(rows, [])
    if not set(COLUMNS) <= set(header):
        raise InventoryError(f"{path}: its first line must name the columns {', '.join(COLUMNS)}")
    for row in rows:
        named: Mapping[str, Any] = dict(zip(header, row, strict=False))
        try:
            yield StoredObject(named["key"], int(named["size_bytes"]), int(named["modified_ms"]))
        except (KeyError, ValueError) as error:
            raise InventoryError(f"{path}: {row[:6]} is not a valid row: {error!r}") from None


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a CSV file, gzipped or not; a truncated file raises InventoryError."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8", newline="") as unzipped:
                yield from csv.reader(unzipped)
        else:
            with path.open(encoding="utf-8", newline="") as plain:
                yield from csv.reader(plain)
    except (EOFError, UnicodeDecodeError, csv.Error, gzip.BadGzipFile) as error:
        raise InventoryError(f"{path} cannot be read to its end: {error}") from None
