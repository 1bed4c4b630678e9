"""KIP-1114's test plan, and plans, with clients that know nothing of chunks, on real brokers.

Consumers are led from broker to broker by Fetch alone: preferred read replicas.

Source: KIP-1114, Test Plan; docs/design/chunks.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic
from typer.testing import CliRunner

from diskless.fetch.local_segments.inspection import read_owner, read_segments
from esker.cli import app
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import QUICK, Confluent
from tests.clients.test_chunks import numbered
from tests.clients.test_zones import metrics
from tests.ports import free_ports
from tests.waiting import wait_until

BROKERS: Final = (101, 102, 103)


class Story:
    """Three brokers with local segments; a topic t with one partition, on broker 101 only."""

    def __init__(self, home: Path, cluster: EskerCluster, ports: dict[int, int]) -> None:
        self.home = home
        self.cluster = cluster
        self._ports = ports
        self._readers = 0
        self.client = Confluent(cluster.bootstrap)
        topic = NewTopic("t", 1, replica_assignment=[[101]])
        self.client.admin.create_topics([topic])["t"].result()

    def esker(self, *words: str, code: int = 0) -> str:
        ran = CliRunner().invoke(app, [*words, "--bootstrap-server", self.cluster.bootstrap])
        assert ran.exit_code == code, f"{words}: {ran.exit_code}\n{ran.output}\n{ran.exception!r}"
        return ran.output

    def create(self, *replicas: int) -> None:
        file = self.home / "create.json"
        entry = {"topic": "t", "partition": 0, "replicas": replicas}
        file.write_text(json.dumps({"partitions": [entry]}))
        self.esker("chunks", "create", str(file))

    def chunks(self) -> list[tuple[int, list[int]]]:
        """Return the start and replicas of each chunk."""
        described = json.loads(self.esker("topics", "describe", "--topic", "t", "--json"))
        (partition,) = described["topics"][0]["partitions"]
        return [(chunk["startOffset"], chunk["replicas"]) for chunk in partition["chunks"]]

    def counted(self, broker_id: int, name: str) -> float:
        return metrics(self._ports[broker_id])[f"esker_broker_{name}_total"]

    def holds(self, broker_id: int, offsets: range) -> bool:
        """Return whether a segment of the broker has all these offsets."""
        directory = self.home / f"cache-{broker_id}"
        found = read_segments(directory, read_owner(directory).cluster_id, verify=False)
        return any(
            segment.base_offset <= offsets.start
            and segment.end_offset >= offsets.stop
            and not segment.missing_offsets
            for segment in found
        )

    def served(self, read: Callable[[], Any]) -> dict[int, float]:
        """Return the bytes of batches that each broker sends while `read` runs."""
        before = {one: self.counted(one, "bytes_out") for one in self._ports}
        read()
        return {one: self.counted(one, "bytes_out") - before[one] for one in self._ports}

    def read(self, count: int, bootstrap: str | None = None) -> None:
        """Read from the beginning, as a consumer that no broker has seen before."""
        self._readers += 1
        consumer = Consumer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap or self.cluster.bootstrap,
                "group.id": "none",
                "client.id": f"reader-{self._readers}",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        offsets: list[int] = []

        def is_read() -> bool:
            for message in consumer.consume(count, timeout=0.1):
                assert message.error() is None, message.error()
                offsets.append(message.offset())
            return len(offsets) >= count

        try:
            wait_until(is_read, f"{count} records are read")
        finally:
            consumer.close()
        assert offsets == list(range(count))


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
    settings = {
        one: {
            "esker.metrics.listener": f"127.0.0.1:{ports[one]}",
            "esker.cache.dir": str(tmp_path / f"cache-{one}"),
        }
        for one in BROKERS
    }
    with EskerCluster(tmp_path, brokers=3, quorum=(1,), settings_of=settings) as cluster:
        cluster.start()
        yield Story(tmp_path, cluster, ports)


def test_chunks_are_read_from_their_brokers_and_planned_away_from_those_that_go(
    story: Story,
) -> None:
    story.client.send("t", numbered(0))
    story.create(102)
    story.client.send("t", numbered(10))
    assert story.chunks() == [(0, [101]), (10, [102])]
    served = story.served(lambda: story.read(20))
    assert served[101] > 0, "the first ten from broker 101"
    assert served[102] > 0, "the other ten from broker 102"
    assert served[103] == 0

    # A plan that moves the first chunk away from broker 101, and evens nothing out.
    plan = story.home / "plan.json"
    planned = story.esker("chunks", "plan", "--out", str(plan), "--exclude", "101")
    assert "t-0 chunk 0  move  103" in planned
    assert "t-0 chunk 0: moved, on 103" in story.esker("chunks", "apply", str(plan))
    assert story.chunks() == [(0, [103]), (10, [102])]
    assert "t-0 chunk 0: done before" in story.esker("chunks", "apply", str(plan))
    # By reading it now, or because a producer sent it there.
    wait_until(lambda: story.holds(103, range(10)), "broker 103 has the chunk")
    gets = story.counted(103, "store_gets")
    served = story.served(lambda: story.read(20))
    assert served[101] == 0
    assert served[103] > 0
    assert served[102] > 0
    assert story.counted(103, "store_gets") == gets, "from its segments"

    # Its broker stops, and is in no plan any more; any broker serves meanwhile.
    back = json.loads(plan.read_text())
    back["moves"][0]["chunkEpoch"] = 1
    plan.write_text(json.dumps(back))
    story.cluster.stop(103)
    bootstrap = ",".join(f"{host}:{port}" for host, port in story.cluster.brokers[:2])
    refused = CliRunner().invoke(
        app, ["chunks", "apply", str(plan), "--bootstrap-server", bootstrap]
    )
    assert refused.exit_code == 1
    assert "not registered or are fenced: 103; make a new plan" in refused.output
    story.read(20, bootstrap)
