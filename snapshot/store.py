"""One group's checkpoints on this node: what there is, reading them, receiving them, dropping them.

A checkpoint is on the shelf from the moment it is whole under its final name until its log starts
past its end. A follower that fetches one byte by byte must not lose it in the middle, or a slow one
would begin anew for ever: who reads a checkpoint *pins* it, and it is dropped by the first
`drop_below` after nobody has read it for a while.

Surprises. A part is worth keeping only if a download left it: what generation left, nobody can go
on with. So a download's part has the number 0 in its name, which generation never draws, and there
is at most one of each id. And the newest checkpoint is never dropped, whatever is asked: a log that
starts past 0 has nothing else to begin with.

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

from raft.interfaces import Piece
from raft.segments.files import File, FileSystem, Mode
from records.types import Offset, OffsetAndEpoch
from snapshot.download import PartDownload
from snapshot.names import (
    checkpoint_name,
    list_checkpoints,
    list_downloads,
    mark_deleted,
    remove_leftovers,
)

PIN_MS: Final = 60_000
"""How long the last read of a checkpoint keeps it: many times what a follower takes to ask again.
Upstream keeps a deleted file's bytes as long (file.delete.delay.ms)."""


class _Handle:
    """An open checkpoint."""

    __slots__ = ("file", "last_read_ms", "readers", "size_bytes")

    def __init__(self, file: File) -> None:
        self.file = file
        self.size_bytes = file.size()  # it never changes
        self.readers = 0  # inside `read` just now
        self.last_read_ms = 0.0


class Shelf:
    """See the module. Implements `raft.interfaces.Snapshots`."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        *,
        now_ms: Callable[[], float],
        pin_ms: int = PIN_MS,
    ) -> None:
        """Look at what is there, and remove what no checkpoint can come of.

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
        """All there are, oldest first."""
        return self._ids

    @property
    def newest(self) -> OffsetAndEpoch | None:
        """The last of `ids`, None if there is none."""
        return self._ids[-1] if self._ids else None

    def path(self, snapshot_id: OffsetAndEpoch) -> Path:
        """Where a whole checkpoint is, or would be."""
        return self.directory / checkpoint_name(snapshot_id)

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        """How large a checkpoint is; None if there is no such one. Raises OSError."""
        with self._lock:
            handle = self._open(snapshot_id)
            return None if handle is None else handle.size_bytes

    # --- reading ------------------------------------------------------------------------------

    def read(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> Piece | None:
        """At most `max_bytes` from `position`; nothing at the end; None if it is not here.

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
            return Piece(handle.size_bytes, handle.file.read(position, wanted))
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
            handle.last_read_ms = self._now_ms() - self._pin_ms  # nobody has read it yet
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

    # --- coming -------------------------------------------------------------------------------

    def receive(self, snapshot_id: OffsetAndEpoch) -> PartDownload:
        """Begin a download, or go on with the part that an earlier one left.

        One at a time: parts of other downloads are thrown away. Raises OSError.
        """
        for other, path in list_downloads(self.files, self.directory).items():
            if other != snapshot_id:
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(path)
        return PartDownload.begin(self.files, self.directory, snapshot_id)

    def added(self, snapshot_id: OffsetAndEpoch) -> None:
        """A checkpoint was published here, durably."""
        assert self.files.exists(self.path(snapshot_id)), f"{self.path(snapshot_id)} is not there"
        with self._lock:
            self._ids = tuple(sorted({*self._ids, snapshot_id}))

    # --- going --------------------------------------------------------------------------------

    def drop_below(self, log_start_offset: Offset) -> None:
        """Drop checkpoints that end below it, but the newest, and those that somebody reads.

        Ask again now and then, with the log start of the day: what was read then goes later. Also
        forgets parts of downloads that the log has overtaken. Raises OSError.
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
        """First it is not listed, then its name goes, durably, and the bytes last: they may be
        many, and a reader of its own (a command, a loading state machine) may have them open."""
        with self._lock:
            if self._is_pinned(snapshot_id):
                return
            self._ids = tuple(one for one in self._ids if one != snapshot_id)
            handle = self._handles.pop(snapshot_id, None)
        if handle is not None:
            handle.file.close()
        self.files.unlink(mark_deleted(self.files, self.directory, snapshot_id))

    def close(self) -> None:
        """Let go of open files: at once, or when whoever reads one just now has its bytes.

        From now on nothing can be read here. What is listed stays listed.
        """
        with self._lock:
            self._closed = True
            self._close_idle()
