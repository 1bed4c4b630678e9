"""All directories of a cluster come back as older copies: its leaders stop, and overwrite nothing.

Source: docs/design/backup.md#a-proved-loss.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from esker.settings.access import STANDARD_AUTHORIZER
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import QUICK, Confluent
from tests.clients.restoring import Ledger, Load, esker, manifests, wait_for_records
from tests.clients.secured import PLAIN_MODULE
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

TOPIC, PARTITIONS = "ledger", 3
VOTERS, BROKER = (1, 2, 3), 101


def _settings() -> dict[str, str]:
    nodes = (*VOTERS, BROKER)
    return {
        "esker.backup.enable": "true",
        "esker.backup.interval.ms": "1000",
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": ";".join(f"User:node-{node}" for node in nodes) + ";User:ANONYMOUS",
        "esker.node.principals": "User:node-*",
        "esker.controller.identity": "enforce",
    }


def _own(node: int) -> Mapping[str, str]:
    users = " ".join(f'user_node-{one}="secret-{one}"' for one in (*VOTERS, BROKER))
    jaas = f'{PLAIN_MODULE} required username="node-{node}" password="secret-{node}" {users};'
    return {"listener.name.controller.plain.sasl.jaas.config": jaas}


SETTINGS_OF: Final = {node: _own(node) for node in (*VOTERS, BROKER)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EskerCluster]:
    with EskerCluster(
        tmp_path / "c", brokers=1, settings=_settings(), settings_of=SETTINGS_OF
    ) as cluster:
        cluster.start()
        yield cluster


def contents(directory: Path) -> dict[Path, bytes]:
    """Return the bytes of all files below a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_leaders_elected_from_older_copies_of_all_disks_end_and_overwrite_nothing(
    cluster: EskerCluster, tmp_path: Path
) -> None:
    ledger = Ledger()
    Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
    with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
        wait_for_records(ledger, 100)
    cluster.kill()
    copies = {node: tmp_path / f"copy-{node}" for node in cluster.ports}
    for node, copy in copies.items():
        shutil.copytree(cluster.log_dir(node), copy)
    cluster.start()
    with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
        wait_for_records(ledger, len(ledger.acknowledged) + 1_500)
    esker("backup", "now", f"--config={cluster.properties(BROKER)}")
    cluster.kill()
    for node, copy in copies.items():
        shutil.rmtree(cluster.log_dir(node))
        shutil.copytree(copy, cluster.log_dir(node))
    backups = {path.name for path in manifests(cluster)}
    stored = contents(cluster.store)
    offset = len(ledger.acknowledged)

    cluster.launch(*cluster.ports)

    def ended() -> list[int]:
        return [node for node in VOTERS if cluster.processes[node].poll() is not None]

    wait_until(lambda: len(ended()) >= 2, "the leaders end, until none is elected", deadline_s=240)
    for node in ended():
        assert cluster.processes[node].poll() == 1
        last_line = cluster.output(node).splitlines()[-1]
        assert last_line.startswith("esker: ")
        assert "which this node leads in epoch" in last_line
        assert "restore it from the backup (esker restore plan --backup FILE" in last_line
    assert cluster.processes[BROKER].poll() is None
    assert "contradiction=" in cluster.output(BROKER)
    refused = []
    producer = Producer(
        QUICK | {"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 5_000}
    )
    producer.produce(TOPIC, b"new", on_delivery=lambda error, _: refused.append(error))
    producer.flush()
    assert refused
    assert refused[0] is not None
    now = contents(cluster.store)
    assert {path.name for path in manifests(cluster)} == backups
    assert {path: now.get(path) for path in stored if "probe" not in path.parts} == {
        path: data for path, data in stored.items() if "probe" not in path.parts
    }
    assert len(ledger.acknowledged) == offset
