"""Requests of transactional producers of TV2, and the answers that Esker and Kafka give.

Each story is told to a broker of ours in this process, and as soak to Apache Kafka. A story returns
what was answered; producer ids are letters in the order in which they appear. Answers that a client
asks again for are waited for.

Source: KIP-890 part 2; upstream's TransactionCoordinatorTest (epoch bumps, retries, overflow).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from coordinator.transactions.checkpoint import state_record
from coordinator.transactions.decide import Decision
from records.kafka_errors import ErrorCode as E
from records.rpc.groups import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from records.rpc.partitions import InitProducerIdRequest, InitProducerIdResponse
from records.rpc.produce import ProduceRequest, ProduceResponse
from records.rpc.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from records.rpc.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
)
from tests.clients import cluster as clusters
from tests.clients.apache_kafka import apache_kafka
from tests.coordinator.groups.world import TRANSACTIONS
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import batch
from tests.interop.kafka_run import Kafka
from tests.interop.kafka_tools import CLASSES
from tests.raft.driver.client import Client
from tests.waiting import DEADLINE_S, wait_until

AGAIN: Final = {
    E.CONCURRENT_TRANSACTIONS,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.NOT_ENOUGH_REPLICAS,
    E.UNKNOWN_TOPIC_OR_PARTITION,
}
"""Codes after which a client asks again."""

TOPIC: Final = "answers"
LAST: Final = 32_766
COMMIT, ABORT = True, False

Answer = tuple[E, str, int]
"""Error, producer id as a letter, epoch."""


class Producer:
    """A producer of one transactional id, request by request."""

    def __init__(self, port: int, name: str, now_ms: Callable[[], int]) -> None:
        self._client = Client("127.0.0.1", port, timeout_s=DEADLINE_S)
        self._now_ms = now_ms
        self.name = name
        self.ids: list[int] = []  # in the order in which they appeared

    def _again(self, attempt: Callable[[], tuple[int, Any]]) -> Any:
        """Ask until the code is none of those that a client asks again for."""
        until = time.monotonic() + DEADLINE_S
        while True:
            code, answer = attempt()
            if code not in AGAIN:
                return answer
            assert time.monotonic() < until, E(code)
            time.sleep(0.005)

    def _answer(self, code: int, producer_id: int, epoch: int) -> Answer:
        if code:
            return E(code), "", -1
        if producer_id not in self.ids:
            self.ids.append(producer_id)
        return E.NONE, "ABC"[self.ids.index(producer_id)], epoch

    def find(self) -> None:
        """Wait until there is a coordinator, and the topic."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        create = CreateTopicsRequest(topics=(topic,), timeout_ms=10_000)
        self._client.ask(create, CreateTopicsResponse, 5)
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=(self.name,))

        def attempt() -> tuple[int, None]:
            answer = self._client.ask(request, FindCoordinatorResponse, 4)
            return answer.coordinators[0].error_code, None

        self._again(attempt)

    def init(
        self, letter: str = "", epoch: int = -1, *, waits: bool = True, timeout_ms: int = 60_000
    ) -> Answer:
        """InitProducerId, also with the id and epoch that the producer has."""
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.ids["ABC".index(letter)] if letter else -1,
            producer_epoch=epoch,
        )

        def attempt() -> tuple[int, Answer]:
            answer = self._client.ask(request, InitProducerIdResponse, 5)
            code = answer.error_code
            found = self._answer(code, answer.producer_id, answer.producer_epoch)
            return (code if waits else 0), found

        found: Answer = self._again(attempt)
        return found

    def produce(self, letter: str, epoch: int, sequence: int, version: int = 12) -> E:
        """Produce one record in a transaction."""
        records = batch(
            sequence,
            now_ms=self._now_ms(),
            producer_id=self.ids["ABC".index(letter)],
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        topic = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=(
                topic(
                    name=TOPIC,
                    partition_data=(topic.PartitionProduceData(index=0, records=records),),
                ),
            ),
        )

        def attempt() -> tuple[int, E]:
            answer = self._client.ask(request, ProduceResponse, version)
            code = answer.responses[0].partition_responses[0].error_code
            return code, E(code)

        code: E = self._again(attempt)
        return code

    def commit_offset(self, letter: str, epoch: int) -> E:
        """TxnOffsetCommit of TV2, which adds the group to the transaction."""
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = topic.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=f"group of {self.name}",
            producer_id=self.ids["ABC".index(letter)],
            producer_epoch=epoch,
            topics=(topic(name=TOPIC, partitions=(partition,)),),
        )

        def attempt() -> tuple[int, E]:
            answer = self._client.ask(request, TxnOffsetCommitResponse, 5)
            code = answer.topics[0].partitions[0].error_code
            return code, E(code)

        group = FindCoordinatorRequest(key_type=0, coordinator_keys=(request.group_id,))
        self._again(
            lambda: (
                self._client.ask(group, FindCoordinatorResponse, 4).coordinators[0].error_code,
                None,
            )
        )
        code: E = self._again(attempt)
        return code

    def end(self, letter: str, epoch: int, committed: bool, version: int = 5) -> Answer:
        """End the transaction."""
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.ids["ABC".index(letter)] if letter else 999_999,
            producer_epoch=epoch,
            committed=committed,
        )

        def attempt() -> tuple[int, Answer]:
            answer = self._client.ask(request, EndTxnResponse, version)
            code = answer.error_code
            return code, self._answer(code, answer.producer_id, answer.producer_epoch)

        found: Answer = self._again(attempt)
        return found

    def state(self) -> str:
        """Return the state of the transactional id."""
        request = DescribeTransactionsRequest(transactional_ids=(self.name,))
        answer = self._client.ask(request, DescribeTransactionsResponse, 0)
        return answer.transaction_states[0].transaction_state

    def epoch(self) -> int:
        """Return the producer epoch of the transactional id."""
        request = DescribeTransactionsRequest(transactional_ids=(self.name,))
        answer = self._client.ask(request, DescribeTransactionsResponse, 0)
        return answer.transaction_states[0].producer_epoch

    def close(self) -> None:
        self._client.close()


class Cluster:
    """A broker to tell stories to."""

    def __init__(self, port: int, now_ms: Callable[[], int]) -> None:
        self.port = port
        self.now_ms = now_ms

    def reach_last_epoch(self, producer: Producer) -> None:
        """Raise the producer's epoch to the last one, by so many calls."""
        while producer.init()[2] < LAST:
            pass

    def abort_timed_out(self) -> None:
        """Search for transactions that exceed their timeouts, if no clock does so."""


class EskerCluster(Cluster):
    """A broker of ours over a cluster in memory, on a loop of another thread."""

    def __init__(self, port: int, world: ClusterWorld, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(port, world.wall_ms)
        self._world = world
        self._loop = loop

    def reach_last_epoch(self, producer: Producer) -> None:
        """Write the epoch before the last one into the log, since 32,765 calls take a minute."""
        assert producer.init()[2] < LAST

        def raise_epoch(context: Any) -> Decision:
            before = context.image.ids[producer.name]
            record = state_record(producer.name, before._replace(producer_epoch=LAST - 1))
            return Decision((record,), None)

        submit = self._world.transaction_log.submit
        self._loop.call_soon_threadsafe(submit, raise_epoch, lambda _: None)
        while producer.init()[2] < LAST:
            pass

    def abort_timed_out(self) -> None:
        """Search for transactions that exceed their timeouts."""
        self._loop.call_soon_threadsafe(self._world.transaction_log.abort_timed_out)


# --- stories -----------------------------------------------------------------------------------


def endings(one: Producer, _: Cluster) -> Iterator[Any]:
    """Each EndTxn of KIP-890's table of finished states."""
    yield one.init()
    yield one.produce("A", 0, 0)
    yield one.produce("A", 0, 1, version=11)  # the partition is in the transaction
    yield one.end("A", 0, COMMIT)
    yield one.end("A", 0, COMMIT)  # its answer was lost
    yield one.end("A", 0, ABORT)
    yield one.end("A", 1, COMMIT)
    yield one.end("A", 2, COMMIT)
    yield one.end("", 1, COMMIT)
    yield one.produce("A", 0, 2)
    yield one.produce("A", 1, 0, version=11)  # the partition is in no transaction
    yield one.end("A", 1, ABORT)  # of nothing
    yield one.end("A", 1, ABORT)
    yield one.end("A", 1, COMMIT)
    yield one.produce("A", 2, 0)
    yield one.end("A", 2, ABORT)
    yield one.end("A", 2, ABORT)
    yield one.end("A", 0, ABORT)
    yield one.commit_offset("A", 2)
    yield one.commit_offset("A", 3)
    yield one.end("A", 3, COMMIT)


ENDINGS: Final = [
    (E.NONE, "A", 0),
    E.NONE,
    E.NONE,
    (E.NONE, "A", 1),
    (E.NONE, "A", 1),
    (E.INVALID_TXN_STATE, "", -1),
    (E.INVALID_TXN_STATE, "", -1),
    (E.PRODUCER_FENCED, "", -1),
    (E.INVALID_PRODUCER_ID_MAPPING, "", -1),
    E.INVALID_PRODUCER_EPOCH,
    E.TRANSACTION_ABORTABLE,
    (E.NONE, "A", 2),
    (E.NONE, "A", 2),
    (E.INVALID_TXN_STATE, "", -1),
    E.NONE,
    (E.NONE, "A", 3),
    (E.NONE, "A", 3),
    (E.PRODUCER_FENCED, "", -1),
    E.INVALID_PRODUCER_EPOCH,
    E.NONE,
    (E.NONE, "A", 4),
]


def initialisations(one: Producer, _: Cluster) -> Iterator[Any]:
    """InitProducerId around transactions of TV2."""
    yield one.init()
    yield one.produce("A", 0, 0)
    yield one.end("A", 0, COMMIT)
    one.end("A", 0, COMMIT)  # until the transaction is complete
    yield one.init("A", 0)  # the answer of EndTxn was lost
    yield one.init("A", 1)
    yield one.init("A", 0)
    yield one.end("A", 2, COMMIT)  # of an empty id
    yield one.end("A", 1, ABORT)
    yield one.end("A", 2, ABORT)
    yield one.produce("A", 3, 0)
    yield one.init(waits=False)  # another producer, which fences this one
    yield one.end("A", 3, COMMIT)
    yield one.produce("A", 3, 1)
    yield one.init()
    yield one.end("A", 3, ABORT)


INITIALISATIONS: Final = [
    (E.NONE, "A", 0),
    E.NONE,
    (E.NONE, "A", 1),
    (E.NONE, "A", 1),
    (E.NONE, "A", 2),
    (E.PRODUCER_FENCED, "", -1),
    (E.INVALID_TXN_STATE, "", -1),
    (E.PRODUCER_FENCED, "", -1),
    (E.NONE, "A", 3),
    E.NONE,
    (E.CONCURRENT_TRANSACTIONS, "", -1),
    (E.INVALID_TXN_STATE, "", -1),
    E.INVALID_PRODUCER_EPOCH,
    (E.NONE, "A", 5),
    (E.PRODUCER_FENCED, "", -1),
]


def timeout(one: Producer, cluster: Cluster) -> Iterator[Any]:
    """A transaction that exceeds its timeout."""
    yield one.init(timeout_ms=50)
    yield one.produce("A", 0, 0)

    def is_aborted() -> bool:
        cluster.abort_timed_out()
        return one.state() == "CompleteAbort"

    wait_until(is_aborted, "the transaction is aborted")
    yield one.end("A", 0, COMMIT)
    yield one.end("A", 0, ABORT)
    yield one.produce("A", 0, 1)
    yield one.init("A", 0)


TIMEOUT: Final = [
    (E.NONE, "A", 0),
    E.NONE,
    (E.INVALID_TXN_STATE, "", -1),
    (E.NONE, "A", 1),
    E.INVALID_PRODUCER_EPOCH,
    (E.NONE, "A", 1),
]


def exhaustion(one: Producer, cluster: Cluster) -> Iterator[Any]:
    """The last epoch of a producer id, in a transaction that is committed and in an empty one."""
    cluster.reach_last_epoch(one)
    yield one.produce("A", LAST, 0)
    yield one.end("A", LAST, COMMIT)
    yield one.end("A", LAST, COMMIT)
    yield one.end("A", LAST, ABORT)
    yield one.init("A", LAST)
    yield one.init("A", LAST - 1)
    yield one.produce("B", 0, 0)
    yield one.end("B", 0, COMMIT)
    yield one.end("A", LAST, COMMIT)


EXHAUSTION: Final = [
    E.NONE,
    (E.NONE, "B", 0),
    (E.NONE, "B", 0),
    (E.INVALID_TXN_STATE, "", -1),
    (E.NONE, "B", 0),
    (E.PRODUCER_FENCED, "", -1),
    E.NONE,
    (E.NONE, "B", 1),
    (E.INVALID_PRODUCER_ID_MAPPING, "", -1),
]


def exhaustion_by_fencing(one: Producer, cluster: Cluster) -> Iterator[Any]:
    """The last epoch of a producer id, in a transaction that another producer aborts."""
    cluster.reach_last_epoch(one)
    yield one.produce("A", LAST, 0)
    yield one.init(waits=False)
    wait_until(lambda: one.state() == "CompleteAbort", "the transaction is aborted")
    _, letter, epoch = one.init()
    yield letter, epoch <= 1  # Kafka takes the new id when it fences the old one
    yield one.produce("A", LAST, 1) is E.NONE
    yield one.end("A", LAST, COMMIT)
    yield one.end(letter, epoch, ABORT) == (E.NONE, "B", epoch + 1)


EXHAUSTION_BY_FENCING: Final = [
    E.NONE,
    (E.CONCURRENT_TRANSACTIONS, "", -1),
    ("B", True),
    False,
    (E.INVALID_PRODUCER_ID_MAPPING, "", -1),
    True,
]


def strangers(one: Producer, _: Cluster) -> Iterator[Any]:
    """Producers and epochs that the transactional id does not have."""
    one.ids.append(123_456)
    yield one.end("A", 0, COMMIT)  # of an id that does not exist
    yield one.produce("A", 0, 0)
    yield one.commit_offset("A", 0)
    yield one.init(timeout_ms=0)
    yield one.init(timeout_ms=10**8)
    yield one.init("A", 3)  # an id that was forgotten
    yield one.produce("A", 0, 0)
    yield one.produce("B", 1, 0)
    yield one.commit_offset("B", 1)
    yield one.end("B", 1, COMMIT)
    yield one.end("B", -1, COMMIT)
    yield one.end("A", 0, ABORT)
    yield one.init("A", 3)
    yield one.init("B", 1)
    yield one.produce("B", 0, 7)  # not the first sequence
    yield one.produce("B", 0, 0)
    yield one.produce("B", 0, 0, version=11)
    yield one.end("B", 0, COMMIT, version=4)[0]
    yield one.end("B", 0, COMMIT, version=4)[0]
    yield one.end("B", 0, COMMIT)


STRANGERS: Final = [
    (E.INVALID_PRODUCER_ID_MAPPING, "", -1),
    E.INVALID_PRODUCER_ID_MAPPING,
    E.INVALID_PRODUCER_ID_MAPPING,
    (E.INVALID_TRANSACTION_TIMEOUT, "", -1),
    (E.INVALID_TRANSACTION_TIMEOUT, "", -1),
    (E.NONE, "B", 0),
    E.INVALID_PRODUCER_ID_MAPPING,
    E.INVALID_PRODUCER_EPOCH,
    E.INVALID_PRODUCER_EPOCH,
    (E.PRODUCER_FENCED, "", -1),
    (E.PRODUCER_FENCED, "", -1),
    (E.INVALID_PRODUCER_ID_MAPPING, "", -1),
    (E.PRODUCER_FENCED, "", -1),
    (E.PRODUCER_FENCED, "", -1),
    E.OUT_OF_ORDER_SEQUENCE_NUMBER,
    E.NONE,
    E.NONE,
    E.NONE,
    E.NONE,
    (E.INVALID_TXN_STATE, "", -1),
]

STORIES: Final = {
    strangers: STRANGERS,
    endings: ENDINGS,
    initialisations: INITIALISATIONS,
    timeout: TIMEOUT,
    exhaustion: EXHAUSTION,
    exhaustion_by_fencing: EXHAUSTION_BY_FENCING,
}


def tell(cluster: Cluster) -> dict[str, list[Any]]:
    """Tell every story to a cluster; return the answers by story."""
    found = {}
    for story in STORIES:
        producer = Producer(cluster.port, story.__name__, cluster.now_ms)
        with suppress(ConnectionError):
            producer.find()
            found[story.__name__] = list(story(producer, cluster))
        producer.close()
    return found


EXPECTED: Final = {story.__name__: answers for story, answers in STORIES.items()}


def test_a_broker_answers_producers_of_tv2_with_the_codes_of_the_table() -> None:
    async def main() -> dict[str, list[Any]]:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            await world.finalize(esker_version=4, transaction_version=2)
            world.group_log._features = lambda: TRANSACTIONS
            port, loop = broker.listeners["PLAIN"].port, asyncio.get_running_loop()
            return await asyncio.to_thread(tell, EskerCluster(port, world, loop))

    assert asyncio.run(main()) == EXPECTED


@pytest.mark.java
@pytest.mark.soak
def test_apache_kafka_answers_producers_of_tv2_with_the_codes_of_the_table(
    kafka: Kafka, tmp_path: Path
) -> None:
    with apache_kafka(kafka, tmp_path / "kafka") as world:
        port = int(world.bootstrap.rpartition(":")[2])
        assert tell(Cluster(port, lambda: int(time.time() * 1_000))) == EXPECTED


@pytest.mark.java
@pytest.mark.soak
def test_a_java_producer_raises_its_epoch_with_each_transaction_at_level_2_only(
    kafka: Kafka, tmp_path: Path
) -> None:
    with clusters.EskerCluster(tmp_path / "nodes", brokers=1, quorum=(1,)) as cluster:
        cluster.start()
        port = int(cluster.bootstrap.rpartition(":")[2])
        for level, lowest, highest in ((1, 0, 0), (2, 5, LAST), (1, 0, 0)):
            cluster.finalize_transactions(level)
            producer = Producer(port, uuid4().hex, lambda: 0)
            producer.find()
            kafka.run(
                CLASSES["producer-perf-test"], "--topic", TOPIC, "--num-records", "500",
                "--record-size", "10", "--throughput", "500", "--transactional-id", producer.name,
                "--transaction-duration-ms", "20", "--bootstrap-server", cluster.bootstrap,
            )  # fmt: skip
            assert lowest <= producer.epoch() <= highest, level
            producer.close()
