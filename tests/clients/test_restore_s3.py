"""A cluster whose records lie in a bucket is restored; moto's server speaks S3.

Source: docs/design/restore.md#the-old-cluster-stops, docs/design/backup.md.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.clients.restoring import (
    Ledger,
    Load,
    Shown,
    apply_words,
    delete,
    esker,
    read_all,
    restore,
    set_aside,
    wait_for_records,
)
from tests.diskless.stores.conftest import moto_server, new_bucket
from tests.processes import run
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]

TOPIC, PARTITIONS = "ledger", 3
NOT_BATCHES = ("backup", "lineage", "probe")


@dataclass(frozen=True, slots=True)
class OfBucket:
    """A new bucket, and the settings of nodes whose objects lie there."""

    settings: dict[str, str]
    s3: Any

    def keys(self) -> set[str]:
        """The keys of all objects of batches."""
        return {key for key in self._all_keys() if key.split("/")[0] not in NOT_BATCHES}

    def claims(self) -> int:
        """The number of timelines that were claimed."""
        return sum(key.startswith("lineage/") for key in self._all_keys())

    def _all_keys(self) -> set[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.settings["esker.storage.s3.bucket"]
        )
        return {one["Key"] for page in pages for one in page.get("Contents", ())}


def of_bucket(endpoint: str) -> OfBucket:
    """Create a bucket at an S3 server."""
    config = new_bucket(endpoint)
    settings = {
        "esker.lineage.timeout.ms": "2000",
        "diskless.storage.class.name": "diskless.stores.s3.S3Storage",
        "esker.storage.s3.bucket": config.bucket,
        "esker.storage.s3.endpoint": endpoint,
        "esker.storage.s3.region": "us-east-1",
        "esker.storage.s3.path.style": "true",
    }
    s3 = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
    return OfBucket(settings, s3)


@pytest.fixture
def bucket() -> Iterator[OfBucket]:
    with moto_server() as endpoint:
        yield of_bucket(endpoint)


@pytest.fixture
def overwriting_bucket() -> Iterator[OfBucket]:
    """A bucket of a server that does not heed If-None-Match."""
    with moto_server(overwrites=True) as endpoint:
        yield of_bucket(endpoint)


def check_goes_on(cluster: EskerCluster, ends: dict[int, int]) -> None:
    """Check that new records are stored at the ends of their partitions and read back."""
    after = Ledger()
    with Load(cluster.bootstrap, TOPIC, PARTITIONS, after):
        wait_for_records(after, 100)
    found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
    for (partition, offset), value in after.acknowledged.items():
        assert offset >= ends[partition]
        assert found[partition, offset] == Shown(value, 1)


def test_everything_but_the_bucket_is_lost_and_restored_from_the_bucket(
    tmp_path: Path, bucket: OfBucket
) -> None:
    settings = bucket.settings | {
        "esker.backup.enable": "true",
        "esker.backup.interval.ms": "1000",
        "esker.object.key.prefix": "data",
    }
    ledger = Ledger()
    with EskerCluster(tmp_path, brokers=1, settings=settings) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
            wait_for_records(ledger, 500)
        config = f"--config={cluster.properties(cluster.broker_ids[0])}"
        esker("backup", "now", config)
        assert esker("backup", "verify", config, "--all")["faults"] == []
        cluster.kill()
        delete(cluster, *cluster.ports)
        done = restore(cluster, [], from_backup=True)
        assert not done["missingObjects"]
        cluster.start()
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
        assert ledger.split(found, ends) == (len(ledger.acknowledged), [])
        check_goes_on(cluster, ends)


def test_an_old_cluster_under_load_stops_during_a_restore_and_nothing_in_the_bucket_goes(
    tmp_path: Path, bucket: OfBucket
) -> None:
    """The old broker sleeps until the claim is there, and has deletions to do when it wakes up."""
    settings = bucket.settings | {
        "diskless.file.delete.delay.ms": "4000",
        "esker.file.delete.interval.ms": "300",
    }
    before, during = Ledger(), Ledger()
    with EskerCluster(tmp_path / "old", settings=settings) as old:
        old.start()
        survivor, alive = old.broker_ids
        client = Confluent(old.bootstrap)
        client.create_topic(TOPIC, PARTITIONS, {})
        client.create_topic("later", PARTITIONS, {})
        with Load(old.bootstrap, TOPIC, PARTITIONS, before):
            wait_for_records(before, 300)
        old.stop(survivor)
        sources = set_aside(old, survivor)
        kept = bucket.keys()

        new = EskerCluster(tmp_path / "new", brokers=1, settings=settings)
        delete(new, *new.ports)
        with (
            new,
            Load(old.bootstrap, "later", PARTITIONS, during),
            ThreadPoolExecutor(1) as thread,
        ):
            wait_for_records(during, 100)
            client.delete_topic(TOPIC)
            old.signal(alive, signal.SIGSTOP)
            restoring = thread.submit(restore, new, sources)
            wait_until(lambda: bucket.claims() >= 2 or restoring.done(), "the data is claimed")
            old.signal(alive, signal.SIGCONT)
            restoring.result()
            acknowledged = len(during.acknowledged)
            assert old.processes.pop(alive).wait(DEADLINE_S) == 1
            last_line = old.output(alive).splitlines()[-1]
            assert last_line.startswith(f"esker: cluster {old.cluster_id} was restored as cluster")
            new.start()
            found = read_all(new.bootstrap, TOPIC, PARTITIONS)
            ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
            assert before.split(found, ends) == (len(before.acknowledged), [])
            check_goes_on(new, ends)
            assert kept <= bucket.keys()
            assert len(during.acknowledged) == acknowledged


def test_a_store_without_conditional_writes_needs_the_word_that_the_old_cluster_is_stopped(
    tmp_path: Path, overwriting_bucket: OfBucket
) -> None:
    ledger = Ledger()
    with EskerCluster(tmp_path, brokers=1, settings=overwriting_bucket.settings) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
            wait_for_records(ledger, 300)
        (broker,) = cluster.broker_ids
        cluster.stop(broker, *cluster.quorum_ids)
        sources = set_aside(cluster, broker)
        delete(cluster, *cluster.quorum_ids)
        planned = esker("restore", "plan", f"--from={sources[0]}")
        words = apply_words(cluster, planned["clusterId"], sources)
        refused = run("esker", *words)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "give --i-stopped-the-old-cluster" in refused.stderr
        assert not any(cluster.log_dir(node).exists() for node in cluster.ports)

        restore(cluster, sources, "--i-stopped-the-old-cluster")
        cluster.start()
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
        assert ledger.split(found, ends) == (len(ledger.acknowledged), [])
        check_goes_on(cluster, ends)
