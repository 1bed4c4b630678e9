"""Kafka's answers as a table: the state of a transactional id, a request, the expected answer.

Each row is a case of upstream's TransactionCoordinatorTest, or of the table of finished states in
KIP-890, without the cases of a coordinator that is loading or has moved: those are the log's here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from coordinator.persistent_map import Map
from coordinator.transactions import decide
from coordinator.transactions.decide import Context, Decision
from coordinator.transactions.settings import TransactionSettings
from coordinator.transactions.state import (
    OPEN,
    State,
    Transaction,
    TransactionsEdit,
    TransactionsImage,
)
from records.kafka_errors import ErrorCode as E
from records.rpc import transaction_log as rpc
from records.schema import Message

PID: Final = 4000
SPARE: Final = 9000
OLD: Final = 3000
TOPIC: Final = UUID(int=7)
NOW_MS: Final = 1_000_000


def stored(state: State, epoch: int, version: int = 0, **more: Any) -> Transaction:
    """A transactional id in this state."""
    partitions = Map().set((TOPIC, 0), "t") if state in OPEN else Map()
    fields: dict[str, Any] = {
        "producer_id": PID,
        "timeout_ms": 60_000,
        "number": 5,
        "partitions": partitions,
        "started_at_ms": NOW_MS - 10,
        "updated_at_ms": NOW_MS - 10,
    }
    owner = Transaction(1, 1, 1, 0)
    return owner._replace(
        state=state, producer_epoch=epoch, client_version=version, **{**fields, **more}
    )


def context(transaction: Transaction | None) -> Context:
    """The inputs of a decision on one transactional id."""
    ids: Map[str, Transaction] = Map()
    if transaction is not None:
        ids = ids.set("x", transaction)
    return Context(
        image=TransactionsImage(ids=ids),
        end_offset=100,
        now_ms=NOW_MS,
        settings=TransactionSettings(),
    )


def after(transaction: Transaction, decision: Decision) -> Transaction:
    """The state after the records of a decision."""
    edit = TransactionsEdit(context(transaction).image)
    for record in decision.records:
        edit.apply(record)
    assert not edit.contradictions
    found: Transaction = edit.publish().ids["x"]
    return found


class Ending(NamedTuple):
    """One EndTxn: what is stored, what is sent, and Kafka's answer."""

    state: State
    epoch: int  # stored
    version: int  # with which the last transaction was ended
    committed: bool
    sent: int  # epoch
    sent_version: int
    code: E
    new_state: State | None = None  # None: nothing is written
    new_epoch: int | None = None


COMMIT, ABORT = True, False
ONGOING, EMPTY = State.ONGOING, State.EMPTY
PC, PA = State.PREPARE_COMMIT, State.PREPARE_ABORT
CC, CA = State.COMPLETE_COMMIT, State.COMPLETE_ABORT

ENDINGS: Final = [
    # TV1
    Ending(ONGOING, 3, 0, COMMIT, 3, 0, E.NONE, PC, 3),
    Ending(ONGOING, 3, 0, ABORT, 3, 0, E.NONE, PA, 3),
    Ending(ONGOING, 3, 0, COMMIT, 2, 0, E.PRODUCER_FENCED),
    Ending(ONGOING, 3, 0, COMMIT, 4, 0, E.PRODUCER_FENCED),
    Ending(CC, 3, 0, COMMIT, 3, 0, E.NONE),
    Ending(CA, 3, 0, ABORT, 3, 0, E.NONE),
    Ending(CA, 3, 0, COMMIT, 3, 0, E.INVALID_TXN_STATE),
    Ending(CC, 3, 0, ABORT, 3, 0, E.INVALID_TXN_STATE),
    Ending(CC, 3, 0, COMMIT, 2, 0, E.PRODUCER_FENCED),
    Ending(PC, 3, 0, COMMIT, 3, 0, E.CONCURRENT_TRANSACTIONS),
    Ending(PC, 3, 0, ABORT, 3, 0, E.INVALID_TXN_STATE),
    Ending(PA, 3, 0, ABORT, 3, 0, E.CONCURRENT_TRANSACTIONS),
    Ending(PA, 3, 0, COMMIT, 3, 0, E.INVALID_TXN_STATE),
    Ending(PA, 3, 0, ABORT, 2, 0, E.PRODUCER_FENCED),
    Ending(EMPTY, 3, 0, COMMIT, 3, 0, E.INVALID_TXN_STATE),
    Ending(EMPTY, 3, 0, ABORT, 3, 0, E.INVALID_TXN_STATE),
    # TV2: the epoch rises at every Prepare
    Ending(ONGOING, 3, 0, COMMIT, 3, 2, E.NONE, PC, 4),
    Ending(ONGOING, 3, 2, ABORT, 3, 2, E.NONE, PA, 4),
    Ending(ONGOING, 3, 2, COMMIT, 2, 2, E.PRODUCER_FENCED),
    Ending(ONGOING, 3, 2, COMMIT, 4, 2, E.PRODUCER_FENCED),
    Ending(PC, 4, 2, COMMIT, 3, 2, E.CONCURRENT_TRANSACTIONS),
    Ending(PC, 4, 2, ABORT, 3, 2, E.INVALID_TXN_STATE),
    Ending(PA, 4, 2, ABORT, 3, 2, E.CONCURRENT_TRANSACTIONS),
    Ending(PA, 4, 2, COMMIT, 3, 2, E.INVALID_TXN_STATE),
    Ending(PC, 4, 2, COMMIT, 5, 2, E.PRODUCER_FENCED),
    Ending(PC, 4, 2, COMMIT, 2, 2, E.PRODUCER_FENCED),
    # the end of the next transaction, while markers of the last one are written
    Ending(PC, 4, 2, COMMIT, 4, 2, E.CONCURRENT_TRANSACTIONS),
    Ending(PC, 4, 2, ABORT, 4, 2, E.CONCURRENT_TRANSACTIONS),
    Ending(PA, 4, 2, ABORT, 4, 2, E.CONCURRENT_TRANSACTIONS),
    # a transaction that its timeout or another producer has aborted
    Ending(PA, 4, 2, ABORT, 3, 1, E.PRODUCER_FENCED),
    Ending(CA, 4, 2, ABORT, 3, 1, E.PRODUCER_FENCED),
    Ending(CA, 4, 2, COMMIT, 3, 1, E.PRODUCER_FENCED),
    # the epoch that fences the last producer of an id is given to no producer
    Ending(CA, 32767, 2, ABORT, 32766, 2, E.PRODUCER_FENCED),
    Ending(CA, 32767, 2, ABORT, 32767, 2, E.PRODUCER_FENCED),
    Ending(CA, 32767, 2, COMMIT, 32767, 1, E.PRODUCER_FENCED),
    # KIP-890's table of finished states: Retry, then Current
    Ending(EMPTY, 4, 0, ABORT, 3, 2, E.PRODUCER_FENCED),
    Ending(EMPTY, 4, 0, ABORT, 4, 2, E.NONE, CA, 5),
    Ending(EMPTY, 4, 0, COMMIT, 3, 2, E.PRODUCER_FENCED),
    Ending(EMPTY, 4, 0, COMMIT, 4, 2, E.INVALID_TXN_STATE),
    Ending(CA, 4, 2, ABORT, 3, 2, E.NONE),
    Ending(CA, 4, 2, ABORT, 4, 2, E.NONE, CA, 5),
    Ending(CA, 4, 2, COMMIT, 3, 2, E.INVALID_TXN_STATE),
    Ending(CA, 4, 2, COMMIT, 4, 2, E.INVALID_TXN_STATE),
    Ending(CC, 4, 2, ABORT, 3, 2, E.INVALID_TXN_STATE),
    Ending(CC, 4, 2, ABORT, 4, 2, E.NONE, CA, 5),
    Ending(CC, 4, 2, COMMIT, 3, 2, E.NONE),
    Ending(CC, 4, 2, COMMIT, 4, 2, E.INVALID_TXN_STATE),
    Ending(CC, 4, 2, COMMIT, 2, 2, E.PRODUCER_FENCED),
    # a client that changes its protocol between two calls
    Ending(PC, 4, 2, COMMIT, 3, 1, E.PRODUCER_FENCED),
    Ending(CC, 4, 2, COMMIT, 3, 1, E.PRODUCER_FENCED),
    Ending(CC, 4, 2, COMMIT, 4, 1, E.NONE),
    Ending(PC, 3, 0, COMMIT, 3, 2, E.CONCURRENT_TRANSACTIONS),
    Ending(CC, 3, 0, COMMIT, 3, 2, E.INVALID_TXN_STATE),
    Ending(CC, 3, 0, ABORT, 3, 2, E.NONE, CA, 4),
    Ending(CA, 3, 0, ABORT, 3, 2, E.NONE, CA, 4),
]


def end(sent: Ending, producer_id: int = PID, spare: int = -1) -> rpc.EndTransactionRequest:
    """Build the request of a row."""
    return rpc.EndTransactionRequest(
        transactional_id="x",
        ownership_epoch=1,
        producer_id=producer_id,
        producer_epoch=sent.sent,
        committed=sent.committed,
        client_version=sent.sent_version,
        spare_producer_id=spare,
    )


@pytest.mark.parametrize("row", ENDINGS, ids=str)
def test_the_transaction_log_answers_end_txn_as_kafka_does(row: Ending) -> None:
    before = stored(row.state, row.epoch, row.version)
    decision = decide.decide_end(end(row), context(before))
    assert E(decision.response.error_code) is row.code
    assert bool(decision.records) is (row.new_state is not None)
    if row.new_state is not None:
        found = after(before, decision)
        assert (found.state, found.producer_epoch) == (row.new_state, row.new_epoch)
    if row.code is E.NONE:
        epoch = row.epoch if row.new_epoch is None else row.new_epoch
        answer = decision.response
        assert (answer.producer_id, answer.producer_epoch) == (PID, epoch)


def test_the_transaction_log_refuses_end_txn_with_another_producers_id() -> None:
    row = ENDINGS[0]
    decision = decide.decide_end(end(row, producer_id=PID + 1), context(stored(ONGOING, 3)))
    assert decision.response.error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert not decision.records


def test_end_txn_of_tv2_at_the_last_producer_epoch_returns_a_new_producer_id_repeatably() -> None:
    row = Ending(ONGOING, 32766, 2, COMMIT, 32766, 2, E.NONE)
    before = stored(ONGOING, 32766, 2)
    refused = decide.decide_end(end(row), context(before))
    assert refused.response.error_code == E.COORDINATOR_LOAD_IN_PROGRESS  # without a spare id
    decision = decide.decide_end(end(row, spare=SPARE), context(before))
    assert (decision.response.producer_id, decision.response.producer_epoch) == (SPARE, 0)
    prepared = after(before, decision)
    assert (prepared.producer_id, prepared.producer_epoch) == (PID, 32767)  # the marker's
    again = decide.decide_end(end(row), context(prepared))
    assert again.response.error_code == E.CONCURRENT_TRANSACTIONS
    following = decide.decide_end(end(row._replace(sent=0), SPARE), context(prepared))
    assert following.response.error_code == E.CONCURRENT_TRANSACTIONS
    complete = after(prepared, decide.decide_complete("x", 5, context(prepared)))
    assert (complete.producer_id, complete.producer_epoch) == (SPARE, 0)
    again = decide.decide_end(end(row), context(complete))
    assert again.response.error_code == E.NONE
    assert (again.response.producer_id, again.response.producer_epoch) == (SPARE, 0)
    init = rpc.InitTransactionalIdRequest(
        transactional_id="x", ownership_epoch=1, timeout_ms=60_000, producer_id=PID,
        producer_epoch=32766, spare_producer_id=SPARE + 1,
    )  # fmt: skip
    found = decide.decide_init(init, context(complete)).response
    assert (found.error_code, found.producer_id, found.producer_epoch) == (0, SPARE, 0)


def test_init_producer_id_returns_the_epoch_of_an_end_txn_of_tv2_whose_answer_was_lost() -> None:
    before = stored(ONGOING, 3, 2)
    row = Ending(ONGOING, 3, 2, COMMIT, 3, 2, E.NONE)
    prepared = after(before, decide.decide_end(end(row), context(before)))
    complete = after(prepared, decide.decide_complete("x", 5, context(prepared)))
    for epoch, code, answer in ((3, E.NONE, 4), (4, E.NONE, 5), (2, E.PRODUCER_FENCED, -1)):
        request = rpc.InitTransactionalIdRequest(
            transactional_id="x", ownership_epoch=1, timeout_ms=60_000, producer_id=PID,
            producer_epoch=epoch, spare_producer_id=SPARE,
        )  # fmt: skip
        found = decide.decide_init(request, context(complete)).response
        assert (found.error_code, found.producer_epoch) == (code, answer)


# --- InitProducerId ----------------------------------------------------------------------------


class Init(NamedTuple):
    """One InitProducerId: what is stored, what the producer says it has, and Kafka's answer."""

    before: Transaction
    producer_id: int
    epoch: int
    code: E
    answer: tuple[int, int] | None = None
    last_epoch: int = -1  # stored afterwards


NEW: Final = Transaction(1, 1, 1, 0)

INITS: Final = [
    Init(NEW, -1, -1, E.NONE, (SPARE, 0)),
    Init(NEW, PID, 10, E.NONE, (SPARE, 0)),  # a producer whose id was forgotten
    Init(stored(EMPTY, 3), -1, -1, E.NONE, (PID, 4)),
    Init(stored(CC, 3), -1, -1, E.NONE, (PID, 4)),
    Init(stored(CA, 3, 2), -1, -1, E.NONE, (PID, 4)),
    Init(stored(PC, 3), -1, -1, E.CONCURRENT_TRANSACTIONS),
    Init(stored(PA, 3), -1, -1, E.CONCURRENT_TRANSACTIONS),
    Init(stored(EMPTY, 32766), -1, -1, E.NONE, (SPARE, 0)),
    Init(stored(CA, 32767), -1, -1, E.NONE, (SPARE, 0)),
    Init(stored(EMPTY, 3), PID, 3, E.NONE, (PID, 4), 3),
    Init(stored(EMPTY, 4, last_producer_epoch=3), PID, 3, E.NONE, (PID, 4), 3),  # again
    Init(stored(EMPTY, 4), PID, 3, E.PRODUCER_FENCED),  # another producer has been initialised
    Init(stored(EMPTY, 4), PID + 1, 4, E.PRODUCER_FENCED),
    Init(stored(EMPTY, 32766), PID, 32766, E.NONE, (SPARE, 0), 32766),
    Init(
        stored(EMPTY, 0, previous_producer_id=OLD, last_producer_epoch=32766),
        OLD, 32766, E.NONE, (PID, 0), 32766,
    ),
    Init(
        stored(EMPTY, 0, previous_producer_id=OLD, last_producer_epoch=32766),
        OLD, 32765, E.PRODUCER_FENCED,
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", INITS, ids=str)
def test_the_transaction_log_answers_init_producer_id_as_kafka_does(row: Init) -> None:
    request = rpc.InitTransactionalIdRequest(
        transactional_id="x",
        ownership_epoch=1,
        timeout_ms=60_000,
        producer_id=row.producer_id,
        producer_epoch=row.epoch,
        spare_producer_id=SPARE,
    )
    decision = decide.decide_init(request, context(row.before))
    assert E(decision.response.error_code) is row.code
    assert bool(decision.records) is (row.answer is not None)
    if row.answer is not None:
        assert (decision.response.producer_id, decision.response.producer_epoch) == row.answer
        found = after(row.before, decision)
        assert (found.producer_id, found.producer_epoch) == row.answer
        assert (found.state, found.last_producer_epoch) == (State.EMPTY, row.last_epoch)


def test_init_producer_id_aborts_an_ongoing_transaction_under_the_next_epoch() -> None:
    before = stored(ONGOING, 3)
    request = rpc.InitTransactionalIdRequest(
        transactional_id="x", ownership_epoch=1, timeout_ms=60_000, spare_producer_id=SPARE
    )
    decision = decide.decide_init(request, context(before))
    assert decision.response.error_code == E.CONCURRENT_TRANSACTIONS
    fenced = after(before, decision)
    assert (fenced.state, fenced.producer_epoch) == (PA, 4)
    complete = after(fenced, decide.decide_complete("x", 5, context(fenced)))
    answer = decide.decide_init(request, context(complete)).response
    assert (answer.producer_id, answer.producer_epoch) == (PID, 5)  # a second epoch
    row = Ending(CA, 4, 2, ABORT, 3, 2, E.NONE)  # of the producer that was fenced
    for committed, code in ((ABORT, E.NONE), (COMMIT, E.INVALID_TXN_STATE)):
        asked = end(row._replace(committed=committed))
        assert decide.decide_end(asked, context(complete)).response.error_code == code


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60_000 + 1])
def test_the_transaction_log_refuses_a_transaction_timeout_out_of_bounds(timeout_ms: int) -> None:
    request = rpc.InitTransactionalIdRequest(
        transactional_id="x", ownership_epoch=1, timeout_ms=timeout_ms, spare_producer_id=SPARE
    )
    decision = decide.decide_init(request, context(NEW))
    assert decision.response.error_code == E.INVALID_TRANSACTION_TIMEOUT
    assert not decision.records


# --- partitions --------------------------------------------------------------------------------


class Adding(NamedTuple):
    """One AddPartitionsToTxn: what is stored, what is sent, and Kafka's answer."""

    before: Transaction | None
    producer_id: int
    epoch: int
    topic: UUID
    code: E
    number: int = -1
    writes: bool = False
    verified: E | None = None  # the answer of a proof, if it differs


OTHER: Final = UUID(int=8)

ADDINGS: Final = [
    Adding(stored(CA, 32767), PID, 32767, TOPIC, E.PRODUCER_FENCED),
    Adding(stored(ONGOING, 3), PID + 1, 3, TOPIC, E.INVALID_PRODUCER_ID_MAPPING),
    Adding(stored(ONGOING, 3), PID, 2, TOPIC, E.PRODUCER_FENCED),
    Adding(stored(PC, 3), PID, 3, TOPIC, E.CONCURRENT_TRANSACTIONS),
    Adding(stored(PA, 3), PID, 3, TOPIC, E.CONCURRENT_TRANSACTIONS),
    Adding(stored(ONGOING, 3), PID, 3, TOPIC, E.NONE, 5),
    Adding(stored(ONGOING, 3), PID, 3, OTHER, E.NONE, 5, True, E.TRANSACTION_ABORTABLE),
    Adding(stored(EMPTY, 3), PID, 3, TOPIC, E.NONE, 6, True, E.TRANSACTION_ABORTABLE),
    Adding(stored(CC, 3), PID, 3, TOPIC, E.NONE, 6, True, E.TRANSACTION_ABORTABLE),
    Adding(stored(CA, 3, 2), PID, 3, TOPIC, E.NONE, 6, True, E.TRANSACTION_ABORTABLE),
    Adding(
        stored(PC, 32767, 2, next_producer_id=SPARE), SPARE, 0, TOPIC, E.CONCURRENT_TRANSACTIONS
    ),
]


def topics(topic: UUID) -> tuple[rpc.TransactionTopic, ...]:
    """Partition 0 of a topic."""
    return (rpc.TransactionTopic(topic_id=topic, topic_name="t", partitions=(0,)),)


@pytest.mark.parametrize("row", ADDINGS, ids=str)
def test_the_transaction_log_adds_and_proves_partitions_as_kafka_does(row: Adding) -> None:
    common: dict[str, Any] = {
        "transactional_id": "x",
        "producer_id": row.producer_id,
        "producer_epoch": row.epoch,
        "topics": topics(row.topic),
        "metadata_offset": 1,
    }
    given = context(row.before)
    added = decide.decide_add(
        rpc.AddTransactionPartitionsRequest(ownership_epoch=1, **common), given
    )
    by_produce = decide.decide_prove(rpc.ProveTransactionRequest(adds=True, **common), given)
    for decision in (added, by_produce):
        assert E(decision.response.error_code) is row.code
        assert bool(decision.records) is row.writes
        assert decision.response.transaction_number == row.number
        if row.writes and row.before is not None:
            found = after(row.before, decision)
            assert (found.state, found.number) == (ONGOING, row.number)
            assert (row.topic, 0) in found.partitions
    proved = decide.decide_prove(rpc.ProveTransactionRequest(**common), given)
    assert E(proved.response.error_code) is (row.verified or row.code)
    assert not proved.records
    assert proved.response.log_offset == 100


def test_a_new_transaction_has_no_partitions_of_the_producers_former_transaction() -> None:
    before = stored(CC, 3)._replace(partitions=Map().set((OTHER, 0), "o"))  # not possible, but
    request = rpc.AddTransactionPartitionsRequest(
        transactional_id="x",
        ownership_epoch=1,
        producer_id=PID,
        producer_epoch=3,
        topics=topics(TOPIC),
        metadata_offset=1,
    )
    found = after(before, decide.decide_add(request, context(before)))
    assert dict(found.partitions) == {(TOPIC, 0): "t"}


def test_the_transaction_log_refuses_more_partitions_than_a_transaction_may_have() -> None:
    many = rpc.TransactionTopic(topic_id=OTHER, topic_name="o", partitions=tuple(range(10_000)))
    before = stored(ONGOING, 3)
    request = rpc.AddTransactionPartitionsRequest(
        transactional_id="x",
        ownership_epoch=1,
        producer_id=PID,
        producer_epoch=3,
        topics=(many,),
        metadata_offset=1,
    )
    decision = decide.decide_add(request, context(before))
    assert decision.response.error_code == E.POLICY_VIOLATION
    assert not decision.records
    fits = decide.decide_add(request, context(stored(EMPTY, 3)))
    assert len(fits.records) == 10  # each of a limited size
    assert len(after(stored(EMPTY, 3), fits).partitions) == 10_000


@pytest.mark.parametrize(
    "request_",
    [
        rpc.InitTransactionalIdRequest(
            transactional_id="x", ownership_epoch=2, timeout_ms=1, spare_producer_id=1
        ),
        rpc.AddTransactionPartitionsRequest(
            transactional_id="x",
            ownership_epoch=2,
            producer_id=PID,
            producer_epoch=3,
            topics=topics(TOPIC),
            metadata_offset=1,
        ),
        rpc.EndTransactionRequest(
            transactional_id="x",
            ownership_epoch=2,
            producer_id=PID,
            producer_epoch=3,
            committed=True,
            client_version=0,
        ),
    ],
    ids=lambda request: type(request).__name__,
)
@pytest.mark.parametrize("before", [None, stored(ONGOING, 3)], ids=["unknown", "owned"])
def test_the_transaction_log_refuses_a_call_under_another_ownership_epoch_without_a_record(
    request_: Message, before: Transaction | None
) -> None:
    decisions: dict[type, Any] = {
        rpc.InitTransactionalIdRequest: decide.decide_init,
        rpc.AddTransactionPartitionsRequest: decide.decide_add,
        rpc.EndTransactionRequest: decide.decide_end,
    }
    decision = decisions[type(request_)](request_, context(before))
    assert decision.response.error_code == E.NOT_COORDINATOR
    assert not decision.records
