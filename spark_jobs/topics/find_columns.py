"""Reads FindBatches answers into columns: a million runs as a few arrays instead of as objects.

    for partition in read_answer(body):
        partition.runs.size_bytes

Python follows the lengths of object keys and tagged fields; NumPy reads the other fields of all
batches together.

Source: `records.rpc.batch_coordinator.FindBatchesResponse`, version 0.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from records.codec import Buffer, decode_message
from records.codegen import read_uvarint
from records.errors import RecordError
from records.rpc.batch_coordinator import FindBatchesResponse
from spark_jobs.topics.coordinates import FINAL, MARKER, NO_TIME, Runs

VERSION: Final = 0
"""The version of FindBatches that is read here."""

_FIELDS: Final = np.dtype(
    [
        ("byte_offset", ">i8"),
        ("size", ">i8"),
        ("base_offset", ">i8"),
        ("last_offset", ">i8"),
        ("log_append_timestamp", ">i8"),
        ("batch_max_timestamp", ">i8"),
        ("message_timestamp_type", "i1"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("last_sequence", ">i4"),
    ]
)
"""The fields of a batch between its object key and its tagged fields."""

_SIZE: Final = _FIELDS.itemsize
_APPENDED: Final = 1  # a run's format, unless a tagged field says otherwise
_LOG_APPEND_TIME: Final = 1
_FORMAT, _OUTCOME, _EPOCH = 0, 2, 3  # tags of a batch
_ABORTED: Final = 1  # tag of a partition

_partition: Final = Struct(">ihqq").unpack_from  # index, error code, log start, high watermark
_aborted: Final = Struct(">qq").unpack_from


class FoundMarker(NamedTuple):
    """A transaction's marker among batches."""

    offset: int
    timestamp: int  # ms
    producer_id: int
    producer_epoch: int
    outcome: int
    coordinator_epoch: int


class FoundBatches(NamedTuple):
    """The answer about one partition."""

    topic_id: UUID
    partition_index: int
    error_code: int
    log_start_offset: int
    runs: Runs
    markers: tuple[FoundMarker, ...]
    aborted: tuple[tuple[int, int], ...]  # producer id, first offset


def read_answer(body: Buffer) -> list[FoundBatches]:
    """Return the answers about all partitions, in the response's order.

    Raises:  RecordError.
    """
    data = bytes(body)
    try:
        found, end = _read(data)
        if end == len(data):
            return found
    except (IndexError, ValueError, OverflowError, struct.error):
        pass
    decode_message(FindBatchesResponse, data, VERSION)  # raises, and names field and position
    raise RecordError("FindBatches: the answer cannot be read in columns")


def _read(data: bytes) -> tuple[list[FoundBatches], int]:
    """Return the answers, and the position after the response."""
    found: list[FoundBatches] = []
    topics, at = read_uvarint(data, 4)  # behind the throttle time
    for _ in range(topics - 1):
        topic_id = UUID(bytes=data[at : at + 16])
        partitions, at = read_uvarint(data, at + 16)
        for _ in range(partitions - 1):
            index, error_code, log_start, _ = _partition(data, at)
            count, at = read_uvarint(data, at + 22)
            runs, markers, at = _read_batches(data, at, count - 1)
            aborted: tuple[tuple[int, int], ...] = ()
            tags, at = read_uvarint(data, at)
            for _ in range(tags):
                tag, at = read_uvarint(data, at)
                size, at = read_uvarint(data, at)
                if tag == _ABORTED:
                    aborted = _read_aborted(data, at)
                at += size
            found.append(
                FoundBatches(topic_id, index, error_code, log_start, runs, markers, aborted)
            )
        at = _skip_tags(data, at)
    return found, _skip_tags(data, at)


def _read_aborted(data: bytes, at: int) -> tuple[tuple[int, int], ...]:
    found = []
    count, at = read_uvarint(data, at)
    for _ in range(count - 1):
        found.append(_aborted(data, at))
        at = _skip_tags(data, at + 16)
    return tuple(found)


def _skip_tags(data: bytes, at: int) -> int:
    tags, at = read_uvarint(data, at)
    for _ in range(tags):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def _read_batches(data: bytes, at: int, count: int) -> tuple[Runs, tuple[FoundMarker, ...], int]:
    """Return the runs and markers of a partition, and the position after them."""
    key_sizes, fields_at, special = [], [], []
    for number in range(count):
        key_size = data[at]
        if key_size < 0x80:
            at += key_size
        else:
            key_size, at = read_uvarint(data, at)
            at += key_size - 1
        key_sizes.append(key_size - 1)
        fields_at.append(at)
        at += _SIZE
        if data[at]:
            special.append((number, at))
            at = _skip_tags(data, at)
        else:
            at += 1
    if not count:
        return Runs.of([]), (), at
    raw = np.frombuffer(data, np.uint8)
    places = np.array(fields_at)
    windows = np.lib.stride_tricks.sliding_window_view(raw, _SIZE)
    fields = windows[places].view(_FIELDS)[:, 0]
    formats = np.full(count, _APPENDED, np.int8)
    markers = []
    for number, tags_at in special:
        tagged = _read_tags(data, tags_at)
        formats[number] = tagged.get(_FORMAT, _APPENDED)
        if formats[number] == MARKER:
            row = fields[number]
            markers.append(
                FoundMarker(
                    int(row["base_offset"]),
                    int(row["batch_max_timestamp"]),
                    int(row["producer_id"]),
                    int(row["producer_epoch"]),
                    tagged.get(_OUTCOME, -1),
                    tagged.get(_EPOCH, -1),
                )
            )
    keys = _read_keys(raw, places, np.array(key_sizes))
    is_final = formats == FINAL
    stamped = ~is_final & (fields["message_timestamp_type"] == _LOG_APPEND_TIME)
    runs = Runs.of_columns(
        keys,
        fields["byte_offset"],
        fields["size"],
        fields["base_offset"],
        fields["last_offset"] + 1,
        is_final,
        np.where(stamped, fields["log_append_timestamp"], NO_TIME),
    )
    return runs[formats != MARKER] if markers else runs, tuple(markers), at


def _read_tags(data: bytes, at: int) -> dict[int, int]:
    """Return a batch's tagged fields, which are signed numbers, by tag."""
    found = {}
    tags, at = read_uvarint(data, at)
    for _ in range(tags):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        found[tag] = int.from_bytes(data[at : at + size], "big", signed=True)
        at += size
    return found


def _read_keys(
    raw: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.bytes_]:
    """Return the keys that end at `ends`, which have few different sizes."""
    if sizes.min() < 0:
        raise ValueError("a batch without an object key")
    keys = np.zeros(len(ends), f"S{max(1, int(sizes.max()))}")
    for size in np.unique(sizes).tolist():
        if size:
            chosen = np.flatnonzero(sizes == size)
            windows = np.lib.stride_tricks.sliding_window_view(raw, size)
            keys[chosen] = windows[ends[chosen] - size].view(f"S{size}")[:, 0]
    return keys
