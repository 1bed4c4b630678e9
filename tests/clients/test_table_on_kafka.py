"""The same table on Apache Kafka: what the table demands is what Kafka does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.client import Client
from tests.clients.kcat import Kcat, is_installed
from tests.clients.table import CELLS, Row, cell_id
from tests.clients.world import World
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(660)]


@pytest.fixture(scope="module")
def world(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with apache_kafka(kafka, tmp_path_factory.mktemp("kafka") / "node") as running:
        yield running


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell[0].of_kafka], ids=cell_id)
def test_each_client_library_passes_each_scenario_on_kafka(
    cell: tuple[Row, type[Client]], world: World
) -> None:
    row, client = cell
    if client is Kcat and not is_installed():
        pytest.skip("NOT TESTED: kcat is not installed (Debian: apt-get install kcat)")
    with client(world.bootstrap) as made:
        row.scenario(made, world)
