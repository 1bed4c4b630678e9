"""Answers requests about producers and transactions; there are no transactions yet.

DescribeProducers is answered by the leaders of the batch coordinators: they alone know which batch
of a producer was the last.

Source: KIP-664, KIP-994; upstream's TransactionCoordinator (handleListTransactions,
handleDescribeTransactions).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from coordinator.errors import CoordinatorError
from diskless.apis.auto_creation import check_name
from diskless.apis.handler import make_handler
from diskless.apis.partition_offsets import CoordinatedPartition, find_partition, split_chunks
from diskless.cluster import Cluster
from diskless.loop_turns import Pace
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import transactions as rpc
from records.rpc.batch_coordinator import DescribeDisklessProducersRequest

STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)
"""The names of a transaction's states. Source: upstream's TransactionState."""

MAX_IDS: Final = 10_000
"""Transactional ids of one request; of more, so many are answered with POLICY_VIOLATION."""

MAX_PATTERN: Final = 1_000  # characters

LOOKUP_S: Final = 10.0
"""The longest wait for a coordinator's leader: less than clients wait."""

NOT_HOSTED: Final = "This server does not host this topic-partition."

_Described = rpc.DescribeProducersResponse.TopicResponse.PartitionResponse
_State = rpc.DescribeTransactionsResponse.TransactionState


async def describe_producers(
    request: rpc.DescribeProducersRequest, cluster: Cluster
) -> rpc.DescribeProducersResponse:
    """Describe the producers of each partition, or return the partition's error."""
    topic_type = rpc.DescribeProducersResponse.TopicResponse
    size = len(request.topics) + sum(len(topic.partition_indexes) for topic in request.topics)
    if size > MAX_IDS:
        return _too_many(request)
    image, pace = cluster.image, Pace()
    answers: list[_Described] = []
    by_coordinator: dict[int, list[tuple[int, CoordinatedPartition]]] = {}
    for topic in request.topics:
        for index in topic.partition_indexes:
            await pace.step()
            found = find_partition(image, topic.name, index)
            if isinstance(found, CoordinatedPartition):
                by_coordinator.setdefault(found.coordinator, []).append((len(answers), found))
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # until the leader answers
            elif image.topic(topic.name) is None:
                code = check_name(topic.name)
            else:
                code = found
            answers.append(_error(index, code, NOT_HOSTED))
    for coordinator, named in by_coordinator.items():
        for chunk in split_chunks(named):
            await _describe_at(coordinator, chunk, cluster, answers)
    in_order = iter(answers)
    return rpc.DescribeProducersResponse(
        topics=tuple(
            topic_type(
                name=topic.name, partitions=tuple(next(in_order) for _ in topic.partition_indexes)
            )
            for topic in request.topics
        )
    )


def _too_many(request: rpc.DescribeProducersRequest) -> rpc.DescribeProducersResponse:
    """Build the response that refuses a DescribeProducers request for too many partitions.

    The response has the error for the first partition only.
    """
    named = next((topic for topic in request.topics if topic.partition_indexes), request.topics[0])
    index = next(iter(named.partition_indexes), -1)
    refusal = _error(index, ErrorCode.POLICY_VIOLATION, None)
    topic = rpc.DescribeProducersResponse.TopicResponse(name=named.name, partitions=(refusal,))
    return rpc.DescribeProducersResponse(topics=(topic,))


def _error(index: int, code: ErrorCode, text: str | None) -> _Described:
    return _Described(
        partition_index=index, error_code=code, error_message=text, active_producers=()
    )


async def _describe_at(
    coordinator: int,
    named: Sequence[tuple[int, CoordinatedPartition]],
    cluster: Cluster,
    answers: list[_Described],
) -> None:
    """Describe producers at one coordinator's leader, and write the results into `answers`."""
    topic = DescribeDisklessProducersRequest.Topic
    request = DescribeDisklessProducersRequest(
        coordinator_partition=coordinator,
        topics=tuple(
            topic(topic_id=place.topic_id, partitions=(place.partition,)) for _, place in named
        ),
    )
    try:
        async with asyncio.timeout(LOOKUP_S):
            answer = await cluster.leader(coordinator).call(request)
    except (CoordinatorError, TimeoutError):
        return
    if answer.error_code:
        return
    for (position, place), response in zip(named, answer.responses, strict=True):
        (found,) = response.partitions
        if found.error_code:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answers[position] = _error(place.partition, code, NOT_HOSTED)
            continue
        answers[position] = _Described(
            partition_index=place.partition,
            error_message=None,
            active_producers=tuple(
                _Described.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.appended_at_ms,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_txn_start_offset,
                )
                for producer in found.producers
            ),
        )


def list_transactions(request: rpc.ListTransactionsRequest) -> rpc.ListTransactionsResponse:
    """Answer ListTransactions with no transactions and the unknown state filters, or an error."""
    code = ErrorCode.NONE
    if not _is_pattern(request.transactional_id_pattern or ""):
        code = ErrorCode.INVALID_REGULAR_EXPRESSION
    elif len(request.state_filters) > MAX_IDS:
        code = ErrorCode.POLICY_VIOLATION
    unknown = () if code else dict.fromkeys(s for s in request.state_filters if s not in STATES)
    return rpc.ListTransactionsResponse(
        error_code=code, unknown_state_filters=tuple(unknown), transaction_states=()
    )


def _is_pattern(text: str) -> bool:
    if len(text) > MAX_PATTERN:
        return False
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def describe_transactions(
    request: rpc.DescribeTransactionsRequest,
) -> rpc.DescribeTransactionsResponse:
    """Answer DescribeTransactions with TRANSACTIONAL_ID_NOT_FOUND for each transactional id."""
    too_many = len(request.transactional_ids) > MAX_IDS
    return rpc.DescribeTransactionsResponse(
        transaction_states=tuple(
            _State(
                error_code=ErrorCode.POLICY_VIOLATION if too_many else _code(transactional_id),
                transactional_id=transactional_id,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=0,
                producer_id=0,
                producer_epoch=0,
                topics=(),
            )
            for transactional_id in request.transactional_ids[:MAX_IDS]
        )
    )


def _code(transactional_id: str) -> ErrorCode:
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def handlers(cluster: Cluster) -> dict[int, Served]:
    """Return the handlers of requests about producers and transactions, by api key."""
    return {
        61: make_handler(
            rpc.DescribeProducersRequest,
            lambda request, _: describe_producers(request, cluster),
            in_line=True,
        ),
        65: make_handler(
            rpc.DescribeTransactionsRequest, lambda request, _: describe_transactions(request)
        ),
        66: make_handler(
            rpc.ListTransactionsRequest, lambda request, _: list_transactions(request)
        ),
    }
