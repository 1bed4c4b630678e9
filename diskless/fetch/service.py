"""Fetch: where the batches are, by this broker's own replica; what they are, from the store.

A lookup asks nobody: the coordinates are in this process. It waits, as long as the request allows,
until there are enough bytes; every commit that this broker hears of is a reason to look again.

What may not rest on our own replica is bad news. It may lag, so an offset above its high watermark
need not be out of range, and one whose object is gone from the store need not be lost. Both are
decided by the coordinator behind its read barrier, once a request at most and after its waiting;
where that is not to be had, the answer is one that clients retry (OFFSET_NOT_AVAILABLE). And a
replica that is too old serves nothing (`diskless.fetch.staleness`).

Partitions take turns at being the first of a request, so that a busy one does not starve those
behind it, and whoever is first gets at least one batch, however large (KIP-74). A client that says
it is in another rack is told, once in a while, of a broker in its own.

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
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.errors import CoordinatorError
from diskless.cluster import Cluster
from diskless.fetch.commit_notifications import News
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import LEADER_EPOCH, DamagedRunError, Run, read_runs
from diskless.fetch.staleness import Staleness
from diskless.loop_turns import Pace
from diskless.placement import PlacedBroker, Redirects, is_known, unfenced
from diskless.stores import ObjectNotFoundError, StorageError
from records.kafka_errors import ErrorCode
from records.rpc import batch_coordinator as rpc
from records.rpc.fetch import FetchRequest, FetchResponse

log = logging.getLogger("diskless.fetch.service")

FIRST_WITH_TOPIC_IDS: Final = 13
MAX_WAIT_MS: Final = 60_000
BARRIER_S: Final = 5.0  # for the coordinator to say what is out of range
ASKED_AT_ONCE: Final = 1_000  # partitions of one question to it
LOOKED_UP_AT_ONCE: Final = 200  # partitions, before others have a turn of the loop
FEW_PARTITIONS: Final = 500  # of a Fetch that looks at all of them after every commit
PAUSE_OF_EACH_S: Final = 1e-5  # a partition of others; a look at it takes a tenth of that
MAX_BYTES: Final = 64 * 1024 * 1024  # of one answer, whatever is asked for


NOWHERE_ELSE: Final = -1  # the preferred read replica: us

EARLIEST: Final = -2  # ListOffsets' timestamps
LATEST: Final = -1

_Topic = FetchResponse.FetchableTopicResponse
_Partition = FetchResponse.FetchableTopicResponse.PartitionData
_Found = rpc.FindBatchesResponse.Topic.Partition
_Listed = rpc.ListDisklessOffsetsResponse.Topic.Partition


class _Asked(NamedTuple):
    """One partition of a request."""

    topic_id: UUID
    coordinator: int
    partition: int
    offset: int
    max_bytes: int


class _Answer(NamedTuple):
    """What is told of one partition."""

    error: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    runs: tuple[Run, ...] = ()
    asked: _Asked | None = None  # what has runs, or is in doubt
    is_below: bool = False  # in doubt: our replica says that it is deleted
    is_above: bool = False  # in doubt: our replica has not heard of it
    preferred: int = NOWHERE_ELSE
    max_bytes: int = 0  # of the runs, that may be told; the first batch is whole all the same


@dataclass(slots=True)
class FetchCounters:
    """What consumers got, for metrics."""

    requests: int = 0
    bytes_out: int = 0  # of batches
    errors: Counter[int] = field(default_factory=Counter)  # partitions, by error code
    barriers: int = 0  # partitions that were decided behind the read barrier
    redirects: int = 0
    unknown_racks: int = 0  # requests from a rack without a broker
    missing_objects: int = 0  # referred to, and not in the store: data loss, or the wrong store
    damaged_runs: int = 0


class FetchService:
    """Serves Fetch for one broker. Belongs to the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        cache: ObjectCache,
        news: News,
        staleness: Staleness,
    ) -> None:
        """
        Args:  news: notified whenever a replica or the image has changed.
        """
        self.counters = FetchCounters()
        self.reading_bytes = 0  # of answers being made
        self._cluster = cluster
        self._cache = cache
        self._news = news
        self._staleness = staleness
        self._leaving = False
        self._redirects = Redirects()
        self._turn = 0

    async def fetch(
        self,
        request: FetchRequest,
        version: int,
        *,
        client: str = "",
        room: Callable[[], int] = lambda: MAX_BYTES,
    ) -> FetchResponse:
        """The answer, at once or when there is enough to tell.

        Args:    client: whatever tells clients apart.
                 room: how many bytes the answer may have, however many are asked for; the first
                 batch is given whole all the same.
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
                answers, redirected = self._redirect(request, client, answers, loop.time()), True
            left_s = deadline - loop.time()
            found_bytes = sum(run.size_bytes for answer in answers for run in answer.runs)
            news = any(a.error or a.is_below or a.preferred != NOWHERE_ELSE for a in answers)
            if news or found_bytes >= request.min_bytes or left_s <= 0 or not answers:
                break
            await self._until_it_matters(answers, deadline)
        answers = await self._decided(answers)
        found_bytes = sum(run.size_bytes for answer in answers for run in answer.runs)
        self.reading_bytes += found_bytes
        try:
            return await self._read_all(request, answers)
        finally:
            self.reading_bytes -= found_bytes

    async def _until_it_matters(self, answers: list[_Answer], deadline: float) -> None:
        """Wait for news of these partitions, or until the time is over.

        Every commit wakes every Fetch that waits, and most are not concerned: so each looks at
        numbers that are in memory before it looks anything up. One of thousands of partitions
        does not do so at every commit, or it would do nothing else.
        """
        loop, image = asyncio.get_running_loop(), self._cluster.image
        seen = [
            (answer.asked, (answer.log_start_offset, answer.high_watermark))
            for answer in answers
            if answer.asked is not None
        ]
        while (left_s := deadline - loop.time()) > 0:
            if self._leaving or self._cluster.image is not image:
                return
            if any(self._ends(one) != ends for one, ends in seen):
                return
            await self._news.wait(left_s)
            if len(seen) > FEW_PARTITIONS:
                pause_s = min(deadline - loop.time(), PAUSE_OF_EACH_S * len(seen))
                await asyncio.sleep(max(0.0, pause_s))

    def _ends(self, asked: _Asked) -> tuple[int, int] | None:
        """Log start and high watermark of a partition, as our replica has it now."""
        replica = self._cluster.replica(asked.coordinator)
        return None if replica is None else replica.ends(asked.topic_id, asked.partition)

    def leave(self) -> None:
        """The broker goes: who waits, and who asks from now on, is sent to look for another."""
        self._leaving = True
        self._news.tell()

    def _redirect(
        self, request: FetchRequest, client: str, answers: list[_Answer], now_s: float
    ) -> list[_Answer]:
        """Send a client of another rack to a broker in its own."""
        image = self._cluster.image
        registered = image.brokers.get(self._cluster.broker_id)
        if not request.rack_id or registered is None or registered.rack == request.rack_id:
            return answers
        brokers = unfenced(image)
        if not is_known(request.rack_id, brokers):
            self.counters.unknown_racks += 1
            return answers
        here = PlacedBroker(self._cluster.broker_id, registered.rack)
        told = []
        for answer in answers:
            asked = answer.asked
            if asked is not None and not (answer.error or answer.is_below or answer.is_above):
                there = self._redirects.preferred(
                    client, asked.topic_id, asked.partition, request.rack_id, here, brokers, now_s
                )
                if there is not None:
                    self.counters.redirects += 1
                    answer = answer._replace(runs=(), preferred=there)
            told.append(answer)
        return told

    # --- where ----------------------------------------------------------------------------------

    async def _look_up(self, request: FetchRequest, version: int, bytes_left: int) -> list[_Answer]:
        """One answer for each partition of the request, in its order."""
        image, pace = self._cluster.image, Pace()
        asked = []
        for topic in request.topics:
            for wanted in topic.partitions:
                await pace.step()
                asked.append(_place(image, version, topic, wanted))
        answers = [one if isinstance(one, _Answer) else _Answer() for one in asked]
        places = [(at, one) for at, one in enumerate(asked) if isinstance(one, _Asked)]
        if places:
            self._turn += 1
            first = self._turn % len(places)
            places = places[first:] + places[:first]
        by_coordinator: dict[int, list[tuple[int, _Asked]]] = {}
        for at, one in places:
            by_coordinator.setdefault(one.coordinator, []).append((at, one))
        told_any = False
        for coordinator, all_of_it in by_coordinator.items():
            for begin in range(0, len(all_of_it), LOOKED_UP_AT_ONCE):
                if begin:
                    await asyncio.sleep(0)
                some = all_of_it[begin : begin + LOOKED_UP_AT_ONCE]
                found = await self._find(coordinator, [one for _, one in some], bytes_left)
                for (at, one), partition in zip(some, found, strict=True):
                    answer = _judged(one, partition)
                    if answer.runs and bytes_left <= 0 and told_any:  # the least was told before
                        answer = answer._replace(runs=())
                    told_any = told_any or bool(answer.runs)
                    answers[at] = answer._replace(max_bytes=min(one.max_bytes, bytes_left))
                    bytes_left -= sum(run.size_bytes for run in answer.runs)
                bytes_left = max(0, bytes_left)
        return answers

    async def _find(
        self, coordinator: int, asked: list[_Asked], max_bytes: int
    ) -> list[_Found | None]:
        """From our own replica; None where there is none, or it is too old."""
        replica = self._cluster.replica(coordinator)
        if replica is None or self._leaving or not self._staleness.may_serve(coordinator):
            return [None] * len(asked)
        topic = rpc.FindBatchesRequest.Topic
        request = rpc.FindBatchesRequest(
            coordinator_partition=coordinator,
            max_bytes=max_bytes,
            topics=tuple(
                topic(
                    topic_id=one.topic_id,
                    partitions=(
                        topic.Partition(
                            partition_index=one.partition,
                            offset=one.offset,
                            max_bytes=one.max_bytes,
                        ),
                    ),
                )
                for one in asked
            ),
        )
        try:
            answer = await replica.call(request)
        except CoordinatorError as error:
            log.warning("coordinator=%d reason=%r", coordinator, str(error))
            return [None] * len(asked)
        return [found.partitions[0] for found in answer.responses]

    async def _decided(self, answers: list[_Answer]) -> list[_Answer]:
        """The same, with what was in doubt decided by the coordinators."""
        doubts: dict[int, list[tuple[int, _Asked]]] = {}
        for at, answer in enumerate(answers):
            if answer.asked is not None and (answer.is_below or answer.is_above):
                doubts.setdefault(answer.asked.coordinator, []).append((at, answer.asked))
        decided = list(answers)
        for coordinator, doubted in doubts.items():
            for first in range(0, len(doubted), ASKED_AT_ONCE):
                piece = doubted[first : first + ASKED_AT_ONCE]
                found = await self._behind_the_barrier(coordinator, [one for _, one in piece])
                for (at, _), answer in zip(piece, found, strict=True):
                    decided[at] = answer
        return decided

    async def _behind_the_barrier(self, coordinator: int, asked: Sequence[_Asked]) -> list[_Answer]:
        """Are these offsets really out of range? Only the coordinator can say."""
        self.counters.barriers += len(asked)
        topic = rpc.ListDisklessOffsetsRequest.Topic
        request = rpc.ListDisklessOffsetsRequest(
            coordinator_partition=coordinator,
            topics=tuple(
                topic(
                    topic_id=one.topic_id,
                    partitions=tuple(
                        topic.Partition(partition_index=one.partition, timestamp=timestamp)
                        for timestamp in (EARLIEST, LATEST)
                    ),
                )
                for one in asked
            ),
        )
        try:
            async with asyncio.timeout(BARRIER_S):
                answer = await self._cluster.leader(coordinator).call(request)
        except (CoordinatorError, TimeoutError):
            return [_Answer(ErrorCode.OFFSET_NOT_AVAILABLE)] * len(asked)
        return [
            _in_range(one, *found.partitions)
            for one, found in zip(asked, answer.responses, strict=True)
        ]

    # --- what -----------------------------------------------------------------------------------

    async def _read_all(self, request: FetchRequest, answers: list[_Answer]) -> FetchResponse:
        asked = [partition for topic in request.topics for partition in topic.partitions]
        with_runs = [at for at, answer in enumerate(answers) if answer.runs]
        read = dict(
            zip(
                with_runs,
                await asyncio.gather(*(self._read(asked[at], answers[at]) for at in with_runs)),
                strict=True,
            )
        )
        pace, parts = Pace(), []
        for at, partition in enumerate(asked):
            await pace.step()
            parts.append(read.get(at) or self._told(partition, answers[at]))
        told = iter(parts)
        return FetchResponse(
            responses=tuple(
                _Topic(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=tuple(next(told) for _ in topic.partitions),
                )
                for topic in request.topics
            )
        )

    async def _read(
        self, asked: FetchRequest.FetchTopic.FetchPartition, answer: _Answer
    ) -> _Partition:
        records: bytes | memoryview = b""
        try:
            records = await read_runs(
                self._cache, answer.runs, from_offset=asked.fetch_offset, max_bytes=answer.max_bytes
            )
        except DamagedRunError as damage:
            self.counters.damaged_runs += 1
            log.error("action=fetch error=%r", str(damage))
            answer = answer._replace(error=ErrorCode.CORRUPT_MESSAGE)
        except ObjectNotFoundError as gone:
            log.warning("action=fetch error=%r", str(gone))
            assert answer.asked is not None, f"runs of nothing: {answer}"
            where = answer.asked.coordinator
            (answer,) = await self._behind_the_barrier(where, [answer.asked])
            if not answer.error:  # still referred to: bytes are missing
                self.counters.missing_objects += 1
                answer = answer._replace(error=ErrorCode.KAFKA_STORAGE_ERROR)
        except StorageError as failure:
            log.warning("action=fetch error=%r", str(failure))
            answer = answer._replace(error=ErrorCode.KAFKA_STORAGE_ERROR)
        return self._told(asked, answer, records)

    def _told(
        self,
        asked: FetchRequest.FetchTopic.FetchPartition,
        answer: _Answer,
        records: bytes | memoryview = b"",
    ) -> _Partition:
        """A partition of the response."""
        self.counters.bytes_out += len(records)
        if answer.error:
            self.counters.errors[answer.error] += 1
        return _Partition(
            partition_index=asked.partition,
            error_code=answer.error,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.high_watermark,  # there are no transactions
            log_start_offset=answer.log_start_offset,
            aborted_transactions=None,
            preferred_read_replica=answer.preferred,
            records=records,
        )


def _in_range(asked: _Asked, first: _Listed, last: _Listed) -> _Answer:
    """What the coordinator's word means for an offset, given where the log begins and ends."""
    if first.error_code or last.error_code:
        return _Answer(ErrorCode.OFFSET_NOT_AVAILABLE)
    if first.offset <= asked.offset <= last.offset:  # our replica lags: there will be news
        return _Answer(0, asked.offset, first.offset)
    return _Answer(ErrorCode.OFFSET_OUT_OF_RANGE, last.offset, first.offset)


def _judged(asked: _Asked, found: _Found | None) -> _Answer:
    """What our replica says; what it cannot know is left in doubt."""
    if found is None:
        return _Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # this broker knows nothing: ask another
    if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        is_below = asked.offset < found.log_start_offset
        ends = found.high_watermark, found.log_start_offset
        return _Answer(0, *ends, asked=asked, is_below=is_below, is_above=not is_below)
    if found.error_code:  # it is in the image, and our replica has not heard of it yet
        return _Answer(ErrorCode.OFFSET_NOT_AVAILABLE)
    runs = tuple(
        Run(
            batch.object_key, batch.byte_offset, batch.size, batch.base_offset,
            batch.last_offset, batch.message_timestamp_type, batch.log_append_timestamp,
        )
        for batch in found.batches
    )  # fmt: skip
    return _Answer(0, found.high_watermark, found.log_start_offset, runs, asked)


def _place(
    image: MetadataImage,
    version: int,
    topic: FetchRequest.FetchTopic,
    asked: FetchRequest.FetchTopic.FetchPartition,
) -> _Asked | _Answer:
    """Which coordinator has a partition; or why it is not served."""
    by_id = version >= FIRST_WITH_TOPIC_IDS
    found: TopicImage | None = (
        image.topics.get(topic.topic_id) if by_id else image.topic(topic.topic)
    )
    if found is None:
        return _Answer(
            ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    if asked.partition not in found.partitions or found.is_internal:
        return _Answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if asked.current_leader_epoch > LEADER_EPOCH:
        return _Answer(ErrorCode.UNKNOWN_LEADER_EPOCH)
    return _Asked(
        found.topic_id,
        found.coordinator(asked.partition),
        asked.partition,
        asked.fetch_offset,
        asked.partition_max_bytes,
    )
