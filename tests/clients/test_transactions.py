"""Transactional traffic, and Kafka's copier, on a cluster of ours: the judges that Kafka passes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.clients.client import How, Message
from tests.clients.table import TRANSACTIONS
from tests.clients.world import World
from tests.ecosystem.test_transactional_copier import check_copier
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka
from tests.nemesis.transaction_history import check
from tests.nemesis.transaction_traffic import TransactionTraffic

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(660),
    pytest.mark.skipif(not TRANSACTIONS, reason="NOT TESTED: brokers refuse transactions"),
]

PARTITIONS: Final = 3
INPUTS: Final = 60


def test_transactional_traffic_on_esker_has_no_anomaly(world: World) -> None:
    topic, inputs = world.topic(partitions=PARTITIONS), world.topic()
    world.other.send(
        inputs, [Message(b"%d" % number) for number in range(INPUTS)], How(idempotent=True)
    )
    traffic = TransactionTraffic(
        world.bootstrap, topic, partitions=PARTITIONS, input_topic=inputs, inputs=INPUTS,
        transactions=30, seed=1,
    )  # fmt: skip
    check(traffic.run(300))


@pytest.mark.java
def test_kafkas_copier_copies_a_topic_on_esker_exactly_once(
    kafka: Kafka, world: World, tmp_path: Path
) -> None:
    check_copier(kafka, world, tmp_path / "copier")
