"""Kafka's own command line tools, in Java, on a cluster of ours.

The same is demanded of Apache Kafka in `make soak`, so that a test that our broker fails is known
to be right. A tool's process costs a second: each test asks several things at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import EskerCluster
from tests.interop.kafka_run import Kafka

pytestmark = pytest.mark.java

TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"
GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS: Final = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS: Final = "org.apache.kafka.tools.DeleteRecordsCommand"
PRODUCER: Final = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
API_VERSIONS: Final = "org.apache.kafka.tools.BrokerApiVersionsCommand"
TRANSACTIONS: Final = Path(__file__).with_name("InitTransactions.java")

REFUSED_WITHIN_MS: Final = 1_000
LINES: Final = 30


@pytest.fixture(
    scope="module", params=["esker", pytest.param("Apache Kafka", marks=pytest.mark.soak)]
)
def bootstrap(
    request: pytest.FixtureRequest, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The addresses of a cluster, ours or Kafka's."""
    home = tmp_path_factory.mktemp("tools") / "cluster"
    if request.param == "esker":
        with EskerCluster(home) as cluster:
            cluster.start()
            yield cluster.bootstrap
            cluster.check_alive()
    else:
        with apache_kafka(kafka, home) as world:
            yield world.bootstrap


@pytest.fixture
def topic() -> str:
    return f"tools-{uuid4().hex[:8]}"


def produce(kafka: Kafka, bootstrap: str, topic: str, *words: str) -> list[str]:
    lines = [f"key-{number % 5}:line {number}" for number in range(LINES)]
    kafka.run(
        PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic,
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:", *words,
        stdin="".join(f"{line}\n" for line in lines),
    )  # fmt: skip
    return lines


def consume(kafka: Kafka, bootstrap: str, topic: str, count: int, *words: str) -> list[str]:
    said = kafka.run(
        CONSUMER, "--bootstrap-server", bootstrap, "--topic", topic, "--max-messages", str(count),
        "--timeout-ms", "20000", "--formatter-property", "print.key=true",
        "--formatter-property", "key.separator=:", *words,
    )  # fmt: skip
    return said.out.splitlines()


def test_kafkas_tools_create_describe_grow_and_delete_topics(
    kafka: Kafka, bootstrap: str, topic: str
) -> None:
    at = ("--bootstrap-server", bootstrap)
    created = (
        "--create",
        "--topic",
        topic,
        "--partitions",
        "2",
        "--config",
        "retention.ms=7200000",
    )
    kafka.run(TOPICS, *at, *created)
    kafka.run(TOPICS, *at, "--alter", "--topic", topic, "--partitions", "3")
    said = kafka.run(TOPICS, *at, "--describe", "--topic", topic).out
    assert re.search(r"PartitionCount: 3\b", said), said
    assert "retention.ms=7200000" in said, said
    assert len(re.findall(r"Leader: \d+", said)) == 3, said
    kafka.run(TOPICS, *at, "--delete", "--topic", topic)
    assert topic not in kafka.run(TOPICS, *at, "--list").out.split()


def test_kafkas_console_consumer_reads_the_console_producers_records_in_a_group(
    kafka: Kafka, bootstrap: str, topic: str
) -> None:
    """With the Java client's defaults: idempotent, acks=all; then the group begins anew."""
    at, group = ("--bootstrap-server", bootstrap), f"group-of-{topic}"
    sent = produce(kafka, bootstrap, topic, "--compression-codec", "zstd")
    read = consume(kafka, bootstrap, topic, LINES, "--from-beginning", "--group", group)
    assert sorted(read) == sorted(sent)
    said = kafka.run(GROUPS, *at, "--describe", "--group", group).out
    (row,) = (line.split() for line in said.splitlines() if topic in line)
    assert row[:6] == [group, topic, "0", str(LINES), str(LINES), "0"], said
    assert group in kafka.run(GROUPS, *at, "--list").out.split()
    kafka.run(
        GROUPS, *at, "--group", group, "--topic", topic, "--reset-offsets", "--shift-by", "-7",
        "--execute",
    )  # fmt: skip
    assert consume(kafka, bootstrap, topic, 7, "--group", group) == sent[-7:]


def test_kafkas_tools_read_offsets_and_delete_records(
    kafka: Kafka, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    at = ("--bootstrap-server", bootstrap)
    sent = produce(kafka, bootstrap, topic)
    plan = {"partitions": [{"topic": topic, "partition": 0, "offset": 12}], "version": 1}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    said = kafka.run(DELETE_RECORDS, *at, "--offset-json-file", tmp_path / "plan.json").out
    assert re.search(r"low_watermark: 12\b", said), said
    for time, offset in (("earliest", 12), ("latest", LINES)):
        said = kafka.run(OFFSETS, *at, "--topic", topic, "--time", time).out
        assert said.split() == [f"{topic}:0:{offset}"], said
    assert consume(kafka, bootstrap, topic, LINES - 12, "--from-beginning") == sent[12:]


def test_kafkas_configs_tool_changes_the_settings_of_a_topic(
    kafka: Kafka, bootstrap: str, topic: str
) -> None:
    at = ("--bootstrap-server", bootstrap)
    kafka.run(TOPICS, *at, "--create", "--topic", topic)
    whole = (*at, "--entity-type", "topics", "--entity-name", topic)
    kafka.run(CONFIGS, *whole, "--alter", "--add-config", "max.message.bytes=123456")
    said = kafka.run(CONFIGS, *whole, "--describe", "--all").out
    assert "max.message.bytes=123456" in said, said
    assert re.search(r"compression\.type=producer", said), said


def test_the_java_client_accepts_the_announced_api_versions(kafka: Kafka, bootstrap: str) -> None:
    said = kafka.run(API_VERSIONS, "--bootstrap-server", bootstrap).out
    for api in ("Produce", "Fetch", "Metadata", "OffsetCommit", "JoinGroup"):
        assert re.search(rf"\b{api}\(\d+\): \d+ to \d+ \[usable: \d+\]", said), said


def test_a_java_transactional_producer_is_refused_at_once(
    kafka: Kafka, bootstrap: str, topic: str, request: pytest.FixtureRequest
) -> None:
    """`initTransactions()` fails within a second, with an error that no retry helps.

    The quickest of three: how long one stood still on a busy machine says nothing of the broker.
    """
    kafka.run(TOPICS, "--bootstrap-server", bootstrap, "--create", "--topic", topic)
    said = kafka.run(str(TRANSACTIONS), bootstrap, f"id-of-{topic}", topic).out
    outcomes, took_ms = set(said.split()[::2]), map(int, said.split()[1::2])
    if "Apache" in request.node.name:
        assert outcomes == {"begun"}, said  # so it is the answer that is judged, not the program
        return
    assert outcomes == {"TransactionalIdAuthorizationException"}, said
    assert min(took_ms) < REFUSED_WITHIN_MS, said
