"""Adds to a broker's local segments what it wrote, and discards what the state no longer names.

A written object is in the memory cache, so its runs cost no GET. They are looked up after the
commit, since the coordinator has given the offsets; a run that is not in this broker's replica yet
is looked up again.

A pass compares segments with the replica: what lies below the log start, of a deleted topic, or of
runs that were replaced. Serving does not depend on it, as each Fetch asks for the runs by itself.

Source: docs/design/local-segments.md#filling, docs/design/local-segments.md#discarding.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from diskless.cluster import Cluster
from diskless.fetch.local_segments.cache import LocalSegments
from diskless.fetch.local_segments.format import TopicPartition, identify
from diskless.fetch.local_segments.segment import Segment
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import DamagedRunError, Run, read_runs
from diskless.stores import ByteRange, StorageError
from records.leader_epochs import LeaderEpochs

log = logging.getLogger("diskless.fetch.local_segments")

FILL_S: Final = 0.2  # between two looks at what was written
LOOKED_UP_BYTES: Final = 4 * 1024 * 1024  # of runs, at once
TRIES: Final = 25  # for the replica to learn of a commit
MAX_PARTITIONS: Final = 10_000  # whose written batches wait; more are left to consumers
PASS_S: Final = 30.0
COMPARED_ENTRIES: Final = 20_000  # of a pass: a tenth of a second

LookUp = Callable[[TopicPartition, int, int], Awaitable[Sequence[Run] | None]]
"""Finds the runs of a partition from an offset on, up to some bytes; None: unknown now."""


class SegmentFiller:
    """Fills and discards local segments in the background. Belongs to the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        segments: LocalSegments,
        *,
        cache: ObjectCache,
        look_up: LookUp,
        epochs: Callable[[TopicPartition], LeaderEpochs | None],
        stale_s: float,
    ) -> None:
        """Prepare the tasks of these segments, which `start` starts.

        Args:  epochs: gives the leader epochs to stamp; None: all batches have epoch 0.
               stale_s: for so long a segment may have bytes that the state no longer names.
        """
        self._cluster = cluster
        self._segments = segments
        self._cache = cache
        self._look_up = look_up
        self._epochs = epochs
        self._stale_s = stale_s
        self._written: dict[TopicPartition, tuple[int, int]] = {}  # first offset; tries left
        self._compared: set[Segment] = set()  # in this round of passes
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the background tasks."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._fill()), loop.create_task(self._pass_again())]

    async def close(self) -> None:
        """End the background tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- filling --------------------------------------------------------------------------------

    def note_written(self, partition: TopicPartition, base_offset: int) -> None:
        """Keep what this broker has committed to a partition from this offset on."""
        known = self._written.get(partition)
        if known is not None:
            base_offset = min(base_offset, known[0])
        elif len(self._written) >= MAX_PARTITIONS:
            return
        self._written[partition] = (base_offset, TRIES)

    async def _fill(self) -> None:
        while True:
            await asyncio.sleep(FILL_S)
            for partition in list(self._written):
                await self.fill(partition)

    async def fill(self, partition: TopicPartition) -> None:
        """Keep the next written runs of a partition, as far as they are in memory."""
        first_offset, tries = self._written.pop(partition)
        runs = await self._look_up(partition, first_offset, LOOKED_UP_BYTES)
        if not runs:
            if tries > 1 and partition not in self._written:
                self._written[partition] = (first_offset, tries - 1)
            return
        for run in runs:
            await asyncio.sleep(0)
            if self._is_in_memory(run) and not self._segments.holds(partition, run):
                await self._keep(partition, run)
        end_offset = runs[-1].last_offset + 1
        ends = self._ends(partition)
        if ends is not None and end_offset < ends[1] and partition not in self._written:
            self._written[partition] = (end_offset, TRIES)

    def _is_in_memory(self, run: Run) -> bool:
        where = ByteRange(run.byte_offset, run.size_bytes)
        return run.is_marker or self._cache.has(run.object_key, where)

    async def _keep(self, partition: TopicPartition, run: Run) -> None:
        try:
            await read_runs(
                self._cache,
                (run,),
                from_offset=run.base_offset,
                max_bytes=run.size_bytes,
                epochs=self._epochs(partition),
                on_read=lambda found: self._segments.fill(partition, found, is_tail=True),
            )
        except (DamagedRunError, StorageError) as error:
            log.warning("action=fill run=%s error=%r", run.object_key, str(error))

    def _ends(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return a partition's log start and high watermark in this broker's replica."""
        topic = self._cluster.image.topics.get(partition.topic_id)
        if topic is None or partition.partition not in topic.partitions:
            return None
        replica = self._cluster.replica(topic.coordinator(partition.partition))
        return None if replica is None else replica.ends(*partition)

    # --- discarding -----------------------------------------------------------------------------

    async def _pass_again(self) -> None:
        while True:
            await asyncio.sleep(PASS_S)
            await self.discard_stale()

    async def discard_stale(self) -> None:
        """Discard segments of deleted topics and records, and of runs that were replaced."""
        self._segments.note_times()
        compared, left = 0, 0
        for partition in self._segments.partitions():
            await asyncio.sleep(0)
            if not self._exists(partition):
                self._discard(self._segments.segments(partition), "topic")
                continue
            ends = self._ends(partition)
            if ends is None:  # the replica has not caught up
                continue
            for segment in self._segments.segments(partition):
                if segment.end_offset <= ends[0]:
                    self._discard([segment], "log_start")
                elif not self._segments.keeps(
                    partition, segment.base_offset, segment.end_offset - 1
                ):
                    self._discard([segment], "moved")
                elif segment not in self._compared and not segment.is_discarded:
                    if compared >= COMPARED_ENTRIES:
                        left += 1
                        continue
                    compared += segment.readable
                    self._compared.add(segment)
                    await self._compare(partition, segment)
        if not left:
            self._compared.clear()

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._cluster.image.topics.get(partition.topic_id)
        return topic is not None and partition.partition in topic.partitions

    def _discard(self, segments: Iterable[Segment], reason: str) -> None:
        for segment in segments:
            self._segments.discard(segment, reason)

    async def _compare(self, partition: TopicPartition, segment: Segment) -> None:
        """Discard a segment if much of it, or some of it for long, is of runs that are gone."""
        ranges = list(segment.ranges())  # those that come meanwhile are compared in the next pass
        named = await self._identities(partition, segment)
        if named is None or segment.is_discarded:
            return
        stale = sum(entry.size_bytes for entry in ranges if entry.identity not in named)
        now = asyncio.get_running_loop().time()
        if not stale:
            segment.stale_since = None
            return
        if segment.stale_since is None:
            segment.stale_since = now
        if 2 * stale >= segment.log_bytes or now - segment.stale_since >= self._stale_s:
            self._segments.discard(segment, "stale")

    async def _identities(self, partition: TopicPartition, segment: Segment) -> set[bytes] | None:
        """Return the identities of the runs that the replica has where a segment is."""
        named: set[bytes] = set()
        ends = self._ends(partition)
        if ends is None:
            return None
        offset, end_offset = max(segment.base_offset, ends[0]), segment.end_offset
        while offset < end_offset:
            await asyncio.sleep(0)
            runs = await self._look_up(partition, offset, LOOKED_UP_BYTES)
            if not runs:
                return None
            named.update(map(identify, runs))
            offset = runs[-1].last_offset + 1
        return named
