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
from typer.testing import CliRunner

from esker.cli import app
from records.kafka_errors import ErrorCode
from records.rpc.brokers import UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import EskerCluster
from tests.interop.kafka_run import Kafka, ToolFailedError
from tests.raft.driver.client import Client

pytestmark = pytest.mark.java

TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"
GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS: Final = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS: Final = "org.apache.kafka.tools.DeleteRecordsCommand"
PRODUCER: Final = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FEATURES: Final = "org.apache.kafka.tools.FeatureCommand"
API_VERSIONS: Final = "org.apache.kafka.tools.BrokerApiVersionsCommand"
LOG_DIRS: Final = "org.apache.kafka.tools.LogDirsCommand"
REASSIGNMENTS: Final = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTIONS: Final = "org.apache.kafka.tools.LeaderElectionCommand"
ACLS: Final = "org.apache.kafka.tools.AclCommand"
CLIENT_METRICS: Final = "org.apache.kafka.tools.ClientMetricsCommand"
TRANSACTIONS_TOOL: Final = "org.apache.kafka.tools.TransactionsCommand"
TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
RUN_TOOLS: Final = Path(__file__).with_name("RunTools.java")
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


def test_the_java_client_finds_a_usable_version_of_each_api_that_a_broker_announces(
    kafka: Kafka, bootstrap: str
) -> None:
    said = kafka.run(API_VERSIONS, "--bootstrap-server", bootstrap).out
    for api in ("Produce", "Fetch", "Metadata", "OffsetCommit", "JoinGroup"):
        assert re.search(rf"\b{api}\(\d+\): \d+ to \d+ \[usable: \d+\]", said), said


UPGRADE, SAFE, UNSAFE = 1, 2, 3
RANGE: Final = r"Local controller \d+ only supports versions \d+-\d+"
REFUSED: Final = (
    ("no.such", 1, UPGRADE, r"Local controller \d+ does not support this feature\."),
    ("metadata.version", 99, UPGRADE, RANGE),
    ("metadata.version", 3, SAFE, RANGE),
    ("metadata.version", 0, UNSAFE, RANGE),
    ("metadata.version", -1, SAFE, r"A feature version cannot be less than 0\."),
    ("metadata.version", 20, 7, r"The controller does not support the given upgrade type\."),
    (
        "metadata.version",
        20,
        UPGRADE,
        r"Can't downgrade the version of this feature without setting the upgrade type to either "
        r"safe or unsafe downgrade\.",
    ),
)
"""Features, levels, types of upgrade, and the ends of Kafka's sentences."""

DOWNGRADES: Final = (
    (SAFE, "Refusing to perform the requested downgrade because it might delete metadata "
           "information."),
    (UNSAFE, "Unsafe metadata downgrade is not supported in this version."),
)  # fmt: skip
ALL_FAILED: Final = "The update failed for all features since the following feature had an error: "


def assert_refused(answer: UpdateFeaturesResponse, first: str, rest: str) -> None:
    """Check that the update is refused with this sentence: its first words, and a pattern."""
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION, answer
    message = answer.error_message or ""
    assert message.startswith(ALL_FAILED + first), message
    assert re.fullmatch(rest, message.removeprefix(ALL_FAILED + first)), message
    assert not answer.results


def test_refused_feature_updates_get_kafkas_error_codes_and_messages(bootstrap: str) -> None:
    host, _, port = bootstrap.partition(",")[0].partition(":")
    update = UpdateFeaturesRequest.FeatureUpdateKey
    with Client(host, int(port), timeout_s=30) as client:

        def ask(version: int, *updates: tuple[str, int, int]) -> UpdateFeaturesResponse:
            wanted = tuple(
                update(feature=name, max_version_level=level, upgrade_type=kind)
                for name, level, kind in updates
            )
            request = UpdateFeaturesRequest(feature_updates=wanted, validate_only=True)
            return client.ask(request, UpdateFeaturesResponse, version)

        for version in (1, 2):
            for name, level, kind, sentence in REFUSED:
                first = f"Invalid update version {level} for feature {name}. "
                assert_refused(ask(version, (name, level, kind)), first, sentence)
            for kind, reason in DOWNGRADES:
                answer = ask(version, ("metadata.version", 20, kind))
                first = "Unsupported metadata.version downgrade from "
                assert_refused(answer, first, rf"\d+ to 20\. {re.escape(reason)}")
            both = ask(version, ("group.version", 0, SAFE), ("no.such", 1, UPGRADE))
            assert both.error_code == ErrorCode.INVALID_UPDATE_VERSION, both
            accepted = ask(version, ("transaction.version", 0, SAFE))
            assert (accepted.error_code, accepted.error_message) == (0, None), accepted
            results = [(result.feature, result.error_code) for result in accepted.results]
            assert results == ([("transaction.version", 0)] if version == 1 else [])


def test_kafkas_features_tool_describes_and_updates_features(
    kafka: Kafka, bootstrap: str, request: pytest.FixtureRequest
) -> None:
    at, ours = ("--bootstrap-server", bootstrap), "Apache" not in request.node.name
    said = kafka.run(FEATURES, *at, "describe").out
    row = (
        r"Feature: {}\s+SupportedMinVersion: {}\s+SupportedMaxVersion: {}\s+"
        r"FinalizedVersionLevel: {}\s+Epoch: \d+"
    )
    for name in ("group.version", "kraft.version", "transaction.version"):
        assert re.search(row.format(name, 0, r"\d", r"\d"), said), said
    assert re.search(row.format("metadata.version", *[r"\d\.\d-IV\d"] * 3), said), said
    if ours:
        assert re.search(row.format("esker.version", 1, 3, 3), said), said
    with pytest.raises(ToolFailedError, match=r"Can not upgrade group.version to 9\. The update"):
        kafka.run(FEATURES, *at, "upgrade", "--feature", "group.version=9", "--dry-run")
    current = 27 if ours else 30
    said = kafka.run(FEATURES, *at, "upgrade", "--feature", f"metadata.version={current}").out
    assert said == f"metadata.version was upgraded to {current}.\n"


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


ADMINISTRATION: Final = (
    (LOG_DIRS, "--describe --topic-list {topic}", 0, r'"partition":"{topic}-0","size":[1-9]'),
    (REASSIGNMENTS, "--list", 0, "No partition reassignments found"),
    (REASSIGNMENTS, "--generate --topics-to-move-json-file {topics} --broker-list {broker}", 0,
     r'Proposed partition reassignment configuration\s.*"topic":"{topic}","partition":0'),
    (REASSIGNMENTS, "--execute --reassignment-json-file {moves}", 0, "Successfully started"),
    (ELECTIONS, "--election-type preferred --topic {topic} --partition 0", 0, "already elected"),
    (ELECTIONS, "--election-type unclean --topic {topic} --partition 0", 0, "already elected"),
    (ELECTIONS, "--election-type preferred --all-topic-partitions", 0, ""),
    (ACLS, "--list", 1, "No Authorizer is configured"),
    (ACLS, "--add --allow-principal User:ann --operation Read --topic {topic}", 1,
     "No Authorizer is configured"),
    (CONFIGS, "--entity-type users --describe", 0, r"^\s*$"),
    (CONFIGS, "--entity-type clients --describe", 0, r"^\s*$"),
    (CONFIGS, "--entity-type ips --describe", 0, r"^\s*$"),
    (CONFIGS, "--entity-type groups --describe", 0,
     r"\A(\s*Dynamic configs for group \S+ are:)*\s*\Z"),
    (CONFIGS, "--entity-type groups --entity-name nobody --describe", 0, "doesn't exist"),
    (CONFIGS, "--entity-type client-metrics --describe", 0, r"^\s*$"),
    (CONFIGS, "--entity-type client-metrics --entity-name nobody --describe", 0, "doesn't exist"),
    (CONFIGS, "--entity-type broker-loggers --entity-name {broker} --describe", 0,
     r"root=(INFO|ERROR)\b"),
    (CLIENT_METRICS, "--list", 0, ""),
    (GROUPS, "--group {group} --topic {topic} --reset-offsets --to-earliest --execute", 0,
     r"{group}\s+{topic}\s+0\s+0"),
    (GROUPS, "--delete-offsets --group {group} --topic {topic}", 0, r"{topic}\s+0\s+Successful"),
    (GROUPS, "--delete-offsets --group nobody --topic {topic}", 0,
     "group id does not exist|not found"),
    (TRANSACTIONS_TOOL, "list", 0, r"^TransactionalId\s+Coordinator\s+ProducerId\s+\S+\s*$"),
    (TRANSACTIONS_TOOL, "describe-producers --topic {topic} --partition 0", 0,
     r"ProducerId.*\n\d+\s+0\s+-1\s+\d+\s+\d+\s+None"),
    (TOKENS, "--describe --command-config {empty}", 1, "Delegation Token requests are not allowed"),
)  # fmt: skip
"""Tool, arguments, exit code, and what the tool says: the same of Esker and of Apache Kafka."""


def test_kafkas_elect_leaders_and_reassignment_tools_run_without_errors_against_esker(
    kafka: Kafka, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Without security, transactions and replicas that move. All tools run in one process."""
    produce(kafka, bootstrap, topic)
    said = kafka.run(TOPICS, "--bootstrap-server", bootstrap, "--describe", "--topic", topic).out
    (broker,) = re.findall(r"Leader: (\d+)", said)
    moves = {
        "version": 1,
        "partitions": [{"topic": topic, "partition": 0, "replicas": [int(broker)]}],
    }
    (tmp_path / "topics").write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    (tmp_path / "moves").write_text(json.dumps(moves))
    (tmp_path / "empty").write_text("")
    names = {"topic": topic, "group": f"group-of-{topic}", "broker": broker}
    names |= {name: str(tmp_path / name) for name in ("topics", "moves", "empty")}
    lines = [
        "\t".join((tool, "--bootstrap-server", bootstrap, *words.format(**names).split()))
        for tool, words, _, _ in ADMINISTRATION
    ]
    said = kafka.run(str(RUN_TOOLS), stdin="".join(f"{line}\n" for line in lines)).out
    outputs = re.split(r"^### (?=\d+$)", said, flags=re.MULTILINE)[1:]
    assert len(outputs) == len(ADMINISTRATION), said
    wrong = []
    for (tool, words, code, pattern), output in zip(ADMINISTRATION, outputs, strict=True):
        ended, _, written = output.partition("\n")
        expected = re.sub(r"\{(\w+)\}", lambda match: names[match[1]], pattern)
        if int(ended) != code or not re.search(expected, written):
            wrong.append(f"{tool} {words}: {ended}\n{written[:600]}")
    assert not wrong, "\n".join(wrong)


RESETS: Final = (
    "--topic {topic} --to-earliest",
    "--topic {topic} --to-latest",
    "--topic {topic}:0 --to-offset 14",
    "--topic {topic}:0 --to-offset 3",
    "--topic {topic} --to-offset 1000",
    "--topic {topic} --to-current",
    "--all-topics --shift-by -7",
    "--all-topics --shift-by 100",
    "--topic {topic} --to-datetime 2020-01-31T12:00:00.000",
    "--topic {topic} --to-datetime 2999-01-31T12:00:00.000",
    "--topic {topic} --by-duration P1D",
    "--from-file {plan}",
    "--topic {topic} --shift-by 3 --execute",
)
"""Rules, each as the options of both tools; the last one commits."""


def test_eskers_commands_and_kafkas_tools_reset_offsets_and_delete_records_alike(
    kafka: Kafka, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """All runs of Kafka's tool are in one process; the committing rule runs there last."""
    produce(kafka, bootstrap, topic)

    def esker(*words: str) -> list[dict[str, int]]:
        ran = CliRunner().invoke(app, [*words, "--json", "--bootstrap-server", bootstrap])
        assert ran.exit_code == 0, (words, ran.stderr)
        rows: list[dict[str, int]] = json.loads(ran.stdout)["partitions"]
        return rows

    (deleted,) = esker("records", "delete", topic, "--partition", "0", "--before-offset", "12")
    assert deleted["lowWatermark"] == 12
    group, plan = f"group-of-{topic}", tmp_path / "plan"
    esker("groups", "reset-offsets", group, "--topic", topic, "--to-offset", "20", "--execute")
    plan.write_text(f"{topic},0,17\n")
    rules = [rule.format(topic=topic, plan=plan).split() for rule in RESETS]
    ours = [esker("groups", "reset-offsets", group, *rule) for rule in rules[:-1]]
    start = ["--bootstrap-server", bootstrap, "--reset-offsets", "--group", group]
    lines = ["\t".join([GROUPS, *start, *rule]) for rule in rules]
    said = kafka.run(str(RUN_TOOLS), stdin="".join(f"{line}\n" for line in lines)).out
    theirs = [
        [(int(row[0]), int(row[1])) for row in re.findall(rf"{topic}\s+(\d+)\s+(\d+)", output)]
        for output in re.split(r"^### \d+$", said, flags=re.MULTILINE)[1:]
    ]
    shown = [[(row["partition"], row["newOffset"]) for row in rows] for rows in ours]
    assert shown == theirs[:-1], said
    (now,) = esker("groups", "describe", group)
    assert [(0, now["committed"])] == theirs[-1] == [(0, 23)]
    kafka_file = json.dumps(
        {"partitions": [{"topic": topic, "partition": 0, "offset": 15}], "version": 1}
    )
    (tmp_path / "offsets.json").write_text(kafka_file)
    (deleted,) = esker("records", "delete", "--from-file", str(tmp_path / "offsets.json"))
    said = kafka.run(DELETE_RECORDS, "--bootstrap-server", bootstrap,
                     "--offset-json-file", tmp_path / "offsets.json").out  # fmt: skip
    assert f"low_watermark: {deleted['lowWatermark']}" in said, said
