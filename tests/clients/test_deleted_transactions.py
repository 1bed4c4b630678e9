"""Records of transactions and their markers are deleted, and readers go on behind them.

DeleteRecords cuts between a transaction's records and its marker, inside a committed transaction,
and past the records of one that is still open. The same story is told to Apache Kafka as soak.
Retention deletes whole transactions, and the records of an open one.

Source: docs/design/transactions-batches.md#what-a-partition-answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.clients.apache_kafka import apache_kafka
from tests.clients.client import EARLIEST, Message
from tests.clients.cluster import EskerCluster
from tests.clients.world import World
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka
from tests.waiting import DEADLINE_S, wait_until

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

PATIENT_MS: Final = 600_000  # of a transaction that is open for long on a busy machine

RETENTION: Final = {"log.retention.check.interval.ms": "200"}

Found = list[tuple[int, bytes | None]]
"""Offset and value of each record that a reader got."""


def read(world: World, topic: str, count: int, *, committed_only: bool) -> Found:
    """Read `count` records from the earliest offset on."""
    with world.other.follow(topic, 0, EARLIEST, committed_only=committed_only) as reader:
        return [(one.offset, one.value) for one in reader.read(count)]


def transact(world: World, topic: str, *values: bytes, committed: bool = True) -> None:
    """Write one transaction, by a producer of its own."""
    with world.other.open_transactional(world.name("id")) as producer:
        producer.begin()
        producer.send(topic, values)
        (producer.commit if committed else producer.abort)()


def cut(world: World) -> list[Found]:
    """Write transactions, delete more and more; return what readers get each time.

    While a transaction is open that lost all its records: the last stable offset.
    """
    topic, found = world.topic(), []
    transact(world, topic, b"aborted", committed=False)  # offset 0, its marker 1
    transact(world, topic, b"a", b"b")  # 2 and 3, its marker 4
    with world.other.open_transactional(world.name("id"), timeout_ms=PATIENT_MS) as producer:
        producer.begin()
        producer.send(topic, (b"open",))  # 5
        world.other.send(topic, [Message(b"plain")])  # 6
        for before, count in ((1, 2), (2, 2), (3, 1)):
            world.other.delete_records(topic, 0, before)
            found.append(read(world, topic, count, committed_only=True))
        # The open transaction has no record left here, and still holds back what is behind it.
        world.other.delete_records(topic, 0, 6)
        found.append([(last_stable(world, topic), None)])
        producer.commit()  # its marker: 7
    transact(world, topic, b"again", committed=False)  # 8, its marker 9
    transact(world, topic, b"last")  # 10
    found.append(read(world, topic, 2, committed_only=True))
    found.append(read(world, topic, 3, committed_only=False))
    return found


def last_stable(world: World, topic: str) -> int:
    """Return the offset at which readers of committed records stop."""
    place = TopicPartition(topic, 0)
    asked = world.other.admin.list_offsets(
        {place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
    )
    return int(asked[place].result(DEADLINE_S).offset)


EXPECTED: Final = [
    [(2, b"a"), (3, b"b")],
    [(2, b"a"), (3, b"b")],
    [(3, b"b")],
    [(6, None)],
    [(6, b"plain"), (10, b"last")],
    [(6, b"plain"), (8, b"again"), (10, b"last")],
]


def test_readers_go_on_behind_deleted_records_of_transactions(world: World) -> None:
    assert cut(world) == EXPECTED


@pytest.mark.java
@pytest.mark.soak
def test_kafka_reads_the_same_behind_deleted_records_of_transactions(
    kafka: Kafka, tmp_path: Path
) -> None:
    with apache_kafka(kafka, tmp_path / "node") as world:
        assert cut(world) == EXPECTED


def test_retention_deletes_transactions_with_their_markers_and_records_of_an_open_one(
    tmp_path: Path,
) -> None:
    with EskerCluster(tmp_path, quorum=(1,), brokers=1, settings=RETENTION) as cluster:
        cluster.start()
        world = World(cluster.brokers)
        topic = world.topic(configs={"retention.ms": "-1"})

        def log_start() -> int:
            place = TopicPartition(topic, 0)
            asked = world.other.admin.list_offsets({place: OffsetSpec.earliest()})
            return int(asked[place].result(DEADLINE_S).offset)

        transact(world, topic, b"aborted", committed=False)  # offset 0, its marker 1
        transact(world, topic, b"committed")  # 2, its marker 3
        with world.other.open_transactional(world.name("id"), timeout_ms=PATIENT_MS) as producer:
            producer.begin()
            producer.send(topic, (b"open",))  # 4
            world.other.alter_topic(topic, "retention.ms", "1")
            wait_until(lambda: log_start() == 5, "retention deletes everything", state=log_start)
            world.other.alter_topic(topic, "retention.ms", "-1")
            producer.commit()  # its marker: 5
        transact(world, topic, b"again", committed=False)  # 6, its marker 7
        transact(world, topic, b"last")  # 8
        assert read(world, topic, 1, committed_only=True) == [(8, b"last")]
        assert read(world, topic, 2, committed_only=False) == [(6, b"again"), (8, b"last")]
        cluster.check_alive()
