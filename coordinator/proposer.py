"""From a decision to its answer: what a leader does between `decide` and the high watermark.

A decision is made against *pending* state, which holds what was proposed and is not committed yet.
So its answer, be it only "this is a duplicate" or "no such topic", may rest on records that can
still be lost. Hence the one rule of this module: every answer, whether it wrote a record or not,
waits until the high watermark has reached the end that the pending state had. Answers of one turn
of the loop share one proposal, and so one wait.

The trap is a proposal that is *refused* while we go on leading: another record (a change of voters)
stands at its expected offset, or too much waits. The pending state is wrong from there on, and
nothing can be cut out of it. So we stop deciding, let what was accepted be committed and applied,
throw the overlay away, and decide the same requests again, in the same order. Taking over
leadership is the same procedure with nothing to decide again. For the same reason one proposal at
most is neither accepted nor refused: a second one, decided on top of a first that is refused, could
find the log ending just where it expected.

No clock and no asyncio here: it is given `call_soon`, so the simulator can run it.

Source: docs/design/state-machines.md#every-answer-waits,
docs/design/state-machines.md#a-new-leader-decides-nothing; raft.interfaces.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from coordinator.errors import CoordinatorError
from raft.interfaces import Draft, ReplicatedLog, draft_values
from records.frame import encode_record
from records.kafka_errors import ErrorCode
from records.schema import MetadataRecord
from records.types import Epoch, Offset

log: Final = logging.getLogger("esker.coordinator")

TURN_BYTES: Final = 128 * 1024
"""Bytes of records decided in one turn of the loop: about a thousand batches, 2-3 ms."""

TURN_REQUESTS: Final = 64

MAX_WAITING: Final = 10_000
"""Requests without an answer; later ones are refused with COORDINATOR_NOT_AVAILABLE."""


class Decision(Protocol):
    """The records to write, perhaps none, and the response to send then."""

    @property
    def records(self) -> Sequence[MetadataRecord]: ...

    @property
    def response(self) -> Any: ...


class Pending(Protocol):
    """The pending state that requests are decided against."""

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply a proposed record to the pending state."""

    def drop(self) -> None:
        """Discard all proposed records and return to the applied state."""


Done = Callable[[Any], None]
"""Called with the answer, or a CoordinatorError."""

Decide = Callable[[Any, int], Decision]
"""(pending state, now in ms since 1970) -> decision.

Raises CoordinatorError where it cannot decide yet: then nothing is written.
"""

_Request = tuple[Decide, Done]


def _one_batch(values: Sequence[Sequence[bytes]], now_ms: int) -> Draft:
    return draft_values([value for decided in values for value in decided], timestamp_ms=now_ms)


class _Proposal:
    """The ticket of one turn's records, and the answers that wait until they are committed."""

    __slots__ = ("_owner", "answers", "end_offset", "epoch", "is_accepted", "requests")

    def __init__(self, owner: Proposer, epoch: Epoch, end_offset: Offset) -> None:
        self._owner = owner
        self.epoch = epoch
        self.end_offset = end_offset
        self.answers: list[tuple[Done, Any]] = []
        self.requests: list[_Request] = []
        self.is_accepted = False

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:
        assert epoch == self.epoch, f"accepted in epoch {epoch}, proposed in {self.epoch}"
        assert end_offset == self.end_offset, f"accepted at {base_offset}..{end_offset}: {self}"
        self.is_accepted = True
        self._owner._accepted(self)

    def refused(self, error: int) -> None:
        self._owner._refused(self, error)

    def __repr__(self) -> str:
        return f"proposal of epoch {self.epoch} up to {self.end_offset}"


class Proposer:
    """See the module. Call `submit` from anywhere on the loop; log and machine call the rest."""

    def __init__(
        self,
        log: ReplicatedLog,
        pending: Pending,
        *,
        applied: Callable[[], Offset],
        call_soon: Callable[[Callable[[], None]], object],
        now_ms: Callable[[], int],
        draft: Callable[[Sequence[Sequence[bytes]], int], Draft] | None = None,
        turn_bytes: int = TURN_BYTES,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        """Create a log's proposer; it decides requests once `lead` has been called.

        Args:  applied: everything below it is in the applied state.
               now_ms: the wall clock, read once per turn and only here.
               draft: makes a turn's values, decision by decision, and the time into what is
               appended; one batch of all of them if not given.
               turn_bytes: of records decided in one turn; the decision that reaches it is the last.
               failed: called with what a decision raised; its own request gets an error in any
               case.
        """
        self._log = log
        self._pending = pending
        self._applied = applied
        self._call_soon = call_soon
        self._now_ms = now_ms
        self._draft = _one_batch if draft is None else draft
        self._turn_bytes = turn_bytes
        self._failed = failed
        self._epoch: Epoch | None = None
        self._may_decide = False
        self._is_turn_due = False
        self._end_offset = Offset(0)  # of the pending state
        self._high_watermark = Offset(0)
        self._queue: deque[_Request] = deque()
        self._again: list[_Request] = []  # refused, to be decided again before the queue
        self._in_flight: deque[_Proposal] = deque()
        self._undetermined: _Proposal | None = None  # the one neither accepted nor refused
        self._waiting = 0
        self.proposals = 0
        self.requests = 0
        self.dropped = 0  # overlays thrown away

    @property
    def epoch(self) -> Epoch | None:
        """Return the epoch in which this node leads and may decide, else None."""
        return self._epoch if self._may_decide else None

    def submit(self, decide: Decide, done: Done, *, urgent: bool = False) -> None:
        """Queue a request; call `done` with the response once its records are committed.

        An urgent request, which costs little and depends on no other, is queued at the front.
        """
        if self._epoch is None:
            done(CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node does not lead"))
            return
        if self._waiting >= MAX_WAITING:
            done(CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many requests wait"))
            return
        self._waiting += 1
        if urgent:
            self._queue.appendleft((decide, done))
        else:
            self._queue.append((decide, done))
        self._schedule()

    # -- a Watcher of the log ------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        self._high_watermark = high_watermark
        self._settle()

    def lead(self, epoch: Epoch) -> None:
        assert self._epoch is None, f"leads {self._epoch}, and now {epoch}"
        self._epoch = epoch
        self.applied()

    def step_down(self, epoch: Epoch) -> None:  # noqa: ARG002
        self._epoch = None
        self._may_decide = False
        self._undetermined = None
        self._drop()
        unknown = CoordinatorError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership was lost before the answer was certain"
        )
        lost, self._in_flight = self._in_flight, deque()
        for proposal in lost:
            self._answer(proposal.answers, unknown)
        undecided = [*self._again, *self._queue]
        self._again.clear()
        self._queue.clear()
        nothing = CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "leadership was lost")
        self._answer([(done, None) for _, done in undecided], nothing)

    def applied(self) -> None:
        """Start to decide requests if this node leads and has applied every record of the log."""
        if self._epoch is None or self._may_decide or self._in_flight:
            return
        if self._applied() != self._log.end_offset or self._log.leading_epoch != self._epoch:
            return
        self._drop()
        self._end_offset = self._log.end_offset
        self._may_decide = True
        self._queue.extendleft(reversed(self._again))
        self._again.clear()
        self._schedule()

    # -- one turn ------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._may_decide or self._undetermined is not None:
            return
        if self._queue and not self._is_turn_due:
            self._is_turn_due = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        """Decide waiting requests up to a turn's limits; propose their records as one batch."""
        self._is_turn_due = False
        if not self._may_decide or not self._queue or self._undetermined is not None:
            return
        assert self._epoch is not None
        proposal = _Proposal(self, self._epoch, self._end_offset)
        begin, now_ms = self._end_offset, self._now_ms()
        values: list[list[bytes]] = []
        size_bytes = 0
        while (
            self._queue and size_bytes < self._turn_bytes and len(proposal.requests) < TURN_REQUESTS
        ):
            request = self._queue.popleft()
            decide, done = request
            try:
                decision = decide(self._pending, now_ms)
                decided = [encode_record(record) for record in decision.records]
            except AssertionError:
                raise  # ours: the process stops
            except CoordinatorError as error:  # nothing was decided: the caller may ask again
                self._answer([(done, None)], error)
                continue
            except Exception as error:  # a decision changes nothing, so only its own request fails
                log.exception("a decision failed")
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                self._answer([(done, None)], CoordinatorError(code, f"it failed: {error}"))
                if self._failed is not None:
                    self._failed(error)
                continue
            for record in decision.records:
                self._pending.apply(self._end_offset, record)
                self._end_offset = Offset(self._end_offset + 1)
            if decided:
                values.append(decided)
                size_bytes += sum(map(len, decided))
            proposal.answers.append((done, decision.response))
            proposal.requests.append(request)
        self.requests += len(proposal.requests)
        proposal.end_offset = self._end_offset
        self._in_flight.append(proposal)
        if values:
            self.proposals += 1
            self._undetermined = proposal
            draft = self._draft(values, now_ms)
            self._log.propose(proposal, proposal.epoch, draft, expected_end_offset=begin)
        else:
            proposal.is_accepted = True  # all before it is
            self._settle()
        self._schedule()

    def _accepted(self, proposal: _Proposal) -> None:
        if proposal is not self._undetermined:
            return  # leadership was lost, and its requests were answered
        self._undetermined = None
        self._settle()
        self._schedule()

    def _settle(self) -> None:
        """Answer the requests whose records are below the high watermark."""
        while self._in_flight:
            proposal = self._in_flight[0]
            if not proposal.is_accepted or proposal.end_offset > self._high_watermark:
                return
            self._in_flight.popleft()
            self._answer(proposal.answers, None)
        self.applied()

    def _refused(self, proposal: _Proposal, error: int) -> None:
        """Queue the requests of a refused proposal again; no record of the proposal was written."""
        del error  # whichever: not the leader (`step_down` will follow), the wrong end, too much
        if proposal is not self._undetermined:
            return  # leadership was lost, and its requests were answered
        assert self._in_flight[-1] is proposal, f"{proposal} is not the last: {self._in_flight[-1]}"
        self._undetermined = None
        self._may_decide = False
        self._again = self._in_flight.pop().requests
        self._call_soon(self.applied)

    def _answer(self, answers: list[tuple[Done, Any]], error: CoordinatorError | None) -> None:
        self._waiting -= len(answers)
        for done, response in answers:
            done(response if error is None else error)

    def _drop(self) -> None:
        self._pending.drop()
        self.dropped += 1
