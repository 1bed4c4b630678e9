"""Tests inventories made by other programs. Source: Amazon S3 User Guide, Amazon S3 Inventory."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from diskless.stores.interface import StoredObject
from spark_jobs.orphans.inventory import InventoryError, read_inventory
from spark_jobs.orphans.listing import Naming, keep_listing

NAMING = Naming("", "c-1")
ROWS = (
    '"bucket","data/7f/c-1/0/1","10","2026-01-02T03:04:05.000Z","true"\n'
    '"bucket","data/7f/c-1/0/2%2B3","11","2026-01-02T03:04:05.000Z","true"\n'
    '"bucket","data/7f/c-1/0/1","9","2025-01-02T03:04:05.000Z","false"\n'
    '"bucket","elsewhere/7f/c-1/0/1","12","2026-01-02T03:04:05.000Z","true"\n'
)


def manifest(directory: Path, **other: Any) -> Path:
    """Write an inventory of two files, the second below `data`, and return its manifest."""
    (directory / "data").mkdir()
    packed = gzip.compress(ROWS.encode())
    files = []
    for name in ("a.csv.gz", "data/b.csv.gz"):
        (directory / name).write_bytes(packed)
        md5 = hashlib.md5(packed, usedforsecurity=False).hexdigest()
        key = f"inventories/bucket/daily/data/{name.rpartition('/')[2]}"
        files.append({"key": key, "size": len(packed), "MD5checksum": md5})
    says = {
        "sourceBucket": "bucket",
        "creationTimestamp": "1767323045000",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, Size, LastModifiedDate, IsLatest",
        "files": files,
    }
    path = directory / "manifest.json"
    path.write_text(json.dumps(says | other))
    return path


def test_an_inventory_manifest_lists_the_objects_below_the_stores_prefix(tmp_path: Path) -> None:
    inventory = read_inventory(manifest(tmp_path), "s3://bucket/data", None)
    modified_ms = 1_767_323_045_000
    once = [
        StoredObject("7f/c-1/0/1", 10, modified_ms),
        StoredObject("7f/c-1/0/2+3", 11, modified_ms),
    ]
    assert list(inventory.found) == once * 2
    assert inventory.taken_ms == 1_767_323_045_000


@pytest.mark.parametrize("name", ["a.csv.gz", "data/b.csv.gz"])
def test_a_job_refuses_an_inventory_with_a_truncated_or_missing_file(
    name: str, tmp_path: Path
) -> None:
    path = manifest(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-3])
    with pytest.raises(InventoryError, match="its MD5 differs"):
        read_inventory(path, "s3://bucket/data", None)
    (tmp_path / name).unlink()
    with pytest.raises(InventoryError, match="neither beside it nor in data/"):
        read_inventory(path, "s3://bucket/data", None)


@pytest.mark.parametrize(
    "other",
    [
        {"sourceBucket": "another"},
        {"fileFormat": "ORC"},
        {"fileSchema": "Bucket, Key"},
        {"files": 7},
        {"creationTimestamp": "yesterday"},
    ],
)
def test_a_job_refuses_an_inventory_manifest_with_unexpected_fields(
    other: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InventoryError):
        read_inventory(manifest(tmp_path, **other), "s3://bucket/data", None)


def test_reading_a_csv_inventory_requires_a_header_row_and_the_time_of_the_inventory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "listing.csv"
    key = NAMING.key(0, 5)
    path.write_text(f"modified_ms,key,size_bytes\n7,{key},3\n8,odd,1\n")
    with pytest.raises(InventoryError, match="Add --taken-at"):
        read_inventory(path, "objects", None)
    (tmp_path / "rows").mkdir()
    inventory = read_inventory(path, "objects", 99)
    listing = keep_listing(inventory.found, NAMING, tmp_path / "rows", inventory.taken_ms)
    (rows,) = listing.rows()
    assert rows[["object_id", "size_bytes", "modified_ms"]].tolist() == [(5, 3, 7)]
    assert (listing.began_ms, listing.ended_ms, listing.tally.strange) == (99, 99, 1)


@pytest.mark.parametrize("text", ["", "key,size\nk,1\n", "key,size_bytes,modified_ms\nk,many,1\n"])
def test_reading_an_invalid_csv_inventory_raises_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "listing.csv"
    path.write_text(text)
    with pytest.raises(InventoryError):
        list(read_inventory(path, "objects", 1).found)
