"""Random schedules of transactions that commit offsets: lost answers, late copies, moves, restarts.

A producer commits offsets of its input in one transaction after the other, as Streams does: it
repeats a commit without an answer, and aborts where it gets none. The group's offset must be the
last of the last committed transaction, whatever is delivered late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.groups import decide, decide_transactions
from coordinator.groups.events import Call
from records.kafka_errors import ErrorCode
from records.rpc.group_log import CommitTransactionalOffsetsRequest, WriteGroupMarkersRequest
from tests.coordinator.groups.test_transactional_commits import NOT_AVAILABLE, code, request
from tests.coordinator.groups.world import GROUP, World
from tests.examples import seeds

ATTEMPTS = 3


class Schedule:
    """One producer, two brokers, and a group log under faults that a seed draws."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(brokers=(1, 2))
        self.late: list[tuple[int, Call]] = []  # copies that the log has not read yet
        self.seen: Counter[str] = Counter()
        self.committed = -1

    def run(self, transactions: int = 25) -> None:
        """Run transactions one after the other, and check the group's offset after each."""
        for number in range(transactions):
            offsets = [10 * number + step for step in range(1, self.chance.randrange(2, 4))]
            is_stored = all(self._commit(number, offset) for offset in offsets)
            if self.chance.random() < 0.5:
                self._deliver_late()
            is_committed = is_stored and self.chance.random() < 0.7
            self._end(number, is_committed=is_committed)
            if is_committed:
                self.committed = offsets[-1]
            self._check(number)
            self._disturb()
            self._check(number)

    def _commit(self, number: int, offset: int) -> bool:
        """Commit an offset, as often as a client tries; return whether it was acknowledged."""
        world = self.world
        for _ in range(ATTEMPTS):
            fault = self.chance.random()
            world.holds = lambda _, call, fault=fault: (
                fault < 0.4 and isinstance(call.request, CommitTransactionalOffsetsRequest)
            )
            ticket = world.send(request(offset), number=number)
            world.holds = lambda _broker, _call: False
            held, world.held = world.held, []
            for broker_id, call in held:
                if fault < 0.2:  # it is carried out, and the answer is lost
                    world.deliver(broker_id, call)
                    world.run()
                    self.seen["answer lost"] += 1
                else:
                    self.late.append((broker_id, call))
                    self.seen["late"] += 1
                world.lose_answer(broker_id, call)
            error = code(world.answers[ticket])
            assert error in (0, NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR), error
            if not error:
                return True
            if self.chance.random() < 0.3:
                self._deliver_late()
        return False

    def _end(self, number: int, *, is_committed: bool) -> None:
        """Write the marker until it is answered, and now and then once more."""
        marker = WriteGroupMarkersRequest(
            producer_ids=(7,), transaction_numbers=(number,), committed=(is_committed,)
        )
        for _ in range(self.chance.choice((1, 1, 2))):
            answers: list[Any] = []
            self.world.groups.ask(marker, answers.append)
            self.world.run()
            assert answers[0].error_code == 0

    def _deliver_late(self) -> None:
        """Let the log read a copy of any age, often the newest."""
        if self.late:
            newest = len(self.late) - 1
            late = self.late.pop(self.chance.choice((newest, self.chance.randint(0, newest))))
            self.world.deliver(*late)
            self.world.run()
            self.seen["copy read"] += 1

    def _disturb(self) -> None:
        act = self.chance.random()
        if act < 0.4:
            self._deliver_late()
        elif act < 0.5:
            self.world.take_checkpoint()
        elif act < 0.6:
            self.world.restart_log()
            self.seen["restart"] += 1
        elif act < 0.7:
            self.world.change_leader(lose=self.chance.random() < 0.5)
        elif act < 0.85:
            owner = self.world.owner()
            self.world.stop_broker(owner)
            self.world.start_broker(3 - owner if self.chance.random() < 0.2 else owner)
            self.seen["broker restarted"] += 1

    def _check(self, number: int) -> None:
        group = self.world.image.groups.get(GROUP)
        found = None if group is None else group.offsets.get(("t", 0))
        stored = -1 if found is None else found.offset
        assert stored == self.committed, (number, stored, self.committed)
        assert group is None or not group.pending.total, (number, group.pending)


@pytest.mark.parametrize("seed", seeds(15))
def test_random_schedules_of_transactional_commits_keep_the_last_committed_offset(
    seed: int,
) -> None:
    Schedule(seed).run()


def test_the_random_transactional_schedules_cover_lost_answers_and_late_copies() -> None:
    seen: Counter[str] = Counter()
    for seed in range(10):
        schedule = Schedule(seed)
        schedule.run()
        seen += schedule.seen
    assert min(seen[name] for name in ("answer lost", "copy read", "restart")) > 5, seen


def run_schedules() -> None:
    """Run the schedules with which mistakes are found."""
    for seed in range(10):
        Schedule(seed).run()


def ignore_transaction_numbers(patch: pytest.MonkeyPatch) -> None:
    """The log accepts commits of ended transactions."""
    patch.setattr(decide_transactions, "_refuse_number", lambda *_: ErrorCode.NONE)


def ignore_sequence_numbers(patch: pytest.MonkeyPatch) -> None:
    """The log accepts late copies of commits."""
    check = decide.check_owner

    def careless(context: Any, group_id: str, epoch: int, _sequence: int) -> Any:
        return check(context, group_id, epoch, 1 << 60)

    patch.setattr(decide_transactions, "check_owner", careless)


@pytest.mark.parametrize("mistake", [ignore_transaction_numbers, ignore_sequence_numbers])
def test_the_random_schedules_catch_a_group_log_that_ignores_transaction_numbers(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        run_schedules()
