"""Replays what a checkpoint keeps for retries and sweeps: answers, dead object ids, counters.

A broker that retries a commit must get its first answer, a late commit of a dead id must be
refused, and no id may be granted twice. After a restart a coordinator knows these things from its
checkpoint. This module works them out from the log: which ids a lease skipped, which of those are
still orphans, and whose answers are kept.

Why checksums: a task sends one checksum for each commit instead of its answer, and the driver
follows, commit by commit, which sixty-four objects of a broker are remembered.

Source: docs/design/batch-coordinator.md#object-leases,
docs/design/batch-coordinator.md#commits-are-idempotent-by-object-id; invariants 4, 6 and 7
(docs/design/invariants.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

from records.diskless import DisklessBrokerState, KeptAnswerState
from records.uuids import encode_uuid
from spark_jobs.audit.ledger import NEVER, LeaseHistory, Ledger
from spark_jobs.audit.rows import Numbers, Rows, TopicPartition, row_checksums

Ranges = tuple[tuple[int, int], ...]
"""Ranges of ids: the first, and the one after the last."""

KEPT_ANSWERS: Final = 64
"""Answers kept for each broker's epoch."""

HEADS: Final = (
    "object_id", "size_bytes", "broker_id", "committed_at_ms", "log_offset", "lease_id",
    "broker_epoch",
)  # fmt: skip
"""Columns that a task reports for each commit, besides its answer's checksum."""


class KeptAnswer(NamedTuple):
    """The answer to a commit, as a coordinator keeps it for retries."""

    lease_id: int
    committed_at_ms: int
    checksum: int  # of each batch's partition, offset, time and outcome, in their order


class BrokerAnswers(NamedTuple):
    """A broker's highest epoch, and the objects whose answers are kept for it, oldest first."""

    epoch: int
    answered: tuple[int, ...]


class Counters(NamedTuple):
    """The next epoch and ids that a coordinator gives out."""

    controller_epoch: int
    lease_id: int
    object_id: int
    log_id: int


INITIAL_COUNTERS: Final = Counters(-1, 0, 0, 0)


@dataclass(slots=True)
class KeptAnswers:
    """The answers that a coordinator keeps at one offset of its log."""

    brokers: dict[int, BrokerAnswers] = field(default_factory=dict)
    answers: dict[int, KeptAnswer] = field(default_factory=dict)  # by object
    starts: dict[int, tuple[tuple[TopicPartition, int], ...]] = field(default_factory=dict)
    """Log start of each partition when an object's commit was answered, by object; -1: no
    partition."""

    def broker(self, record: DisklessBrokerState) -> None:
        """Restore a broker's epoch and its kept commit responses from a checkpoint's record."""
        self.brokers[record.broker_id] = BrokerAnswers(record.broker_epoch, tuple(record.answered))

    def answer(self, record: KeptAnswerState) -> None:
        """Restore one kept commit response from a checkpoint's record."""
        topics = [encode_uuid(topic_id) for topic_id in record.topic_ids]
        places = [
            (topics[index], partition)
            for index, partition in zip(record.topic_indexes, record.partitions, strict=True)
        ]
        self.starts[record.object_id] = tuple(zip(places, record.log_start_offsets, strict=True))
        count = len(record.base_offsets)
        columns = (record.append_times or (-1,) * count, record.error_codes or (0,) * count,
                   record.duplicates or (0,) * count)  # fmt: skip
        group = np.repeat(np.arange(len(places)), record.batch_counts)
        checksum = _checksums(
            _hashes(places)[group],
            np.array([record.base_offsets, *columns], np.int64),
            np.zeros(count, np.int64),
        )
        self.answers[record.object_id] = KeptAnswer(
            record.lease_id, record.committed_at_ms, int(checksum[0])
        )


def commit_heads(rows: Rows) -> Numbers:
    """Return one row for each commit record of a span, with a checksum of its commit response."""
    if not len(rows):
        return np.zeros((len(HEADS) + 1, 0), np.int64)
    _, first, which = np.unique(rows["log_offset"], return_index=True, return_inverse=True)
    times = np.where(rows["timestamp_type"] != 0, rows["max_timestamp"], -1)
    answers = np.stack([rows["base_offset"], times, rows["error_code"], rows["duplicate"]])
    checksums = _checksums(_hashes(rows.places)[rows.place], answers, which)
    return np.stack([*(rows[name][first] for name in HEADS), checksums])


def _hashes(places: Sequence[TopicPartition]) -> Numbers:
    """Hash each partition to a number that is the same in all processes."""
    live_state_of = (blake2b(f"{t}-{i}".encode(), digest_size=8).digest() for t, i in places)
    return np.frombuffer(b"".join(live_state_of), np.int64)


def _checksums(places: Numbers, columns: Numbers, which: Numbers) -> Numbers:
    """Return one checksum for each commit record, over the record's batches in order.

    Args:  which: the commit that each batch belongs to, as a rising index.
    """
    first = np.flatnonzero(np.diff(which, prepend=-1))
    position = np.arange(len(which)) - first[which]
    summed = np.add.reduceat(row_checksums([position, places, *columns]), first)
    return summed.view(np.int64)


# --- dead ids of a lease ------------------------------------------------------------------------


class NamedIds(NamedTuple):
    """Object ids that were ever fenced or removed, rising."""

    fenced: Sequence[int]
    removed: Sequence[int]

    @classmethod
    def of(cls, ledger: Ledger) -> NamedIds:
        """Collect the object ids that the log's records fenced or removed."""
        return cls(sorted(ledger.fenced), sorted(ledger.removed))

    @staticmethod
    def within(ids: Sequence[int], first: int, end: int) -> Sequence[int]:
        """Return the ids from `first`, inclusive, to `end`, exclusive."""
        return ids[bisect_left(ids, first) : bisect_left(ids, end)]


def dead_ids(
    lease: LeaseHistory,
    committed: Iterable[int],
    ledger: Ledger,
    named: NamedIds,
    offset: int,
) -> tuple[Ranges, tuple[int, ...], Ranges]:
    """Return the skipped, fenced and orphaned object ids of a lease at a log offset.

    Args:    committed: its objects that were committed below it, as the log has them.
    """
    skipped, last = list(lease.skipped), lease.last_committed
    for object_id in committed:
        if object_id > last + 1:
            skipped.append((last + 1, object_id))
        last = max(last, object_id)
    fenced = tuple(
        one
        for one in named.within(named.fenced, lease.first, lease.end)
        if one > last and ledger.fenced[one] < offset
    )
    if lease.closed >= offset:
        return tuple(skipped), fenced, ()
    orphans = list(lease.orphans)
    if not lease.was_closed:
        orphans = [*skipped, *([(last + 1, lease.used_end)] if last + 1 < lease.used_end else [])]
    left = []
    for first, end in orphans:
        begin = first
        for one in named.within(named.removed, first, end):
            if lease.closed < ledger.removed[one] < offset:
                left += [(begin, one)] if begin < one else []
                begin = one + 1
        left += [(begin, end)] if begin < end else []
    return tuple(skipped), fenced, tuple(left)


# --- whose answers are kept ---------------------------------------------------------------------


class AnswerTracker:
    """Walks a log once and returns the answers kept at chosen offsets."""

    def __init__(self, ledger: Ledger, heads: Numbers, base: KeptAnswers) -> None:
        """Prepare to replay the kept commit responses from the beginning of the log.

        Args:  heads: `commit_heads` of all commits of the log, in its order.
        """
        self._ledger, self._base = ledger, base
        self._heads: list[list[int]] = heads.T.tolist()
        self._order = sorted(
            [
                *((row[4], 2, i) for i, row in enumerate(self._heads)),
                *((item.granted, 1, i) for i, item in ledger.leases.items() if item.granted >= 0),
                *((item.forgotten, 0, i) for i, item in ledger.leases.items()
                  if item.forgotten != NEVER),
            ]
        )  # fmt: skip
        self._at = 0
        self._epochs = {item: broker.epoch for item, broker in base.brokers.items()}
        self._answered = {item: deque(broker.answered) for item, broker in base.brokers.items()}
        self._answers = dict(base.answers)
        self._offsets: dict[int, int] = {}  # of the commits whose answers are kept

    def advance_to(
        self, offset: int, places: Mapping[int, Sequence[TopicPartition]]
    ) -> KeptAnswers:
        """Replay the log up to an offset; return the commit responses that are kept at that offset.

        Offsets must rise from call to call.

        Args:    places: the partitions that an object's answer tells of.
        """
        while self._at < len(self._order) and self._order[self._at][0] < offset:
            _, kind, number = self._order[self._at]
            (self._on_lease_forgotten, self._on_lease_granted, self._on_commit)[kind](number)
            self._at += 1
        brokers = {
            i: BrokerAnswers(self._epochs[i], tuple(self._answered[i])) for i in self._epochs
        }
        starts = {
            object_id: self._starts(object_id, places.get(object_id, ()))
            for object_id in self._answers
        }
        return KeptAnswers(brokers, dict(self._answers), starts)

    def _starts(
        self, object_id: int, places: Sequence[TopicPartition]
    ) -> tuple[tuple[TopicPartition, int], ...]:
        offset = self._offsets.get(object_id)
        if offset is None:
            return self._base.starts[object_id]
        return tuple((place, self._start(place, offset)) for place in places)

    def _start(self, place: TopicPartition, at: int) -> int:
        """Return a partition's log start at a log offset; -1 if no such partition existed then."""
        topic, incarnation = self._ledger.topic(place[0], at), self._ledger.incarnation(place, at)
        if topic is None or topic.deleted < at or incarnation is None:
            return -1
        return incarnation.start_before(at)

    def _on_lease_granted(self, lease_id: int) -> None:
        lease = self._ledger.leases[lease_id]
        if lease.broker_epoch > self._epochs.get(lease.broker_id, -1):
            self._epochs[lease.broker_id] = lease.broker_epoch
            self._answered[lease.broker_id] = deque()

    def _on_commit(self, row: int) -> None:
        object_id, _, broker, time, offset, lease_id, epoch, checksum = self._heads[row]
        if self._epochs.get(broker) != epoch:
            return  # other rules say so
        self._answers[object_id] = KeptAnswer(lease_id, time, checksum)
        self._offsets[object_id] = offset
        answered = self._answered[broker]
        answered.append(object_id)
        if len(answered) > KEPT_ANSWERS:
            self._answers.pop(answered.popleft(), None)

    def _on_lease_forgotten(self, lease_id: int) -> None:
        lease = self._ledger.leases[lease_id]
        for object_id in [i for i, answer in self._answers.items() if answer.lease_id == lease_id]:
            del self._answers[object_id]
        answered = self._answered.get(lease.broker_id, ())
        left = deque(i for i in answered if not lease.first <= i < lease.end)
        self._answered[lease.broker_id] = left


# --- counters -----------------------------------------------------------------------------------


def counters_at(ledger: Ledger, offset: int) -> Counters:
    """Return the coordinator's next ids and controller epoch after all records below an offset."""
    leases = [(i, one.end) for i, one in ledger.leases.items() if one.granted < offset]
    logs = [
        incarnation.log_id
        for incarnations in ledger.places.values()
        for incarnation in incarnations
        if incarnation.created < offset
    ]
    heard = [epoch for at, epoch in ledger.controller_epochs if at < offset]
    return Counters(
        max(heard, default=-1),
        max([ledger.base_ids[0], *(i + 1 for i, _ in leases)]),
        max([ledger.base_ids[1], *(end for _, end in leases)]),
        max([ledger.base_ids[2], *(one + 1 for one in logs)]),
    )


def comparable_answers(kept: KeptAnswers) -> dict[str, Any]:
    """Return kept commit responses and broker epochs in a dictionary with descriptive keys."""
    answers = {f"answer {i}": (*one, kept.starts.get(i, ())) for i, one in kept.answers.items()}
    return answers | {f"broker {i}": one for i, one in kept.brokers.items()}
