"""Coordinates of a running cluster, asked through its brokers.

    BrokerCoordinates((("127.0.0.1", 9092),), timeout_ms=30_000)

Offsets are those of ListOffsets, which is read behind the coordinators' barrier: a record that was
acknowledged before is below the end. Runs are found by FindBatches, which a broker passes on to the
leader of the topic's batch coordinator.

The trap: a leader may find less than is there, if it has just been elected. So what is found counts
only up to where it ends, and is asked for again from there.

Source: KIP-1164 (findBatches); docs/broker.md#forwarded-requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Self, TypeVar
from uuid import UUID

import numpy as np

from raft.net import NetError, Reason
from raft.net.rpc import Rpc, open_rpc
from raft.net.security import OutgoingSecurity
from records.errors import RecordError
from records.kafka_errors import ErrorCode, error_name
from records.marker_batches import marker_batch
from records.rpc.batch_coordinator import FindBatchesRequest
from records.rpc.descriptions import DescribeTopicsRequest, DescribeTopicsResponse
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from spark_jobs.topics.coordinates import (
    Bounds,
    CoordinatesError,
    Found,
    LostOffsetsError,
    Marker,
    TopicPartition,
    Wanted,
)
from spark_jobs.topics.find_columns import VERSION, FoundBatches, FoundMarker, read_answer
from spark_jobs.topics.options import Address

T = TypeVar("T")
Item = TypeVar("Item")

Attempt = Callable[[Rpc], Awaitable[T]]
"""Asks one broker."""

LATEST: Final = -1
EARLIEST: Final = -2
PARTITIONS_AT_ONCE: Final = 5_000  # in one request; brokers refuse more than 20,000
MAX_BYTES: Final = (1 << 31) - 1
_PAUSE_S: Final = 0.2

_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""Errors after which a request is repeated."""


class _AgainError(Exception):
    """A request had no answer that counts; another broker, or a later attempt, may have one."""


class _Topic(NamedTuple):
    topic_id: UUID
    coordinators: dict[int, int]  # of each partition: the partition of __diskless-metadata


class BrokerCoordinates:
    """Coordinates by way of brokers, any one of which is enough."""

    def __init__(
        self,
        brokers: Sequence[Address],
        *,
        timeout_ms: int,
        security: OutgoingSecurity | None = None,
    ) -> None:
        """Create it; nothing is contacted yet.

        Args:    timeout_ms: of each call, with all its attempts.
                 security: of the connections; None: PLAINTEXT.
        """
        self._brokers = list(brokers)
        self._timeout_ms = timeout_ms
        self._security = security
        self._runner = asyncio.Runner()
        self._rpc: Rpc | None = None
        self._topics: dict[str, _Topic] = {}
        self._find_at_once = PARTITIONS_AT_ONCE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rpc is not None:
            self._rpc.connection.close()
        self._runner.close()

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """Return the number of partitions of topics that are there and not internal."""
        request = DescribeTopicsRequest(topic_names=None if names is None else tuple(names))

        async def attempt(rpc: Rpc) -> DescribeTopicsResponse:
            answer = await rpc.call(request, DescribeTopicsResponse)
            _check(answer.error_code, "DescribeTopics", answer.error_message)
            for topic in answer.topics:
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _check(topic.error_code, f"DescribeTopics of {topic.topic_name}")
            return answer

        found = {
            topic.topic_name: _Topic(
                topic.topic_id, {one.partition_index: one.coordinator for one in topic.partitions}
            )
            for topic in self._call(attempt).topics
            if not topic.is_internal and not topic.error_code
        }
        self._topics |= found
        return {name: len(topic.coordinators) for name, topic in found.items()}

    def _described(self, topics: Iterable[str]) -> dict[str, _Topic]:
        """Return the ids and coordinators of topics. Raises CoordinatesError for an unknown one."""
        unknown = sorted({name for name in topics if name not in self._topics})
        if unknown:
            self.topics(unknown)
        for name in unknown:
            if name not in self._topics:
                raise CoordinatesError(f"there is no topic {name}")
        return self._topics

    def bounds(
        self, partitions: Sequence[TopicPartition], *, committed: bool
    ) -> dict[TopicPartition, Bounds]:
        """Return the offsets that can be read now."""
        starts = self._list(dict.fromkeys(partitions, EARLIEST), committed)
        ends = self._list(dict.fromkeys(partitions, LATEST), committed)
        return {one: Bounds(starts[one], max(starts[one], ends[one])) for one in partitions}

    def offsets_of_times(
        self, times: Mapping[TopicPartition, int], *, committed: bool
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each time, or None without one."""
        found = self._list(times, committed)
        return {one: None if offset < 0 else offset for one, offset in found.items()}

    def _list(
        self, times: Mapping[TopicPartition, int], committed: bool
    ) -> dict[TopicPartition, int]:
        """Return what ListOffsets answers for the times or sentinels of partitions."""
        found: dict[TopicPartition, int] = {}
        for some in _batched(times.items(), PARTITIONS_AT_ONCE):
            found |= self._list_once(dict(some), committed)
        return found

    def _list_once(
        self, times: Mapping[TopicPartition, int], committed: bool
    ) -> dict[TopicPartition, int]:
        topic_type = ListOffsetsRequest.ListOffsetsTopic
        by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition]] = {}
        for (topic, index), timestamp in times.items():
            by_topic.setdefault(topic, []).append(
                topic_type.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
            )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(committed),
            topics=tuple(
                topic_type(name=name, partitions=tuple(some)) for name, some in by_topic.items()
            ),
            timeout_ms=self._timeout_ms,
        )

        async def attempt(rpc: Rpc) -> dict[TopicPartition, int]:
            answer = await rpc.call(request, ListOffsetsResponse)
            found = {}
            for topic in answer.topics:
                for one in topic.partitions:
                    place = TopicPartition(topic.name, one.partition_index)
                    if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        peer = rpc.connection.peer
                        raise CoordinatesError(f"{peer} has no {place}: is it a broker?")
                    _check(one.error_code, f"ListOffsets of {place}")
                    found[place] = one.offset
            return found

        return self._call(attempt)

    def find(self, wanted: Sequence[Wanted], *, committed: bool, max_bytes: int) -> list[Found]:
        """Return runs from the first wanted offset of each range on."""
        described = self._described(one.partition.topic for one in wanted)
        by_coordinator: dict[int, list[Wanted]] = {}
        for one in wanted:
            topic, index = one.partition
            if index not in described[topic].coordinators:
                raise CoordinatesError(f"{one.partition}: there is no such partition")
            by_coordinator.setdefault(described[topic].coordinators[index], []).append(one)
        found: list[Found] = []
        for coordinator, some in by_coordinator.items():
            chunk = some[: self._find_at_once]
            answered = self._find(coordinator, chunk, committed, max_bytes)
            # An answer has a limited number of runs: partitions behind them are asked for in vain.
            if len(answered) < len(chunk):
                self._find_at_once = max(1, len(answered))
            else:
                self._find_at_once = min(PARTITIONS_AT_ONCE, 2 * self._find_at_once)
            found += answered
        return found

    def _find(
        self, coordinator: int, wanted: Sequence[Wanted], committed: bool, max_bytes: int
    ) -> list[Found]:
        described = self._topics
        topic_type = FindBatchesRequest.Topic
        topics = tuple(
            topic_type(
                topic_id=described[one.partition.topic].topic_id,
                partitions=(
                    topic_type.Partition(
                        partition_index=one.partition.partition,
                        offset=one.first_offset,
                        max_bytes=min(max_bytes, MAX_BYTES),
                    ),
                ),
            )
            for one in wanted
        )
        request = FindBatchesRequest(
            topics=topics,
            max_bytes=MAX_BYTES,
            coordinator_partition=coordinator,
            isolation_level=int(committed),
        )

        async def attempt(rpc: Rpc) -> list[Found]:
            body = await rpc.exchange(request, VERSION)
            try:
                answers = read_answer(body)
            except RecordError as error:
                raise NetError(Reason.BAD_ANSWER, f"{rpc.connection.peer}: {error}") from error
            found = []
            for requested, answer in zip(wanted, answers, strict=False):
                if answer.topic_id != described[requested.partition.topic].topic_id:
                    break  # topics that may not be read stand behind all others
                result = found_in(requested, answer)
                if result is not None:
                    found.append(result)
            for answer in answers:
                _check(answer.error_code, f"FindBatches of topic {answer.topic_id}")
            if not found:
                raise _AgainError("FindBatches: the coordinator does not have these offsets yet")
            return found

        return self._call(attempt)

    def _call(self, attempt: Attempt[T]) -> T:
        """Run an attempt on a connection to some broker, and again until it succeeds in time."""
        return self._runner.run(self._within(attempt))

    async def _within(self, attempt: Attempt[T]) -> T:
        deadline = time.monotonic() + self._timeout_ms / 1_000
        while True:
            try:
                return await attempt(await self._connected())
            except (NetError, _AgainError) as error:
                if isinstance(error, NetError) and error.reason is Reason.UNSUPPORTED:
                    raise CoordinatesError(f"{error}: is this an Esker broker?") from error
                if isinstance(error, NetError) and error.reason is Reason.AUTHENTICATION_FAILED:
                    raise CoordinatesError(f"not authenticated: {error}") from error
                if self._rpc is not None:
                    self._rpc.connection.close()
                    self._rpc = None
                self._brokers.append(self._brokers.pop(0))
                if time.monotonic() >= deadline:
                    raise CoordinatesError(f"no broker answers: {error}") from error
            await asyncio.sleep(_PAUSE_S)

    async def _connected(self) -> Rpc:
        if self._rpc is None or self._rpc.connection.closed:
            host, port = self._brokers[0]
            self._rpc = await open_rpc(
                host, port, timeout_ms=self._timeout_ms, security=self._security
            )
        return self._rpc


def _check(code: int, what: str, message: str | None = None) -> None:
    """Raise an error unless a response's code is 0: _AgainError for one that may pass."""
    if code in _AGAIN:
        raise _AgainError(f"{what}: {error_name(code)}")
    if code:
        raise CoordinatesError(f"{what}: {message or error_name(code)}")


def found_in(wanted: Wanted, answer: FoundBatches) -> Found | None:
    """Return the runs of a range that an answer has, or None if it has none of them.

    Raises:  LostOffsetsError; CoordinatesError; _AgainError.
    """
    place, first, end = wanted
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and first < answer.log_start_offset:
        raise LostOffsetsError(place, first, answer.log_start_offset)
    _check(answer.error_code, f"FindBatches of {place}")
    runs = answer.runs[: int(np.searchsorted(answer.runs.base_offsets, end))]
    markers = [marker for marker in answer.markers if marker.offset < end]
    at = max(
        int(runs.columns["end_offset"][-1]) if len(runs) else first,
        markers[-1].offset + 1 if markers else first,
    )
    if at == first:
        return None
    batches = tuple(_marker(marker) for marker in markers) if answer.aborted else ()
    return Found(place, first, min(at, end), runs, answer.aborted, batches)


def _marker(found: FoundMarker) -> Marker:
    """Return a transaction's marker with its control batch."""
    batch = marker_batch(
        base_offset=found.offset,
        timestamp=found.timestamp,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        outcome=found.outcome,
        coordinator_epoch=found.coordinator_epoch,
    )
    return Marker(found.offset, batch)


def _batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
