"""A process's state machine: the log as it sees it, and the production host that drives it.

Source: `raft.interfaces` (ReplicatedLog, Watcher); docs/design/state-machines.md#decide-and-apply.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Self

from raft.core.events import SnapshotTaken
from raft.interfaces import (
    CommittedAsOf,
    Draft,
    EpochStarts,
    Snapshots,
    Ticket,
    VoterClocks,
    Watcher,
)
from records.batch import Batch
from records.compression import Buffer
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from snapshot.generation import Pace
from snapshot.host import MachineHost
from snapshot.kv import KeyValueMachine
from snapshot.policy import SnapshotPolicy
from tests.simulation.part import Part
from tests.simulation.state import transaction_after
from tests.simulation.world import SECOND

if TYPE_CHECKING:
    from tests.simulation.node import Process

LOOK_MS: Final = 0.05
BATCH_BYTES: Final = 300
"""Of a checkpoint's batches: some keys' worth."""


class LogView:
    """The log of a process, as `raft.interfaces.ReplicatedLog` has it; read only."""

    name = "__simulated-0"

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def leader_id(self) -> NodeId | None:
        return self._process.quorum.leader_id

    @property
    def leading_epoch(self) -> Epoch | None:
        return self._process.lead_epoch

    @property
    def start_offset(self) -> Offset:
        return self._process.log.log_start_offset

    @property
    def end_offset(self) -> Offset:
        return self._process.log.log_end_offset

    @property
    def high_watermark(self) -> Offset | None:
        return self._process.quorum.log.high_watermark

    @property
    def committed_as_of(self) -> CommittedAsOf | None:
        watermark = self._process.quorum.leader_watermark()
        if watermark is None:
            return None
        return CommittedAsOf(watermark.high_watermark, watermark.at_ms / 1_000)

    in_doubt = False

    @property
    def voter_clocks(self) -> VoterClocks:
        raise AssertionError("nobody asks for clocks here")

    def epoch_before(self, offset: Offset) -> Epoch | None:
        log = self._process.quorum.log
        held = log.start_offset <= offset <= log.end_offset
        return log.epoch_before(offset) if held else None

    def epochs_below(self, offset: Offset) -> EpochStarts:
        return self._process.quorum.log.epochs_below(offset)

    def report_fork(self, applied: OffsetAndEpoch, log_epoch: Epoch) -> None:
        raise AssertionError(
            f"{self._process}: its state at {applied} contradicts epoch {log_epoch} of its log, and"
            " no disk is an old one"
        )

    @property
    def snapshots(self) -> Snapshots:
        return self._process.store

    def snapshot_taken(self, snapshot_id: OffsetAndEpoch) -> None:
        process = self._process
        process.checker.rare["checkpoints taken"] += 1
        process.checker.states.published(process, snapshot_id)
        process.handle(SnapshotTaken(snapshot_id))

    def watch(self, watcher: Watcher) -> None:
        process, newest = self._process, self._process.quorum.log.snapshot_id
        process.watcher = watcher
        if newest is not None:
            watcher.snapshot(newest)
        if self.high_watermark is not None:
            watcher.committed(self.high_watermark)

    def propose(
        self,
        ticket: Ticket,  # noqa: ARG002
        epoch: Epoch,  # noqa: ARG002
        draft: Draft,  # noqa: ARG002
        *,
        expected_end_offset: Offset | None = None,  # noqa: ARG002
    ) -> None:
        raise AssertionError("a state machine here only applies")

    def read(self, from_offset: Offset, max_bytes: int) -> Buffer:
        limit = self.high_watermark or self.start_offset
        if not self.start_offset <= from_offset <= limit:
            raise ValueError(f"{from_offset} is outside {self.start_offset}..{limit}")
        log = self._process.log
        return log.read_data(from_offset, max_bytes=max_bytes, end_offset=limit) or b""

    def barrier(self) -> Awaitable[Offset]:
        raise AssertionError("nobody reads through a state machine here")

    def resign(self) -> None:
        raise AssertionError("a state machine here does not lead")


class LoopView:
    """A process's event loop and threads, as the host has them.

    Its clock goes on a little with every look, so that slices end: computing takes no time here.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._looked_ms = 0.0

    def now_ms(self) -> float:
        self._looked_ms += LOOK_MS
        return self._process.machine.clock.now_us() / 1000 + self._looked_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._process.shared.world.after(1, self._process.job, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        delay_us = max(1, int(delay_s * SECOND))
        self._process.shared.world.after(delay_us, self._process.job, callback)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        process = self._process

        def work() -> None:
            process.dare(one_in=80)
            job()
            process.job(done)

        delay_us = process.machine.flush_us() // 4
        process.shared.world.after(delay_us, process.in_thread, work)

    def fail(self, error: BaseException) -> None:
        raise error


class WatchedMachine(KeyValueMachine):
    """The production state machine, with transactions, and looked at where it is told things."""

    process: Process | None = None
    open_transaction = False

    @property
    def checkpointable(self) -> bool:
        return super().checkpointable and not self.open_transaction

    def apply(self, batches: Iterable[Batch]) -> None:
        """Batch by batch."""
        for batch in batches:
            super().apply((batch,))
            self.open_transaction = transaction_after(batch, before=self.open_transaction)

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Never what is older than the state; and never inside a transaction."""
        assert snapshot_id.offset > self.applied.offset, (
            f"{self.process} loads {snapshot_id}, its state is at {self.applied}"
        )
        self.open_transaction = False
        yield from super().load(snapshot_id, batches)
        assert self.process is not None
        self.process.checker.rare["states loaded"] += 1

    def survivor(self) -> Self | None:
        """What a database on the disk would hold after a crash; None in the middle of a freeze."""
        if self._frozen is not None or self._overlay:
            return None
        survivor = copy.copy(self)
        survivor._base = dict(self._base)
        return survivor


class SmallBatches(MachineHost):
    """Production's, whose checkpoints have several batches however small the state is."""

    def _freeze(self) -> None:
        super()._freeze()
        assert self.generation is not None
        self.generation.encoder.target_batch_bytes = BATCH_BYTES


class Hosting(Part):
    """What the core says, handed on to the host."""

    lead_epoch: Epoch | None

    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self.host: MachineHost | None = None
        self.state: WatchedMachine | None = None

    def begin_hosting(self) -> None:
        """The state machine comes to life, with what the machine kept of it."""
        machine, shared = self.machine, self.shared
        kept, machine.state = machine.state, None
        self.state = kept or shared.state_class()
        self.checker.rare["states that survived"] += kept is not None
        self.state.process = self
        self.host = shared.host_class(
            LogView(self),
            self.state,
            self.store,
            policy=SnapshotPolicy(shared.snapshots.policy, node_id=self.node_id),
            loop=LoopView(self),
            unique=lambda: 1 + machine.random.getrandbits(62),
            pace=Pace(chunk_bytes=BATCH_BYTES, flush_bytes=3 * BATCH_BYTES),
        )
        self.host.start()

    def keep_state(self) -> None:
        """The process ends; its state may be on the disk, or not."""
        host, state = self.host, self.state
        ready = host is not None and state is not None and host.ready
        if ready and self.machine.random.random() < 0.5:
            self.machine.state = state.survivor()

    def in_thread(self, work: Callable[[], None]) -> None:
        """On the disk's side: a process that is paused does not stop it."""
        if self.alive:
            self.guard(work)

    def tell_committed(self, high_watermark: Offset) -> None:
        """Everything below is committed."""
        if self.watcher is not None:
            self.watcher.committed(high_watermark)

    def snapshot_installed(self, snapshot_id: OffsetAndEpoch) -> None:
        """The log begins at it now."""
        if self.watcher is not None:
            self.watcher.snapshot(snapshot_id)
