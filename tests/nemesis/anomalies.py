"""Finds anomalies in a history of Kafka clients (`record_history`), each under its name.

The names are those that Jepsen uses for Kafka, and mean the same, except where a topic without
transactions, compaction and retention allows a stricter rule: offsets have no holes, every consumer
sees every acknowledged record in the end, and each partition is linearizable. One send is one
operation there, so the skips and reversals *within* an operation (int-...) exist for polls only.

Source: jepsen.tests.kafka (names and their meaning); docs/testing.md#histories-of-clients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from tests.nemesis.record_history import (
    Assignment,
    Commit,
    CommittedRead,
    Log,
    Poll,
    Record,
    RecordHistory,
    Value,
)
from tests.simulation.history import (
    NEVER,
    LogAppend,
    LogFetch,
    LogOperation,
    LogRead,
    NotLinearizable,
    Step,
    check_log,
    check_rising,
)


class Kind(StrEnum):
    """The kinds of anomalies."""

    LOST_WRITE = "lost write"  # acknowledged, and not in the log
    UNSEEN = "unseen"  # acknowledged, and a consumer that read to the end never got it
    DUPLICATE = "duplicate"  # one record at two offsets
    INCONSISTENT_OFFSETS = "inconsistent offsets"  # two records at one offset
    PHANTOM = "phantom"  # no client sent it there
    ABORTED_READ = "aborted read"  # read, though its client refused to send it
    HOLE = "hole"  # an offset without a record, below the log's end
    NONMONOTONIC_SEND = "nonmonotonic send"  # a producer's records are in another order
    INT_POLL_SKIP = "int-poll-skip"  # one poll leaves out a record
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"  # one poll goes back
    POLL_SKIP = "poll-skip"  # a record is left out between two polls of one consumer
    NONMONOTONIC_POLL = "nonmonotonic poll"  # a consumer goes back without being told to
    POSITION_LOST = "position lost"  # an existing offset is said to be out of range
    REGRESSION = "regression"  # an end offset below one that was told before
    NOT_LINEARIZABLE = "not linearizable"  # no order of the partition's operations explains it
    OFFSETS_BACK = "group offsets back"  # a committed offset below one acknowledged before
    PHANTOM_COMMIT = "phantom commit"  # a committed offset that no member committed
    GROUP_SKIP = "group skip"  # a group begins behind records that none of its members got


class Anomaly(NamedTuple):
    kind: Kind
    text: str


class AnomaliesError(Exception):
    """A history has anomalies."""

    def __init__(self, anomalies: list[Anomaly], shown: int = 3) -> None:
        self.anomalies = anomalies
        counts = Counter(anomaly.kind for anomaly in anomalies)
        lines = [f"{kind}: {count}" for kind, count in counts.items()]
        for kind in counts:
            texts = [anomaly.text for anomaly in anomalies if anomaly.kind is kind]
            lines += [f"  {kind}: {text}" for text in texts[:shown]]
        super().__init__("\n".join(lines))


def check(history: RecordHistory) -> None:
    """Raises AnomaliesError."""
    found = find_anomalies(history)
    if found:
        raise AnomaliesError(found)


def find_anomalies(history: RecordHistory) -> list[Anomaly]:
    """All anomalies of a history whose logs were read after everything had ended."""
    observations = _observe(history)
    found: list[Anomaly] = []
    for partition, observed in observations.items():
        found += _places(partition, observed)
        found += _values(history, partition, observed)
    for reader, logs in history.logs.items():
        found += _lost(history, reader, logs)
        for partition, log in logs.items():
            found += _holes(reader, partition, log)
    found += _send_order(history, observations)
    found += _unseen(history)
    for consumer, operations in history.consumers.items():
        found += _positions(consumer, operations, observations)
    found += [Anomaly(Kind.POSITION_LOST, text) for text in history.lost_positions]
    for partition in next(iter(history.logs.values()), {}):
        found += _linearizability(history, partition)
    for group, members in history.groups.items():
        found += _group_skips(history, group, members)
        for partition in {at for name, at in history.commits if name == group}:
            found += _committed(history, group, partition)
    return found


# --- records at offsets ---------------------------------------------------------------------------

Observed: TypeAlias = dict[int, dict[Value, str]]
"""By offset of one partition: each value that a client saw there, and an operation that saw it."""


def _observe(history: RecordHistory) -> dict[int, Observed]:
    """Everything that was told about offsets, by partition."""
    found: dict[int, Observed] = defaultdict(lambda: defaultdict(dict))
    for reader, logs in history.logs.items():
        for partition, log in logs.items():
            for offset, value in log:
                found[partition][offset].setdefault(value, reader)
    for consumer, operations in history.consumers.items():
        for operation in operations:
            if isinstance(operation, Poll):
                for partition, offset, value in operation.records:
                    found[partition][offset].setdefault(value, consumer)
    for value, send in history.sends.items():
        if send.offset is not None:
            found[value.partition][send.offset].setdefault(value, "its acknowledgement")
    return found


def _places(partition: int, observed: Observed) -> Iterator[Anomaly]:
    offsets: dict[Value, list[int]] = defaultdict(list)
    for offset, values in observed.items():
        if len(values) > 1:
            yield Anomaly(Kind.INCONSISTENT_OFFSETS, f"{partition}:{offset}: {values}")
        for value in values:
            offsets[value].append(offset)
    for value, places in offsets.items():
        if len(places) > 1:
            yield Anomaly(Kind.DUPLICATE, f"{partition}: {value} is at {sorted(places)}")


def _values(history: RecordHistory, partition: int, observed: Observed) -> Iterator[Anomaly]:
    for offset, values in observed.items():
        for value, witness in values.items():
            where = f"{partition}:{offset}: {value}, as {witness} says"
            send = history.sends.get(value)
            if send is None or value.partition != partition:
                yield Anomaly(Kind.PHANTOM, where)
            elif send.is_refused:
                yield Anomaly(Kind.ABORTED_READ, where)


def _lost(history: RecordHistory, reader: str, logs: Mapping[int, Log]) -> Iterator[Anomaly]:
    present = {value for log in logs.values() for _, value in log}
    for value, send in history.sends.items():
        if send.returned < NEVER and value not in present:
            yield Anomaly(Kind.LOST_WRITE, f"{value}, {send}, is not in the log of {reader}")


def _holes(reader: str, partition: int, log: Log) -> Iterator[Anomaly]:
    for before, after in pairwise([-1, *(offset for offset, _ in log)]):
        if after > before + 1:
            yield Anomaly(
                Kind.HOLE, f"{partition}: {reader} has nothing from {before + 1} to {after - 1}"
            )


def _send_order(history: RecordHistory, observations: Mapping[int, Observed]) -> Iterator[Anomaly]:
    """Judge whether a producer's records are in the log in the order in which it sent them."""
    offsets = {  # the lowest of each value
        value: offset
        for observed in observations.values()
        for offset in sorted(observed, reverse=True)
        for value in observed[offset]
    }
    last: dict[tuple[str, int], Value] = {}
    for value in sorted(value for value in offsets if value in history.sends):
        key = value.producer, value.partition
        before = last.get(key)
        if before is not None and offsets[before] > offsets[value]:
            yield Anomaly(
                Kind.NONMONOTONIC_SEND,
                f"{before} is at {offsets[before]}, and {value} at {offsets[value]}",
            )
        last[key] = value


def _unseen(history: RecordHistory) -> Iterator[Anomaly]:
    """Groups read everything together, other consumers alone."""
    members = {member for group in history.groups.values() for member in group}
    readers = {name: [name] for name in history.consumers if name not in members}
    readers |= history.groups
    for reader, consumers in readers.items():
        seen = {
            record.value
            for consumer in consumers
            for operation in history.consumers.get(consumer, ())
            if isinstance(operation, Poll)
            for record in operation.records
        }
        for value, send in history.sends.items():
            if send.returned < NEVER and value not in seen:
                yield Anomaly(Kind.UNSEEN, f"{reader} never got {value}, {send}")


# --- consumers' positions -------------------------------------------------------------------------


def _positions(
    consumer: str,
    operations: Iterable[Poll | Assignment],
    observations: Mapping[int, Observed],
) -> Iterator[Anomaly]:
    """Require of one consumer that each record is the next one that exists."""
    existing = {partition: sorted(observed) for partition, observed in observations.items()}
    expected: dict[int, int | None] = {}  # the next offset; None: wherever it is told to begin
    for operation in operations:
        if isinstance(operation, Assignment):
            expected = dict(operation.starts)
            continue
        polled: set[int] = set()  # partitions, by this poll
        for record in operation.records:
            partition, offset, _ = record
            position = expected.get(partition)
            if position is not None:
                skipped = _count_between(existing[partition], position, offset)
                kind = _kind_of_move(offset - position, skipped, is_inside=partition in polled)
                if kind is not None:
                    text = f"{consumer}: {record}, but {position} was next; skipped: {skipped}"
                    yield Anomaly(kind, text)
            polled.add(partition)
            expected[partition] = offset + 1


def _count_between(offsets: list[int], first: int, end: int) -> int:
    return bisect_left(offsets, end) - bisect_left(offsets, first)


def _kind_of_move(distance: int, skipped: int, *, is_inside: bool) -> Kind | None:
    if distance < 0:
        return Kind.INT_NONMONOTONIC_POLL if is_inside else Kind.NONMONOTONIC_POLL
    if skipped:
        return Kind.INT_POLL_SKIP if is_inside else Kind.POLL_SKIP
    return None


# --- a partition's operations ---------------------------------------------------------------------


def _linearizability(history: RecordHistory, partition: int) -> Iterator[Anomaly]:
    reads = [LogRead(*read) for read in history.end_reads[partition]]
    try:
        check_log(reads)
    except NotLinearizable as error:
        yield Anomaly(Kind.REGRESSION, f"{partition}: {error}")
    operations: list[LogOperation] = [*reads, *_fetches(history, partition)]
    operations += [
        LogAppend(send.invoked, send.returned, value, send.offset)
        for value, send in history.sends.items()
        if value.partition == partition and not send.is_refused
    ]
    log = next(iter(history.logs.values()))[partition]
    final: list[Value | None] = [None] * (log[-1][0] + 1 if log else 0)
    for offset, value in log:
        final[offset] = value
    try:
        check_log(operations, final=final)
    except NotLinearizable as error:
        yield Anomaly(Kind.NOT_LINEARIZABLE, f"{partition}: {error}")


def _fetches(history: RecordHistory, partition: int) -> Iterator[LogFetch]:
    """Every poll's records of one partition, in pieces without a gap."""
    for operations in history.consumers.values():
        for poll in operations:
            if isinstance(poll, Poll):
                for piece in _pieces(record for record in poll.records if record[0] == partition):
                    values = tuple(record.value for record in piece)
                    yield LogFetch(poll.invoked, poll.returned, piece[0].offset, values)


def _pieces(records: Iterable[Record]) -> Iterator[list[Record]]:
    piece: list[Record] = []
    for record in records:
        if piece and record.offset != piece[-1].offset + 1:
            yield piece
            piece = []
        piece.append(record)
    if piece:
        yield piece


# --- groups ---------------------------------------------------------------------------------------


def _group_skips(history: RecordHistory, group: str, members: Iterable[str]) -> Iterator[Anomaly]:
    """Require that a member begins a partition no later than where the group has come to."""
    polls: list[tuple[Poll, dict[int, int]]] = []  # and first offsets since an assignment
    for member in members:
        waiting: set[int] = set()
        for operation in history.consumers.get(member, ()):
            if isinstance(operation, Assignment):
                waiting = set(operation.starts)
                continue
            begins: dict[int, int] = {}
            for partition, offset, _ in operation.records:
                if partition in waiting:
                    waiting.discard(partition)
                    begins[partition] = offset
            polls.append((operation, begins))
    reached: dict[int, int] = defaultdict(int)
    for poll, begins in sorted(polls, key=lambda pair: pair[0].returned):
        for partition, offset in begins.items():
            if offset > reached[partition]:
                yield Anomaly(
                    Kind.GROUP_SKIP,
                    f"{group}: {partition} begins at {offset}, and {reached[partition]} was next",
                )
        for partition, offset, _ in poll.records:
            reached[partition] = max(reached[partition], offset + 1)


def _committed(history: RecordHistory, group: str, partition: int) -> Iterator[Anomaly]:
    """Judge a group's committed offset as a register into which rising offsets are written."""
    commits = history.commits[group, partition]
    reads = [*history.committed_reads[group, partition], *_begins(history, group, partition)]
    for read in reads:
        if not any(one.offset == read.offset and one.invoked <= read.returned for one in commits):
            yield Anomaly(Kind.PHANTOM_COMMIT, f"{group}: {partition}: {read}")
    operations: list[Commit | CommittedRead] = [*_that_happened(commits, reads), *reads]
    steps = [Step(one.invoked, one.returned, one.offset, one.offset, one) for one in operations]
    try:
        check_rising(steps)
    except NotLinearizable as error:
        yield Anomaly(Kind.OFFSETS_BACK, f"{group}: {partition}: {error}")


def _that_happened(commits: Iterable[Commit], reads: Iterable[CommittedRead]) -> Iterator[Commit]:
    """Acknowledged commits, and each other one that alone explains what was read."""
    by_offset: dict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        by_offset[commit.offset].append(commit)
    read_offsets = {read.offset for read in reads}
    for offset, same in by_offset.items():
        for commit in same:
            if commit.returned < NEVER or (len(same) == 1 and offset in read_offsets):
                yield commit


def _begins(history: RecordHistory, group: str, partition: int) -> Iterator[CommittedRead]:
    """The offsets at which members began: each looked up what was committed."""
    for member in history.groups[group]:
        assigned: Assignment | None = None
        for operation in history.consumers.get(member, ()):
            if isinstance(operation, Assignment):
                assigned = operation if partition in operation.starts else None
            elif assigned is not None:
                for record in operation.records:
                    if record.partition == partition:
                        yield CommittedRead(assigned.at, operation.returned, record.offset)
                        assigned = None
                        break
