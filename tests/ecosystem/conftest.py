"""The jars of Connect, MirrorMaker and Streams, and one cluster for all tests of a worker here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.cluster import EskerCluster
from tests.clients.conftest import PATIENT
from tests.clients.world import World
from tests.interop.conftest import TIMEOUT_S, kafka, kafka_release, skip_or_fail, written_by_kafka
from tests.interop.kafka_release import KafkaMissingError, KafkaSetupError, fetch
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

POM = Path(__file__).with_name("pom.xml")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def programs(kafka: Kafka) -> Kafka:
    """The pinned release with Connect's file connectors, MirrorMaker and Streams."""
    try:
        jars = fetch("kafka-ecosystem", POM, "-DexcludeTransitive=true")
    except (KafkaMissingError, KafkaSetupError) as error:
        skip_or_fail(f"ECOSYSTEM NOT TESTED: {error}", error)
    return replace(kafka, more_jars=(jars,))


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    """Three quorum nodes and two brokers, ready."""
    with EskerCluster(tmp_path_factory.mktemp("cluster"), settings=PATIENT) as running:
        running.start()
        yield running


@pytest.fixture(scope="package")
def world(cluster: EskerCluster) -> World:
    """The same cluster, as the tests ask it."""
    return World(cluster.brokers)
