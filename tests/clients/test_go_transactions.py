"""franz-go's own test of transactions, TestTxnEtl, on Esker and on Apache Kafka.

It chains transactional consumers and producers of several group balancers, and each record has to
arrive once at the end of each chain, in its partition's order.

A copier of franz-go's, which speaks TV2 where the cluster has it, copies a topic while it, brokers
and quorum nodes are killed and paused: output equals input.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from coordinator.transactions.state import State
from records.frame import decode_record
from records.transactions import TransactionStateRecord
from spark_jobs.readers.inputs import Inputs, open_logs
from tests.clients.apache_kafka import apache_kafka
from tests.clients.client import How, Message
from tests.clients.cluster import EskerCluster
from tests.clients.disturbance import disturbed
from tests.clients.test_go_clients import build_go
from tests.clients.world import World
from tests.examples import seeds
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka
from tests.nemesis.audited import check_audit

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

RECORDS: Final = "20000"
RUN_S: Final = 600
A_LIFE: Final = 300
"""Messages for each life of the copier."""
LIVES: Final = 5
COPIED_S: Final = 300
DISTURBED: Final = {"broker.session.timeout.ms": "3000"}


@pytest.fixture(params=["Esker, TV1", "Esker, TV2", "Apache Kafka"])
def bootstrap(request: pytest.FixtureRequest, kafka: Kafka, tmp_path: Path) -> Iterator[str]:
    """The addresses of a cluster, ours or Kafka's."""
    if request.param == "Apache Kafka":
        with apache_kafka(kafka, tmp_path / "kafka") as world:
            yield world.bootstrap
        return
    with EskerCluster(tmp_path / "nodes") as cluster:
        cluster.start()
        cluster.finalize_transactions(int(request.param[-1]))
        yield cluster.bootstrap
        cluster.check_alive()


def protocols(cluster: EskerCluster) -> set[int]:
    """Return the protocols in which producers have committed, 1 or 2, by the transaction log."""
    log = open_logs(Inputs(controllers=tuple(cluster.controllers))).log("__transaction_state-0")
    records = [
        decode_record(value) for span in log.spans(log.end_offset()) for _, value in span.values()
    ]
    return {
        record.client_version
        for record in records
        if isinstance(record, TransactionStateRecord) and record.state == State.PREPARE_COMMIT
    }


def test_franz_gos_chain_of_transactions_delivers_each_record_once(bootstrap: str) -> None:
    program = build_go("transactions", "test", "-c", package="github.com/twmb/franz-go/pkg/kgo")
    done = subprocess.run(
        [program, "-test.run", "^TestTxnEtl$", "-test.timeout", f"{RUN_S}s"],
        env=os.environ
        | {
            "KGO_SEEDS": bootstrap,
            "KGO_TEST_RECORDS": RECORDS,
            "KGO_TEST_RF": "1",
            "KGO_TEST_MAX_TOPIC_PARTS": "7",
        },
        capture_output=True,
        text=True,
        timeout=RUN_S + 30,
        check=False,
    )
    assert not done.returncode, (done.stdout + done.stderr)[-8_000:]
    assert "PASS" in done.stdout, done.stdout


@contextmanager
def running(*command: str | Path, log: Path) -> Iterator[None]:
    """Run a program within the block, and kill it at its end."""
    with log.open("ab") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("seed", seeds(1))
def test_a_copier_of_franz_go_copies_a_topic_once_though_it_and_nodes_are_killed_and_paused(
    tmp_path: Path, seed: int, level: int
) -> None:
    copier = build_go("copier", "build", package="./copier")
    values = [b"%d" % number for number in range(A_LIFE * LIVES)]
    with EskerCluster(tmp_path / "nodes", settings=DISTURBED) as cluster:
        cluster.start()
        cluster.finalize_transactions(level)
        world = World(cluster.brokers)
        source, target, group = world.topic(), world.topic(), world.name("group")
        world.other.send(source, [Message(value) for value in values], How(idempotent=True))
        command = (copier, world.bootstrap, source, target, group, world.name("copier"))
        with disturbed(cluster, seed):
            for life in range(1, LIVES + 1):
                with (
                    running(*command, log=tmp_path / "copier.log"),
                    world.other.follow(target, 0, 0, committed_only=True) as reader,
                ):
                    wanted = A_LIFE * life - (0 if life == LIVES else A_LIFE // 2)
                    found = [one.value for one in reader.read(wanted, timeout_s=COPIED_S)]
                    found += [one.value for one in reader.poll(1.0)]
        assert found == values
        assert protocols(cluster) == {level}
        check_audit(cluster)
        cluster.check_alive()
