"""Runs of batches in their final form, as they go into merged objects.

    batches = finish_run(stored, base_offset=700, end_offset=720, append_time=None)
    builder = RunBuilder(700)
    runs = [*builder.add(batches[0], 55), *builder.take()]

The two stored forms are checked differently. Batches of a WAL object make up their run without a
gap. Batches in final form rise within their run and may leave gaps, which compaction made; but the
last one ends where the run ends, because consumers wait for that offset.

It loads NumPy, so a node that rewrites nothing does not import it.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from records.batch import HEADER, NO_TIMESTAMP, Batch, BatchHeader, iter_batches
from records.batch_columns import BatchColumns, Slice, read_columns
from records.compression import Buffer
from records.errors import CorruptBatchError
from records.final_batches import LEADER_EPOCH, MAX_RUN_BYTES, FinalRun, check_final, stamp_final


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
