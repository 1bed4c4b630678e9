"""Reads runs of batches from the store and stamps them for a consumer.

A run is a sequence of batches of one partition that lie side by side in one object and have
consecutive offsets. In the object each batch begins at offset 0; here it gets the offset that the
coordinator assigned, and the leader epoch: 0, or the timeline of a restored cluster in which the
batch got its offset. Neither is under the checksum. Under
LogAppendTime it also gets the time of its append, and then a new checksum. A rewritten object holds
batches in their final form (`records.final_batches`), which leave as they are. A transaction marker
is a run without an object: its control batch is built here.

All bytes from the store are verified: each batch's checksum, and that the batches make up the run
exactly, in bytes and in offsets. Of bytes that this broker wrote and still has in memory the
checksums are not verified again, unless new ones are computed: it did so when a producer sent them.
Bytes that fail are read once more, past the cache; if they fail again, a batch is damaged, and the
fetch ends before it, or with an error if it began there. Batches behind a damaged one are not
returned: a consumer must not skip offsets unnoticed. A consumer that seeks past it is served, if
the start of the next batch is still known.

Source: KIP-1163, Data Flow (replicas inject offsets), Consume path; docs/design/broker.md#fetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from diskless.fetch.object_cache import WRITTEN_HERE, ObjectCache
from diskless.stores import ByteRange
from raft.net.frames import JOIN_BYTES
from records.batch import CRC_START, LOG_OVERHEAD_BYTES, BatchHeader, iter_batches
from records.batch_writer import stamp_leader_epoch
from records.compression import Buffer
from records.errors import CorruptBatchError, RecordError
from records.final_batches import LEADER_EPOCH, stamp_final
from records.leader_epochs import LeaderEpochs
from records.marker_batches import marker_batch
from records.rpc.batch_coordinator import FindBatchesResponse
from records.wal import APPENDED, FINAL, MARKER
from records.wire import BufferChain

log = logging.getLogger("diskless.fetch.service")

LOG_APPEND_TIME: Final = 1

IN_PLACE_BYTES: Final = 2 * JOIN_BYTES
"""Batches that are larger on average are sent without a copy. Smaller ones would be joined anyway,
before they are written to a socket, or cost as much in pieces as a copy does."""

KEPT_RATIO: Final = 16
"""The largest ratio of a range that a view keeps in memory to the view itself."""

_HEAD: Final = struct.Struct(">qii")  # of a batch: base offset, length, leader epoch
_HEAD_BYTES: Final = _HEAD.size
_pack_head, _unpack_head = _HEAD.pack, _HEAD.unpack_from

FoundBatch = FindBatchesResponse.Topic.Partition.Batch


class Run(NamedTuple):
    """The location of consecutive batches of a partition in one object."""

    object_key: str
    byte_offset: int
    size_bytes: int
    base_offset: int
    last_offset: int  # inclusive
    timestamp_type: int  # 0 create time, 1 append time
    append_time: int  # ms since 1970
    object_format: int = APPENDED  # FINAL: its batches are sent as they are
    max_timestamp: int = -1  # ms since 1970; -1: unknown
    control: bytes = b""  # the batch of a transaction marker, which lies in no object

    @property
    def is_final(self) -> bool:
        """Return whether the run's batches have their final offsets, epoch and times."""
        return self.object_format == FINAL or self.is_marker

    @property
    def gets_append_time(self) -> bool:
        """Return whether its batches get the time of their append, and new checksums with it."""
        return self.timestamp_type == LOG_APPEND_TIME and not self.is_final

    @property
    def is_marker(self) -> bool:
        """Return whether the run is a transaction marker, without an object."""
        return bool(self.control)


def run_of(batch: FoundBatch) -> Run:
    """Convert a run of batches from a FindBatches response to a `Run`."""
    control = b""
    if batch.object_format == MARKER:
        control = marker_batch(
            base_offset=batch.base_offset,
            timestamp=batch.batch_max_timestamp,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            outcome=batch.marker_outcome,
            coordinator_epoch=batch.coordinator_epoch,
        )
    return Run(
        batch.object_key,
        batch.byte_offset,
        batch.size or len(control),
        batch.base_offset,
        batch.last_offset,
        batch.message_timestamp_type,
        batch.log_append_timestamp,
        batch.object_format,
        batch.batch_max_timestamp,
        control,
    )


class DamagedRunError(Exception):
    """The store's bytes are not those that were committed."""

    def __init__(self, run: Run, reason: str) -> None:
        super().__init__(
            f"{run.object_key} at byte {run.byte_offset}, offsets {run.base_offset} to "
            f"{run.last_offset}: {reason}"
        )
        self.run = run


class _Layout(NamedTuple):
    """The ends of a run's batches; computed once for as long as its bytes are cached."""

    end_offsets: array[int]  # of each batch, exclusive, from the run's base offset on
    end_bytes: array[int]  # the same in bytes
    damaged: tuple[int, ...] = ()  # batches, rising
    reason: str = ""  # of the first damage

    def sound_until(self, first: int) -> int:
        """Return the index of the first damaged batch from `first` on, or the number of batches."""
        return next((index for index in self.damaged if index >= first), len(self.end_bytes))


class _RunSlice(NamedTuple):
    """Consecutive batches of one run that go into the answer."""

    run: Run
    data: memoryview  # of the whole run
    layout: _Layout
    first: int  # batch
    end: int  # exclusive

    @property
    def begin_byte(self) -> int:
        return self.layout.end_bytes[self.first - 1] if self.first else 0

    @property
    def size_bytes(self) -> int:
        return self.layout.end_bytes[self.end - 1] - self.begin_byte


class FinalBatches(NamedTuple):
    """Consecutive batches of one run as a consumer gets them."""

    run: Run
    first_offset: int  # behind the batch before them, or the run's base offset
    ends: Sequence[tuple[int, int]]  # of each batch: end offset, and end in `data`
    data: memoryview


async def read_runs(
    cache: ObjectCache,
    runs: Sequence[Run],
    *,
    from_offset: int,
    max_bytes: int,
    epochs: LeaderEpochs | None = None,
    is_first: bool = True,
    on_read: Callable[[Sequence[FinalBatches]], None] | None = None,
) -> memoryview:
    """Read whole batches, beginning with the batch that contains `from_offset`, for a consumer.

    Args:    runs: consecutive, the first holding `from_offset`.
             max_bytes: of the answer; the first batch is whole, however large (KIP-74).
             epochs: the partition's leader epochs; None: all batches have epoch 0.
             is_first: whether there are no batches before these in the answer; if there are, the
                 first one must fit, too.
             on_read: gets what was read.
    Raises:  DamagedRunError and StorageError, if not even the first run can be read.
    """
    slices = await _read_slices(
        cache, runs, from_offset=from_offset, max_bytes=max_bytes, is_first=is_first
    )
    data = memoryview(_copied(slices, epochs)).toreadonly()
    if on_read is not None:
        on_read(_final_batches(slices, data))
    return data


async def read_runs_in_place(
    cache: ObjectCache,
    runs: Sequence[Run],
    *,
    from_offset: int,
    max_bytes: int,
    epochs: LeaderEpochs | None = None,
) -> memoryview | BufferChain:
    """Read whole batches as `read_runs` does, without copying large ones out of the cache.

    Of a large batch only the fields before its checksum are copied: there its offset and epoch are.
    The trap: such a view keeps all of its cached range in memory, until the answer has been sent.
    So it is made only of ranges that are not much larger than it.
    """
    slices = await _read_slices(
        cache, runs, from_offset=from_offset, max_bytes=max_bytes, is_first=True
    )
    if not any(map(_may_stay, slices)):
        return memoryview(_copied(slices, epochs)).toreadonly()
    parts: list[Buffer] = []
    for run_slice in slices:
        if _may_stay(run_slice):
            _add_in_place(parts, run_slice, epochs)
        else:
            parts.append(_copied([run_slice], epochs))
    return BufferChain(parts)


def _copied(slices: Sequence[_RunSlice], epochs: LeaderEpochs | None) -> bytearray:
    """Copy batches into one buffer, in their final form."""
    answer = _stamp_all(slices)
    if epochs is not None:
        _stamp_epochs(answer, epochs)
    return answer


async def _read_slices(
    cache: ObjectCache,
    runs: Sequence[Run],
    *,
    from_offset: int,
    max_bytes: int,
    is_first: bool,
) -> list[_RunSlice]:
    """Read runs, and choose the batches that go into an answer; see `read_runs`.

    Runs in memory are taken at once: they may leave the cache while this waits for others. The
    reads that wait for the store begin together, in one turn of the loop.
    """
    reads = [_read_now(cache, run) or asyncio.ensure_future(_read(cache, run)) for run in runs]
    slices: list[_RunSlice] = []
    left_bytes = max_bytes
    try:
        for run, reading in zip(runs, reads, strict=True):
            try:
                data, layout = reading if isinstance(reading, tuple) else await reading
                first = bisect_right(layout.end_offsets, from_offset - run.base_offset)
                if first == len(layout.end_offsets):
                    continue
                sound = layout.sound_until(first)
                if sound == first:
                    raise DamagedRunError(run, layout.reason)
            except Exception as error:
                if not slices:
                    raise
                log.warning("run=%s error=%r", run, str(error))
                break
            end_bytes = layout.end_bytes
            begin = end_bytes[first - 1] if first else 0
            end = bisect_right(end_bytes, begin + left_bytes, first)
            if is_first and not slices:
                end = max(end, first + 1)
            end = min(end, sound)
            if end > first:
                slices.append(_RunSlice(run, data, layout, first, end))
                left_bytes -= end_bytes[end - 1] - begin
            if end < len(end_bytes):
                break
    finally:
        waiting = [reading for reading in reads if not isinstance(reading, tuple)]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.gather(*waiting, return_exceptions=True)
    return slices


def is_in_memory(cache: ObjectCache, run: Run) -> bool:
    """Return whether a run is in memory, so that reading it now waits for nothing."""
    return bool(run.control) or cache.is_in_memory(run.object_key, run.byte_offset, run.size_bytes)


def _may_stay(run_slice: _RunSlice) -> bool:
    """Return whether a slice may be sent without a copy.

    Its batches must be large, must not need another checksum for the time of their append, and the
    range that they would keep in memory must not be much larger.
    """
    run, size_bytes = run_slice.run, run_slice.size_bytes
    if run.gets_append_time:
        return False
    if size_bytes < IN_PLACE_BYTES * (run_slice.end - run_slice.first):
        return False
    base = run_slice.data.obj
    return isinstance(base, bytes) and len(base) <= KEPT_RATIO * size_bytes


def _add_in_place(parts: list[Buffer], run_slice: _RunSlice, epochs: LeaderEpochs | None) -> None:
    """Append the batches of a slice: for each one its first fields anew, and a view of the rest."""
    run, data, begin = run_slice.run, run_slice.data, run_slice.begin_byte
    end_offsets, end_bytes = run_slice.layout.end_offsets, run_slice.layout.end_bytes
    if run.is_final and epochs is None:
        parts.append(data[begin : end_bytes[run_slice.end - 1]])
        return
    epoch = LEADER_EPOCH
    for index in range(run_slice.first, run_slice.end):
        end = end_bytes[index]
        if run.is_final:
            base_offset, _, _ = _unpack_head(data, begin)
        else:
            base_offset = run.base_offset + (end_offsets[index - 1] if index else 0)
        if epochs is not None:
            epoch = epochs.at(run.base_offset + end_offsets[index] - 1)
        parts.append(_pack_head(base_offset, end - begin - LOG_OVERHEAD_BYTES, epoch))
        parts.append(data[begin + _HEAD_BYTES : end])
        begin = end


async def read_run(cache: ObjectCache, run: Run) -> memoryview:
    """Read and verify the stored bytes of a run of batches; read damaged bytes a second time.

    Raises:  DamagedRunError, StorageError.
    """
    data, layout = await _read(cache, run)
    if layout.damaged:
        raise DamagedRunError(run, layout.reason)
    return data


async def read_stored(cache: ObjectCache, run: Run) -> memoryview:
    """Read the stored bytes of a run of batches without verifying them; the caller must do so.

    Raises:  StorageError.
    """
    if run.is_marker:
        return memoryview(run.control)
    return await cache.read(run.object_key, ByteRange(run.byte_offset, run.size_bytes))


def _read_now(cache: ObjectCache, run: Run) -> tuple[memoryview, _Layout] | None:
    """Return a run that is in memory, verified; None for another one, and for a damaged one."""
    if run.control:
        return memoryview(run.control), _Layout(array("q", (1,)), array("q", (len(run.control),)))
    found = cache.read_now(run.object_key, run.byte_offset, run.size_bytes)
    if found is None:
        return None
    try:
        layout = _layout_of(run, *found)
    except DamagedRunError:
        return None
    return None if layout.damaged else (found[0], layout)


async def _read(cache: ObjectCache, run: Run) -> tuple[memoryview, _Layout]:
    """Read and verify a run of batches; read damaged bytes a second time.

    Raises DamagedRunError if no batch is sound.
    """
    found = _read_now(cache, run)
    if found is not None:
        return found
    where = ByteRange(run.byte_offset, run.size_bytes)
    data, notes = await cache.read_noted(run.object_key, where)
    try:
        layout = _layout_of(run, data, notes)
        reason = layout.reason
    except DamagedRunError as error:
        layout, reason = None, str(error)
    if layout is not None and not layout.damaged:
        return data, layout
    log.warning("action=read_again run=%s reason=%r", run, reason)
    cache.forget(run.object_key)
    data, notes = await cache.read_noted(run.object_key, where)
    return data, _layout_of(run, data, notes)


def _layout_of(run: Run, data: memoryview, notes: dict[object, object]) -> _Layout:
    """Return the positions of a run's batches, from `notes` or by verifying `data`."""
    name = (run.byte_offset, run.size_bytes, run.last_offset - run.base_offset)
    layout = notes.get(name)
    if layout is None:
        verify_crc = WRITTEN_HERE not in notes or run.gets_append_time
        layout = verify(run, data, verify_crc=verify_crc)
        if not layout.damaged:
            notes[name] = layout
    assert isinstance(layout, _Layout), f"not a layout: {layout}"
    return layout


def verify(run: Run, data: memoryview, *, verify_crc: bool = True) -> _Layout:
    """Check that the bytes are the run's committed batches, and return the batches' positions.

    Args:    verify_crc: False for batches whose checksums this broker has verified before.
    Raises:  DamagedRunError if none is sound.
    """
    end_offsets, end_bytes = array("q"), array("q")
    count = 0
    try:
        for position, header, view in iter_batches(data, verify_crc=verify_crc):
            count = _end_offset(run, header, count)
            end_offsets.append(count)
            end_bytes.append(position + len(view))
    except RecordError as error:
        return _salvage(run, data, str(error))
    expected = run.last_offset - run.base_offset + 1
    if count != expected:
        raise DamagedRunError(run, f"batches of {count} offsets, {expected} were committed")
    return _Layout(end_offsets, end_bytes)


def _end_offset(run: Run, header: BatchHeader, count: int) -> int:
    """Return the end offset of the batch with this header, relative to the run's base offset.

    Args:    count: the end offset of the batch before it.
    Raises:  CorruptBatchError if a batch in final form begins before that.
    """
    if not run.is_final:
        return count + header.last_offset_delta + 1
    if header.base_offset < run.base_offset + count:
        reason = f"begins below offset {run.base_offset + count}"
        raise CorruptBatchError(position=0, offset=header.base_offset, reason=reason)
    return header.end_offset - run.base_offset


def _salvage(run: Run, data: memoryview, reason: str) -> _Layout:
    """Return the positions of all batches in a run of batches, and the damaged batches.

    Where lengths and counts still make up the run, only batches with a wrong checksum are damaged.
    Otherwise every batch from the first damaged one on is, because the start and offset of the next
    batch are unknown.
    """
    end_offsets, end_bytes, damaged = array("q"), array("q"), []
    expected, count = run.last_offset - run.base_offset + 1, 0
    with contextlib.suppress(RecordError):
        for position, header, view in iter_batches(data, verify_crc=False):
            if crc32c(view[CRC_START:]) != header.crc:
                damaged.append(len(end_bytes))
            count = _end_offset(run, header, count)
            end_offsets.append(count)
            end_bytes.append(position + len(view))
    if not damaged or (count, end_bytes[-1]) != (expected, len(data)):
        sound = damaged[0] if damaged else len(end_bytes)
        del end_offsets[sound:], end_bytes[sound:]
        if sound == 0 or end_offsets[-1] >= expected:
            raise DamagedRunError(run, reason)
        damaged = [sound]
        end_offsets.append(expected)
        end_bytes.append(len(data))
    return _Layout(end_offsets, end_bytes, tuple(damaged), reason)


def _final_batches(slices: Sequence[_RunSlice], data: memoryview) -> list[FinalBatches]:
    """Return which batches of which runs are where in the stamped bytes of these slices."""
    found, position = [], 0
    for run_slice in slices:
        run, layout, first = run_slice.run, run_slice.layout, run_slice.first
        base_offset, begin = run.base_offset, run_slice.begin_byte
        chosen = range(first, run_slice.end)
        found.append(
            FinalBatches(
                run,
                base_offset + (layout.end_offsets[first - 1] if first else 0),
                [
                    (base_offset + layout.end_offsets[i], layout.end_bytes[i] - begin)
                    for i in chosen
                ],
                data[position : position + run_slice.size_bytes],
            )
        )
        position += run_slice.size_bytes
    return found


def _stamp_epochs(batches: bytearray, epochs: LeaderEpochs) -> None:
    """Set the leader epoch of each batch: the epoch of its last offset.

    Consumers keep it with the offset after the batch. The epoch is outside of the checksum.
    """
    for position, header, _ in iter_batches(memoryview(batches), verify_crc=False):
        epoch = epochs.at(header.base_offset + header.last_offset_delta)
        stamp_leader_epoch(batches, position, epoch)


def _stamp_all(slices: Sequence[_RunSlice]) -> bytearray:
    """Copy batches into one buffer, and set each batch's base offset and append time."""
    answer = bytearray().join(
        [
            run_slice.data[run_slice.begin_byte : run_slice.begin_byte + run_slice.size_bytes]
            for run_slice in slices
        ]
    )
    position = 0
    for run_slice in slices:
        run, end_offsets, end_bytes = (
            run_slice.run,
            run_slice.layout.end_offsets,
            run_slice.layout.end_bytes,
        )
        begin, shift = run_slice.begin_byte, position - run_slice.begin_byte
        position += run_slice.size_bytes
        if run.is_final:
            continue
        append_time = run.append_time if run.timestamp_type == LOG_APPEND_TIME else None
        for index in range(run_slice.first, run_slice.end):
            base_offset = run.base_offset + (end_offsets[index - 1] if index else 0)
            end = end_bytes[index]
            if append_time is None:
                length = end - begin - LOG_OVERHEAD_BYTES
                _HEAD.pack_into(answer, begin + shift, base_offset, length, LEADER_EPOCH)
            else:
                with memoryview(answer)[begin + shift : end + shift] as batch:
                    stamp_final(batch, base_offset=base_offset, append_time=append_time)
            begin = end
    return answer
