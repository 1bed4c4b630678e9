"""One cluster for all tests of a worker: starting it costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.cluster import EskerCluster
from tests.clients.world import World


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    """Three quorum nodes and two brokers, ready. Do not kill any of them."""
    with EskerCluster(tmp_path_factory.mktemp("cluster")) as running:
        running.start()
        yield running


@pytest.fixture(scope="session")
def world(cluster: EskerCluster) -> World:
    """The same, as scenarios have it."""
    return World(cluster.brokers)
