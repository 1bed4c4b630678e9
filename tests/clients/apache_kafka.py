"""A real Kafka for the table: one node, its settings as near to ours as it has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.clients.client import Refused
from tests.clients.world import World
from tests.interop.kafka_run import Kafka, Node, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.waiting import wait_until

SETTINGS: Final[dict[str, str]] = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": "2097152",
}


@contextmanager
def apache_kafka_node(
    kafka: Kafka, home: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Node]:
    """Run one node of Apache Kafka that creates topics.

    Args:  settings: besides those of all nodes of the table.
    """
    plan = configure_node(kafka, home, node_id=1, settings={**SETTINGS, **(settings or {})})
    plan.format(CLUSTER_ID, "--standalone")
    with plan.started(["PLAINTEXT"]) as node:
        world = _world(node)

        def ready() -> bool:
            try:
                world.topic()
            except Refused:
                return False
            return True

        wait_until(ready, "Kafka creates topics")
        yield node


@contextmanager
def apache_kafka(kafka: Kafka, home: Path) -> Iterator[World]:
    """Run one node of Apache Kafka, and yield it as scenarios use a cluster."""
    with apache_kafka_node(kafka, home) as node:
        yield _world(node)


def _world(node: Node) -> World:
    return World([("127.0.0.1", node.ports["PLAINTEXT"])])
