"""Proves that a group's offsets belong to an ongoing transaction, and learns its number.

The leader of the transaction log answers, behind its read barrier, whether the group log takes part
in the transaction. In TV2 (TxnOffsetCommit 5 and later) the same question adds it, and is repeated
for a short time while the former transaction of the producer is ending.

Source: docs/design/transactions-groups.md#on-the-broker; KIP-890; docs/design/transactions.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from coordinator.controller.image import MetadataImage
from coordinator.leader_client import Failure
from diskless.transactions.ending import ask_until_ended
from records.internal_topics import CONSUMER_OFFSETS
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as rpc
from records.rpc.base import Request, Response
from records.rpc.groups import TxnOffsetCommitRequest

AskLog = Callable[[Request], Awaitable[Response | Failure]]
"""Asks the transaction log's leader once (`diskless.cluster.Cluster.ask_transactions`)."""

ADDING_VERSION: Final = 5
"""TxnOffsetCommit: the first version that adds the group log to the transaction (TV2)."""

ABORTABLE_VERSION: Final = 4
"""TxnOffsetCommit: the first version with TRANSACTION_ABORTABLE."""


class Proof(NamedTuple):
    """The number of an ongoing transaction, or the error that answers the client."""

    error_code: ErrorCode
    transaction_number: int


def group_log_topic(image: MetadataImage) -> rpc.TransactionTopic | None:
    """Return the group log's partition for a transaction; None if the cluster image lacks it."""
    topic_id = image.topic_ids.get(CONSUMER_OFFSETS)
    if topic_id is None:
        return None
    return rpc.TransactionTopic(topic_id=topic_id, topic_name=CONSUMER_OFFSETS, partitions=(0,))


async def prove_offsets(
    request: TxnOffsetCommitRequest,
    version: int,
    *,
    image: MetadataImage,
    ask_log: AskLog,
) -> Proof:
    """Prove that a TxnOffsetCommit belongs to an ongoing transaction with the group log."""
    topic = group_log_topic(image)
    if topic is None:
        return Proof(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    question = rpc.ProveTransactionRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        topics=(topic,),
        adds=version >= ADDING_VERSION,
        metadata_offset=image.offset,
    )
    answer = await _ask(question, ask_log)
    if not isinstance(answer, rpc.ProveTransactionResponse):
        return Proof(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    if answer.error_code:
        return Proof(client_error(ErrorCode(answer.error_code), version), -1)
    return Proof(ErrorCode.NONE, answer.transaction_number)


async def _ask(question: rpc.ProveTransactionRequest, ask_log: AskLog) -> Response | Failure:
    """Request a proof; if it adds the group log, wait while an earlier transaction is ending."""
    if not question.adds:
        return await ask_log(question)
    answer: Response | Failure = await ask_until_ended(lambda: ask_log(question))
    return answer


def client_error(code: ErrorCode, version: int) -> ErrorCode:
    """Translate an error of the transaction log for a TxnOffsetCommit of this version."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < ABORTABLE_VERSION:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < ADDING_VERSION:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.REQUEST_TIMED_OUT:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case _:
            return code
