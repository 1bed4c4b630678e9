"""`kafka-configs.sh` sets and shows quotas of a cluster of processes, which keeps to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from records.kafka_errors import ErrorCode
from records.rpc.topics import CreateTopicsRequest, CreateTopicsResponse
from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import FIRST_BROKER, EskerCluster
from tests.interop.kafka_run import Kafka
from tests.interop.kafka_tools import CLASSES, RUN_TOOLS
from tests.raft.driver.client import Client
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.java

SET: Final = (
    "--entity-type users --entity-name ann --alter "
    "--add-config producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=12.5",
    "--entity-type users --entity-default --alter --add-config producer_byte_rate=512",
    "--entity-type clients --entity-name app --alter --add-config controller_mutation_rate=0.5",
    "--entity-type users --entity-name ann --entity-type clients --entity-name app --alter "
    "--add-config consumer_byte_rate=77",
    "--entity-type ips --entity-name 10.0.0.7 --alter --add-config connection_creation_rate=20",
    "--entity-type ips --entity-default --alter --add-config connection_creation_rate=1000",
    "--entity-type users --entity-name ann --alter --delete-config request_percentage",
)
SAID: Final = (
    "Completed updating config for user ann.",
    "Completed updating default config for users in the cluster.",
    "Completed updating config for client app.",
    "Completed updating config for user ann.",
    "Completed updating config for ip 10.0.0.7.",
    "Completed updating default config for ips in the cluster.",
    "Completed updating config for user ann.",
)
SHOW: Final = {
    "--entity-type users --entity-name ann --describe": (
        "Quota configs for user-principal 'ann' are consumer_byte_rate=2048.0, "
        "producer_byte_rate=1024.0"
    ),
    "--entity-type users --entity-default --describe": (
        "Quota configs for the default user-principal are producer_byte_rate=512.0"
    ),
    "--entity-type clients --entity-name app --describe": (
        "Quota configs for client-id 'app' are controller_mutation_rate=0.5"
    ),
    "--entity-type users --entity-name ann --entity-type clients --entity-name app --describe": (
        "Quota configs for user-principal 'ann', client-id 'app' are consumer_byte_rate=77.0"
    ),
    "--entity-type ips --entity-name 10.0.0.7 --describe": (
        "Quota configs for ip '10.0.0.7' are connection_creation_rate=20.0"
    ),
    "--entity-type ips --entity-default --describe": (
        "Quota configs for the default ip are connection_creation_rate=1000.0"
    ),
}


def configs(kafka: Kafka, bootstrap: str, *invocations: str) -> list[str]:
    """Run `kafka-configs.sh`, and return what each run printed."""
    words = (CLASSES["configs"], "--bootstrap-server", bootstrap)
    lines = ("\t".join((*words, *one.split())) + "\n" for one in invocations)
    said = kafka.run(str(RUN_TOOLS), stdin="".join(lines), timeout_s=DEADLINE_S).out
    outputs = said.split("### ")[1:]
    assert len(outputs) == len(invocations), said
    assert {output.partition("\n")[0] for output in outputs} == {"0"}, said
    return [output.partition("\n")[2].strip() for output in outputs]


def told(line: str) -> tuple[str, tuple[str, ...]]:
    """Split a description into its entity and its quotas, which Kafka does not order."""
    entity, _, quotas = line.partition(" are ")
    return entity, tuple(sorted(quotas.split(", ")))


def check_tool(kafka: Kafka, bootstrap: str) -> None:
    """Set quotas with the tool, and have it show them."""
    assert configs(kafka, bootstrap, *SET) == list(SAID)
    wait_until(lambda: shows_all(kafka, bootstrap), "the broker shows the quotas")


def shows_all(kafka: Kafka, bootstrap: str) -> bool:
    """Return whether the tool shows every quota."""
    found = [told(line) for line in configs(kafka, bootstrap, *SHOW)]
    return found == [told(line) for line in SHOW.values()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    home = tmp_path_factory.mktemp("quotas") / "cluster"
    with EskerCluster(home, brokers=1, quorum=(1,)) as cluster:
        cluster.start()
        yield cluster
        cluster.check_alive()


def create(cluster: EskerCluster, name: str, partitions: int) -> tuple[ErrorCode, int]:
    """Create a topic as the client id `app`; return the error and the throttle time."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    (host, port) = cluster.brokers[0]
    with Client(host, port, timeout_s=DEADLINE_S, client_id="app") as client:
        request = CreateTopicsRequest(topics=(topic,), timeout_ms=30_000)
        answer = client.ask(request, CreateTopicsResponse, 7)
    return ErrorCode(answer.topics[0].error_code), answer.throttle_time_ms


def test_kafkas_tool_sets_and_shows_quotas_that_processes_keep_and_enforce(
    kafka: Kafka, cluster: EskerCluster
) -> None:
    check_tool(kafka, cluster.bootstrap)
    assert create(cluster, "first", 20) == (ErrorCode.NONE, 0)
    code, throttle_ms = create(cluster, "second", 1)
    assert (code, throttle_ms > 10_000) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, True)
    for node in (FIRST_BROKER, *cluster.quorum_ids):
        cluster.kill(node)
    for node in (*cluster.quorum_ids, FIRST_BROKER):
        cluster.launch(node)
    cluster.wait_until_ready(FIRST_BROKER)
    assert shows_all(kafka, cluster.bootstrap)


@pytest.mark.soak
def test_apache_kafka_says_the_same(kafka: Kafka, tmp_path: Path) -> None:
    with apache_kafka(kafka, tmp_path / "kafka") as world:
        check_tool(kafka, world.bootstrap)
