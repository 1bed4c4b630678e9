"""Copies a checkpoint from a quorum into a file, for tasks of this machine to read.

The copy stays, so that a task that is tried again, or the next job, finds it: in a directory of
this user below `$TMPDIR`, one for each log, holding the newest that a task needed. An interrupted
download resumes where it stopped. A file under a checkpoint's name is whole: every batch, header,
footer and the footer's checksum were verified before it got that name.

A copy is compared with the leader's file before it is used, by its end: a re-created log can
have another checkpoint of the same id.

The trap: the bytes may come from two leaders whose files of the same id differ. The checksum of the
whole finds that, and then it is fetched again from the beginning.

Source: KIP-630, FetchSnapshot; `snapshot.download`, which this drives.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from raft.interfaces import RejectedSnapshotError
from raft.segments.files import RealFileSystem
from records.types import OffsetAndEpoch
from snapshot.download import PartDownload
from snapshot.names import checkpoint_name, list_checkpoints
from spark_jobs.readers.logs import LogsError
from spark_jobs.readers.quorum_link import GoneError, QuorumLink
from spark_jobs.session.own_directory import make_private

PIECE_BYTES: Final = 1024 * 1024
TAIL_BYTES: Final = 256  # the footer's batch, at least
_ATTEMPTS: Final = 3


def copies_of(cluster_id: str, log: str) -> Path:
    """Return the directory of this machine's copies of a log's checkpoints."""
    return Path(tempfile.gettempdir()) / f"esker-checkpoints-{os.getuid()}" / cluster_id / log


def copy_checkpoint(link: QuorumLink, directory: Path, snapshot_id: OffsetAndEpoch) -> Path:
    """Return this machine's copy of a checkpoint; download it if missing, delete older copies.

    Raises:  GoneError if the leader has it no more; LogsError; OSError.
    """
    _make_private(directory)
    path = directory / checkpoint_name(snapshot_id)
    with _one_at_a_time(directory):
        for _ in range(_ATTEMPTS):
            if path.exists() and _is_leaders(link, path, snapshot_id):
                _drop_older(directory, snapshot_id)
                return path
            path.unlink(missing_ok=True)
            _download(link, directory, snapshot_id)
    raise LogsError(f"{path.name}: {_ATTEMPTS} downloads of it were not whole")


def _make_private(directory: Path) -> None:
    """Create a directory that only this user can write to.

    Raises:  LogsError; OSError.
    """
    top = directory.parent.parent
    if not make_private(top):
        raise LogsError(f"{top} is not this user's alone; set TMPDIR to a directory of your own")
    directory.mkdir(parents=True, exist_ok=True)


def _is_leaders(link: QuorumLink, path: Path, snapshot_id: OffsetAndEpoch) -> bool:
    """Return whether a copy has the size and the last bytes of the leader's checkpoint.

    The last bytes contain the checksum of the content.

    A copy whose original the leader has deleted meanwhile is used: nothing contradicts it.
    """
    size = path.stat().st_size
    position = max(0, size - TAIL_BYTES)
    with path.open("rb") as file:
        file.seek(position)
        tail = file.read(TAIL_BYTES)
    try:
        if link.fetch_snapshot(snapshot_id, 0, 1).size_bytes != size:
            return False
        return bytes(link.fetch_snapshot(snapshot_id, position, TAIL_BYTES).data) == tail
    except GoneError:
        return True


def _download(link: QuorumLink, directory: Path, snapshot_id: OffsetAndEpoch) -> None:
    """Download a checkpoint, resuming a partial file; delete an invalid file."""
    download = PartDownload.begin(RealFileSystem(), directory, snapshot_id)
    try:
        complete = False
        while not complete:
            position = download.position
            piece = link.fetch_snapshot(snapshot_id, position, PIECE_BYTES)
            complete = download.take(position, piece)
        download.publish()
    except RejectedSnapshotError:
        return  # thrown away: from the beginning, then
    except GoneError:
        download.discard()
        raise
    finally:
        download.keep()


def _drop_older(directory: Path, snapshot_id: OffsetAndEpoch) -> None:
    """Delete the copies of older checkpoints, which tasks with an open file can still read."""
    for checkpoint in list_checkpoints(RealFileSystem(), directory):
        if checkpoint < snapshot_id:
            (directory / checkpoint_name(checkpoint)).unlink(missing_ok=True)


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory, so that other tasks of this machine wait."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
