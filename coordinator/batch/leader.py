"""The batch coordinator on the quorum's leader: decide, propose, answer once it cannot be lost.

`Leader` has no asyncio in it: requests come with a callback, and time, timers and turns are given.
`QuorumCoordinator` is the same with `await`, and reads besides.

Three clocks. The wall clock stamps what people see. Delays run on a *steady* clock: the wall clock
as of this leader's election, plus what its monotonic clock has counted since; so a clock that is
set, or a new leader whose clock is ahead, deletes nothing early. Records and producers are deleted
by the steady time that all leaders share (docs/design/clocks.md): each replica notes its stamps.

Source: docs/design/state-machines.md#every-answer-waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from coordinator.batch.calls import LeaderLookup, Lookup, Write, call_of
from coordinator.batch.cluster_view import ClusterView
from coordinator.batch.decide import Context, Decision
from coordinator.batch.log_records import draft_batch
from coordinator.batch.maintenance import MAINTENANCE_INTERVAL_S, Maintenance
from coordinator.batch.pending import PendingState
from coordinator.batch.replica import ReadOnlyCoordinator
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.batch.steady_clock import AGREEMENT_MS, SteadyClock
from coordinator.clocks import Clocks
from coordinator.errors import CoordinatorError
from coordinator.proposer import Proposer
from raft.interfaces import ReplicatedLog
from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest, Response
from records.rpc.batch_coordinator import CommitBatchesRequest
from records.types import Epoch, Offset

R = TypeVar("R", bound=Response)

log = logging.getLogger(__name__)

HOLD_REPORT_S: Final = 3600.0
"""The time between two log lines about a held clock."""

MAX_WAITING_BATCHES: Final = 200_000
"""Largest number of batches in commits without an answer, some 60 MB: twenty of the largest
objects, or a thousand usual ones. Further commits are refused and have to be retried."""


class Answer(NamedTuple):
    """A leader's answer once it cannot be lost."""

    response: Any
    is_committed: bool  # whether it wrote a record; if not, it is the word of this node alone


class Leader:
    """Decides while this node leads; a Watcher of the log. See the module."""

    def __init__(
        self,
        log: ReplicatedLog,
        machine: CoordinatorMachine,
        settings: CoordinatorSettings,
        view: ClusterView,
        clocks: Clocks,
        *,
        maintenance_interval_s: float = MAINTENANCE_INTERVAL_S,
    ) -> None:
        self._log = log
        self._machine = machine
        self._settings = settings
        self._view = view
        self._clocks = clocks
        self.pending = PendingState(lambda: machine.store)
        self.proposer = Proposer(
            log,
            self.pending,
            applied=lambda: machine.applied.offset,
            call_soon=clocks.call_soon,
            now_ms=clocks.now_ms,
            draft=draft_batch,
            failed=lambda error: machine.handle_read_error(error),
        )
        self._waiting_batches = 0
        self._leading: Epoch | None = None
        self._elected_ms = 0
        self._elected_at = 0.0
        self._clock = SteadyClock(clocks.boot_ms)
        self._stamps_from: Offset | None = None  # what was written since this process started
        self._seen_offset = machine.applied.offset
        self._seen_stamp_ms = machine.store.counters.steady_ms
        self._seen_resets = machine.store.counters.clock_resets
        self.clock_hold: str | None = None  # why nothing is deleted by time, while it is so
        self._reported_hold_at: float | None = None
        self.steady_ahead_ms: int | None = None  # of the wall clock; None: not leading, or held
        self._maintenance = Maintenance(
            machine,
            self.pending,
            settings,
            view,
            context=lambda now_ms: self._context(now_ms),
            submit=self.proposer.submit,
            call_later=clocks.call_later,
            interval_s=maintenance_interval_s,
        )
        machine.watch(self._machine_applied)

    # -- a Watcher of the log ------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Send the responses to requests whose records are below the high watermark."""
        if self._stamps_from is None:
            as_of = self._log.committed_as_of
            self._stamps_from = max(high_watermark, as_of.high_watermark if as_of else Offset(0))
        self.proposer.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        """Start to lead: begin maintenance, and decide requests once the whole log is applied."""
        self._leading = epoch
        self._elected_ms = self._clocks.now_ms()
        self._elected_at = self._clocks.monotonic()
        self.proposer.lead(epoch)
        self._maintenance.begin()

    def step_down(self, epoch: Epoch) -> None:
        """Stop maintenance and the decision of requests; waiting requests end with an error."""
        self._leading = self.clock_hold = self._reported_hold_at = self.steady_ahead_ms = None
        self._maintenance.end()
        self.proposer.step_down(epoch)

    def close(self) -> None:
        """Stop maintenance and the decision of requests, as after a lost leadership."""
        if self._leading is not None:
            self.step_down(self._leading)

    def _machine_applied(self) -> None:
        self._note_stamp()
        self.pending.applied(self._machine.applied.offset)
        self.proposer.applied()

    def _note_stamp(self) -> None:
        """Advance the clock to a steady time that was written to the log while this node ran."""
        counters = self._machine.store.counters
        replaces = counters.clock_resets != self._seen_resets
        is_new = counters.steady_ms != self._seen_stamp_ms or replaces
        if is_new and self._stamps_from is not None and self._seen_offset >= self._stamps_from:
            self._clock.note(counters.steady_ms, replaces=replaces)
        self._seen_offset = self._machine.applied.offset
        self._seen_stamp_ms, self._seen_resets = counters.steady_ms, counters.clock_resets

    # -- requests ------------------------------------------------------------------------------

    def ask(
        self, request: CoordinatorRequest[Any], done: Callable[[Answer | CoordinatorError], None]
    ) -> None:
        """Decide a write request; call `done` with the response once the records are committed."""
        kind = call_of(request).kind
        assert isinstance(kind, Write), f"{request} decides nothing"
        if isinstance(request, CommitBatchesRequest):
            done = self._count_batches(request, done)
            if self._waiting_batches > MAX_WAITING_BATCHES:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                done(CoordinatorError(code, "too many batches wait for an answer"))
                return
        self.proposer.submit(lambda _, now_ms: self._decide(kind, request, now_ms), done)

    def _decide(
        self, kind: Write[Any], request: CoordinatorRequest[Any], now_ms: int
    ) -> Decision[Answer]:
        context = self._context(now_ms)
        records, response = kind.decide(request, self.pending, self._machine.store, context)
        return Decision(records, Answer(response, is_committed=bool(records)))

    def _count_batches(
        self, request: CommitBatchesRequest, done: Callable[[Answer | CoordinatorError], None]
    ) -> Callable[[Answer | CoordinatorError], None]:
        """Count a commit's batches as waiting until the returned callback gets the response."""
        count = sum(len(group.batches) for topic in request.topics for group in topic.partitions)
        self._waiting_batches += count

        def uncount(answer: Answer | CoordinatorError) -> None:
            self._waiting_batches -= count
            done(answer)

        return uncount

    def look_up(self, lookup: LeaderLookup[R], request: CoordinatorRequest[R]) -> R:
        """Answer a read request from applied state; raise CoordinatorError if not leading."""
        if self.proposer.epoch is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, "this node does not lead, or not yet")
        store = self._machine.store
        return lookup.read(request, store, store, self._context(self._clocks.now_ms()))

    def _context(self, now_ms: int) -> Context:
        led_ms = round((self._clocks.monotonic() - self._elected_at) * 1000)
        steady_ms = self._elected_ms + led_ms
        stamp_ms = self._machine.store.counters.steady_ms
        shared_ms = self._clock.read(stamp_ms, now_ms, self._voters_agree)
        self._report_hold(None if shared_ms is not None else now_ms - stamp_ms)
        self.steady_ahead_ms = None if shared_ms is None else shared_ms - now_ms
        return Context(now_ms, steady_ms, self._elected_ms, shared_ms, self._view, self._settings)

    def _voters_agree(self) -> bool:
        """Return whether the wall clocks of a majority of voters are near this node's clock."""
        clocks = self._log.voter_clocks
        agreeing = 1 + sum(abs(ahead_ms) <= AGREEMENT_MS for ahead_ms in clocks.ahead_ms)
        return agreeing > clocks.voters // 2

    def _report_hold(self, ahead_ms: int | None) -> None:
        """Log a warning when the clock becomes held and each hour after; log when the hold ends.

        Args:  ahead_ms: how far the wall clock is ahead of the newest stamp; None: not held.
        """
        name, now_s = self._log.name, self._clocks.monotonic()
        if ahead_ms is None:
            if self.clock_hold is not None:
                log.warning("group=%s clock=set: deletion by time goes on", name)
            self.clock_hold = self._reported_hold_at = None
            return
        self.clock_hold = (
            f"{name}: the wall clock is {abs(ahead_ms) / 3_600_000:.1f} hours "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} the log's steady time, so nothing is "
            "deleted by time; set the clocks right, or run `esker quorum accept-clock`"
        )
        if self._reported_hold_at is None or now_s - self._reported_hold_at >= HOLD_REPORT_S:
            self._reported_hold_at = now_s
            log.warning("group=%s clock=held: %s", name, self.clock_hold)

    def run_maintenance(self, done: Callable[[], None] | None = None) -> None:
        """Run every maintenance step once; call `done` after the last step."""
        self._maintenance.run_maintenance(done)


class QuorumCoordinator(ReadOnlyCoordinator):
    """A `BatchCoordinator` on one node of the quorum: decides if that leads, reads in any case."""

    def __init__(
        self,
        log: ReplicatedLog,
        machine: CoordinatorMachine,
        settings: CoordinatorSettings,
        view: ClusterView,
        clocks: Clocks,
        *,
        maintenance_interval_s: float = MAINTENANCE_INTERVAL_S,
    ) -> None:
        """Create the batch coordinator of one node of the quorum.

        Args:  machine: its host applies to it what the log commits.
        """
        super().__init__(log, machine, settings, monotonic=clocks.monotonic)
        self.leader = Leader(
            log, machine, settings, view, clocks, maintenance_interval_s=maintenance_interval_s
        )

    # -- a Watcher of the log ------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Record the high watermark, and send the responses whose records are below it."""
        super().committed(high_watermark)
        self.leader.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        """Start to decide requests as the leader of an epoch, unless `close` was called."""
        if not self._is_closed:
            self.leader.lead(epoch)

    def step_down(self, epoch: Epoch) -> None:
        """Stop deciding requests; waiting requests end with an error."""
        self.leader.step_down(epoch)

    # -- a BatchCoordinator --------------------------------------------------------------------

    async def call(self, request: CoordinatorRequest[R]) -> R:
        """Answer a request; write requests are decided in the order of these calls."""
        answer: R
        match call_of(request).kind:
            case Write(_, in_slices) if in_slices is not None:
                answer = await in_slices(request, self._write)
            case Write():
                answer = await self._write(request)
            case LeaderLookup() as lookup:
                await self._until_applied(self._high_watermark)
                with self._pass_errors():
                    answer = self.leader.look_up(lookup, request)
            case Lookup(_, denies) if denies is not None:
                await self._until_known()
                answer = await super().call(request)
                if denies(answer):
                    await self._read_barrier()
                    answer = await super().call(request)
            case _:
                answer = await super().call(request)
        return answer

    async def _write(self, request: CoordinatorRequest[R]) -> R:
        """Queue a write request for the leader's decision, and wait for the response.

        A record that is committed proves that we led. An answer without one is sent only after a
        majority has confirmed that we lead: a deposed leader that does not know it yet would deny
        what the next one has written.
        """
        self._check_open()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer | CoordinatorError) -> None:
            if future.done():
                return  # its caller was cancelled
            if isinstance(answer, CoordinatorError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.leader.ask(request, done)
        answer = await future
        if not answer.is_committed:
            await self._confirm_leader()
        expected = call_of(request).response
        assert isinstance(answer.response, expected), f"{answer} answers {request}"
        return answer.response

    async def close(self) -> None:
        """Stop the coordinator; waiting calls end with an error.

        Calls that were decided already end with an unknown outcome.
        """
        await super().close()
        self.leader.close()

    async def run_maintenance(self) -> None:
        """Run every maintenance step once.

        For tests and tools; a leader runs them by itself.
        """
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leader.run_maintenance(lambda: finished.set_result(None))
        await finished
