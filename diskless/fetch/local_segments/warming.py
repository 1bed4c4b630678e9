"""Reads closed chunks that this broker is a replica of into its local segments.

A chunk that is moved here (KIP-1114) would otherwise be read from the store by its first consumers.
What the segments have already is not read again, so a restart costs what is missing.

The trap: warming must cost consumers nothing. It goes through a memory cache of its own, stays
within what catch-up readers may have of the disk, and ends where there is no room, since a segment
that it drives out is one that somebody reads.

Source: docs/design/chunks.md#warming-up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.chunk_placement import chunk_at
from diskless.cluster import Cluster
from diskless.fetch.local_segments.cache import LocalSegments
from diskless.fetch.local_segments.filler import LOOKED_UP_BYTES, LookUp
from diskless.fetch.local_segments.format import TopicPartition
from diskless.fetch.object_cache import CacheSettings, ObjectCache
from diskless.fetch.runs_reader import DamagedRunError, Run, read_runs
from diskless.loop_turns import Pace
from diskless.stores import ByteRange, ObjectStorage, StorageError
from records.chunks import ChunkRecord
from records.leader_epochs import LeaderEpochs

log = logging.getLogger("diskless.fetch.local_segments")

LOOK_S: Final = 5.0  # between two looks at the image
RETRY_S: Final = 30.0  # after the store, the disk or the replica failed
QUEUED_BYTES: Final = 4 * 1024 * 1024  # that may wait for the disk before more is read
QUEUE_S: Final = 0.1  # between two looks at that queue


class _Assigned(NamedTuple):
    """A chunk that this broker is a replica of."""

    topic_id: UUID
    partition: int
    start_offset: int
    epoch: int
    last_offset: int  # inclusive


class ChunkWarming:
    """Warms one broker's local segments in the background. Belongs to the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        segments: LocalSegments,
        *,
        store: ObjectStorage,
        cache: ObjectCache,
        look_up: LookUp,
        epochs: Callable[[TopicPartition], LeaderEpochs | None],
    ) -> None:
        """Prepare the task that `start` starts.

        Args:  cache: the broker's memory cache, which is read and not filled; its counters count
                   the GETs.
               epochs: gives the leader epochs to stamp; None: all batches have epoch 0.
        """
        self._cluster = cluster
        self._segments = segments
        self._cache = cache
        self._own = ObjectCache(store, CacheSettings(max_bytes=0), counters=cache.counters)
        self._look_up = look_up
        self._epochs = epochs
        self._seen: object = None  # the image that was looked at
        self._done: set[_Assigned] = set()
        self._retry_at = float("inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="warming")

    async def close(self) -> None:
        """End the background task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._own.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            is_due = asyncio.get_running_loop().time() >= self._retry_at
            if is_due or self._cluster.image is not self._seen:
                await self.warm()

    async def warm(self) -> None:
        """Read what the segments lack of this broker's closed chunks."""
        self._seen, self._retry_at = self._cluster.image, float("inf")
        assigned: list[_Assigned] = []
        pace = Pace()
        for topic in list(self._cluster.image.topics.values()):
            await pace.step()
            for index in topic.chunks:
                assigned += self._assigned(topic.topic_id, index, topic.chunks[index])
        self._done.intersection_update(assigned)
        for chunk in assigned:
            if chunk in self._done:
                continue
            if await self._warm(chunk):
                self._done.add(chunk)
            else:
                self._retry_at = asyncio.get_running_loop().time() + RETRY_S

    def _assigned(
        self, topic_id: UUID, index: int, chunks: Sequence[ChunkRecord]
    ) -> Iterator[_Assigned]:
        for chunk in chunks:
            if self._cluster.broker_id in chunk.replicas:
                epoch, last = chunk.chunk_epoch, chunk.end_offset
                yield _Assigned(topic_id, index, chunk.start_offset, epoch, last)

    async def _warm(self, chunk: _Assigned) -> bool:
        """Read what is missing of a chunk; return False if it must be tried again."""
        partition = TopicPartition(chunk.topic_id, chunk.partition)
        offset, read_bytes, skipped_bytes = self._start_of(chunk), 0, 0
        while offset is not None and offset <= chunk.last_offset:
            if not self._is_mine(chunk, offset):
                break
            runs = await self._look_up(partition, offset, LOOKED_UP_BYTES)
            if not runs or self._segments.fault is not None:
                return False
            chosen: list[Run] = []
            size_bytes = 0
            for run in runs:
                if run.base_offset > chunk.last_offset or self._segments.holds(partition, run):
                    continue
                if self._segments.can_fill(size_bytes + run.size_bytes):
                    chosen.append(run)
                    size_bytes += run.size_bytes
                else:
                    skipped_bytes += run.size_bytes
            if chosen and not await self._read(partition, chosen):
                return False
            read_bytes += size_bytes
            offset = runs[-1].last_offset + 1
        self._segments.counters.warmed_bytes += read_bytes
        self._segments.counters.unwarmed_bytes += skipped_bytes
        if read_bytes or skipped_bytes:
            words = (partition.directory_name, chunk.start_offset, read_bytes, skipped_bytes)
            log.info("action=warm partition=%s chunk=%d bytes=%d left_out=%d", *words)
        return offset is not None

    def _start_of(self, chunk: _Assigned) -> int | None:
        """Return the first offset of a chunk that exists; None if this broker cannot say."""
        topic = self._cluster.image.topics.get(chunk.topic_id)
        if topic is None:
            return None
        replica = self._cluster.replica(topic.coordinator(chunk.partition))
        ends = None if replica is None else replica.ends(chunk.topic_id, chunk.partition)
        return None if ends is None else max(chunk.start_offset, ends[0])

    def _is_mine(self, chunk: _Assigned, offset: int) -> bool:
        """Return whether this broker still is a replica of a chunk."""
        topic = self._cluster.image.topics.get(chunk.topic_id)
        if topic is None or chunk.partition not in topic.partitions:
            return False
        span = chunk_at(topic, chunk.partition, offset)
        return span is not None and self._cluster.broker_id in span.replicas

    async def _read(self, partition: TopicPartition, runs: Sequence[Run]) -> bool:
        """Read runs and keep them; return False if the store failed."""
        while self._segments.queued_bytes > QUEUED_BYTES:
            await asyncio.sleep(QUEUE_S)
        # All at once, so that neighbours in an object share a GET.
        found = await asyncio.gather(
            *(self._read_run(partition, run) for run in runs), return_exceptions=True
        )
        for outcome in found:
            if isinstance(outcome, DamagedRunError):
                log.warning("action=warm error=%r", str(outcome))
            elif isinstance(outcome, StorageError):
                log.warning("action=warm error=%r", str(outcome))
                return False
            elif isinstance(outcome, BaseException):
                raise outcome
        return True

    async def _read_run(self, partition: TopicPartition, run: Run) -> None:
        is_cached = self._cache.has(run.object_key, ByteRange(run.byte_offset, run.size_bytes))
        await read_runs(
            self._cache if is_cached else self._own,
            (run,),
            from_offset=run.base_offset,
            max_bytes=run.size_bytes,
            epochs=self._epochs(partition),
            on_read=lambda batches: self._segments.fill(partition, batches, is_tail=False),
        )
