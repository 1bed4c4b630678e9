"""Where clients' partitions are coordinated, and where they begin and end behind the read barrier.

A broker's own replica may lag; what must not be old is asked of the coordinator, which answers only
after a majority has confirmed that it leads. Where that is not to be had in time the answer is
OFFSET_NOT_AVAILABLE, which clients retry.

Source: docs/design/quorum.md#linearizable-reads, docs/design/broker.md#staleness-is-bounded;
KIP-207.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from coordinator.controller.image import MetadataImage
from coordinator.errors import CoordinatorError
from diskless.cluster import Cluster
from diskless.fetch.runs_reader import LEADER_EPOCH
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import ListDisklessOffsetsRequest

T = TypeVar("T")

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
"""ListOffsets' sentinels."""

BARRIER_S: Final = 10.0
"""How long the barrier is tried for a client that does not say: less than clients wait."""

ASKED_AT_ONCE: Final = 1_000
"""Partitions of one question: whoever makes, answers and reads it does so in a few ms each."""

_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class Place(NamedTuple):
    """A client's partition, and the coordinator that has its batches."""

    topic_id: UUID
    coordinator: int
    partition: int


class Wanted(NamedTuple):
    """A question to the coordinator of a place."""

    place: Place
    timestamp: int  # or a sentinel
    from_offset: int = -1  # where a search by time begins; -1: at the log start


class Listed(NamedTuple):
    """What it answers; -1: there is nothing."""

    error: int
    timestamp: int = -1
    offset: int = -1


def find_place(
    image: MetadataImage, topic_name: str, partition: int, current_leader_epoch: int = -1
) -> Place | ErrorCode:
    """A client's partition; or why there is none to ask about.

    Internal topics have no batches, and that is final: UNKNOWN_TOPIC_OR_PARTITION is retried, and
    Java's tools, which list the topics there are, would go on for a minute.
    """
    topic = image.topic(topic_name)
    if topic is None or partition not in topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if current_leader_epoch > LEADER_EPOCH:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return Place(topic.topic_id, topic.coordinator(partition), partition)


async def list_offsets(
    cluster: Cluster, wanted: Sequence[Wanted], timeout_s: float = BARRIER_S
) -> list[Listed]:
    """Behind the read barrier, each coordinator asked for its own; in the order of the question."""
    by_coordinator: dict[int, list[int]] = {}
    for at, one in enumerate(wanted):
        by_coordinator.setdefault(one.place.coordinator, []).append(at)
    answers = [Listed(ErrorCode.OFFSET_NOT_AVAILABLE)] * len(wanted)

    async def ask(coordinator: int, positions: list[int]) -> None:
        for piece in cut(positions):
            found = await _ask(cluster, coordinator, [wanted[at] for at in piece], timeout_s)
            for at, answer in zip(piece, found, strict=True):
                answers[at] = answer

    await asyncio.gather(*(ask(*one) for one in by_coordinator.items()))
    return answers


def cut(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many as are asked at once, and again."""
    for first in range(0, len(items), ASKED_AT_ONCE):
        yield items[first : first + ASKED_AT_ONCE]


async def _ask(
    cluster: Cluster, coordinator: int, wanted: Sequence[Wanted], timeout_s: float
) -> list[Listed]:
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
            for place, timestamp, from_offset in wanted
        ),
    )
    try:
        async with asyncio.timeout(timeout_s):
            answer = await cluster.leader(coordinator).call(request)
    except (CoordinatorError, TimeoutError):
        return [Listed(ErrorCode.OFFSET_NOT_AVAILABLE)] * len(wanted)
    return [
        Listed(_code(found.error_code), found.timestamp, found.offset)
        for topic_found in answer.responses
        for found in topic_found.partitions
    ]


def _code(code: int) -> int:
    """As a client, who names topics, knows it."""
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if code in _GONE else code
