"""Fetch: finds batches in this broker's own replica and reads their bytes from the store.

A lookup needs no other process: the batch coordinates are in this one. A Fetch waits, as long as
the request allows, until there are enough bytes; it looks again after every commit that this broker
learns of.

The trap: errors must not rest on the broker's own replica. The replica may lag, so an offset above
its high watermark need not be out of range, and an offset whose object is missing from the store
need not be lost. The coordinator decides both behind its read barrier, at most once per request and
after its waiting; if it does not answer, clients get an error that they retry
(OFFSET_NOT_AVAILABLE). A replica that is too old serves nothing (`diskless.fetch.staleness`).

The partitions of a request rotate, so that a busy one does not starve those behind it; the first
gets at least one batch, however large (KIP-74). A client in another rack is occasionally redirected
to a broker in its own rack, and one of a chunk to a broker that keeps it.

Source: the protocol guide, Fetch; KIP-74, KIP-227 (sessions are never granted), KIP-392 (preferred
read replica), KIP-516 (topic ids); docs/design/broker.md#fetch,
docs/design/broker.md#staleness-is-bounded, docs/design/broker.md#any-broker-leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.reads import READ_COMMITTED
from coordinator.controller.chunk_placement import is_cut
from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.placement import PlacedBroker, is_known, unfenced_brokers
from coordinator.errors import CoordinatorError
from diskless.cluster import Cluster
from diskless.fetch.chunk_routing import ChunkRouting, Reader
from diskless.fetch.commit_notifications import CommitNotifications
from diskless.fetch.local_segments.cache import LocalSegments
from diskless.fetch.local_segments.format import TopicPartition
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.read_ahead import ReadAhead, ReadAheadSettings
from diskless.fetch.runs_reader import (
    DamagedRunError,
    FinalBatches,
    Run,
    is_in_memory,
    read_runs,
    read_runs_in_place,
    run_of,
)
from diskless.fetch.staleness import Staleness
from diskless.loop_turns import Pace
from diskless.placement import Redirects, rack_hint
from diskless.request_time import timed
from diskless.stores import ObjectNotFoundError, StorageError
from diskless.traffic import Traffic
from records.kafka_errors import ErrorCode
from records.leader_epochs import LeaderEpochs
from records.rpc import batch_coordinator as rpc
from records.rpc.fetch import FetchRequest, FetchResponse
from records.wire import BufferChain

log = logging.getLogger("diskless.fetch.service")

FIRST_WITH_PREFERRED: Final = 11  # of Fetch: the first whose answer names a read replica
FIRST_WITH_TOPIC_IDS: Final = 13
MAX_WAIT_MS: Final = 60_000
BARRIER_S: Final = 5.0  # timeout for the coordinator to decide what is out of range
ASKED_AT_ONCE: Final = 1_000  # partitions of one request to the coordinator
LOOKED_UP_AT_ONCE: Final = 200  # partitions, before the loop runs other tasks
FEW_PARTITIONS: Final = 500  # a Fetch of more pauses between two checks of its partitions
PAUSE_OF_EACH_S: Final = 1e-5  # of that pause, per partition; a check takes a tenth of it
MAX_BYTES: Final = 64 * 1024 * 1024  # of one response, whatever the request allows


NOWHERE_ELSE: Final = -1  # the preferred read replica: this broker

EARLIEST: Final = -2  # ListOffsets' timestamps
LATEST: Final = -1

_Topic = FetchResponse.FetchableTopicResponse
_Aborted = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction
_Partition = FetchResponse.FetchableTopicResponse.PartitionData
_FoundBatches = rpc.FindBatchesResponse.Topic.Partition
_ListedOffset = rpc.ListDisklessOffsetsResponse.Topic.Partition


class _RequestedPartition(NamedTuple):
    """A partition of a Fetch request."""

    topic_id: UUID
    coordinator: int
    partition: int
    offset: int
    max_bytes: int
    committed: bool = False  # read_committed: up to the last stable offset
    is_cut: bool = False  # into chunks (KIP-1114)


class _PartitionResult(NamedTuple):
    """The result for one partition, before its bytes are read."""

    error: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    runs: tuple[Run, ...] = ()
    asked: _RequestedPartition | None = None  # set if there are runs, or the offset is in doubt
    is_below: bool = False  # in doubt: below the replica's log start
    is_above: bool = False  # in doubt: above the replica's high watermark
    preferred: int = NOWHERE_ELSE
    max_bytes: int = 0  # of the runs' bytes in the response; the first batch is always whole
    last_stable_offset: int = -1  # -1: the high watermark
    aborted: tuple[rpc.AbortedTransaction, ...] = ()
    ends_at_chunk: bool = False  # the next Fetch is led to another broker


@dataclass(slots=True)
class FetchCounters:
    """Counts of fetched bytes, errors and redirects, for metrics."""

    requests: int = 0
    bytes_out: int = 0  # of batches
    errors: Counter[int] = field(default_factory=Counter)  # partitions, by error code
    barriers: int = 0  # partitions that were decided behind the read barrier
    redirects: int = 0
    unknown_racks: int = 0  # requests from a rack without a broker
    missing_objects: int = 0  # referenced, and not in the store: data loss, or the wrong store
    damaged_runs: int = 0


class FetchService:
    """Serves Fetch for one broker. Belongs to the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        cache: ObjectCache,
        news: CommitNotifications,
        staleness: Staleness,
        read_ahead: ReadAheadSettings | None = None,
        traffic: Traffic | None = None,
        segments: LocalSegments | None = None,
    ) -> None:
        """Create the service that answers Fetch requests for this cluster.

        Args:  news: notified whenever a replica or the image has changed.
               traffic: counts the bytes sent of each topic.
               segments: batches on this broker's disk; None: all bytes come from the store.
        """
        self.read_ahead = ReadAhead(
            cache, read_ahead or ReadAheadSettings(), is_local=self._is_local
        )
        self._segments = segments
        self.counters = FetchCounters()
        self.reading_bytes = 0  # of answers being made
        self._cluster = cluster
        self._cache = cache
        self._news = news
        self._staleness = staleness
        self.last_missing: tuple[str, float] | None = None  # key and loop time of the last 404
        self._leaving = False
        self._redirects = Redirects()
        self._turn = 0
        self._traffic = traffic or Traffic(cluster.image.topics)

    async def fetch(
        self,
        request: FetchRequest,
        version: int,
        *,
        client: str = "",
        room: Callable[[], int] = lambda: MAX_BYTES,
    ) -> FetchResponse:
        """Answer a Fetch once enough bytes are available, or at the end of its waiting time.

        Args:    client: any string that tells clients apart.
                 room: gives the most bytes that the response may have now, whatever the request
                     allows; the first batch is always whole.
        """
        self.counters.requests += 1
        if request.session_id > 0:  # none is ever granted
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(0, request.max_wait_ms), MAX_WAIT_MS) / 1_000
        redirected = False
        while True:
            max_bytes = max(0, min(request.max_bytes, MAX_BYTES, room()))
            answers = await self._look_up(request, version, max_bytes)
            if not redirected:
                answers = self._redirect(request, client, answers, loop.time())
                answers = self._lead_to_chunks(request, version, client, answers)
                redirected = True
            left_s = deadline - loop.time()
            found_bytes = sum(run.size_bytes for answer in answers for run in answer.runs)
            has_result = any(
                a.error or a.is_below or a.preferred != NOWHERE_ELSE or a.ends_at_chunk
                for a in answers
            )
            if has_result or found_bytes >= request.min_bytes or left_s <= 0 or not answers:
                break
            await self._wait_for_change(answers, deadline)
        answers = await self._resolve_doubts(answers)
        found_bytes = sum(run.size_bytes for answer in answers for run in answer.runs)
        self.reading_bytes += found_bytes
        try:
            return await self._read_all(request, answers)
        finally:
            self.reading_bytes -= found_bytes

    async def _wait_for_change(self, answers: list[_PartitionResult], deadline: float) -> None:
        """Wait until a fetched partition has changed, or until the deadline.

        Every commit wakes every waiting Fetch, and few of them are concerned: so each compares log
        start and high watermark, which are in memory, before it looks up batches. A Fetch of
        thousands of partitions pauses between two checks, or it would do nothing else.
        """
        loop, image = asyncio.get_running_loop(), self._cluster.image
        seen = [
            (answer.asked, (answer.log_start_offset, _end_of(answer)))
            for answer in answers
            if answer.asked is not None
        ]
        while (left_s := deadline - loop.time()) > 0:
            if self._leaving or self._cluster.image is not image:
                return
            if any(self._ends(partition) != ends for partition, ends in seen):
                return
            await self._news.wait(left_s)
            if len(seen) > FEW_PARTITIONS:
                pause_s = min(deadline - loop.time(), PAUSE_OF_EACH_S * len(seen))
                await asyncio.sleep(max(0.0, pause_s))

    def _ends(self, asked: _RequestedPartition) -> tuple[int, int] | None:
        """Return a partition's log start and readable end in this broker's replica."""
        replica = self._cluster.replica(asked.coordinator)
        if replica is None:
            return None
        ends = replica.stable_ends if asked.committed else replica.ends
        return ends(asked.topic_id, asked.partition)

    async def close(self) -> None:
        """Cancel the reads ahead, which no Fetch waits for."""
        await self.read_ahead.close()

    def leave(self) -> None:
        """Redirect all clients, with or without a waiting Fetch, because the broker is stopping."""
        self._leaving = True
        self._news.notify()

    def _redirect(
        self, request: FetchRequest, client: str, answers: list[_PartitionResult], now_s: float
    ) -> list[_PartitionResult]:
        """Redirect a client of another rack to a broker in the client's own rack."""
        image = self._cluster.image
        registered = image.brokers.get(self._cluster.broker_id)
        if not request.rack_id or registered is None or registered.rack == request.rack_id:
            return answers
        brokers = unfenced_brokers(image)
        if not is_known(request.rack_id, brokers):
            self.counters.unknown_racks += 1
            return answers
        here = PlacedBroker(self._cluster.broker_id, registered.rack)
        redirected = []
        for answer in answers:
            asked = answer.asked
            if asked is not None and _is_certain(answer) and not asked.is_cut:
                nearer = self._redirects.preferred_broker(
                    client, asked.topic_id, asked.partition, request.rack_id, here, brokers, now_s
                )
                if nearer is not None:
                    self.counters.redirects += 1
                    answer = answer._replace(runs=(), preferred=nearer)
            redirected.append(answer)
        return redirected

    def _lead_to_chunks(
        self, request: FetchRequest, version: int, client: str, answers: list[_PartitionResult]
    ) -> list[_PartitionResult]:
        """Lead a client to the brokers that keep the chunks it reads; end answers at a chunk's end.

        Answers of older versions cannot name a broker, so those clients are served here.
        """
        is_cut = (answer.asked is not None and answer.asked.is_cut for answer in answers)
        if version < FIRST_WITH_PREFERRED or not any(is_cut):
            return answers
        routing = ChunkRouting(self._cluster.image, self._cluster.broker_id, self._redirects)
        reader = Reader(client, request.rack_id or rack_hint(client.rpartition("@")[0]))
        now_s, led = asyncio.get_running_loop().time(), []
        for answer in answers:
            asked = answer.asked
            if asked is not None and asked.is_cut and _is_certain(answer):
                partition = TopicPartition(asked.topic_id, asked.partition)
                route = routing.route(partition, asked.offset, reader, now_s)
                if route is not None and route.broker_id is not None:
                    self.counters.redirects += 1
                    answer = answer._replace(runs=(), preferred=route.broker_id)
                elif route is not None and route.last_offset is not None:
                    runs = tuple(run for run in answer.runs if run.base_offset <= route.last_offset)
                    is_short = len(runs) < len(answer.runs)
                    answer = answer._replace(runs=runs, ends_at_chunk=is_short)
            led.append(answer)
        return led

    # --- batch lookup ---------------------------------------------------------------------------

    async def _look_up(
        self, request: FetchRequest, version: int, bytes_left: int
    ) -> list[_PartitionResult]:
        """Look up every partition of the request; return the results in the request's order."""
        image, pace = self._cluster.image, Pace()
        committed = request.isolation_level == READ_COMMITTED
        requested: list[_PartitionResult | _RequestedPartition] = []
        for topic in request.topics:
            for wanted in topic.partitions:
                await pace.step()
                requested.append(_resolve(image, version, topic, wanted, committed))
        answers = [
            known if isinstance(known, _PartitionResult) else _PartitionResult()
            for known in requested
        ]
        served = [
            (i, known)
            for i, known in enumerate(requested)
            if isinstance(known, _RequestedPartition)
        ]
        if served:
            self._turn += 1
            first = self._turn % len(served)
            served = served[first:] + served[:first]
        by_coordinator: dict[int, list[tuple[int, _RequestedPartition]]] = {}
        for index, partition in served:
            by_coordinator.setdefault(partition.coordinator, []).append((index, partition))
        has_batch = False  # the response: the first batch is whole, later ones must fit
        for coordinator, partitions in by_coordinator.items():
            for begin in range(0, len(partitions), LOOKED_UP_AT_ONCE):
                if begin:
                    await asyncio.sleep(0)
                chunk = partitions[begin : begin + LOOKED_UP_AT_ONCE]
                found = await self._find(coordinator, [asked for _, asked in chunk], bytes_left)
                for (index, asked), batches in zip(chunk, found, strict=True):
                    answer = _answer_of(asked, batches, min(asked.max_bytes, bytes_left))
                    if answer.runs and bytes_left <= 0 and has_batch:
                        answer = answer._replace(runs=())
                    has_batch = has_batch or bool(answer.runs)
                    answers[index] = answer
                    bytes_left -= sum(run.size_bytes for run in answer.runs)
                bytes_left = max(0, bytes_left)
        return answers

    async def _find(
        self, coordinator: int, asked: list[_RequestedPartition], max_bytes: int
    ) -> list[_FoundBatches | None]:
        """Find batches in this broker's replica; None if the replica is missing or too old."""
        replica = self._cluster.replica(coordinator)
        if replica is None or self._leaving or not self._staleness.may_serve(coordinator):
            return [None] * len(asked)
        topic = rpc.FindBatchesRequest.Topic
        request = rpc.FindBatchesRequest(
            coordinator_partition=coordinator,
            max_bytes=max_bytes,
            isolation_level=READ_COMMITTED if asked[0].committed else 0,
            topics=tuple(
                topic(
                    topic_id=partition.topic_id,
                    partitions=(
                        topic.Partition(
                            partition_index=partition.partition,
                            offset=partition.offset,
                            max_bytes=partition.max_bytes,
                        ),
                    ),
                )
                for partition in asked
            ),
        )
        try:
            answer = await replica.call(request)
        except CoordinatorError as error:
            log.warning("coordinator=%d reason=%r", coordinator, str(error))
            return [None] * len(asked)
        return [found.partitions[0] for found in answer.responses]

    async def _resolve_doubts(self, answers: list[_PartitionResult]) -> list[_PartitionResult]:
        """Replace each out-of-range result of a replica by the batch coordinator's decision."""
        doubts: dict[int, list[tuple[int, _RequestedPartition]]] = {}
        for index, answer in enumerate(answers):
            if answer.asked is not None and (answer.is_below or answer.is_above):
                doubts.setdefault(answer.asked.coordinator, []).append((index, answer.asked))
        decided = list(answers)
        for coordinator, doubted in doubts.items():
            for first in range(0, len(doubted), ASKED_AT_ONCE):
                chunk = doubted[first : first + ASKED_AT_ONCE]
                found = await self._behind_the_barrier(coordinator, [asked for _, asked in chunk])
                for (index, _), answer in zip(chunk, found, strict=True):
                    decided[index] = answer
        return decided

    async def _behind_the_barrier(
        self, coordinator: int, asked: Sequence[_RequestedPartition]
    ) -> list[_PartitionResult]:
        """Ask a coordinator's leader, behind its read barrier, whether offsets are out of range."""
        self.counters.barriers += len(asked)
        topic = rpc.ListDisklessOffsetsRequest.Topic
        request = rpc.ListDisklessOffsetsRequest(
            coordinator_partition=coordinator,
            topics=tuple(
                topic(
                    topic_id=partition.topic_id,
                    partitions=tuple(
                        topic.Partition(partition_index=partition.partition, timestamp=timestamp)
                        for timestamp in (EARLIEST, LATEST)
                    ),
                )
                for partition in asked
            ),
        )
        try:
            async with asyncio.timeout(BARRIER_S):
                answer = await self._cluster.leader(coordinator).call(request)
        except (CoordinatorError, TimeoutError):
            return [_PartitionResult(ErrorCode.OFFSET_NOT_AVAILABLE)] * len(asked)
        return [
            _check_range(partition, *found.partitions)
            for partition, found in zip(asked, answer.responses, strict=True)
        ]

    # --- bytes ----------------------------------------------------------------------------------

    async def _read_all(
        self, request: FetchRequest, answers: list[_PartitionResult]
    ) -> FetchResponse:
        """Read the batches of all partitions and build the Fetch response."""
        asked = [partition for topic in request.topics for partition in topic.partitions]
        pace, partitions = Pace(), {}
        reads = {
            index: asyncio.ensure_future(timed(self._read(asked[index], answer)))
            for index, answer in enumerate(answers)
            if not self._is_in_memory(answer)
        }
        try:  # what is in memory is read first: it may leave the cache while the others wait
            for index, (partition, answer) in enumerate(zip(asked, answers, strict=True)):
                await pace.step()
                if index in reads:
                    continue
                if not answer.runs:
                    partitions[index] = self._response(partition, answer)
                elif self._is_in_memory(answer):
                    partitions[index] = await self._read(partition, answer, waits=False)
                else:
                    reads[index] = asyncio.ensure_future(timed(self._read(partition, answer)))
            if reads:
                await asyncio.gather(*reads.values())
        finally:
            for task in reads.values():
                task.cancel()
        partitions |= {index: task.result() for index, task in reads.items()}
        in_order = iter([partitions[index] for index in range(len(asked))])
        return FetchResponse(
            responses=tuple(
                _Topic(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=tuple(next(in_order) for _ in topic.partitions),
                )
                for topic in request.topics
            )
        )

    def _is_in_memory(self, answer: _PartitionResult) -> bool:
        """Return whether an answer's batches are in memory, so that reading them needs no task."""
        if not answer.runs:
            return True
        return self._segments is None and all(is_in_memory(self._cache, run) for run in answer.runs)

    async def _read(
        self,
        asked: FetchRequest.FetchTopic.FetchPartition,
        answer: _PartitionResult,
        *,
        waits: bool = True,
    ) -> _Partition:
        """Read a partition's batches; a read failure becomes an error code in the response.

        Args:  waits: whether the batches are not all in memory.
        """
        records: bytes | memoryview | BufferChain = b""
        self._note_read(asked.fetch_offset, answer, waits=waits)
        try:
            records = await self._read_bytes(asked.fetch_offset, answer)
        except DamagedRunError as damage:
            self.counters.damaged_runs += 1
            log.error("action=fetch error=%r", str(damage))
            answer = answer._replace(error=ErrorCode.CORRUPT_MESSAGE)
        except ObjectNotFoundError as gone:
            log.warning("action=fetch error=%r", str(gone))
            assert answer.asked is not None, f"runs of nothing: {answer}"
            where = answer.asked.coordinator
            (answer,) = await self._behind_the_barrier(where, [answer.asked])
            if not answer.error:  # still referenced: bytes are missing
                self.counters.missing_objects += 1
                self.last_missing = (gone.key, asyncio.get_running_loop().time())
                answer = answer._replace(error=ErrorCode.KAFKA_STORAGE_ERROR)
        except StorageError as failure:
            log.warning("action=fetch error=%r", str(failure))
            answer = answer._replace(error=ErrorCode.KAFKA_STORAGE_ERROR)
        return self._response(asked, answer, records)

    async def _read_bytes(
        self, from_offset: int, answer: _PartitionResult
    ) -> bytes | memoryview | BufferChain:
        """Read a partition's batches: from local segments where they are, else from the store.

        Raises:  DamagedRunError and StorageError, if not even the first run can be read.
        """
        asked, segments = answer.asked, self._segments
        assert asked is not None, f"runs of nothing: {answer}"
        partition = TopicPartition(asked.topic_id, asked.partition)
        if segments is None:
            return await read_runs_in_place(
                self._cache,
                answer.runs,
                from_offset=from_offset,
                max_bytes=answer.max_bytes,
                epochs=self.epochs_to_stamp(partition),
            )
        parts: list[memoryview] = []
        runs, offset, left = answer.runs, from_offset, answer.max_bytes
        is_tail = runs[-1].last_offset + 1 >= _end_of(answer)

        def keep(found: Sequence[FinalBatches]) -> None:
            nonlocal offset
            segments.fill(partition, found, is_tail=is_tail)
            if found:
                offset = found[-1].ends[-1][0]

        while runs and (left > 0 or not parts):
            local = await segments.read(
                partition, runs, from_offset=offset, max_bytes=left, is_first=not parts
            )
            if local.data:
                parts.append(local.data)
                offset, left = local.next_offset, left - len(local.data)
            if not local.is_missing:
                break
            runs = tuple(run for run in runs if run.last_offset >= offset)
            missing = [
                *runs[:1],
                *takewhile(lambda run: not self._is_local(partition, run), runs[1:]),
            ]
            try:
                stored = await self._read_stored(
                    partition, missing, offset, left, is_first=not parts, on_read=keep
                )
            except (DamagedRunError, StorageError) as error:
                if not parts:
                    raise
                log.warning("action=fetch error=%r", str(error))
                break
            segments.counters.missed_bytes += len(stored)
            parts.append(stored)
            left -= len(stored)
            runs = runs[len(missing) :] if offset > missing[-1].last_offset else ()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read_stored(
        self,
        partition: TopicPartition,
        runs: Sequence[Run],
        from_offset: int,
        max_bytes: int,
        *,
        is_first: bool = True,
        on_read: Callable[[Sequence[FinalBatches]], None] | None = None,
    ) -> memoryview:
        """Read batches from the memory cache or the store, as `read_runs` does."""
        return await read_runs(
            self._cache,
            runs,
            from_offset=from_offset,
            max_bytes=max_bytes,
            epochs=self.epochs_to_stamp(partition),
            is_first=is_first,
            on_read=on_read,
        )

    def _is_local(self, partition: tuple[UUID, int], run: Run) -> bool:
        segments = self._segments
        return segments is not None and segments.holds(TopicPartition(*partition), run)

    def epochs_to_stamp(self, partition: TopicPartition) -> LeaderEpochs | None:
        """Return the leader epochs of fetched batches; None in a cluster that was never restored.

        There stored batches have the right epoch already.
        """
        image = self._cluster.image
        if image.timeline is None:
            return None
        topic = image.topics.get(partition.topic_id)
        return None if topic is None else image.leader_epochs(topic, partition.partition)

    async def runs_of(
        self, partition: TopicPartition, first_offset: int, max_bytes: int
    ) -> Sequence[Run] | None:
        """Return a partition's runs in this broker's replica; None if it cannot say."""
        topic = self._cluster.image.topics.get(partition.topic_id)
        if topic is None or partition.partition not in topic.partitions:
            return None
        coordinator = topic.coordinator(partition.partition)
        asked = _RequestedPartition(
            partition.topic_id, coordinator, partition.partition, first_offset, max_bytes
        )
        (found,) = await self._find(coordinator, [asked], max_bytes)
        return None if found is None or found.error_code else tuple(map(run_of, found.batches))

    def _note_read(self, offset: int, answer: _PartitionResult, *, waits: bool) -> None:
        """Allow reading ahead of this response's batches if the consumer reads sequentially."""
        asked = answer.asked
        assert asked is not None, f"runs of nothing: {answer}"

        async def look_up(first_offset: int, max_bytes: int) -> Sequence[Run]:
            wanted = asked._replace(offset=first_offset, max_bytes=max_bytes)
            (found,) = await self._find(asked.coordinator, [wanted], max_bytes)
            return () if found is None or found.error_code else tuple(map(run_of, found.batches))

        partition, end = (asked.topic_id, asked.partition), _end_of(answer)
        self.read_ahead.note(partition, offset, answer.runs, end, look_up, waits=waits)

    def _response(
        self,
        asked: FetchRequest.FetchTopic.FetchPartition,
        answer: _PartitionResult,
        records: bytes | memoryview | BufferChain = b"",
    ) -> _Partition:
        """Build a partition's part of the Fetch response, and count its bytes and its error."""
        if records:
            assert answer.asked is not None, f"records of nothing: {answer}"
            self.counters.bytes_out += len(records)
            self._traffic.bytes_out[answer.asked.topic_id] += len(records)
        if answer.error:
            self.counters.errors[answer.error] += 1
        return _Partition(
            partition_index=asked.partition,
            error_code=answer.error,
            high_watermark=answer.high_watermark,
            last_stable_offset=(
                answer.high_watermark
                if answer.last_stable_offset == -1
                else answer.last_stable_offset
            ),
            log_start_offset=answer.log_start_offset,
            aborted_transactions=_aborted_of(answer),
            preferred_read_replica=answer.preferred,
            records=records,  # type: ignore[arg-type]  # the encoder takes a chain
        )


def _is_certain(answer: _PartitionResult) -> bool:
    """Return whether this broker's replica has the fetched offset."""
    return not (answer.error or answer.is_below or answer.is_above)


def _end_of(answer: _PartitionResult) -> int:
    """Return the end of the offsets that this answer's reader may see."""
    stable = answer.last_stable_offset
    is_committed = answer.asked is not None and answer.asked.committed
    return stable if is_committed and stable != -1 else answer.high_watermark


def _aborted_of(answer: _PartitionResult) -> tuple[_Aborted, ...] | None:
    """Return the aborted transactions of a response; None for a reader of everything."""
    if answer.asked is None or not answer.asked.committed or answer.error:
        return None
    return tuple(
        _Aborted(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in answer.aborted
    )


def _check_range(
    asked: _RequestedPartition, first: _ListedOffset, last: _ListedOffset
) -> _PartitionResult:
    """Compare a fetch offset with the coordinator's range of offsets; return a fetch result."""
    if first.error_code or last.error_code:
        return _PartitionResult(ErrorCode.OFFSET_NOT_AVAILABLE)
    if first.offset <= asked.offset <= last.offset:  # the replica lags: it will catch up
        return _PartitionResult(0, asked.offset, first.offset)
    return _PartitionResult(ErrorCode.OFFSET_OUT_OF_RANGE, last.offset, first.offset)


def _answer_of(
    asked: _RequestedPartition, found: _FoundBatches | None, max_bytes: int
) -> _PartitionResult:
    """Translate a replica's fetch result; mark an out-of-range offset to be checked again.

    Args:  max_bytes: of the runs' bytes in the response.
    """
    if found is None:
        return _PartitionResult(
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        )  # sends the client to another broker
    if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        is_below = asked.offset < found.log_start_offset
        ends = found.high_watermark, found.log_start_offset
        return _PartitionResult(0, *ends, asked=asked, is_below=is_below, is_above=not is_below)
    if found.error_code:  # the image has the partition, and the replica does not have it yet
        return _PartitionResult(ErrorCode.OFFSET_NOT_AVAILABLE)
    runs = tuple(map(run_of, found.batches))
    return _PartitionResult(
        0,
        found.high_watermark,
        found.log_start_offset,
        runs,
        asked,
        max_bytes=max_bytes,
        last_stable_offset=found.last_stable_offset,
        aborted=found.aborted,
    )


def _resolve(
    image: MetadataImage,
    version: int,
    topic: FetchRequest.FetchTopic,
    asked: FetchRequest.FetchTopic.FetchPartition,
    committed: bool,
) -> _RequestedPartition | _PartitionResult:
    """Return a requested partition's coordinator and ids, or the error of an unknown partition."""
    by_id = version >= FIRST_WITH_TOPIC_IDS
    found: TopicImage | None = (
        image.topics.get(topic.topic_id) if by_id else image.topic(topic.topic)
    )
    if found is None:
        return _PartitionResult(
            ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    if asked.partition not in found.partitions or found.is_internal:
        return _PartitionResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = image.leader_epochs(found, asked.partition).refuse(asked.current_leader_epoch)
    if error:
        return _PartitionResult(error)
    return _RequestedPartition(
        found.topic_id,
        found.coordinator(asked.partition),
        asked.partition,
        asked.fetch_offset,
        asked.partition_max_bytes,
        committed=committed,
        is_cut=is_cut(found.partitions[asked.partition]),
    )
