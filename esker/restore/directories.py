"""Writes the directories of a restored cluster's nodes.

A directory is written beside its place, under a name with the new cluster's id, and gets its own
name by one rename at the end. So a killed restore leaves nothing that a node would start from, and
the next run of the same restore begins that directory again.

Source: docs/design/restore.md#states-of-a-restore.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from crc32c import crc32c

from esker.restore.errors import RestoreError
from esker.server.storage import format_storage
from esker.settings.addresses import CONTROLLER
from esker.settings.config import NodeSettings
from raft.driver.registry import Registry
from raft.driver.storage import Storage
from raft.segments.errors import CorruptFileError
from raft.segments.files import FileSystem, Mode
from raft.segments.log import Log, LogConfig
from raft.segments.properties import QuorumState, read_meta_properties, write_quorum_state
from raft.wire.responses import Group
from records.types import OffsetAndEpoch

_COPIED_AT_ONCE = 1024 * 1024


def is_restored(files: FileSystem, settings: NodeSettings, cluster_id: str) -> bool:
    """Return whether a node's directory belongs to the new cluster already.

    Raises:  RestoreError if anything else is there.
    """
    log_dir = settings.log_dir
    if not files.exists(log_dir) or not files.listdir(log_dir):
        return False
    try:
        if read_meta_properties(files, log_dir).cluster_id == cluster_id:
            return True
    except (FileNotFoundError, CorruptFileError):
        pass
    raise RestoreError(
        f"{log_dir} of node {settings.node_id} is not empty, and a restore overwrites nothing: "
        f"rename it to {log_dir}.before-{cluster_id}, and name that by --from if it is a source"
    )


def check_same(
    files: FileSystem,
    settings: NodeSettings,
    checkpoints: Mapping[Group, tuple[Path, OffsetAndEpoch]],
) -> None:
    """Check that an earlier run wrote a voter's directory from the same checkpoints.

    The store may have had other objects then. A checkpoint that the node has dropped since is not
    compared. Raises RestoreError.
    """
    for group, (path, _) in checkpoints.items():
        written = settings.log_dir / group.name / path.name
        if files.exists(written) and _checksum(files, written) != _checksum(files, path):
            raise RestoreError(
                f"{written} was written by a run that found other objects in the store: delete the "
                "directories that this restore has written, and run the same command again"
            )


def _checksum(files: FileSystem, path: Path) -> int:
    file, checksum, position = files.open(path, Mode.READ), 0, 0
    try:
        while data := file.read(position, min(_COPIED_AT_ONCE, file.size() - position)):
            checksum, position = crc32c(data, checksum), position + len(data)
    finally:
        file.close()
    return checksum


def write_directory(
    files: FileSystem,
    settings: NodeSettings,
    cluster_id: str,
    checkpoints: Mapping[Group, tuple[Path, OffsetAndEpoch]],
) -> None:
    """Write one node's directory: a voter's with the new checkpoints, a broker's empty.

    Raises:  esker.server.storage.StorageError; OSError.
    """
    log_dir = settings.log_dir
    unfinished = log_dir.with_name(f"{log_dir.name}.restoring-{cluster_id}")
    if files.exists(unfinished):
        shutil.rmtree(unfinished)
    format_storage(replace(settings, log_dir=unfinished), cluster_id, files=files)
    if CONTROLLER in settings.roles:
        registry = Registry(files, unfinished)
        for group, (path, snapshot_id) in checkpoints.items():
            _write_group(files, unfinished, group, path, snapshot_id)
            registry.add(group)
    files.fsync_directory(unfinished)
    files.rename(unfinished, log_dir)
    files.fsync_directory(log_dir.parent)


def _write_group(
    files: FileSystem, log_dir: Path, group: Group, path: Path, snapshot_id: OffsetAndEpoch
) -> None:
    """Write a group's directory: a checkpoint, and a log that begins at the checkpoint's end."""
    config = LogConfig()
    Storage.create(files, log_dir, group, config, recovering=False)
    directory = log_dir / group.name
    write_quorum_state(files, directory, QuorumState(epoch=snapshot_id.epoch))
    _copy(files, path, directory / path.name)
    log = Log.open(files, directory, config)
    try:
        log.reset_to(snapshot_id.offset)
    finally:
        log.close()
    files.fsync_directory(directory)


def _copy(files: FileSystem, source: Path, target: Path) -> None:
    read, written = files.open(source, Mode.READ), files.open(target, Mode.CREATE)
    try:
        position, size_bytes = 0, read.size()
        while position < size_bytes:
            data = read.read(position, min(_COPIED_AT_ONCE, size_bytes - position))
            written.write(position, data)
            position += len(data)
        written.fdatasync()
    finally:
        read.close()
        written.close()
