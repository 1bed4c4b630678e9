"""franz-go's own test of transactions, TestTxnEtl, on Esker and on Apache Kafka.

It chains transactional consumers and producers of several group balancers, and each record has to
arrive once at the end of each chain, in its partition's order.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import EskerCluster
from tests.clients.test_go_clients import build_go
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

RECORDS: Final = "20000"
RUN_S: Final = 600


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
