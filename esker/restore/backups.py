"""Writes one cut of a backup as a log directory, which is a source of a restore like any other.

Every part is compared with its checksum before it is written. All records of a cut are committed,
so the directory knows each log to be committed up to its end.

Source: docs/design/backup.md#restoring-from-the-store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from diskless.backup.bucket import Bucket, ListedManifest, backed_up_clusters
from diskless.backup.manifest import BackedUpLog, BackupError, DataPart, Manifest
from diskless.stores import ObjectStorage
from diskless.stores.opening import open_store
from esker.restore.errors import RestoreError
from esker.settings.config import NodeSettings
from raft.driver.registry import Registry
from raft.driver.storage import Storage
from raft.segments.files import FileSystem, Mode
from raft.segments.high_watermarks import write_high_watermarks
from raft.segments.log import LogConfig
from raft.segments.properties import (
    MetaProperties,
    QuorumState,
    write_meta_properties,
    write_quorum_state,
)
from raft.segments.segment import segment_name
from raft.wire.responses import Group
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from records.uuids import random_uuid
from snapshot.names import checkpoint_name

PREFIX: Final = "esker.backup.key.prefix"


class NoBackupError(RestoreError):
    """The store has no backup of the cluster that is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSource:
    """Which cut to restore, and from which store."""

    settings: NodeSettings  # of a broker: they name the store and the prefix of its backups
    cluster_id: str | None = None  # None: the only one that has a backup there
    at: str | None = None  # a manifest's number, or a time; None: the newest cut


async def find_bucket(store: ObjectStorage, source: BackupSource) -> Bucket:
    """Return the backup of the cluster that is meant.

    Raises:  NoBackupError; RestoreError if there are several; StorageError.
    """
    prefix: str = source.settings.values[PREFIX]
    found = await backed_up_clusters(store, prefix)
    if source.cluster_id is not None and source.cluster_id not in found:
        raise NoBackupError(
            f"the store has no backup of cluster {source.cluster_id} below {prefix}/ ({PREFIX}); "
            f"it has backups of: {', '.join(found) or 'none'}"
        )
    if source.cluster_id is not None:
        return Bucket(store, prefix, source.cluster_id)
    if not found:
        raise NoBackupError(
            f"the store has no backup below {prefix}/ ({PREFIX}); brokers write some with "
            "esker.backup.enable=true"
        )
    if len(found) > 1:
        raise RestoreError(
            f"the store has backups of clusters {', '.join(found)}: choose by --backup-cluster"
        )
    return Bucket(store, prefix, found[0])


async def find_manifest(bucket: Bucket, at: str | None) -> Manifest:
    """Return the newest cut, or the one that `at` names.

    Raises:  RestoreError if there is no such cut, or it cannot be restored; BackupError of a
             damaged manifest; StorageError.
    """
    listed = await bucket.list_manifests()
    if not listed:
        raise RestoreError(f"{bucket.root} has no manifest")
    chosen = listed[-1] if at is None else _choose(listed, at)
    manifest = await bucket.read_manifest(chosen)
    oldest = manifest.oldest.number if at is None else await _oldest_number(bucket, listed)
    if chosen.number < oldest:
        raise RestoreError(
            f"{bucket.manifest_key(chosen.number)} cannot be restored any more: objects that only "
            f"it needs may be deleted. The oldest cut is {oldest}"
        )
    return manifest


async def _oldest_number(bucket: Bucket, listed: Sequence[ListedManifest]) -> int:
    """Return the number below which no cut can be restored, as the newest sound manifest says."""
    for one in reversed(listed):
        try:
            return (await bucket.read_manifest(one)).oldest.number
        except BackupError:
            continue  # an older manifest names an older cut at most
    raise RestoreError(f"{bucket.root} has no sound manifest")


def _choose(listed: Sequence[ListedManifest], at: str) -> ListedManifest:
    """Return the manifest of this number, or the last one written by this time."""
    if at.isdecimal():
        found = [one for one in listed if one.number == int(at)]
        wanted = f"with number {at}"
    else:
        try:
            time = datetime.fromisoformat(at)
        except ValueError:
            raise RestoreError(
                f"--at {at} is neither the number of a cut nor a time like 2026-01-31T12:00:00Z; "
                "`esker backup list` prints both"
            ) from None
        at_ms = time.astimezone().timestamp() * 1_000
        found = [one for one in listed if one.modified_ms <= at_ms]
        wanted = f"written by {at}"
    if not found:
        first, last = listed[0].number, listed[-1].number
        raise RestoreError(f"there is no cut {wanted}: there are those from {first} to {last}")
    return found[-1]


async def fetch_cut(source: BackupSource, directory: Path, files: FileSystem) -> Manifest:
    """Write the cut that `source` names as a log directory.

    Raises:  RestoreError, BackupError; StoreSettingError; StorageError; OSError.
    """
    store = open_store(source.settings.values)
    try:
        bucket = await find_bucket(store, source)
        manifest = await find_manifest(bucket, source.at)
        await write_source(bucket, manifest, directory, files)
    finally:
        await store.close()
    return manifest


async def write_source(
    bucket: Bucket, manifest: Manifest, directory: Path, files: FileSystem
) -> None:
    """Write a cut as a log directory. Raises BackupError, StorageError, OSError."""
    directory.mkdir(parents=True)
    registry = Registry(files, directory)
    for log in manifest.logs:
        group = Group(log.topic, log.partition, log.topic_id)
        await _write_log(bucket, log, group, directory, files)
        registry.add(group)
    ends = {(log.topic, log.partition): log.end for log in manifest.logs}
    write_high_watermarks(files, directory, ends)
    owner = MetaProperties(
        cluster_id=manifest.cluster_id,
        node_id=NodeId(manifest.broker_id),
        directory_id=random_uuid(),
    )
    write_meta_properties(files, directory, owner)


async def _write_log(
    bucket: Bucket, log: BackedUpLog, group: Group, directory: Path, files: FileSystem
) -> None:
    Storage.create(files, directory, group, LogConfig(), recovering=False)
    path = directory / group.name
    write_quorum_state(files, path, QuorumState(epoch=Epoch(log.epoch)))
    if log.checkpoint is not None:
        snapshot_id = OffsetAndEpoch(Offset(log.checkpoint.end), Epoch(log.checkpoint.epoch))
        target = path / checkpoint_name(snapshot_id)
        await _write_parts(bucket, log.checkpoint.parts, target, files)
    for one in log.ranges:
        target = path / segment_name(Offset(one.start))
        await _write_parts(bucket, [one.data], target, files)


async def _write_parts(
    bucket: Bucket, parts: Sequence[DataPart], path: Path, files: FileSystem
) -> None:
    file = files.open(path, Mode.CREATE)
    try:
        position = 0
        for part in parts:
            data = await bucket.read_data(part)
            file.write(position, data)
            position += len(data)
    finally:
        file.close()
