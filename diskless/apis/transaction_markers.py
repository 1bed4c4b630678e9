"""WriteTxnMarkers: an administrator ends a hanging transaction at partitions.

A *hanging* transaction is open at a partition, and the transaction log has ended it or does not
know it. The marker of an administrator has no transaction number. The broker reads the number that
is open at the partition, and asks the transaction log whether that transaction has ended; then the
marker ends that number and no other.

Kafka's brokers write the marker whatever the transaction log says, and so can tear a transaction
that is running. Here that is refused with INVALID_TXN_STATE.

Source: KIP-664, KIP-1228; docs/design/transactions.md#endings; upstream's ProducerAppendInfo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from coordinator.errors import CoordinatorError
from coordinator.features import TRANSACTION_FORMATS, may_write_format
from diskless.apis.handler import make_handler
from diskless.apis.partition_offsets import CoordinatedPartition, find_partition, split_chunks
from diskless.apis.transactions import LOOKUP_S, MAX_IDS
from diskless.cluster import Cluster
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log, transaction_markers
from records.rpc import transactions as rpc
from records.rpc.base import CoordinatorRequest, Response
from records.rpc.batch_coordinator import (
    DescribeDisklessProducersRequest,
    DescribeDisklessProducersResponse,
)

R = TypeVar("R", bound=Response)

RAISING_VERSION: Final = 2
"""The protocol of transactions in which the marker's epoch is above that of the batches (TV2)."""

_FENCED_EPOCH: Final = 2**15 - 1  # of a marker that ends the last epoch of a producer id

_Marker = rpc.WriteTxnMarkersRequest.WritableTxnMarker
_Result = rpc.WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = _Result.WritableTxnMarkerTopicResult
_Partition = _Topic.WritableTxnMarkerPartitionResult
_Producer = DescribeDisklessProducersResponse.Topic.Partition.Producer

TopicPartition = tuple[str, int]
Open = Mapping[CoordinatedPartition, int]
"""The numbers of open transactions, by partition."""


async def write_markers(
    request: rpc.WriteTxnMarkersRequest, cluster: Cluster
) -> rpc.WriteTxnMarkersResponse:
    """End the hanging transactions that the markers name; return a result for each partition."""
    size = len(request.markers) + sum(
        1 + len(topic.partition_indexes) for marker in request.markers for topic in marker.topics
    )
    if size > MAX_IDS:
        return _too_many(request)
    return rpc.WriteTxnMarkersResponse(
        markers=tuple([await _write_marker(marker, cluster) for marker in request.markers])
    )


def _too_many(request: rpc.WriteTxnMarkersRequest) -> rpc.WriteTxnMarkersResponse:
    """Build the response to too many partitions: the first named one has POLICY_VIOLATION."""
    named = next(
        (
            (marker, topic, index)
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ),
        None,
    )
    if named is None:
        return rpc.WriteTxnMarkersResponse(markers=())
    marker, topic, index = named
    refused = _Partition(partition_index=index, error_code=ErrorCode.POLICY_VIOLATION)
    result = _Topic(name=topic.name, partitions=(refused,))
    return rpc.WriteTxnMarkersResponse(
        markers=(_Result(producer_id=marker.producer_id, topics=(result,)),)
    )


async def _write_marker(marker: _Marker, cluster: Cluster) -> _Result:
    """Write one marker in all of its partitions, and return the results."""
    image = cluster.image
    is_sound = min(marker.producer_id, marker.producer_epoch) >= 0
    codes: dict[TopicPartition, ErrorCode] = {}
    by_coordinator: dict[int, dict[CoordinatedPartition, TopicPartition]] = {}
    for topic in marker.topics:
        for index in topic.partition_indexes:
            found = find_partition(image, topic.name, index)
            if isinstance(found, ErrorCode):
                codes[topic.name, index] = found
            elif not is_sound:
                codes[topic.name, index] = ErrorCode.INVALID_REQUEST
            elif not may_write_format(image.features, TRANSACTION_FORMATS):
                codes[topic.name, index] = ErrorCode.UNSUPPORTED_VERSION
            else:
                named = by_coordinator.setdefault(found.coordinator, {})
                named[found] = (topic.name, index)
    for coordinator, named in by_coordinator.items():
        for chunk in split_chunks(tuple(named)):
            answers = await _end_transactions(marker, coordinator, chunk, cluster)
            codes |= {named[partition]: code for partition, code in answers.items()}
    return _Result(
        producer_id=marker.producer_id,
        topics=tuple(
            _Topic(
                name=topic.name,
                partitions=tuple(
                    _Partition(partition_index=index, error_code=int(codes[topic.name, index]))
                    for index in dict.fromkeys(topic.partition_indexes)
                ),
            )
            for topic in marker.topics
        ),
    )


async def _end_transactions(
    marker: _Marker,
    coordinator: int,
    partitions: Sequence[CoordinatedPartition],
    cluster: Cluster,
) -> dict[CoordinatedPartition, ErrorCode]:
    """End a producer's transactions in partitions of one coordinator; return the error codes."""
    topic = DescribeDisklessProducersRequest.Topic
    request = DescribeDisklessProducersRequest(
        coordinator_partition=coordinator,
        topics=tuple(
            topic(topic_id=one.topic_id, partitions=(one.partition,)) for one in partitions
        ),
        producer_id=marker.producer_id,
    )
    codes = dict.fromkeys(partitions, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    answer = await _ask(cluster, coordinator, request)
    if answer is None:
        return codes
    opened: dict[CoordinatedPartition, int] = {}
    for partition, response in zip(partitions, answer.responses, strict=True):
        (found,) = response.partitions
        producer = next(
            (one for one in found.producers if one.producer_id == marker.producer_id), None
        )
        codes[partition] = ErrorCode.NONE
        if found.error_code:
            codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif producer is not None:
            codes[partition] = _refuse_epochs(marker, producer)
            if codes[partition] is ErrorCode.NONE and producer.open_number >= 0:
                opened[partition] = producer.open_number
    verdicts = {
        number: await _check_ended(cluster, marker.producer_id, number)
        for number in set(opened.values())
    }
    codes |= {partition: verdicts[number] for partition, number in opened.items()}
    hanging = {
        partition: number
        for partition, number in opened.items()
        if verdicts[number] is ErrorCode.NONE
    }
    return codes | await _send(marker, coordinator, hanging, cluster)


def _refuse_epochs(marker: _Marker, producer: _Producer) -> ErrorCode:
    """Return the error of a marker with older epochs than the partition's, or NONE."""
    epoch, present = marker.producer_epoch, producer.producer_epoch
    repeats = (
        marker.transaction_version >= RAISING_VERSION
        and epoch == present
        and producer.open_number >= 0
        and epoch != _FENCED_EPOCH
    )
    if epoch < present or repeats:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if marker.coordinator_epoch < producer.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return ErrorCode.NONE


async def _check_ended(cluster: Cluster, producer_id: int, number: int) -> ErrorCode:
    """Return NONE if a transaction has ended in the log, INVALID_TXN_STATE if it is open there."""
    answer = await cluster.ask_transactions(
        transaction_log.CheckTransactionRequest(producer_id=producer_id, transaction_number=number)
    )
    if not isinstance(answer, transaction_log.CheckTransactionResponse):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # the client asks again
    return ErrorCode(answer.error_code)


async def _send(
    marker: _Marker, coordinator: int, hanging: Open, cluster: Cluster
) -> dict[CoordinatedPartition, ErrorCode]:
    """Send markers of these transactions to their coordinator, and return the error codes."""
    if not hanging:
        return {}
    topics = {topic_id: at for at, topic_id in enumerate({one.topic_id: 0 for one in hanging})}
    request = transaction_markers.WriteTransactionMarkersRequest(
        coordinator_partition=coordinator,
        topic_ids=tuple(topics),
        markers=tuple(
            transaction_markers.TransactionMarker(
                topic_index=topics[partition.topic_id],
                partition_index=partition.partition,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_number=number,
                outcome=int(marker.transaction_result),
                coordinator_epoch=marker.coordinator_epoch,
            )
            for partition, number in hanging.items()
        ),
    )
    answer = await _ask(cluster, coordinator, request)
    if answer is None:
        return dict.fromkeys(hanging, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return {
        partition: _client_code(ErrorCode(code))
        for partition, code in zip(hanging, answer.marker_error_codes, strict=True)
    }


def _client_code(code: ErrorCode) -> ErrorCode:
    """Translate a batch coordinator's code of a marker for a client, which names no topic ids."""
    is_gone = code is ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_gone else code


async def _ask(cluster: Cluster, coordinator: int, request: CoordinatorRequest[R]) -> R | None:
    """Send a request to a batch coordinator's leader; return None if it is refused or times out."""
    try:
        async with asyncio.timeout(LOOKUP_S):
            answer: Any = await cluster.leader(coordinator).call(request)
    except (CoordinatorError, TimeoutError):
        return None
    return None if answer.error_code else answer


def handlers(cluster: Cluster) -> dict[int, Served]:
    """Return the handler of WriteTxnMarkers, by api key."""
    return {
        27: make_handler(
            rpc.WriteTxnMarkersRequest,
            lambda request, _: write_markers(request, cluster),
            in_line=True,
        )
    }
