"""A broker that stores its records in a bucket: real processes and an S3 server."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from diskless.stores.s3 import S3Config, S3Storage
from tests.clients.cluster import EskerCluster
from tests.waiting import DEADLINE_S

RECORDS = 200


@pytest.mark.parametrize(
    "bucket", ["s3_config", pytest.param("ceph_config", marks=pytest.mark.soak)]
)
def test_a_broker_without_its_local_directory_serves_all_records_from_the_bucket(
    bucket: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    config: S3Config = request.getfixturevalue(bucket)
    assert config.endpoint_url is not None
    settings = {
        "diskless.storage.class.name": "diskless.stores.s3.S3Storage",
        "esker.storage.s3.bucket": config.bucket,
        "esker.storage.s3.endpoint": config.endpoint_url,
        "esker.storage.s3.region": "us-east-1",
        "esker.storage.s3.path.style": "true",
        "esker.object.key.prefix": "here",
    }
    with EskerCluster(tmp_path, brokers=1, settings=settings) as cluster:
        cluster.start()
        produce(cluster.bootstrap)
        (broker,) = cluster.broker_ids
        cluster.stop(broker)
        cluster.wipe(broker)
        cluster.launch(broker)
        cluster.wait_until_ready()
        assert consume(cluster.bootstrap) == [b"%d" % number for number in range(RECORDS)]
    assert not (tmp_path / "store").exists(), "something was written to a directory"
    keys = asyncio.run(keys_of(config))
    assert keys
    assert all(key.startswith("here/") for key in keys)


def produce(bootstrap: str) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(
            "t", b"%d" % number, partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(DEADLINE_S) == 0
    assert not failed


def consume(bootstrap: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes | None] = []
    while len(found) < RECORDS:
        messages = consumer.consume(RECORDS - len(found), timeout=DEADLINE_S)
        assert messages, f"{len(found)} records came, and then none"
        assert not any(message.error() for message in messages)
        found += [message.value() for message in messages]
    consumer.close()
    return found


async def keys_of(config: S3Config) -> list[str]:
    store = S3Storage(dataclasses.replace(config, prefix=""))
    found = [entry.key async for entry in store.list_objects("")]
    await store.close()
    return found
