"""Three zones: record bytes cross none of them, but between brokers and the store."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.cluster import EskerCluster
from tests.clients.confluent import QUICK, Confluent
from tests.ports import free_ports
from tests.waiting import DEADLINE_S, wait_until

ZONES: Final = ("a", "b", "c")
PARTITIONS: Final = 12
RECORDS: Final = 240  # of each zone's producer
VALUE: Final = bytes(range(256)) * 8


def metrics(port: int) -> dict[str, float]:
    """A broker's metrics by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines()]
    return {line[0]: float(line[1]) for line in lines if not line[0].startswith("#")}


def produce(bootstrap: str, zone: str) -> None:
    """Send this zone's records to all partitions, and wait until they are written."""
    producer = Producer(
        {**QUICK, "bootstrap.servers": bootstrap, "client.id": f"p,diskless_az={zone}"}
    )
    failed: list[Any] = []

    def on_delivery(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    for number in range(RECORDS):
        producer.produce("t", VALUE, partition=number % PARTITIONS, on_delivery=on_delivery)
    assert producer.flush(DEADLINE_S) == 0
    assert not failed


def holding(directory: Path, data: bytes) -> list[Path]:
    """The files below a directory that hold these bytes."""
    found = []
    for file in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # a probe that was deleted
            if data in file.read_bytes():
                found.append(file)
    return found


def consume(bootstrap: str, zone: str, client_id: str) -> int:
    """Read all records of the topic as a consumer in this zone; return their number."""
    consumer = Consumer(
        {
            **QUICK,
            "bootstrap.servers": bootstrap,
            "group.id": f"unused-{client_id}",
            "client.id": client_id,
            "client.rack": zone,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
    read = 0

    def is_read() -> bool:
        nonlocal read
        batch = consumer.consume(RECORDS, timeout=0.1)  # waits until the last of so many
        assert all(message.error() is None for message in batch)
        read += len(batch)
        return read >= RECORDS * len(ZONES)

    try:
        wait_until(is_read, f"zone {zone} reads all records")
    finally:
        consumer.close()
    return read


def test_with_rack_hints_no_record_byte_crosses_zones_but_through_the_store(tmp_path: Path) -> None:
    ports = dict(zip(ZONES, free_ports(len(ZONES)), strict=True))
    settings = {
        101 + place: {
            "broker.rack": zone,
            "esker.metrics.listener": f"127.0.0.1:{ports[zone]}",
            "esker.compaction.interval.ms": "3600000",  # merging reads objects, too
        }
        for place, zone in enumerate(ZONES)
    }
    with EskerCluster(tmp_path, brokers=3, quorum=(1,), settings_of=settings) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic("t", PARTITIONS, {})
        for zone in ZONES:
            produce(cluster.bootstrap, zone)
        in_each = RECORDS * len(VALUE)
        for zone in ZONES:
            # The second consumer names its rack in Fetch alone, and is sent to its zone by that.
            expected = RECORDS * len(ZONES)
            assert consume(cluster.bootstrap, zone, f"c,diskless_az={zone}") == expected
            assert consume(cluster.bootstrap, zone, f"rack-alone-{zone}") == expected

        def moved(zone: str, name: str) -> Callable[[str], float]:
            found = metrics(ports[zone])
            return lambda other: found[f'esker_broker_zone_bytes_{name}_total{{zone="{other}"}}']

        for zone in ZONES:
            produced, fetched = moved(zone, "in"), moved(zone, "out")
            assert in_each <= produced("same") < 1.1 * in_each
            assert 2 * 3 * in_each <= fetched("same") < 1.1 * 2 * 3 * in_each
            assert [produced("other"), produced("unknown")] == [0, 0], zone
            assert [fetched("other"), fetched("unknown")] == [0, 0], zone
            read_bytes = metrics(ports[zone])["esker_broker_store_get_bytes_total"]
            assert read_bytes <= 1.1 * 2 * in_each, f"zone {zone} read what two others wrote, once"

        # KIP-1163's test plan: disks of nodes are used for metadata only.
        assert holding(cluster.store, VALUE), "records are in the store, as they were sent"
        for node in (1, 101, 102, 103):
            assert holding(cluster.log_dir(node), b"esker"), "a node has files"
            assert not holding(cluster.log_dir(node), VALUE), f"node {node} has records"

        # Without its only broker a zone is served by another one: the counter sees that.
        cluster.stop(101)
        produce(cluster.bootstrap.split(",", 1)[1], "a")
        wait_until(
            lambda: sum(moved(zone, "in")("other") for zone in ("b", "c")) >= in_each,
            "records of zone a are counted as another zone's",
        )
