"""Guards of requests about records and offsets: each topic of a request is allowed or denied.

A topic is named, or its id is given. An id that no topic has is left to the handler: it needs no
operation, as in Kafka.

Source: upstream's KafkaApis (handleListOffsetRequest, handleFetchRequest, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from coordinator.controller.api_operations import Check
from coordinator.controller.authorizer import ResourceType
from coordinator.controller.guarding import (
    AUTHORIZATION_FAILED,
    DENIED_TOPIC,
    Asked,
    Guard,
    Guarded,
    denied_names,
    is_allowed,
    is_allowed_on_cluster,
    needs,
    without_denied,
)
from coordinator.controller.image import MetadataImage
from records.kafka_errors import ErrorCode
from records.rpc import batch_coordinator, fetch, list_offsets, partitions, transactions
from records.rpc.produce import ProduceRequest

TOPIC: Final = ResourceType.TOPIC
DENIED: Final = int(AUTHORIZATION_FAILED[TOPIC])

_FETCHED: Final = fetch.FetchResponse.FetchableTopicResponse
_FOUND: Final = batch_coordinator.FindBatchesResponse.Topic
_LISTED: Final = list_offsets.ListOffsetsResponse.ListOffsetsTopicResponse
_DELETED: Final = partitions.DeleteRecordsResponse.DeleteRecordsTopicResult
_ENDED: Final = partitions.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_PRODUCERS: Final = transactions.DescribeProducersResponse.TopicResponse


def is_topic_allowed(check: Check, asked: Asked, topic: Any, *, by_id: bool) -> bool:
    """Return whether a check passes for a topic of a request; an unknown id always passes."""
    if not by_id:
        return is_allowed(check, asked.access, topic.name)
    name = name_of(asked.image, topic)
    return name is None or is_allowed(check, asked.access, name)


def name_of(image: MetadataImage, topic: Any) -> str | None:
    """Return the name of a topic that a request gives by id, or None for an unknown id."""
    found = image.topics.get(topic.topic_id)
    return None if found is None else found.name


FETCH_READS: Final = needs(1, TOPIC)
FETCH_REPLICATES: Final = needs(1, ResourceType.CLUSTER)
FETCH_BY_ID: Final = 13
FINDS: Final = needs(1097, TOPIC)


def fetch_guard(request: fetch.FetchRequest, asked: Asked) -> Guarded | None:
    """Deny topics that a consumer may not read, or all of them to a replica that is no node."""
    by_id = asked.version >= FETCH_BY_ID
    if max(request.replica_id, request.replica_state.replica_id) < 0:  # a consumer

        def is_read(topic: Any) -> bool:
            name = name_of(asked.image, topic) if by_id else topic.topic
            return name is None or is_allowed(FETCH_READS, asked.access, name)

    else:
        replicates = is_allowed_on_cluster(FETCH_REPLICATES, asked.access)

        def is_read(topic: Any) -> bool:  # noqa: ARG001 (one answer for all topics)
            return replicates

    return without_denied(request, "topics", "responses", is_read, _denied_fetch)


def _denied_fetch(topic: Any) -> Any:
    return _FETCHED(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=tuple(
            _FETCHED.PartitionData(
                partition_index=one.partition,
                error_code=DENIED,
                high_watermark=-1,
                aborted_transactions=None,
                records=b"",
            )
            for one in topic.partitions
        ),
    )


def _denied_listing(topic: Any) -> Any:
    partition = _LISTED.ListOffsetsPartitionResponse
    return _LISTED(
        name=topic.name,
        partitions=tuple(
            partition(partition_index=one.partition_index, error_code=DENIED)
            for one in topic.partitions
        ),
    )


def _denied_deletion(topic: Any) -> Any:
    return _DELETED(
        name=topic.name,
        partitions=tuple(
            _DELETED.DeleteRecordsPartitionResult(
                partition_index=one.partition_index, low_watermark=-1, error_code=DENIED
            )
            for one in topic.partitions
        ),
    )


def _denied_end(topic: Any) -> Any:
    return _ENDED(
        topic=topic.topic,
        partitions=tuple(
            _ENDED.EpochEndOffset(partition=one.partition, error_code=DENIED)
            for one in topic.partitions
        ),
    )


def _denied_producers(topic: Any) -> Any:
    return _PRODUCERS(
        name=topic.name,
        partitions=tuple(
            _PRODUCERS.PartitionResponse(
                partition_index=index,
                error_code=DENIED,
                error_message=DENIED_TOPIC,
                active_producers=(),
            )
            for index in topic.partition_indexes
        ),
    )


def find_batches_guard(
    request: batch_coordinator.FindBatchesRequest, asked: Asked
) -> Guarded | None:
    """Deny the topics whose records a client may not read: it would find where they lie."""

    def is_read(topic: Any) -> bool:
        name = name_of(asked.image, topic)
        return name is None or is_allowed(FINDS, asked.access, name)

    return without_denied(request, "topics", "responses", is_read, _denied_finding)


def _denied_finding(topic: Any) -> Any:
    return _FOUND(
        topic_id=topic.topic_id,
        partitions=tuple(
            _FOUND.Partition(
                partition_index=one.partition_index,
                error_code=DENIED,
                log_start_offset=-1,
                high_watermark=-1,
                batches=(),
            )
            for one in topic.partitions
        ),
    )


def _by_name(api_key: int, deny: Callable[[Any], Any], name: str = "name") -> Guard:
    """Return the guard of a request whose topics are named, each with one operation."""
    check = needs(api_key, TOPIC)

    def guard(request: Any, asked: Asked) -> Guarded | None:
        return without_denied(
            request,
            "topics",
            "topics",
            lambda topic: is_allowed(check, asked.access, getattr(topic, name)),
            deny,
        )

    return guard


PRODUCE_WRITES: Final = needs(0, TOPIC)
PRODUCE_TRANSACTS: Final = needs(0, ResourceType.TRANSACTIONAL_ID)
PRODUCE_BY_ID: Final = 13


def denied_produce(
    request: ProduceRequest, asked: Asked, *, is_transactional: bool
) -> tuple[ErrorCode, Sequence[int]]:
    """Return an error, and the indexes of the topics of a Produce request that have it.

    Args:  is_transactional: whether a batch is. If the transactional id is denied, so is each
           topic.
    """
    topics, name = request.topic_data, request.transactional_id
    if is_transactional and not is_allowed(PRODUCE_TRANSACTS, asked.access, name or ""):
        return AUTHORIZATION_FAILED[ResourceType.TRANSACTIONAL_ID], range(len(topics))
    if asked.version >= PRODUCE_BY_ID:  # an unknown id is allowed, and has no name
        names = [name_of(asked.image, topic) for topic in topics]
    else:
        names = [topic.name for topic in topics]
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED, denied_names(PRODUCE_WRITES, asked.access, names)


GUARDS: Final[Mapping[int, Guard]] = {
    1: fetch_guard,
    2: _by_name(2, _denied_listing),
    21: _by_name(21, _denied_deletion),
    23: _by_name(23, _denied_end, "topic"),
    61: _by_name(61, _denied_producers),
    1097: find_batches_guard,
}
"""The guards of these requests, by api key."""
