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

from records.batch import HEADER, Batch, BatchHeader, iter_batches
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
    parts: tuple[Buffer, ...]


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
    copy = bytearray(stored)
    batches = []
    view = memoryview(copy)
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
        self._batches: list[Batch] = []
        self._append_time = -1
        self.size_bytes = 0  # of the run that is being built

    @property
    def end_offset(self) -> int:
        """Return the offset after the last batch added, or the base offset before any batch."""
        return self._batches[-1].header.end_offset if self._batches else self._base_offset

    def add(self, batch: Batch, append_time: int) -> tuple[FinalRun, ...]:
        """Add a batch; if the current run is full, return that run and begin another.

        Args:    append_time: ms since 1970; of the run that the batch comes from.
        """
        full = () if not self._batches or self._fits(batch) else tuple(self.take())
        self._append_time = max(self._append_time, append_time)
        self._batches.append(batch)
        self.size_bytes += len(batch.view)
        return full

    def _fits(self, batch: Batch) -> bool:
        first = self._batches[0].header
        same_type = batch.header.is_log_append_time == first.is_log_append_time
        return same_type and self.size_bytes + len(batch.view) <= self._max_run_bytes

    def take(self) -> Iterator[FinalRun]:
        """Yield the current run, unless it is empty, and begin the next run at its end offset."""
        if not self._batches:
            return
        headers = [batch.header for batch in self._batches]
        yield FinalRun(
            self._base_offset,
            headers[-1].last_offset,
            sum(header.record_count for header in headers),
            max(header.max_timestamp for header in headers),
            self._append_time,
            int(headers[0].is_log_append_time),
            len(headers),
            self.size_bytes,
            tuple(batch.view for batch in self._batches),
        )
        self._base_offset = headers[-1].end_offset
        self._batches, self._append_time, self.size_bytes = [], -1, 0
