"""Answers requests about replicas: elections, reassignments and log directories.

Partitions here have no replicas to elect or to move, and a broker has no log directory: records are
in object storage, and any broker leads any partition. Tools ask all the same, so the answers are
those of a Kafka cluster in which nothing is to be done.

A broker's one log directory is `object-store`. It has the partitions that this broker leads for
clients without a rack: so each partition is in one broker's directory, and sums over all brokers
are right.

Source: KIP-113, KIP-827 (log directories), KIP-455, KIP-460; upstream's ReplicationControlManager
(electLeaders, alterPartitionReassignments), whose codes and texts these are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.placement import leader, unfenced_brokers
from coordinator.errors import CoordinatorError
from diskless.apis.handler import make_handler
from diskless.cluster import Cluster
from diskless.loop_turns import Pace
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import replicas as rpc
from records.rpc.objects import DescribeDisklessTopicsRequest

LOG_DIR: Final = "object-store"

MAX_PARTITIONS: Final = 20_000
"""Partitions that one request may name: a tenth of a second."""

SIZES_S: Final = 20.0
"""The longest wait for the sizes in a coordinator's replica: less than clients wait."""

PREFERRED, UNCLEAN = 0, 1
FIRST_WITH_ERROR: Final = 1  # of ElectLeaders: the first version with an error for all

TOO_MANY: Final = f"A request may name at most {MAX_PARTITIONS} partitions."
NO_REPLICAS: Final = (
    "Partitions have no replicas to move here: any broker serves any partition, and records are in "
    "object storage."
)


# --- elections ----------------------------------------------------------------------------------

_Elected = rpc.ElectLeadersResponse.ReplicaElectionResult
_Election = _Elected.PartitionResult


async def elect(
    request: rpc.ElectLeadersRequest, image: MetadataImage, version: int
) -> rpc.ElectLeadersResponse:
    """Answer ElectLeaders with ELECTION_NOT_NEEDED or another error for each partition."""
    asked = request.topic_partitions
    if asked is None:  # all that need one
        return rpc.ElectLeadersResponse(
            replica_election_results=tuple(
                _Elected(topic=name, partition_result=()) for name in sorted(image.topic_ids)
            )
        )
    refused: tuple[ErrorCode, str] | None = None
    if sum(len(topic.partitions) for topic in asked) + len(asked) > MAX_PARTITIONS:
        refused = ErrorCode.POLICY_VIOLATION, TOO_MANY
        asked = asked[:1]
    elif request.election_type not in (PREFERRED, UNCLEAN):
        text = f"Unknown election type {request.election_type}"
        refused = ErrorCode.INVALID_REQUEST, text
    pace, results = Pace(), []
    for topic in asked:
        partitions = []
        for index in topic.partitions[:MAX_PARTITIONS]:
            await pace.step()
            code, text = refused or _election(image, topic.topic, index, request.election_type)
            partitions.append(_Election(partition_id=index, error_code=code, error_message=text))
        results.append(_Elected(topic=topic.topic, partition_result=tuple(partitions)))
    code = refused[0] if refused is not None and version >= FIRST_WITH_ERROR else ErrorCode.NONE
    return rpc.ElectLeadersResponse(error_code=code, replica_election_results=tuple(results))


def _election(
    image: MetadataImage, name: str, index: int, election_type: int
) -> tuple[ErrorCode, str]:
    """Return the error code and message of one partition's leader election."""
    topic = image.topic(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    if index not in topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    if unfenced_brokers(image):
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    text = "No broker serves at the moment."
    if election_type == PREFERRED:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, text
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, text


# --- reassignments ------------------------------------------------------------------------------

_Reassigned = rpc.AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Reassignment = _Reassigned.ReassignablePartitionResponse


async def reassign(
    request: rpc.AlterPartitionReassignmentsRequest, image: MetadataImage
) -> rpc.AlterPartitionReassignmentsResponse:
    """Refuse each partition's move of replicas with a reason."""
    response = rpc.AlterPartitionReassignmentsResponse
    allowed = request.allow_replication_factor_change
    size = len(request.topics) + sum(
        len(topic.partitions) + sum(len(one.replicas or ()) for one in topic.partitions)
        for topic in request.topics
    )
    if size > MAX_PARTITIONS:
        return response(
            allow_replication_factor_change=allowed,
            error_code=ErrorCode.POLICY_VIOLATION,
            error_message=TOO_MANY,
            responses=(),
        )
    pace, results = Pace(), []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            await pace.step()
            found = image.topic(topic.name)
            code, text = _reassignment(
                image, found, topic.name, partition.partition_index, partition.replicas
            )
            partitions.append(
                _Reassignment(
                    partition_index=partition.partition_index, error_code=code, error_message=text
                )
            )
        results.append(_Reassigned(name=topic.name, partitions=tuple(partitions)))
    return response(
        allow_replication_factor_change=allowed, error_message=None, responses=tuple(results)
    )


def _reassignment(
    image: MetadataImage,
    topic: TopicImage | None,
    name: str,
    index: int,
    replicas: Sequence[int] | None,
) -> tuple[ErrorCode, str | None]:
    """Return the error code and message of one partition's replica reassignment."""
    if topic is None:
        text = f"Unable to find a topic named {name}."
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text
    if index not in topic.partitions:
        text = f"Unable to find partition {name}:{index}."
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    the_assignment = "The manual partition assignment includes"
    if not replicas:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{the_assignment} an empty replica list."
    seen: set[int] = set()
    for broker in sorted(replicas):
        if broker not in image.brokers:
            text = f"{the_assignment} broker {broker}, but no such broker is registered."
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
        if broker in seen:
            text = f"{the_assignment} the broker {broker} more than once."
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
        seen.add(broker)
    if tuple(replicas) == (leader(topic.topic_id, index, None, unfenced_brokers(image)),):
        return ErrorCode.NONE, None  # it is there already
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, NO_REPLICAS


def list_reassignments(
    request: rpc.ListPartitionReassignmentsRequest,
) -> rpc.ListPartitionReassignmentsResponse:
    """Answer ListPartitionReassignments with no partition, because no replica is ever moved."""
    topics = request.topics or ()
    if len(topics) + sum(len(topic.partition_indexes) for topic in topics) > MAX_PARTITIONS:
        return rpc.ListPartitionReassignmentsResponse(
            error_code=ErrorCode.POLICY_VIOLATION, error_message=TOO_MANY, topics=()
        )
    return rpc.ListPartitionReassignmentsResponse(error_message=None, topics=())


# --- log directories ----------------------------------------------------------------------------

_Dir = rpc.DescribeLogDirsResponse.DescribeLogDirsResult
_DirTopic = _Dir.DescribeLogDirsTopic
_DirPartition = _DirTopic.DescribeLogDirsPartition


async def describe_log_dirs(
    request: rpc.DescribeLogDirsRequest, cluster: Cluster
) -> rpc.DescribeLogDirsResponse:
    """Describe the stored bytes of the partitions that this broker leads.

    The sizes are those in this broker's own replicas of the batch coordinators.
    """
    asked = request.topics
    size = 0 if asked is None else len(asked) + sum(len(topic.partitions) for topic in asked)
    if size > MAX_PARTITIONS:
        return _log_dir(ErrorCode.POLICY_VIOLATION)
    wanted: dict[str, set[int] | None] = {}
    if asked is None:
        wanted = dict.fromkeys(cluster.image.topic_ids)
    else:
        for named in asked:
            indexes = wanted.setdefault(named.topic, set())
            assert indexes is not None
            indexes.update(named.partitions)
    names = sorted(name for name, indexes in wanted.items() if indexes is None or indexes)
    try:
        async with asyncio.timeout(SIZES_S):
            sizes = await _stored_bytes(names, cluster)
    except (CoordinatorError, TimeoutError):
        return _log_dir(ErrorCode.KAFKA_STORAGE_ERROR)
    pace, topics = Pace(), []
    for name in names:
        partitions = []
        for index in _led_partitions(cluster, name, wanted[name]):
            await pace.step()
            stored = sizes.get(name, {}).get(index)
            if stored is not None:
                partitions.append(
                    _DirPartition(
                        partition_index=index,
                        partition_size=stored,
                        offset_lag=0,
                        is_future_key=False,
                    )
                )
        if partitions:
            topics.append(_DirTopic(name=name, partitions=tuple(partitions)))
    return _log_dir(ErrorCode.NONE, topics)


def _log_dir(code: ErrorCode, topics: Iterable[_DirTopic] = ()) -> rpc.DescribeLogDirsResponse:
    """Build the DescribeLogDirs response with one directory of unknown size (-1)."""
    described = _Dir(error_code=code, log_dir=LOG_DIR, topics=tuple(topics))
    return rpc.DescribeLogDirsResponse(results=(described,))


def _led_partitions(cluster: Cluster, name: str, wanted: set[int] | None) -> Iterator[int]:
    """Yield the wanted partitions of a topic that this broker leads for clients without a rack."""
    topic = cluster.image.topic(name)
    if topic is None:
        return
    brokers = unfenced_brokers(cluster.image)
    for index in sorted(topic.partitions if wanted is None else wanted & topic.partitions.keys()):
        if leader(topic.topic_id, index, None, brokers) == cluster.broker_id:
            yield index


async def _stored_bytes(names: Iterable[str], cluster: Cluster) -> Mapping[str, Mapping[int, int]]:
    """Return the bytes of each partition's undeleted batches, by topic and index.

    Raises:  CoordinatorError if this broker has no replica that can answer.
    """
    by_coordinator: dict[int, list[str]] = {}
    for name in names:
        topic = cluster.image.topic(name)
        if topic is not None and not topic.is_internal:
            for coordinator in {topic.coordinator(index) for index in topic.partitions}:
                by_coordinator.setdefault(coordinator, []).append(name)
    sizes: dict[str, dict[int, int]] = {}
    for coordinator, hosted in by_coordinator.items():
        replica = cluster.replica(coordinator)
        if replica is None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no replica")
        described = await replica.call(
            DescribeDisklessTopicsRequest(
                coordinator_partition=coordinator,
                topic_names=tuple(hosted),
                include_objects=False,
            )
        )
        for found in described.topics:
            sizes.setdefault(found.topic_name, {}).update(
                (one.partition_index, one.stored_bytes) for one in found.partitions
            )
    return sizes


def handlers(cluster: Cluster) -> dict[int, Served]:
    """Return the handlers of requests about replicas, by api key."""
    return {
        35: make_handler(
            rpc.DescribeLogDirsRequest,
            lambda request, _: describe_log_dirs(request, cluster),
            in_line=True,
        ),
        43: make_handler(
            rpc.ElectLeadersRequest,
            lambda request, context: elect(request, cluster.image, context.version),
            in_line=True,
        ),
        45: make_handler(
            rpc.AlterPartitionReassignmentsRequest,
            lambda request, _: reassign(request, cluster.image),
            in_line=True,
        ),
        46: make_handler(
            rpc.ListPartitionReassignmentsRequest, lambda request, _: list_reassignments(request)
        ),
    }
