"""Verifies an archive: reads every file again, and makes every batch again from its rows.

    found = check_archive(store, engine=LocalArchiveEngine())
    found.faults, found.lost

It compares each file's bytes with the checksum in its manifest; each file's rows with the
manifest's counts; the envelope's offsets, which must have no gap from the range's first to its
last; each batch, made again, with the checksum that the log had for it; and epochs, which never
fall. The chain of ranges must reach to the last manifest.

A lost range is not a fault of the archive: its manifest says so, and the result lists it.

Source: docs/design/pipeline.md#the-archive, docs/design/invariants.md.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from diskless.stores.interface import StorageError
from spark_jobs.archive.engines import ArchiveEngine
from spark_jobs.readers.archive_layout import (
    AVRO,
    ENVELOPE,
    ArchiveError,
    DamagedArchiveError,
    Manifest,
    Range,
    Written,
    chain,
)
from spark_jobs.readers.archived_logs import list_ranges, read_about, read_manifest, read_written
from spark_jobs.readers.avro_files import AvroFileError, read_avro
from spark_jobs.readers.envelope import EnvelopeError, Row, batches_of
from spark_jobs.readers.object_store import ObjectStore, describe_failure


class Fault(NamedTuple):
    """A difference between the archive and what was written."""

    log: str
    start_offset: int  # of the range
    end_offset: int
    what: str


class RangeVerification(NamedTuple):
    """The result of reading one range."""

    range: Range
    records: int
    batches: int
    bytes: int
    keys: tuple[str, ...]
    epochs: tuple[int, int]  # of its first and its last record
    faults: tuple[str, ...]


@dataclass(slots=True)
class ArchiveVerification:
    """The result of reading a whole archive."""

    cluster_id: str
    records: int = 0
    batches: int = 0
    bytes: int = 0
    files: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    lost: list[Range] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Files that no manifest names: left by a killed job, or still being written."""


def check_archive(
    store: ObjectStore, *, engine: ArchiveEngine, progress: Callable[[Range], None] = lambda _: None
) -> ArchiveVerification:
    """Read every file of an archive and compare the files with their manifests.

    Raises:  ArchiveError if the store holds no archive, or fails.
    """
    about = read_about(store)
    if about is None:
        raise ArchiveError(f"{store.uri} is not an archive: it has no archive.json")
    found = ArchiveVerification(about.cluster_id)
    known: set[str] = set()
    for name, ranges in sorted(list_ranges(store).items()):
        links = chain(ranges)
        end_offset = links[-1].end_offset if links else 0
        found.ends[name] = end_offset
        found.lost += (link for link in links if link.is_lost)
        epoch = 0
        for checked in engine.run(partial(check_range, store, about.cluster_id), links):
            _add_range(found, checked, epoch)
            epoch = max(epoch, checked.epochs[1])
            known.update(checked.keys)
            progress(checked.range)
        beyond = [link for link in ranges if link.start_offset >= end_offset]
        if beyond:
            first = min(link.start_offset for link in beyond)
            found.faults.append(Fault(name, end_offset, first, "no manifest covers these offsets"))
    found.strangers = _strangers(store, known)
    return found


def _add_range(found: ArchiveVerification, checked: RangeVerification, epoch_before: int) -> None:
    of = checked.range
    found.records += checked.records
    found.batches += checked.batches
    found.bytes += checked.bytes
    found.files += len(checked.keys)
    faults = list(checked.faults)
    if not faults and checked.epochs[0] < epoch_before:
        faults.append(f"epoch {checked.epochs[0]} follows epoch {epoch_before}")
    found.faults += (Fault(of.log, of.start_offset, of.end_offset, what) for what in faults)


def _strangers(store: ObjectStore, known: set[str]) -> list[str]:
    try:
        return [found.key for found in store.list("data/") if found.key not in known]
    except StorageError as error:
        raise ArchiveError(describe_failure(store.uri, error)) from None


def check_range(store: ObjectStore, cluster_id: str, of: Range) -> RangeVerification:
    """Compare the files of one archive range with the range's manifest.

    Raises:  ArchiveError if the store fails.
    """
    try:
        manifest = read_manifest(store, of)
    except DamagedArchiveError as error:
        return RangeVerification(of, 0, 0, 0, (), (0, 0), (str(error),))
    faults: list[str] = []
    if manifest.cluster_id != cluster_id:
        faults.append(f"{of.manifest_key} belongs to cluster {manifest.cluster_id}")
    batches, epochs = 0, (0, 0)
    for file in manifest.files:
        try:
            data = read_written(store, file)
            if file.table == ENVELOPE:
                batches, epochs = _check_envelope(data, manifest)
            else:
                _check_table(data, file)
        except (DamagedArchiveError, EnvelopeError) as error:
            faults.append(str(error))
        except (AvroFileError, pa.ArrowException) as error:
            faults.append(f"{file.key}: {error}")
    return RangeVerification(
        of,
        manifest.records,
        batches,
        sum(file.bytes for file in manifest.files),
        tuple(file.key for file in manifest.files),
        epochs,
        tuple(faults),
    )


def _check_table(data: bytes, file: Written) -> None:
    """Raise EnvelopeError unless a table's file has as many rows as the manifest says.

    Errors of reading the file are raised, too.

    Raises:  EnvelopeError if they differ; what reading raises.
    """
    if file.key.endswith(f".{AVRO}"):
        rows = sum(1 for _ in read_avro(data))
    else:
        rows = pq.read_table(io.BytesIO(data)).num_rows
    if rows != file.rows:
        raise EnvelopeError(f"{file.key} has {rows} rows, {file.rows} were written")


def _check_envelope(data: bytes, manifest: Manifest) -> tuple[int, tuple[int, int]]:
    """Check an envelope against its manifest; return its batch count, first and last epoch.

    Returns: number of batches; first and last epoch.
    Raises:  EnvelopeError.
    """
    of, key = manifest.range, manifest.envelope.key
    counts: Counter[tuple[int, int, str | None, bool]] = Counter()
    epochs: list[int] = []
    end = 0

    def count_rows(rows: Iterator[Row]) -> Iterator[Row]:
        nonlocal end
        expected = of.start_offset
        for row in rows:
            if not of.is_checkpoint and row["offset"] != expected:
                raise EnvelopeError(f"{key}: offset {row['offset']}, expected {expected}")
            expected = row["offset"] + 1
            counts[row["type"], row["version"], row["name"], row["control"]] += 1
            epochs.append(row["epoch"])
            yield row
        end = expected

    batches = sum(1 for _ in batches_of(count_rows(read_avro(data))))
    if not of.is_checkpoint and end != of.end_offset:
        raise EnvelopeError(f"{key} ends at offset {end}, expected {of.end_offset}")
    if batches != manifest.batches:
        raise EnvelopeError(f"{key} has {batches} batches, {manifest.batches} were written")
    written = {counted[:4]: counted.records for counted in manifest.counts}
    if counts != written or sum(counts.values()) != manifest.records:
        raise EnvelopeError(f"{key}: records of {_difference(counts, written)} differ in number")
    if epochs != sorted(epochs):
        raise EnvelopeError(f"{key}: an epoch is followed by an earlier one")
    return batches, (epochs[0], epochs[-1])


def _difference(
    counts: Counter[tuple[int, int, str | None, bool]],
    written: dict[tuple[int, int, str | None, bool], int],
) -> str:
    kinds = [kind for kind in {*counts, *written} if counts[kind] != written.get(kind, 0)]
    return ", ".join(sorted(str(kind[2] or f"type {kind[0]}") for kind in kinds)) or "no type"
