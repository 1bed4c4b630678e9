"""Transactional producers at brokers: owned calls, proofs of batches, markers, words of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.errors import CoordinatorError
from coordinator.leader_client import Failure
from coordinator.transactions.state import State
from diskless.apis.offsets import Offsets
from diskless.apis.producers import ProducerApis, ProducerIds
from diskless.apis.transaction_calls import TransactionCalls
from diskless.transactions.owner import TransactionOwner
from diskless.transactions.proofs import client_error
from records.kafka_errors import ErrorCode as E
from records.rpc import transaction_log
from records.rpc import transactions as rpc
from records.rpc.list_offsets import ListOffsetsRequest
from records.rpc.partitions import InitProducerIdRequest, InitProducerIdResponse
from records.rpc.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.diskless.calling import Caller, call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch
from tests.diskless.virtual_time import run

ID = "x"


class Broker:
    """One broker of a cluster with transactions, and a producer's calls to it."""

    def __init__(
        self, world: ClusterWorld, broker_id: int = 1, records: RecordsBroker | None = None
    ) -> None:
        self.world = world
        self.cluster = world.cluster(broker_id)
        self.records = records or RecordsBroker(world, broker_id)
        self.owner = TransactionOwner(self.cluster)
        ids = ProducerIds(self.cluster)
        self.calls = TransactionCalls(self.cluster, self.owner, ids, max_timeout_ms=900_000)
        self.producers = ProducerApis(ids, self.calls.init)
        self.producer = (-1, -1)

    async def init(self, version: int = 4, timeout_ms: int = 60_000, name: str = ID) -> int:
        """Initialise the producer; return the error."""
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        answer = await call(self.producers.handlers, request, InitProducerIdResponse, version)
        if not answer.error_code:
            self.producer = (answer.producer_id, answer.producer_epoch)
        return answer.error_code

    async def add(
        self, *partitions: tuple[str, int], version: int = 0, name: str = ID
    ) -> dict[Any, int]:
        """Add partitions; return their errors."""
        topic = rpc.AddPartitionsToTxnTopic
        request = rpc.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=tuple(topic(name=n, partitions=(p,)) for n, p in partitions),
        )
        answer = await call(self.calls.handlers, request, rpc.AddPartitionsToTxnResponse, version)
        return {
            (result.name, one.partition_index): one.partition_error_code
            for result in answer.results_by_topic_v3_and_below
            for one in result.results_by_partition
        }

    async def add_offsets(self, version: int, name: str = ID) -> int:
        """Add the offsets of a group; return the error."""
        request = rpc.AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            group_id="g",
        )
        answer = await call(self.calls.handlers, request, rpc.AddOffsetsToTxnResponse, version)
        return int(answer.error_code)

    async def end(
        self,
        *,
        committed: bool = True,
        version: int = 1,
        caller: Caller | None = None,
        name: str = ID,
    ) -> int:
        """End the transaction; return the error."""
        request = rpc.EndTxnRequest(
            transactional_id=name,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=committed,
        )
        answer = await call(
            self.calls.handlers, request, rpc.EndTxnResponse, version, caller=caller
        )
        return int(answer.error_code)

    async def produce(self, sequence: int, version: int = 10, name: str = ID) -> int:
        """Produce one transactional record to t-0; return the error."""
        records = batch(
            sequence,
            now_ms=self.world.wall_ms(),
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
            is_transactional=True,
        )
        answer = await self.records.produce("t", 0, records, version=version, transactional_id=name)
        return int(answer.error_code)

    async def latest(self, isolation: int) -> int:
        """Return the end of t-0 by ListOffsets."""
        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=(topic(name="t", partitions=(partition,)),),
        )
        answer = await Offsets(self.cluster, self.records.cache).find(request, 10)
        return int(answer.topics[0].partitions[0].offset)

    async def completed(self, state: State) -> None:
        """Wait until the transaction's markers are done."""
        for _ in range(1_000):
            if self.world.transaction_machine.image.ids[ID].state is state:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.world.transaction_machine.image.ids[ID])

    @property
    def end_offset(self) -> int:
        """The high watermark of t-0 at the batch coordinator."""
        topic = self.world.image.topic("t")
        assert topic is not None
        replica = self.cluster.replica(0)
        assert replica is not None
        _, end = replica.ends(topic.topic_id, 0) or (0, 0)
        return int(end)


def story(told: Callable[[Broker], Awaitable[None]], *, has_transactions: bool = True) -> None:
    """Tell a story of a cluster of one broker with transactions."""

    async def main() -> None:
        async with ClusterWorld() as world:
            if has_transactions:
                await world.finalize(esker_version=4, transaction_version=1)
            await world.create("t")
            broker = Broker(world)
            await told(broker)
            await broker.records.end()
            await broker.producers.close()

    run(main)


def test_a_producer_of_tv1_commits_and_aborts_transactions() -> None:
    async def told(broker: Broker) -> None:
        assert await broker.init() == 0
        for number, committed in enumerate((True, False, True)):
            assert await broker.add(("t", 0)) == {("t", 0): 0}
            assert await broker.produce(number) == 0
            assert await broker.end(committed=committed) == 0
            await broker.completed(State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT)
            assert broker.end_offset == 2 * (number + 1)  # a record and a marker each
        assert broker.owner.acquired == 1

    story(told)


@pytest.mark.parametrize(
    ("version", "code"), [(9, E.INVALID_TXN_STATE), (10, E.INVALID_TXN_STATE),
                          (11, E.TRANSACTION_ABORTABLE)],
)  # fmt: skip
def test_a_batch_of_a_partition_that_is_not_in_the_transaction_is_refused(
    version: int, code: E
) -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        assert await broker.produce(0, version) == code
        assert broker.end_offset == 0

    story(told)


def test_a_batch_of_a_fenced_producer_is_refused_with_invalid_producer_epoch() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        producer_id, epoch = broker.producer
        assert await broker.init() == E.CONCURRENT_TRANSACTIONS  # it aborts the transaction
        broker.producer = (producer_id, epoch)
        assert await broker.produce(0) == E.INVALID_PRODUCER_EPOCH

    story(told)


def test_a_broker_with_a_lagging_replica_proves_a_refused_batch_at_the_leader() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        machine = broker.world.transaction_machine
        old = (machine.image, machine.applied.offset)
        assert await broker.produce(0) == 0
        await broker.end()
        await broker.completed(State.COMPLETE_COMMIT)
        await broker.add(("t", 0))
        broker.records.cluster.transactions = lambda: old  # type: ignore[method-assign]
        assert await broker.produce(1) == E.NOT_ENOUGH_REPLICAS  # the last transaction's number
        assert await broker.produce(1) == 0
        assert broker.end_offset == 3

    story(told)


def test_a_broker_acquires_an_id_anew_after_a_call_in_doubt() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        ask = broker.cluster.ask_transactions
        delayed: list[Any] = []

        async def lose(request: Any) -> Any:
            if isinstance(request, transaction_log.EndTransactionRequest):
                delayed.append(request)
                error = CoordinatorError(E.REQUEST_TIMED_OUT, "no answer")
                return Failure(error, in_doubt=True)
            return await ask(request)

        broker.cluster.ask_transactions = lose  # type: ignore[method-assign]
        assert await broker.end() == E.COORDINATOR_NOT_AVAILABLE
        broker.cluster.ask_transactions = ask  # type: ignore[method-assign]
        assert await broker.end() == 0
        assert broker.owner.acquired == 2
        await broker.completed(State.COMPLETE_COMMIT)
        await broker.add(("t", 0))
        late = await ask(delayed[0])  # a slow leader reads it now: it ends nothing
        assert late.error_code == E.NOT_COORDINATOR
        assert broker.world.transaction_machine.image.ids[ID].state is State.ONGOING

    story(told)


def test_a_call_of_a_closed_connection_is_dropped() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        caller = Caller()
        caller.closed = True
        assert await broker.end(caller=caller) == E.NOT_COORDINATOR
        assert broker.world.transaction_machine.image.ids[ID].state is State.ONGOING

    story(told)


def test_calls_of_one_transactional_id_go_one_at_a_time() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        ask = broker.cluster.ask_transactions
        under_way, most = 0, 0

        async def slow(request: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(1)
            answer = await ask(request)
            under_way -= 1
            return answer

        broker.cluster.ask_transactions = slow  # type: ignore[method-assign]
        codes = await asyncio.gather(broker.end(), broker.end())
        assert most == 1
        assert set(codes) <= {E.NONE, E.CONCURRENT_TRANSACTIONS}

    story(told)


def test_a_batch_of_a_topic_that_was_created_again_is_not_in_the_transaction() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        deleted = DeleteTopicsRequest.DeleteTopicState(name="t")
        request = DeleteTopicsRequest(topics=(deleted,), timeout_ms=1_000)
        await broker.world.ask(request, DeleteTopicsResponse)
        await broker.world.create("t")
        assert await broker.produce(0) == E.INVALID_TXN_STATE
        assert broker.end_offset == 0
        await broker.end()
        await broker.completed(State.COMPLETE_COMMIT)
        assert broker.end_offset == 0  # nor has it a marker

    story(told)


def test_list_offsets_of_committed_records_ends_at_the_last_stable_offset() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        assert await broker.produce(0) == 0
        assert [await broker.latest(isolation) for isolation in (0, 1)] == [1, 0]
        await broker.end()
        await broker.completed(State.COMPLETE_COMMIT)
        assert [await broker.latest(isolation) for isolation in (0, 1)] == [2, 2]

    story(told)


def test_add_partitions_is_all_or_nothing() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        assert await broker.add(("t", 0), ("t", 9), ("absent", 0), ("__consumer_offsets", 0)) == {
            ("t", 0): E.OPERATION_NOT_ATTEMPTED,
            ("t", 9): E.UNKNOWN_TOPIC_OR_PARTITION,
            ("absent", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
            ("__consumer_offsets", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert broker.world.transaction_machine.image.ids[ID].state is State.EMPTY

    story(told)


def test_a_broker_refuses_to_add_more_partitions_than_a_transaction_may_have() -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        answer = await broker.add(("t", 0), *(("absent", index) for index in range(100_000)))
        assert len(answer) == 100_001
        assert set(answer.values()) == {E.POLICY_VIOLATION}
        assert broker.world.transaction_machine.image.ids[ID].state is State.EMPTY

    story(told)


@pytest.mark.parametrize(
    ("version", "code"), [(0, E.INVALID_PRODUCER_EPOCH), (2, E.PRODUCER_FENCED)]
)
def test_a_fenced_producer_is_answered_in_the_words_of_its_requests_version(
    version: int, code: E
) -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        old = broker.producer
        await broker.init()
        broker.producer = old
        assert await broker.add(("t", 0), version=version) == {("t", 0): code}
        assert await broker.end(version=version) == code

    story(told)


def test_a_broker_refuses_impossible_producers_and_writes_nothing() -> None:
    async def told(broker: Broker) -> None:
        assert await broker.init(timeout_ms=0) == E.INVALID_TRANSACTION_TIMEOUT
        assert await broker.init(timeout_ms=900_001) == E.INVALID_TRANSACTION_TIMEOUT
        assert await broker.init(name="") == E.INVALID_REQUEST
        assert await broker.init(name="n" * 32_000) == E.INVALID_REQUEST
        assert await broker.end() == E.INVALID_PRODUCER_ID_MAPPING
        assert await broker.end(name="") == E.INVALID_REQUEST
        assert await broker.end(name="n" * 32_000) == E.INVALID_REQUEST
        assert not broker.world.transaction_machine.image.ids

    story(told)


@pytest.mark.parametrize("name", ["", "n" * 32_767], ids=["empty", "32 KB"])
def test_each_call_with_an_impossible_transactional_id_is_refused_without_a_record(
    name: str,
) -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        written = broker.world.transaction_machine.applied.offset
        assert await broker.init(name=name) == E.INVALID_REQUEST
        for version in (0, 3):
            assert await broker.add(("t", 0), version=version, name=name) == {
                ("t", 0): E.INVALID_REQUEST
            }
            assert await broker.add_offsets(version, name=name) == E.INVALID_REQUEST
            assert await broker.end(version=version, name=name) == E.INVALID_REQUEST
        assert await broker.produce(0, name=name) == E.INVALID_PRODUCER_ID_MAPPING
        assert broker.end_offset == 0
        assert broker.world.transaction_machine.applied.offset == written

    story(told)


@pytest.mark.parametrize("epoch", [-1, 32_766, 32_767])
def test_each_transactional_call_with_an_unknown_epoch_is_refused_and_writes_no_record(
    epoch: int,
) -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await broker.add(("t", 0))
        written = broker.world.transaction_machine.applied.offset
        broker.producer = (broker.producer[0], epoch)
        assert await broker.add(("t", 0), version=3) == {("t", 0): E.PRODUCER_FENCED}
        assert await broker.add_offsets(3) == E.PRODUCER_FENCED
        assert await broker.end(version=3) == E.PRODUCER_FENCED
        refused = E.INVALID_RECORD if epoch < 0 else E.INVALID_PRODUCER_EPOCH
        assert await broker.produce(0) == refused
        assert broker.end_offset == 0
        assert broker.world.transaction_machine.applied.offset == written

    story(told)


def test_a_broker_refuses_transactional_ids_while_the_features_do_not_allow_transactions() -> None:
    async def told(broker: Broker) -> None:
        assert await broker.init() == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await broker.end() == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await broker.produce(0) == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert broker.end_offset == 0

    story(told, has_transactions=False)


@pytest.mark.parametrize(
    ("code", "version", "answer"),
    [
        (E.PRODUCER_FENCED, 10, E.INVALID_PRODUCER_EPOCH),
        (E.PRODUCER_FENCED, 12, E.INVALID_PRODUCER_EPOCH),
        (E.TRANSACTION_ABORTABLE, 10, E.INVALID_TXN_STATE),
        (E.TRANSACTION_ABORTABLE, 11, E.TRANSACTION_ABORTABLE),
        (E.CONCURRENT_TRANSACTIONS, 11, E.NOT_ENOUGH_REPLICAS),
        (E.CONCURRENT_TRANSACTIONS, 12, E.CONCURRENT_TRANSACTIONS),
        (E.COORDINATOR_NOT_AVAILABLE, 12, E.NOT_ENOUGH_REPLICAS),
        (E.INVALID_PRODUCER_ID_MAPPING, 10, E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_an_error_of_a_proof_is_translated_for_the_version_of_produce(
    code: E, version: int, answer: E
) -> None:
    assert client_error(code, version) is answer
