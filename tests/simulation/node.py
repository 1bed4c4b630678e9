"""A node of the simulated quorum: a machine that outlives its processes, and their driver.

The driver is the production one's contract (`raft.core.events`) on simulated things: the real
`Quorum`, the real `Log` and election state on a simulated disk, messages over simulated
connections. It decides nothing that the core decides.

Where time passes: flushes and writes of the election state run on a disk "thread", one at a time,
and end some time after they began; everything else takes no time. A machine can stop at any effect,
at any change of its disk, and in between.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from raft.core.config import QuorumConfig
from raft.core.effects import (
    Accepted,
    Append,
    AppendLeaderChange,
    ClearRecovering,
    Committed,
    Effect,
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
    PeerLost,
    PeerRefused,
    Propose,
    Read,
    Received,
    RequestFailed,
    ResponseReceived,
    Start,
    Tick,
)
from raft.core.log import EpochStart, LogState
from raft.core.messages import FetchRequest, Request, Response
from raft.core.quorum import Quorum
from raft.core.roles import ElectionState
from raft.core.voters import ReplicaKey, VoterSet, VoterSetHistory
from raft.segments.errors import CorruptLogError, DiskFullError, FlushFailedError, StorageError
from raft.segments.files import replace_file
from raft.segments.log import Log, LogConfig
from raft.segments.properties import QuorumState, read_quorum_state, write_quorum_state
from records.batch import CRC_START, Batch, ControlType, iter_batches
from records.batch_writer import build_control_batch, stamp
from records.codec import encode_message
from records.control import LeaderChangeMessage, Voter
from records.errors import RecordError
from records.types import Epoch, NodeId, Offset
from tests.simulation.checks import Checker, Ledger
from tests.simulation.disk import PowerLoss, SimulatedDisk
from tests.simulation.network import Connection, Network
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.courier import Courier

DIRECTORY: Final = Path("/log")
RECOVERING_MARK: Final = "recovering"
ORIGIN: Final = Offset(0)
CLUSTER_ID: Final = "simulated"


class Killed(Exception):
    """The process is killed here."""


class Shared(NamedTuple):
    """What all machines of one schedule have in common."""

    world: World
    network: Network
    checker: Checker
    courier: Courier
    voters: VoterSet
    config: QuorumConfig
    log_config: LogConfig
    quorum_class: type[Quorum]
    log_class: type[Log]
    process_class: type[Process]
    died: Callable[[Machine], None]
    ambush_one_in: int
    ambush_within: int
    ambushed: tuple[type[Effect], ...]
    over: Callable[[], bool]  # the storm: nobody dies by chance any more


class Clock:
    """A monotonic clock that may run fast or slow, and jump ahead."""

    __slots__ = ("_at_us", "_local_us", "_ppm", "_world")

    def __init__(self, world: World, ppm: int, start_us: int) -> None:
        self._world = world
        self._ppm = ppm
        self._at_us = world.now_us
        self._local_us = start_us

    def now_us(self) -> int:
        return self._local_us + (self._world.now_us - self._at_us) * self._ppm // 1_000_000

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def seconds(self) -> float:
        return self.now_us() / 1e6

    def jump(self, by_us: int) -> None:
        """Ahead, as after a suspended virtual machine."""
        self._local_us = self.now_us() + by_us
        self._at_us = self._world.now_us

    def world_us(self, local_ms: int) -> int:
        """When, in the world's time, this clock will show `local_ms`."""
        ahead_us = local_ms * 1000 - self.now_us()
        return self._world.now_us + max(0, -(-ahead_us * 1_000_000 // self._ppm))


class Machine:
    """What survives a process: disk, clock, identity."""

    def __init__(
        self, node_id: int, shared: Shared, random: Random, *, clock_ppm: int, clock_start_us: int
    ) -> None:
        self.node_id = node_id
        self.shared = shared
        self.random = random
        self.clock = Clock(shared.world, clock_ppm, clock_start_us)
        self.process: Process | None = None
        self.client: Client | None = None
        self.disks_lost = 0
        self.lives = 0
        self.lost_power = False
        self.damaged = False  # the disk holds other bytes than it promised to
        self.must_stay_down_us = 0  # after its disk was lost
        self.killed_after: int | None = None  # effects until the process is killed
        self.power_after: int | None = None  # effects until the power fails
        self.disk_works_until_us = 0
        self.flush_least_us, self.flush_spread_us = 100, 400
        self.election = ElectionState(epoch=Epoch(0))  # as the disk has it
        self.disk = SimulatedDisk()
        shared.network.processes[node_id] = None
        shared.network.powered[node_id] = True
        shared.checker.ledgers[node_id] = Ledger()
        self.format(recovering=False)

    def __repr__(self) -> str:
        return f"node {self.node_id}.{self.lives}"

    directory = DIRECTORY

    @property
    def identity(self) -> ReplicaKey:
        """Another disk is another directory id."""
        directory_id = UUID(int=self.node_id * 1000 + self.disks_lost + 1)
        return ReplicaKey(NodeId(self.node_id), directory_id)

    def format(self, *, recovering: bool) -> None:
        """What `storage format` does, with `--rejoin` if `recovering`."""
        self.disk.make_directory(DIRECTORY)
        if recovering:
            replace_file(self.disk, DIRECTORY / RECOVERING_MARK, b"recovering\n")
        log = self.shared.log_class.create(
            self.disk, DIRECTORY, self.shared.log_config, clock=self.clock.seconds
        )
        log.close()

    def start(self) -> None:
        """Power on if need be, and start the process."""
        if self.process is not None:
            return
        shared = self.shared
        self.lives += 1
        self.killed_after = self.power_after = None
        shared.network.powered[self.node_id] = True
        process = self.process = shared.process_class(self)
        shared.network.processes[self.node_id] = process
        shared.world.note(self, "starts")
        process.guard(process.start)

    def kill(self) -> None:
        """kill -9: the kernel lives on, with its page cache and its resets."""
        self._stop(kernel_answers=True)

    def power_off(self) -> None:
        """Power loss: what was not flushed is anyone's guess, and nobody says goodbye."""
        self._stop(kernel_answers=False)

    def lose_disk(self) -> None:
        """The process stops, its disk is replaced and formatted with --rejoin."""
        if self.process is not None:
            self.kill()
        self.disks_lost += 1
        self.damaged = False
        self.disk = SimulatedDisk()
        self.shared.checker.wiped(self.node_id)
        self.shared.checker.rare["recovering voters"] += 1
        self.election = ElectionState(epoch=Epoch(0))
        self.format(recovering=True)

    def mend(self) -> None:
        """No fault waits to happen here any more."""
        self.killed_after = self.power_after = self.disk.power_loss_at = None
        self.disk.capacity_bytes = None
        self.disk.forget_failures()

    def _stop(self, *, kernel_answers: bool) -> None:
        process = self.process
        if process is None:
            return
        self.shared.world.note(self, "is killed" if kernel_answers else "loses power")
        self.process = None
        self.shared.network.processes[self.node_id] = None
        process.stop()
        self.shared.network.process_died(process, kernel_answers=kernel_answers)
        if not kernel_answers:
            self.shared.network.powered[self.node_id] = False
            self._crash_disk()
            self.lost_power = True
        self.shared.died(self)

    def _log_files(self) -> list[Path]:
        names = self.disk.listdir(DIRECTORY)
        return [DIRECTORY / name for name in names if name.endswith(".log")]

    def batches_on_disk(self) -> list[tuple[Path, Batch]]:
        """Every sound batch of every segment, in order."""
        found: list[tuple[Path, Batch]] = []
        for path in self._log_files():
            with contextlib.suppress(RecordError):  # a torn tail
                found.extend((path, batch) for batch in iter_batches(self.disk.content(path)))
        return found

    def flip_a_bit(self, path: Path, batch: Batch, draw: int) -> None:
        """Of the bytes that its checksum covers.

        Base offset and epoch of a batch are not covered, and a wrong bit in its epoch can be wrong
        for ever, in our log as in upstream's.
        """
        covered = batch.header.size_bytes - CRC_START
        self.disk.flip_bit(path, batch.position + CRC_START + draw % covered, draw % 8)

    def _crash_disk(self) -> None:
        """Lose what was not flushed, or some of it; what survives may have a wrong bit."""
        durable = {path: self.disk.durable_bytes(path) for path in self._log_files()}
        self.disk.crash(self.random)
        if self.random.random() < 0.2:
            tail = [
                (path, batch)
                for path, batch in self.batches_on_disk()
                if batch.position >= durable.get(path, 0)
            ]
            if tail:
                self.flip_a_bit(*self.random.choice(tail), self.random.getrandbits(32))
                self.shared.checker.rare["bits flipped in the tail"] += 1

    @staticmethod
    def stored(log: Log, offset: Offset = ORIGIN, end: int | None = None) -> Iterator[Batch]:
        """A log's batches from `offset` on, as the production code reads them."""
        while (records := log.read(offset, max_bytes=1 << 20, end_offset=end)) is not None:
            yield from records.batches
            offset = records.end_offset

    def flush_us(self) -> int:
        """How long the flush that begins now takes."""
        takes_us = self.flush_least_us + int(self.random.random() * self.flush_spread_us)
        self.disk_works_until_us = self.shared.world.now_us + takes_us
        return takes_us


class Pending(NamedTuple):
    """A proposal that was appended and is not yet known to be committed."""

    token: object
    epoch: Epoch
    base_offset: Offset
    end_offset: Offset


class Process:
    """One life of a node: the driver of one `Quorum`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.node_id = machine.node_id
        self.alive = True
        self.shared = machine.shared
        self.checker = machine.shared.checker
        self.seen_epoch = 0
        self.seen_high_watermark = 0
        self.lead_epoch: Epoch | None = None
        self.applied = Offset(0)
        self._queue: deque[Event] = deque()
        self._inbox: list[Event] | None = None  # while paused
        self._busy = False
        # Connections.
        self._inbound: dict[int, Connection] = {}
        self._requests: dict[tuple[int, int], Request] = {}  # unanswered, by connection
        self._accepted = 0
        self._outbound: dict[tuple[int, bool], Connection] = {}
        self._outstanding: dict[int, Connection] = {}
        # The disk's thread.
        self._persist: PersistElectionState | None = None
        self._unflushed = False
        self._disk_works = False
        self._generation = 0
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
        stored = read_quorum_state(disk, DIRECTORY) or QuorumState(epoch=Epoch(0))
        voted = None
        if stored.voted_id is not None:
            voted = ReplicaKey(stored.voted_id, stored.voted_directory_id or UUID(int=0))
        election = ElectionState(epoch=stored.epoch, leader_id=stored.leader_id, voted=voted)
        stored = machine.stored(self.log)
        self.checker.recovered(self.node_id, stored, lost_power=machine.lost_power)
        machine.lost_power = False
        machine.election = election
        log = self.log
        self.quorum = shared.quorum_class(
            identity=machine.identity,
            cluster_id=CLUSTER_ID,
            voters=VoterSetHistory(shared.voters),
            log=LogState(
                start_offset=log.log_start_offset,
                end_offset=log.log_end_offset,
                epochs=tuple(EpochStart(epoch, start) for epoch, start in log.epochs),
            ),
            election=election,
            random=Random(machine.random.getrandbits(64)),
            config=shared.config,
            recovering=disk.exists(DIRECTORY / RECOVERING_MARK),
        )
        self.handle(Start())

    def stop(self) -> None:
        """The process is no more; what it was doing stays undone."""
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
        sources: dict[object, deque[Event]] = {}
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

    def handle(self, event: Event) -> None:
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

    # -- the disk ----------------------------------------------------------------------------------

    def _on_persist(self, effect: PersistElectionState) -> None:
        self._persist = effect
        self._work()

    def _on_clear_recovering(self, _: ClearRecovering) -> None:
        disk = self.machine.disk
        self.checker.caught_up(self.node_id)
        disk.unlink(DIRECTORY / RECOVERING_MARK)
        disk.fsync_directory(DIRECTORY)

    def _on_append(self, effect: Append) -> None:
        parts: list[bytearray | memoryview] = []
        for batch in effect.batches:
            data = batch.data
            assert isinstance(data, bytearray | memoryview), f"{self}: {batch}"
            if isinstance(data, bytearray):  # our own proposal
                stamp(data, base_offset=batch.base_offset, leader_epoch=batch.epoch)
            parts.append(data)
        self._write(b"".join(parts), effect.generation)

    def _on_append_leader_change(self, effect: AppendLeaderChange) -> None:
        self.checker.leads(self, effect.epoch)
        message = LeaderChangeMessage(
            version=0,
            leader_id=effect.leader_id,
            voters=tuple(Voter(voter_id=node) for node in effect.voters),
            granting_voters=tuple(Voter(voter_id=node) for node in effect.granting_voters),
        )
        data = build_control_batch(
            [(ControlType.LEADER_CHANGE, encode_message(message, 0))],
            base_offset=effect.base_offset,
            leader_epoch=effect.epoch,
            timestamp=0,
        )
        self._write(bytes(data), effect.generation)

    def _write(self, data: bytes, generation: int) -> None:
        self.checker.appending(self.node_id, data)
        self._generation = generation
        self.log.append(data)
        self._unflushed = True
        self._work()

    def _on_truncate(self, effect: Truncate) -> None:
        self._generation = effect.generation
        self.checker.truncating(self.node_id, effect.end_offset)
        end = self.log.truncate_to(effect.end_offset)
        assert end == effect.end_offset, f"{self}: cut at {end}, not at {effect.end_offset}"
        self.checker.truncated(self.node_id, end)

    def _work(self) -> None:
        """Give the disk's thread something to do, if it is idle."""
        if self._disk_works or not self.alive:
            return
        machine = self.machine
        if self._persist is not None:
            persist, self._persist = self._persist, None
            self._disk_works = True
            self.shared.world.after(machine.flush_us(), self._persisted, persist)
        elif self._unflushed:
            self._unflushed = False
            self._disk_works = True
            end, generation = self.log.log_end_offset, self._generation
            self.shared.world.after(machine.flush_us(), self._flushed, end, generation)

    def _persisted(self, effect: PersistElectionState) -> None:
        if self.alive:
            self.guard(self._write_election, effect)

    def _write_election(self, effect: PersistElectionState) -> None:
        state = effect.state
        write_quorum_state(
            self.machine.disk,
            DIRECTORY,
            QuorumState(
                epoch=state.epoch,
                leader_id=state.leader_id,
                voted_id=state.voted.id if state.voted else None,
                voted_directory_id=state.voted.directory_id if state.voted else None,
            ),
            version=1,
        )
        self.machine.election = state
        self._worked(ElectionStateDurable(effect.sequence))

    def _flushed(self, end: Offset, generation: int) -> None:
        if self.alive:
            self.guard(self._flush, end, generation)

    def _flush(self, end: Offset, generation: int) -> None:
        self.checker.flushed(self.node_id, self.log.flush())
        self._worked(AppendDurable(end, generation))

    def _worked(self, event: Event) -> None:
        self._disk_works = False
        self._work()
        self.handle(event)

    # -- connections, as their client --------------------------------------------------------------

    def _on_send(self, effect: Send) -> None:
        peer, request_id, request = effect
        self.checker.requests(self, request)
        key = (peer, isinstance(request, FetchRequest))
        connection = self._outbound.get(key)
        if connection is None:
            connection = self._outbound[key] = self.shared.network.dial(self, peer)
        self._outstanding[request_id] = connection
        connection.request(request_id, self.shared.courier.request(request))

    def _on_reconnect(self, effect: Reconnect) -> None:
        key = (effect.peer, True)
        old = self._outbound.pop(key, None)
        if old is not None:
            old.close()
            self._fail_outstanding(old)
        self._outbound[key] = self.shared.network.dial(self, effect.peer)

    def _fail_outstanding(self, connection: Connection) -> None:
        for request_id in [r for r, c in self._outstanding.items() if c is connection]:
            del self._outstanding[request_id]
            self.handle(RequestFailed(request_id))

    def _forget(self, connection: Connection) -> None:
        for key, known in tuple(self._outbound.items()):
            if known is connection:
                del self._outbound[key]

    def dial_failed(self, connection: Connection, *, refused: bool) -> None:
        """Nobody listens there, or nobody answers."""
        self._forget(connection)
        if refused:
            self.handle(PeerRefused(NodeId(connection.server_id)))
        self._fail_outstanding(connection)

    def connection_lost(self, connection: Connection) -> None:
        """An outbound connection was reset."""
        self._forget(connection)
        if connection.established:
            self.handle(PeerLost(NodeId(connection.server_id)))
        self._fail_outstanding(connection)

    def deliver_response(self, connection: Connection, request_id: int, payload: Any) -> None:
        """An answer arrived; one that nobody waits for is dropped."""
        if self._outstanding.get(request_id) is connection:
            del self._outstanding[request_id]
            response = self.shared.courier.read_response(payload)
            self.handle(ResponseReceived(request_id, response))

    # -- connections, as their server --------------------------------------------------------------

    def accepted(self, connection: Connection) -> int:
        """The kernel took a connection; its number is never used again by this process."""
        self._accepted += 1
        self._inbound[self._accepted] = connection
        return self._accepted

    def deliver_request(self, connection: Connection, correlation: int, payload: Any) -> None:
        request = self.shared.courier.read_request(payload)
        self._requests[connection.number, correlation] = request
        self.handle(Received(connection.number, correlation, request))

    def inbound_closed(self, connection: Connection) -> None:
        """An inbound connection is gone."""
        if self._inbound.pop(connection.number, None) is not None:
            self.handle(ConnectionClosed(connection.number))

    def _on_respond(self, effect: Respond) -> None:
        self._answer(*effect)

    def _on_respond_fetch(self, effect: RespondFetch) -> None:
        connection, correlation, response, offset, end, max_bytes = effect
        records = self.log.read(offset, max_bytes=max_bytes, end_offset=end)
        self._answer(connection, correlation, response, records)

    def _answer(
        self, number: int, correlation: int, response: Response, records: object = None
    ) -> None:
        request = self._requests.pop((number, correlation))
        self.checker.responds(self, request, response)
        connection = self._inbound.get(number)
        if connection is not None:
            payload = self.shared.courier.response(request, response, records)
            connection.respond(correlation, payload)

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

    def _on_shutdown_ready(self, _: ShutdownReady) -> None:
        self.checker.rare["clean shutdowns"] += 1
        self.log.close()
        self.checker.flushed(self.node_id, self.log.log_end_offset)
        raise Killed


def _source(event: Event) -> object:
    """Where an event comes from: two of one source keep their order."""
    match event:
        case Received(connection) | ConnectionClosed(connection):
            return connection
        case Read() | Propose():
            return id(event)  # clients are many
        case _:
            return type(event) in (AppendDurable, ElectionStateDurable), type(event) is Tick


RARE: Final = (AppendLeaderChange, ClearRecovering, PersistElectionState, Truncate)
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
    ShutdownReady: "_on_shutdown_ready",
}
"""How each effect is carried out; snapshots have no part here yet."""
