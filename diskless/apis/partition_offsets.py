"""Finds the coordinators of clients' partitions, and lists offsets behind their read barrier.

A broker's own replica may lag, so offsets that must be current come from the coordinator, which
answers only after a majority has confirmed that it leads. Without an answer in time the result is
OFFSET_NOT_AVAILABLE, which clients retry.

Source: docs/design/quorum.md#linearizable-reads, docs/design/broker.md#staleness-is-bounded;
KIP-207.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from coordinator.batch.reads import READ_COMMITTED
from coordinator.controller.image import MetadataImage
from coordinator.errors import CoordinatorError
from diskless.cluster import Cluster
from records.kafka_errors import ErrorCode
from records.leader_epochs import LeaderEpochs
from records.rpc.batch_coordinator import ListDisklessOffsetsRequest

T = TypeVar("T")

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
"""ListOffsets' sentinels."""

BARRIER_S: Final = 10.0
"""Timeout of the read barrier if the request has none: less than clients wait."""

ASKED_AT_ONCE: Final = 1_000
"""Partitions of one request to a coordinator: building, deciding and reading take a few ms each."""

_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class CoordinatedPartition(NamedTuple):
    """A client's partition, and the coordinator of its batches."""

    topic_id: UUID
    coordinator: int
    partition: int
    epochs: LeaderEpochs = LeaderEpochs()


class OffsetQuery(NamedTuple):
    """A query for an offset of a partition, for its coordinator."""

    place: CoordinatedPartition
    timestamp: int  # or a sentinel
    from_offset: int = -1  # first offset of a search by timestamp; -1: the log start
    committed: bool = False  # read_committed: nothing at or above the last stable offset


class ListedOffset(NamedTuple):
    """The result of an offset query; -1: there is no such record."""

    error: int
    timestamp: int = -1
    offset: int = -1


def find_partition(
    image: MetadataImage, topic_name: str, partition: int, current_leader_epoch: int = -1
) -> CoordinatedPartition | ErrorCode:
    """Return a requested partition and its coordinator, or the error code of an unknown partition.

    Internal topics have no batches and get an error that is not retried: with
    UNKNOWN_TOPIC_OR_PARTITION Java's tools, which query all topics, would retry for a minute.
    """
    topic = image.topic(topic_name)
    if topic is None or partition not in topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    epochs = image.leader_epochs(topic, partition)
    error = epochs.refuse(current_leader_epoch)
    if error:
        return error
    return CoordinatedPartition(topic.topic_id, topic.coordinator(partition), partition, epochs)


async def list_offsets(
    cluster: Cluster, wanted: Sequence[OffsetQuery], timeout_s: float = BARRIER_S
) -> list[ListedOffset]:
    """List current offsets from the batch coordinators, in the order of the queries.

    All queries of a call have the same isolation level.

    The coordinators answer once their state has every committed record.
    """
    by_coordinator: dict[int, list[int]] = {}
    for index, query in enumerate(wanted):
        by_coordinator.setdefault(query.place.coordinator, []).append(index)
    answers = [ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE)] * len(wanted)

    async def ask(coordinator: int, positions: list[int]) -> None:
        for chunk in split_chunks(positions):
            found = await _ask(cluster, coordinator, [wanted[i] for i in chunk], timeout_s)
            for index, answer in zip(chunk, found, strict=True):
                answers[index] = answer

    await asyncio.gather(*(ask(*queries) for queries in by_coordinator.items()))
    return answers


def split_chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split a sequence into slices that are small enough for one coordinator request."""
    for first in range(0, len(items), ASKED_AT_ONCE):
        yield items[first : first + ASKED_AT_ONCE]


async def _ask(
    cluster: Cluster, coordinator: int, wanted: Sequence[OffsetQuery], timeout_s: float
) -> list[ListedOffset]:
    topic = ListDisklessOffsetsRequest.Topic
    request = ListDisklessOffsetsRequest(
        coordinator_partition=coordinator,
        topics=tuple(
            topic(
                topic_id=place.topic_id,
                partitions=(
                    topic.Partition(
                        partition_index=place.partition,
                        timestamp=timestamp,
                        from_offset=from_offset,
                    ),
                ),
            )
            for place, timestamp, from_offset, _ in wanted
        ),
        isolation_level=READ_COMMITTED if wanted[0].committed else 0,
    )
    try:
        async with asyncio.timeout(timeout_s):
            answer = await cluster.leader(coordinator).call(request)
    except (CoordinatorError, TimeoutError):
        return [ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE)] * len(wanted)
    return [
        ListedOffset(_code(found.error_code), found.timestamp, found.offset)
        for topic_found in answer.responses
        for found in topic_found.partitions
    ]


def _code(code: int) -> int:
    """Translate a batch coordinator's unknown-topic errors into UNKNOWN_TOPIC_OR_PARTITION.

    The client names topics, not ids.
    """
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if code in _GONE else code
