"""librdkafka's own tests of transactions, 0098 and 0103, on Esker.

They are not in any package, so they have to be compiled from librdkafka's sources:

    ./configure && make libs && make -C tests build     (0098 needs RapidJSON)
    LIBRDKAFKA=/path/to/librdkafka pytest tests/clients/test_librdkafka_transactions.py

0098 reads what a Java producer has written in 16 kinds of transactions.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.cluster import EskerCluster
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

SOURCES: Final = os.environ.get("LIBRDKAFKA", "")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SOURCES, reason="LIBRDKAFKA names no compiled sources of librdkafka"),
]

SETTINGS: Final = {
    "num.partitions": "4",  # which the tests expect of a topic that they do not create
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
RUN_JAVA: Final = '#!/bin/sh\nexec java -cp "$CLASSPATH:$(dirname "$0")/../libs/*" "$@"\n'
RUN_S: Final = 600


@pytest.fixture(params=[1, 2], ids=["TV1", "TV2"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EskerCluster]:
    """Three quorum nodes and two brokers with this level of transaction.version."""
    with EskerCluster(tmp_path / "nodes", settings=SETTINGS) as running:
        running.start()
        running.finalize_transactions(request.param)
        yield running


@pytest.fixture
def kafka_home(kafka: Kafka, tmp_path: Path) -> Path:
    """A directory like that of a release of Kafka, with the jars and the script to run a class."""
    home = tmp_path / "kafka"
    (home / "bin").mkdir(parents=True)
    (home / "libs").symlink_to(kafka.jars)
    script = home / "bin" / "kafka-run-class.sh"
    script.write_text(RUN_JAVA)
    script.chmod(0o755)
    return home


@pytest.mark.java
@pytest.mark.parametrize("name", ["0098", "0103"])
def test_librdkafkas_own_tests_of_transactions_pass(
    name: str, cluster: EskerCluster, kafka_home: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "test.conf"
    settings.write_text(f"metadata.broker.list={cluster.bootstrap}\ntest.topic.random=true\n")
    home = Path(SOURCES)
    done = subprocess.run(
        [home / "tests" / "test-runner", "-p1"],
        cwd=home / "tests",
        env=os.environ
        | {
            "TESTS": name,
            "RDKAFKA_TEST_CONF": str(settings),
            "KAFKA_PATH": str(kafka_home),
            "TEST_KAFKA_VERSION": "4.0.0",
            "LD_LIBRARY_PATH": f"{home / 'src'}:{home / 'src-cpp'}",
        },
        capture_output=True,
        text=True,
        errors="replace",
        timeout=RUN_S,
        check=False,
    )
    said = done.stdout + done.stderr
    if "RapidJSON" in said:
        pytest.skip("librdkafka's tests were compiled without RapidJSON")
    assert not done.returncode, said[-8_000:]
    assert "ALL TESTS PASSED" in said, said[-8_000:]
    cluster.check_alive()
