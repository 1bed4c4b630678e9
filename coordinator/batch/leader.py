"""The batch coordinator on the quorum's leader: decide, propose, answer once it cannot be lost.

`Leader` has no asyncio in it: requests come with a callback, and time, timers and turns are given.
`QuorumCoordinator` is the same with `await`, and reads besides.

Two clocks. The wall clock stamps what people see. Delays run on a *steady* clock: the wall clock as
of this leader's election, plus what its monotonic clock has counted since; so a clock that is set,
or a new leader whose clock is ahead, deletes nothing early.

Source: docs/design/state-machines.md#every-answer-waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from coordinator.batch import decide
from coordinator.batch import slices as pieces
from coordinator.batch.cluster_view import ClusterView
from coordinator.batch.decide import Context, Decision
from coordinator.batch.maintenance import SWEEP_INTERVAL_S, Sweeps
from coordinator.batch.pending import PendingState
from coordinator.batch.reads import denies
from coordinator.batch.replica import ReadOnlyCoordinator
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.clocks import Clocks
from coordinator.errors import CoordinatorError
from coordinator.proposer import Done, Proposer
from raft.interfaces import ReplicatedLog
from records.kafka_errors import ErrorCode
from records.rpc.base import Request
from records.rpc.batch_coordinator import (
    ApplyRetentionRequest,
    ApplyRetentionResponse,
    CommitBatchesRequest,
    CommitBatchesResponse,
    DeleteDisklessRecordsRequest,
    DeleteDisklessRecordsResponse,
    DeleteDisklessTopicsRequest,
    DeleteDisklessTopicsResponse,
    FindBatchesRequest,
    FindBatchesResponse,
    InitDisklessTopicsRequest,
    InitDisklessTopicsResponse,
    ReleaseDisklessPartitionsRequest,
    ReleaseDisklessPartitionsResponse,
)
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    DeleteFilesRequest,
    DeleteFilesResponse,
    GetFilesToDeleteRequest,
    GetFilesToDeleteResponse,
    IsSafeToDeleteFileRequest,
    IsSafeToDeleteFileResponse,
    MarkOrphansRequest,
    MarkOrphansResponse,
    ReleaseObjectLeaseRequest,
    ReleaseObjectLeaseResponse,
)
from records.types import Epoch, Offset

T = TypeVar("T")

MAX_WAITING_BATCHES: Final = 200_000
"""Of commits without an answer: some 60 MB. Twenty of the largest objects, a thousand usual ones;
whoever comes after them is told to ask again."""


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
        sweep_interval_s: float = SWEEP_INTERVAL_S,
    ) -> None:
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
            failed=lambda error: machine.met(error),
        )
        self._waiting_batches = 0
        self._leading: Epoch | None = None
        self._elected_ms = 0
        self._elected_at = 0.0
        self._sweeps = Sweeps(
            machine,
            self.pending,
            settings,
            view,
            context=lambda now_ms: self._context(now_ms),
            submit=self.proposer.submit,
            call_later=clocks.call_later,
            interval_s=sweep_interval_s,
        )
        machine.watch(self._machine_applied)

    # -- a Watcher of the log ------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Told by the log."""
        self.proposer.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        """Told by the log: all before this epoch is committed, though perhaps not yet applied."""
        self._leading = epoch
        self._elected_ms = self._clocks.now_ms()
        self._elected_at = self._clocks.monotonic()
        self.proposer.lead(epoch)
        self._sweeps.begin()

    def step_down(self, epoch: Epoch) -> None:
        """Told by the log."""
        self._leading = None
        self._sweeps.end()
        self.proposer.step_down(epoch)

    def close(self) -> None:
        """Decide no more, whoever leads."""
        if self._leading is not None:
            self.step_down(self._leading)

    def _machine_applied(self) -> None:
        self.pending.applied(self._machine.applied.offset)
        self.proposer.applied()

    # -- requests ------------------------------------------------------------------------------

    def ask(self, request: Request, done: Done, unwritten: Done | None = None) -> None:
        """Decide a request; `done` hears the response, or a CoordinatorError.

        Args:  unwritten: hears the response instead where it wrote no record. Nobody had to agree
               to it, so it is this node's word alone, which may not lead any more.
        """
        decision = _DECISIONS[type(request)]
        wrote = False

        def decided(_: Any, now_ms: int) -> Decision[Any]:
            nonlocal wrote
            found = decision(self, request, self._context(now_ms))
            wrote = bool(found.records)
            return found

        def told(answer: Any) -> None:
            if wrote or unwritten is None or isinstance(answer, CoordinatorError):
                done(answer)
            else:
                unwritten(answer)

        hears: Done = told
        if isinstance(request, CommitBatchesRequest):
            hears = self._counting(request, told)
            if self._waiting_batches > MAX_WAITING_BATCHES:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                hears(CoordinatorError(code, "too many batches wait for an answer"))
                return
        self.proposer.submit(decided, hears)

    def _counting(self, request: CommitBatchesRequest, done: Done) -> Done:
        """Count a commit's batches until it is answered."""
        count = sum(len(group.batches) for topic in request.topics for group in topic.partitions)
        self._waiting_batches += count

        def answered(answer: Any) -> None:
            self._waiting_batches -= count
            done(answer)

        return answered

    def files_to_delete(self, request: GetFilesToDeleteRequest) -> GetFilesToDeleteResponse:
        """From applied state alone. Raises CoordinatorError if this node may not decide."""
        if self.proposer.epoch is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, "this node does not lead, or not yet")
        store = self._machine.store
        return decide.files_to_delete(request, store, store, self._context(self._clocks.now_ms()))

    def _context(self, now_ms: int) -> Context:
        led_ms = round((self._clocks.monotonic() - self._elected_at) * 1000)
        steady_ms = self._elected_ms + led_ms
        return Context(now_ms, steady_ms, self._elected_ms, self._view, self._settings)

    def sweep(self, done: Callable[[], None] | None = None) -> None:
        """See Sweeps."""
        self._sweeps.sweep(done)

    # -- what the decisions are given ------------------------------------------------------------

    def _commit(self, request: CommitBatchesRequest, context: Context) -> Decision[Any]:
        return decide.decide_commit(request, self.pending, self._machine.store, context)

    def _acquire(self, request: AcquireObjectLeaseRequest, context: Context) -> Decision[Any]:
        return decide.decide_acquire(request, self.pending, context)

    def _release(self, request: ReleaseObjectLeaseRequest, context: Context) -> Decision[Any]:
        return decide.decide_release(request, self.pending, context)

    def _init_topics(self, request: InitDisklessTopicsRequest, context: Context) -> Decision[Any]:
        return decide.decide_init_topics(request, self.pending, context)

    def _delete_topics(
        self, request: DeleteDisklessTopicsRequest, context: Context
    ) -> Decision[Any]:
        return decide.decide_delete_topics(request, self.pending, context)

    def _release_partitions(
        self, request: ReleaseDisklessPartitionsRequest, context: Context
    ) -> Decision[Any]:
        return decide.decide_release_partitions(request, self.pending, context)

    def _apply_retention(self, request: ApplyRetentionRequest, context: Context) -> Decision[Any]:
        return decide.decide_apply_retention(request, self.pending, self._machine.store, context)

    def _delete_records(
        self, request: DeleteDisklessRecordsRequest, context: Context
    ) -> Decision[Any]:
        return decide.decide_delete_records(request, self.pending, context)

    def _removals(self, request: DeleteFilesRequest, context: Context) -> Decision[Any]:
        return decide.decide_removals(request, self.pending, self._machine.store, context)

    def _safe_to_delete(
        self, request: IsSafeToDeleteFileRequest, context: Context
    ) -> Decision[Any]:
        return decide.decide_safe_to_delete(request, self.pending, self._machine.store, context)

    def _mark_orphans(self, request: MarkOrphansRequest, context: Context) -> Decision[Any]:
        return decide.decide_found_orphans(request, self.pending, self._machine.store, context)


_DECISIONS: Final[dict[type[Request], Callable[[Leader, Any, Context], Decision[Any]]]] = {
    CommitBatchesRequest: Leader._commit,
    AcquireObjectLeaseRequest: Leader._acquire,
    ReleaseObjectLeaseRequest: Leader._release,
    InitDisklessTopicsRequest: Leader._init_topics,
    DeleteDisklessTopicsRequest: Leader._delete_topics,
    ReleaseDisklessPartitionsRequest: Leader._release_partitions,
    ApplyRetentionRequest: Leader._apply_retention,
    DeleteDisklessRecordsRequest: Leader._delete_records,
    DeleteFilesRequest: Leader._removals,
    IsSafeToDeleteFileRequest: Leader._safe_to_delete,
    MarkOrphansRequest: Leader._mark_orphans,
}


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
        sweep_interval_s: float = SWEEP_INTERVAL_S,
    ) -> None:
        """
        Args:  machine: hosted by somebody else, who applies to it what the log commits.
        """
        super().__init__(log, machine, settings, monotonic=clocks.monotonic)
        self.leader = Leader(
            log, machine, settings, view, clocks, sweep_interval_s=sweep_interval_s
        )

    # -- a Watcher of the log ------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Told by the log."""
        super().committed(high_watermark)
        self.leader.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        """Told by the log."""
        if not self._is_closed:
            self.leader.lead(epoch)

    def step_down(self, epoch: Epoch) -> None:
        """Told by the log."""
        self.leader.step_down(epoch)

    # -- a BatchCoordinator --------------------------------------------------------------------

    async def find_batches(self, request: FindBatchesRequest) -> FindBatchesResponse:
        """See BatchCoordinator: a no is said behind the read barrier."""
        await self._until_told()
        answer = await super().find_batches(request)
        if denies(answer):
            await self._read_barrier()
            answer = await super().find_batches(request)
        return answer

    def _ask(self, request: Request, kind: type[T]) -> asyncio.Future[T]:
        """Submitted before anything is awaited: calls are decided in the order they were made.

        A record that is committed proves that we led. What wrote none is said behind the read
        barrier: else one who was deposed, and has not heard of it, would say no to what the next
        leader knows.
        """
        self._check_open()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if future.done():
                return  # whoever asked has gone
            if isinstance(answer, CoordinatorError):
                future.set_exception(answer)
            else:
                assert isinstance(answer, kind), f"{answer} answers {request}"
                future.set_result(answer)

        def unwritten(answer: Any) -> None:
            def behind(barrier: asyncio.Future[Offset]) -> None:
                lost = barrier.cancelled() or barrier.exception()
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                done(CoordinatorError(code, f"no read barrier: {lost}") if lost else answer)

            asking = asyncio.ensure_future(self._log.barrier(), loop=future.get_loop())
            asking.add_done_callback(behind)

        self.leader.ask(request, done, unwritten)
        return future

    async def create_topic_and_partitions(
        self, request: InitDisklessTopicsRequest
    ) -> InitDisklessTopicsResponse:
        """See BatchCoordinator."""
        return await self._ask(request, InitDisklessTopicsResponse)

    async def acquire_lease(self, request: AcquireObjectLeaseRequest) -> AcquireObjectLeaseResponse:
        """See BatchCoordinator."""
        return await self._ask(request, AcquireObjectLeaseResponse)

    async def release_lease(self, request: ReleaseObjectLeaseRequest) -> ReleaseObjectLeaseResponse:
        """See BatchCoordinator."""
        return await self._ask(request, ReleaseObjectLeaseResponse)

    async def commit_file(self, request: CommitBatchesRequest) -> CommitBatchesResponse:
        """See BatchCoordinator."""
        return await self._ask(request, CommitBatchesResponse)

    async def delete_records(
        self, request: DeleteDisklessRecordsRequest
    ) -> DeleteDisklessRecordsResponse:
        """See BatchCoordinator."""
        return await pieces.delete_records(
            request, lambda piece: self._ask(piece, DeleteDisklessRecordsResponse)
        )

    async def delete_topics(
        self, request: DeleteDisklessTopicsRequest
    ) -> DeleteDisklessTopicsResponse:
        """See BatchCoordinator."""
        return await self._ask(request, DeleteDisklessTopicsResponse)

    async def release_partitions(
        self, request: ReleaseDisklessPartitionsRequest
    ) -> ReleaseDisklessPartitionsResponse:
        """See BatchCoordinator."""
        return await self._ask(request, ReleaseDisklessPartitionsResponse)

    async def apply_retention(self, request: ApplyRetentionRequest) -> ApplyRetentionResponse:
        """See BatchCoordinator."""
        return await self._ask(request, ApplyRetentionResponse)

    async def get_files_to_delete(
        self, request: GetFilesToDeleteRequest
    ) -> GetFilesToDeleteResponse:
        """See BatchCoordinator."""
        await self._until_applied(self._high_watermark)
        with self._reading():
            return self.leader.files_to_delete(request)

    async def delete_files(self, request: DeleteFilesRequest) -> DeleteFilesResponse:
        """See BatchCoordinator."""
        return await pieces.delete_files(
            request, lambda piece: self._ask(piece, DeleteFilesResponse)
        )

    async def is_safe_to_delete_file(
        self, request: IsSafeToDeleteFileRequest
    ) -> IsSafeToDeleteFileResponse:
        """See BatchCoordinator."""
        return await self._ask(request, IsSafeToDeleteFileResponse)

    async def mark_orphans(self, request: MarkOrphansRequest) -> MarkOrphansResponse:
        """See BatchCoordinator."""
        return await self._ask(request, MarkOrphansResponse)

    async def close(self) -> None:
        """Answer no more; whoever waits is told, also that what was decided may be committed."""
        await super().close()
        self.leader.close()

    async def sweep(self) -> None:
        """Every step of a sweep once: for tests and tools; a leader does it by itself."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leader.sweep(lambda: finished.set_result(None))
        await finished
