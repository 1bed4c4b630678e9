"""Translates FetchSnapshot: chunks of checkpoints, of several groups in one request.

Each partition of a request is judged by its own group and refused or served by itself; the bytes of
one answer are then shared out fairly. Nobody gets less than an equal share as long as its file has
that many bytes left, and what the short ones leave is shared among the others.

Upstream serves one partition a request, so our own replicas ask for one.

Source: KIP-630, FetchSnapshot (Request Handling, Errors); KIP-853 (directory ids, endpoints).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from raft.core import messages as core
from raft.core.voters import Endpoint, ReplicaKey
from raft.interfaces import SnapshotChunk
from raft.wire.common import (
    BadRequestError,
    Group,
    GroupRef,
    UnexpectedAnswerError,
    checked_node,
    known_error,
    wire_node,
)
from records.kafka_errors import ErrorCode
from records.rpc import fetch as rpc
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

MAX_PARTITIONS: Final = 64
"""Largest number of partitions in one request: a node has a handful of groups, and each partition
is a request to one of them."""

Topic = rpc.FetchSnapshotResponse.TopicSnapshot
Partition = Topic.PartitionSnapshot
AskedPartition = rpc.FetchSnapshotRequest.TopicSnapshot.PartitionSnapshot


# --- received by a leader ------------------------------------------------------------------------


class RequestedChunk(NamedTuple):
    """One partition of a FetchSnapshot request."""

    ref: GroupRef
    partition: AskedPartition
    request: core.FetchSnapshotRequest | None  # None: it says something impossible


def read_fetch_snapshot(message: rpc.FetchSnapshotRequest) -> list[RequestedChunk]:
    """Return the chunks that a FetchSnapshot requests, partition by partition.

    Raises BadRequestError.

    A position below 0 is not the core's to judge: it is out of range, like one past the end. Nor is
    an id below 0: there is no such snapshot. An epoch of -1 says that it is unknown, and is fenced.
    """
    if message.max_bytes < 0:
        raise BadRequestError(f"max_bytes {message.max_bytes}")
    asked = [
        RequestedChunk(
            GroupRef(topic.name, partition.partition),
            partition,
            _read_partition(message, partition),
        )
        for topic in message.topics
        for partition in topic.partitions
    ]
    if not 0 < len(asked) <= MAX_PARTITIONS:
        raise BadRequestError(f"{len(asked)} partitions, from 1 to {MAX_PARTITIONS} are possible")
    return asked


def _read_partition(
    message: rpc.FetchSnapshotRequest, partition: AskedPartition
) -> core.FetchSnapshotRequest | None:
    snapshot = partition.snapshot_id
    try:
        return core.FetchSnapshotRequest(
            cluster_id=message.cluster_id,
            replica=ReplicaKey(checked_node(message.replica_id), partition.replica_directory_id),
            epoch=Epoch(partition.current_leader_epoch),
            snapshot_id=OffsetAndEpoch(
                Offset(max(0, snapshot.end_offset)), Epoch(max(0, snapshot.epoch))
            ),
            position=max(0, partition.position),
            max_bytes=message.max_bytes,
        )
    except BadRequestError:
        return None


def share_fairly(left_bytes: Sequence[int], max_bytes: int) -> list[int]:
    """Divide `max_bytes` evenly among files; return the number of bytes to send of each.

    >>> share_fairly([5, 100, 70], 90)
    [5, 43, 42]
    """
    shares = [0] * len(left_bytes)
    by_size = sorted(range(len(left_bytes)), key=lambda index: left_bytes[index])
    for position, index in enumerate(by_size):
        waiting = len(by_size) - position
        equal = max_bytes // waiting
        shares[index] = min(left_bytes[index], equal)
        max_bytes -= shares[index]
    return shares


class Leader(NamedTuple):
    """The leader that an answer names for a group."""

    node_id: NodeId | None
    epoch: int
    endpoint: Endpoint | None


def served_partition(asked: RequestedChunk, piece: SnapshotChunk, leader: Leader) -> Partition:
    """Return a response partition with bytes of a checkpoint, which are not copied."""
    return Partition(
        index=asked.ref.partition,
        snapshot_id=_same_id(asked),
        current_leader=_leader_field(leader),
        size=piece.size_bytes,
        position=asked.partition.position,
        unaligned_records=memoryview(piece.data),
    )


def refused_partition(asked: RequestedChunk, error: int, leader: Leader | None = None) -> Partition:
    """Return a response partition with an error and without bytes of a checkpoint."""
    return Partition(
        index=asked.ref.partition,
        error_code=error,
        snapshot_id=_same_id(asked),
        current_leader=_leader_field(leader or Leader(None, -1, None)),
        size=0,
        position=0,
        unaligned_records=b"",
    )


def _same_id(asked: RequestedChunk) -> Partition.SnapshotId:
    snapshot = asked.partition.snapshot_id
    return Partition.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch)


def _leader_field(leader: Leader) -> Partition.LeaderIdAndEpoch:
    return Partition.LeaderIdAndEpoch(
        leader_id=wire_node(leader.node_id), leader_epoch=leader.epoch
    )


def write_fetch_snapshot_response(
    message: rpc.FetchSnapshotRequest, partitions: Sequence[Partition], leaders: Sequence[Leader]
) -> rpc.FetchSnapshotResponse:
    """Return the response to `message`, with its partitions in order and leaders' endpoints."""
    left = iter(partitions)
    topics = tuple(
        Topic(name=topic.name, partitions=tuple(next(left) for _ in topic.partitions))
        for topic in message.topics
    )
    endpoints = {
        leader.node_id: leader.endpoint
        for leader in leaders
        if leader.node_id is not None and leader.endpoint is not None
    }
    return rpc.FetchSnapshotResponse(
        topics=topics,
        node_endpoints=tuple(
            rpc.FetchSnapshotResponse.NodeEndpoint(node_id=node, host=e.host, port=e.port)
            for node, e in endpoints.items()
        ),
    )


def failed_fetch_snapshot(error: int) -> rpc.FetchSnapshotResponse:
    """Return a FetchSnapshot response with an error for the whole request."""
    return rpc.FetchSnapshotResponse(error_code=error, topics=())


# --- sent by a replica ---------------------------------------------------------------------------


def write_fetch_snapshot(
    group: Group, request: core.FetchSnapshotRequest
) -> rpc.FetchSnapshotRequest:
    """Convert the Raft core's FetchSnapshot request into an RPC message."""
    snapshot_id = request.snapshot_id
    topic = rpc.FetchSnapshotRequest.TopicSnapshot
    partition = AskedPartition(
        partition=group.partition,
        current_leader_epoch=request.epoch,
        snapshot_id=AskedPartition.SnapshotId(
            end_offset=snapshot_id.offset, epoch=snapshot_id.epoch
        ),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    return rpc.FetchSnapshotRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica.id,
        max_bytes=request.max_bytes,
        topics=(topic(name=group.topic, partitions=(partition,)),),
    )


class RefusedError(Exception):
    """The leader refused to send bytes; the error code says why."""

    def __init__(self, error: ErrorCode | int) -> None:
        super().__init__(getattr(error, "name", f"error {error}"))
        self.error = int(error)


def read_fetch_snapshot_response(
    message: rpc.FetchSnapshotResponse, group: Group, request: core.FetchSnapshotRequest
) -> SnapshotChunk:
    """Return the requested chunk of a FetchSnapshot response, or raise the response's error.

    Raises:  RefusedError; UnexpectedAnswerError if it is about something else, or too much.
    """
    if message.error_code:
        raise RefusedError(_named_error(message.error_code))
    if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        raise UnexpectedAnswerError(0, "FetchSnapshot answer not about one group")
    topic, partition = message.topics[0], message.topics[0].partitions[0]
    if (topic.name, partition.index) != (group.topic, group.partition):
        raise UnexpectedAnswerError(0, f"FetchSnapshot answer about {topic.name}-{partition.index}")
    if partition.error_code:
        raise RefusedError(_named_error(partition.error_code))
    snapshot = partition.snapshot_id
    told = OffsetAndEpoch(Offset(snapshot.end_offset), Epoch(snapshot.epoch))
    if told != request.snapshot_id:
        raise UnexpectedAnswerError(0, f"bytes of snapshot {told}, not {request.snapshot_id}")
    if partition.position != request.position:
        raise UnexpectedAnswerError(
            0, f"bytes from position {partition.position}, not {request.position}"
        )
    data = partition.unaligned_records
    if len(data) > request.max_bytes:
        raise UnexpectedAnswerError(0, f"{len(data)} bytes, asked for {request.max_bytes}")
    return SnapshotChunk(partition.size, data)


def _named_error(error: int) -> ErrorCode | int:
    try:
        return known_error(error, "FetchSnapshot")
    except UnexpectedAnswerError:
        return error
