"""Reads from the coordinators' logs what producers sent: when, how much, where to.

A commit names its batches, and each batch the time of its newest record: that is about when its
producer sent it. The trap: such a time is the producer's clock. Times after the commit or long
before it, and append times, say nothing; such batches are spread over the time since the broker's
commit before.

Refused batches and duplicates were sent, too, and count. Objects of rewriters are no commits.

Source: KIP-1164, CommitBatches; docs/what-if.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from records.diskless import ObjectCommitRecord
from records.frame import decode_record, read_frame
from records.metadata import RegisterBrokerRecord, UnregisterBrokerRecord
from spark_jobs.readers.logs import (
    CLUSTER_METADATA,
    DISKLESS_METADATA,
    Log,
    Logs,
    LogsError,
    coordinators_of,
)

MAX_BATCHES: Final = 5_000_000
"""Of a history: 32 bytes each, and some seconds of simulation a million."""

MAX_DELAY_MS: Final = 10_000
"""The longest time from a batch's newest record to its commit that is believed."""

SPREAD_MS: Final = 250
"""The time over which batches of one object are spread that have no time of their own."""

_COMMIT: Final = ObjectCommitRecord.schema().key
_REGISTRATIONS: Final = (
    RegisterBrokerRecord.schema().key,
    UnregisterBrokerRecord.schema().key,
)

Numbers = npt.NDArray[np.int64]


class EmptyHistoryError(Exception):
    """The logs have too few commits to learn from. One sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class History:
    """Batches by rising time, and what became of them. Times are ms since 1970."""

    times: Numbers  # when each batch came
    sizes: Numbers  # bytes
    brokers: Numbers  # that took it
    keys: Numbers  # its partition, as an index of `partitions`
    partitions: tuple[tuple[UUID, int, int], ...]  # topic, partition, coordinator
    objects: int  # that were committed
    runs: int  # partitions in them, summed up
    duration_ms: int
    racks: dict[int, str | None] = field(default_factory=dict)  # of the registered brokers

    @property
    def broker_count(self) -> int:
        """Return the number of registered brokers, or of those that wrote if they were more."""
        return max(len(self.racks), len(set(self.brokers.tolist())))

    @property
    def zone_count(self) -> int:
        """Return the number of racks, at least 1."""
        return max(1, len({rack for rack in self.racks.values() if rack is not None}))

    @property
    def coordinator_count(self) -> int:
        """Return the number of batch coordinators with commits."""
        return len({coordinator for _, _, coordinator in self.partitions})


class Commit(NamedTuple):
    """An object's commit, and the coordinator that it was made by."""

    coordinator: int
    record: ObjectCommitRecord


def read_history(
    logs: Logs, *, last_ms: int | None = None, progress: Callable[[str], None] = lambda _: None
) -> History:
    """Read the commits of all coordinators' logs.

    Args:    last_ms: of the newest commit's time, that is read; None: all.
    Raises:  EmptyHistoryError; LogsError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    commits: list[Commit] = []
    batches = 0
    for number in coordinators_of(logs):
        name = f"{DISKLESS_METADATA}{number}"
        progress(name)
        for record in _commits(logs.log(name)):
            commits.append(Commit(number, record))
            batches += len(record.byte_sizes)
            if batches > MAX_BATCHES:
                raise LogsError(
                    f"the logs have more than {MAX_BATCHES} batches; --hours takes the newest only"
                )
    if last_ms is not None and commits:
        newest = max(one.record.committed_at_ms for one in commits)
        commits = [one for one in commits if one.record.committed_at_ms > newest - last_ms]
    return history_of(commits, _racks(logs))


def _commits(log: Log) -> Iterator[ObjectCommitRecord]:
    for span in log.spans(log.end_offset()):
        if span.is_checkpoint:
            continue
        for _, value in span.values():
            if read_frame(value)[0] == _COMMIT:
                record = decode_record(value)
                assert isinstance(record, ObjectCommitRecord), f"{record}"
                yield record


def _racks(logs: Logs) -> dict[int, str | None]:
    """Return the racks of the registered brokers."""
    racks: dict[int, str | None] = {}
    if CLUSTER_METADATA not in logs.names():
        return racks
    log = logs.log(CLUSTER_METADATA)
    for span in log.spans(log.end_offset()):
        for _, value in span.values():
            if read_frame(value)[0] not in _REGISTRATIONS:
                continue
            record = decode_record(value)
            if isinstance(record, RegisterBrokerRecord):
                racks[record.broker_id] = record.rack
            elif isinstance(record, UnregisterBrokerRecord):
                racks.pop(record.broker_id, None)
    return racks


def history_of(commits: Sequence[Commit], racks: Mapping[int, str | None]) -> History:
    """Make the history of commits, in any order.

    Raises:  EmptyHistoryError if they are fewer than two, or all of one moment.
    """
    ordered = sorted(commits, key=lambda one: one.record.committed_at_ms)
    times = [one.record.committed_at_ms for one in ordered]
    if len(ordered) < 2 or times[0] == times[-1]:
        raise EmptyHistoryError(
            f"the logs have {len(ordered)} commits: what brokers would do with other settings "
            "cannot be learned from that; produce to the cluster for a minute, then ask again"
        )
    keys: dict[tuple[UUID, int, int], int] = {}
    before: dict[int, int] = {}
    parts: list[tuple[Numbers, Numbers, Numbers, Numbers]] = []
    runs = 0
    for coordinator, record in ordered:
        groups = [
            keys.setdefault((record.topic_ids[topic], partition, coordinator), len(keys))
            for topic, partition in zip(record.topic_indexes, record.partitions, strict=True)
        ]
        runs += len(groups)
        sizes = np.array(record.byte_sizes, np.int64)
        sent = _sent(record, before.get(record.broker_id, record.committed_at_ms - SPREAD_MS))
        before[record.broker_id] = record.committed_at_ms
        parts.append(
            (
                sent,
                sizes,
                np.full(len(sizes), record.broker_id, np.int64),
                np.repeat(np.array(groups, np.int64), np.array(record.batch_counts, np.int64)),
            )
        )
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    sent, sizes, brokers, of = (column[order] for column in columns)
    duration = times[-1] - times[0]
    duration += duration // (len(times) - 1)  # the first object took its time, too
    return History(sent, sizes, brokers, of, tuple(keys), len(ordered), runs, duration, dict(racks))


def _sent(record: ObjectCommitRecord, before_ms: int) -> Numbers:
    """Return about when each batch of a commit came to its broker."""
    sent = np.array(record.max_timestamps, np.int64)
    committed = record.committed_at_ms
    is_told = np.array(record.timestamp_types, np.int64) == 0
    is_told &= (sent <= committed) & (sent > committed - MAX_DELAY_MS)
    since = max(before_ms, committed - SPREAD_MS)
    spread = np.linspace(since, committed, len(sent), endpoint=False).astype(np.int64)
    return np.where(is_told, sent, spread)
