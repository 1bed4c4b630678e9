"""A state machine under its host: log and disk in memory, and a loop that the test turns."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raft.interfaces import Draft, StateMachine
from records.batch_writer import build_batch
from records.types import Offset, OffsetAndEpoch
from snapshot.generation import Pace
from snapshot.host import MachineHost
from snapshot.kv import KeyValueMachine
from snapshot.policy import SnapshotPolicy, SnapshotSettings
from snapshot.store import SnapshotStore
from tests.doubles.memory_log import MemoryLog, SilentTicket, _Stored
from tests.simulation.disk import SimulatedDisk

DIRECTORY = Path("/esker/esker-bench-log-0")
NEVER = SnapshotSettings(max_bytes_between=1 << 40, max_interval_ms=0)
SMALL_STEPS = Pace(generate_records=2, chunk_bytes=150, flush_bytes=300, apply_ms=0.5)


class HandLoop:
    """A loop that does nothing by itself; its clock moves a little with every look at it."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.time_ms = 0.0
        self.failure: BaseException | None = None
        self._rng = rng or random.Random(0)
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._jobs: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        self._count = 0

    def now_ms(self) -> float:
        self.time_ms += 0.01
        return self.time_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._count += 1
        self._later.append((self.time_ms + delay_s * 1_000, self._count, callback))

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._jobs.append((job, done))

    def fail(self, error: BaseException) -> None:
        self.failure = error

    def turn(self, *, disk: bool = True) -> bool:
        """One thing that waits; False if nothing does but the ticks of a second."""
        if self._soon and not (disk and self._jobs and self._rng.random() < 0.3):
            self._soon.popleft()()
        elif disk and self._jobs:
            job, done = self._jobs.popleft()
            job()
            self._soon.append(done)
        elif due := [one for one in self._later if one[0] < self.time_ms + 500]:
            self.time_ms = max(self.time_ms, min(due)[0])
            self._later.remove(min(due))
            min(due)[2]()
        else:
            return False
        return True

    def settle(self) -> None:
        """Until nothing waits."""
        for _ in range(100_000):
            if not self.turn():
                break
        else:
            raise AssertionError("it never ends")
        if self.failure is not None:
            raise self.failure

    def pass_time(self, ms: float) -> None:
        """And do what is due then."""
        until_ms = self.time_ms + ms
        self.settle()
        while self._later and min(self._later)[0] <= until_ms:
            self.time_ms = max(self.time_ms, min(self._later)[0])
            self.settle()
        self.time_ms = max(self.time_ms, until_ms)
        self.settle()


def draft(*pairs: tuple[bytes | None, bytes | None], time_ms: int = 0, **settings) -> Draft:
    """One batch."""
    records = [(key, value, time_ms, ()) for key, value in pairs]
    batch = build_batch(records, base_offset=0, leader_epoch=0, **settings)
    return Draft((bytes(batch),), (len(pairs),))


class Hosted:
    """Log, disk, store, machine and host of one node; `restart` keeps what a crash keeps."""

    def __init__(
        self,
        *,
        machine: Callable[[], StateMachine] = KeyValueMachine,
        settings: SnapshotSettings = NEVER,
        pace: Pace = SMALL_STEPS,
        seed: int = 0,
        log: MemoryLog | None = None,
        disk: SimulatedDisk | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.disk = disk or SimulatedDisk()
        self.disk.make_directory(DIRECTORY)
        self.log = log or MemoryLog()
        self.settings = settings
        self.pace = pace
        self._new_machine = machine
        self._begin()

    def _begin(self) -> None:
        self.loop = HandLoop(self.rng)
        self.store = SnapshotStore(self.disk, DIRECTORY, now_ms=self.loop.now_ms, pin_ms=100)
        self.log._snapshots = self.store
        self.machine: Any = self._new_machine()  # each test knows its own
        self.host = MachineHost(
            self.log,
            self.machine,
            self.store,
            policy=SnapshotPolicy(self.settings),
            loop=self.loop,
            unique=lambda: self.rng.randrange(1, 1 << 62),
            pace=self.pace,
        )
        self.host.start()

    def restart(self, *, power_fails: bool = True) -> None:
        self.log.restart()
        if power_fails:
            self.disk.crash(self.rng)
        self._begin()

    def write(self, *pairs: tuple[bytes | None, bytes | None], **settings) -> None:
        """Commit one batch; lead first if nobody does."""
        epoch = self.log.leading_epoch or self.log.elect()
        self.log.propose(SilentTicket(), epoch, draft(*pairs, **settings))

    def take(self) -> OffsetAndEpoch:
        """A checkpoint of all that is committed."""
        answers: list[OffsetAndEpoch | Exception] = []
        self.loop.settle()
        self.host.take_now(answers.append)
        self.loop.settle()
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def content(self, snapshot_id: OffsetAndEpoch | None = None) -> bytes:
        """The bytes of a checkpoint, the newest if none is named."""
        wanted = snapshot_id or self.store.newest
        assert wanted is not None, "no checkpoint"
        return self.disk.content(self.store.path(wanted))


def replayed(history: list[_Stored], end_offset: Offset) -> Hosted:
    """A node that applied the whole log, up to an offset, and never saw a checkpoint."""
    log = MemoryLog()
    for stored in history:
        if stored.end_offset <= end_offset:
            log._append(stored.data, stored.end_offset - stored.base_offset, stored.epoch)
    fresh = Hosted(log=log)
    log.commit()
    fresh.loop.settle()
    return fresh
