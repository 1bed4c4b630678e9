"""Logs in memory, a store in memory that counts, and brokers that ship the logs to it."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import diskless.backup.shipper
from diskless.backup.bucket import Bucket
from diskless.backup.cut import BackupLog
from diskless.backup.manifest import DATA_HEADER, Manifest
from diskless.backup.shipper import BackupSettings, Shipper
from diskless.stores.faults import FaultyStore
from diskless.stores.memory import MemoryStore
from raft.interfaces import CommittedAsOf, SnapshotChunk, draft_values
from records.batch import iter_batches
from records.diskless import SteadyTimeRecord
from records.frame import encode_record
from records.metadata import FeatureLevelRecord, NoOpRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.doubles.memory_log import MemoryLog, SilentTicket

CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
CLUSTER, BATCHES, GROUPS, TRANSACTIONS = (
    "__cluster_metadata-0",
    "__diskless-metadata-0",
    "__consumer_offsets-0",
    "__transaction_state-0",
)
WORK: Final = encode_record(FeatureLevelRecord(name="x", feature_level=1))
QUIET: Final = (
    encode_record(NoOpRecord()),
    encode_record(SteadyTimeRecord(steady_ms=5, replaces=0)),
)


class Checkpoints:
    """Checkpoints of arbitrary bytes."""

    def __init__(self) -> None:
        self.files: dict[OffsetAndEpoch, bytes] = {}
        self.newest: OffsetAndEpoch | None = None

    def take(self, snapshot_id: OffsetAndEpoch, data: bytes) -> None:
        self.files[snapshot_id] = data
        self.newest = snapshot_id

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        data = self.files.get(snapshot_id)
        return None if data is None else len(data)

    def read(self, snapshot_id: OffsetAndEpoch, position: int, most: int) -> SnapshotChunk | None:
        data = self.files.get(snapshot_id)
        return None if data is None else SnapshotChunk(len(data), data[position : position + most])


class ClockedLog(MemoryLog):
    """A log whose leader states its high watermark at any time, unless it is away."""

    is_away = False

    def __init__(self, name: str, checkpoints: Checkpoints) -> None:
        super().__init__(name, snapshots=checkpoints)
        self.checkpoints = checkpoints

    @property
    def committed_as_of(self) -> CommittedAsOf | None:
        if self.is_away:
            return None
        end = self.high_watermark or Offset(0)
        return CommittedAsOf(end, asyncio.get_running_loop().time())

    @committed_as_of.setter
    def committed_as_of(self, _: Any) -> None:
        """The base class sets it to None."""

    def write(self, *values: bytes) -> None:
        if self.leading_epoch is None:
            self.elect()
        assert self.leading_epoch is not None
        self.propose(SilentTicket(), self.leading_epoch, draft_values(list(values), timestamp_ms=0))

    def cut_at_checkpoint(self, data: bytes = b"state" * 100) -> None:
        """Take a checkpoint of all that is committed, and let the log begin there."""
        assert self.high_watermark is not None
        snapshot_id = OffsetAndEpoch(self.high_watermark, self._epoch)
        self.checkpoints.take(snapshot_id, data)
        self.drop_prefix(snapshot_id)


class CountingStore(MemoryStore):
    """Counts PUTs, and dates objects by the loop's clock."""

    def __init__(self) -> None:
        super().__init__(lambda: int(asyncio.get_running_loop().time() * 1_000))
        self.puts: list[str] = []
        self.overwrites = False

    async def upload(self, key: str, parts: Any, size_bytes: int) -> None:
        self.puts.append(key)
        if self.overwrites:
            self.objects.pop(key, None)
        await super().upload(key, parts, size_bytes)


class BackupWorld:
    """Four logs and a store. Create it on a running loop."""

    def __init__(self, *, retention_s: float = 600.0) -> None:
        self.memory = CountingStore()
        self.store = FaultyStore(self.memory, Random(1), asyncio.sleep)
        self.logs = {
            name: ClockedLog(name, Checkpoints())
            for name in (CLUSTER, BATCHES, GROUPS, TRANSACTIONS)
        }
        for log in self.logs.values():
            log.write(WORK)
        self.image = SimpleNamespace(coordinator_count=1, chosen=101)
        self.settings = BackupSettings(
            is_enabled=True, prefix="backup", interval_s=20.0, retention_s=retention_s
        )
        self.bucket = Bucket(self.memory, "backup", CLUSTER_ID)
        self.is_living = True
        self.reports: list[tuple[str, int, int, int]] = []  # of lost records, to leaders

    def backup_logs(self) -> list[BackupLog]:
        return [
            BackupLog(name.rpartition("-")[0], 0, UUID(int=number + 1), log)
            for number, (name, log) in enumerate(self.logs.items())
        ]

    def shipper(self, broker_id: int = 101, kind: type[Shipper] = Shipper) -> Shipper:
        loop = asyncio.get_running_loop()

        async def report(topic: str, partition: int, end: int, epoch: int) -> None:
            self.reports.append((topic, partition, end, epoch))

        return kind(
            self.store,
            self.backup_logs,
            SimpleNamespace(
                cluster_id=CLUSTER_ID,
                broker_id=broker_id,
                image=self.image,
                report_lost_records=report,
            ),
            self.settings,
            release="0.2",
            is_living=lambda: self.is_living,
            clock=loop.time,
            wall_ms=lambda: int(loop.time() * 1_000),
        )

    async def newest(self) -> Manifest:
        return await self.bucket.read_manifest((await self.bucket.list_manifests())[-1])

    async def bytes_of(self, manifest: Manifest, name: str) -> bytes:
        """Return the batches of a log in a cut."""
        log = manifest.log(name)
        assert log is not None
        return b"".join([bytes(await self.bucket.read_data(one.data)) for one in log.ranges])

    async def check(self, manifest: Manifest) -> None:
        """Assert that a cut has exactly the logs' bytes up to its ends, and can be read."""
        for name, log in self.logs.items():
            backed_up = manifest.log(name)
            assert backed_up is not None
            assert backed_up.fault() is None
            start = 0
            if backed_up.checkpoint is not None:
                parts = [bytes(await self.bucket.read_data(p)) for p in backed_up.checkpoint.parts]
                start = backed_up.checkpoint.end
                snapshot_id = OffsetAndEpoch(Offset(start), Epoch(backed_up.checkpoint.epoch))
                assert b"".join(parts) == log.checkpoints.files[snapshot_id]
            stored = await self.bytes_of(manifest, name)
            ends = [batch.header.end_offset for batch in iter_batches(stored)]
            assert (ends[-1] if ends else start) == backed_up.end
            if start >= log.start_offset:
                assert stored == bytes(log.read(Offset(start), 1 << 30))[: len(stored)]
        for name in manifest.objects:
            assert self.memory.objects[self.bucket.data_key(name)][0].startswith(DATA_HEADER)

    async def check_restorable(self) -> None:
        """Assert that every cut that can be restored is whole."""
        oldest = (await self.newest()).oldest.number
        for listed in await self.bucket.list_manifests():
            if listed.number >= oldest:
                await self.check(await self.bucket.read_manifest(listed))


def choose_by_image(monkeypatch: Any) -> None:
    """Let the image of a BackupWorld name the chosen broker."""
    monkeypatch.setattr(diskless.backup.shipper, "backup_broker", lambda image: image.chosen)
