"""TxnOffsetCommit behind a broker's handler: proved on arrival, tried once, dropped when closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from coordinator.errors import CoordinatorError
from coordinator.groups.settings import GroupSettings
from coordinator.leader_client import Failure
from diskless.apis import groups
from diskless.apis.groups import GroupApis
from diskless.apis.offset_proofs import client_error, group_log_topic
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc import transaction_log
from records.rpc.group_log import CommitTransactionalOffsetsRequest
from tests.coordinator.groups.test_transactional_commits import code, request
from tests.coordinator.groups.world import TRANSACTIONS
from tests.diskless.calling import Caller, call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run

Answer = transaction_log.ProveTransactionResponse
AWAY = Failure(CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "away"), in_doubt=False)
KEY = rpc.TxnOffsetCommitRequest.schema().key


class TransactionLog:
    """Answers proofs as a test says, and keeps the questions."""

    def __init__(self) -> None:
        self.questions: list[transaction_log.ProveTransactionRequest] = []
        self.answers: list[Answer | Failure] = [Answer(transaction_number=3)]
        self.on_question: Callable[[], None] = lambda: None

    async def ask(self, question: Any) -> Answer | Failure:
        """Return the next answer, and the last one for ever."""
        self.questions.append(question)
        self.on_question()
        await asyncio.sleep(0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def a_broker() -> AsyncIterator[tuple[ClusterWorld, GroupApis, TransactionLog]]:
    async with ClusterWorld() as world:
        world.group_log._features = lambda: TRANSACTIONS
        await world.create("t", partitions=2)
        transactions = TransactionLog()
        apis = GroupApis(
            world.cluster(1),
            GroupSettings(initial_rebalance_delay_ms=0),
            wall_ms=world.wall_ms,
            random=Random(1),
            ask_transaction_log=transactions.ask,
        )
        yield world, apis, transactions
        await apis.close()


async def commit(apis: GroupApis, version: int = 4, **more: Any) -> int:
    """Commit an offset in a transaction; return the error."""
    given = request(5)
    answer = await call(apis.handlers, given, rpc.TxnOffsetCommitResponse, version, **more)
    return code(answer)


def refused(error: ErrorCode) -> Answer:
    """Return the transaction log's answer with an error."""
    return Answer(error_code=int(error))


@pytest.fixture(autouse=True)
def transactions_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "has_transactions", lambda _features: True)


def test_a_broker_refuses_txn_offset_commit_while_the_features_allow_no_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()

    async def story() -> None:
        async with a_broker() as (_, apis, transactions):
            assert await commit(apis) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert not transactions.questions

    run(story)


def test_a_broker_without_a_transaction_log_does_not_serve_txn_offset_commit() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            settings = GroupSettings()
            apis = GroupApis(world.cluster(1), settings, wall_ms=world.wall_ms, random=Random(1))
            assert KEY not in apis.handlers
            await apis.close()

    run(story)


@pytest.mark.parametrize("version", range(6))
def test_txn_offset_commit_adds_the_group_log_to_the_transaction_from_version_5_on(
    version: int,
) -> None:
    async def story() -> None:
        async with a_broker() as (world, apis, transactions):
            sent = record_calls(world)
            assert await commit(apis, version) == 0
            (question,) = transactions.questions
            assert question.topics == (group_log_topic(world.image),)
            assert (question.transactional_id, question.producer_id) == ("x", 7)
            assert question.adds is (version >= 5)
            (written,) = sent
            assert written.commits[0].transaction_number == 3

    run(story)


def record_calls(world: ClusterWorld) -> list[CommitTransactionalOffsetsRequest]:
    """Keep the transactional commits that reach the group log."""
    sent: list[CommitTransactionalOffsetsRequest] = []
    ask = world.group_log.ask

    def recording(given: Any, done: Any) -> None:
        if isinstance(given, CommitTransactionalOffsetsRequest):
            sent.append(given)
        ask(given, done)

    world.group_log.ask = recording  # type: ignore[method-assign]
    return sent


@pytest.mark.parametrize(
    ("told", "version", "error"),
    [
        (AWAY, 4, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (refused(ErrorCode.NOT_LEADER_OR_FOLLOWER), 4, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (refused(ErrorCode.PRODUCER_FENCED), 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING), 4, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (refused(ErrorCode.TRANSACTION_ABORTABLE), 3, ErrorCode.INVALID_TXN_STATE),
        (refused(ErrorCode.TRANSACTION_ABORTABLE), 4, ErrorCode.TRANSACTION_ABORTABLE),
        (refused(ErrorCode.CONCURRENT_TRANSACTIONS), 4, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (refused(ErrorCode.CONCURRENT_TRANSACTIONS), 5, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_txn_offset_commit_outside_of_a_transaction_gets_its_versions_code_without_a_record(
    told: Answer | Failure, version: int, error: ErrorCode
) -> None:
    async def story() -> None:
        async with a_broker() as (world, apis, transactions):
            sent = record_calls(world)
            transactions.answers = [told]
            assert await commit(apis, version) == error
            assert not sent

    run(story)


def test_txn_offset_commit_waits_while_the_former_transaction_is_ending() -> None:
    async def story() -> None:
        async with a_broker() as (_, apis, transactions):
            ending = refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            transactions.answers = [ending, ending, Answer(transaction_number=4)]
            assert await commit(apis, 5) == 0
            assert len(transactions.questions) == 3

    run(story)


def test_a_broker_drops_a_txn_offset_commit_whose_connection_closes_before_its_proof() -> None:
    async def story() -> None:
        async with a_broker() as (world, apis, transactions):
            sent, caller = record_calls(world), Caller()
            transactions.on_question = caller.close
            assert await commit(apis, caller=caller) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert not sent

    run(story)


def test_a_broker_requests_no_proof_for_a_group_that_it_does_not_coordinate() -> None:
    async def story() -> None:
        async with a_broker() as (_, apis, transactions):
            apis.set_fenced(is_fenced=True)
            assert await commit(apis) == ErrorCode.NOT_COORDINATOR
            assert not transactions.questions

    run(story)


def test_txn_offset_commit_gets_a_retriable_error_if_the_transaction_log_times_out() -> None:
    assert client_error(ErrorCode.REQUEST_TIMED_OUT, 4) == ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- with the transaction log ---------------------------------------------------------------------


class Producer:
    """A producer whose calls go to the transaction log as its owner sends them."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.epoch = -1
        self.producer_id = -1
        self.producer_epoch = -1

    async def _ask(self, request: Any) -> Any:
        answer = await self.world.ask_transactions(request)
        assert not isinstance(answer, Failure)
        return answer

    async def init(self) -> int:
        """Acquire the transactional id and initialise it; return the error."""
        acquire = transaction_log.AcquireTransactionalIdRequest(
            transactional_id="x", broker_id=1, broker_epoch=-1, create=True
        )
        self.epoch = (await self._ask(acquire)).ownership_epoch
        answer = await self._ask(
            transaction_log.InitTransactionalIdRequest(
                transactional_id="x", ownership_epoch=self.epoch, timeout_ms=60_000,
                spare_producer_id=7,
            )
        )  # fmt: skip
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)

    async def add_offsets(self) -> int:
        """Add the group log to the transaction; return the error."""
        topic = group_log_topic(self.world.machine.image)
        assert topic is not None
        answer = await self._ask(
            transaction_log.AddTransactionPartitionsRequest(
                transactional_id="x", ownership_epoch=self.epoch, producer_id=self.producer_id,
                producer_epoch=self.producer_epoch, topics=(topic,), metadata_offset=0,
            )
        )  # fmt: skip
        return int(answer.error_code)

    async def end(self, *, committed: bool) -> int:
        """End the transaction; return the error."""
        answer = await self._ask(
            transaction_log.EndTransactionRequest(
                transactional_id="x", ownership_epoch=self.epoch, producer_id=self.producer_id,
                producer_epoch=self.producer_epoch, committed=committed, client_version=0,
            )
        )  # fmt: skip
        return int(answer.error_code)

    def request(self, offset: int) -> rpc.TxnOffsetCommitRequest:
        """Build its TxnOffsetCommit."""
        given = request(offset, producer_epoch=self.producer_epoch)
        assert self.producer_id == given.producer_id
        return given


def test_transactional_offsets_of_a_group_count_only_after_their_transaction_commits() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            world.group_log._features = lambda: TRANSACTIONS
            await world.create("t", partitions=2)
            apis = GroupApis(
                world.cluster(1),
                GroupSettings(initial_rebalance_delay_ms=0),
                wall_ms=world.wall_ms,
                random=Random(1),
                ask_transaction_log=world.ask_transactions,
            )
            producer = Producer(world)
            assert await producer.init() == 0

            async def send(offset: int) -> int:
                response = rpc.TxnOffsetCommitResponse
                return code(await call(apis.handlers, producer.request(offset), response, 4))

            def stored() -> Any:
                return world.group_machine.image.groups["g"].offsets.get(("t", 0))

            async def ended(*, committed: bool) -> None:
                assert await producer.end(committed=committed) == 0
                while world.group_machine.image.groups["g"].pending.total:
                    await asyncio.sleep(0.01)

            assert await send(5) == ErrorCode.TRANSACTION_ABORTABLE  # nothing is added
            assert await producer.add_offsets() == 0
            assert await send(5) == 0
            assert stored() is None
            await ended(committed=True)
            assert stored().offset == 5
            assert await producer.add_offsets() == 0
            assert await send(9) == 0
            await ended(committed=False)
            assert stored().offset == 5
            assert await send(9) == ErrorCode.TRANSACTION_ABORTABLE
            await apis.close()

    run(story)
