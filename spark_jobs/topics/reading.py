"""Reads a task's runs from the object store and decodes them.

Runs that lie near each other in an object are read by one GET, also those of several partitions.
The next runs are read while the last ones are decoded.

A task speaks to no broker, with one exception: an object that is gone. Compaction has replaced it,
or its records were deleted. So coordinates are asked for again, and only the log start tells that
records were deleted: an object that is missing although the coordinator still names it is an error,
most likely a directory that workers do not share.

Source: docs/tables.md.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from diskless.stores.interface import ObjectNotFoundError
from spark_jobs.readers.object_store import MAX_READ_BYTES, ObjectStore
from spark_jobs.topics.coordinates import CoordinatesError, Found, FoundRun, Wanted
from spark_jobs.topics.decoder import RunDecoder, StoredRun, schema_of
from spark_jobs.topics.options import Options
from spark_jobs.topics.planning import (
    PIECE_BYTES,
    RecordsPartition,
    check_ranges,
    find_pieces,
    open_coordinates,
)

READS_AT_ONCE: Final = 8
GAP_BYTES: Final = 64 * 1024
"""A gap between two runs of an object that is read rather than requested around."""

SENT_BYTES: Final = 512 * 1024
"""Arrow bytes that are sent to the JVM at once.

With eight times as many, the way to the JVM takes half as much processor time again.
"""

TRIES: Final = 3
"""Times that coordinates are asked for again: each time another object may be gone."""


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as Arrow batches.

    Where there is nothing to read, Spark invents an empty partition, and a task for it.

    Raises:  as `read_pieces`.
    """
    if type(partition) is InputPartition and partition.value is None:
        return
    assert isinstance(partition, RecordsPartition), f"not ours: {partition}"
    for rows in read_pieces(options, partition.pieces):
        yield from _slices(rows)


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of about `SENT_BYTES`; nothing is copied."""
    count = max(1, rows.num_rows * SENT_BYTES // max(1, rows.nbytes))
    for first in range(0, rows.num_rows, count):
        yield rows.slice(first, count)


def read_pieces(options: Options, pieces: Sequence[Found]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces, in order.

    Raises:  DamagedRunError; StorageError; LostOffsetsError; CoordinatesError.
    """
    store = options.open_store()
    decoder = RunDecoder(schema_of(options.columns))
    groups = list(_group(pieces))
    try:
        with (
            ThreadPoolExecutor(READS_AT_ONCE) as threads,
            ThreadPoolExecutor(1) as ahead,
        ):
            nexts: list[Future[list[_Read]]] = []
            for number, group in enumerate(groups):
                if not nexts:
                    nexts.append(ahead.submit(_fetch, options, store, threads, group))
                read = nexts.pop().result()
                if number + 1 < len(groups):
                    nexts.append(ahead.submit(_fetch, options, store, threads, groups[number + 1]))
                yield from _decode(decoder, read)
    finally:
        store.close()


class _Read(NamedTuple):
    """The runs of a piece with their bytes."""

    runs: list[StoredRun]
    aborted: tuple[tuple[int, int], ...]


def _decode(decoder: RunDecoder, read: Sequence[_Read]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces: together, unless one of them has aborted transactions."""
    if any(piece.aborted for piece in read):
        for piece in read:
            yield from decoder.decode(piece.runs, aborted=piece.aborted)
    else:
        yield from decoder.decode([run for piece in read for run in piece.runs])


def _group(pieces: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield pieces that are read together, about `PIECE_BYTES` of them."""
    group: list[Found] = []
    held = 0
    for piece in pieces:
        size = int(piece.runs.sizes.sum())
        if group and held + size > PIECE_BYTES:
            yield group
            group, held = [], 0
        group.append(piece)
        held += size
    if group:
        yield group


def _fetch(
    options: Options, store: ObjectStore, threads: ThreadPoolExecutor, group: Sequence[Found]
) -> list[_Read]:
    """Read the bytes of pieces; where objects are gone, find the pieces' runs anew."""
    pieces = list(group)
    for _ in range(TRIES):
        try:
            runs = [run for piece in pieces for run in piece.runs]
            data = _read_runs(store, threads, runs)
        except ObjectNotFoundError as error:
            gone = error.key
        else:
            return [_with_bytes(piece, data) for piece in pieces]
        pieces = _find_again(options, pieces)
        if any(run.object_key == gone for piece in pieces for run in piece.runs):
            raise CoordinatesError(
                f"object {gone} is not in {store.uri} on {socket.gethostname()}, but the cluster "
                "still names it: is this its store, and do all workers share it?"
            )
    raise CoordinatesError(f"object {gone}: objects went {TRIES} times while they were read")


def _find_again(options: Options, pieces: Sequence[Found]) -> list[Found]:
    """Return the runs that the offsets of pieces have now."""
    wanted = [Wanted(piece.partition, piece.first_offset, piece.end_offset) for piece in pieces]
    with open_coordinates(options) as coordinates:
        partitions = sorted({one.partition for one in wanted})
        bounds = coordinates.bounds(partitions, committed=options.committed)
        there = check_ranges(wanted, bounds, fail_on_data_loss=options.fail_on_data_loss)
        return [piece for _, piece in find_pieces(coordinates, options, there)]


def _with_bytes(piece: Found, data: dict[FoundRun, memoryview]) -> _Read:
    """Return a piece's runs with their bytes, for the decoder."""
    topic, partition = piece.partition
    runs = [
        StoredRun(
            topic,
            partition,
            data[run],
            run.base_offset,
            run.end_offset,
            run.is_final,
            run.append_time,
            piece.first_offset,
            piece.end_offset,
            f"{run.object_key} from byte {run.byte_offset}",
        )
        for run in piece.runs
    ]
    runs += (
        StoredRun(
            topic,
            partition,
            marker.batch,
            marker.offset,
            marker.offset + 1,
            True,
            None,
            piece.first_offset,
            piece.end_offset,
            "a transaction's marker",
        )
        for marker in piece.markers
    )
    if piece.markers:
        runs.sort(key=lambda run: run.base_offset)
    return _Read(runs, piece.aborted)


def _read_runs(
    store: ObjectStore, threads: ThreadPoolExecutor, runs: Sequence[FoundRun]
) -> dict[FoundRun, memoryview]:
    """Read the bytes of runs, of each object in as few requests as gaps allow.

    Raises:  StorageError, of which ObjectNotFoundError is a kind.
    """
    ordered = sorted(set(runs), key=lambda run: (run.object_key, run.byte_offset))
    cuts = [
        0,
        *(
            index
            for index, (one, following) in enumerate(pairwise(ordered), 1)
            if one.object_key != following.object_key
            or following.byte_offset - one.byte_offset - one.size_bytes > GAP_BYTES
            or following.byte_offset // MAX_READ_BYTES != one.byte_offset // MAX_READ_BYTES
        ),
        len(ordered),
    ]
    reads = []
    for begin, end in pairwise(cuts):
        if begin < end:
            some = ordered[begin:end]
            reads.append((some, threads.submit(_read_range, store, some)))
    found: dict[FoundRun, memoryview] = {}
    for some, read in reads:
        view, start = memoryview(read.result()), some[0].byte_offset
        for run in some:
            at = run.byte_offset - start
            found[run] = view[at : at + run.size_bytes]
    return found


def _read_range(store: ObjectStore, runs: Sequence[FoundRun]) -> bytes:
    """Read from the first run's first byte to the last run's end."""
    key, start = runs[0].object_key, runs[0].byte_offset
    size = max(run.byte_offset + run.size_bytes for run in runs) - start
    if size <= MAX_READ_BYTES:
        return store.read(key, start, size)
    parts = [
        store.read(key, at, min(MAX_READ_BYTES, start + size - at))
        for at in range(start, start + size, MAX_READ_BYTES)
    ]
    return b"".join(parts)
