"""Translates the answers of Vote, BeginQuorumEpoch, EndQuorumEpoch and DescribeQuorum.

Pure translation, so it can be tested without a socket. What the core leaves out comes in here:
which group is spoken of, the endpoint of the leader named in an answer, the version negotiated, and
the sentinels (-1 is `None` inside). Every request of the quorum speaks of exactly one group;
another number is answered INVALID_REQUEST, as upstream does. Requests have a page of their own,
`raft.wire.requests`, and so has Fetch, `raft.wire.fetch`; here are the answers.

Where an error belongs: INCONSISTENT_CLUSTER_ID and a request of the wrong shape are errors of the
whole answer, anything else is the partition's. An answer whose error the core has no word for (the
peer does not have the group, or broke) is an `UnexpectedAnswerError`: a failed request, no more.

Source: KIP-595, KIP-853, KIP-996; upstream's RaftUtil (where errors go).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from raft.core import messages as core
from raft.core.voters import Endpoint, ReplicaKey
from raft.wire.common import (
    BadRequestError,
    Group,
    GroupRef,
    UnexpectedAnswerError,
    known_error,
    optional_node,
    wire_node,
)
from raft.wire.requests import CoreRequest, RpcRequest, read_request, write_request
from records.kafka_errors import ErrorCode
from records.rpc import quorum as rpc
from records.types import ZERO_UUID, Epoch, NodeId, Offset

__all__ = [
    "Answering",
    "BadRequestError",
    "CoreRequest",
    "CoreResponse",
    "Group",
    "GroupRef",
    "RpcRequest",
    "RpcResponse",
    "UnexpectedAnswerError",
    "optional_node",
    "read_request",
    "read_response",
    "top_level_error",
    "unknown_group",
    "wire_node",
    "write_request",
    "write_response",
]

CoreResponse = (
    core.VoteResponse
    | core.BeginQuorumEpochResponse
    | core.EndQuorumEpochResponse
    | core.DescribeQuorumResponse
)
RpcResponse = (
    rpc.VoteResponse
    | rpc.BeginQuorumEpochResponse
    | rpc.EndQuorumEpochResponse
    | rpc.DescribeQuorumResponse
)
Answer = TypeVar(
    "Answer", rpc.VoteResponse, rpc.BeginQuorumEpochResponse, rpc.EndQuorumEpochResponse
)


# --- responses, sent -----------------------------------------------------------------------------


class Answering(NamedTuple):
    """The fields that a response needs beyond the core's message."""

    group: Group
    leader_endpoint: Endpoint | None  # of the leader that the answer names
    clock_offset_ms: int = 0  # added to the core's times: ms since 1970
    voter_endpoints: Sequence[tuple[NodeId, Sequence[Endpoint]]] = ()
    names_disks: bool = True  # an older description has no room for directory ids


def write_response(response: CoreResponse, to: Answering) -> RpcResponse:
    """Convert a response of the Raft core into an RPC message."""
    if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return top_level_error(response, response.error)
    match response:
        case core.VoteResponse():
            return _write_answer(rpc.VoteResponse, response, to, vote_granted=response.granted)
        case core.BeginQuorumEpochResponse():
            return _write_answer(rpc.BeginQuorumEpochResponse, response, to)
        case core.EndQuorumEpochResponse():
            return _write_answer(rpc.EndQuorumEpochResponse, response, to)
        case core.DescribeQuorumResponse():
            return _write_description(response, to)


def _write_answer(
    kind: type[Answer],
    response: core.VoteResponse | core.BeginQuorumEpochResponse | core.EndQuorumEpochResponse,
    to: Answering,
    **granted: Any,
) -> Answer:
    """Build a Vote, BeginQuorumEpoch or EndQuorumEpoch response from the Raft core's response."""
    topic = kind.TopicData
    partition = topic.PartitionData(
        partition_index=to.group.partition,
        error_code=response.error,
        leader_id=wire_node(response.leader_id),
        leader_epoch=response.epoch,
        **granted,
    )
    return kind(
        topics=(topic(topic_name=to.group.topic, partitions=(partition,)),),
        node_endpoints=tuple(
            kind.NodeEndpoint(node_id=node, host=host, port=port)
            for node, host, port in _leader(response.leader_id, to)
        ),
    )


def _leader(leader_id: NodeId | None, to: Answering) -> tuple[tuple[int, str, int], ...]:
    if leader_id is None or to.leader_endpoint is None:
        return ()
    return ((leader_id, to.leader_endpoint.host, to.leader_endpoint.port),)


def _write_description(
    response: core.DescribeQuorumResponse, to: Answering
) -> rpc.DescribeQuorumResponse:
    topic = rpc.DescribeQuorumResponse.TopicData
    partition = topic.PartitionData(
        partition_index=to.group.partition,
        error_code=response.error,
        error_message=None if response.error is ErrorCode.NONE else response.error.name,
        leader_id=wire_node(response.leader_id),
        leader_epoch=response.epoch,
        high_watermark=-1 if response.high_watermark is None else response.high_watermark,
        current_voters=tuple(_replica(state, to) for state in response.voters),
        observers=tuple(_replica(state, to) for state in response.observers),
    )
    node = rpc.DescribeQuorumResponse.Node
    return rpc.DescribeQuorumResponse(
        error_message=None,
        topics=(topic(topic_name=to.group.topic, partitions=(partition,)),),
        nodes=tuple(
            node(
                node_id=node_id,
                listeners=tuple(
                    node.Listener(name=e.listener, host=e.host, port=e.port) for e in endpoints
                ),
            )
            for node_id, endpoints in to.voter_endpoints
        ),
    )


def _replica(state: core.ReplicaState, to: Answering) -> rpc.ReplicaState:
    def wall_ms(at_ms: int | None) -> int:
        return -1 if at_ms is None else at_ms + to.clock_offset_ms

    return rpc.ReplicaState(
        replica_id=state.key.id,
        replica_directory_id=state.key.directory_id if to.names_disks else ZERO_UUID,
        log_end_offset=-1 if state.log_end_offset is None else state.log_end_offset,
        last_fetch_timestamp=wall_ms(state.last_fetch_ms),
        last_caught_up_timestamp=wall_ms(state.last_caught_up_ms),
    )


def top_level_error(to: CoreResponse | RpcRequest, error: int) -> RpcResponse:
    """Return the response to a request with only a top-level error."""
    match to:
        case core.VoteResponse() | rpc.VoteRequest():
            return rpc.VoteResponse(error_code=error, topics=())
        case core.BeginQuorumEpochResponse() | rpc.BeginQuorumEpochRequest():
            return rpc.BeginQuorumEpochResponse(error_code=error, topics=())
        case core.EndQuorumEpochResponse() | rpc.EndQuorumEpochRequest():
            return rpc.EndQuorumEpochResponse(error_code=error, topics=())
        case core.DescribeQuorumResponse() | rpc.DescribeQuorumRequest():
            return rpc.DescribeQuorumResponse(error_code=error, error_message=None, topics=())


def unknown_group(message: RpcRequest, ref: GroupRef) -> RpcResponse:
    """Return a response that reports UNKNOWN_TOPIC_OR_PARTITION for a group."""
    assert isinstance(ref.topic, str), f"{type(message).__name__} names topics, not ids: {ref}"
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    match message:
        case rpc.VoteRequest():
            return _unknown(rpc.VoteResponse, ref, vote_granted=False)
        case rpc.BeginQuorumEpochRequest():
            return _unknown(rpc.BeginQuorumEpochResponse, ref)
        case rpc.EndQuorumEpochRequest():
            return _unknown(rpc.EndQuorumEpochResponse, ref)
        case rpc.DescribeQuorumRequest():
            topic = rpc.DescribeQuorumResponse.TopicData
            described = topic.PartitionData(
                partition_index=ref.partition,
                error_code=error,
                error_message=error.name,
                leader_id=-1,
                leader_epoch=-1,
                high_watermark=-1,
                current_voters=(),
                observers=(),
            )
            return rpc.DescribeQuorumResponse(
                error_message=None, topics=(topic(topic_name=ref.topic, partitions=(described,)),)
            )


def _unknown(kind: type[Answer], ref: GroupRef, **granted: Any) -> Answer:
    topic = kind.TopicData
    partition = topic.PartitionData(
        partition_index=ref.partition,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        leader_id=-1,
        leader_epoch=-1,
        **granted,
    )
    return kind(topics=(topic(topic_name=str(ref.topic), partitions=(partition,)),))


# --- responses, received -------------------------------------------------------------------------


def read_response(message: RpcResponse) -> CoreResponse:
    """Convert a peer's response from RPC to a message of the Raft core.

    Raises UnexpectedAnswerError.
    """
    what = type(message).__name__
    top = known_error(message.error_code, what)
    if top is not ErrorCode.NONE:
        return _top_level(message, top)
    if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        raise UnexpectedAnswerError(0, f"{what} not about one group")
    partition = message.topics[0].partitions[0]
    error = known_error(partition.error_code, what)
    leader_id = optional_node(partition.leader_id)
    epoch = Epoch(partition.leader_epoch)
    if epoch < 0:
        raise UnexpectedAnswerError(error, f"{what} of epoch {epoch}")
    match message:
        case rpc.VoteResponse():
            granted = message.topics[0].partitions[0].vote_granted
            return core.VoteResponse(error=error, leader_id=leader_id, epoch=epoch, granted=granted)
        case rpc.BeginQuorumEpochResponse():
            return core.BeginQuorumEpochResponse(error=error, leader_id=leader_id, epoch=epoch)
        case rpc.EndQuorumEpochResponse():
            return core.EndQuorumEpochResponse(error=error, leader_id=leader_id, epoch=epoch)
        case rpc.DescribeQuorumResponse():
            description = message.topics[0].partitions[0]
            high_watermark = description.high_watermark
            return core.DescribeQuorumResponse(
                error=error,
                leader_id=leader_id,
                epoch=epoch,
                high_watermark=Offset(high_watermark) if high_watermark >= 0 else None,
                voters=tuple(map(_read_replica, description.current_voters)),
                observers=tuple(map(_read_replica, description.observers)),
            )


def _read_replica(state: rpc.ReplicaState) -> core.ReplicaState:
    """Convert a replica's state in DescribeQuorum, without times, which are by the peer's clock."""
    end_offset = state.log_end_offset
    return core.ReplicaState(
        key=ReplicaKey(NodeId(state.replica_id), state.replica_directory_id),
        log_end_offset=Offset(end_offset) if end_offset >= 0 else None,
        last_fetch_ms=None,
        last_caught_up_ms=None,
    )


def _top_level(message: RpcResponse, error: ErrorCode) -> CoreResponse:
    epoch = Epoch(0)
    match message:
        case rpc.VoteResponse():
            return core.VoteResponse(error=error, leader_id=None, epoch=epoch)
        case rpc.BeginQuorumEpochResponse():
            return core.BeginQuorumEpochResponse(error=error, leader_id=None, epoch=epoch)
        case rpc.EndQuorumEpochResponse():
            return core.EndQuorumEpochResponse(error=error, leader_id=None, epoch=epoch)
        case rpc.DescribeQuorumResponse():
            return core.DescribeQuorumResponse(error=error, leader_id=None, epoch=epoch)
