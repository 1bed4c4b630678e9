"""Batches as consumers receive them: with their offsets, leader epoch and append time.

In a WAL object each batch begins at offset 0, because offsets are assigned after the object is
written; a broker stamps a copy for each consumer. A merged object holds batches in their final
form, which a broker sends as they are. `records.final_runs` makes such objects' runs.

Source: KIP-1163, Data Flow (replicas inject offsets); KIP-32 (LogAppendTime);
docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from records.batch import Batch
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


def stamp_final(
    batch: bytearray | memoryview, *, base_offset: int, append_time: int | None
) -> None:
    """Set a WAL batch's base offset and leader epoch, and its append time if one is given."""
    stamp(batch, base_offset=base_offset, leader_epoch=LEADER_EPOCH)
    if append_time is not None:
        stamp_log_append_time(batch, timestamp=append_time)


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
