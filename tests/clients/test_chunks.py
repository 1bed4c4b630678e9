"""KIP-1114's test plan with a transactional producer, through real brokers."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from esker.cli import app
from tests.clients.client import EARLIEST, Message
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.clients.world import World


def numbered(first: int) -> list[Message]:
    """Ten messages."""
    return [Message(b"%d" % number) for number in range(first, first + 10)]


def test_a_chunk_that_is_created_within_a_transaction_hides_nothing_from_a_committed_reader(
    cluster: EskerCluster, world: World, tmp_path: Path
) -> None:
    """Source: KIP-1114, Test Plan, "Test with transactional producer and consumer"."""
    topic, client = world.topic(), Confluent(world.bootstrap)
    file = tmp_path / "chunk.json"
    replica = cluster.broker_ids[1]
    file.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [replica]}]})
    )
    client.send(topic, numbered(0))
    with (
        client.open_transactional(world.name()) as producer,
        client.follow(topic, 0, EARLIEST, committed_only=True) as reader,
    ):
        producer.begin()
        producer.send(topic, [one.value or b"" for one in numbered(10)])
        assert [one.offset for one in reader.read(10)] == list(range(10))
        words = ("chunks", "create", str(file), "--bootstrap-server", world.bootstrap)
        ran = CliRunner().invoke(app, list(words))
        assert ran.exit_code == 0, ran.output
        assert reader.poll(0.3) == [], "an open transaction is not read"
        producer.commit()
        assert [one.offset for one in reader.read(10)] == list(range(10, 20))
    # Records, marker and new records lie on both sides of the chunk's end.
    client.send(topic, numbered(20))
    with client.follow(topic, 0, EARLIEST, committed_only=True) as reader:
        read = reader.read(30)
    assert [one.value for one in read] == [b"%d" % number for number in range(30)]
    assert [one.offset for one in read] == [*range(20), *range(21, 31)]
