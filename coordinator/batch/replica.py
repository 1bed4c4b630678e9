"""A coordinator that only reads: the same state on any replica, and no call over the network.

A broker observes the coordinator's log and builds the state that the leader has, a moment later. So
it finds batches in its own process. Its answers may be old, never wrong: everything in them was
committed. How old at most, `age_ms` says (`coordinator.batch.freshness`); a read that must be
certain waits at the read barrier, as ListOffsets does.

Source: KIP-1164, read-only coordinators; docs/design/broker.md#staleness-is-bounded.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from uuid import UUID

from coordinator.batch.calls import Lookup, Report, call_of
from coordinator.batch.freshness import Freshness
from coordinator.batch.id_ranges import contains
from coordinator.batch.reads import Runs, log_ends, stable_ends
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.described import described
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.batch.state import LeaseFinder, Tables
from coordinator.errors import CoordinatorError
from raft.interfaces import NotLeaderError, ReplicatedLog
from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest, Response
from records.types import Epoch, Offset, OffsetAndEpoch

A = TypeVar("A", bound=Response)

_FOREVER_MS = 2**63 - 1


class ReadOnlyCoordinator:
    """Answers reads from a replica's own state. Watches its log and its machine."""

    def __init__(
        self,
        log: ReplicatedLog,
        machine: CoordinatorMachine,
        settings: CoordinatorSettings,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        """Create a replica that answers reads from the state of a local state machine.

        Args:  machine: its host applies to it what the log commits.
               monotonic: the clock of the log's `committed_as_of`: the event loop's.
        """
        self._log = log
        self._machine = machine
        self._settings = settings
        self._monotonic = monotonic
        self._high_watermark = Offset(0)
        self._freshness = Freshness(log, lambda: machine.applied.offset)
        self._waiters: dict[asyncio.Future[None], int] = {}  # until what is applied
        self._large_reads = asyncio.Lock()
        self._is_closed = False
        machine.watch(self._machine_applied)

    def start(self) -> None:
        """Register this replica for notifications from the log."""
        self._log.watch(self)

    # -- a Watcher of the log ------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Record the log's new high watermark."""
        self._high_watermark = high_watermark
        self._freshness.note()

    def lead(self, epoch: Epoch) -> None:
        """Do nothing, because reads do not depend on which node leads."""

    def step_down(self, epoch: Epoch) -> None:
        """Do nothing, because reads do not depend on which node leads."""

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Do nothing, because the host of the state machine loads snapshots."""

    def _machine_applied(self) -> None:
        applied = self._machine.applied.offset
        self._freshness.note()
        if self._waiters:
            due = [future for future, offset in self._waiters.items() if offset <= applied]
            for future in due:
                del self._waiters[future]
                if not future.done():
                    future.set_result(None)

    # -- what it says --------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Return the number of records known as committed that this replica has not applied."""
        return max(0, self._high_watermark - self._machine.applied.offset)

    @property
    def age_ms(self) -> float | None:
        """Return an upper bound of the state's age in ms, or None if the age is unknown."""
        return self._freshness.age_ms(self._monotonic())

    def ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """Return a partition's applied log start and high watermark, or None if not found.

        Costs next to nothing: tells a caller whether anything has changed.
        """
        return log_ends(self._machine.store, topic_id, partition)

    def stable_ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """Return a partition's applied log start and last stable offset, or None if not found.

        As `ends`, for readers of committed transactions.
        """
        return stable_ends(self._machine.store, topic_id, partition)

    @property
    def applied_offset(self) -> int:
        """Return the exclusive end of the log's records that the state has."""
        return self._machine.applied.offset

    def marked_objects(self, first_ms: int, limit: int) -> list[tuple[int, int]]:
        """Return the times and ids of objects marked at or after a time, the oldest first."""
        return self._machine.store.marked_objects(first_ms, _FOREVER_MS, limit)

    def is_orphan(self, object_id: int) -> bool:
        """Return whether an id was never committed, and never can be: its lease is closed."""
        store = self._machine.store
        lease_id = LeaseFinder(store).find(object_id)
        if lease_id is None:
            return False
        lease = store.leases[lease_id]
        return not lease.is_open and contains(lease.orphans, object_id)

    async def call(self, request: CoordinatorRequest[A]) -> A:
        """Answer a request that only reads, from this replica's applied state."""
        self._check_open()
        match call_of(request).kind:
            case Lookup(_, None) as lookup:
                return await self._look_up(lookup, request, await self._read_barrier())
            case Lookup() as lookup:
                offset = self._high_watermark  # committed here; others may know of more
                await self._until_applied(offset)
                return await self._look_up(lookup, request, offset)
            case Report() as report:
                return await self._report(report, request)
            case kind:
                raise TypeError(f"a replica was sent {request.schema().name}, a {kind}")

    async def _look_up(self, lookup: Lookup[A], request: CoordinatorRequest[A], offset: int) -> A:
        """Answer a read request, in several turns of the event loop if the request is large.

        Only one large look-up is under way at a time.

        Args:  offset: everything below it was in the state when this began.
        """
        turns = lookup.turns(request, self._state, self._settings)
        try:
            with self._pass_errors():
                next(turns)
            async with self._large_reads:
                while True:
                    await asyncio.sleep(0)
                    await self._until_applied(offset)  # a loaded checkpoint may have less
                    with self._pass_errors():
                        next(turns)
        except StopIteration as end:
            answer: A = end.value
            return answer

    async def _report(self, report: Report[A], request: CoordinatorRequest[A]) -> A:
        """Answer a request to describe metadata in a thread, from one database transaction."""
        if report.behind_barrier(request):
            await self._read_barrier()
        else:
            await self._until_known()
        self._machine.flush()
        with self._pass_errors():
            return await asyncio.to_thread(
                described,
                self._machine.path,
                lambda state: report.read(request, state, self._settings),
            )

    async def close(self) -> None:
        """Stop the replica; waiting calls end with an error."""
        self._is_closed = True
        waiters, self._waiters = self._waiters, {}
        for future in waiters:
            if not future.done():
                future.set_exception(_closed_error())

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed_error()
        if self._log.in_doubt:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, f"{self._log.name} is in doubt on this node: a fork")

    def _state(self) -> tuple[Tables, Runs]:
        store = self._machine.store
        return store, store

    @contextmanager
    def _pass_errors(self) -> Iterator[None]:
        """Pass SQLite errors of the `with` block to the state machine and raise them again."""
        try:
            yield
        except sqlite3.Error as error:
            self._machine.handle_read_error(error)
            raise

    async def _read_barrier(self) -> Offset:
        """Wait until the records committed before this call are applied; return the end offset."""
        self._check_open()
        offset = await self._confirm_leader()
        await self._until_applied(offset)
        return offset

    async def _confirm_leader(self) -> Offset:
        """Wait until a majority confirms the leader; return the leader's committed end offset."""
        try:
            return await self._log.barrier()
        except NotLeaderError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, f"no read barrier: {error}") from error

    async def _until_known(self) -> None:
        """Wait until every committed record is applied, unless the replica's age is known.

        The trap: a node that restarts knows less than it answered before, down to
        nothing at all, until a leader has said what is committed.
        """
        if self.age_ms is None:
            await self._read_barrier()

    async def _until_applied(self, offset: int) -> None:
        """Wait until the state has every record below `offset`."""
        self._check_open()
        if self._machine.applied.offset >= offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[future] = offset
        self._machine.request_apply()
        try:
            await future
        finally:  # a cancelled wait is forgotten, also by a replica that applies nothing
            self._waiters.pop(future, None)


def _closed_error() -> CoordinatorError:
    return CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this coordinator is closed")
