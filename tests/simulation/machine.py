"""What outlives a process of the simulated quorum: the machine, its disk, its clock.

A machine can stop at any effect of its process, at any change of its disk, and in between: by
`kill -9`, which its kernel survives with its page cache and its resets, or by a loss of power.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from raft.core.config import QuorumConfig
from raft.core.effects import Effect
from raft.core.quorum import Quorum
from raft.core.roles import ElectionState
from raft.core.voters import ReplicaKey, VoterSet
from raft.segments.files import replace_file
from raft.segments.log import Log, LogConfig
from records.batch import CRC_START, Batch, iter_batches
from records.errors import RecordError
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from snapshot.host import MachineHost
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings
from snapshot.store import SnapshotStore
from tests.simulation.checks import Checker, Ledger
from tests.simulation.disk import SimulatedDisk
from tests.simulation.network import Network
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.courier import Courier
    from tests.simulation.hosting import WatchedMachine
    from tests.simulation.node import Process

DIRECTORY: Final = Path("/log")
RECOVERING_MARK: Final = "recovering"
CLUSTER_ID: Final = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """When checkpoints are taken and logs cut, in a schedule of some seconds."""

    policy: SnapshotSettings
    log_start: LogStartSettings
    pin_ms: int = 3000
    reader_ms: int = 2000  # who read a checkpoint so recently must still find it


class Killed(BaseException):
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
    store_class: type[SnapshotStore]
    host_class: type[MachineHost]
    state_class: type[WatchedMachine]
    snapshots: Snapshots
    piece_bytes: int
    daring: bool  # the power fails where several changes of the disk belong together
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
        self.garbles_until_us = -1  # it sends pieces that are not what they should be
        self.state: WatchedMachine | None = None  # what outlives a process, as a database does
        self.downloads_begun: set[OffsetAndEpoch] = set()
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
        self.state = None
        self.downloads_begun.clear()
        self.disk = SimulatedDisk()
        self.shared.checker.wiped(self.node_id)
        self.shared.checker.rare["recovering voters"] += 1
        self.election = ElectionState(epoch=Epoch(0))
        self.format(recovering=True)

    def mend(self) -> None:
        """No fault waits to happen here any more."""
        self.killed_after = self.power_after = self.disk.power_loss_at = None
        self.disk.capacity_bytes = None
        self.garbles_until_us = -1
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
    def stored(log: Log, offset: Offset | None = None, end: int | None = None) -> Iterator[Batch]:
        """A log's batches from `offset` on, as the production code reads them."""
        if offset is None:
            offset = log.log_start_offset
        while (records := log.read(offset, max_bytes=1 << 20, end_offset=end)) is not None:
            yield from records.batches
            offset = records.end_offset

    def flush_us(self) -> int:
        """How long the flush that begins now takes."""
        takes_us = self.flush_least_us + int(self.random.random() * self.flush_spread_us)
        self.disk_works_until_us = self.shared.world.now_us + takes_us
        return takes_us
