"""Guards of requests about transactions, producers' ids, coordinators and the cluster.

Source: upstream's KafkaApis (handleInitProducerIdRequest, handleAddPartitionsToTxnRequest, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.controller.authorizer import ResourceType
from coordinator.controller.guarding import (
    AUTHORIZATION_FAILED,
    DENIED_CLUSTER,
    DENIED_GROUP,
    Asked,
    Guard,
    Guarded,
    is_allowed,
    is_allowed_on_cluster,
    needs,
    refused,
    replace,
    split,
)
from coordinator.controller.image import MetadataImage
from records.kafka_errors import ErrorCode
from records.rpc import partitions, transactions
from records.rpc import topics as topics_rpc
from records.rpc.base import Response

TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID
DENIED_ID: Final = AUTHORIZATION_FAILED[TRANSACTIONAL_ID]
ID_TEXT: Final = "Transactional Id authorization failed."

_INIT: Final = needs(22, TRANSACTIONAL_ID)
_INIT_IDEMPOTENT: Final = needs(22, CLUSTER)


def init_producer_id(request: partitions.InitProducerIdRequest, asked: Asked) -> Guarded | None:
    """Deny a transactional id; without one, deny clients that may write to no topic."""
    access = asked.access
    if request.transactional_id is not None:
        if is_allowed(_INIT, access, request.transactional_id):
            return None
        code = DENIED_ID
    else:
        other = _INIT_IDEMPOTENT.unless
        assert other is not None, "InitProducerId without a check of topics"
        if access.allows_cluster(_INIT_IDEMPOTENT.operation, logs=False) or access.allows_any(
            other.operation, other.kind
        ):
            return None
        access.allows_cluster(_INIT_IDEMPOTENT.operation)  # for the audit log
        code = AUTHORIZATION_FAILED[CLUSTER]
    return refused(partitions.InitProducerIdResponse(error_code=int(code), producer_epoch=-1))


_ADD: Final = needs(24, TRANSACTIONAL_ID)
_ADD_TOPIC: Final = needs(24, TOPIC)


def add_partitions(request: transactions.AddPartitionsToTxnRequest, asked: Asked) -> Guarded | None:
    """Deny a transactional id or topics; if one topic is denied, no partition is added."""
    named = request.v3_and_below_topics
    if not is_allowed(_ADD, asked.access, request.v3_and_below_transactional_id):
        return refused(_added(named, lambda *_: DENIED_ID))
    denied = {topic.name for topic in named if not is_allowed(_ADD_TOPIC, asked.access, topic.name)}
    if not denied:
        return None

    def code_of(name: str, index: int) -> ErrorCode:
        if name in denied:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not _has_partition(asked.image, name, index):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED

    return refused(_added(named, code_of))


def _has_partition(image: MetadataImage, name: str, index: int) -> bool:
    topic = image.topic(name)
    return topic is not None and not topic.is_internal and index in topic.partitions


def _added(named: Any, code_of: Callable[[str, int], ErrorCode]) -> Response:
    result = transactions.AddPartitionsToTxnTopicResult
    return transactions.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            result(
                name=topic.name,
                results_by_partition=tuple(
                    result.AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=int(code_of(topic.name, index)),
                    )
                    for index in topic.partitions
                ),
            )
            for topic in named
        )
    )


_ADD_OFFSETS: Final = needs(25, TRANSACTIONAL_ID), needs(25, GROUP)


def add_offsets(request: transactions.AddOffsetsToTxnRequest, asked: Asked) -> Guarded | None:
    """Deny a transactional id or a group."""
    names = request.transactional_id, request.group_id
    for check, name in zip(_ADD_OFFSETS, names, strict=True):
        if not is_allowed(check, asked.access, name):
            code = int(AUTHORIZATION_FAILED[check.kind])
            return refused(transactions.AddOffsetsToTxnResponse(error_code=code))
    return None


_END: Final = needs(26, TRANSACTIONAL_ID)


def end(request: transactions.EndTxnRequest, asked: Asked) -> Guarded | None:
    """Deny a transactional id."""
    if is_allowed(_END, asked.access, request.transactional_id):
        return None
    return refused(transactions.EndTxnResponse(error_code=int(DENIED_ID)))


_DESCRIBE: Final = needs(65, TRANSACTIONAL_ID)
_DESCRIBE_TOPIC: Final = needs(65, TOPIC)
_LIST: Final = needs(66, TRANSACTIONAL_ID)


def describe(request: transactions.DescribeTransactionsRequest, asked: Asked) -> Guarded:
    """Deny transactional ids, and hide the topics that the client may not describe."""
    state = transactions.DescribeTransactionsResponse.TransactionState
    allowed, denied = split(
        request.transactional_ids, lambda name: is_allowed(_DESCRIBE, asked.access, name)
    )

    def show(found: Any) -> Any:
        shown = (
            one for one in found.topics if is_allowed(_DESCRIBE_TOPIC, asked.access, one.topic)
        )
        return replace(found, topics=tuple(shown))

    def finish(response: Any) -> Response:
        refusals = (
            state(
                error_code=int(DENIED_ID),
                transactional_id=name,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=0,
                producer_id=0,
                producer_epoch=0,
                topics=(),
            )
            for name in denied
        )
        states = (*map(show, response.transaction_states), *refusals)
        made: Response = replace(response, transaction_states=states)
        return made

    return Guarded(replace(request, transactional_ids=tuple(allowed)), finish)


def list_transactions(request: transactions.ListTransactionsRequest, asked: Asked) -> Guarded:
    """Show the transactions of the ids that the client may describe."""

    def finish(response: Any) -> Response:
        shown = tuple(
            found
            for found in response.transaction_states
            if asked.access.allows(_LIST.operation, _LIST.kind, found.transactional_id, logs=False)
        )
        made: Response = replace(response, transaction_states=shown)
        return made

    return Guarded(request, finish)


# --- FindCoordinator ----------------------------------------------------------------------------

FIRST_WITH_KEYS: Final = 4
GROUP_KEY, TRANSACTION_KEY, BATCH_KEY = 0, 1, 3

_FIND: Final = {
    GROUP_KEY: (needs(10, GROUP), DENIED_GROUP),
    TRANSACTION_KEY: (needs(10, TRANSACTIONAL_ID), ID_TEXT),
}
_FIND_BATCH: Final = needs(10, CLUSTER)


def find_coordinator(request: topics_rpc.FindCoordinatorRequest, asked: Asked) -> Guarded | None:
    """Deny groups and transactional ids that the client may not describe."""
    has_keys = asked.version >= FIRST_WITH_KEYS
    keys = request.coordinator_keys if has_keys else (request.key,)
    if request.key_type == BATCH_KEY:
        batches = is_allowed_on_cluster(_FIND_BATCH, asked.access)
        allowed, denied = (list(keys), []) if batches else ([], list(keys))
        code, text = AUTHORIZATION_FAILED[CLUSTER], DENIED_CLUSTER
    elif request.key_type in _FIND:
        check, text = _FIND[request.key_type]
        allowed, denied = split(keys, lambda key: is_allowed(check, asked.access, key))
        code = AUTHORIZATION_FAILED[check.kind]
    else:
        return None  # unknown, which the handler says
    if not denied:
        return None
    response_type = topics_rpc.FindCoordinatorResponse
    if not has_keys:
        return refused(response_type(error_code=int(code), error_message=text, node_id=-1, port=-1))

    def finish(response: Any) -> Response:
        refusals = (
            response_type.Coordinator(
                key=key, node_id=-1, port=-1, error_code=int(code), error_message=text
            )
            for key in denied
        )
        made: Response = replace(response, coordinators=(*response.coordinators, *refusals))
        return made

    return Guarded(replace(request, coordinator_keys=tuple(allowed)), finish)


GUARDS: Final[Mapping[int, Guard]] = {
    10: find_coordinator,
    22: init_producer_id,
    24: add_partitions,
    25: add_offsets,
    26: end,
    65: describe,
    66: list_transactions,
}
"""The guards of these requests, by api key."""
