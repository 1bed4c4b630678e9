"""Writes the first backup of a restored cluster: the checkpoints with which its logs begin.

Why not leave it to the brokers: the lost cluster's timeline is claimed, so its backups make no
further restore. Without this one, disks that are lost before the first cut would be the end.

Source: docs/design/backup.md#a-restored-cluster-begins-with-a-backup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from diskless.backup.bucket import Bucket, TakenError
from diskless.backup.manifest import BackedUpLog, Manifest, OldestCut
from diskless.backup.packing import Packer
from diskless.stores import ObjectStorage
from raft.interfaces import SnapshotChunk
from raft.segments.files import FileSystem, Mode
from raft.wire.responses import Group
from records.types import OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class _CheckpointFile:
    """The bytes of one checkpoint that is a file."""

    files: FileSystem
    path: Path

    def size_bytes(self, _: OffsetAndEpoch) -> int:
        file = self.files.open(self.path, Mode.READ)
        try:
            return file.size()
        finally:
            file.close()

    def read(self, _: OffsetAndEpoch, position: int, max_bytes: int) -> SnapshotChunk:
        file = self.files.open(self.path, Mode.READ)
        try:
            size_bytes = file.size()
            data = file.read(position, min(max_bytes, size_bytes - position))
        finally:
            file.close()
        return SnapshotChunk(size_bytes, data)


async def write_first_backup(
    store: ObjectStorage,
    prefix: str,
    cluster_id: str,
    broker_id: int,
    checkpoints: Mapping[Group, tuple[Path, OffsetAndEpoch]],
    files: FileSystem,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> bool:
    """Write manifest 0 of a new cluster; return False if the cluster has backups already.

    Args:    prefix: of the keys of backups. broker_id: of the broker whose store it is.
    Raises:  StorageError; OSError.
    """
    bucket = Bucket(store, prefix, cluster_id)
    if await bucket.list_manifests():
        return False
    packer = Packer(bucket, 0)
    logs = []
    for group, (path, snapshot_id) in sorted(checkpoints.items(), key=lambda one: one[0].name):
        source = _CheckpointFile(files, path)
        checkpoint = await packer.add_checkpoint(group.name, source, snapshot_id)
        logs.append(
            BackedUpLog(
                topic=group.topic,
                partition=group.partition,
                topic_id=group.topic_id,
                end=checkpoint.end,
                epoch=checkpoint.epoch,
                checkpoint=checkpoint,
            )
        )
    manifest = Manifest(
        number=0,
        cluster_id=cluster_id,
        broker_id=broker_id,
        release=version("esker"),
        cut=0,
        began_ms=wall_ms(),
        oldest=OldestCut(0, {log.name: log.end for log in logs}),
        logs=tuple(logs),
    )
    try:
        await bucket.write_manifest(manifest)
    except TakenError:
        return False  # a broker of the new cluster was faster
    return True
