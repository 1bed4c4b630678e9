"""Batches as consumers receive them: with their offsets, leader epoch and append time.

In a WAL object each batch begins at offset 0, because offsets are assigned after the object is
written; a broker stamps a copy for each consumer. A merged object holds batches in their final
form, which a broker sends as they are.

    batches = finish_run(stored, base_offset=700, end_offset=720, append_time=None)
    builder = RunBuilder(700)
    runs = [*builder.add(batches[0], 55), *builder.take()]

The two forms are checked differently. Batches of a WAL object make up their run without a gap.
Batches in final form rise within their run and may leave gaps, which compaction made; but the last
one ends where the run ends, because consumers wait for that offset.

Source: KIP-1163, Data Flow (replicas inject offsets); KIP-32 (LogAppendTime);
docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from records.batch import HEADER, NO_TIMESTAMP, Batch, BatchHeader, iter_batches
from records.batch_columns import BatchColumns, Slice, read_columns
from records.batch_writer import stamp, stamp_log_append_time
from records.compression import Buffer
from records.errors import CorruptBatchError

MAX_RUN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a run in a merged object; a larger batch is a run of its own."""

LEADER_EPOCH: Final = 0
"""The leader epoch of every diskless partition; it never changes, because any broker leads.

Source: docs/design/broker.md#any-broker-leads.
"""


class FinalRun(NamedTuple):
    """Batches in final form that go into a merged object as one run."""

    base_offset: int
    last_offset: int  # inclusive; that of the last batch
    record_count: int
    max_timestamp: int  # ms since 1970
    append_time: int  # ms since 1970; the newest of its sources
    timestamp_type: int  # 0 create time, 1 append time; the same for all batches
    batch_count: int
    size_bytes: int
    parts: tuple[Buffer, ...]  # each of one batch or of several


def finish_columns(
    stored: Buffer, *, base_offset: int, end_offset: int, verify_crc: bool = True
) -> BatchColumns | None:
    """Return a stamped copy of a run of create time from a WAL object, as columns.

    None unless the run is sound: then `finish_run` says what is wrong.
    """
    columns = read_columns(memoryview(bytearray(stored)), verify_crc=verify_crc)
    if columns is None or columns.stamp(base_offset, LEADER_EPOCH) != end_offset:
        return None
    return columns


def read_final_columns(
    stored: Buffer, *, base_offset: int, end_offset: int, verify_crc: bool = True
) -> BatchColumns | None:
    """Return the batches of a run that is stored with final offsets, as columns, uncopied.

    None unless the run is sound: then `read_final_run` says what is wrong.
    """
    columns = read_columns(memoryview(stored), verify_crc=verify_crc)
    return columns if columns is not None and columns.rises_to(base_offset, end_offset) else None


def finish_run(
    stored: Buffer,
    *,
    base_offset: int,
    end_offset: int,
    append_time: int | None,
    verify_crc: bool = True,
) -> list[Batch]:
    """Return copies of a run's batches from a WAL object, stamped with offsets and append time.

    Args:    end_offset: exclusive; where the batches must end.
             append_time: ms of a run of append time, or None for create time.
    Raises:  CorruptBatchError, IncompleteBatchError.
    """
    if append_time is None:
        columns = finish_columns(
            stored, base_offset=base_offset, end_offset=end_offset, verify_crc=verify_crc
        )
        if columns is not None:
            return columns.batches()
    copy = bytearray(stored)
    view = memoryview(copy)
    batches = []
    for batch in iter_batches(view, verify_crc=verify_crc):
        stamp_final(batch.view, base_offset=base_offset, append_time=append_time)
        header = BatchHeader._make(HEADER.unpack_from(batch.view))
        batches.append(Batch(batch.position, header, batch.view))
        base_offset = header.end_offset
    if base_offset != end_offset:
        raise CorruptBatchError(
            position=len(copy), reason=f"batches end at offset {base_offset}, not {end_offset}"
        )
    return batches


def stamp_final(
    batch: bytearray | memoryview, *, base_offset: int, append_time: int | None
) -> None:
    """Set a WAL batch's base offset and leader epoch, and its append time if one is given."""
    stamp(batch, base_offset=base_offset, leader_epoch=LEADER_EPOCH)
    if append_time is not None:
        stamp_log_append_time(batch, timestamp=append_time)


def read_final_run(
    stored: Buffer, *, base_offset: int, end_offset: int, verify_crc: bool = True
) -> list[Batch]:
    """Return the batches of a run that is stored with final offsets, without copying bytes.

    Raises:  CorruptBatchError, IncompleteBatchError.
    """
    columns = read_final_columns(
        stored, base_offset=base_offset, end_offset=end_offset, verify_crc=verify_crc
    )
    if columns is not None:
        return columns.batches()
    batches = list(iter_batches(stored, verify_crc=verify_crc))
    check_final(batches, base_offset=base_offset, end_offset=end_offset)
    return batches


def check_final(batches: Iterable[Batch], *, base_offset: int, end_offset: int) -> None:
    """Check that a run's batches have rising final offsets and end at the run's end offset.

    Raises:  CorruptBatchError.
    """
    end = base_offset
    for batch in batches:
        if batch.header.base_offset < end:
            raise CorruptBatchError(
                position=batch.position,
                offset=batch.header.base_offset,
                reason=f"offsets begin below {end}",
            )
        end = batch.header.end_offset
    if end != end_offset:
        raise CorruptBatchError(position=0, reason=f"batches end at offset {end}, not {end_offset}")


class RunBuilder:
    """Cuts a partition's batches in final form into runs of at most `MAX_RUN_BYTES`."""

    def __init__(self, base_offset: int, *, max_run_bytes: int = MAX_RUN_BYTES) -> None:
        """Create a builder whose first run begins at `base_offset`."""
        self._base_offset = base_offset
        self._max_run_bytes = max_run_bytes
        self._parts: list[Buffer] = []
        self._last_offset = base_offset - 1
        self._batch_count = self._record_count = 0
        self._max_timestamp = self._append_time = NO_TIMESTAMP
        self._is_append_time = False  # whether the run's batches have the append time
        self.size_bytes = 0  # of the run that is being built

    @property
    def end_offset(self) -> int:
        """Return the offset after the last batch added, or the base offset before any batch."""
        return self._last_offset + 1

    def add(self, batch: Batch, append_time: int) -> tuple[FinalRun, ...]:
        """Add a batch; if the current run is full, return that run and begin another.

        Args:    append_time: ms since 1970; of the run that the batch comes from.
        """
        header = batch.header
        size_bytes, is_append_time = len(batch.view), header.is_log_append_time
        full = () if self._fits(size_bytes, is_append_time) else tuple(self.take())
        last_offset = header.base_offset + header.last_offset_delta
        part = Slice(batch.view, 1, header.record_count, last_offset, header.max_timestamp)
        self._put(part, append_time, is_append_time)
        return full

    def add_all(self, columns: BatchColumns, append_time: int) -> Iterator[FinalRun]:
        """Add batches, all of one timestamp type, in as few parts as runs allow; yield full runs.

        Args:    append_time: ms since 1970; of the run that the batches come from.
        """
        is_append_time = columns.is_log_append_time
        assert is_append_time is not None, "batches of both timestamp types"
        first = 0
        while first < len(columns):
            if not self._fits(0, is_append_time):
                yield from self.take()
            count = columns.count_fitting(first, self._max_run_bytes - self.size_bytes)
            if not count and self._parts:
                yield from self.take()
                continue
            count = max(1, count)  # a batch that is larger than a run is a run of its own
            self._put(columns.slice(first, count), append_time, is_append_time)
            first += count

    def _fits(self, size_bytes: int, is_append_time: bool) -> bool:
        same_type = is_append_time == self._is_append_time
        fits = same_type and self.size_bytes + size_bytes <= self._max_run_bytes
        return fits or not self._parts

    def _put(self, part: Slice, append_time: int, is_append_time: bool) -> None:
        self._parts.append(part.view)
        self._is_append_time = is_append_time
        self._last_offset = part.last_offset
        self._batch_count += part.batch_count
        self._record_count += part.record_count
        self._max_timestamp = max(self._max_timestamp, part.max_timestamp)
        self._append_time = max(self._append_time, append_time)
        self.size_bytes += len(part.view)

    def take(self) -> Iterator[FinalRun]:
        """Yield the current run, unless it is empty, and begin the next run at its end offset."""
        if not self._parts:
            return
        yield FinalRun(
            self._base_offset,
            self._last_offset,
            self._record_count,
            self._max_timestamp,
            self._append_time,
            int(self._is_append_time),
            self._batch_count,
            self.size_bytes,
            tuple(self._parts),
        )
        self._base_offset = self._last_offset + 1
        self._parts, self._batch_count, self._record_count, self.size_bytes = [], 0, 0, 0
        self._max_timestamp = self._append_time = NO_TIMESTAMP
