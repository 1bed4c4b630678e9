"""Answers requests about producers and transactions.

DescribeProducers is answered by the leaders of the batch coordinators: they alone know which batch
of a producer was the last. ListTransactions is answered from the broker's replica of the
transaction log, each id by the broker that should own it; DescribeTransactions by the log's leader.

The trap: Python's regular expressions can take exponential time, and Kafka's cannot. So a pattern
may have few repetitions and alternatives (`is_cheap`).

Source: KIP-664, KIP-994; upstream's TransactionCoordinator (handleListTransactions,
handleDescribeTransactions).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coordinator.controller.placement import unfenced_brokers
from coordinator.errors import CoordinatorError
from coordinator.features import has_transactions
from coordinator.rendezvous import transaction_broker
from coordinator.transactions.service import MAX_DESCRIBED
from coordinator.transactions.state import State
from diskless.apis.auto_creation import check_name
from diskless.apis.handler import make_handler
from diskless.apis.partition_offsets import CoordinatedPartition, find_partition, split_chunks
from diskless.cluster import Cluster
from diskless.loop_turns import Pace
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as log_rpc
from records.rpc import transactions as rpc
from records.rpc.batch_coordinator import DescribeDisklessProducersRequest

STATES: Final = {state.label: state for state in State}
"""The states of a transaction by name. Source: upstream's TransactionState."""

MAX_IDS: Final = 10_000
"""Transactional ids of one request; of more, so many are answered with POLICY_VIOLATION."""

MAX_PATTERN: Final = 1_000  # characters

MAX_OF_PATTERN: Final = {"*+{": 2, "?": 2, "|": 3}
"""How often a pattern may have one of these characters."""

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


async def list_transactions(
    request: rpc.ListTransactionsRequest, cluster: Cluster, wall_ms: Callable[[], int]
) -> rpc.ListTransactionsResponse:
    """List the matching transactions of the ids that this broker should own."""
    code, text = ErrorCode.NONE, request.transactional_id_pattern or ""
    if not _is_pattern(text):
        code = ErrorCode.INVALID_REGULAR_EXPRESSION
    elif max(len(request.state_filters), len(request.producer_id_filters)) > MAX_IDS:
        code = ErrorCode.POLICY_VIOLATION
    if code is not ErrorCode.NONE:
        return rpc.ListTransactionsResponse(
            error_code=code, unknown_state_filters=(), transaction_states=()
        )
    states = {STATES[name] for name in request.state_filters if name in STATES}
    producers, pattern = frozenset(request.producer_id_filters), re.compile(text)
    latest_ms = wall_ms() - request.duration_filter
    image, pace, found = cluster.transactions()[0], Pace(), []
    members = [broker.broker_id for broker in unfenced_brokers(cluster.image)]
    for name, transaction in image.ids.items():
        await pace.step()
        if (
            (not request.state_filters or transaction.state in states)
            and (not producers or transaction.producer_id in producers)
            and (request.duration_filter < 0 or transaction.started_at_ms < latest_ms)
            and (not text or pattern.fullmatch(name))
            and transaction_broker(name, members) == cluster.broker_id
        ):
            found.append(
                rpc.ListTransactionsResponse.TransactionState(
                    transactional_id=name,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.label,
                )
            )
    return rpc.ListTransactionsResponse(
        unknown_state_filters=tuple(
            dict.fromkeys(name for name in request.state_filters if name not in STATES)
        ),
        transaction_states=tuple(found),
    )


def is_cheap(text: str) -> bool:
    r"""Return whether a regular expression takes little time, whatever it is compared with.

    >>> is_cheap("payments-.*"), is_cheap("a|b"), is_cheap("(a+)+b"), is_cheap("(a|a)*")
    (True, True, False, False)
    """
    counts = (
        sum(map(text.count, characters)) <= most for characters, most in MAX_OF_PATTERN.items()
    )
    return all(counts) and not re.search(r"\)[*+{]", text)


def _is_pattern(text: str) -> bool:
    if len(text) > MAX_PATTERN or not is_cheap(text):
        return False
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


async def describe_transactions(
    request: rpc.DescribeTransactionsRequest, cluster: Cluster
) -> rpc.DescribeTransactionsResponse:
    """Describe the transactions of the requested ids, or return an error for each id."""
    names = request.transactional_ids[:MAX_IDS]
    if len(request.transactional_ids) > MAX_IDS:
        return _described(_refused(name, ErrorCode.POLICY_VIOLATION) for name in names)
    members = [broker.broker_id for broker in unfenced_brokers(cluster.image)]
    has_log, answers, pace = has_transactions(cluster.image.features), {}, Pace()
    asked = []
    for name in dict.fromkeys(names):
        await pace.step()
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if not name:
            code = ErrorCode.INVALID_REQUEST
        elif has_log and transaction_broker(name, members) != cluster.broker_id:
            code = ErrorCode.NOT_COORDINATOR
        elif has_log:
            asked.append(name)
        answers[name] = _refused(name, code)
    for at in range(0, len(asked), MAX_DESCRIBED):
        chunk = tuple(asked[at : at + MAX_DESCRIBED])
        answer = await cluster.ask_transactions(
            log_rpc.DescribeTransactionalIdsRequest(transactional_ids=chunk)
        )
        if not isinstance(answer, log_rpc.DescribeTransactionalIdsResponse) or answer.error_code:
            unknown = ErrorCode.COORDINATOR_NOT_AVAILABLE
            answers |= {name: _refused(name, unknown) for name in chunk}
            continue
        answers |= {found.transactional_id: _state(found) for found in answer.states}
    return _described(answers[name] for name in names)


def _described(states: Iterable[_State]) -> rpc.DescribeTransactionsResponse:
    return rpc.DescribeTransactionsResponse(transaction_states=tuple(states))


def _refused(transactional_id: str, code: ErrorCode) -> _State:
    """Build the description of an id that cannot be described."""
    return _State(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )


def _state(found: log_rpc.DescribeTransactionalIdsResponse.State) -> _State:
    """Translate the transaction log's description of an id for a client."""
    return _State(
        transactional_id=found.transactional_id,
        transaction_state=State(found.state).label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_at_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(
            _State.TopicData(topic=topic.topic_name, partitions=topic.partitions)
            for topic in found.topics
        ),
    )


def handlers(cluster: Cluster, wall_ms: Callable[[], int]) -> dict[int, Served]:
    """Return the handlers of requests about producers and transactions, by api key."""
    return {
        61: make_handler(
            rpc.DescribeProducersRequest,
            lambda request, _: describe_producers(request, cluster),
            in_line=True,
        ),
        65: make_handler(
            rpc.DescribeTransactionsRequest,
            lambda request, _: describe_transactions(request, cluster),
            in_line=True,
        ),
        66: make_handler(
            rpc.ListTransactionsRequest,
            lambda request, _: list_transactions(request, cluster, wall_ms),
            in_line=True,
        ),
    }
