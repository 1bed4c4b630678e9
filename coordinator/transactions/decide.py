"""What the transaction log decides: owners, producer epochs, partitions, outcomes, proofs.

`decide(request, context) -> Decision` changes nothing. The rules are Kafka's, with three of ours:

- A call of a producer counts only under the ownership epoch of its id, so a delayed copy of an
  EndTxn that a former owner forwarded ends nothing.
- A transaction gets a number when it begins; proofs tell it.
- Fencing a transaction and deciding to abort it is one record, so no state lies between.

The transition table of an EndTxn stands in `_judge_end`.

Source: docs/design/transactions.md; KIP-98, KIP-360, KIP-890; upstream's TransactionCoordinator and
TransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from coordinator.ownership import refuse_broker_epoch
from coordinator.rendezvous import transaction_broker
from coordinator.transactions.checkpoint import by_topic, partition_records, state_record
from coordinator.transactions.settings import MAX_ID_BYTES, MAX_PARTITIONS, TransactionSettings
from coordinator.transactions.state import (
    LAST_EPOCH,
    NONE,
    OPEN,
    PREPARED,
    State,
    TopicPartition,
    Transaction,
    TransactionsImage,
)
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as rpc
from records.schema import MetadataRecord
from records.transactions import TransactionalIdOwnerRecord, TransactionalIdRemovedRecord

EXPIRED: Final = 0  # the reason of an id's removal
TV2: Final = 2  # the protocol in which every Prepare raises the epoch


class Decision(NamedTuple):
    """Records to write, and the response to send once they can no longer be lost."""

    records: Sequence[MetadataRecord]
    response: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The state and the settings that a decision is based on."""

    image: TransactionsImage  # the pending one
    end_offset: int  # of the log, with all pending records
    now_ms: int  # ms since 1970
    settings: TransactionSettings
    brokers: Sequence[int] | None = None  # unfenced ones in the leader's image; None: unknown
    broker_epochs: Mapping[int, int] | None = None  # of registered ones in it; None: any epoch


# --- ownership ---------------------------------------------------------------------------------


def decide_acquire(request: rpc.AcquireTransactionalIdRequest, context: Context) -> Decision:
    """Make a broker the owner of a transactional id.

    Raises:  CoordinatorError for a broker epoch that neither this log nor the image knows.
    """
    refused = _refuse_acquire(request, context)
    if refused is not None:
        code, message = refused
        response = rpc.AcquireTransactionalIdResponse(error_code=int(code), error_message=message)
        return Decision((), response)
    record = TransactionalIdOwnerRecord(
        transactional_id=request.transactional_id,
        ownership_epoch=context.image.next_ownership_epoch,
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        acquired_at_ms=context.now_ms,
    )
    response = rpc.AcquireTransactionalIdResponse(ownership_epoch=record.ownership_epoch)
    return Decision((record,), response)


def _refuse_acquire(
    request: rpc.AcquireTransactionalIdRequest, context: Context
) -> tuple[ErrorCode, str] | None:
    transactional_id, ids = request.transactional_id, context.image.ids
    if not 0 < len(transactional_id.encode()) <= MAX_ID_BYTES:
        return ErrorCode.INVALID_REQUEST, f"the transactional id exceeds {MAX_ID_BYTES} bytes"
    if context.brokers:
        chosen = transaction_broker(transactional_id, context.brokers)
        if chosen != request.broker_id:
            return ErrorCode.NOT_COORDINATOR, f"broker {chosen} owns this transactional id"
    known = ids.get(transactional_id)
    if known is None:
        if not request.create:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "no such transactional id"
        if len(ids) >= context.settings.max_ids:
            text = f"there are {len(ids)} transactional ids (esker.max.transactional.ids)"
            return ErrorCode.POLICY_VIOLATION, text
    return refuse_broker_epoch(
        request.broker_id,
        request.broker_epoch,
        owner=None if known is None else (known.broker_id, known.broker_epoch),
        broker_epochs=context.broker_epochs,
    )


def _is_owned(transaction: Transaction | None, ownership_epoch: int) -> bool:
    """Return whether a call has the current ownership epoch of its transactional id."""
    return transaction is not None and transaction.ownership_epoch == ownership_epoch


# --- producers ---------------------------------------------------------------------------------


def decide_init(request: rpc.InitTransactionalIdRequest, context: Context) -> Decision:
    """Give a producer its id and epoch, and abort an open transaction of its predecessor."""
    before = context.image.ids.get(request.transactional_id)
    response = rpc.InitTransactionalIdResponse
    if before is None or not _is_owned(before, request.ownership_epoch):
        return Decision((), response(error_code=int(ErrorCode.NOT_COORDINATOR)))
    if not 0 < request.timeout_ms <= context.settings.max_timeout_ms:
        return Decision((), response(error_code=int(ErrorCode.INVALID_TRANSACTION_TIMEOUT)))
    after = _judge_init(request, before, context.now_ms)
    if isinstance(after, ErrorCode):
        return Decision((), response(error_code=int(after)))
    record = state_record(request.transactional_id, after)
    if after.state is State.PREPARE_ABORT:  # the producer asks again, and then gets an epoch
        return Decision((record,), response(error_code=int(ErrorCode.CONCURRENT_TRANSACTIONS)))
    answer = response(producer_id=after.producer_id, producer_epoch=after.producer_epoch)
    return Decision((record,), answer)


def _judge_init(
    request: rpc.InitTransactionalIdRequest, before: Transaction, now_ms: int
) -> Transaction | ErrorCode:
    """Return the transaction state after an InitProducerId, or the error that refuses it."""
    has_expected = request.producer_id != NONE
    expected = request.producer_epoch
    is_first = before.producer_epoch == NONE
    is_known = (
        is_first
        or request.producer_id == before.producer_id
        or (request.producer_id == before.previous_producer_id and expected >= LAST_EPOCH)
    )
    if has_expected and not is_known:
        return ErrorCode.PRODUCER_FENCED
    if before.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if before.state is State.ONGOING:
        return fenced(before, now_ms)
    is_match = not has_expected or is_first or expected == before.producer_epoch
    if has_expected and not is_match and expected != before.last_producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    producer_id, epoch, previous = before.producer_id, before.producer_epoch, before.producer_id
    last = epoch if has_expected else NONE
    if not is_match:  # the same call again: its answer was lost
        last, previous = before.last_producer_epoch, before.previous_producer_id
    elif before.producer_id == NONE or before.is_exhausted:
        if request.spare_producer_id < 0:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        producer_id, epoch = request.spare_producer_id, 0
    else:
        epoch += 1
    return before._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last,
        previous_producer_id=previous,
        next_producer_id=NONE,
        timeout_ms=request.timeout_ms,
        state=State.EMPTY,
        client_version=0,
        epoch_began_at_ms=now_ms if is_match else before.epoch_began_at_ms,
        started_at_ms=NONE,
        updated_at_ms=now_ms,
    )


def fenced(before: Transaction, now_ms: int) -> Transaction:
    """Return the state that aborts an ongoing transaction under the next producer epoch.

    As in Kafka, a producer of TV2 may end that transaction, or initialise itself, by its last
    epoch; it gets the raised one.
    """
    assert before.state is State.ONGOING, f"fenced: {before}"
    return before._replace(
        state=State.PREPARE_ABORT,
        producer_epoch=before.producer_epoch + 1,
        last_producer_epoch=before.producer_epoch,
        client_version=TV2,
        epoch_began_at_ms=now_ms,
        updated_at_ms=now_ms,
    )


# --- partitions --------------------------------------------------------------------------------


def decide_add(request: rpc.AddTransactionPartitionsRequest, context: Context) -> Decision:
    """Add partitions to a producer's transaction, which begins if none is open."""
    before = context.image.ids.get(request.transactional_id)
    response = rpc.AddTransactionPartitionsResponse
    if before is None or not _is_owned(before, request.ownership_epoch):
        return Decision((), response(error_code=int(ErrorCode.NOT_COORDINATOR)))
    error = _refuse_producer(before, request.producer_id, request.producer_epoch)
    wanted = named_partitions(request.topics)
    if error is ErrorCode.NONE and _exceeds_limit(before, wanted):
        error = ErrorCode.POLICY_VIOLATION
    if error is not ErrorCode.NONE:
        return Decision((), response(error_code=int(error)))
    number, records = _add(request.transactional_id, before, wanted, request, context)
    return Decision(records, response(transaction_number=number))


def _refuse_producer(before: Transaction, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Return the error that forbids a producer to add to its transaction, or NONE."""
    if _is_next_producer(before, producer_id, producer_epoch):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if producer_id != before.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer_epoch != before.producer_epoch or producer_epoch > LAST_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    if before.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def _is_next_producer(before: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Return whether this is the new id of a producer whose transaction is ending under the old."""
    is_named = producer_id == before.next_producer_id and producer_epoch == 0
    return before.state in PREPARED and is_named


def named_partitions(topics: Iterable[rpc.TransactionTopic]) -> dict[TopicPartition, str]:
    """Return the partitions that a request names, with the names of their topics.

    A topic's id and number of partitions were checked by the broker.
    """
    return {(topic.topic_id, p): topic.topic_name for topic in topics for p in topic.partitions}


def _exceeds_limit(before: Transaction, wanted: Mapping[TopicPartition, str]) -> bool:
    present = before.partitions if before.state is State.ONGOING else ()
    return len(present) + sum(1 for key in wanted if key not in present) > MAX_PARTITIONS


def _add(
    transactional_id: str,
    before: Transaction,
    wanted: Mapping[TopicPartition, str],
    request: rpc.AddTransactionPartitionsRequest | rpc.ProveTransactionRequest,
    context: Context,
) -> tuple[int, Sequence[MetadataRecord]]:
    """Return the transaction's number, and the records that add partitions it lacks."""
    begins = before.state is not State.ONGOING
    missing = sorted(
        (key, name) for key, name in wanted.items() if begins or key not in before.partitions
    )
    number = before.number + 1 if begins else before.number
    records = partition_records(
        transactional_id,
        number,
        missing,
        metadata_offset=request.metadata_offset,
        added_at_ms=context.now_ms,
    )
    return (number if missing or not begins else NONE), records


def decide_prove(request: rpc.ProveTransactionRequest, context: Context) -> Decision:
    """Answer whether partitions are in an ongoing transaction, or add them on request."""
    before = context.image.ids.get(request.transactional_id)
    response = rpc.ProveTransactionResponse
    if before is None:
        code = int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return Decision((), response(error_code=code, log_offset=context.end_offset))
    wanted = named_partitions(request.topics)
    error = _refuse_producer(before, request.producer_id, request.producer_epoch)
    if error is ErrorCode.NONE and request.adds and _exceeds_limit(before, wanted):
        error = ErrorCode.POLICY_VIOLATION
    if error is not ErrorCode.NONE:
        return Decision((), response(error_code=int(error), log_offset=context.end_offset))
    number, missing = proof(before, wanted)
    records: Sequence[MetadataRecord] = ()
    if request.adds:
        number, records = _add(request.transactional_id, before, wanted, request, context)
        missing = {}
    answer = response(
        error_code=int(ErrorCode.TRANSACTION_ABORTABLE if missing else ErrorCode.NONE),
        transaction_number=number,
        log_offset=context.end_offset + len(records),
        epoch_began_at_ms=before.epoch_began_at_ms,
        missing=tuple(
            response.MissingTopic(topic_id=topic_id, partitions=indexes)
            for topic_id, _, indexes in by_topic(missing.items())
        ),
    )
    return Decision(records, answer)


def proof(
    transaction: Transaction, wanted: Mapping[TopicPartition, str]
) -> tuple[int, Mapping[TopicPartition, str]]:
    """Return the number of the ongoing transaction, and the partitions that it lacks.

    Without an ongoing transaction the number is -1, and all partitions are missing.
    """
    if transaction.state is not State.ONGOING:
        return NONE, wanted
    present = transaction.partitions
    return transaction.number, {key: name for key, name in wanted.items() if key not in present}


# --- endings -----------------------------------------------------------------------------------


def decide_end(request: rpc.EndTransactionRequest, context: Context) -> Decision:
    """Decide to commit or abort a transaction; answer a repeated request like the first."""
    before = context.image.ids.get(request.transactional_id)
    response = rpc.EndTransactionResponse
    if before is None or not _is_owned(before, request.ownership_epoch):
        return Decision((), response(error_code=int(ErrorCode.NOT_COORDINATOR)))
    judged = _judge_end(request, before)
    if judged is not _PREPARE:
        answer = response(error_code=int(judged))
        if judged is ErrorCode.NONE:
            answer = response(producer_id=before.producer_id, producer_epoch=before.producer_epoch)
        return Decision((), answer)
    raises = request.client_version >= TV2
    if raises and before.is_exhausted and request.spare_producer_id < 0:
        return Decision((), response(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
    after = _prepared(request, before, context.now_ms)
    records = [state_record(request.transactional_id, after)]
    done = completed(after, context.now_ms)
    if not after.partitions:  # no marker is necessary
        records = [state_record(request.transactional_id, done)]
    answer = response(producer_id=done.producer_id, producer_epoch=done.producer_epoch)
    return Decision(records, answer)


_PREPARE: Final = None
"""The judgement of an EndTxn that a Prepare state follows."""


def _judge_end(request: rpc.EndTransactionRequest, before: Transaction) -> ErrorCode | None:
    """Return the answer to an EndTxn that changes nothing, or None if it ends a transaction.

    In TV2 an epoch that is one lower than the present one is the same call again, and the present
    epoch is a new call; in TV1 the epoch does not tell the two apart.
    """
    epoch, is_v2 = request.producer_epoch, request.client_version >= TV2
    raised = is_v2 and before.client_version >= TV2  # the last Prepare raised the epoch
    is_overflow = (
        raised
        and request.producer_id == before.previous_producer_id
        and epoch == LAST_EPOCH
        and before.producer_epoch == 0
    )
    is_repeated = raised and (is_overflow or epoch + 1 == before.producer_epoch)
    is_present = epoch == before.producer_epoch and not is_overflow
    if _is_next_producer(before, request.producer_id, epoch):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if request.producer_id != before.producer_id and not is_overflow:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch > LAST_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    same = _OUTCOMES[request.committed]
    match before.state:
        case State.ONGOING:
            return _PREPARE if is_present else ErrorCode.PRODUCER_FENCED
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            if is_v2 and is_present:  # the end of the next transaction, which is asked for again
                return ErrorCode.CONCURRENT_TRANSACTIONS
            if not (is_repeated or is_present):
                return ErrorCode.PRODUCER_FENCED
            is_same = before.state is same.prepared
            return ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE
        case State.EMPTY:
            is_repeated = False
    if not (is_present or is_repeated) or before.producer_epoch > LAST_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    if before.state is same.complete and (is_repeated or not is_v2):
        return ErrorCode.NONE
    if is_present and not request.committed and is_v2:
        return _PREPARE  # an abort without partitions: it raises the epoch alone
    return ErrorCode.INVALID_TXN_STATE


class _Outcome(NamedTuple):
    prepared: State
    complete: State


_OUTCOMES: Final = {
    True: _Outcome(State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
    False: _Outcome(State.PREPARE_ABORT, State.COMPLETE_ABORT),
}


def _prepared(request: rpc.EndTransactionRequest, before: Transaction, now_ms: int) -> Transaction:
    """Return the Prepare state of a transaction, in TV2 with the next producer epoch."""
    is_open = before.state is State.ONGOING
    after = before._replace(
        state=_OUTCOMES[request.committed].prepared,
        client_version=request.client_version,
        started_at_ms=before.started_at_ms if is_open else now_ms,
        updated_at_ms=now_ms,
    )
    if request.client_version < TV2:
        return after
    return after._replace(
        producer_epoch=before.producer_epoch + 1,
        last_producer_epoch=before.producer_epoch,
        next_producer_id=request.spare_producer_id if before.is_exhausted else NONE,
        epoch_began_at_ms=now_ms,
    )


def completed(before: Transaction, now_ms: int) -> Transaction:
    """Return the Complete state that follows a Prepare state."""
    assert before.state in PREPARED, f"completed: {before}"
    outcome = _OUTCOMES[before.state is State.PREPARE_COMMIT]
    after = before._replace(state=outcome.complete, updated_at_ms=max(now_ms, before.updated_at_ms))
    if before.client_version < TV2:
        return after
    after = after._replace(previous_producer_id=before.producer_id)
    if before.next_producer_id == NONE:
        return after
    return after._replace(
        producer_id=before.next_producer_id,
        producer_epoch=0,
        next_producer_id=NONE,
        epoch_began_at_ms=now_ms,
    )


def decide_complete(transactional_id: str, number: int, context: Context) -> Decision:
    """Complete a transaction whose markers are all written; respond whether it was open."""
    before = context.image.ids.get(transactional_id)
    if before is None or before.number != number or before.state not in PREPARED:
        return Decision((), False)
    after = completed(before, context.now_ms)
    return Decision((state_record(transactional_id, after),), True)


def is_timed_out(transaction: Transaction, now_ms: int) -> bool:
    """Return whether a transaction has been ongoing for longer than its timeout."""
    started_ms, timeout_ms = transaction.started_at_ms, transaction.timeout_ms
    return transaction.state is State.ONGOING and started_ms + timeout_ms <= now_ms


def decide_timeouts(ids: Iterable[str], context: Context) -> Decision:
    """Abort those of these transactions that timed out; respond with the list of their ids."""
    records, aborted = [], []
    for transactional_id in ids:
        before = context.image.ids.get(transactional_id)
        if before is not None and is_timed_out(before, context.now_ms):
            records.append(state_record(transactional_id, fenced(before, context.now_ms)))
            aborted.append(transactional_id)
    return Decision(records, aborted)


def is_expired(transaction: Transaction, now_ms: int, settings: TransactionSettings) -> bool:
    """Return whether a transactional id had no call for longer than its retention time."""
    is_idle = transaction.touched_at_ms + settings.id_expiration_ms <= now_ms
    return is_idle and transaction.state not in OPEN


def decide_expiry(ids: Iterable[str], context: Context) -> Decision:
    """Remove those of these transactional ids that expired; respond with their number."""
    records = [
        TransactionalIdRemovedRecord(transactional_id=transactional_id, reason=EXPIRED)
        for transactional_id in ids
        if (found := context.image.ids.get(transactional_id)) is not None
        and is_expired(found, context.now_ms, context.settings)
    ]
    return Decision(records, len(records))


# --- reads -------------------------------------------------------------------------------------


def describe(
    request: rpc.DescribeTransactionalIdsRequest, image: TransactionsImage
) -> rpc.DescribeTransactionalIdsResponse:
    """Return the states of the requested transactional ids that exist."""
    response = rpc.DescribeTransactionalIdsResponse
    found = ((name, image.ids.get(name)) for name in dict.fromkeys(request.transactional_ids))
    return response(
        states=tuple(
            response.State(
                transactional_id=name,
                state=int(transaction.state),
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                timeout_ms=transaction.timeout_ms,
                transaction_number=transaction.number,
                started_at_ms=transaction.started_at_ms,
                topics=tuple(
                    rpc.TransactionTopic(topic_id=topic_id, topic_name=topic, partitions=indexes)
                    for topic_id, topic, indexes in by_topic(transaction.partitions.items())
                ),
            )
            for name, transaction in found
            if transaction is not None
        )
    )


def check(
    request: rpc.CheckTransactionRequest, image: TransactionsImage
) -> rpc.CheckTransactionResponse:
    """Return INVALID_TXN_STATE if the requested transaction is still open, else NONE."""
    name = image.by_producer.get(request.producer_id)
    transaction = None if name is None else image.ids[name]
    is_open = (
        transaction is not None
        and transaction.state in OPEN
        and transaction.number == request.transaction_number
    )
    code = ErrorCode.INVALID_TXN_STATE if is_open else ErrorCode.NONE
    return rpc.CheckTransactionResponse(error_code=int(code))
