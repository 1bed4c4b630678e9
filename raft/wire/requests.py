"""The core's requests as Kafka's RPCs, and back. `raft.wire.responses` has the answers."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from raft.core import messages as core
from raft.core.voters import Endpoint, ReplicaKey
from raft.wire.common import (
    NO_NODE,
    Group,
    GroupRef,
    checked_epoch,
    checked_node,
    checked_offset,
    only,
)
from records.rpc import quorum as rpc
from records.types import NodeId

# --- requests, sent ------------------------------------------------------------------------------

CoreRequest = (
    core.VoteRequest
    | core.BeginQuorumEpochRequest
    | core.EndQuorumEpochRequest
    | core.DescribeQuorumRequest
)
RpcRequest = (
    rpc.VoteRequest
    | rpc.BeginQuorumEpochRequest
    | rpc.EndQuorumEpochRequest
    | rpc.DescribeQuorumRequest
)


def write_request(
    group: Group, request: CoreRequest, endpoints: Sequence[Endpoint] = ()
) -> RpcRequest:
    """Convert a request of the Raft core into an RPC message.

    Args:    endpoints: the sender's own, which a new leader makes known.
    """
    match request:
        case core.VoteRequest():
            return _write_vote(group, request)
        case core.BeginQuorumEpochRequest():
            return _write_begin(group, request, endpoints)
        case core.EndQuorumEpochRequest():
            return _write_end(group, request, endpoints)
        case core.DescribeQuorumRequest():
            topic = rpc.DescribeQuorumRequest.TopicData
            partition = topic.PartitionData(partition_index=group.partition)
            return rpc.DescribeQuorumRequest(
                topics=(topic(topic_name=group.topic, partitions=(partition,)),)
            )


def _write_vote(group: Group, request: core.VoteRequest) -> rpc.VoteRequest:
    topic = rpc.VoteRequest.TopicData
    voter = request.voter
    partition = topic.PartitionData(
        partition_index=group.partition,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=voter.directory_id if voter else UUID(int=0),
        last_offset_epoch=request.last_epoch,
        last_offset=request.end_offset,
        pre_vote=request.pre_vote,
    )
    return rpc.VoteRequest(
        cluster_id=request.cluster_id,
        voter_id=voter.id if voter else NO_NODE,
        topics=(topic(topic_name=group.topic, partitions=(partition,)),),
    )


def _write_begin(
    group: Group, request: core.BeginQuorumEpochRequest, endpoints: Sequence[Endpoint]
) -> rpc.BeginQuorumEpochRequest:
    topic = rpc.BeginQuorumEpochRequest.TopicData
    voter = request.voter
    partition = topic.PartitionData(
        partition_index=group.partition,
        voter_directory_id=voter.directory_id if voter else UUID(int=0),
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
    )
    return rpc.BeginQuorumEpochRequest(
        cluster_id=request.cluster_id,
        voter_id=voter.id if voter else NO_NODE,
        topics=(topic(topic_name=group.topic, partitions=(partition,)),),
        leader_endpoints=tuple(
            rpc.BeginQuorumEpochRequest.LeaderEndpoint(name=e.listener, host=e.host, port=e.port)
            for e in endpoints
        ),
    )


def _write_end(
    group: Group, request: core.EndQuorumEpochRequest, endpoints: Sequence[Endpoint]
) -> rpc.EndQuorumEpochRequest:
    topic = rpc.EndQuorumEpochRequest.TopicData
    candidates = request.preferred_candidates
    info = topic.PartitionData.ReplicaInfo
    partition = topic.PartitionData(
        partition_index=group.partition,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=tuple(int(key.id) for key in candidates),
        preferred_candidates=tuple(
            info(candidate_id=key.id, candidate_directory_id=key.directory_id) for key in candidates
        ),
    )
    return rpc.EndQuorumEpochRequest(
        cluster_id=request.cluster_id,
        topics=(topic(topic_name=group.topic, partitions=(partition,)),),
        leader_endpoints=tuple(
            rpc.EndQuorumEpochRequest.LeaderEndpoint(name=e.listener, host=e.host, port=e.port)
            for e in endpoints
        ),
    )


# --- requests, received --------------------------------------------------------------------------


def read_request(message: RpcRequest) -> tuple[GroupRef, CoreRequest]:
    """Return the group that a request addresses, and the request for the Raft core.

    Raises BadRequestError.
    """
    match message:
        case rpc.VoteRequest():
            return _read_vote(message)
        case rpc.BeginQuorumEpochRequest():
            return _read_begin(message)
        case rpc.EndQuorumEpochRequest():
            return _read_end(message)
        case rpc.DescribeQuorumRequest():
            topic = only(message.topics, "topics")
            partition = only(topic.partitions, "partitions")
            ref = GroupRef(topic.topic_name, partition.partition_index)
            return ref, core.DescribeQuorumRequest()


def _read_vote(message: rpc.VoteRequest) -> tuple[GroupRef, core.VoteRequest]:
    topic = only(message.topics, "topics")
    vote = only(topic.partitions, "partitions")
    return GroupRef(topic.topic_name, vote.partition_index), core.VoteRequest(
        cluster_id=message.cluster_id,
        voter=_voter(message.voter_id, vote.voter_directory_id),
        candidate=ReplicaKey(checked_node(vote.replica_id), vote.replica_directory_id),
        epoch=checked_epoch(vote.replica_epoch),
        last_epoch=checked_epoch(vote.last_offset_epoch),
        end_offset=checked_offset(vote.last_offset),
        pre_vote=vote.pre_vote,
    )


def _read_begin(
    message: rpc.BeginQuorumEpochRequest,
) -> tuple[GroupRef, core.BeginQuorumEpochRequest]:
    topic = only(message.topics, "topics")
    begin = only(topic.partitions, "partitions")
    return GroupRef(topic.topic_name, begin.partition_index), core.BeginQuorumEpochRequest(
        cluster_id=message.cluster_id,
        voter=_voter(message.voter_id, begin.voter_directory_id),
        leader_id=checked_node(begin.leader_id),
        epoch=checked_epoch(begin.leader_epoch),
    )


def _read_end(message: rpc.EndQuorumEpochRequest) -> tuple[GroupRef, core.EndQuorumEpochRequest]:
    topic = only(message.topics, "topics")
    end = only(topic.partitions, "partitions")
    candidates = tuple(
        ReplicaKey(checked_node(c.candidate_id), c.candidate_directory_id)
        for c in end.preferred_candidates
    ) or tuple(ReplicaKey(checked_node(node_id)) for node_id in end.preferred_successors)
    return GroupRef(topic.topic_name, end.partition_index), core.EndQuorumEpochRequest(
        cluster_id=message.cluster_id,
        leader_id=checked_node(end.leader_id),
        epoch=checked_epoch(end.leader_epoch),
        preferred_candidates=candidates,
    )


def _voter(node_id: int, directory_id: UUID) -> ReplicaKey | None:
    return ReplicaKey(NodeId(node_id), directory_id) if node_id >= 0 else None
