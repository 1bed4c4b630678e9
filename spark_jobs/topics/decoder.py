"""Decodes runs of record batches to Arrow, with the columns of Spark's Kafka source.

    decoder = RunDecoder(schema_of(COLUMNS))
    for rows in decoder.decode(runs):
        rows.num_rows

A call of NumPy costs as much as the records of a small batch, so whole runs are decoded at once.
Python follows the lengths of batches and records, and asks for each checksum; NumPy reads every
field of all records together; and Arrow copies keys and values: each value, and the gap up to the
next one, is an element of one binary array, of which every other element is taken.

The trap: an error must name the object, the batch and the reason. So the columns only decide
whether all is well. If not, the runs are read batch by batch, and that raises.

Control batches and batches of aborted transactions have no rows, and neither have offsets outside
of the range that is asked for, such as those below the log start.

Source: KIP-98, Message Format; Spark's Kafka source (KafkaRecordToRowConverter): a record without
headers has null, and a timestamp type is 0 for create time, 1 for append time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from records.aborted import AbortedBatches
from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME,
    MIN_RECORD_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    iter_records,
)
from records.batch_columns import BatchColumns, read_columns
from records.compression import Buffer, codec_of, decompress, decompress_into
from records.errors import RecordError
from records.final_runs import finish_run, read_final_run
from records.record_block import (
    MalformedRecordError,
    RecordFields,
    check_deltas,
    follow_records,
    read_fields,
    read_varints,
)
from records.types import Offset
from records.varint import decode_varint
from records.varint_columns import Numbers, read_uvarints

Mask = npt.NDArray[np.bool_]

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)
TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""The columns of Spark's Kafka source; the last only with `includeHeaders`."""

HEADERS: Final = "headers"
COLUMNS: Final = tuple(name for name in TYPES if name != HEADERS)

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Decompressed records in one Arrow batch, about: a batch of records is never split.

Four times as many are a third slower: they leave the processor's caches between two steps.
"""

_FEW: Final = 64
"""For fewer values, a loop in Python is faster than calls of NumPy."""


class StoredRun(NamedTuple):
    """Batches of one partition that lie side by side in an object, and which rows are wanted."""

    topic: str
    partition: int
    data: Buffer  # the run's batches
    base_offset: int
    end_offset: int  # exclusive
    is_final: bool  # whether the batches have their final offsets; else they begin at 0
    append_time: int | None  # ms; of a run of append time that is not final
    first_offset: int  # of the rows to return
    stop_offset: int  # exclusive
    name: str  # of the object, and where the run lies in it


class DamagedRunError(Exception):
    """The store's bytes are not the batches that were committed."""

    def __init__(self, run: StoredRun, reason: str) -> None:
        super().__init__(
            f"{run.topic}-{run.partition}, offsets {run.base_offset} to {run.end_offset - 1}, "
            f"{run.name}: {reason}"
        )


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of the given columns."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


class RunDecoder:
    """Decodes runs to Arrow batches of one schema, for one task."""

    def __init__(self, schema: pa.Schema, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Create a decoder.

        Args:    schema: of `schema_of`.
        """
        self._schema = schema
        self._scratch = _Scratch(chunk_bytes)

    def decode(
        self, runs: Sequence[StoredRun], *, aborted: Sequence[tuple[int, int]] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of runs, in order.

        Args:    aborted: as of `records.aborted.AbortedBatches`; then the runs are of one
                 partition.
        Raises:  DamagedRunError. Rows before the damaged run's may have been yielded.
        """
        runs = [run for run in runs if run.end_offset > run.base_offset]
        if not runs:
            return
        try:
            batches = _find_batches(runs, AbortedBatches(aborted) if aborted else None)
            first = 0
            while first < len(batches.begins):
                bodies = _read_bodies(batches, first, self._scratch)
                rows = _decode(runs, batches, bodies, first, self._schema)
                first = bodies.stop
                if rows.num_rows:
                    yield rows
        except (_UnsoundError, MalformedRecordError, RecordError, ValueError, IndexError) as error:
            for run in runs:
                _explain(run)
            raise DamagedRunError(runs[0], str(error)) from error


class _UnsoundError(Exception):
    """Something in the runs is damaged; reading them one by one finds what."""


def _explain(run: StoredRun) -> None:
    """Read a run batch by batch, and raise DamagedRunError if it is damaged."""
    try:
        if run.is_final:
            batches = read_final_run(
                run.data, base_offset=run.base_offset, end_offset=run.end_offset
            )
        else:
            batches = finish_run(
                run.data,
                base_offset=run.base_offset,
                end_offset=run.end_offset,
                append_time=run.append_time,
            )
        for batch in batches:
            for _ in iter_records(batch):
                pass
    except RecordError as error:
        raise DamagedRunError(run, str(error)) from error


# --- batches --------------------------------------------------------------------------------------


class _Batches(NamedTuple):
    """The batches that have rows, of all runs; columns have one entry for each batch."""

    data: bytes | bytearray  # all runs, one after the other
    begins: Numbers  # in `data`, where the records begin
    ends: Numbers
    runs: Numbers  # the index of the batch's run
    headers: npt.NDArray[Any]
    base_offsets: Numbers
    whole: Mask  # whether all rows of the batch are wanted


def _find_batches(runs: Sequence[StoredRun], aborted: AbortedBatches | None) -> _Batches:
    """Return the batches of runs that have rows to return, with verified checksums."""
    data = b"".join([run.data for run in runs])  # no copy of a single `bytes`
    view = memoryview(data)
    columns = read_columns(view, verify_crc=False)
    if columns is None:
        raise _UnsoundError
    bounds = np.array(columns.bounds)
    run_ends = np.cumsum([len(run.data) for run in runs])
    ends_at = np.searchsorted(bounds, run_ends)
    if not np.array_equal(bounds[ends_at], run_ends):
        raise _UnsoundError
    counts = np.diff(ends_at, prepend=0)
    of_run = np.repeat(np.arange(len(runs)), counts)
    base_offsets, end_offsets = _offsets(runs, columns, ends_at, of_run)
    headers = columns.headers
    first = np.array([run.first_offset for run in runs], np.int64)[of_run]
    stop = np.array([run.stop_offset for run in runs], np.int64)[of_run]
    wanted = (end_offsets > first) & (base_offsets < stop)
    _verify(view, columns, wanted)
    wanted &= (headers["attributes"] & CONTROL == 0) & (headers["record_count"] > 0)
    if aborted is not None:
        wanted &= ~_covered(aborted, headers, base_offsets)
    whole = (base_offsets >= first) & (end_offsets <= stop)
    begins, ends = bounds[:-1] + HEADER_SIZE_BYTES, bounds[1:]
    if wanted.all():
        return _Batches(data, begins, ends, of_run, headers, base_offsets, whole)
    at = np.flatnonzero(wanted)
    return _Batches(
        data, begins[at], ends[at], of_run[at], headers[at], base_offsets[at], whole[at]
    )


def _offsets(
    runs: Sequence[StoredRun], columns: BatchColumns, ends_at: Numbers, of_run: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the final base and end offset of each batch; check them against the runs'."""
    headers = columns.headers
    counts = headers["last_offset_delta"].astype(np.int64) + 1
    stored = headers["base_offset"].astype(np.int64)
    is_final = np.array([run.is_final for run in runs])[of_run]
    run_bases = np.array([run.base_offset for run in runs], np.int64)
    firsts = np.concatenate(([0], ends_at[:-1]))
    before = np.cumsum(counts) - counts
    stamped = run_bases[of_run] + before - before[firsts][of_run]
    bases = np.where(is_final, stored, stamped)
    ends = bases + counts
    least = run_bases[of_run]
    least[1:] = np.where(of_run[1:] == of_run[:-1], ends[:-1], least[1:])
    run_ends = np.array([run.end_offset for run in runs], np.int64)
    if np.any(bases < least) or not np.array_equal(ends[ends_at - 1], run_ends):
        raise _UnsoundError
    return bases, ends


def _verify(view: memoryview, columns: BatchColumns, wanted: Mask) -> None:
    """Raise _UnsoundError unless the wanted batches have the bytes their checksums were made of."""
    headers, bounds = columns.headers, columns.bounds
    crcs, begin = headers["crc"].tolist(), bounds[0]
    for end, crc, is_wanted in zip(bounds[1:], crcs, wanted.tolist(), strict=True):
        if is_wanted and crc32c(view[begin + CRC_START : end]) != crc:
            raise _UnsoundError
        begin = end
    empty = wanted & (headers["record_count"] == 0)
    if empty.any() and np.any(np.diff(bounds)[empty] != HEADER_SIZE_BYTES):
        raise _UnsoundError


def _covered(
    aborted: AbortedBatches, headers: npt.NDArray[Any], base_offsets: Numbers
) -> Mask:  # fmt: skip
    """Return a mask of the batches of data that belong to aborted transactions."""
    found = np.zeros(len(headers), np.bool_)
    attributes = headers["attributes"]
    for index in np.flatnonzero(attributes & (TRANSACTIONAL | CONTROL) != 0).tolist():
        header = BatchHeader._make(headers[index].tolist())
        found[index] = aborted.covers(header._replace(base_offset=Offset(int(base_offsets[index]))))
    return found


# --- records --------------------------------------------------------------------------------------


class _Bodies(NamedTuple):
    """The decompressed records of some batches; columns have one entry for each batch."""

    data: bytes | bytearray
    begins: Numbers  # in `data`
    ends: Numbers
    stop: int  # the index of the first batch that is not among them


def _read_bodies(batches: _Batches, first: int, scratch: _Scratch) -> _Bodies:
    """Return the records of the batches from `first` on, about a chunk of them."""
    limit = int(batches.begins[first]) + scratch.chunk_bytes
    stop = max(first + 1, int(np.searchsorted(batches.ends, limit, side="right")))
    begins, ends = batches.begins[first:stop], batches.ends[first:stop]
    attributes = batches.headers["attributes"][first:stop] & 0xFF
    if not np.any(attributes & COMPRESSION_MASK):
        return _Bodies(batches.data, begins, ends, stop)
    view, out = memoryview(batches.data), memoryview(scratch.buffer)
    places = [0]
    at = 0
    for begin, end, bits in zip(begins.tolist(), ends.tolist(), attributes.tolist(), strict=True):
        size = decompress_into(codec_of(bits), view[begin:end], out[at:])
        if size is None:
            if at:
                break
            large = bytes(decompress(codec_of(bits), view[begin:end]))
            return _Bodies(large, np.array([0]), np.array([len(large)]), first + 1)
        at += size
        places.append(at)
        if at >= scratch.chunk_bytes:
            break
    bounds = np.array(places, np.int64)
    return _Bodies(scratch.buffer, bounds[:-1], bounds[1:], first + len(places) - 1)


class _Scratch:
    """A buffer for the decompressed records of one chunk after the other."""

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._buffer: bytearray | None = None

    @property
    def buffer(self) -> bytearray:
        """Return the buffer, which is created on first use."""
        if self._buffer is None:
            self._buffer = bytearray(2 * self.chunk_bytes)
        return self._buffer


def _find_records(bodies: _Bodies, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return where each record begins and ends, by the records' lengths.

    The first records of all batches are passed together, then the second ones. Where few batches
    are left, their records are passed one by one.

    Args:    counts: of the records of each batch; at least 1.
    """
    if np.any(counts * MIN_RECORD_BYTES > bodies.ends - bodies.begins):
        raise _UnsoundError
    first_records = np.cumsum(counts) - counts
    ends = np.empty(int(counts.sum()), np.int64)
    raw = np.frombuffer(bodies.data, np.uint8)
    positions, limits, left, indexes = bodies.begins, bodies.ends, counts, first_records
    while len(positions) >= _FEW:
        steps = int(left.min())  # until the first batch ends
        for _ in range(steps):
            lengths, positions = read_uvarints(raw, positions)
            positions += (lengths >> np.uint64(1)).view(np.int64)
            ends[indexes] = positions
            indexes = indexes + 1
        # No length is negative, so no record ends behind its batch if the last one does not.
        left = left - steps
        is_open = left > 0
        if (positions[~is_open] != limits[~is_open]).any():
            raise _UnsoundError
        positions, limits, left, indexes = (
            column[is_open] for column in (positions, limits, left, indexes)
        )
    places = (positions, limits, left, indexes)
    for begin, end, count, index in zip(*(place.tolist() for place in places), strict=True):
        found = follow_records(bodies.data, begin, count)
        if found[-1] != end:
            raise _UnsoundError
        ends[index : index + count] = found
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1]
    starts[first_records] = bodies.begins
    return starts, ends


def _decode(
    runs: Sequence[StoredRun], batches: _Batches, bodies: _Bodies, first: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the rows of the batches from `first` on whose bodies these are."""
    of_chunk = slice(first, bodies.stop)
    headers = batches.headers[of_chunk]
    counts = headers["record_count"].astype(np.int64)
    starts, ends = _find_records(bodies, counts)
    fields = read_fields(bodies.data, starts, ends)
    deltas = headers["last_offset_delta"].astype(np.int64)
    check_deltas(fields.offset_deltas, np.cumsum(counts) - counts, np.repeat(deltas, counts))
    offsets = np.repeat(batches.base_offsets[of_chunk], counts) + fields.offset_deltas
    of_run = np.repeat(batches.runs[of_chunk], counts)
    rows: Numbers | None = None
    if not batches.whole[of_chunk].all():
        first_offsets = np.array([run.first_offset for run in runs], np.int64)[of_run]
        stop_offsets = np.array([run.stop_offset for run in runs], np.int64)[of_run]
        rows = np.flatnonzero((offsets >= first_offsets) & (offsets < stop_offsets))
        offsets, of_run = offsets[rows], of_run[rows]
    chunk = _Chunk(bodies.data, fields, ends, rows)
    columns: list[pa.Array] = []
    for name in schema.names:
        match name:
            case "key":
                columns.append(chunk.binary(fields.key_starts, fields.key_sizes))
            case "value":
                columns.append(chunk.binary(fields.value_starts, fields.value_sizes))
            case "topic":
                topics = pa.array([run.topic for run in runs], pa.string())
                columns.append(topics.take(pa.array(of_run)))
            case "partition":
                columns.append(
                    pa.array(np.array([run.partition for run in runs], np.int32)[of_run])
                )
            case "offset":
                columns.append(pa.array(offsets))
            case "timestamp":
                times = chunk.choose(_timestamps(runs, batches, of_chunk, counts, fields))
                in_ms = pa.array(times).cast(pa.timestamp("ms", "UTC"))
                columns.append(in_ms.cast(TYPES["timestamp"]))
            case "timestampType":
                kinds = np.repeat(_append_times(runs, batches, of_chunk)[0], counts)
                columns.append(pa.array(chunk.choose(kinds).astype(np.int32)))
            case _:
                columns.append(chunk.headers())
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _append_times(
    runs: Sequence[StoredRun], batches: _Batches, chosen: slice
) -> tuple[Mask, Numbers]:
    """Return which batches have the append time, and the append time of each of these, in ms."""
    headers, of_run = batches.headers[chosen], batches.runs[chosen]
    stamped = np.array([run.append_time is not None for run in runs])[of_run]
    times = np.array([run.append_time or 0 for run in runs], np.int64)[of_run]
    times = np.where(stamped, times, headers["max_timestamp"])
    return stamped | (headers["attributes"] & LOG_APPEND_TIME != 0), times


def _timestamps(
    runs: Sequence[StoredRun],
    batches: _Batches,
    chosen: slice,
    counts: Numbers,
    fields: RecordFields,
) -> Numbers:
    """Return the timestamp of each record, in ms."""
    bases = np.repeat(batches.headers["base_timestamp"][chosen].astype(np.int64), counts)
    times: Numbers = bases + fields.timestamp_deltas
    if np.any((bases ^ times) & (fields.timestamp_deltas ^ times) < 0):
        raise _UnsoundError  # more than 64 bits
    have, append_times = _append_times(runs, batches, chosen)
    if have.any():
        times = np.where(np.repeat(have, counts), np.repeat(append_times, counts), times)
    return times


class _Chunk:
    """Makes Arrow columns of records that lie in `data`."""

    def __init__(
        self, data: bytes | bytearray, fields: RecordFields, ends: Numbers, rows: Numbers | None
    ) -> None:
        """Create it.

        Args:    rows: indexes of the wanted records; None: all.
        """
        self._data = data
        self._fields = fields
        self._ends = ends
        self._rows = rows

    def choose(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of the wanted records."""
        return values if self._rows is None else values[self._rows]

    def binary(self, starts: Numbers, sizes: Numbers) -> pa.Array:
        """Return the bytes of each wanted record, from its start on; a size of -1 is null."""
        return _copy(self._data, starts, sizes, self._rows)

    def headers(self) -> pa.Array:
        """Return the list of headers of each wanted record; null where there are none."""
        raw = np.frombuffer(self._data, np.uint8)
        counts, positions = read_varints(raw, self._fields.value_ends)
        has_none = counts == 0
        if np.any(counts < 0) or np.any(positions[has_none] != self._ends[has_none]):
            raise _UnsoundError
        if has_none.all():
            return pa.nulls(len(self.choose(counts)), HEADERS_TYPE)
        found = _follow_headers(self._data, raw, counts, positions, self._ends)
        key_starts, key_sizes, value_starts, value_sizes = found
        keys = _copy(self._data, key_starts, key_sizes).cast(pa.string())  # checks UTF-8
        values = _copy(self._data, value_starts, value_sizes)
        pairs = pa.StructArray.from_arrays(
            [keys, values], fields=list(HEADERS_TYPE.value_type.fields)
        )
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        lists = pa.ListArray.from_arrays(
            pa.array(offsets), pairs, type=HEADERS_TYPE, mask=pa.array(has_none)
        )
        return lists if self._rows is None else lists.take(pa.array(self._rows))


def _copy(
    data: bytes | bytearray, starts: Numbers, sizes: Numbers, rows: Numbers | None = None
) -> pa.Array:
    """Copy bytes of `data` into a binary array: `sizes` bytes from each start on, -1 for null.

    The ranges rise and do not overlap.

    Args:    rows: indexes of the ranges to copy; None: all.
    """
    count = len(starts)
    is_null = sizes < 0
    if is_null.all():
        return pa.nulls(count if rows is None else len(rows), pa.binary())
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[:-1:2] = starts
    np.add(starts, np.maximum(sizes, 0), out=offsets[1::2], casting="unsafe")
    offsets[-1] = offsets[-2]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    with_gaps = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, buffers)
    indexes = np.arange(0, 2 * count, 2) if rows is None else 2 * rows
    has_nulls = is_null.any()
    if rows is not None:
        is_null = is_null[rows]
    return with_gaps.take(pa.array(indexes, mask=is_null if has_nulls else None))


def _follow_headers(
    data: bytes | bytearray,
    raw: npt.NDArray[np.uint8],
    counts: Numbers,
    positions: Numbers,
    ends: Numbers,
) -> tuple[Numbers, ...]:
    """Return starts and sizes of the keys, and of the values, of all headers in order.

    The first headers of all records are read together, then the second ones. Where few records
    have so many, the rest are read one by one.

    Args:    counts: of the headers of each record.
             positions: where the record's first header begins.
             ends: of the records.
    """
    there = counts > 0
    positions, counts, ends = positions[there], counts[there], ends[there]
    found: list[tuple[Numbers, ...]] = []
    step = 0
    while len(positions) >= _FEW:
        key_sizes, key_starts = read_varints(raw, positions)
        key_ends = key_starts + key_sizes
        value_sizes, value_starts = read_varints(raw, key_ends)
        positions = value_starts + np.maximum(value_sizes, 0)
        step += 1
        last = counts == step
        sound = (key_sizes >= 0) & (value_sizes >= -1) & (positions <= ends)
        if not sound.all() or np.any(positions[last] != ends[last]):
            raise _UnsoundError
        found.append((key_starts, key_sizes, value_starts, value_sizes))
        positions, counts, ends = positions[~last], counts[~last], ends[~last]
    rest: list[tuple[int, int, int, int]] = []
    places = (positions, counts - step, ends)
    for begin, count, end in zip(*(place.tolist() for place in places), strict=True):
        position = begin
        for _ in range(count):
            key_size, key_start = decode_varint(data, position)
            value_size, value_start = decode_varint(data, key_start + max(key_size, 0))
            position = value_start + max(value_size, 0)
            if key_size < 0 or value_size < -1 or position > end:
                raise _UnsoundError
            rest.append((key_start, key_size, value_start, value_size))
        if position != end:
            raise _UnsoundError
    if rest:
        found.append(tuple(np.array(rest, np.int64).T))
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return tuple(column[order] for column in columns)
