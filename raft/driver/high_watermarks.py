"""Writes a node's high watermarks to a file every few seconds, for readers of its directory.

The quorum itself does not need the file: a restarted node learns the high watermark from its
leader. A write that fails is logged and repeated later.

Source: Kafka's `replica.high.watermark.checkpoint.interval.ms` (5 s); `raft.segments`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from raft.segments.errors import CorruptFileError
from raft.segments.files import FileSystem
from raft.segments.high_watermarks import read_high_watermarks, write_high_watermarks
from raft.wire.responses import Group
from records.types import Offset

log = logging.getLogger("raft.driver")

EVERY_S: Final = 5.0


class CommittedGroup(Protocol):
    """The part of a group that is written to the file."""

    group: Group

    @property
    def high_watermark(self) -> Offset | None:
        """Return the exclusive high watermark, or None until a leader has announced it."""
        ...


class HighWatermarks:
    """Writes the high watermark file of one log directory; writes run in a thread."""

    def __init__(self, files: FileSystem, log_dir: Path, every_s: float = EVERY_S) -> None:
        """Create the writer of the high watermark file, which writes once `start` is called."""
        self._files = files
        self._log_dir = log_dir
        self._every_s = every_s
        self._groups: Iterable[CommittedGroup] = ()
        self._written: dict[tuple[str, int], int] = {}
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def start(self, groups: Iterable[CommittedGroup]) -> None:
        """Start to write the high watermarks of `groups` every `every_s` seconds.

        Offsets written before a restart still hold, also for a group without a known watermark.
        """
        self._groups = groups
        with contextlib.suppress(OSError, CorruptFileError):
            self._written = read_high_watermarks(self._files, self._log_dir)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop the periodic writes, and write a last time if `start` was called."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            await self.write()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await asyncio.shield(self.write())

    async def write(self) -> None:
        """Write the current high watermarks to their file if they have changed."""
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        offsets = {}
        for group in self._groups:
            key = (group.group.topic, group.group.partition)
            offset = group.high_watermark
            known = self._written.get(key) if offset is None else offset
            if known is not None:
                offsets[key] = known
        if not offsets or offsets == self._written:
            return
        try:
            await asyncio.to_thread(write_high_watermarks, self._files, self._log_dir, offsets)
        except OSError as error:
            log.warning("log_dir=%s action=high_watermarks error=%r", self._log_dir, str(error))
        else:
            self._written = offsets
