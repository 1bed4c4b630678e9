"""One cluster for all tests of a worker here: starting it costs more than most of them.

It goes with the last of them: five idle processes take a sixth of a core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.clients.cluster import FIRST_BROKER, EskerCluster
from tests.clients.hosted import HostedCluster
from tests.clients.world import World

PATIENT: Final = {
    "controller.quorum.fetch.timeout.ms": "30000",
    "broker.session.timeout.ms": "60000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Nobody dies, and on a busy machine nobody is to be taken for dead. Timed-out transactions end
soon."""


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    """Three quorum nodes and two brokers, ready. Do not kill any of them.

    The first broker has local segments, the second one has none. With ESKER_HOSTED=1 the brokers
    are two processes of one properties file, both with local segments.
    """
    home = tmp_path_factory.mktemp("cluster")
    segments = {"esker.cache.dir": str(home / "cache")}
    made: EskerCluster
    if os.environ.get("ESKER_HOSTED") == "1":
        (home / "cache").mkdir()
        made = HostedCluster(home, settings=PATIENT | segments)
    else:
        made = EskerCluster(home, settings=PATIENT, settings_of={FIRST_BROKER: segments})
    with made as running:
        running.start()
        yield running


@pytest.fixture(scope="package")
def world(cluster: EskerCluster) -> World:
    """The same, as scenarios have it."""
    return World(cluster.brokers)
