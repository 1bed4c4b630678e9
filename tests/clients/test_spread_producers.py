"""Sixty real producers spread over three brokers again after rolling restarts.

`tests/diskless/test_spreading.py` has the same in virtual time, in every order.

Source: docs/design/health.md#clients-spread-after-restarts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.examples import first_seed
from tests.ports import free_port
from tests.waiting import wait_until

TOPIC: Final = "spread"
LIBRDKAFKA: Final = 30
AIOKAFKA: Final = 30
CLIENTS: Final = LIBRDKAFKA + AIOKAFKA  # each writes a partition of its own
PAUSE_S: Final = 0.25  # between two messages of a producer
COUNTED_S: Final = 15
PRODUCED: Final = "esker_broker_produce_requests_total"


def _librdkafka(bootstrap: str, partitions: range, end: threading.Event) -> None:
    producers = [
        Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        for _ in partitions
    ]
    while not end.wait(PAUSE_S):
        for partition, producer in zip(partitions, producers, strict=True):
            producer.produce(TOPIC, b"x", partition=partition)
            producer.poll(0)
    for producer in producers:
        producer.flush(30)


async def _aiokafka(bootstrap: str, partition: int, end: threading.Event) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        while not end.is_set():
            await producer.send_and_wait(TOPIC, b"x", partition=partition)
            await asyncio.sleep(PAUSE_S)


@contextmanager
def sixty_producers(bootstrap: str) -> Iterator[list[threading.Thread]]:
    """Run all producers in two threads until the block is left."""
    end = threading.Event()

    async def all_of_aiokafka() -> None:
        await asyncio.gather(
            *(_aiokafka(bootstrap, number, end) for number in range(LIBRDKAFKA, CLIENTS))
        )

    threads = [
        threading.Thread(target=_librdkafka, args=(bootstrap, range(LIBRDKAFKA), end)),
        threading.Thread(target=lambda: asyncio.run(all_of_aiokafka())),
    ]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        end.set()
        for thread in threads:
            thread.join()


def produced(place: str) -> float:
    """Return how many Produce requests a broker has received since its start."""
    with urlopen(f"http://{place}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
        return sum(s.value for f in families for s in f.samples if s.name == PRODUCED)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_no_broker_serves_over_half_of_the_requests_of_60_real_producers_after_restarts(
    tmp_path: Path,
) -> None:
    places = {broker: f"127.0.0.1:{free_port()}" for broker in (101, 102, 103)}
    own = {broker: {"esker.metrics.listener": place} for broker, place in places.items()}
    orders = ((101, 102, 103), (103, 101, 102))
    order = orders[first_seed() % len(orders)]
    with EskerCluster(tmp_path, brokers=3, settings_of=own) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, CLIENTS, {})

        def shares() -> dict[int, float]:
            before = {broker: produced(place) for broker, place in places.items()}
            time.sleep(COUNTED_S)
            return {broker: produced(place) - before[broker] for broker, place in places.items()}

        def no_share_over_half() -> dict[int, float] | None:
            taken = shares()
            total = sum(taken.values())
            is_spread = total > CLIENTS * COUNTED_S and max(taken.values()) <= total / 2
            print(f"order {order}: {taken}")
            return taken if is_spread else None

        with sixty_producers(cluster.bootstrap) as threads:
            for broker in order:
                cluster.stop(broker)
                served_by_others(places, broker)
                cluster.launch(broker)
                cluster.wait_until_ready()
            wait_until(no_share_over_half, "no broker serves over half of the requests")
            assert all(thread.is_alive() for thread in threads), "a producer gave up"
        cluster.check_alive()


def served_by_others(places: dict[int, str], stopped: int) -> None:
    """Wait until every other broker has received requests since a broker was stopped."""
    others = [place for broker, place in places.items() if broker != stopped]
    before = [produced(place) for place in others]
    wait_until(
        lambda: all(produced(place) > n for place, n in zip(others, before, strict=True)),
        "the other brokers serve the producers",
    )
