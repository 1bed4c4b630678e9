"""The quorum's coordinator under test: SQLite over a log in memory, and restarts of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Final

from coordinator.batch.checkpoint import checkpoint_values
from coordinator.batch.leader import QuorumCoordinator
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
from coordinator.batch.sqlite.source import StoreSource
from records.batch import Batch, iter_batches, read_batch
from records.batch_writer import build_value_batch
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.coordinator.batch.subjects import SETTINGS, START_MS, MutableView
from tests.doubles.memory_log import MemoryLog

IDENTITY: Final = Identity("testcluster", bytes(range(16)), "__diskless-metadata-0")
SLICE_BYTES: Final = 4096


class ManualClocks:
    """Time that a test moves; turns are the asyncio loop's; timers never fire."""

    def __init__(self) -> None:
        self.elapsed_ms = 0
        self.step_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.elapsed_ms + self.step_ms

    def boot_ms(self) -> int:
        return self.elapsed_ms

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000

    def call_soon(self, callback: Callable[[], None]) -> object:
        return asyncio.get_running_loop().call_soon(callback)

    def call_later(self, _delay_s: float, _callback: Callable[[], None]) -> object:
        return None


class Hosting:
    """The simplest host, and the one watcher of a log that outlives coordinators."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.machine: CoordinatorMachine | None = None
        self.coordinator: QuorumCoordinator | None = None
        self.holds_back = False  # committed, and not yet applied

    def apply(self) -> None:
        machine, end = self.machine, self.log.high_watermark or Offset(0)
        while machine is not None and machine.applied.offset < end:
            machine.apply(iter_batches(self.log.read(machine.applied.offset, SLICE_BYTES)))

    def committed(self, high_watermark: Offset) -> None:
        if not self.holds_back:
            self.apply()
        if self.coordinator is not None:
            self.coordinator.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        if self.coordinator is not None:
            self.coordinator.lead(epoch)

    def step_down(self, epoch: Epoch) -> None:
        if self.coordinator is not None:
            self.coordinator.step_down(epoch)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        raise AssertionError(f"nobody installs {snapshot_id}")


class Restart(Enum):
    """The state that a restarting replica finds."""

    SAME_FILE = "its database"
    NO_FILE = "nothing: the log from its beginning"
    CHECKPOINT = "a checkpoint"


class QuorumWorld:
    """`tests.coordinator.batch.subjects.World` over a `MemoryLog`."""

    def __init__(
        self,
        directory: Path,
        settings: CoordinatorSettings = SETTINGS,
        *,
        restarts: Iterable[Restart] = tuple(Restart),
        auto_commit: bool = True,
        clocks: ManualClocks | None = None,
    ) -> None:
        self.settings = settings
        self.view = MutableView()
        self.clocks = clocks or ManualClocks()
        self.directory = directory
        self.log = MemoryLog(auto_commit=auto_commit)
        self.hosting = Hosting(self.log)
        self._restarts = tuple(restarts)
        self._open()
        self.log.watch(self.hosting)
        self.elect()

    def _open(self) -> None:
        self.machine = CoordinatorMachine(self.directory, IDENTITY, in_process=True, span_runs=4)
        self.coordinator = QuorumCoordinator(
            self.log, self.machine, self.settings, self.view, self.clocks
        )
        self.hosting.machine, self.hosting.coordinator = self.machine, self.coordinator

    def elect(self) -> None:
        """Lead; everything that was in the log commits."""
        self.log.elect()
        self.log.commit()

    def now_ms(self) -> int:
        return self.clocks.now_ms()

    def jump(self, ms: int) -> None:
        self.clocks.step_ms += ms

    def handed_out_ms(self, producer_id: int, ago_ms: int | None) -> None:
        self.view.handed_out[producer_id] = None if ago_ms is None else self.now_ms() - ago_ms

    async def advance(self, ms: int) -> None:
        self.clocks.elapsed_ms += ms
        before = -1
        while before != self.log.end_offset:
            before = self.log.end_offset
            await self.coordinator.run_maintenance()

    async def restart(self) -> None:
        """Restart in each way in turn, so that no story depends on what one of them forgets."""
        before = self.values()
        self.log.depose()
        for how in self._restarts:
            await self.come_back(how)
            assert self.values() == before  # invariant 4
        self.elect()

    async def come_back(self, how: Restart) -> None:
        """Restart as another process on the same disk; nothing leads."""
        values, applied = self.values(), self.machine.applied
        last_timestamp = self.machine.last_timestamp
        await self.coordinator.close()
        self.machine.close()
        if how is not Restart.SAME_FILE:
            self.machine.path.unlink()
        self._open()
        assert self.machine.rebuilds == (how is not Restart.SAME_FILE)
        if how is Restart.CHECKPOINT:
            for _ in self.machine.load(
                applied, checkpoint_batches(values, applied, last_timestamp)
            ):
                pass
        self.hosting.apply()
        if self.log.high_watermark is not None:
            self.coordinator.committed(self.log.high_watermark)

    def values(self) -> list[bytes]:
        """A checkpoint of what is applied, written from the live state."""
        self.machine.flush()
        return list(checkpoint_values(StoreSource(self.machine.store)))

    async def checkpoint(self) -> list[bytes]:
        frozen = self.machine.freeze()
        try:
            return [value for value in frozen.values() if value]
        finally:
            frozen.close()

    async def close(self) -> None:
        await self.coordinator.close()
        self.machine.close()


def checkpoint_batches(
    values: Iterable[bytes], snapshot_id: OffsetAndEpoch, timestamp: int
) -> list[Batch]:
    """A checkpoint's data batches, one for each record."""
    return [
        read_batch(
            build_value_batch(
                [value],
                base_offset=number,
                leader_epoch=snapshot_id.epoch,
                timestamp=timestamp,
            )
        )
        for number, value in enumerate(values)
    ]
