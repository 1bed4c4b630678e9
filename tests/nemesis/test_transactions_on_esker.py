"""Transactional traffic on processes that are killed and paused, merged all the while: no anomaly.

Readers see none, and an audit of logs, checkpoints and objects finds none.

Which process is hit, when and how, follows from the seed; what the traffic does meanwhile does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.clients.client import How, Message
from tests.clients.cluster import EskerCluster
from tests.clients.disturbance import disturbed
from tests.clients.world import World
from tests.examples import seeds
from tests.nemesis.audited import check_audit
from tests.nemesis.transaction_history import Outcome, check
from tests.nemesis.transaction_traffic import TransactionTraffic

pytestmark = [pytest.mark.soak, pytest.mark.timeout(660)]

INPUTS: Final = 150
PARTITIONS: Final = 3
SETTINGS: Final = {
    "broker.session.timeout.ms": "3000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "20000",  # checkpoints are loaded, too
    "esker.compaction.interval.ms": "300",
    "esker.compaction.min.age.ms": "1",
    "esker.compaction.max.wait.ms": "1",
    "esker.compaction.min.saved.runs": "4",
}


@pytest.mark.parametrize("seed", seeds(3))
def test_transactional_traffic_has_no_anomaly_while_nodes_are_killed_and_runs_merged(
    seed: int, tmp_path: Path
) -> None:
    with EskerCluster(tmp_path / "nodes", settings=SETTINGS) as cluster:
        cluster.start()
        cluster.finalize_transactions(1)
        world = World(cluster.brokers)
        topic, inputs = world.topic(partitions=PARTITIONS), world.topic()
        world.other.send(
            inputs, [Message(b"%d" % number) for number in range(INPUTS)], How(idempotent=True)
        )
        traffic = TransactionTraffic(
            world.bootstrap, topic, partitions=PARTITIONS, input_topic=inputs, inputs=INPUTS,
            transactions=500, seed=seed,
        )  # fmt: skip
        with disturbed(cluster, seed):
            history = traffic.run(300)
        check(history)
        counts = history.counts()
        assert counts[Outcome.COMMITTED] > 300, counts
        check_audit(cluster)
        cluster.check_alive()
