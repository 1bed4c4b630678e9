"""A process of the simulated quorum that hosts a batch coordinator.

The coordinator is the production one: `MachineHost` applies, `Leader` decides and proposes, and
answers what brokers ask by simulated connections. What lies beneath `Leader` is the state machine
of a replica: production's SQLite, or the same records applied to `InMemoryState`, which is ten
times as fast and so has most of the schedules.

A replica's state may outlive its process, as a database does: what was committed to the file is
there after a crash, what was gathered in an open transaction is not, and a file can be gone.

Source: docs/design/batch-coordinator.md; `esker.server.coordinators` puts the same parts together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordinator.batch import decide
from coordinator.batch.calls import LeaderLookup
from coordinator.batch.checkpoint import checkpoint_values, load_record
from coordinator.batch.cluster_view import StaticView
from coordinator.batch.leader import Answer, Leader
from coordinator.batch.log_records import records_of
from coordinator.batch.memory import InMemoryState
from coordinator.batch.reads import list_offsets
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
from coordinator.batch.sqlite.source import StoreSource
from coordinator.errors import CoordinatorError
from raft.core.effects import Accepted, Lead, ReadReady, ReadRefused, Refused, StepDown
from raft.core.events import NewBatch, Proposal, Propose, Read
from raft.interfaces import Draft, Ticket, VoterClocks, Watcher
from records.batch import Batch, iter_records
from records.frame import decode_record
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import ListDisklessOffsetsRequest
from records.rpc.objects import GetFilesToDeleteRequest
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.generation import Pace
from snapshot.host import MachineHost
from snapshot.policy import SnapshotPolicy
from tests.coordinator.batch.subjects import START_MS
from tests.simulation.hosting import LogView, LoopView
from tests.simulation.machine import CLUSTER_ID, Machine
from tests.simulation.network import Connection
from tests.simulation.node import Process

if TYPE_CHECKING:
    from tests.simulation.coordinator_model import CoordinatorModel

MAINTENANCE_INTERVAL_S: Final = 0.7
CHUNK_BYTES: Final = 4000
"""Of a checkpoint on its way to the disk: several to a file."""


class Asked(NamedTuple):
    """A request to a coordinator, on its way."""

    request: Any


class _Reading(NamedTuple):
    """Somebody waits for offsets."""

    connection: Connection
    correlation: int
    request: ListDisklessOffsetsRequest

    def __hash__(self) -> int:
        return id(self.connection) ^ self.correlation


# --- a replica's state ------------------------------------------------------------------------


class MemoryStore(InMemoryState):
    """With what a leader's sweeps ask of a database besides: dead runs leave no rows here."""

    deferred_deletes: tuple[int, ...] = ()

    def delete_dead_runs(self, limit: int) -> None:
        """See `Store`."""


def copied(state: InMemoryState) -> MemoryStore:
    """Another that is equal: rows are tuples, only the tables are copied."""
    copy = MemoryStore()
    for name, value in vars(state).items():
        setattr(copy, name, dict(value) if isinstance(value, dict) else value)
    copy.runs = {log_id: list(runs) for log_id, runs in state.runs.items()}
    copy.counters = replace(state.counters)
    return copy


class FrozenValues:
    """A state as of one offset: what a checkpoint of it will hold."""

    def __init__(self, values: list[bytes]) -> None:
        self._values = values

    def values(self) -> Iterator[bytes]:
        """See `Frozen`."""
        return iter(self._values)

    def close(self) -> None:
        """See `Frozen`."""


class MemoryMachine:
    """`InMemoryState` as a state machine, with what a leader asks of `CoordinatorMachine`."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self.last_timestamp = 0
        self.changed_records = 0
        self._changed_when_frozen = 0
        self._listeners: list[Callable[[], None]] = []

    checkpointable = True

    @property
    def total_records(self) -> int:
        """Rows, about."""
        store = self.store
        return 1 + len(store.objects) + len(store.answers) + len(store.leases)

    def watch(self, listener: Callable[[], None]) -> None:
        """See `CoordinatorMachine`."""
        self._listeners.append(listener)

    def apply(self, batches: Iterable[Batch]) -> None:
        """See `StateMachine`."""
        for batch in batches:
            header = batch.header
            if not header.is_control:
                for offset, record in records_of(batch):
                    self.store.apply(offset, record)
                    self.changed_records += 1
                self.last_timestamp = header.max_timestamp
            self.applied = OffsetAndEpoch(header.end_offset, header.leader_epoch)
        self._tell()

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """See `StateMachine`."""
        store = MemoryStore()
        for batch in batches:
            for record in iter_records(batch):
                load_record(store, decode_record(record.value))
            self.last_timestamp = batch.header.max_timestamp
            yield
        store.applied_offset = snapshot_id.offset
        self.store, self.applied = store, snapshot_id
        self._tell()

    def reset(self) -> None:
        """See `StateMachine`."""
        self.store = MemoryStore()
        self.applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self._tell()

    def handle_read_error(self, error: BaseException) -> None:
        """A decision raised this: nothing here is a disk, so it is a fault."""
        raise error

    def freeze(self) -> FrozenValues:
        """See `StateMachine`."""
        self._changed_when_frozen = self.changed_records
        return FrozenValues(self.store.checkpoint())

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:  # noqa: ARG002
        """See `StateMachine`."""
        self.changed_records -= min(self._changed_when_frozen, self.changed_records)

    def values(self) -> list[bytes]:
        """A checkpoint of the live state."""
        return self.store.checkpoint()

    def survivor(self) -> MemoryMachine:
        """What the next process finds."""
        other = MemoryMachine()
        other.store, other.applied = copied(self.store), self.applied
        other.last_timestamp, other.changed_records = self.last_timestamp, self.changed_records
        return other

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


class SqliteMachine(CoordinatorMachine):
    """Production's, on a file of this machine; checkpoints are scanned here and now."""

    def __init__(self, directory: Path, machine: Machine, group: str) -> None:
        directory.mkdir(exist_ok=True)
        identity = Identity(CLUSTER_ID, machine.identity.directory_id.bytes, group)
        super().__init__(directory, identity, in_process=True, span_runs=4)

    def values(self) -> list[bytes]:
        """A checkpoint of the live state."""
        self.flush()
        return list(checkpoint_values(StoreSource(self.store)))


# --- what a coordinator sees of its process ---------------------------------------------------


@dataclass(slots=True)
class Estate:
    """What all coordinators of one schedule have in common."""

    settings: CoordinatorSettings
    view: StaticView
    model: CoordinatorModel
    directory: Path | None  # of databases; None: states are kept in memory
    clock_ppm: tuple[int, ...]
    wall_step_ms: dict[int, int] = field(default_factory=dict)  # by node: how wrong its clock is
    machines: tuple[Machine, ...] = ()

    def wall_ms(self, machine: Machine) -> int:
        """What a machine's wall clock shows."""
        return START_MS + machine.clock.now_ms() + self.wall_step_ms.get(machine.node_id, 0)


class CoordinatorLog(LogView):
    """The log of a process, for one who proposes as well."""

    @property
    def voter_clocks(self) -> VoterClocks:
        process: Any = self._process
        estate, ours = process.estate, process.machine
        others = [machine for machine in estate.machines if machine is not ours]
        ahead = (estate.wall_ms(m) - estate.wall_ms(ours) for m in others if m.process is not None)
        return VoterClocks(len(estate.machines), tuple(ahead))

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` too; first what is true already."""
        process: Any = self._process
        process.watchers.append(watcher)
        newest = process.quorum.log.snapshot_id
        if newest is not None:
            watcher.snapshot(newest)
        if self.high_watermark is not None:
            watcher.committed(self.high_watermark)

    def propose(
        self,
        ticket: Ticket,
        epoch: Epoch,
        draft: Draft,
        *,
        expected_end_offset: Offset | None = None,
    ) -> None:
        process: Any = self._process
        world = process.shared.world
        process.estate.model.proposed_us[epoch, expected_end_offset] = world.now_us
        batches = tuple(
            NewBatch(count, len(part), bytearray(part))
            for part, count in zip(draft.parts, draft.counts, strict=True)
        )
        process.handle(Propose((Proposal(ticket, epoch, expected_end_offset, batches),)))


class ProcessClocks(LoopView):
    """What a leader reads: a wall clock that is wrong and steps, a steady one that is fast or slow.

    (The two share no fault: a monotonic clock does not step.)
    """

    def __init__(self, process: CoordinatingProcess) -> None:
        super().__init__(process)
        self._estate = process.estate

    def now_ms(self) -> int:
        return self._estate.wall_ms(self._process.machine)

    def boot_ms(self) -> int:
        return round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        """Seconds."""
        ppm = self._estate.clock_ppm
        rate = ppm[self._process.node_id - 1] if ppm else 1_000_000
        return self._process.shared.world.now_us * rate / 1e12


# --- the process ------------------------------------------------------------------------------


class CoordinatingProcess(Process):
    """See the module."""

    def __init__(self, estate: Estate, machine: Machine) -> None:
        super().__init__(machine)
        self.estate = estate
        self.watchers: list[Watcher] = []
        self.leader: Leader | None = None
        self._reads: list[tuple[Offset, _Reading]] = []  # behind a barrier, not yet applied

    # -- its state machine ---------------------------------------------------------------------

    def begin_hosting(self) -> None:
        """As production puts the parts together: first who applies, then who leads."""
        machine, shared, estate, found = self.machine, self.shared, self.estate, self.machine.state
        log, state, machine.state = CoordinatorLog(self), self._open_state(found), None
        self.state = state  # type: ignore[assignment]
        self.checker.rare["states that survived"] += state.applied.offset > 0
        loop = LoopView(self)
        self.host = shared.host_class(
            log,
            state,
            self.store,
            policy=SnapshotPolicy(shared.snapshots.policy, node_id=self.node_id),
            loop=loop,
            unique=lambda: 1 + machine.random.getrandbits(62),
            pace=Pace(chunk_bytes=CHUNK_BYTES, flush_bytes=3 * CHUNK_BYTES, apply_delay_ms=10.0),
        )
        self.host.on_loaded = self._loaded
        self.leader = Leader(
            log,
            state,  # type: ignore[arg-type]
            estate.settings,
            estate.view,
            ProcessClocks(self),
            maintenance_interval_s=MAINTENANCE_INTERVAL_S,
        )
        state.watch(self._answer_reads)
        self.host.start()
        log.watch(_Told(self.leader))

    def _open_state(self, found: Any) -> MemoryMachine | SqliteMachine:
        directory = self.estate.directory
        if directory is None:
            return found or MemoryMachine()
        return SqliteMachine(directory / str(self.node_id), self.machine, LogView.name)

    def _loaded(self, _: float) -> None:
        self.checker.rare["states loaded"] += 1
        self.estate.model.look(self)

    def keep_state(self) -> None:
        """What the next process finds: the state, an older one, or none."""
        state: Any = self.state
        directory, draw = self.estate.directory, self.machine.random.random()
        self._note_what_waits()
        if state is None:
            return
        if directory is not None:
            if draw < 0.4:
                state.flush()
            state.store.close()
            if draw > 0.8:
                shutil.rmtree(directory / str(self.node_id))
        elif draw < 0.6 and self.host is not None and self.host.ready:
            self.machine.state = state.survivor()

    def _note_what_waits(self) -> None:
        """Leadership ends, or the process: decisions that nobody was told yet are in doubt."""
        if self.leader is not None and self.leader.proposer._in_flight:
            self.checker.rare["leaders changed in mid-commit"] += 1

    # -- what the core says ----------------------------------------------------------------------

    def tell_committed(self, high_watermark: Offset) -> None:
        for watcher in self.watchers:
            watcher.committed(high_watermark)

    def snapshot_installed(self, snapshot_id: OffsetAndEpoch) -> None:
        for watcher in self.watchers:
            watcher.snapshot(snapshot_id)

    def _on_lead(self, effect: Lead) -> None:
        super()._on_lead(effect)
        for watcher in self.watchers:
            watcher.lead(effect.epoch)

    def _on_step_down(self, effect: StepDown) -> None:
        super()._on_step_down(effect)
        self._note_what_waits()
        for watcher in self.watchers:
            watcher.step_down(effect.epoch)

    def _on_accepted(self, effect: Accepted) -> None:
        ticket: Ticket = effect.token  # type: ignore[assignment]
        ticket.accepted(effect.epoch, effect.base_offset, effect.end_offset)

    def _on_refused(self, effect: Refused) -> None:
        self.checker.rare["proposals refused"] += 1
        ticket: Ticket = effect.token  # type: ignore[assignment]
        ticket.refused(effect.error)

    def _on_read_ready(self, effect: ReadReady) -> None:
        self._reads.append((effect.offset, effect.token))  # type: ignore[arg-type]
        self._answer_reads()

    def _on_read_refused(self, effect: ReadRefused) -> None:
        read: _Reading = effect.token  # type: ignore[assignment]
        self.checker.rare["read rounds refused"] += 1
        error = CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no read barrier")
        read.connection.respond(read.correlation, error)

    def _answer_reads(self) -> None:
        """Those whose barrier the state has reached."""
        state: Any = self.state
        due = [read for offset, read in self._reads if offset <= state.applied.offset]
        self._reads = [(at, read) for at, read in self._reads if at > state.applied.offset]
        for connection, correlation, request in due:
            connection.respond(correlation, list_offsets(request, state.store, state.store))

    # -- what brokers ask ------------------------------------------------------------------------

    def deliver_request(self, connection: Connection, correlation: int, payload: Any) -> None:
        if isinstance(payload, Asked):
            self.job(self._serve_caller, connection, correlation, payload.request)
        else:
            super().deliver_request(connection, correlation, payload)

    def inbound_closed(self, connection: Connection) -> None:
        if isinstance(connection.client, Process):
            super().inbound_closed(connection)
        else:
            self._inbound.pop(connection.number, None)

    def _serve_caller(self, connection: Connection, correlation: int, request: Any) -> None:
        def done(answer: Any) -> None:
            if self.alive:
                response = answer.response if isinstance(answer, Answer) else answer
                if not isinstance(response, CoordinatorError):
                    self.estate.model.answers(self, request, response)
                connection.respond(correlation, response)

        if self.leader is None:
            return  # it starts; whoever asks waits in vain
        if isinstance(request, ListDisklessOffsetsRequest):
            self.handle(Read(_Reading(connection, correlation, request)))
        elif isinstance(request, GetFilesToDeleteRequest):
            try:
                done(self.leader.look_up(LeaderLookup(decide.files_to_delete), request))
            except CoordinatorError as error:
                done(error)
        else:
            self.leader.ask(request, done)


class SeveralBatches(MachineHost):
    """Production's, whose checkpoints have several batches."""

    def _freeze(self) -> None:
        super()._freeze()
        assert self.generation is not None
        self.generation.encoder.target_batch_bytes = CHUNK_BYTES


class _Told:
    """A leader as a watcher; snapshots are its host's business."""

    def __init__(self, leader: Leader) -> None:
        self.committed = leader.committed
        self.lead = leader.lead
        self.step_down = leader.step_down

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """See `Watcher`."""
