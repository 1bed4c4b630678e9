"""The core's messages as Kafka's RPCs, and back: votes, greetings, farewells, descriptions.

Pure translation, so it can be tested without a socket. What the core leaves out comes in here:
which group is spoken of, the endpoint of the leader named in an answer, the version negotiated, and
the sentinels (-1 is `None` inside). Every request of the quorum speaks of exactly one group;
another number is answered INVALID_REQUEST, as upstream does. Fetch has a page of its own,
`raft.wire_fetch`.

Where an error belongs: INCONSISTENT_CLUSTER_ID and a request of the wrong shape are errors of the
whole answer, anything else is the partition's. An answer whose error the core has no word for (the
peer does not have the group, or broke) is an `UnexpectedAnswerError`: a failed request, no more.

Source: KIP-595, KIP-853, KIP-996; upstream's RaftUtil (where errors go).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from raft.core import messages as core
from raft.core.errors import ErrorCode
from raft.core.voters import Endpoint, ReplicaKey
from records.rpc import quorum as rpc
from records.types import Epoch, NodeId, Offset


class WireError(IntEnum):
    """Error codes that the driver answers with and the core has no use for."""

    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    MESSAGE_TOO_LARGE = 10
    INVALID_REQUIRED_ACKS = 21
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


class Group(NamedTuple):
    """A replicated partition: its topic by name and id, and its number."""

    topic: str
    partition: int
    topic_id: UUID

    @property
    def name(self) -> str:
        """`topic-partition`: the directory's name, and how log lines and metrics call it."""
        return f"{self.topic}-{self.partition}"


class GroupRef(NamedTuple):
    """A group as a request names it: by topic name, or (Fetch from version 13) by id."""

    topic: str | UUID
    partition: int


class BadRequestError(Exception):
    """A request that decodes but says nothing possible: answered INVALID_REQUEST."""


class UnexpectedAnswerError(Exception):
    """An answer with an error that the core does not know, or not about our group."""

    def __init__(self, error: int, what: str) -> None:
        super().__init__(f"{what}: error {error}")
        self.error = error


class _Topic(Protocol):
    @property
    def partitions(self) -> Sequence[object]: ...


T = TypeVar("T")
P = TypeVar("P")

NO_NODE: Final = -1


def optional_node(node_id: int) -> NodeId | None:
    """-1 (or anything below 0) is nobody."""
    return NodeId(node_id) if node_id >= 0 else None


def wire_node(node_id: NodeId | None) -> int:
    """Nobody is -1."""
    return NO_NODE if node_id is None else node_id


def checked_node(node_id: int) -> NodeId:
    """A node that must be named. Raises BadRequestError."""
    if node_id < 0:
        raise BadRequestError(f"node id {node_id}")
    return NodeId(node_id)


def checked_epoch(epoch: int) -> Epoch:
    """Raises BadRequestError."""
    if epoch < 0:
        raise BadRequestError(f"epoch {epoch}")
    return Epoch(epoch)


def checked_offset(offset: int) -> Offset:
    """Raises BadRequestError."""
    if offset < 0:
        raise BadRequestError(f"offset {offset}")
    return Offset(offset)


def only(items: Sequence[T], what: str) -> T:
    """The one item. Raises BadRequestError."""
    if len(items) != 1:
        raise BadRequestError(f"{len(items)} {what}, exactly one is possible")
    return items[0]


def known_error(error: int, what: str) -> ErrorCode:
    """The core's word for an error. Raises UnexpectedAnswerError."""
    try:
        return ErrorCode(error)
    except ValueError:
        raise UnexpectedAnswerError(error, what) from None


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


def write_request(
    group: Group, request: CoreRequest, endpoints: Sequence[Endpoint] = ()
) -> RpcRequest:
    """The RPC for a request; fields that an older version lacks are ignorable.

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
    """Whom a request is for, and what it asks. Raises BadRequestError."""
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


# --- responses, sent -----------------------------------------------------------------------------


class Answering(NamedTuple):
    """What an answer needs beyond the core's words."""

    group: Group
    leader_endpoint: Endpoint | None  # of the leader that the answer names
    clock_offset_ms: int = 0  # added to the core's times: ms since 1970
    voter_endpoints: Sequence[tuple[NodeId, Sequence[Endpoint]]] = ()


def write_response(response: CoreResponse, to: Answering) -> RpcResponse:
    """The RPC for an answer of the core."""
    if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return top_level_error(response, response.error)
    match response:
        case core.VoteResponse():
            vote = rpc.VoteResponse.TopicData
            return rpc.VoteResponse(
                topics=(
                    vote(
                        topic_name=to.group.topic,
                        partitions=(
                            vote.PartitionData(
                                partition_index=to.group.partition,
                                error_code=response.error,
                                leader_id=wire_node(response.leader_id),
                                leader_epoch=response.epoch,
                                vote_granted=response.granted,
                            ),
                        ),
                    ),
                ),
                node_endpoints=tuple(
                    rpc.VoteResponse.NodeEndpoint(node_id=node, host=host, port=port)
                    for node, host, port in _leader(response.leader_id, to)
                ),
            )
        case core.BeginQuorumEpochResponse():
            begin = rpc.BeginQuorumEpochResponse.TopicData
            return rpc.BeginQuorumEpochResponse(
                topics=(
                    begin(
                        topic_name=to.group.topic,
                        partitions=(
                            begin.PartitionData(
                                partition_index=to.group.partition,
                                error_code=response.error,
                                leader_id=wire_node(response.leader_id),
                                leader_epoch=response.epoch,
                            ),
                        ),
                    ),
                ),
                node_endpoints=tuple(
                    rpc.BeginQuorumEpochResponse.NodeEndpoint(node_id=node, host=host, port=port)
                    for node, host, port in _leader(response.leader_id, to)
                ),
            )
        case core.EndQuorumEpochResponse():
            end = rpc.EndQuorumEpochResponse.TopicData
            return rpc.EndQuorumEpochResponse(
                topics=(
                    end(
                        topic_name=to.group.topic,
                        partitions=(
                            end.PartitionData(
                                partition_index=to.group.partition,
                                error_code=response.error,
                                leader_id=wire_node(response.leader_id),
                                leader_epoch=response.epoch,
                            ),
                        ),
                    ),
                ),
                node_endpoints=tuple(
                    rpc.EndQuorumEpochResponse.NodeEndpoint(node_id=node, host=host, port=port)
                    for node, host, port in _leader(response.leader_id, to)
                ),
            )
        case core.DescribeQuorumResponse():
            return _write_description(response, to)


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
        replica_directory_id=state.key.directory_id,
        log_end_offset=-1 if state.log_end_offset is None else state.log_end_offset,
        last_fetch_timestamp=wall_ms(state.last_fetch_ms),
        last_caught_up_timestamp=wall_ms(state.last_caught_up_ms),
    )


def top_level_error(to: CoreResponse | RpcRequest, error: int) -> RpcResponse:
    """An answer that is all error, to such a request or instead of such an answer."""
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
    """UNKNOWN_TOPIC_OR_PARTITION, for a group this node does not have (yet)."""
    assert isinstance(ref.topic, str), f"{type(message).__name__} names topics, not ids: {ref}"
    error = WireError.UNKNOWN_TOPIC_OR_PARTITION
    index = ref.partition
    match message:
        case rpc.VoteRequest():
            vote = rpc.VoteResponse.TopicData
            cast = vote.PartitionData(
                partition_index=index,
                error_code=error,
                leader_id=-1,
                leader_epoch=-1,
                vote_granted=False,
            )
            return rpc.VoteResponse(topics=(vote(topic_name=ref.topic, partitions=(cast,)),))
        case rpc.BeginQuorumEpochRequest():
            begin = rpc.BeginQuorumEpochResponse.TopicData
            begun = begin.PartitionData(
                partition_index=index, error_code=error, leader_id=-1, leader_epoch=-1
            )
            return rpc.BeginQuorumEpochResponse(
                topics=(begin(topic_name=ref.topic, partitions=(begun,)),)
            )
        case rpc.EndQuorumEpochRequest():
            end = rpc.EndQuorumEpochResponse.TopicData
            ended = end.PartitionData(
                partition_index=index, error_code=error, leader_id=-1, leader_epoch=-1
            )
            return rpc.EndQuorumEpochResponse(
                topics=(end(topic_name=ref.topic, partitions=(ended,)),)
            )
        case rpc.DescribeQuorumRequest():
            topic = rpc.DescribeQuorumResponse.TopicData
            described = topic.PartitionData(
                partition_index=index,
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


# --- responses, received -------------------------------------------------------------------------


def read_response(message: RpcResponse) -> CoreResponse:
    """What a peer answered. Raises UnexpectedAnswerError."""
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
    """A replica of somebody else's; its times are on another clock, so they are left out."""
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
