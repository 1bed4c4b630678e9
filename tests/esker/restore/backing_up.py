"""Backs the logs of a lost cluster up, by a real shipper, into the store of a home."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

from diskless.backup.bucket import Bucket
from diskless.backup.cut import BackupLog
from diskless.backup.manifest import Manifest
from diskless.backup.shipper import BackupSettings, Shipper
from diskless.stores.directory import DirectoryStorage
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.types import Epoch
from tests.diskless.backup.backup_world import Checkpoints, ClockedLog
from tests.esker.restore.lost import CLUSTER_ID, TIME, Written


class ChosenShipper(Shipper):
    is_chosen = True


def backup_path(home: Path, cluster_id: str = CLUSTER_ID) -> Path:
    return home / "store" / "backup" / cluster_id


def back_up(
    home: Path,
    logs: Mapping[Group, Sequence[Written]],
    *,
    cluster_id: str = CLUSTER_ID,
    retention_s: float = 3_600.0,
) -> Manifest:
    """Write one cut of these logs, after those that the store has."""
    written = []
    for group, records in logs.items():
        log = ClockedLog(group.name, Checkpoints())
        for offset, (epoch, record) in enumerate(records):
            data = build_value_batch(
                [encode_record(record)], base_offset=offset, leader_epoch=epoch, timestamp=TIME
            )
            log._append(bytes(data), 1, Epoch(epoch))
        log.commit()
        written.append(BackupLog(group.topic, group.partition, group.topic_id, log))

    async def ship() -> Manifest:
        store = DirectoryStorage(home / "store")
        shipper = ChosenShipper(
            store,
            lambda: written,
            SimpleNamespace(
                cluster_id=cluster_id, broker_id=101, image=SimpleNamespace(coordinator_count=1)
            ),
            BackupSettings(
                is_enabled=True, prefix="backup", interval_s=20.0, retention_s=retention_s
            ),
            release="0.2",
            is_living=lambda: True,
            clock=asyncio.get_running_loop().time,
            wall_ms=lambda: TIME,
        )
        try:
            await shipper.turn()
            assert shipper.fault is None, shipper.fault
            bucket = Bucket(store, "backup", cluster_id)
            return await bucket.read_manifest((await bucket.list_manifests())[-1])
        finally:
            await store.close()

    return asyncio.run(ship())
