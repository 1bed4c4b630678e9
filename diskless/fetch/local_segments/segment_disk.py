"""The calls of one broker's local segments to their disk, and what is open there.

The trap: a disk that hangs. No call waits longer than `HANGS_S` for it, the shutdown included. But
the directory stays locked until the last call has ended: that call may still write there.

Source: docs/design/local-segments.md#the-directory.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from diskless.fetch.local_segments.directory import ClaimedDirectory, claim
from diskless.fetch.local_segments.disk_threads import DiskThreads
from diskless.fetch.local_segments.format import (
    TAIL,
    Header,
    parse_directory_name,
    parse_segment_name,
)
from diskless.fetch.local_segments.segment import (
    Descriptor,
    Segment,
    delete,
    load,
    open_and_read,
    read_cached,
    read_fully,
)

log = logging.getLogger("diskless.fetch.local_segments")

HANGS_S: Final = 5.0  # a disk hangs that takes longer for a read, a write, or the shutdown
BEGIN_S: Final = 30.0  # to claim the directory, or to load one more segment
READERS: Final = 4  # threads
MAX_DESCRIPTORS: Final = 256

T = TypeVar("T")


class DiskHangsError(Exception):
    """A read of the disk takes too long."""


class SegmentDisk:
    """The disk of one broker's local segments. Belongs to the event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        cluster_id: str,
        node_id: int,
        others: Sequence[tuple[str, Path]],
        executor: Executor | None = None,
    ) -> None:
        """Prepare the threads; nothing on the disk is touched yet.

        Args:  others: directories of other uses, and the settings that name them.
               executor: runs all calls, one at a time; None: threads of its own.
        """
        self._path = directory
        self._cluster_id = cluster_id
        self._claim = partial(
            claim, directory, cluster_id=cluster_id, node_id=node_id, others=others
        )
        self._directory: ClaimedDirectory | None = None
        self._descriptors: OrderedDict[Segment, Descriptor] = OrderedDict()
        self._is_serving = False
        self._released: Future[None] | None = None
        self._progress_at = 0.0  # of the start, on the monotonic clock
        self._late_until = 0.0  # loop time: the disk is taken to hang until then
        self._own_threads: tuple[DiskThreads, ...] = ()
        if executor is None:
            writer, readers = DiskThreads("segments", 1), DiskThreads("segments-read", READERS)
            self._own_threads = (writer, readers)
            self.writer: Executor = writer
            self._readers: Executor = readers
        else:
            self.writer = self._readers = executor

    @property
    def hangs(self) -> bool:
        """Return whether a call of the disk takes long, or a read has been given up just now."""
        return self._is_serving and (
            any(threads.longest_running_s > HANGS_S for threads in self._own_threads)
            or asyncio.get_running_loop().time() < self._late_until
        )

    async def claim_and_load(self) -> tuple[list[tuple[Segment, float]], int]:
        """Claim the directory; return its segments with the times of their last use.

        The second value is the number of segments that were not sound, and were deleted.

        Raises:  TimeoutError if there was no progress for `BEGIN_S`; CacheDirectoryError; OSError.
        """

        def work() -> tuple[list[tuple[Segment, float]], int]:
            self._directory = self._claim()
            return self._load_all()

        self._progress_at = time.monotonic()
        loaded = asyncio.get_running_loop().run_in_executor(self.writer, work)
        while not loaded.done():
            await asyncio.wait([loaded], timeout=BEGIN_S)
            if not loaded.done() and time.monotonic() - self._progress_at >= BEGIN_S:
                loaded.cancel()  # what it returns later is nobody's
                raise TimeoutError
        found = loaded.result()
        self._is_serving = True
        return found

    def _load_all(self) -> tuple[list[tuple[Segment, float]], int]:
        """Read all segments in the directory; delete files of segments that are not sound."""
        found: list[tuple[Segment, float]] = []
        damaged_count = 0
        for child in sorted(self._path.iterdir()):
            partition = parse_directory_name(child.name)
            if partition is None or child.is_symlink() or not child.is_dir():
                continue
            names = {path.name for path in child.iterdir()}
            offsets = {parse_segment_name(name) for name in names} - {None}
            for base_offset in sorted(offset for offset in offsets if offset is not None):
                if self._released is not None:
                    return found, damaged_count
                self._progress_at = time.monotonic()
                loaded = load(child, partition, base_offset, self._cluster_id)
                if loaded is not None:
                    found.append(loaded)
                    continue
                damaged_count += 1
                _delete(Segment(partition, base_offset, child, Header(TAIL, 0, b"")))
            with suppress(OSError):  # has files
                child.rmdir()
        return found, damaged_count

    async def read(self, segment: Segment, position: int, target: memoryview) -> int:
        """Fill `target` with a segment's bytes from a position on; return how many there were.

        Raises:  DiskHangsError; OSError.
        """
        known = self._descriptors.get(segment)
        if known is None:
            path = segment.file(".log")
            opened, count = await self._call_with_deadline(open_and_read, path, position, target)
            self._keep_open(segment, opened)
            return count
        self._descriptors.move_to_end(segment)
        count = read_cached(known, position, target)
        if count < len(target):
            count += await self._call_with_deadline(
                read_fully, known, position + count, target[count:]
            )
        return count

    def _keep_open(self, segment: Segment, descriptor: Descriptor) -> None:
        """Keep a segment's file open, and close the longest unused one past the limit."""
        if not segment.is_discarded:
            self._descriptors[segment] = descriptor
            if len(self._descriptors) > MAX_DESCRIPTORS:
                self._descriptors.popitem(last=False)

    async def _call_with_deadline(self, call: Callable[..., T], *args: object) -> T:
        """Return the result of `call(*args)`, which runs in a thread of the readers.

        Raises:  DiskHangsError if it takes longer than `HANGS_S`, or the disk hangs already;
                 whatever `call` raises.
        """
        if self.hangs or self._released is not None:
            raise DiskHangsError
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANGS_S) as deadline:
                return await loop.run_in_executor(self._readers, partial(call, *args))
        except TimeoutError:
            if not deadline.expired():
                raise  # of the disk: ETIMEDOUT
            self._late_until = loop.time() + HANGS_S
            raise DiskHangsError from None

    def delete(self, segment: Segment) -> None:
        """Close a segment's file, and delete its files after all submitted calls."""
        self._descriptors.pop(segment, None)
        if self._released is None:
            self.writer.submit(_delete, segment)

    def touch(self, segments: Sequence[Segment]) -> None:
        """Set the modification time of the segments' files to now."""
        if self._released is None:
            self.writer.submit(_touch, segments)

    def release(self) -> Future[None]:
        """Release the directory after all submitted calls; return the call that does it."""
        if self._released is None:
            self._is_serving = False
            self._released = self.writer.submit(self._release_directory)
            self.writer.shutdown(wait=False)
            self._readers.shutdown(wait=False)
        return self._released

    def _release_directory(self) -> None:
        self._descriptors.clear()
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.release()


def _delete(segment: Segment) -> None:
    try:
        delete(segment)
    except OSError as error:
        log.warning("segment=%s action=delete error=%r", segment.path, reason_of(error))


def _touch(segments: Sequence[Segment]) -> None:
    for segment in segments:
        with suppress(OSError):
            os.utime(segment.file(".log"))


def reason_of(error: OSError) -> str:
    """Return an error of the disk as words."""
    code = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror or error} ({code})" if code else str(error)
