"""Drives one group: feeds its core with events and carries out its effects, in order.

`GroupDriver` is the quorum's `raft.interfaces.ReplicatedLog`.

Events are stepped as they happen; only proposals are collected, until the end of the turn of the
loop. So all proposals of a turn are one event, one write, one flush, and one answer to each waiting
follower: group commit at every hop, without delaying any proposal.

Two effects must be over before the next one is begun and yet must not hold up the loop: truncating
the log, and resetting it. They run in the group's disk thread while events wait.

Source: `raft.core.events` (what a driver owes the core); docs/design/quorum.md#durability-barriers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, get_args

from raft.core.effects import (
    AbandonSnapshot,
    Accepted,
    Append,
    AppendLeaderChange,
    ClearRecovering,
    Committed,
    Effect,
    FetchSnapshot,
    ForkReported,
    InDoubt,
    InstallSnapshot,
    Lead,
    PeerFault,
    PersistElectionState,
    ReadReady,
    ReadRefused,
    Reconnect,
    Refused,
    Respond,
    RespondFetch,
    Send,
    ServeSnapshot,
    SetTimer,
    ShutdownReady,
    StepDown,
    Transition,
    Truncate,
)
from raft.core.events import (
    ConnectionClosed,
    Event,
    Proposal,
    Propose,
    Read,
    Received,
    Resign,
    Shutdown,
    SnapshotFailed,
    SnapshotTaken,
    Start,
    StateContradicts,
    Tick,
)
from raft.core.messages import Request
from raft.core.quorum import Quorum
from raft.core.voters import Endpoint, ReplicaKey
from raft.driver.batch_builder import new_batch
from raft.driver.counters import Counters
from raft.driver.disk_thread import DiskThread
from raft.driver.disk_work import DiskWork
from raft.driver.fetching import SnapshotFetcher
from raft.driver.forks import describe_doubt
from raft.driver.inbound_request import InboundRequest
from raft.driver.log_start import LogStart
from raft.driver.notifications import BarrierTicket, Notifications, ReadTicket
from raft.driver.pending_requests import PendingRequests
from raft.driver.storage import Storage
from raft.driver.wall_clocks import VoterWallClocks
from raft.interfaces import (
    CommittedAsOf,
    Draft,
    EpochStarts,
    Snapshots,
    Ticket,
    VoterClocks,
    Watcher,
)
from raft.wire.responses import Group
from records.compression import Buffer
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

log = logging.getLogger("raft.driver")


class Links(Protocol):
    """Connections of a group to its peers."""

    def send(self, peer: NodeId, request_id: int, request: Request) -> None: ...

    def reconnect(self, peer: NodeId) -> None: ...

    def close(self) -> None: ...


class GroupDriver:
    """A running group; all its methods belong to the event loop."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        group: Group,
        quorum: Quorum,
        storage: Storage,
        disk: DiskThread,
        endpoints: Callable[[NodeId], Endpoint | None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Build the driver of a group, which does nothing until `start` is called.

        Args:    endpoints: where a voter listens, for answers that name the leader.
        """
        self.node_id = node_id
        self.group = group
        self.quorum = quorum
        self.storage = storage
        self.snapshots: Snapshots = storage.snapshots
        self.links: Links | None = None
        self.fetcher: SnapshotFetcher | None = None  # None: it installs no snapshots
        self.log_start: LogStart | None = None  # None: its log's start never moves
        self.on_turn: list[Callable[[], None]] = []  # called before a turn's proposals are taken
        self.doubt: str | None = storage.doubt  # why the group is stopped here; None: it is not
        self.counters = Counters()
        self.pending_requests = PendingRequests(
            node_id=node_id,
            group=group,
            quorum=quorum,
            storage=storage,
            snapshots=self.snapshots,
            endpoints=endpoints,
        )
        self.notifications = Notifications(
            node_id=node_id,
            name=group.name,
            quorum=quorum,
            pending_requests=self.pending_requests,
            counters=self.counters,
        )
        self.disk = DiskWork(
            name=group.name,
            storage=storage,
            disk=disk,
            counters=self.counters,
            generation=quorum.log.generation,
            acknowledges=lambda: quorum.acknowledges,
            post=self.post,
            resume=self._resume,
            on_appended=self.pending_requests.release_held,
        )
        self.voter_wall_clocks = VoterWallClocks()
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._events: deque[Event] = deque()
        self._started = False
        self._found_before_start: list[StateContradicts] = []
        self._stepping = False
        self._proposals: list[Proposal] = []
        self._effects: deque[Effect] = deque()
        self._run_due = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._shutdown_ready = self._loop.create_future()
        self._handlers = self._effect_handlers()

    # --- for other components -------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Return the Raft group's name, `topic-partition`."""
        return self.group.name

    @property
    def leader_id(self) -> NodeId | None:
        """Return the leader of the current epoch, or None while it is unknown."""
        return self.quorum.leader_id

    @property
    def leading_epoch(self) -> Epoch | None:
        """Return the epoch that this node leads and may propose in, or None."""
        return self.notifications.leading_epoch

    @property
    def high_watermark(self) -> Offset | None:
        """Return the exclusive high watermark, or None while it is unknown."""
        return self.quorum.log.high_watermark

    @property
    def committed_as_of(self) -> CommittedAsOf | None:
        """Return the newest known high watermark, and the last time it was known to be current."""
        watermark = self.quorum.leader_watermark()
        if watermark is None or self.in_doubt:
            return None
        return CommittedAsOf(watermark.high_watermark, watermark.at_ms / 1_000)

    @property
    def start_offset(self) -> Offset:
        """Return the log start offset, the first offset that can be read."""
        return self.storage.log.log_start_offset

    @property
    def end_offset(self) -> Offset:
        """Return the log end offset, including records that are not committed yet."""
        return self.quorum.log.end_offset

    @property
    def voter_clocks(self) -> VoterClocks:
        """Return how many ms each other voter's wall clock is ahead of this node's clock."""
        others = [node for node in self.quorum.voters.ids if node != self.node_id]
        return VoterClocks(
            len(self.quorum.voters.ids), self.voter_wall_clocks.differences_ms(others)
        )

    @property
    def in_doubt(self) -> bool:
        """Return whether a fork of this log was found, so that this node must not serve it."""
        return self.doubt is not None or self.quorum.in_doubt

    def epoch_before(self, offset: Offset) -> Epoch | None:
        """Return the epoch of the record before `offset`, or None if the log lacks that record."""
        log_state = self.quorum.log
        if not log_state.start_offset <= offset <= log_state.end_offset:
            return None
        return log_state.epoch_before(offset)

    def epochs_below(self, offset: Offset) -> EpochStarts:
        """Return the epochs of the records below `offset`, including removed records."""
        return self.quorum.log.epochs_below(offset)

    @property
    def stopped(self) -> bool:
        """Return whether the group was stopped or has failed, so that its log must not be read."""
        return self._stopped

    def fail(self, error: BaseException) -> None:
        """Stop this group and report a fatal error, so that the node ends."""
        self._stopped = True
        self._on_fatal(error)

    def start(self) -> None:
        """Start the group's driver; the attribute `links` must be set before."""
        assert self.links is not None, f"{self.name} has no links"
        self._started = True
        was_in_doubt = self.doubt is not None
        self.post(Start())
        for contradiction in self._found_before_start:
            self.post(contradiction)
        if was_in_doubt:
            self._stop_in_doubt()
        elif not self.in_doubt and self.log_start is not None:
            self.log_start.start()

    def post(self, event: Event) -> None:
        """Queue an event for the Raft core, and process it unless another event is in process."""
        self._events.append(event)
        self._step_all()

    def propose(self, ticket: Ticket, epoch: Epoch, draft: Draft, *,
                expected_end_offset: Offset | None = None) -> None:  # fmt: skip
        """Propose a draft (batches without offsets), to be appended if this node leads `epoch`."""
        proposal = Proposal(ticket, epoch, expected_end_offset, (new_batch(draft),))
        self._proposals.append(proposal)
        self.wake()

    def snapshot_taken(self, snapshot_id: OffsetAndEpoch) -> None:
        """Notify the Raft core that this node's checkpoint is durable under its final name."""
        self.post(SnapshotTaken(snapshot_id))
        if self.log_start is not None:
            self._loop.call_soon(self._look_at_log_start)

    def _look_at_log_start(self) -> None:
        if self.log_start is not None and not self._stopped:
            self.log_start.look()

    def watch(self, watcher: Watcher) -> None:
        """Notify `watcher` of the log's current state, and of each change from now on."""
        self.notifications.watch(watcher, self.quorum.log.snapshot_id)

    def read(self, from_offset: Offset, max_bytes: int) -> Buffer:
        """Return committed batches, starting with the batch that contains `from_offset`.

        The result is empty at the high watermark, and while the log is being reset for a snapshot;
        watchers are notified of the snapshot afterwards.

        Raises:  ValueError below the start of the log or above the high watermark.
        """
        if self.disk.resetting:
            return b""
        end_offset = self.high_watermark or self.start_offset
        if not self.start_offset <= from_offset <= end_offset:
            raise ValueError(f"{from_offset} is outside {self.start_offset}..{end_offset}")
        return self.storage.read_bytes(from_offset, end_offset, max_bytes)

    def request_read(self, ticket: ReadTicket) -> None:
        """Request a linearizable read; a method of the ticket receives the outcome."""
        self.pending_requests.reads_waiting += 1
        self.pending_requests.release_held()
        self.post(Read(ticket))

    def barrier(self) -> asyncio.Future[Offset]:
        """Return a future of the offset that must be applied before a linearizable read.

        Raises:  NotLeaderError from the future.
        """
        ticket = BarrierTicket(self._loop.create_future())
        self.request_read(ticket)
        return ticket.future

    def resign(self) -> None:
        """Resign the leadership of this group if this node leads."""
        self.post(Resign())

    def receive(self, connection: int, inbound: InboundRequest, request: Request) -> None:
        """Pass a request to the Raft core and keep the request until it is answered."""
        correlation = self.pending_requests.add(connection, inbound)
        self.post(Received(connection, correlation, request))

    def record_archive_fetch(self, key: ReplicaKey, archived_offset: Offset) -> None:
        """Record an archive's Fetch, so that a leader keeps the log from `archived_offset` on."""
        if self.log_start is not None and self.quorum.followers is not None:
            now_ms = time.monotonic_ns() // 1_000_000
            self.log_start.readers.record_fetch(key, archived_offset, now_ms)

    def connection_closed(self, connection: int) -> None:
        """Drop the pending requests that arrived over a closed connection."""
        if self.pending_requests.forget(connection):
            self.post(ConnectionClosed(connection))

    async def hand_over(self, timeout_ms: int) -> None:
        """Hand over leadership within `timeout_ms`, then stop the Raft core."""
        self.post(Shutdown())
        done, _ = await asyncio.wait((self._shutdown_ready,), timeout=timeout_ms / 1_000)
        if not done:
            log.warning("node=%d group=%s handed_over=no", self.node_id, self.name)
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self.log_start is not None:
            self.log_start.close()
        if self.links is not None:
            self.links.close()

    async def close(self) -> None:
        """Wait for pending disk work and close the log, which must not be read any more."""
        self.pending_requests.close()
        if self.fetcher is not None:
            await self.fetcher.close()
        await self.disk.close()

    # --- the turn -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule the group's queued work for the end of this turn of the event loop."""
        if not self._run_due:
            self._run_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Call the `on_turn` callbacks, then propose all drafts of this turn as one event."""
        self._run_due = False
        if self._stopped or self.disk.busy:
            return
        for gather in self.on_turn:
            gather()
        if self._proposals:
            proposals, self._proposals = tuple(self._proposals), []
            self._events.append(Propose(proposals))
        self._step_all()

    def _step_all(self) -> None:
        """Process queued events and carry out their effects until the queue is empty.

        Called from inside an effect, or while the group is busy, it returns at once: the outer call
        continues, and the core is never stepped from within itself.
        """
        if self._stepping or self.disk.busy or self._stopped:
            return
        self._stepping = True
        began = time.perf_counter()
        now_ms = time.monotonic_ns() // 1_000_000
        step, effects = self.quorum.step, self._effects
        try:
            self._carry_out()  # what a pause left over
            while self._events and not self.disk.busy:
                effects.extend(step(self._events.popleft(), now_ms))
                self._carry_out()
        except BaseException as error:
            self.fail(error)
        self._stepping = False
        self.disk.after_step()
        self.counters.busy_s += time.perf_counter() - began

    def _carry_out(self) -> None:
        effects = self._effects
        while effects and not self.disk.busy:
            effect = effects.popleft()
            self._handlers[type(effect)](effect)

    def _resume(self) -> None:
        self._step_all()
        self.wake()

    def _effect_handlers(self) -> dict[type[Effect], Callable[[Any], None]]:
        """Return the methods that carry out the Raft core's effects, by type of effect."""
        disk, pending, notifications = self.disk, self.pending_requests, self.notifications
        table: dict[type[Effect], Callable[[Any], None]] = {
            PersistElectionState: disk.persist,
            ClearRecovering: disk.clear_recovering,
            Append: disk.append,
            AppendLeaderChange: disk.append_leader_change,
            Truncate: disk.truncate,
            Send: self._send,
            Respond: pending.respond,
            RespondFetch: pending.respond_fetch,
            ServeSnapshot: pending.serve_snapshot,
            Reconnect: self._reconnect,
            SetTimer: self._set_timer,
            FetchSnapshot: self._fetch_snapshot,
            AbandonSnapshot: self._abandon_snapshot,
            InstallSnapshot: self._install_snapshot,
            Committed: self._on_committed,
            Lead: notifications.lead,
            StepDown: notifications.step_down,
            Accepted: notifications.accepted,
            Refused: notifications.refused,
            ReadReady: notifications.read_ready,
            ReadRefused: notifications.read_refused,
            Transition: notifications.transition,
            PeerFault: notifications.peer_fault,
            InDoubt: self._on_in_doubt,
            ForkReported: notifications.fork_reported,
            ShutdownReady: self._on_shutdown_ready,
        }
        assert set(table) == set(get_args(Effect)), "an effect without a handler"
        return table

    # --- the network ----------------------------------------------------------------------------

    def _send(self, effect: Send) -> None:
        assert self.links is not None, f"{self.name} has no links"
        self.links.send(effect.peer, effect.request_id, effect.request)

    def _reconnect(self, effect: Reconnect) -> None:
        assert self.links is not None, f"{self.name} has no links"
        self.links.reconnect(effect.peer)

    # --- forks ----------------------------------------------------------------------------------

    def _on_committed(self, effect: Committed) -> None:
        self.disk.note_committed(effect.high_watermark)
        self.notifications.committed(effect)

    def _on_in_doubt(self, effect: InDoubt) -> None:
        """Stop serving this group because of a fork, and record the fork for the next start."""
        self.doubt = describe_doubt(effect.fork, self.storage.directory, self.quorum)
        self.disk.mark_doubt(self.doubt)
        self._stop_in_doubt()

    def _stop_in_doubt(self) -> None:
        """Log the fork, and keep the log's start so that operators can compare the logs."""
        if self.log_start is not None:
            self.log_start.close()
        log.critical("node=%d group=%s in_doubt=%s", self.node_id, self.name, self.doubt)

    def report_fork(self, applied: OffsetAndEpoch, log_epoch: Epoch) -> None:
        """Report to the Raft core that the log contradicts a state machine's records."""
        contradiction = StateContradicts(applied, log_epoch)
        if self._started:
            self.post(contradiction)
        else:
            self._found_before_start.append(contradiction)

    # --- time, and the rest ---------------------------------------------------------------------

    def _set_timer(self, effect: SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = effect.at_ms - time.monotonic_ns() // 1_000_000
        self._timer = self._loop.call_later(max(0, delay_ms) / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.post(Tick())

    def _fetch_snapshot(self, effect: FetchSnapshot) -> None:
        """Fetch a snapshot from the leader, or report failure if this node keeps no snapshots."""
        if self.fetcher is None:
            log.error(
                "node=%d group=%s action=fetch_snapshot snapshot=%s error=unsupported",
                self.node_id, self.name, effect.snapshot_id,
            )  # fmt: skip
            self.post(SnapshotFailed(effect.snapshot_id))
        else:
            self.fetcher.fetch(effect)

    def _abandon_snapshot(self, effect: AbandonSnapshot) -> None:
        if self.fetcher is not None:
            self.fetcher.abandon(effect.snapshot_id)

    def _install_snapshot(self, effect: InstallSnapshot) -> None:
        """Reset the log to a snapshot's end and notify the watchers, which load the snapshot."""
        snapshot_id = effect.snapshot_id
        self.pending_requests.release_held()
        self.disk.install(effect, lambda: self.notifications.snapshot(snapshot_id))

    def _on_shutdown_ready(self, _: ShutdownReady) -> None:
        if not self._shutdown_ready.done():
            self._shutdown_ready.set_result(None)
