"""A query that read `format("kafka")` gets the same rows from `esker_records`, row by row.

    ESKER_FIRST_SEED=101 pytest -m soak -s tests/spark_jobs/test_records_against_kafka.py

Source: docs/tables.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.cluster import EskerCluster
from tests.examples import first_seed
from tests.interop.conftest import skip_or_fail
from tests.interop.kafka_release import KafkaMissingError, KafkaSetupError, fetch
from tests.spark_jobs.topics_world import TopicsWorld, offsets

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

POM = Path(__file__).with_name("spark_kafka.xml")
COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def jars() -> Path:
    """The jars of Spark's Kafka source."""
    try:
        return fetch("spark-kafka", POM)
    except (KafkaMissingError, KafkaSetupError) as error:
        skip_or_fail(f"NOT COMPARED WITH SPARK'S KAFKA SOURCE: {error}", error)


def test_both_sources_have_the_same_rows(jars: Path, tmp_path: Path) -> None:
    with EskerCluster(tmp_path / "cluster", quorum=(1,), brokers=1) as cluster:
        cluster.start()
        cluster.finalize_transactions(2)
        world = TopicsWorld(cluster)
        world.create("random", 3)
        seed = first_seed()
        print(f"\nESKER_FIRST_SEED={seed}")
        world.fill("random", seed=seed + 1, partitions=3)
        world.delete_records("random", 0, 40)
        world.create("stamped", message_timestamp_type="LogAppendTime")
        world.fill("stamped", seed=seed + 2)
        world.create("paid", 1)
        producer = world.producer(**{"transactional.id": "t"})
        producer.init_transactions()
        for number in range(9):
            producer.begin_transaction()
            for index in range(20):
                producer.produce("paid", value=b"%d" % index)
            producer.flush()
            if number % 3:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        starting = offsets("random", 40, 100, -2)
        ending = offsets("random", -1, 300, 200)
        reads = [
            {"subscribe": "random"},
            {"subscribe": "random", "minPartitions": "7"},
            {"subscribe": "random", "startingOffsets": starting, "endingOffsets": ending},
            {"subscribe": "random", "startingTimestamp": "1700000500000"},
            {"assign": '{"random":[0,2]}'},
            {"subscribePattern": "stamp.*|paid"},
            {"subscribe": "paid", **COMMITTED},
            {"subscribe": "paid,random", **COMMITTED},
        ]
        command = ["tests.spark_jobs.kafka_source_main", str(jars), cluster.bootstrap]
        ran = subprocess.run(
            [sys.executable, "-m", *command, str(cluster.store), json.dumps(reads)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            cwd=Path(__file__).parents[2],
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    counts = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert len(counts) == len(reads)
    for options, (ours, theirs, only_ours, only_theirs) in zip(reads, counts, strict=True):
        assert (only_ours, only_theirs) == (0, 0), options
        assert ours == theirs > 0, options
