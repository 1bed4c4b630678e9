"""Decides which batch coordinator has a partition.

A partition belongs to a coordinator before it has data, and stays: its batches are in that
coordinator's log, and moving those is not implemented. An empty partition may move. Only its
coordinator knows whether it is empty, and must stop accepting commits in the same step; so a move
is decided after the old coordinator has released the partition (`coordinator.controller.handover`).

Source: KIP-1164, AssignPartitionToBatchCoordinator;
docs/design/controller.md#hand-over-between-groups.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from uuid import UUID

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.decide.topics import mappings, named_twice
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    AssignPartitionToBatchCoordinatorRequest,
    AssignPartitionToBatchCoordinatorResponse,
)
from records.schema import MetadataRecord


class Move(NamedTuple):
    """A partition that is to move to another coordinator."""

    topic_id: UUID
    partition: int
    source: int
    target: int


Verdict = tuple[ErrorCode, str | None]
Verdicts = dict[tuple[UUID, int], Verdict]


def check_moves(
    request: AssignPartitionToBatchCoordinatorRequest, image: MetadataImage
) -> tuple[list[Move], Verdicts]:
    """Return the partitions that may move to another coordinator, and errors of the others."""
    moves: list[Move] = []
    verdicts: Verdicts = {}
    count = Counter(
        (topic.topic_id, item.partition_index)
        for topic in request.topics
        for item in topic.partitions
    )
    for topic in request.topics:
        for item in topic.partitions:
            named = (topic.topic_id, item.partition_index)
            try:
                if count[named] > 1:
                    raise named_twice(f"Partition {item.partition_index} of {topic.topic_id}")
                move = _check(*named, item.batch_coordinator_partition_index, image)
            except RefusedError as refused:
                verdicts[named] = (refused.code, refused.message)
                continue
            if move.source == move.target:
                verdicts[named] = (ErrorCode.NONE, None)
            else:
                moves.append(move)
    return moves, verdicts


def _check(topic_id: UUID, partition: int, target: int, image: MetadataImage) -> Move:
    """Return the move of a partition to coordinator `target`. Raises RefusedError if forbidden."""
    topic = image.topics.get(topic_id)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id}.")
    if topic.is_internal:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal.")
    if partition not in topic.partitions:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no {topic.name}-{partition}."
        )
    if not 0 <= target < image.coordinator_count:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"There are {image.coordinator_count} batch coordinators; there is no number {target}.",
        )
    return Move(topic_id, partition, topic.coordinator(partition), target)


def assign(moves: list[Move], context: Context) -> Decision:
    """Assign released partitions to their new coordinators, except for moves that are outdated."""
    records: list[MetadataRecord] = []
    done: list[Move] = []
    for move in moves:
        topic = context.image.topics.get(move.topic_id)
        if topic is None or move.partition not in topic.partitions:
            continue
        if topic.coordinator(move.partition) != move.source:
            continue
        records += mappings(move.topic_id, [move.partition], move.target)
        done.append(move)
    return Decision(tuple(records), tuple(done))


def answer_moves(
    request: AssignPartitionToBatchCoordinatorRequest, verdicts: Verdicts
) -> AssignPartitionToBatchCoordinatorResponse:
    """Build the AssignPartitionToBatchCoordinator response with each partition's result."""
    response = AssignPartitionToBatchCoordinatorResponse
    return response(
        responses=tuple(
            response.Topic(
                topic_id=topic.topic_id,
                partitions=tuple(
                    response.Topic.Partition(
                        partition_index=item.partition_index,
                        error_code=verdicts[topic.topic_id, item.partition_index][0],
                        error_message=verdicts[topic.topic_id, item.partition_index][1],
                    )
                    for item in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )
