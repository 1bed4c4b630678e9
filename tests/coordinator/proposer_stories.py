"""Stories of a proposer and a log that takes its time: it accepts and refuses when a test says so.

The state is a list of numbers, and a decision adds one: its answer is how many there were, so it
tells what it was decided against.

Source: docs/design/state-machines.md#every-answer-waits; coordinator.proposer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinator.errors import CoordinatorError
from coordinator.proposer import Proposer
from raft.interfaces import Draft, Ticket
from records.diskless import ControllerEpochRecord
from records.kafka_errors import ErrorCode
from records.schema import MetadataRecord
from records.types import Epoch, Offset
from tests.doubles.memory_log import MemoryLog, SilentTicket

INVALID_REQUEST: Final = 42


class Asked(NamedTuple):
    """A proposal that the log has received."""

    ticket: Ticket
    epoch: Epoch
    draft: Draft
    expected_end_offset: Offset | None


class SlowLog(MemoryLog):
    """A log that accepts and refuses only when the test says so."""

    def __init__(self) -> None:
        super().__init__(auto_commit=False)
        self.asked: deque[Asked] = deque()

    def propose(
        self,
        ticket: Ticket,
        epoch: Epoch,
        draft: Draft,
        *,
        expected_end_offset: Offset | None = None,
    ) -> None:
        self.asked.append(Asked(ticket, epoch, draft, expected_end_offset))

    def accept(self) -> None:
        """Accept the first proposal, if it still has its expected offset."""
        ticket, epoch, draft, expected = self.asked.popleft()
        super().propose(ticket, epoch, draft, expected_end_offset=expected)

    def add_by_another(self) -> None:
        """Append a record that is not the proposer's, such as a change of voters."""
        assert self.leading_epoch is not None
        super().propose(SilentTicket(), self.leading_epoch, self._one())

    def _one(self) -> Draft:
        return self.asked[0].draft


class Numbers:
    """Applied and pending state in one: proposed numbers lie on top of applied ones."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.proposed: list[int] = []
        self.end_offset = Offset(0)

    def apply(self, offset: int, record: MetadataRecord) -> None:  # noqa: ARG002
        assert isinstance(record, ControllerEpochRecord)
        self.proposed.append(record.controller_epoch)

    def drop(self) -> None:
        self.proposed.clear()

    def __len__(self) -> int:
        return len(self.applied) + len(self.proposed)


class Decided(NamedTuple):
    records: tuple[MetadataRecord, ...]
    response: Any


class Desk:
    """A proposer whose turns run when the test says so."""

    def __init__(self) -> None:
        self.log = SlowLog()
        self.numbers = Numbers()
        self.turns: deque[Callable[[], None]] = deque()
        self.heard: list[tuple[str, Any]] = []
        self.proposer = Proposer(
            self.log,
            self.numbers,
            applied=lambda: self.numbers.end_offset,
            call_soon=self.turns.append,
            now_ms=lambda: 0,
        )
        self.log.watch(self)
        self.elect()

    def elect(self) -> None:
        self.log.elect()
        self.commit()

    # a Watcher, who applies at once

    def committed(self, high_watermark: Offset) -> None:
        self.proposer.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        self.proposer.lead(epoch)

    def step_down(self, epoch: Epoch) -> None:
        self.proposer.step_down(epoch)

    def snapshot(self, snapshot_id: Any) -> None:
        raise AssertionError(f"nobody installs {snapshot_id}")

    # what a story says

    def ask(self, *names: str, writes: bool = True) -> None:
        for name in names:

            def decide(state: Numbers, _now_ms: int) -> Decided:
                record = ControllerEpochRecord(controller_epoch=len(state))
                return Decided((record,) if writes else (), len(state))

            def done(answer: Any, name: str = name) -> None:
                code = answer.code if isinstance(answer, CoordinatorError) else None
                self.heard.append((name, answer if code is None else ErrorCode(code)))

            self.proposer.submit(decide, done)

    def turn(self) -> None:
        """Run the turns that are due, and those that become due by them."""
        while self.turns:
            self.turns.popleft()()

    def commit(self) -> None:
        self.log.commit()
        self.apply()

    def apply(self) -> None:
        """Apply all that is committed, without reading the log."""
        self.numbers.end_offset = self.log.high_watermark or Offset(0)
        self.proposer.applied()


def refused_requests_are_decided_again_first_and_in_order(_: Path | None = None) -> None:
    """Three requests are refused; meanwhile two more have arrived."""
    desk = Desk()
    desk.ask("a", "b", "c")
    desk.turn()
    desk.ask("d", "e")
    desk.turn()
    desk.log.asked.popleft().ticket.refused(INVALID_REQUEST)
    desk.turn()
    while desk.log.asked:
        desk.log.accept()
        desk.turn()
    desk.commit()
    assert desk.heard == [(name, number) for number, name in enumerate("abcde")]


def nothing_is_answered_that_the_log_has_not_accepted(_: Path | None = None) -> None:
    """Another record stands at our offset, and is committed before our refusal arrives."""
    desk = Desk()
    desk.ask("a")
    desk.turn()
    desk.log.add_by_another()
    desk.commit()
    assert desk.heard == [], "answered by somebody else's record"
    desk.log.accept()  # that is: it refuses
    desk.turn()
    desk.log.accept()
    assert desk.heard == []
    desk.commit()
    assert desk.heard == [("a", 0)]


def one_proposal_at_most_is_undetermined(_: Path | None = None) -> None:
    """A second proposal rests on the first; if that is refused, the second might still fit."""
    desk = Desk()
    desk.ask("a")
    desk.turn()
    desk.ask("b")
    desk.turn()
    assert len(desk.log.asked) == 1
    desk.ask("c", writes=False)
    desk.turn()
    desk.log.add_by_another()
    desk.commit()
    desk.log.accept()  # that is: it refuses
    desk.turn()
    desk.log.accept()
    desk.commit()
    assert desk.heard == [("a", 0), ("b", 1), ("c", 2)]


def refused_requests_get_not_available_when_leadership_is_lost(
    _: Path | None = None,
) -> None:
    """Leadership ends between the refusal and the second decision; every request gets an error.

    What was accepted before may yet be committed: that is another answer.
    """
    desk = Desk()
    desk.ask("accepted")
    desk.turn()
    desk.log.accept()
    desk.turn()
    desk.ask("refused", "refused too")
    desk.turn()
    desk.log.asked.popleft().ticket.refused(INVALID_REQUEST)
    desk.ask("never decided")
    desk.log.depose()
    desk.turn()
    assert desk.heard == [
        ("accepted", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("refused", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("refused too", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("never decided", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]
    desk.elect()
    desk.turn()
    assert not desk.log.asked, "whoever heard an answer is not decided again"


def a_late_answer_of_the_log_does_not_concern_the_next_epoch(_: Path | None = None) -> None:
    """The first epoch's ticket is accepted or refused while the second has a ticket of its own."""
    for fate in ("accepted", "refused"):
        desk = Desk()
        desk.ask("first")
        desk.turn()
        first = desk.log.asked.popleft()
        desk.log.depose()
        desk.elect()
        desk.ask("second")
        desk.turn()
        if fate == "accepted":
            assert first.expected_end_offset is not None
            end_offset = Offset(first.expected_end_offset + 1)
            first.ticket.accepted(first.epoch, first.expected_end_offset, end_offset)
        else:
            first.ticket.refused(INVALID_REQUEST)
        desk.turn()
        desk.ask("third")
        desk.turn()
        assert len(desk.log.asked) == 1
        desk.log.accept()
        desk.turn()
        desk.log.accept()
        desk.commit()
        assert desk.heard == [
            ("first", ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ("second", 0),
            ("third", 1),
        ]


def a_read_waits_for_the_proposals_it_rests_on(_: Path | None = None) -> None:
    """A read's answer rests on two proposals, one of which is committed."""
    desk = Desk()
    for name in ("a", "b"):
        desk.ask(name)
        desk.turn()
        desk.log.accept()
        desk.turn()
    desk.ask("read", writes=False)
    desk.turn()
    desk.log.commit(Offset(desk.log.end_offset - 1))
    assert desk.heard == [("a", 0)]
    desk.commit()
    assert desk.heard == [("a", 0), ("b", 1), ("read", 2)]


STORIES: Final = (
    refused_requests_are_decided_again_first_and_in_order,
    nothing_is_answered_that_the_log_has_not_accepted,
    one_proposal_at_most_is_undetermined,
    refused_requests_get_not_available_when_leadership_is_lost,
    a_late_answer_of_the_log_does_not_concern_the_next_epoch,
    a_read_waits_for_the_proposals_it_rests_on,
)
