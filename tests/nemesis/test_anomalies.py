"""The checker of client histories finds each anomaly under its name, and none where there is none.

A history is made by a small log in memory; a spoiling changes one thing in it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nemesis.anomalies import AnomaliesError, Kind, check, find_anomalies
from tests.nemesis.record_history import (
    Assignment,
    Commit,
    CommittedRead,
    EndRead,
    Poll,
    Record,
    RecordHistory,
    Send,
    Value,
)
from tests.simulation.history import NEVER

A, B, C, D = (Value("p", 0, number) for number in range(4))
GROUP: Final = "readers"


def small_history() -> RecordHistory:
    """A, B and C are sent one after the other, and read by a consumer, a group of two and a reader.

    Offsets 0, 1, 2 are sent at 0, 20 and 40, each acknowledged 5 later; member one of the group
    reads 0 and 1 and commits 2, then member two takes over.
    """
    history = RecordHistory()
    log = [(offset, value) for offset, value in enumerate((A, B, C))]
    records = [Record(0, offset, value) for offset, value in log]
    history.sends = {value: Send(20 * at, 20 * at + 5, at) for at, value in log}
    history.consumers["consumer"] = [
        Assignment(0, {0: 0}),
        Poll(26, 27, tuple(records[:2])),
        Poll(46, 47, tuple(records[2:])),
    ]
    history.groups[GROUP] = ["one", "two"]
    history.commits[GROUP, 0] = [Commit(-2, -1, 0), Commit(29, 31, 2), Commit(53, 54, 3)]
    history.consumers["one"] = [Assignment(0, {0: None}), Poll(26, 28, tuple(records[:2]))]
    history.consumers["two"] = [Assignment(50, {0: None}), Poll(51, 52, tuple(records[2:]))]
    history.committed_reads[GROUP, 0] = [CommittedRead(30, 32, 2), CommittedRead(60, 61, 3)]
    history.end_reads[0] = [EndRead(1, 2, 0), EndRead(26, 27, 2), EndRead(50, 51, 3)]
    history.logs = {"broker 101": {0: list(log)}, "broker 102": {0: list(log)}}
    return history


def lose(history: RecordHistory) -> None:
    for logs in history.logs.values():
        del logs[0][2]  # type: ignore[attr-defined]


def store_twice(history: RecordHistory) -> None:
    for logs in history.logs.values():
        logs[0].append((3, C))  # type: ignore[attr-defined]


def fork(history: RecordHistory) -> None:
    history.sends[D] = Send(40)
    history.logs["broker 102"][0][2] = (2, D)  # type: ignore[index]


def invent(history: RecordHistory) -> None:
    for logs in history.logs.values():
        logs[0].append((3, D))  # type: ignore[attr-defined]


def read_refused(history: RecordHistory) -> None:
    invent(history)
    history.sends[D] = Send(60, is_refused=True)


def leave_a_hole(history: RecordHistory) -> None:
    history.sends[D] = Send(60)
    for logs in history.logs.values():
        logs[0].append((4, D))  # type: ignore[attr-defined]


def swap_sends(history: RecordHistory) -> None:
    """Nobody was told an offset, and all overlap: only the producer's order is wrong."""
    history.sends |= {A: Send(0), B: Send(0)}
    for logs in history.logs.values():
        logs[0][:2] = [(0, B), (1, A)]  # type: ignore[index]
    for operations in history.consumers.values():
        for at, poll in enumerate(operations):
            if isinstance(poll, Poll) and len(poll.records) == 2:
                records = (Record(0, 0, B), Record(0, 1, A))
                operations[at] = poll._replace(records=records)


def rows(history: RecordHistory, consumer: str, at: int, *offsets: int) -> None:
    """Let a consumer's operation return other offsets."""
    log = dict(history.logs["broker 101"][0])
    records = tuple(Record(0, offset, log[offset]) for offset in offsets)
    history.consumers[consumer][at] = Poll(90, 91, records)


def skip_in_a_poll(history: RecordHistory) -> None:
    rows(history, "consumer", 1, 0, 2)


def go_back_in_a_poll(history: RecordHistory) -> None:
    rows(history, "consumer", 1, 0, 1, 0, 1)


def skip_between_polls(history: RecordHistory) -> None:
    rows(history, "consumer", 1, 0)


def go_back_between_polls(history: RecordHistory) -> None:
    rows(history, "consumer", 2, 1, 2)


def begin_too_late(history: RecordHistory) -> None:
    rows(history, "consumer", 1, 1)


def stop_reading(history: RecordHistory) -> None:
    del history.consumers["consumer"][2]


def lose_position(history: RecordHistory) -> None:
    history.lose_position("consumer", "offset 2 is out of range")


def tell_a_shorter_end(history: RecordHistory) -> None:
    history.end_reads[0].append(EndRead(60, 61, 2))


def tell_an_end_before_an_acknowledged_record(history: RecordHistory) -> None:
    history.end_reads[0] = [EndRead(46, 47, 2)]


def append_before_what_was_complete(history: RecordHistory) -> None:
    """A, by another producer, is at 1, and was acknowledged before the record at 0 was sent."""
    other = Value("q", 0, 0)
    history.sends = {other: Send(20, 25, 0), A: Send(0, 5, 1)}
    history.consumers.clear()
    history.end_reads.clear()
    history.groups.clear()
    history.logs = {"broker 101": {0: [(0, other), (1, A)]}}


def forget_a_commit(history: RecordHistory) -> None:
    history.committed_reads[GROUP, 0].append(CommittedRead(62, 63, 2))


def begin_before_the_commit(history: RecordHistory) -> None:
    log = dict(history.logs["broker 101"][0])
    records = tuple(Record(0, offset, log[offset]) for offset in range(3))
    history.consumers["two"][1] = Poll(51, 52, records)


def commit_from_nowhere(history: RecordHistory) -> None:
    history.committed_reads[GROUP, 0].append(CommittedRead(33, 34, 17))


def skip_in_the_group(history: RecordHistory) -> None:
    """Commit 2 without having read 1."""
    rows(history, "one", 1, 0)
    history.consumers["one"][1] = history.consumers["one"][1]._replace(returned=28)  # type: ignore[union-attr,call-arg]


SPOILED: Final[dict[Callable[[RecordHistory], None], tuple[Kind, set[Kind]]]] = {
    lose: (Kind.LOST_WRITE, {Kind.NOT_LINEARIZABLE}),
    store_twice: (Kind.DUPLICATE, {Kind.NOT_LINEARIZABLE}),
    fork: (Kind.INCONSISTENT_OFFSETS, {Kind.LOST_WRITE}),
    invent: (Kind.PHANTOM, {Kind.NOT_LINEARIZABLE}),
    read_refused: (Kind.ABORTED_READ, {Kind.NOT_LINEARIZABLE}),
    leave_a_hole: (Kind.HOLE, set()),
    swap_sends: (Kind.NONMONOTONIC_SEND, set()),
    skip_in_a_poll: (Kind.INT_POLL_SKIP, {Kind.UNSEEN, Kind.NONMONOTONIC_POLL}),
    go_back_in_a_poll: (Kind.INT_NONMONOTONIC_POLL, set()),
    skip_between_polls: (Kind.POLL_SKIP, {Kind.UNSEEN}),
    go_back_between_polls: (Kind.NONMONOTONIC_POLL, set()),
    begin_too_late: (Kind.POLL_SKIP, {Kind.UNSEEN}),
    stop_reading: (Kind.UNSEEN, set()),
    lose_position: (Kind.POSITION_LOST, set()),
    tell_a_shorter_end: (Kind.REGRESSION, {Kind.NOT_LINEARIZABLE}),
    tell_an_end_before_an_acknowledged_record: (Kind.NOT_LINEARIZABLE, set()),
    append_before_what_was_complete: (Kind.NOT_LINEARIZABLE, set()),
    forget_a_commit: (Kind.OFFSETS_BACK, set()),
    begin_before_the_commit: (Kind.OFFSETS_BACK, set()),
    commit_from_nowhere: (Kind.PHANTOM_COMMIT, {Kind.OFFSETS_BACK}),
    skip_in_the_group: (Kind.GROUP_SKIP, {Kind.UNSEEN}),
}
"""Each with the anomaly that must be found, and those that must be found with it."""


def kinds(history: RecordHistory) -> set[Kind]:
    return {anomaly.kind for anomaly in find_anomalies(history)}


def test_the_anomaly_checker_accepts_a_history_without_anomalies() -> None:
    check(small_history())


def test_the_falsified_histories_for_the_anomaly_checker_cover_every_kind_of_anomaly() -> None:
    assert {kind for kind, _ in SPOILED.values()} == set(Kind)


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_the_anomaly_checker_names_the_anomaly_of_each_falsified_history(
    spoil: Callable[[RecordHistory], None],
) -> None:
    history = small_history()
    kind, implied = SPOILED[spoil]

    spoil(history)

    assert kinds(history) == {kind, *implied}
    with pytest.raises(AnomaliesError, match=kind):
        check(history)


def test_the_anomaly_checker_accepts_an_operation_of_unknown_outcome_that_took_effect() -> None:
    history = small_history()
    history.sends[B] = Send(20)
    history.commits[GROUP, 0][1] = Commit(29, NEVER, 2)
    check(history)


def test_the_anomaly_checker_accepts_an_operation_of_unknown_outcome_without_an_effect() -> None:
    history = small_history()
    history.sends[D] = Send(60)
    history.commits[GROUP, 0].append(Commit(55, NEVER, 9))
    check(history)


# --- random histories -----------------------------------------------------------------------------


class Writer:
    """A cluster of one mind: clients take turns, and each operation overlaps its neighbours."""

    def __init__(self, random: Random) -> None:
        self.history = RecordHistory()
        self.log: list[Value] = []
        self.committed = 0
        self._random = random
        self._now = 1_000
        self._numbers = {"p": 0, "q": 0}
        self._positions = {"consumer": 0, "one": 0, "two": 0}
        self._owner = "one"
        history = self.history
        history.groups[GROUP] = ["one", "two"]
        history.assign("consumer", {0: 0})
        history.consumers["one"].append(Assignment(2, {0: None}))
        history.consumers["two"] = []
        history.commits[GROUP, 0].append(Commit(0, 1, 0))

    def run(self, steps: int) -> RecordHistory:
        acts = (
            self._send,
            self._send,
            self._poll,
            self._poll,
            self._look,
            self._commit,
            self._move,
        )
        for _ in range(steps):
            self._random.choice(acts)()
        for _ in range(2):  # the others may have a part of a poll left
            self._read("consumer", len(self.log))
            self._read(self._owner, len(self.log))
        log = list(enumerate(self.log))
        self.history.logs = {"broker 101": {0: log}, "broker 102": {0: list(log)}}
        return self.history

    def _times(self) -> tuple[int, int]:
        """Around a moment that no other operation has; operations overlap their neighbours."""
        self._now += 10
        return self._now - self._random.randrange(25), self._now + self._random.randrange(25)

    def _send(self) -> None:
        producer, (invoked, returned) = self._random.choice("pq"), self._times()
        value = Value(producer, 0, self._numbers[producer])
        self._numbers[producer] += 1
        match self._random.randrange(8):
            case 0:
                self.history.sends[value] = Send(invoked)  # it never happened
                return
            case 1:
                self.history.sends[value] = Send(invoked)
            case 2:
                self.history.sends[value] = Send(invoked, returned)
            case 3:
                self.history.sends[value] = Send(invoked, is_refused=True)
                return
            case _:
                self.history.sends[value] = Send(invoked, returned, len(self.log))
        self.log.append(value)

    def _poll(self) -> None:
        consumer = self._random.choice(("consumer", self._owner))
        end = self._random.randint(self._positions[consumer], len(self.log))
        self._read(consumer, end)

    def _read(self, consumer: str, end: int) -> None:
        begin = self._positions[consumer]
        invoked, returned = self._times()
        records = tuple(Record(0, at, self.log[at]) for at in range(begin, end))
        if records:
            self.history.consumers[consumer].append(Poll(invoked, returned, records))
            self._positions[consumer] = end

    def _look(self) -> None:
        invoked, returned = self._times()
        if self._random.randrange(2):
            self.history.end_reads[0].append(EndRead(invoked, returned, len(self.log)))
        else:
            read = CommittedRead(invoked, returned, self.committed)
            self.history.committed_reads[GROUP, 0].append(read)

    def _commit(self) -> None:
        offset = self._positions[self._owner]
        invoked, returned = self._times()
        if offset > self.committed:
            returned = NEVER if not self._random.randrange(4) else returned
            self.history.commits[GROUP, 0].append(Commit(invoked, returned, offset))
            if returned < NEVER or self._random.randrange(2):
                self.committed = offset

    def _move(self) -> None:
        """The other member takes over where the group has committed, once all have heard."""
        self._now += 50
        self._owner = "two" if self._owner == "one" else "one"
        self._positions[self._owner] = self.committed
        self.history.consumers[self._owner].append(Assignment(self._now - 5, {0: None}))
        self._now += 50


def spoil_at_random(history: RecordHistory, random: Random) -> set[Kind]:
    """Spoil one thing, and return the anomalies of which one must be found."""
    log = history.logs["broker 101"][0]
    acknowledged = [value for value, send in history.sends.items() if send.returned < NEVER]
    consumer = history.consumers["consumer"]
    polls = [at for at, one in enumerate(consumer) if isinstance(one, Poll)]
    at = random.choice(polls)
    poll = consumer[at]
    assert isinstance(poll, Poll)
    index = random.randrange(len(poll.records))
    kind = random.randrange(7)
    if poll.records[index].offset == len(log) - 1 and kind == 3:
        kind = 4  # the last record may be one that a consumer need not see
    match kind:
        case 0:
            lost = random.choice(acknowledged)
            history.logs = {
                reader: {0: [row for row in logs[0] if row[1] != lost]}
                for reader, logs in history.logs.items()
            }
            return {Kind.LOST_WRITE}
        case 1:
            row = (len(log), random.choice(log)[1])
            history.logs = {reader: {0: [*logs[0], row]} for reader, logs in history.logs.items()}
            return {Kind.DUPLICATE}
        case 2:
            row = (len(log), Value("nobody", 0, 0))
            history.logs = {reader: {0: [*logs[0], row]} for reader, logs in history.logs.items()}
            return {Kind.PHANTOM}
        case 3:
            records = poll.records[:index] + poll.records[index + 1 :]
            consumer[at] = poll._replace(records=records)
            return {Kind.INT_POLL_SKIP, Kind.POLL_SKIP, Kind.UNSEEN}
        case 4:
            records = (*poll.records[: index + 1], poll.records[random.randrange(index + 1)])
            consumer[at] = poll._replace(records=records)
            return {Kind.INT_NONMONOTONIC_POLL}
        case 5:
            history.end_reads[0].append(EndRead(10**9, 10**9, random.randrange(len(log))))
            return {Kind.REGRESSION, Kind.NOT_LINEARIZABLE}
        case _:
            highest = max(commit.offset for commit in history.commits[GROUP, 0])
            read = CommittedRead(10**9, 10**9, highest + 1)
            history.committed_reads[GROUP, 0].append(read)
            return {Kind.PHANTOM_COMMIT}


@given(st.integers(0, 1 << 32))
def test_the_anomaly_checker_accepts_random_histories_of_a_correct_log(
    seed: int,
) -> None:
    history = Writer(Random(seed)).run(80)

    assert find_anomalies(history) == []


@given(st.integers(0, 1 << 32))
def test_the_anomaly_checker_finds_one_falsified_operation_in_a_random_history(seed: int) -> None:
    random = Random(seed)
    history = Writer(random).run(80)

    expected = spoil_at_random(history, random)

    assert kinds(history) & expected
