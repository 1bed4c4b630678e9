"""Apache Kafka's programs talk to a running quorum of Esker's nodes.

Its MetadataQuorumCommand prints the quorum, and a real Kafka broker follows our leader as an
observer: what it then has on its own disk is byte for byte what our leader wrote, also after the
leadership has moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from records.batch import iter_batches
from tests.interop.dump_output import dump
from tests.interop.esker_nodes import EskerQuorum
from tests.interop.kafka_run import Kafka, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.interop.reading import read
from tests.waiting import wait_until

pytestmark = pytest.mark.java

QUORUM_COMMAND = "org.apache.kafka.tools.MetadataQuorumCommand"
OBSERVER = 100


@pytest.fixture(scope="module")
def quorum(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerQuorum]:
    """Three nodes; `kafka` is asked for first, so that nothing starts where it is missing."""
    assert kafka.jars.is_dir()
    with EskerQuorum(tmp_path_factory.mktemp("esker")) as running:
        running.wait_for_leader()
        yield running


def test_kafkas_tool_prints_the_status_of_an_esker_quorum(
    kafka: Kafka, quorum: EskerQuorum
) -> None:
    said = kafka.run(
        QUORUM_COMMAND, "--bootstrap-controller", quorum.bootstrap, "describe", "--status"
    ).out
    shown = dict(re.findall(r"^(\w+): +(.*)$", said, re.MULTILINE))
    assert shown["ClusterId"] == CLUSTER_ID
    assert int(shown["LeaderId"]) in quorum.ports
    assert int(shown["LeaderEpoch"]) >= 1
    assert int(shown["HighWatermark"]) > 0
    assert 0 <= int(shown["MaxFollowerLagTimeMs"]) < 60_000
    for node, port in quorum.ports.items():
        assert re.search(
            rf'"id": {node}, .*?"CONTROLLER://127.0.0.1:{port}"', shown["CurrentVoters"]
        )
    assert shown["CurrentObservers"] == "[]"


def test_kafkas_tool_prints_the_replicas_of_an_esker_quorum(
    kafka: Kafka, quorum: EskerQuorum
) -> None:
    said = kafka.run(
        QUORUM_COMMAND, "--bootstrap-controller", quorum.bootstrap, "describe", "--replication"
    ).out
    heading, *rows = (line.split() for line in said.splitlines())
    replicas = {int(row[0]): dict(zip(heading, row, strict=True)) for row in rows}
    assert replicas.keys() == quorum.ports.keys()
    roles = [replica["Status"] for replica in replicas.values()]
    assert sorted(roles) == ["Follower", "Follower", "Leader"]
    assert all(int(replica["LogEndOffset"]) > 0 for replica in replicas.values())


@pytest.fixture
def bereft(tmp_path: Path) -> Iterator[EskerQuorum]:
    """Three nodes of a test that stops one, and lets another follow."""
    directory = tmp_path / "esker"
    directory.mkdir()
    with EskerQuorum(directory) as running:
        yield running


def test_a_kafka_broker_replicates_the_log_of_esker_leaders_byte_for_byte(
    kafka: Kafka, bereft: EskerQuorum, tmp_path: Path
) -> None:
    quorum = bereft
    plan = configure_node(
        kafka,
        tmp_path / "observer",
        node_id=OBSERVER,
        roles="broker",
        dynamic_voters=False,
        settings={"controller.quorum.voters": quorum.voters},
    )
    plan.format(CLUSTER_ID)
    first = quorum.wait_for_leader()
    with plan.started([]) as observer:
        copy = Copy(observer.metadata_log / f"{0:020}.log")
        wait_until(lambda: copy.last_epoch() is not None, state=observer.said)
        epoch = copy.last_epoch() or 0
        wait_until(lambda: OBSERVER in quorum.observers(first), state=quorum.said)
        quorum.stop(first)
        second = quorum.wait_for_leader()
        wait_until(lambda: (copy.last_epoch() or 0) > epoch, state=observer.said)
    copied = copy.data()
    assert copied
    written = (quorum.metadata_log(second) / f"{0:020}.log").read_bytes()
    assert written.startswith(copied)
    assert dump(kafka, [copy.path])[copy.path] == read(copy.path)


@dataclass(frozen=True, slots=True)
class Copy:
    """The observer's log segment, which it may be appending to."""

    path: Path

    def data(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    def last_epoch(self) -> int | None:
        """Of the last whole batch."""
        batches = list(iter_batches(self.data(), allow_partial_tail=True))
        return batches[-1].header.leader_epoch if batches else None
