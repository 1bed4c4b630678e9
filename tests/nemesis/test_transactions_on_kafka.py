"""Transactional traffic on Apache Kafka has no anomaly, so the checker demands what Kafka does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.client import How, Message
from tests.clients.world import World
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka
from tests.nemesis.transaction_history import Kind, Outcome, check, find_anomalies
from tests.nemesis.transaction_traffic import TransactionTraffic

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(660)]

INPUTS = 200
PARTITIONS = 3


@pytest.fixture(scope="module")
def world(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with apache_kafka(kafka, tmp_path_factory.mktemp("kafka") / "node") as running:
        yield running


def test_transactional_traffic_on_kafka_has_no_anomaly(world: World) -> None:
    topic, inputs = world.topic(partitions=PARTITIONS), world.topic()
    world.other.send(
        inputs, [Message(b"%d" % number) for number in range(INPUTS)], How(idempotent=True)
    )
    traffic = TransactionTraffic(
        world.bootstrap, topic, partitions=PARTITIONS, input_topic=inputs, inputs=INPUTS,
        transactions=100, seed=1,
    )  # fmt: skip
    history = traffic.run(300)
    check(history)
    counts = history.counts()
    assert counts[Outcome.COMMITTED] > 100, counts
    assert counts[Outcome.ABORTED] > 20, counts
    assert any(history.reads.values())
    history.logs = traffic.read_logs("read_uncommitted")
    assert Kind.ABORTED in {one.kind for one in find_anomalies(history)}
