"""Kafka's TransactionalMessageCopier copies a topic exactly once, though it and nodes are killed.

It is the judge of Kafka's own system tests: it reads a partition as a member of a group, writes the
records in transactions of a few, aborts some at random, and commits its offsets with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.client import How, Message
from tests.clients.cluster import EskerCluster
from tests.clients.disturbance import disturbed
from tests.clients.world import World
from tests.ecosystem.java_program import JavaProgram
from tests.examples import seeds
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka
from tests.nemesis.audited import check_audit

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.java, pytest.mark.timeout(660)]

COPIER: Final = "org.apache.kafka.tools.TransactionalMessageCopier"
A_LIFE: Final = 300
"""Messages for each life of the copier."""
SETTINGS: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


@pytest.fixture(params=[1, 2], ids=["TV1", "TV2"])
def disturbed_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EskerCluster]:
    """Three quorum nodes and two brokers with this level of transaction.version, for one test."""
    settings = SETTINGS | {"broker.session.timeout.ms": "3000"}
    with EskerCluster(tmp_path / "nodes", settings=settings) as running:
        running.start()
        running.finalize_transactions(request.param)
        yield running


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("Apache Kafka", "Esker, TV1")),
        "Esker, TV2",
    ],
)
def world(
    request: pytest.FixtureRequest, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    home = tmp_path_factory.mktemp("cluster") / "node"
    if request.param == "Apache Kafka":
        with apache_kafka(kafka, home) as running:
            yield running
        return
    with EskerCluster(home, settings=SETTINGS) as cluster:
        cluster.start()
        cluster.finalize_transactions(int(request.param[-1]))
        yield World(cluster.brokers)
        cluster.check_alive()


def copied_values(world: World, topic: str, count: int) -> list[bytes | None]:
    """Return what a reader of committed records has got of a topic when nothing more comes.

    Args:  count: of the messages that are waited for.
    """
    with world.other.follow(topic, 0, 0, committed_only=True) as reader:
        found = [one.value for one in reader.read(count, timeout_s=120)]
        return found + [one.value for one in reader.poll(1.0)]


def check_copier(kafka: Kafka, world: World, home: Path, kills: int) -> None:
    """Copy a topic; kill the copier now and then; compare output and input."""
    source, target, group = world.topic(), world.topic(), world.name("group")
    values = [b"%d" % number for number in range(A_LIFE * (kills + 1))]
    world.other.send(source, [Message(value) for value in values], How(idempotent=True))
    arguments = (
        "--broker-list", world.bootstrap, "--input-topic", source, "--input-partition", "0",
        "--output-topic", target, "--transactional-id", world.name("copier"),
        "--consumer-group", group, "--max-messages", "-1", "--transaction-size", "20",
        "--transaction-timeout", "60000", "--enable-random-aborts", "--group-mode",
        "--use-group-metadata",
    )  # fmt: skip
    for kill in range(kills):
        with JavaProgram(kafka, home, f"copier-{kill}", COPIER, *arguments):
            wanted = A_LIFE * (kill + 1) - A_LIFE // 2

            with world.other.follow(target, 0, 0, committed_only=True) as reader:
                reader.read(wanted, timeout_s=120)
    with JavaProgram(kafka, home, "copier-last", COPIER, *arguments):
        found = copied_values(world, target, len(values))
    assert found == values


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_kafkas_copier_copies_a_topic_exactly_once_though_it_is_killed(
    kafka: Kafka, world: World, tmp_path: Path, kills: int
) -> None:
    check_copier(kafka, world, tmp_path / "copier", kills)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(2))
def test_kafkas_copier_copies_a_topic_exactly_once_though_nodes_are_killed_and_paused_with_it(
    kafka: Kafka, disturbed_cluster: EskerCluster, tmp_path: Path, seed: int
) -> None:
    world = World(disturbed_cluster.brokers)
    with disturbed(disturbed_cluster, seed):
        check_copier(kafka, world, tmp_path / "copier", kills=5)
    check_audit(disturbed_cluster)
    disturbed_cluster.check_alive()
