"""One group's driver: it feeds the core events and carries out its effects, in order.

`GroupDriver` is the quorum's `raft.interfaces.ReplicatedLog`.

Events are stepped as they happen; only proposals are collected, until the end of the turn of the
loop. So all proposals of a turn are one event, one write, one flush, and one answer to each waiting
follower: group commit at every hop, without any linger.

Two effects must be over before the next one is begun and yet must not hold up the loop: cutting the
log, and emptying it. They run in the group's disk thread while the group stands still; events wait.

Source: `raft.core.events` (what a driver owes the core); DESIGN §5.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

from raft.core.effects import (
    AbandonSnapshot,
    Accepted,
    Append,
    AppendLeaderChange,
    ClearRecovering,
    Committed,
    Effect,
    FetchSnapshot,
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
from raft.core.errors import ErrorCode
from raft.core.events import (
    AppendDurable,
    ConnectionClosed,
    ElectionStateDurable,
    Event,
    Proposal,
    Propose,
    Read,
    Received,
    Resign,
    Shutdown,
    SnapshotFailed,
    Start,
    Tick,
)
from raft.core.messages import (
    FetchResponse,
    FetchSnapshotResponse,
    Request,
)
from raft.core.quorum import Quorum
from raft.core.voters import Endpoint
from raft.driver.answers import Asked
from raft.driver.disk import DiskThread
from raft.driver.drafts import new_batch, place
from raft.driver.storage import Storage
from raft.interfaces import Draft, NotLeaderError, Ticket, Watcher
from raft.wire import Answering, Group, GroupRef, write_response
from raft.wire_fetch import FetchForm, refuse_fetch_snapshot, write_fetch_response
from records.batch_writer import build_control_batch
from records.compression import Buffer
from records.control import LeaderChangeMessage, Voter
from records.frame import encode_control_record
from records.rpc import fetch as fetch_rpc
from records.types import Epoch, NodeId, Offset

log = logging.getLogger("raft.driver")

FAULT_LINES_PER_SECOND: Final = 5
HOLD_S: Final = 0.001  # the longest that news of the high watermark waits for records to go with it
RECORD_AFTER_S: Final = 1.0  # the recovery point lags the flushed end by no more than about this
_LEADER_CHANGE: Final = 2


class ReadTicket(Protocol):
    """Who asked for a linearizable read."""

    def __hash__(self) -> int: ...

    def ready(self, offset: Offset) -> None:
        """Answer from state that holds everything below `offset`."""

    def refused(self, error: ErrorCode) -> None:
        """Ask the leader."""


class _BarrierTicket:
    """A read whose outcome is a future."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Offset]) -> None:
        self.future = future

    def ready(self, offset: Offset) -> None:
        if not self.future.done():
            self.future.set_result(offset)

    def refused(self, error: ErrorCode) -> None:
        if not self.future.done():
            self.future.set_exception(NotLeaderError(error))


class Links(Protocol):
    """The group's connections to its peers."""

    def send(self, peer: NodeId, request_id: int, request: Request) -> None: ...

    def reconnect(self, peer: NodeId) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Counters:
    """What metrics ask for; only ever grows, except for the latencies, which are taken away."""

    appended_records: int = 0
    fetched_records: int = 0
    commit_latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    elections: int = 0
    election_latency_ms: float = 0.0
    peer_faults: int = 0
    busy_s: float = 0.0


class GroupDriver:
    """A running group. Everything here belongs to the event loop."""

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
        """A group that stands still until `start`.

        Args:    endpoints: where a voter listens, for answers that name the leader.
        """
        self.node_id = node_id
        self.group = group
        self.quorum = quorum
        self.storage = storage
        self.disk = disk
        self.links: Links | None = None
        self.watchers: list[Watcher] = []
        self.on_turn: list[Callable[[], None]] = []  # last chance to propose in this turn
        self.counters = Counters()
        self.leading_epoch: Epoch | None = None  # between `Lead` and `StepDown`
        self.recovering_cleared: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._endpoints = endpoints
        self._on_fatal = on_fatal
        self._events: deque[Event] = deque()
        self._stepping = False
        self._proposals: list[Proposal] = []
        self._effects: deque[Effect] = deque()
        self._run_due = False
        self._paused = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._asked: dict[int, dict[int, Asked]] = {}  # by connection, then correlation
        self._correlations = count(1)
        self._flushing = False
        self._flush_due = False
        self._recording: asyncio.TimerHandle | None = None
        self._held: list[tuple[RespondFetch, Asked]] = []
        self._hold_timer: asyncio.TimerHandle | None = None
        self._reads = 0  # asked, and neither ready nor refused
        self._generation = quorum.log.generation
        self._persisting = False
        self._persist_next: PersistElectionState | None = None
        self._uncommitted: deque[tuple[Offset, float]] = deque()
        self._campaign_began: float | None = None
        self._fault_second = 0
        self._fault_lines = 0
        self._shutdown_ready = self._loop.create_future()

    # --- asked by others ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """`topic-partition`."""
        return self.group.name

    @property
    def leader_id(self) -> NodeId | None:
        """The leader as far as we know."""
        return self.quorum.leader_id

    @property
    def high_watermark(self) -> Offset | None:
        """Everything below it is committed; None until a leader has told."""
        return self.quorum.log.high_watermark

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        return self.storage.log.log_start_offset

    @property
    def end_offset(self) -> Offset:
        """The end of the log, committed or not."""
        return self.quorum.log.end_offset

    def start(self) -> None:
        """Begin to live. `links` must be set."""
        assert self.links is not None, f"{self.name} has no links"
        self.post(Start())

    def post(self, event: Event) -> None:
        """Let the core know: now, or once it has carried out what it is at."""
        self._events.append(event)
        self._step_all()

    def propose(self, ticket: Ticket, epoch: Epoch, draft: Draft, *,
                expected_end_offset: Offset | None = None) -> None:  # fmt: skip
        """Ask for a draft to be appended under the leadership of `epoch`."""
        proposal = Proposal(ticket, epoch, expected_end_offset, (new_batch(draft),))
        self._proposals.append(proposal)
        self.wake()

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` from now on; first what is true already."""
        self.watchers.append(watcher)
        if self.high_watermark is not None:
            watcher.committed(self.high_watermark)
        if self.leading_epoch is not None:
            watcher.lead(self.leading_epoch)

    def read(self, from_offset: Offset, max_bytes: int) -> Buffer:
        """Committed batches from the one that holds `from_offset` on; nothing at the watermark.

        Raises:  ValueError below the start of the log or above the high watermark.
        """
        end_offset = self.high_watermark or self.start_offset
        if not self.start_offset <= from_offset <= end_offset:
            raise ValueError(f"{from_offset} is outside {self.start_offset}..{end_offset}")
        return self.storage.read_bytes(from_offset, end_offset, max_bytes)

    def ask_read(self, ticket: ReadTicket) -> None:
        """Ask for a linearizable read."""
        self._reads += 1
        if self._held:
            self._release_held()
        self.post(Read(ticket))

    def barrier(self) -> asyncio.Future[Offset]:
        """As `ask_read`, for code that awaits: the offset below which all must be applied.

        Raises:  NotLeaderError from the future.
        """
        ticket = _BarrierTicket(self._loop.create_future())
        self.ask_read(ticket)
        return ticket.future

    def resign(self) -> None:
        """Give up leadership, if we have it."""
        self.post(Resign())

    def receive(self, connection: int, asked: Asked, request: Request) -> None:
        """A request for this group came in."""
        correlation = next(self._correlations)
        self._asked.setdefault(connection, {})[correlation] = asked
        self.post(Received(connection, correlation, request))

    def connection_closed(self, connection: int) -> None:
        """Nothing need be answered on it any more."""
        if self._asked.pop(connection, None) is not None:
            self.post(ConnectionClosed(connection))

    async def stop(self, timeout_ms: int) -> None:
        """Hand leadership over, let the disk finish, close."""
        self.post(Shutdown())
        done, _ = await asyncio.wait((self._shutdown_ready,), timeout=timeout_ms / 1_000)
        if not done:
            log.warning("node=%d group=%s handed_over=no", self.node_id, self.name)
        self._stopped = True
        for timer in (self._timer, self._recording, self._hold_timer):
            if timer is not None:
                timer.cancel()
        if self.links is not None:
            self.links.close()
        await self.disk.run(self.storage.close)
        await self.disk.close()

    # --- the turn -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Take in proposals at the end of this turn of the loop; `on_turn` is called first."""
        if not self._run_due:
            self._run_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """All that was proposed in this turn is one event."""
        self._run_due = False
        if self._stopped or self._paused:
            return
        for gather in self.on_turn:
            gather()
        if self._proposals:
            proposals, self._proposals = tuple(self._proposals), []
            self._events.append(Propose(proposals))
        self._step_all()

    def _step_all(self) -> None:
        """Step what happened, carry out what the core asks for, until nothing is left.

        Called from inside an effect (or while the group stands still), it leaves that to whoever is
        at it: the core is never stepped from within itself.
        """
        if self._stepping or self._paused or self._stopped:
            return
        self._stepping = True
        began = time.perf_counter()
        now_ms = time.monotonic_ns() // 1_000_000
        step, effects = self.quorum.step, self._effects
        try:
            self._carry_out()  # what a pause left over
            while self._events and not self._paused:
                effects.extend(step(self._events.popleft(), now_ms))
                self._carry_out()
        except BaseException as error:
            self._stopped = True
            self._on_fatal(error)
        self._stepping = False
        self.counters.busy_s += time.perf_counter() - began

    def _carry_out(self) -> None:
        effects = self._effects
        while effects and not self._paused:
            effect = effects.popleft()
            _CARRY_OUT[type(effect)](self, effect)

    def _resume(self) -> None:
        self._paused = False
        self._step_all()
        self.wake()

    # --- the disk -------------------------------------------------------------------------------

    def _persist(self, effect: PersistElectionState) -> None:
        self._persist_next = effect
        if not self._persisting:
            self._persist_newest()

    def _persist_newest(self) -> None:
        effect, self._persist_next = self._persist_next, None
        assert effect is not None, f"{self.name}: no election state to write"
        self._persisting = True
        storage, state = self.storage, effect.state

        def done(_: None) -> None:
            self._persisting = False
            self.post(ElectionStateDurable(effect.sequence))
            if self._persist_next is not None:
                self._persist_newest()

        self.disk.submit(lambda: storage.persist(state), done)

    def _append(self, effect: Append) -> None:
        batches = effect.batches
        pieces = [
            place(batch.data, batch.base_offset, batch.epoch)
            if type(batch.data) is Draft
            else _bytes_of(batch.data)
            for batch in batches
        ]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        base_offset, end_offset = batches[0].base_offset, batches[-1].end_offset
        self.storage.append(data, base_offset, end_offset)
        if type(batches[0].data) is not Draft:
            self.counters.fetched_records += end_offset - base_offset
        self._appended(effect.generation, end_offset - base_offset)

    def _append_leader_change(self, effect: AppendLeaderChange) -> None:
        message = LeaderChangeMessage(
            leader_id=effect.leader_id,
            voters=tuple(Voter(voter_id=node) for node in effect.voters),
            granting_voters=tuple(Voter(voter_id=node) for node in effect.granting_voters),
        )
        _, value = encode_control_record(message)
        data = build_control_batch(
            [(_LEADER_CHANGE, value)],
            base_offset=effect.base_offset,
            leader_epoch=effect.epoch,
            timestamp=time.time_ns() // 1_000_000,
        )
        self.storage.append(data, effect.base_offset, Offset(effect.base_offset + 1))
        self._appended(effect.generation, 1)

    def _appended(self, generation: int, record_count: int) -> None:
        self._generation = generation
        self.counters.appended_records += record_count
        if self._held:
            self._release_held()
        if self._flushing:
            self._flush_due = True
        else:
            self._flush()

    def _flush(self) -> None:
        """Begin a flush; what is appended meanwhile shares the next one."""
        self._flushing = True
        self._flush_due = False
        generation = self._generation

        def done(end_offset: Offset) -> None:
            self._flushing = False
            self.post(AppendDurable(end_offset, generation))
            if self._flush_due and not self._flushing:
                self._flush()
            elif self._recording is None and not self._stopped:
                self._recording = self._loop.call_later(RECORD_AFTER_S, self._record)

        self.disk.submit(self.storage.flush, done)

    def _record(self) -> None:
        """A second after a flush, what was flushed is durably known to be. DESIGN §5."""
        self._recording = None
        if not self._stopped:
            self.disk.submit(self.storage.log.record_recovery_point, lambda _: None)

    def _truncate(self, effect: Truncate) -> None:
        self._paused = True
        self._generation = effect.generation
        log.info(
            "node=%d group=%s action=truncate end_offset=%d was=%d",
            self.node_id, self.name, effect.end_offset, self.storage.log.log_end_offset,
        )  # fmt: skip
        end_offset = effect.end_offset
        self.disk.submit(lambda: self.storage.truncate(end_offset), lambda _: self._resume())

    def _install_snapshot(self, effect: InstallSnapshot) -> None:
        raise AssertionError(f"{self.name}: no snapshot was ever reported fetched: {effect}")

    def _clear_recovering(self, _: ClearRecovering) -> None:
        def done(_: None) -> None:
            if self.recovering_cleared is not None:
                self.recovering_cleared()

        self.disk.submit(self.storage.clear_recovering, done)

    # --- the network ----------------------------------------------------------------------------

    def _send(self, effect: Send) -> None:
        assert self.links is not None, f"{self.name} has no links"
        self.links.send(effect.peer, effect.request_id, effect.request)

    def _reconnect(self, effect: Reconnect) -> None:
        assert self.links is not None, f"{self.name} has no links"
        self.links.reconnect(effect.peer)

    def _take_asked(self, connection: int, correlation: int) -> Asked | None:
        """The request to be answered; None if its connection is gone."""
        asked = self._asked.get(connection)
        return asked.pop(correlation, None) if asked is not None else None

    def _answering(self, leader_id: NodeId | None) -> Answering:
        endpoint = None if leader_id is None else self._endpoints(leader_id)
        return Answering(self.group, endpoint)

    def _respond(self, effect: Respond) -> None:
        asked = self._take_asked(effect.connection, effect.correlation)
        if asked is None:
            return
        response = effect.response
        to = self._answering(response.leader_id)
        if isinstance(response, FetchResponse):
            form = asked.form or FetchForm(self.group.topic, self.group.topic_id)
            asked.answer(write_fetch_response(response, to, form))
        elif isinstance(response, FetchSnapshotResponse):
            self._refuse_snapshot(asked, response.error, response.leader_id, response.epoch)
        else:
            wall_ms = time.time_ns() // 1_000_000
            voters = [(v, self.quorum.voters.voter(v).endpoints) for v in self.quorum.voters]
            to = to._replace(
                clock_offset_ms=wall_ms - time.monotonic_ns() // 1_000_000, voter_endpoints=voters
            )
            asked.answer(write_response(response, to))

    def _respond_fetch(self, effect: RespondFetch) -> None:
        asked = self._take_asked(effect.connection, effect.correlation)
        if asked is None:
            return
        if effect.from_offset == effect.end_offset and not self._reads:
            self._hold(effect, asked)
        else:
            self._send_log(effect, asked, effect.end_offset)

    def _send_log(self, effect: RespondFetch, asked: Asked, end_offset: Offset) -> None:
        data = self.storage.read_bytes(effect.from_offset, end_offset, effect.max_bytes)
        form = asked.form or FetchForm(self.group.topic, self.group.topic_id)
        to = self._answering(self.node_id)
        asked.answer(write_fetch_response(effect.response, to, form, memoryview(data)))

    def _hold(self, effect: RespondFetch, asked: Asked) -> None:
        """An answer without records, usually of a new high watermark: nobody waits for it.

        Under load records follow at once, and one answer can carry both: half as many exchanges,
        and the records need not wait for the next Fetch. So it leaves with the next append, or a
        moment later; at once if a read waits for a round, for such an answer is what confirms it.
        """
        self._held.append((effect, asked))
        if self._hold_timer is None:
            self._hold_timer = self._loop.call_later(HOLD_S, self._release_held)

    def _release_held(self) -> None:
        """Answer what is held, with what the log has by now. Still in the epoch of the answer."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        held, self._held = self._held, []
        end_offset = self.storage.log.log_end_offset
        for effect, asked in held:
            self._send_log(effect, asked, end_offset)

    def _serve_snapshot(self, effect: ServeSnapshot) -> None:
        """There are no snapshots to serve yet."""
        asked = self._take_asked(effect.connection, effect.correlation)
        if asked is not None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
            self._refuse_snapshot(asked, error, self.quorum.leader_id, self.quorum.epoch)

    def _refuse_snapshot(
        self, asked: Asked, error: ErrorCode, leader_id: NodeId | None, epoch: Epoch
    ) -> None:
        assert isinstance(asked.message, fetch_rpc.FetchSnapshotRequest), f"no snapshot: {asked}"
        ref = GroupRef(self.group.topic, self.group.partition)
        asked.answer(
            refuse_fetch_snapshot(
                asked.message, ref, error, leader_id=leader_id, epoch=epoch,
                to=self._answering(leader_id),
            )
        )  # fmt: skip

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
        """Nobody fetches snapshots yet: say so, and the core tries the log again later."""
        log.error(
            "node=%d group=%s action=fetch_snapshot snapshot=%s error=unsupported",
            self.node_id, self.name, effect.snapshot_id,
        )  # fmt: skip
        self.post(SnapshotFailed(effect.snapshot_id))

    def _abandon_snapshot(self, _: AbandonSnapshot) -> None:
        """Nothing was being fetched."""

    def _committed(self, effect: Committed) -> None:
        high_watermark = effect.high_watermark
        latencies, now = self.counters.commit_latencies_ms, time.monotonic()
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            _, began = self._uncommitted.popleft()
            latencies.append((now - began) * 1_000)
        for watcher in self.watchers:
            watcher.committed(high_watermark)

    def _lead(self, effect: Lead) -> None:
        self.leading_epoch = effect.epoch
        for watcher in self.watchers:
            watcher.lead(effect.epoch)

    def _step_down(self, effect: StepDown) -> None:
        self.leading_epoch = None
        self._uncommitted.clear()
        for watcher in self.watchers:
            watcher.step_down(effect.epoch)

    def _accepted(self, effect: Accepted) -> None:
        self._uncommitted.append((effect.end_offset, time.monotonic()))
        ticket: Ticket = effect.token  # type: ignore[assignment]
        ticket.accepted(effect.epoch, effect.base_offset, effect.end_offset)

    def _refused(self, effect: Refused) -> None:
        ticket: Ticket = effect.token  # type: ignore[assignment]
        ticket.refused(effect.error)

    def _read_ready(self, effect: ReadReady) -> None:
        self._reads -= 1
        ticket: ReadTicket = effect.token  # type: ignore[assignment]
        ticket.ready(effect.offset)

    def _read_refused(self, effect: ReadRefused) -> None:
        self._reads -= 1
        ticket: ReadTicket = effect.token  # type: ignore[assignment]
        ticket.refused(effect.error)

    def _transition(self, effect: Transition) -> None:
        """One line for every change of state, and the length of elections."""
        if self._held:
            self._release_held()  # while the log still ends in the epoch they were answered in
        role = type(effect.new).__name__.lower()
        leader_id = self.quorum.leader_id
        leader = "" if leader_id is None else f" leader={leader_id}"
        log.info(
            "node=%d group=%s role=%s epoch=%d%s reason=%s",
            self.node_id, self.name, role, effect.new.epoch, leader,
            effect.reason.replace(" ", "_"),
        )  # fmt: skip
        if role in ("prospective", "candidate"):
            self._campaign_began = self._campaign_began or time.monotonic()
        elif role in ("leader", "follower") and self._campaign_began is not None:
            self.counters.elections += 1
            self.counters.election_latency_ms += (time.monotonic() - self._campaign_began) * 1_000
            self._campaign_began = None

    def _peer_fault(self, effect: PeerFault) -> None:
        """Counted always, logged a few times a second at most."""
        self.counters.peer_faults += 1
        second = int(time.monotonic())
        if second != self._fault_second:
            self._fault_second, self._fault_lines = second, 0
        self._fault_lines += 1
        if self._fault_lines <= FAULT_LINES_PER_SECOND:
            peer = "unknown" if effect.peer is None else effect.peer
            log.warning(
                "node=%d group=%s peer=%s fault=%r",
                self.node_id, self.name, peer, effect.reason[:500],
            )  # fmt: skip

    def _on_shutdown_ready(self, _: ShutdownReady) -> None:
        if not self._shutdown_ready.done():
            self._shutdown_ready.set_result(None)


def _bytes_of(data: object) -> memoryview:
    assert isinstance(data, memoryview), f"a follower's batch without bytes: {data!r}"
    return data


_CARRY_OUT: Final[dict[type[Effect], Callable[[GroupDriver, Any], None]]] = {
    PersistElectionState: GroupDriver._persist,
    ClearRecovering: GroupDriver._clear_recovering,
    Append: GroupDriver._append,
    AppendLeaderChange: GroupDriver._append_leader_change,
    Truncate: GroupDriver._truncate,
    Send: GroupDriver._send,
    Respond: GroupDriver._respond,
    RespondFetch: GroupDriver._respond_fetch,
    ServeSnapshot: GroupDriver._serve_snapshot,
    Reconnect: GroupDriver._reconnect,
    SetTimer: GroupDriver._set_timer,
    FetchSnapshot: GroupDriver._fetch_snapshot,
    AbandonSnapshot: GroupDriver._abandon_snapshot,
    InstallSnapshot: GroupDriver._install_snapshot,
    Committed: GroupDriver._committed,
    Lead: GroupDriver._lead,
    StepDown: GroupDriver._step_down,
    Accepted: GroupDriver._accepted,
    Refused: GroupDriver._refused,
    ReadReady: GroupDriver._read_ready,
    ReadRefused: GroupDriver._read_refused,
    Transition: GroupDriver._transition,
    PeerFault: GroupDriver._peer_fault,
    ShutdownReady: GroupDriver._on_shutdown_ready,
}
"""Which method carries out which effect; `tests/driver` checks that none is missing."""
