"""Every client does everything with a cluster of ours.

A cell is one scenario with one client (`table`). What Apache Kafka does with the same cells stands
in `test_table_on_kafka`.
"""

from __future__ import annotations

import pytest

from tests.clients.client import Client
from tests.clients.cluster import EskerCluster
from tests.clients.kcat import Kcat, is_installed
from tests.clients.table import CELLS, Row, cell_id
from tests.clients.world import World


@pytest.mark.parametrize("cell", CELLS, ids=cell_id)
def test_each_client_library_passes_each_scenario_on_esker(
    cell: tuple[Row, type[Client]], world: World, cluster: EskerCluster
) -> None:
    row, client = cell
    if client is Kcat and not is_installed():
        pytest.skip("NOT TESTED: kcat is not installed (Debian: apt-get install kcat)")
    if row.transaction_version is not None:
        cluster.finalize_transactions(row.transaction_version)
    try:
        with client(world.bootstrap) as made:
            row.scenario(made, world)
    except BaseException as error:
        for broker in cluster.broker_ids:
            error.add_note(f"--- broker {broker}\n{cluster.output(broker)[-2000:]}")
        raise
    cluster.check_alive()
