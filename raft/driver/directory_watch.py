"""Ends a node whose log directory went away under it.

A write to a file that was unlinked succeeds, and so does its flush. A node whose directory is
removed, or hidden by a mount, would go on to acknowledge records that no restart can find. So twice
a second the watch compares the directory with the one that the node opened.

Source: docs/design/health.md#a-directory-that-goes-away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from raft.driver.errors import DirectoryGoneError
from raft.segments.properties import META_PROPERTIES_FILE, QUORUM_STATE_FILE

INTERVAL_S: Final = 0.5


class DirectoryWatch:
    """Checks a node's directories from `start` to `close`."""

    def __init__(
        self,
        log_dir: Path,
        group_directories: Callable[[], Iterable[Path]],
        on_gone: Callable[[DirectoryGoneError], None],
    ) -> None:
        """Remember the identity of the log directory, to notice later if it is replaced.

        Args:    group_directories: gives the directories of the groups that run.
                 on_gone: called once, with the first directory or file that is missing.
        Raises:  OSError.
        """
        self._log_dir = log_dir
        self._group_directories = group_directories
        self._on_gone = on_gone
        self._identity = _identity(log_dir)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to check periodically whether the node's directories still exist."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="directory-watch")

    async def close(self) -> None:
        """Stop the periodic checks of the node's directories."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            directories = tuple(self._group_directories())
            # In a thread: on a file system that hangs a stat hangs, too.
            missing = await asyncio.to_thread(self.find_missing, directories)
            if missing is not None:
                self._on_gone(DirectoryGoneError(missing))
                return

    def find_missing(self, group_directories: Iterable[Path]) -> Path | None:
        """Return the first path of the node that is missing or replaced, or None."""
        try:
            if _identity(self._log_dir) != self._identity:
                return self._log_dir
            watched = (
                self._log_dir / META_PROPERTIES_FILE,
                *(directory / QUORUM_STATE_FILE for directory in group_directories),
            )
            return next((path for path in watched if not path.exists()), None)
        except FileNotFoundError:
            return self._log_dir


def _identity(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_dev, status.st_ino
