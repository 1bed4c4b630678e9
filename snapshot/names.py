"""Names checkpoint files and lists those in a directory.

A checkpoint is named by its id: the end offset (exclusive) and epoch of the log it stands for. Two
suffixes mark the ends of its life: `.part` while it is written or fetched, `.deleted` once it is
given up. Only the bare name means a whole checkpoint, because it appears by one atomic rename.

Source: KIP-630, Snapshot Format; org.apache.kafka.snapshot.Snapshots. The epoch has 10 digits, as
upstream writes it, where the KIP's example has 20; a `.part` carries a random number, so that two
attempts never write one file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from raft.segments.files import FileSystem
from records.types import Epoch, Offset, OffsetAndEpoch

BOOTSTRAP_NAME: Final = "bootstrap.checkpoint"
"""Name of the file in the root of a log directory with the first metadata of a new cluster, at
epoch 0."""

PART_SUFFIX: Final = ".part"
DELETED_SUFFIX: Final = ".deleted"

DOWNLOAD_NUMBER: Final = 0
"""Number in the name of a downloaded part instead of a random one: the next download may resume the
part."""

_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_PART_NAME: Final = re.compile(r"(\d{20})-(\d{10})-\d{1,20}\.checkpoint\.part", re.ASCII)
_LEFTOVER: Final = re.compile(
    r"\d{20}-\d{10}(-\d{1,20})?\.checkpoint\.(part|deleted)|bootstrap\.checkpoint\.tmp", re.ASCII
)
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_EPOCH: Final = (1 << 31) - 1


def checkpoint_name(snapshot_id: OffsetAndEpoch) -> str:
    """Return the file name of a complete checkpoint.

    >>> checkpoint_name(OffsetAndEpoch(5120793, 2))
    '00000000000005120793-0000000002.checkpoint'
    """
    offset, epoch = snapshot_id
    assert 0 <= offset <= _MAX_OFFSET, f"impossible offset: {snapshot_id}"
    assert 0 <= epoch <= _MAX_EPOCH, f"impossible epoch: {snapshot_id}"
    return f"{offset:020d}-{epoch:010d}.checkpoint"


def part_name(snapshot_id: OffsetAndEpoch, unique: int) -> str:
    """Return the name of a checkpoint's partial file, while the checkpoint is being written.

    Args:  unique: tells attempts apart, 64 bits; DOWNLOAD_NUMBER is a download's, of which there is
           one at a time.
    """
    base = checkpoint_name(snapshot_id).removesuffix(".checkpoint")
    return f"{base}-{unique}.checkpoint{PART_SUFFIX}"


def parse_checkpoint_name(name: str) -> OffsetAndEpoch | None:
    """Return the id in the name of a complete checkpoint, or None for any other name.

    >>> parse_checkpoint_name("00000000000000000057-0000000003.checkpoint")
    OffsetAndEpoch(offset=57, epoch=3)
    >>> parse_checkpoint_name("00000000000000000057-0000000003.checkpoint.deleted")
    """
    return _id(_NAME.fullmatch(name))


def parse_part_name(name: str) -> OffsetAndEpoch | None:
    """Return the id in the name of a partial file, or None for any other name."""
    return _id(_PART_NAME.fullmatch(name))


def _id(match: re.Match[str] | None) -> OffsetAndEpoch | None:
    if match is None:
        return None
    offset, epoch = int(match[1]), int(match[2])
    if offset > _MAX_OFFSET or epoch > _MAX_EPOCH:
        return None
    return OffsetAndEpoch(Offset(offset), Epoch(epoch))


def list_checkpoints(files: FileSystem, directory: Path) -> list[OffsetAndEpoch]:
    """List the ids of the complete checkpoints in a directory, oldest first."""
    ids = (parse_checkpoint_name(name) for name in files.listdir(directory))
    return sorted(snapshot_id for snapshot_id in ids if snapshot_id is not None)


def list_parts(files: FileSystem, directory: Path, snapshot_id: OffsetAndEpoch) -> list[Path]:
    """List the partial files of a checkpoint that earlier attempts to write it have left."""
    names = files.listdir(directory)
    return [directory / name for name in names if parse_part_name(name) == snapshot_id]


def list_downloads(files: FileSystem, directory: Path) -> dict[OffsetAndEpoch, Path]:
    """List the partial files of downloads by checkpoint id, at most one for each id."""
    found = {}
    for name in files.listdir(directory):
        snapshot_id = parse_part_name(name)
        if snapshot_id is not None and name == part_name(snapshot_id, DOWNLOAD_NUMBER):
            found[snapshot_id] = directory / name
    return found


def mark_deleted(files: FileSystem, directory: Path, snapshot_id: OffsetAndEpoch) -> Path:
    """Rename a checkpoint durably, to be no longer listed; return the path to delete.

    Whoever has it open can go on reading, also after the unlink.
    """
    path = directory / checkpoint_name(snapshot_id)
    deleted = path.with_name(path.name + DELETED_SUFFIX)
    files.rename(path, deleted)
    files.fsync_directory(directory)
    return deleted


def remove_leftovers(files: FileSystem, directory: Path, *, keep: Collection[Path] = ()) -> int:
    """Delete partial files and files marked as deleted, and return the number of files.

    Args:    keep: parts of a fetch that is to be resumed.
    """
    kept = {path.name for path in keep}
    removed = 0
    for name in files.listdir(directory):
        if _LEFTOVER.fullmatch(name) and name not in kept:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(directory / name)
            removed += 1
    if removed:
        files.fsync_directory(directory)
    return removed
