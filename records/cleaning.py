"""Removes records from batches by Kafka's rules of compaction.

A round has a bound. Below it, a record stays if it is the newest of its key; a tombstone (a null
value) stays until its batch's *delete horizon*, which is set when the batch is first cleaned: the
time of that cleaning plus delete.retention.ms, in the header's base timestamp, with a bit that says
so. Records without a key go. Offsets, timestamps, headers, codec, producer and sequence stay, and
each batch stays a batch: its base offset and last offset do not change.

A batch that loses all records is dropped, or kept *empty*, a header alone: if it ends the round
(consumers wait for that offset), or if it is the last of an active producer, as in Kafka.

The trap: control batches have keys, too, and those of two producers are the same. So they do not
enter the map. A transaction marker goes like a tombstone, once no batch of its transaction is left:
it gets a delete horizon, and is dropped when that has passed.

Source: Kafka's Cleaner and MemoryRecords.filterTo, whose rules these are; KIP-534 (delete
horizons); docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    Batch,
    BatchHeader,
)
from records.batch_writer import seal
from records.compression import compress
from records.offset_map import OffsetMap, digest_block
from records.record_block import RecordBlock, read_block
from records.types import Offset
from records.varint import decode_varint, encode_varint
from records.varint_columns import Numbers

Mask = npt.NDArray[np.bool_]


class Round(NamedTuple):
    """The settings that all batches of one compaction round share."""

    now_ms: int  # ms since 1970
    delete_retention_ms: int
    last_sequences: Mapping[int, int]  # of each active producer, by its id
    salt: bytes  # of the keys' digests


class Cleaned(NamedTuple):
    """The batches of a block that stay, and facts about them."""

    batches: list[Batch]
    sets_horizons: bool  # a batch has got a delete horizon
    drops_tombstones: bool  # a tombstone or marker whose horizon passed is gone
    dropped_markers: tuple[int, ...] = ()  # their base offsets


def is_compacted(batch: Batch) -> bool:
    """Return whether compaction may remove records of a batch; False for a control batch."""
    return not batch.header.is_control


def note_keys(block: RecordBlock, offsets: OffsetMap, salt: bytes) -> None:
    """Record the newest offset of each key in a block of records in the offset map."""
    wanted = np.flatnonzero(_has_key(block))
    offsets.put(digest_block(block, wanted, salt), block.offsets[wanted])


def newest_by_map(block: RecordBlock, offsets: OffsetMap, salt: bytes) -> Mask:
    """Return a mask of the records that are not older than their key's newest offset in the map."""
    wanted = np.flatnonzero(_has_key(block))
    newest = np.zeros(len(block.offsets), np.bool_)
    newest[wanted] = block.offsets[wanted] >= offsets.newest(digest_block(block, wanted, salt))
    return newest


def newest_by_offset(block: RecordBlock, survivors: Numbers) -> Mask:
    """Return a mask of the records whose offsets are in `survivors`, a sorted array."""
    if not len(block.offsets) or not len(survivors):
        return np.zeros(len(block.offsets), np.bool_)
    places = np.searchsorted(survivors, block.offsets)
    places[places == len(survivors)] -= 1
    newest: Mask = survivors[places] == block.offsets
    return newest


def _has_key(block: RecordBlock) -> Mask:
    is_data = np.array([is_compacted(batch) for batch in block.batches], np.bool_)
    return (block.key_sizes >= 0) & is_data[block.batch_indexes]


def clean_block(
    block: RecordBlock, newest: Mask, rules: Round, unused_markers: Container[int] = ()
) -> Cleaned:
    """Return the batches of a block after compaction; rewrite the batches that lose records.

    The caller keeps the last batch of a rewritten range, as an `empty_batch`, if it is not there.

    Args:    newest: which records are the newest of their keys.
             unused_markers: base offsets of the markers of which no batch of data is left.
    """
    headers = [batch.header for batch in block.batches]
    horizons = np.array(
        [_horizon(header) if header.attributes & DELETE_HORIZON else -1 for header in headers],
        np.int64,
    )
    is_passed = (horizons >= 0) & (horizons <= rules.now_ms)
    is_tombstone = block.value_sizes < 0
    expired = newest & is_tombstone & is_passed[block.batch_indexes]
    keeps = newest & ~expired
    kept = _Kept(block, keeps)
    kept_tombstones = _count(keeps & is_tombstone, block).tolist()
    has_horizon = (horizons >= 0).tolist()
    new_horizon = rules.now_ms + rules.delete_retention_ms
    batches, dropped_markers, sets_horizons = [], list[int](), False
    for index, batch in enumerate(block.batches):
        header = batch.header
        if not is_compacted(batch):
            if header.base_offset in unused_markers and header.record_count:
                if is_passed[index]:
                    dropped_markers.append(header.base_offset)
                    continue
                if not has_horizon[index]:
                    sets_horizons = True
                    batches.append(_with_horizon(block, index, new_horizon))
                    continue
            batches.append(batch)
            continue
        count = kept.count(index)
        if count == 0:
            if rules.last_sequences.get(header.producer_id) == _last_sequence(header):
                batches.append(empty_batch(header))
            continue
        needs_horizon = kept_tombstones[index] > 0 and not has_horizon[index]
        sets_horizons |= needs_horizon
        if count == header.record_count and not needs_horizon:
            batches.append(batch)
            continue
        horizon = new_horizon if needs_horizon else None
        batches.append(_without_others(header, kept, index, horizon))
    drops_any = bool(expired.any()) or bool(dropped_markers)
    return Cleaned(batches, sets_horizons, drops_any, tuple(dropped_markers))


def _horizon(header: BatchHeader) -> int:
    return header.base_timestamp


def _last_sequence(header: BatchHeader) -> int:
    """Return the sequence number of a batch's last record; sequences wrap around at 2^31."""
    return (header.base_sequence + header.last_offset_delta) & 0x7FFF_FFFF


def _count(mask: Mask, block: RecordBlock) -> Numbers:
    """Return for each batch of a block the number of its records that the mask selects."""
    return np.bincount(block.batch_indexes[mask], minlength=len(block.batches))


def empty_batch(header: BatchHeader) -> Batch:
    """Return a batch without records, with the offsets, producer and sequence of `header`."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    empty = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return _build(empty, b"")


def cut_front(batch: Batch, first_offset: int) -> Batch:
    """Return a batch without its records below an offset, which becomes its base offset.

    The other records keep their offsets, timestamps and sequence numbers.

    Raises:  CorruptBatchError, CompressionError.
    """
    block, header = read_block([batch]), batch.header
    cut = first_offset - header.base_offset
    kept = np.flatnonzero(block.offsets >= first_offset)
    sequence = header.base_sequence
    header = header._replace(
        base_offset=Offset(first_offset),
        last_offset_delta=header.last_offset_delta - cut,
        base_sequence=sequence if sequence < 0 else (sequence + cut) & 0x7FFF_FFFF,
    )
    if not len(kept):
        return empty_batch(header)
    parts: list[bytes] = []
    for index in kept.tolist():
        _, after_delta = decode_varint(block.data, block.after_timestamps[index])
        fields = (
            _NO_ATTRIBUTES,
            encode_varint(int(block.timestamps[index]) - header.base_timestamp),
            encode_varint(int(block.offsets[index]) - first_offset),
            block.data[after_delta : block.ends[index]],
        )
        parts += (encode_varint(sum(map(len, fields))), *fields)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = int(block.timestamps[kept].max())
    header = header._replace(max_timestamp=max_timestamp, record_count=len(kept))
    return _build(header, compress(header.compression, b"".join(parts)))


class _Kept:
    """The records of a block that stay, for all batches at once.

    Why: a call of NumPy costs as much as the records of a small batch.
    """

    def __init__(self, block: RecordBlock, keeps: Mask) -> None:
        self.block = block
        self._records = records = np.flatnonzero(keeps)
        bounds = np.searchsorted(records, block.first_records)
        self._bounds: list[int] = bounds.tolist()
        # Neighbouring records of one batch are copied together, as a span.
        begins = np.ones(len(records), np.bool_)
        begins[1:] = records[1:] != records[:-1] + 1
        begins[bounds[bounds < len(records)]] = True
        ends = np.ones(len(records), np.bool_)
        ends[:-1] = begins[1:]
        self._spans: list[int] = np.searchsorted(np.flatnonzero(begins), bounds).tolist()
        self._starts: list[int] = block.starts[records[begins]].tolist()
        self._stops: list[int] = block.ends[records[ends]].tolist()
        if len(records):
            has_records = bounds[:-1] < bounds[1:]
            newest = np.maximum.reduceat(block.timestamps[records], bounds[:-1][has_records])
            self._max_timestamps = np.zeros(len(has_records), np.int64)
            self._max_timestamps[has_records] = newest

    def count(self, batch: int) -> int:
        """Return the number of records that stay in a batch."""
        return self._bounds[batch + 1] - self._bounds[batch]

    def max_timestamp(self, batch: int) -> int:
        """Return the newest timestamp of the records that stay in a batch, in ms since 1970."""
        return int(self._max_timestamps[batch])

    def records(self, batch: int) -> Numbers:
        """Return the indexes in the block of the records that stay in a batch."""
        return self._records[self._bounds[batch] : self._bounds[batch + 1]]

    def join(self, batch: int) -> bytes:
        """Return the unchanged bytes of the records that stay in a batch."""
        first, end = self._spans[batch], self._spans[batch + 1]
        data = self.block.data
        starts, stops = self._starts[first:end], self._stops[first:end]
        return b"".join([data[start:stop] for start, stop in zip(starts, stops, strict=True)])


def _without_others(header: BatchHeader, kept: _Kept, index: int, horizon: int | None) -> Batch:
    """Return the batch with only its kept records; set the delete horizon if one is given."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon is None:
        body = kept.join(index)
    else:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon
        body = _rebase_records(kept.block, kept.records(index), horizon)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = kept.max_timestamp(index)
    return _build(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=kept.count(index),
        ),
        compress(header.compression, body) if attributes & COMPRESSION_MASK else body,
    )


def _with_horizon(block: RecordBlock, index: int, horizon: int) -> Batch:
    """Return a whole batch of a block with a delete horizon."""
    header = block.batches[index].header
    records = np.flatnonzero(block.batch_indexes == index)
    body = _rebase_records(block, records, horizon)
    attributes = header.attributes | DELETE_HORIZON
    codec = header.compression
    return _build(
        header._replace(attributes=attributes, base_timestamp=horizon),
        compress(codec, body) if attributes & COMPRESSION_MASK else body,
    )


_NO_ATTRIBUTES: Final = b"\0"
_NO_HEADER: Final = bytes(HEADER_SIZE_BYTES)


def _rebase_records(block: RecordBlock, kept: Numbers, base_timestamp: int) -> bytes:
    """Encode the records `kept` with timestamps relative to `base_timestamp`."""
    data = block.data
    parts: list[bytes] = []
    deltas = (block.timestamps[kept] - base_timestamp).tolist()
    rests = zip(block.after_timestamps[kept].tolist(), block.ends[kept].tolist(), strict=True)
    for delta, (start, end) in zip(deltas, rests, strict=True):
        timestamp = encode_varint(delta)
        size = len(_NO_ATTRIBUTES) + len(timestamp) + end - start
        parts += (encode_varint(size), _NO_ATTRIBUTES, timestamp, data[start:end])
    return b"".join(parts)


def _build(header: BatchHeader, body: bytes) -> Batch:
    """Build a batch from a header and its records' bytes, with a new length and checksum."""
    data = bytearray(b"".join((_NO_HEADER, body)))
    HEADER.pack_into(data, 0, header[0], len(data) - LOG_OVERHEAD_BYTES, *header[2:])
    seal(data)
    return Batch(0, BatchHeader._make(HEADER.unpack_from(data)), memoryview(data))
