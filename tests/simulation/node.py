"""A process of the simulated quorum: the driver of one `Quorum`.

The driver is the production one's contract (`raft.core.events`) on simulated things: the real
`Quorum`, the real `Log` and election state on a simulated disk, messages over simulated
connections. It decides nothing that the core decides.

This file has its life: starting, stopping, events in and effects out, time, and what is told to the
state machine's side. `disk_work` and `links` have the rest, `machine` what outlives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

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
    AppendDurable,
    ConnectionClosed,
    ElectionStateDurable,
    Event,
    Propose,
    Read,
    Received,
    Start,
    Tick,
)
from raft.core.roles import ElectionState
from raft.core.voters import ReplicaKey, VoterSetHistory
from raft.segments.errors import CorruptLogError, DiskFullError, FlushFailedError, StorageError
from raft.segments.properties import QuorumState, read_quorum_state
from records.types import Epoch, Offset
from tests.simulation.disk import PowerLoss
from tests.simulation.disk_work import DiskWork
from tests.simulation.downloading import Downloading
from tests.simulation.hosting import Hosting
from tests.simulation.links import Links
from tests.simulation.machine import CLUSTER_ID, DIRECTORY, RECOVERING_MARK, Killed, Machine
from tests.simulation.part import Job
from tests.simulation.snapshot_stores import Shelving

if TYPE_CHECKING:
    from tests.simulation.client import Client


class Pending(NamedTuple):
    """A proposal that was appended and is not yet known to be committed."""

    token: object
    epoch: Epoch
    base_offset: Offset
    end_offset: Offset


class Process(DiskWork, Links, Shelving, Downloading, Hosting):
    """One life of a node: the driver of one `Quorum`."""

    def __init__(self, machine: Machine) -> None:
        DiskWork.__init__(self)
        Links.__init__(self)
        Shelving.__init__(self)
        Downloading.__init__(self)
        Hosting.__init__(self)
        self.machine = machine
        self.node_id = machine.node_id
        self.alive = True
        self.shared = machine.shared
        self.checker = machine.shared.checker
        self.seen_epoch = 0
        self.seen_high_watermark = 0
        self.lead_epoch: Epoch | None = None
        self.applied = Offset(0)
        self._queue: deque[Event | Job] = deque()
        self._inbox: list[Event | Job] | None = None  # while paused
        self._busy = False
        self._timer = 0
        self._timer_ms: int | None = None
        self.pending: deque[Pending] = deque()
        self._carry_out: dict[type[Effect], Callable[[Any], None]] = {
            effect: getattr(self, name) for effect, name in _CARRY_OUT.items()
        }

    def __repr__(self) -> str:
        return repr(self.machine)

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open what is on the disk and begin."""
        machine, shared = self.machine, self.shared
        disk = machine.disk
        self.log = shared.log_class.open(
            disk, DIRECTORY, shared.log_config, clock=machine.clock.seconds
        )
        recovering = disk.exists(DIRECTORY / RECOVERING_MARK)
        if recovering:
            self.log.forget_floor()
        stored = read_quorum_state(disk, DIRECTORY) or QuorumState(epoch=Epoch(0))
        voted = None
        if stored.voted_id is not None:
            voted = ReplicaKey(stored.voted_id, stored.voted_directory_id or UUID(int=0))
        election = ElectionState(epoch=stored.epoch, leader_id=stored.leader_id, voted=voted)
        self.checker.recovered(
            self.node_id,
            self.log.log_start_offset,
            machine.stored(self.log),
            lost_power=machine.lost_power,
        )
        self.checker.floor_found(self.node_id, self.log.floor)
        machine.lost_power = False
        machine.election = election
        self.open_shelf()
        self.quorum = shared.quorum_class(
            identity=machine.identity,
            cluster_id=CLUSTER_ID,
            voters=VoterSetHistory(shared.voters),
            log=self.geometry(),
            election=election,
            random=Random(machine.random.getrandbits(64)),
            config=shared.config,
            recovering=recovering,
        )
        self.handle(Start())
        if self.alive:
            self.guard(self.begin_hosting)
            self.job(self.look)

    def stop(self) -> None:
        """The process is no more; what it was doing stays undone."""
        self.keep_state()
        self.alive = False
        self._queue.clear()
        self._inbox = None

    def pause(self) -> None:
        """SIGSTOP: the kernel goes on accepting, sending and flushing."""
        if self._inbox is None:
            self._inbox = []

    def resume(self) -> None:
        """SIGCONT: everything that happened meanwhile happens now.

        In order within a connection, but nobody says which socket, timer or thread is looked at
        first: that is drawn.
        """
        inbox, self._inbox = self._inbox or [], None
        sources: dict[object, deque[Event | Job]] = {}
        for event in inbox:
            sources.setdefault(_source(event), deque()).append(event)
        waiting = list(sources.values())
        while waiting:
            source = self.machine.random.choice(waiting)
            self.handle(source.popleft())
            if not source:
                waiting.remove(source)

    @property
    def paused(self) -> bool:
        return self._inbox is not None

    def guard(self, action: Callable[..., None], *args: object) -> None:
        """Carry out something that the machine may not survive."""
        try:
            action(*args)
        except PowerLoss:
            self.machine.power_off()
        except Killed:
            self.machine.kill()
        except CorruptLogError:
            if not self.machine.damaged:
                raise
            self.checker.rare["damaged disks replaced"] += 1
            self.machine.lose_disk()
        except FlushFailedError:
            self.checker.rare["failed flushes"] += 1
            self.machine.kill()
        except DiskFullError:
            self.checker.rare["full disks"] += 1
            self.machine.kill()
        except (StorageError, OSError):
            self.checker.rare["failed writes"] += 1
            self.machine.kill()

    # -- events and effects ------------------------------------------------------------------------

    def handle(self, event: Event | Job) -> None:
        """Something happened; now, or once the process runs again."""
        if not self.alive:
            return
        if self._inbox is not None:
            self._inbox.append(event)
            return
        self._queue.append(event)
        if not self._busy:
            self._busy = True
            self.guard(self._drain)
            self._busy = False

    def _drain(self) -> None:
        queue, machine, world = self._queue, self.machine, self.shared.world
        carry_out, ambush_one_in = self._carry_out, self.shared.ambush_one_in
        ambushed = self.shared.ambushed
        while queue:
            event = queue.popleft()
            if type(event) is Job:
                event.action(*event.args)
                if not self.alive:
                    return
                continue
            if world.trace is not None:
                world.note(self, event)
            effects = self.quorum.step(event, machine.clock.now_ms())
            self.checker.after_step(self)
            for effect in effects:
                if machine.killed_after is not None or machine.power_after is not None:
                    self._near_death()
                carry_out[type(effect)](effect)
                if not self.alive:
                    return
                if ambush_one_in and type(effect) in ambushed and not self.shared.over():
                    self._ambush(ambush_one_in)

    def _ambush(self, one_in: int) -> None:
        """Something rare was done: a good moment to die, or soon after."""
        random = self.machine.random
        if random.random() * one_in < 1:
            after = random.randrange(self.shared.ambush_within)
            if random.random() < 0.5:
                self.machine.killed_after = after
            else:
                self.machine.power_after = after

    def _near_death(self) -> None:
        machine = self.machine
        if machine.killed_after is not None:
            machine.killed_after -= 1
            if machine.killed_after < 0:
                raise Killed
        if machine.power_after is not None:
            machine.power_after -= 1
            if machine.power_after < 0:
                raise PowerLoss

    # -- time --------------------------------------------------------------------------------------

    def _on_set_timer(self, effect: SetTimer) -> None:
        self._timer_ms = effect.at_ms
        self._arm()

    def _arm(self) -> None:
        if self._timer_ms is not None:
            self._timer += 1
            at_us = self.machine.clock.world_us(self._timer_ms)
            self.shared.world.at(at_us, self._tick, self._timer)

    def _tick(self, number: int) -> None:
        if self.alive and number == self._timer:
            self._timer_ms = None
            self.handle(Tick())

    def clock_jumped(self) -> None:
        """The timer comes sooner now."""
        self._arm()

    # -- the state machine's side ------------------------------------------------------------------

    def _on_committed(self, effect: Committed) -> None:
        high_watermark = effect.high_watermark
        news = max(self.applied, Offset(self.checker.committed.end))
        self.checker.committed_to(
            self.node_id,
            high_watermark,
            self.machine.stored(self.log, news, high_watermark) if news < high_watermark else (),
        )
        self.applied = high_watermark
        self.note_committed(high_watermark)
        self.tell_committed(high_watermark)
        pending = self.pending
        while pending and self._is_acknowledged(pending[0], high_watermark):
            self._client.acknowledged(self, pending.popleft())

    def _is_acknowledged(self, pending: Pending, high_watermark: Offset) -> bool:
        """Committed in the epoch it was appended in; a later leader's records are not ours."""
        return pending.end_offset <= high_watermark and pending.epoch == self.quorum.epoch

    @property
    def _client(self) -> Client:
        assert self.machine.client is not None, "a cluster without a client"
        return self.machine.client

    def _on_lead(self, effect: Lead) -> None:
        self.lead_epoch = effect.epoch

    def _on_step_down(self, effect: StepDown) -> None:
        assert self.lead_epoch == effect.epoch, f"{self}: {self.lead_epoch}, {effect}"
        self.lead_epoch = None
        self.pending.clear()  # outcome unknown

    def _on_accepted(self, effect: Accepted) -> None:
        self._client.accepted(effect)
        self.pending.append(Pending(*effect))

    def _on_refused(self, effect: Refused) -> None:
        self._client.refused(effect)

    def _on_read_ready(self, effect: ReadReady) -> None:
        assert effect.offset <= self.applied, f"{self}: {effect}, applied {self.applied}"
        self._client.read(effect)

    def _on_read_refused(self, effect: ReadRefused) -> None:
        self._client.read_refused(effect)

    def _on_transition(self, effect: Transition) -> None:
        if self.shared.world.trace is not None:
            self.shared.world.note(self, f"{effect.new} ({effect.reason})")
        self.checker.transition(self, effect)

    def _on_peer_fault(self, effect: PeerFault) -> None:
        self.checker.rare["peer faults"] += 1
        self.shared.world.note(self, effect)

    def _on_in_doubt(self, effect: InDoubt) -> None:
        raise AssertionError(f"{self} is in doubt without an old disk: {effect.fork}")

    def _on_fork_reported(self, effect: ForkReported) -> None:
        raise AssertionError(f"{self} hears of a fork without an old disk: {effect}")

    def _on_shutdown_ready(self, _: ShutdownReady) -> None:
        self.checker.rare["clean shutdowns"] += 1
        self.log.close()
        self.checker.flushed(self.node_id, self.log.log_end_offset)
        raise Killed


def _source(event: Event | Job) -> object:
    """Where an event comes from: two of one source keep their order."""
    match event:
        case Received(connection) | ConnectionClosed(connection):
            return connection
        case Read() | Propose():
            return id(event)  # clients are many
        case _:
            return type(event) in (AppendDurable, ElectionStateDurable), type(event) is Tick


RARE: Final = (
    AppendLeaderChange,
    ClearRecovering,
    FetchSnapshot,
    InstallSnapshot,
    PersistElectionState,
    Truncate,
)
"""Effects after which it is interesting to die."""

_CARRY_OUT: Final[dict[type[Effect], str]] = {
    PersistElectionState: "_on_persist",
    ClearRecovering: "_on_clear_recovering",
    Append: "_on_append",
    AppendLeaderChange: "_on_append_leader_change",
    Truncate: "_on_truncate",
    Send: "_on_send",
    Respond: "_on_respond",
    RespondFetch: "_on_respond_fetch",
    Reconnect: "_on_reconnect",
    SetTimer: "_on_set_timer",
    Committed: "_on_committed",
    Lead: "_on_lead",
    StepDown: "_on_step_down",
    Accepted: "_on_accepted",
    Refused: "_on_refused",
    ReadReady: "_on_read_ready",
    ReadRefused: "_on_read_refused",
    Transition: "_on_transition",
    PeerFault: "_on_peer_fault",
    InDoubt: "_on_in_doubt",
    ForkReported: "_on_fork_reported",
    ShutdownReady: "_on_shutdown_ready",
    ServeSnapshot: "_on_serve_snapshot",
    FetchSnapshot: "_on_fetch_snapshot",
    AbandonSnapshot: "_on_abandon_snapshot",
    InstallSnapshot: "_on_install_snapshot",
}
"""How each effect is carried out."""
