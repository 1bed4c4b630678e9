"""Tables of a REST catalogue, with files in a bucket.

The catalogue is Apache Iceberg's own, the bucket moto's.

Source: docs/tables.md#keeping-topics-as-tables.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyiceberg.catalog import Catalog

from diskless.stores.s3 import S3Config
from spark_jobs.topic_tables.catalogs import open_catalog
from spark_jobs.topic_tables.iceberg_table import TakenOverError
from tests.clients.cluster import EskerCluster
from tests.diskless.stores.conftest import s3_config, s3_endpoint
from tests.interop.kafka_release import KafkaMissingError, setup_failure_is_a_failure
from tests.spark_jobs.iceberg_rest import iceberg_rest
from tests.spark_jobs.standalone import standalone_cluster
from tests.spark_jobs.test_tables_command import rows_of
from tests.spark_jobs.test_topic_tables import EXPECTED, to_end
from tests.spark_jobs.topic_tables_world import TablesWorld, tables_world
from tests.spark_jobs.topics_world import SETTINGS, TopicsWorld

__all__ = ["s3_config", "s3_endpoint", "tables_world"]

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1_800)]


class Lake(NamedTuple):
    """A REST catalogue, and the bucket of its tables."""

    url: str
    warehouse: str
    properties: dict[str, str]

    def open(self) -> Catalog:
        return open_catalog(self.warehouse, self.url, self.properties)


@pytest.fixture
def lake(s3_config: S3Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    warehouse = f"s3://{s3_config.bucket}/lake"
    endpoint = str(s3_config.endpoint_url)
    properties = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
    server = {
        "warehouse": warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": endpoint,
        "s3.path-style-access": "true",
    }
    try:
        with iceberg_rest(tmp_path, server) as url:
            yield Lake(url, warehouse, properties)
    except KafkaMissingError as error:
        if setup_failure_is_a_failure(error):
            raise
        pytest.skip(str(error))


def test_two_drivers_and_a_tool_on_a_rest_catalogue_double_no_row(
    lake: Lake, tables_world: TablesWorld
) -> None:
    tables_world.catalog = lake.open()
    tables_world.topic.write(0, b"a", None, b"c")
    tables_world.topic.write(1, b"x")
    zombie = tables_world.started(max_records=2, partition_by="none")
    zombie.step()
    job = tables_world.started()
    with pytest.raises(TakenOverError):
        zombie.step()
    tables_world.catalog.load_table(("kafka", "orders")).delete("offset = 0 and partition = 1")
    to_end(job)
    assert tables_world.rows() == EXPECTED[:-1]


def test_the_command_on_a_spark_cluster_writes_the_topics_rows_into_a_rest_catalogue(
    lake: Lake, tmp_path: Path
) -> None:
    options = [
        word for pair in lake.properties.items() for word in ("--catalog-property", "=".join(pair))
    ]
    with (
        EskerCluster(tmp_path / "cluster", quorum=(1,), brokers=1, settings=SETTINGS) as cluster,
        standalone_cluster(tmp_path) as spark,
    ):
        cluster.start()
        world = TopicsWorld(cluster)
        world.create("random")
        for seed in (1, 2):  # the second run goes on from where the first one has ended
            world.fill("random", seed=seed, count=40)
            command = [
                sys.executable, "-m", "esker", "spark", "tables", "run", "random", "--once",
                "--bootstrap-server", cluster.bootstrap, "--store", str(cluster.store),
                "--warehouse", lake.warehouse, "--catalog", lake.url, *options,
                "--max-records", "150", "--master", spark.url, "--memory", "512m",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
        expected = sorted((row[1], row[2], row[5], row[6]) for row in world.consume("random"))
        assert rows_of(lake.open()) == expected
