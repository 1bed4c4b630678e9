"""A broker with local segments is killed in the middle of its appends: nothing of it shows.

With real processes and files: docs/design/local-segments.md.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.cluster import FIRST_BROKER, EskerCluster
from tests.clients.world import World
from tests.ports import free_port
from tests.waiting import DEADLINE_S, Deadline, wait_until

KILLS: Final = 2
SETTINGS: Final = {"esker.fetch.read.ahead.max.bytes": "0"}


class Writer(threading.Thread):
    """An idempotent producer that writes numbers until it is ended."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._ends = threading.Event()
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5,
                "reconnect.backoff.max.ms": 200, "log_level": 0,
            }
        )  # fmt: skip

    def run(self) -> None:
        while not self._ends.wait(0.002):
            value = b"%d" % self.count + bytes(1_000)
            self._producer.produce(self._topic, value, partition=0)
            self._producer.poll(0)
            self.count += 1

    def end(self) -> None:
        self._ends.set()
        self.join()
        assert self._producer.flush(DEADLINE_S) == 0


def read(bootstrap: str, topic: str, count: int) -> list[int]:
    """Read so many records from the beginning; return their numbers."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200, "log_level": 0,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    deadline = Deadline(f"{count} records come")
    while len(found) < count:
        deadline.pause_s(len(found))
        messages = consumer.consume(min(500, count - len(found)), timeout=1)
        found += [int(m.value().rstrip(b"\0")) for m in messages if not m.error()]
    consumer.close()
    return found


def described(cache: Path) -> list[dict]:
    try:
        text = EskerCluster._esker("cache", "describe", str(cache), "--verify", "--json")
    except AssertionError as damaged:
        raise AssertionError(f"after kill -9: {damaged}") from None
    return json.loads(text)["segments"]


def metric(place: str, name: str) -> float:
    with urlopen(f"http://{place}/metrics") as page:
        lines = page.read().decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))


def test_a_broker_that_is_killed_while_it_fills_segments_serves_every_record_from_them(
    tmp_path: Path,
) -> None:
    cache, place = tmp_path / "cache", f"127.0.0.1:{free_port()}"
    settings = {**SETTINGS, "esker.cache.dir": str(cache), "esker.metrics.listener": place}
    with EskerCluster(
        tmp_path / "nodes", quorum=(1,), brokers=1, settings_of={FIRST_BROKER: settings}
    ) as cluster:
        cluster.start()
        topic = World(cluster.brokers).topic()
        writer = Writer(cluster.bootstrap, topic)
        writer.start()
        for number in range(KILLS):
            wait_until(lambda: writer.count > 200, "the producer writes")
            wait_until(
                lambda: metric(place, "esker_broker_local_segment_written_bytes_total") > 50_000,
                "segments fill",
            )
            cluster.kill(FIRST_BROKER)
            found = described(cache)
            assert len(found) >= number + 1, found
            assert all(segment["state"] == "sound" for segment in found), found
            cluster.launch(FIRST_BROKER)
            cluster.wait_until_ready()
        writer.end()
        assert read(cluster.bootstrap, topic, writer.count) == list(range(writer.count))
        wait_until(
            lambda: metric(place, "esker_broker_local_segment_queued_bytes") == 0, "all is written"
        )
        cluster.kill(FIRST_BROKER)
        cluster.launch(FIRST_BROKER)
        cluster.wait_until_ready()
        assert read(cluster.bootstrap, topic, writer.count) == list(range(writer.count))
        assert metric(place, "esker_broker_store_gets_total") == 0
        cluster.check_alive()
