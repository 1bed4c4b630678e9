"""Transactions of a real client, while the processes that they rest on are killed.

One story of a cluster that is upgraded while it runs. Each transaction has a record before and one
after the kill, so a torn or lost one is seen; the last transaction is aborted, so an outcome that
is taken for another one is seen, too.

Source: docs/design/transactions.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from coordinator.rendezvous import transaction_broker
from esker.cli import app
from esker.client.quorum_admin import describe_quorum
from esker.settings.values import Endpoint
from raft.net import run
from tests.clients.client import Message, Refused
from tests.clients.cluster import EskerCluster
from tests.clients.world import World
from tests.waiting import wait_until

ID: Final = "id"
FORMER: Final = ("--feature", "esker.version=3")
SETTINGS: Final = {
    "broker.session.timeout.ms": "3000",  # how long a killed broker is waited for
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EskerCluster]:
    """Three quorum nodes and two brokers, at the level before transactions."""
    with EskerCluster(tmp_path / "nodes", settings=SETTINGS, format_options=FORMER) as running:
        running.start()
        yield running


def upgrade(cluster: EskerCluster, *levels: str) -> str:
    """Finalize these levels; return the command's output."""
    options = [word for level in levels for word in ("--feature", level)]
    at = ("--bootstrap-server", f"127.0.0.1:{cluster.ports[cluster.broker_ids[0]]}")
    return CliRunner().invoke(app, ["features", "upgrade", *options, *at]).output


def leader_of(cluster: EskerCluster, topic: str) -> int:
    """Return the quorum node that leads an internal log."""
    bootstrap = tuple(Endpoint(*address) for address in cluster.controllers)
    described = run(describe_quorum(bootstrap, topic, 0, timeout_ms=20_000))
    return int(described.partition.leader_id)


def values(world: World, topic: str, count: int, *, committed_only: bool) -> list[bytes | None]:
    with world.other.follow(topic, 0, 0, committed_only=committed_only) as reader:
        return [one.value for one in reader.read(count)]


def test_transactions_survive_kills_of_brokers_and_quorum_leaders(cluster: EskerCluster) -> None:
    world = World(cluster.brokers)
    topic, group = world.topic(), world.name("group")
    client = world.other
    with pytest.raises(Refused):
        client.begin_transactions(ID)
    assert "depends on esker.version level 4" in upgrade(cluster, "transaction.version=1")
    upgrade(cluster, "transaction.version=1", "esker.version=4")
    cluster.finalize_transactions(1)  # it waits only

    expected: list[bytes] = []
    with client.open_transactional(ID) as producer:

        def transact(name: str, *dies: int, committed: bool = True) -> None:
            """Kill nodes in the middle of a transaction, and start them after its end."""
            pair = [f"{name} {part}".encode() for part in ("before", "after")]
            producer.begin()
            producer.send(topic, pair[:1])
            if dies:
                cluster.kill(*dies)
            producer.send(topic, pair[1:])
            (producer.commit if committed else producer.abort)()
            everything.extend(pair)
            expected.extend(pair if committed else ())
            cluster.launch(*dies)
            cluster.wait_until_ready()

        everything: list[bytes] = []
        transact("calm")
        transact("calm, aborted", committed=False)
        owner = transaction_broker(ID, cluster.broker_ids)
        assert owner is not None
        transact("owner", owner)
        transact("transaction log", leader_of(cluster, "__transaction_state"))
        transact("batch coordinator", leader_of(cluster, "__diskless-metadata"))

        producer.begin()
        producer.send_offsets(group, topic, {0: 3})
        cluster.kill(leader := leader_of(cluster, "__consumer_offsets"))
        producer.commit()
        cluster.launch(leader)
        wait_until(lambda: client.committed(group, topic) == {0: 3}, "offset 3 is committed")
        transact("last, aborted", committed=False)
    world.other.send(topic, [Message(b"plain")])  # behind it all: readers must get that far
    everything.append(b"plain")
    expected.append(b"plain")
    assert values(world, topic, len(everything), committed_only=False) == everything
    assert values(world, topic, len(expected), committed_only=True) == expected
