"""Stores one group's checkpoints on this node: lists, reads, receives and drops them.

The store has a checkpoint from the moment it is whole under its final name until its log starts
past its end. A slow follower must not lose the checkpoint that it is fetching, or it would begin
anew for ever: a read *pins* the checkpoint, and the first `drop_below` after `PIN_MS` without a
read drops it.

The traps: only a download's partial file can be resumed, not one that a generation left. So a
download's file has the number 0 in its name, which generation never draws, and there is at most one
for each id. And the newest checkpoint is never dropped: a log that starts past 0 needs it.

`newest` and `ids` cost nothing; everything else may touch the disk. Several threads may call: the
lock is held while names and handles change, never while bytes are read.

Source: KIP-630, When to Delete Snapshots, Validation of Snapshot and Log;
docs/design/snapshots.md#when-a-snapshot-is-dropped.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raft.interfaces import EpochStarts, SnapshotChunk
from raft.segments.files import File, FileSystem, Mode
from records.errors import RecordError
from records.types import Offset, OffsetAndEpoch
from snapshot.download import PartDownload
from snapshot.names import (
    checkpoint_name,
    list_checkpoints,
    list_downloads,
    mark_deleted,
    remove_leftovers,
)
from snapshot.reader import read_preamble

PIN_MS: Final = 60_000
"""How long the last read of a checkpoint keeps it: many times a follower's pause between requests.
Upstream keeps a deleted file's bytes as long (file.delete.delay.ms)."""


class _Handle:
    """An open checkpoint."""

    __slots__ = ("file", "last_read_ms", "readers", "size_bytes")

    def __init__(self, file: File) -> None:
        self.file = file
        self.size_bytes = file.size()  # it never changes
        self.readers = 0  # inside `read` just now
        self.last_read_ms = 0.0


class SnapshotStore:
    """The checkpoints of one group's directory; implements `raft.interfaces.Snapshots`."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        *,
        now_ms: Callable[[], float],
        pin_ms: int = PIN_MS,
    ) -> None:
        """List the directory's checkpoints, and delete the files of unfinished checkpoints.

        Kept is the part of the newest download, if it is past every whole checkpoint.

        Args:    directory: it exists. now_ms: a clock that never goes backwards.
        Raises:  OSError.
        """
        self.files = files
        self.directory = directory
        self._now_ms = now_ms
        self._pin_ms = pin_ms
        self._lock = threading.Lock()
        self._handles: dict[OffsetAndEpoch, _Handle] = {}
        self._closed = False
        self._ids = tuple(list_checkpoints(files, directory))
        downloads = list_downloads(files, directory)
        keep = [downloads[max(downloads)]] if downloads else []
        if downloads and self._ids and max(downloads) <= self._ids[-1]:
            keep = []
        remove_leftovers(files, directory, keep=keep)

    # --- what there is ------------------------------------------------------------------------

    @property
    def ids(self) -> tuple[OffsetAndEpoch, ...]:
        """Return the ids of all complete checkpoints, oldest first."""
        return self._ids

    @property
    def newest(self) -> OffsetAndEpoch | None:
        """Return the id of the newest checkpoint, or None if there is none."""
        return self._ids[-1] if self._ids else None

    def path(self, snapshot_id: OffsetAndEpoch) -> Path:
        """Return the path that a complete checkpoint has, even if the file does not exist."""
        return self.directory / checkpoint_name(snapshot_id)

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        """Return a checkpoint's size in bytes, or None if it does not exist.

        Raises OSError.
        """
        with self._lock:
            handle = self._open(snapshot_id)
            return None if handle is None else handle.size_bytes

    # --- reading ------------------------------------------------------------------------------

    def read(
        self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
    ) -> SnapshotChunk | None:
        """Return at most `max_bytes` of a checkpoint from `position`, or None if it does not exist.

        Empty at the end.

        Raises:  ValueError if `position` is negative or past the end; OSError.
        """
        with self._lock:
            handle = self._open(snapshot_id)
            if handle is None:
                return None
            if not 0 <= position <= handle.size_bytes:
                raise ValueError(f"position {position} of {handle.size_bytes} bytes")
            handle.last_read_ms = self._now_ms()
            handle.readers += 1
        wanted = max(0, min(max_bytes, handle.size_bytes - position))
        try:
            return SnapshotChunk(handle.size_bytes, handle.file.read(position, wanted))
        finally:
            with self._lock:
                handle.readers -= 1
                self._close_idle()

    def _open(self, snapshot_id: OffsetAndEpoch) -> _Handle | None:
        if self._closed or snapshot_id not in self._ids:
            return None
        handle = self._handles.get(snapshot_id)
        if handle is None:
            file = self.files.open(self.path(snapshot_id), Mode.READ)
            handle = self._handles[snapshot_id] = _Handle(file)
            handle.last_read_ms = self._now_ms() - self._pin_ms  # no read of it has begun yet
        return handle

    def _is_pinned(self, snapshot_id: OffsetAndEpoch) -> bool:
        handle = self._handles.get(snapshot_id)
        if handle is None:
            return False
        if handle.readers or self._closed:
            return handle.readers > 0
        return self._now_ms() - handle.last_read_ms < self._pin_ms

    def _close_idle(self) -> None:
        for snapshot_id in [one for one in self._handles if not self._is_pinned(one)]:
            self._handles.pop(snapshot_id).file.close()

    # --- receiving ----------------------------------------------------------------------------

    def receive(self, snapshot_id: OffsetAndEpoch) -> PartDownload:
        """Begin the download of a checkpoint, or resume an earlier download's partial file.

        There is one download at a time: partial files of others are deleted. Raises OSError.
        """
        for other, path in list_downloads(self.files, self.directory).items():
            if other != snapshot_id:
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(path)
        return PartDownload.begin(self.files, self.directory, snapshot_id)

    def added(self, snapshot_id: OffsetAndEpoch) -> None:
        """Add a durably published checkpoint to the store's list of checkpoints."""
        assert self.files.exists(self.path(snapshot_id)), f"{self.path(snapshot_id)} is not there"
        with self._lock:
            self._ids = tuple(sorted({*self._ids, snapshot_id}))

    def epochs(self, snapshot_id: OffsetAndEpoch) -> EpochStarts:
        """Return the epochs in a checkpoint's header, or none if the checkpoint is damaged.

        Damage is told when the checkpoint is loaded. Raises OSError.
        """
        try:
            return read_preamble(self.files, self.path(snapshot_id)).epochs
        except RecordError:
            return ()

    # --- dropping -----------------------------------------------------------------------------

    def drop_below(self, log_start_offset: Offset) -> None:
        """Remove checkpoints below `log_start_offset`, except the newest and any being read.

        Call it again later: a checkpoint that is being read now is dropped then. Also deletes
        partial files of downloads that end below it. Raises OSError.
        """
        for snapshot_id in self._ids[:-1]:
            if snapshot_id.offset < log_start_offset:
                self._drop(snapshot_id)
        with self._lock:
            self._close_idle()
        for snapshot_id, path in list_downloads(self.files, self.directory).items():
            if snapshot_id.offset < log_start_offset:
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(path)

    def _drop(self, snapshot_id: OffsetAndEpoch) -> None:
        """Remove a checkpoint from the list and from the disk, unless it is being read.

        The file is renamed durably, and then unlinked.

        The unlink comes last because it may take long, and another reader (a command, a loading
        state machine) may have the file open.
        """
        with self._lock:
            if self._is_pinned(snapshot_id):
                return
            self._ids = tuple(one for one in self._ids if one != snapshot_id)
            handle = self._handles.pop(snapshot_id, None)
        if handle is not None:
            handle.file.close()
        self.files.unlink(mark_deleted(self.files, self.directory, snapshot_id))

    def close(self) -> None:
        """Close open checkpoint files as soon as their current reads have ended.

        Nothing can be read afterwards; the list stays.
        """
        with self._lock:
            self._closed = True
            self._close_idle()
