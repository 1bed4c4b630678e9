"""Kafka's own command line tools, in Java, on a cluster of ours.

The same is demanded of Apache Kafka in `make soak`, so that a test that our broker fails is known
to be right. A tool's process costs a second, so the table of invocations runs in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from records.kafka_errors import ErrorCode
from records.rpc.brokers import UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import FIRST_BROKER, EskerCluster
from tests.interop import kafka_tools as tools
from tests.interop.kafka_run import Kafka, ToolFailedError
from tests.raft.driver.client import Client
from tests.waiting import wait_until

pytestmark = pytest.mark.java

TOPICS: Final = tools.CLASSES["topics"]
FEATURES: Final = tools.CLASSES["features"]
TRANSACTIONS: Final = Path(__file__).with_name("InitTransactions.java")

REFUSED_WITHIN_MS: Final = 1_000


@pytest.fixture(
    scope="module", params=["esker", pytest.param("Apache Kafka", marks=pytest.mark.soak)]
)
def bootstrap(
    request: pytest.FixtureRequest, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The addresses of a cluster, ours or Kafka's."""
    home = tmp_path_factory.mktemp("tools") / "cluster"
    if request.param == "esker":
        with EskerCluster(home, brokers=1, quorum=(1,)) as cluster:
            cluster.start()
            yield cluster.bootstrap
            cluster.check_alive()
    else:
        with apache_kafka(kafka, home) as world:
            yield world.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> Iterator[str]:
    """The name of a topic that is deleted at the end: the recorded answers list all topics."""
    name = f"tools-{uuid4().hex[:8]}"
    yield name
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result()
    wait_until(lambda: name not in admin.list_topics().topics, "the topic is deleted")


def test_kafkas_tools_print_the_recorded_answers_of_apache_kafka_or_recorded_differences(
    kafka: Kafka, bootstrap: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """All that need no transactions, no security and no newer group protocols."""
    system, broker = ("kafka", 1) if "Apache" in request.node.name else ("esker", FIRST_BROKER)
    found = tools.answers(kafka, bootstrap, broker, tmp_path)
    if request.config.getoption("--rewrite"):
        tools.rewrite(found, system)
    rows = tools.recorded()
    wrong = [
        "\n".join((invocation, *unified_diff(known.lines, answer.lines, n=0, lineterm="")))
        + f"\nexit code {answer.code}, not {known.code}"
        for invocation, answer, known in zip(
            tools.INVOCATIONS, found, tools.expected(rows, system), strict=True
        )
        if answer != known
    ]
    assert not wrong, "\n".join([*wrong, "Is it right so? Add --rewrite, and write the reason."])


def test_every_recorded_difference_between_kafkas_tools_on_esker_and_on_kafka_has_a_reason() -> (
    None
):
    for invocation, row in tools.recorded().items():
        assert ("esker" in row) == bool(row.get("why")), invocation


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
        assert re.search(row.format("esker.version", 1, 5, 5), said), said
    with pytest.raises(ToolFailedError, match=r"Can not upgrade group.version to 9\. The update"):
        kafka.run(
            tools.CLASSES["features"], *at, "upgrade", "--feature", "group.version=9", "--dry-run"
        )
    current = 27 if ours else 30
    said = kafka.run(
        tools.CLASSES["features"], *at, "upgrade", "--feature", f"metadata.version={current}"
    ).out
    assert said == f"metadata.version was upgraded to {current}.\n"


def test_a_broker_begins_a_java_producers_transaction(
    kafka: Kafka, bootstrap: str, topic: str
) -> None:
    kafka.run(TOPICS, "--bootstrap-server", bootstrap, "--create", "--topic", topic)
    said = kafka.run(str(TRANSACTIONS), bootstrap, f"id-of-{topic}", topic).out
    assert set(said.split()[::2]) == {"begun"}, said


@pytest.mark.soak  # the transactions row of the clients' table refuses other clients at level 0
def test_kafkas_features_tool_switches_transactions_off_for_a_java_producer_and_on_again(
    kafka: Kafka, bootstrap: str, topic: str, request: pytest.FixtureRequest
) -> None:
    """At level 0 `initTransactions()` fails within a second, with an error that no retry helps.

    The quickest of three: how long one stood still on a busy machine says nothing of the broker.
    """
    if "Apache" in request.node.name:
        pytest.skip("Kafka serves transactions at transaction.version 0, too")
    at = ("--bootstrap-server", bootstrap)
    feature = "transaction.version={}".format
    row = r"transaction\.version\s.*FinalizedVersionLevel: {}\s"

    def shows(level: int) -> bool:
        return re.search(row.format(level), kafka.run(FEATURES, *at, "describe").out) is not None

    kafka.run(TOPICS, *at, "--create", "--topic", topic)
    said = kafka.run(FEATURES, *at, "downgrade", "--feature", feature(0)).out
    assert said == "transaction.version was downgraded to 0.\n"
    wait_until(lambda: shows(0), "the broker shows transaction.version 0")
    said = kafka.run(str(TRANSACTIONS), bootstrap, f"id-of-{topic}", topic).out
    outcomes, took_ms = set(said.split()[::2]), map(int, said.split()[1::2])
    assert outcomes == {"TransactionalIdAuthorizationException"}, said
    assert min(took_ms) < REFUSED_WITHIN_MS, said
    said = kafka.run(FEATURES, *at, "upgrade", "--feature", feature(2)).out
    assert said == "transaction.version was upgraded to 2.\n"
    wait_until(lambda: shows(2), "the broker shows transaction.version 2")
    said = kafka.run(str(TRANSACTIONS), bootstrap, f"id-of-{topic}", topic).out
    assert set(said.split()[::2]) == {"begun"}, said
