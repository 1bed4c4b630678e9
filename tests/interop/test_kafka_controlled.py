"""Kafka's own programs are controlled by our controller.

A Java broker registers with it, sends heartbeats and is unfenced, and Kafka's tools change and
print features, settings and endpoints through `--bootstrap-controller`. (A Java controller that is
no voter never asks to register: it looks for the leader's address in the voters' record of
kraft.version 1, which a log with static voters does not have.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from records.rpc.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from records.rpc.descriptions import (
    DescribeBrokersRequest,
    DescribeBrokersResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
)
from records.rpc.snapshots import TakeSnapshotRequest, TakeSnapshotResponse
from records.rpc.topics import CreateTopicsResponse
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot import checkpoint_name
from tests.coordinator.controller.world import creation
from tests.interop.esker_nodes import EskerQuorum
from tests.interop.kafka_run import Kafka, ToolFailedError, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.raft.driver.client import Client
from tests.waiting import wait_until

pytestmark = pytest.mark.java

BROKER = 100
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
NOT_CONTROLLER = 41
BROKER_ID_NOT_REGISTERED = 102


@pytest.fixture(scope="module")
def quorum(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerQuorum]:
    assert kafka.jars.is_dir()
    with EskerQuorum(tmp_path_factory.mktemp("esker")) as running:
        running.wait_for_leader()
        yield running


def brokers(quorum: EskerQuorum) -> dict[int, bool]:
    """Registered brokers, and whether each is fenced, as any node says."""
    port = next(iter(quorum.ports.values()))
    with Client("127.0.0.1", port) as client:
        answer = client.ask(DescribeBrokersRequest(), DescribeBrokersResponse, 0)
    return {broker.broker_id: broker.is_fenced for broker in answer.brokers}


@pytest.fixture(scope="module")
def broker(
    kafka: Kafka, quorum: EskerQuorum, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """A Java broker that our controller has unfenced."""
    plan = configure_node(
        kafka,
        tmp_path_factory.mktemp("java") / "broker",
        node_id=BROKER,
        roles="broker",
        dynamic_voters=False,
        settings={"controller.quorum.voters": quorum.voters},
    )
    plan.format(CLUSTER_ID)
    with plan.started([]) as running:
        wait_until(lambda: brokers(quorum).get(BROKER) is False, state=running.said)
        yield BROKER


def test_a_java_broker_registers_at_eskers_controller_and_is_unfenced(
    quorum: EskerQuorum, broker: int
) -> None:
    assert brokers(quorum) == {broker: False}


def create(quorum: EskerQuorum, topic: str) -> int:
    """The active controller, which has made the topic."""
    answers = {}
    for node, port in quorum.ports.items():
        with Client("127.0.0.1", port, timeout_s=30) as client:
            answers[node] = client.ask(creation(topic, 2), CreateTopicsResponse, 7)
        if not answers[node].topics[0].error_code:
            return node
    raise AssertionError(f"nobody makes {topic}: {answers}")


def test_a_topic_at_eskers_controller_has_the_java_broker_as_its_replica(
    quorum: EskerQuorum, broker: int
) -> None:
    node = create(quorum, "from-here")
    with Client("127.0.0.1", quorum.ports[node]) as client:
        asked = DescribeTopicsRequest(topic_names=("from-here",))
        (topic,) = client.ask(asked, DescribeTopicsResponse, 0).topics
    assert [partition.replicas for partition in topic.partitions] == [(broker,)] * 2


def test_kafkas_tools_print_the_features_and_endpoints_of_eskers_controllers(
    kafka: Kafka, quorum: EskerQuorum, broker: int
) -> None:
    said = kafka.run(FEATURES, "--bootstrap-controller", quorum.bootstrap, "describe").out
    assert re.search(r"metadata\.version.*FinalizedVersionLevel: 4\.1-IV1", said), said
    row = r"esker\.version\s+SupportedMinVersion: 1\s+SupportedMaxVersion: 5\s+.*Level: 1\b"
    assert re.search(row, said), said
    with pytest.raises(ToolFailedError, match=f"Broker {broker} only supports versions 1-1"):
        kafka.run(FEATURES, "--bootstrap-controller", quorum.bootstrap, "upgrade",
                  "--feature", "esker.version=2")  # fmt: skip
    said = kafka.run(CLUSTER, "list-endpoints", "--bootstrap-controller", quorum.bootstrap).out
    for node, port in quorum.ports.items():
        assert re.search(rf"^{node}\s+127\.0\.0\.1\s+{port}\b", said, re.MULTILINE), said
    assert broker not in quorum.ports


def test_kafkas_configs_tool_changes_and_prints_settings_at_eskers_controllers(
    kafka: Kafka, quorum: EskerQuorum
) -> None:
    whole = ("--bootstrap-controller", quorum.bootstrap, "--entity-type", "brokers")
    kafka.run(
        CONFIGS, *whole, "--entity-default", "--alter", "--add-config", "log.retention.ms=1234567"
    )
    said = kafka.run(CONFIGS, *whole, "--entity-default", "--describe").out
    assert "log.retention.ms=1234567" in said, said
    kafka.run(CONFIGS, *whole, "--entity-default", "--alter", "--delete-config", "log.retention.ms")
    said = kafka.run(CONFIGS, *whole, "--entity-default", "--describe").out
    assert "1234567" not in said, said


def test_kafkas_metadata_shell_reads_a_checkpoint_written_by_esker(
    kafka: Kafka, quorum: EskerQuorum, broker: int
) -> None:
    """Topics, the broker and its endpoints, as a Java node would load them."""
    node = create(quorum, "in-the-image")
    with Client("127.0.0.1", quorum.ports[node], timeout_s=60) as client:
        request = TakeSnapshotRequest(topic_name="__cluster_metadata", partition_index=0)
        taken = client.ask(request, TakeSnapshotResponse, 0)
    assert taken.error_code == 0, taken
    name = checkpoint_name(OffsetAndEpoch(Offset(taken.end_offset), Epoch(taken.epoch)))
    checkpoint = quorum.metadata_log(node) / name
    topics = kafka.shell(checkpoint, "ls", "/image/topics/byName").split()
    assert {"in-the-image", "__diskless-metadata"} <= set(topics)
    assert kafka.shell(checkpoint, "ls", "/image/cluster/brokers").split() == [str(broker)]


def test_only_the_active_controller_accepts_an_unregister_broker_request(
    quorum: EskerQuorum,
) -> None:
    codes = []
    for port in quorum.ports.values():
        with Client("127.0.0.1", port, timeout_s=30) as client:
            request = UnregisterBrokerRequest(broker_id=999)
            codes.append(client.ask(request, UnregisterBrokerResponse, 0).error_code)
    assert sorted(codes) == [NOT_CONTROLLER, NOT_CONTROLLER, BROKER_ID_NOT_REGISTERED]
