"""Takes one consistent cut of all logs: where each log ends, and the bytes before that.

A group's offset is never ahead of its data, data never ahead of its topic, a marker never ahead of
its decision. So the ends are taken in that order, each from a statement of the log's leader that
everything committed by a time after the step before is below it.

The trap: this broker's copies of the logs lag behind their leaders, each by another time. The ends
of the copies, read at one moment, are no cut.

Source: docs/design/backup.md#one-consistent-cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from raft.interfaces import ReplicatedLog
from records.batch import Batch, iter_batches, iter_records
from records.diskless import SteadyTimeRecord
from records.frame import read_frame
from records.internal_topics import (
    CLUSTER_METADATA,
    CONSUMER_OFFSETS,
    DISKLESS_METADATA,
    TRANSACTION_STATE,
)
from records.metadata import NoOpRecord
from records.types import Offset

ORDER: Final = (CONSUMER_OFFSETS, DISKLESS_METADATA, TRANSACTION_STATE, CLUSTER_METADATA)
"""The topics of the logs, in the order in which their ends are taken."""

TIMEOUT_S: Final = 10.0
READ_BYTES: Final = 256 * 1024
_POLL_S: Final = 0.05

_QUIET: Final = {NoOpRecord.number(), SteadyTimeRecord.number()}
"""Types of records that an idle cluster writes, too, and whose loss changes nothing."""


class CutError(Exception):
    """No cut can be taken now; the message says why."""


class BackupLog(NamedTuple):
    """A log of the quorum on this broker, and its name."""

    topic: str
    partition: int
    topic_id: UUID
    log: ReplicatedLog

    @property
    def name(self) -> str:
        """Return the name of the log, `topic-partition`."""
        return f"{self.topic}-{self.partition}"


async def take_ends(
    logs: Iterable[BackupLog], clock: Callable[[], float], timeout_s: float = TIMEOUT_S
) -> dict[str, int]:
    """Return the exclusive end of each log in one consistent cut, by the log's name.

    Args:    clock: that of `committed_as_of`.
    Raises:  CutError if a leader does not answer in time.
    """
    known = list(logs)
    until_s = clock() + timeout_s
    ends = {}
    for topic in ORDER:
        after_s = clock()
        for one in known:
            if one.topic != topic:
                continue
            while (end := _committed_end(one.log, after_s)) is None:
                if clock() >= until_s:
                    raise CutError(f"the leader of {one.name} did not answer for {timeout_s:.0f} s")
                await asyncio.sleep(_POLL_S)
            ends[one.name] = end
    missing = {one.topic for one in known} - set(ORDER)
    assert not missing, f"logs without a place in the order: {missing}"
    return ends


def _committed_end(log: ReplicatedLog, after_s: float) -> int | None:
    stated = log.committed_as_of
    return None if stated is None or stated.at_s < after_s else stated.high_watermark


def read_batches(log: ReplicatedLog, start: int, end: int) -> Iterator[tuple[bytes, Batch]]:
    """Yield the batches [start, end) of a log, each with a copy of its bytes.

    Raises:  CutError if this broker does not have them yet.
    """
    at = start
    while at < end:
        try:
            data = bytes(log.read(Offset(at), READ_BYTES))
        except ValueError as error:  # a checkpoint has replaced these records meanwhile
            raise CutError(f"{log.name}: {error}") from None
        position = 0
        for batch in iter_batches(data):
            header = batch.header
            begin, position = position, position + header.size_bytes
            if header.end_offset <= at:
                continue
            if header.base_offset != at or header.end_offset > end:
                raise CutError(f"{log.name}: no batch begins at {at} and ends by {end}")
            yield data[begin:position], batch
            at = header.end_offset
            if at == end:
                return
        if not position:
            raise CutError(f"{log.name}: this broker has it up to {at}, and not yet up to {end}")


def is_quiet(batch: Batch) -> bool:
    """Return whether a batch has only records that an idle cluster writes, too."""
    return batch.header.is_control or all(
        read_frame(record.value)[0] in _QUIET for record in iter_records(batch)
    )
