"""`esker topics`, `configs`, `brokers` and `chunks` against a running quorum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest
from typer.testing import CliRunner

from esker.cli import app
from esker.commands.brokers import preference_of, state_of
from records.rpc.descriptions import DescribeBrokersResponse
from tests.coordinator.controller.test_processes import BROKERS, Story
from tests.quorum_processes import NODES, Quorum
from tests.waiting import wait_until

RUNNER: Final = CliRunner()
SESSION_MS: Final = 600_000  # brokers send no heartbeats by themselves


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Start three nodes, and register and unfence three brokers by script."""
    with Quorum(tmp_path_factory.mktemp("quorum")) as quorum:
        for node in NODES:
            with quorum.properties(node).open("a") as file:
                file.write(f"broker.session.timeout.ms={SESSION_MS}\n")
        quorum.start(*NODES)
        quorum.ready()
        story = Story(quorum)
        story.register()
        yield story


class Esker:
    """Runs `esker` against one node, which need not be the leader."""

    def __init__(self, story: Story) -> None:
        self.bootstrap = ("--bootstrap-controller", f"127.0.0.1:{story.quorum.ports[NODES[-1]]}")

    def __call__(self, *words: str, code: int = 0) -> str:
        ran = RUNNER.invoke(app, [*words, *self.bootstrap])
        assert ran.exit_code == code, f"{words}: {ran.exit_code}\n{ran.output}\n{ran.exception!r}"
        return ran.stdout if code == 0 else ran.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def esker(story: Story) -> Esker:
    return Esker(story)


def test_topic_commands_create_alter_and_delete_a_topic_through_a_controller(esker: Esker) -> None:
    created = esker("topics", "create", "--topic", "orders", "--partitions", "2",
                    "--replication-factor", "2", "--config", "retention.ms=60000")  # fmt: skip
    assert created.startswith("Created topic orders with id ")
    assert "orders" in esker("topics", "list").split()
    assert "__diskless-metadata" in esker("topics", "list").split()
    diskless = esker.json("topics", "list", "--diskless")["topics"]
    assert "orders" in diskless
    assert "__diskless-metadata" not in diskless

    def led() -> Any:
        """Return the topic once no broker is fenced, as all may be on a busy machine."""
        (topic,) = esker.json("topics", "describe", "--topic", "orders")["topics"]
        return topic if all(one["leader"] >= 0 for one in topic["partitions"]) else None

    orders = wait_until(led, "all partitions have leaders")
    assert orders["configs"] == {"retention.ms": "60000"}
    for partition in orders["partitions"]:
        assert partition["replicas"] == [partition["leader"]], "all brokers are in one rack"
    assert "Configs: retention.ms=60000" in esker("topics", "describe", "--topic", "orders")
    again = esker("topics", "create", "--topic", "orders", code=1)
    assert again.startswith("esker: ")
    assert "orders" in again

    esker("configs", "alter", "--entity-type", "topics", "--entity-name", "orders",
          "--add-config", "retention.bytes=1000,segment.bytes=1048576,cleanup.policy=[delete]",
          "--delete-config", "retention.ms,max.message.bytes")  # fmt: skip
    table = esker("configs", "describe", "--entity-type", "topics", "--entity-name", "orders")
    assert "retention.bytes" in table
    assert "retention.ms" not in table
    everything = esker.json(
        "configs", "describe", "--entity-type", "topics", "--entity-name", "orders", "--all"
    )
    sources = {one["name"]: one["source"] for one in everything["configs"]}
    assert sources["retention.bytes"] == "DYNAMIC_TOPIC_CONFIG"
    assert sources["segment.bytes"] == sources["cleanup.policy"] == "DYNAMIC_TOPIC_CONFIG"
    assert sources["retention.ms"] == "DEFAULT_CONFIG"

    assert "4 partitions" in esker("topics", "alter", "--topic", "orders", "--partitions", "4")
    esker("topics", "alter", "--topic", "orders", "--partitions", "3", code=1)
    assert "PartitionCount: 4" in esker("topics", "describe", "--topic", "orders")
    assert "orders" in esker("diskless", "describe")
    assert esker("topics", "delete", "--topic", "orders") == "Deleted topic orders.\n"
    assert "orders" in esker("topics", "describe", "--topic", "orders", code=1)


def test_the_topics_command_names_the_invalid_setting_in_its_error(esker: Esker) -> None:
    for setting in ("cleanup.policy=compressed", "diskless.enable=false", "no.such.key=1"):
        refused = esker("topics", "create", "--topic", "bad", "--config", setting, code=1)
        assert setting.partition("=")[0] in refused
    assert "internal" in esker(
        "configs", "alter", "--entity-type", "topics", "--entity-name", "__cluster_metadata",
        "--add-config", "cleanup.policy=delete", code=1,
    )  # fmt: skip
    shown = esker("configs", "describe", "--entity-type", "topics", "--entity-name",
                  "__cluster_metadata", "--all")  # fmt: skip
    assert "snapshot" in shown
    esker("topics", "delete", "--topic", "__diskless-metadata", code=1)
    esker("topics", "create", "--topic", "no/such/name", code=1)


def test_the_brokers_command_lists_brokers_with_their_state(story: Story, esker: Esker) -> None:
    story.beat()
    shown = esker.json("brokers", "list")["brokers"]
    assert [broker["id"] for broker in shown] == list(BROKERS)
    assert {broker["epoch"] for broker in shown} == set(story.epochs.values())
    assert str(BROKERS[0]) in esker("brokers", "list")
    assert "2000" in esker("brokers", "unregister", "--id", "2000", code=1)


def test_the_brokers_command_shows_a_fenced_broker_as_fenced_even_in_controlled_shutdown() -> None:
    make_broker = DescribeBrokersResponse.Broker
    cases = (
        (False, False, "active"),
        (False, True, "shutting down"),
        (True, True, "fenced"),
        (True, False, "fenced"),
    )
    for fenced, leaving, state in cases:
        broker = make_broker(
            broker_id=1, broker_epoch=1, rack=None, is_fenced=fenced,
            in_controlled_shutdown=leaving, listeners=(),
        )  # fmt: skip
        assert state_of(broker) == state
        assert preference_of(broker) == "yes"
        unready = msgspec.structs.replace(cast(Any, broker), unpreferred_reason="full")
        assert preference_of(unready) == "no: full"


def test_chunk_commands_create_and_move_chunks_with_the_json_files_of_kip_1114(
    esker: Esker, tmp_path: Path
) -> None:
    esker("topics", "create", "--topic", "cut", "--partitions", "1", "--replication-factor", "2")
    (cut,) = esker.json("topics", "describe", "--topic", "cut")["topics"]
    assert cut["partitions"][0]["chunks"] == []
    file = tmp_path / "create.json"
    entry = {"topic": "cut", "partition": 0, "replicas": list(BROKERS[:2])}
    file.write_text(json.dumps({"partitions": [entry]}))
    # The partition is empty, and an empty range is no chunk.
    assert "cut-0" in esker("chunks", "create", "--create-chunk-json-file", str(file), code=1)
    for bad in ("{", "[]", '{"partitions": [{"topic": "cut"}]}', '{"partitions": []}'):
        file.write_text(bad)
        assert str(file) in esker("chunks", "create", "--create-chunk-json-file", str(file), code=1)
    entry["topic"] = "nowhere"
    file.write_text(json.dumps({"partitions": [entry]}))
    assert "nowhere" in esker("chunks", "create", "--create-chunk-json-file", str(file), code=1)
    moved = {"topic": "cut", "partition": 0, "startOffset": 7, "replicas": list(BROKERS[:2])}
    file.write_text(json.dumps({"chunks": [moved]}))
    assert "cut-0 chunk 7" in esker("chunks", "alter", "--alter-chunk-json-file", str(file), code=1)
    assert "No such file" in esker("chunks", "alter", "--alter-chunk-json-file", "none", code=1)


def test_the_topics_describe_command_prints_topics_of_different_coordinators(esker: Esker) -> None:
    wanted = [f"spread-{number}" for number in range(5)]
    esker("topics", "create", "--topic", wanted[0])  # where all is
    esker("topics", "alter", "--topic", "__diskless-metadata", "--partitions", "2")
    for topic in wanted[1:]:  # where less is
        esker("topics", "create", "--topic", topic)
    described = esker.json("topics", "describe")["topics"]
    where = {p["coordinator"] for t in described for p in t["partitions"] if t["topic"] in wanted}
    assert where == {0, 1}, "or this says nothing"
    found = esker.json("diskless", "describe", *wanted)
    assert [one["coordinator"] for one in found["coordinators"]] == [0, 1]
    assert [topic["topic"] for topic in found["topics"]] == wanted
    one = esker("diskless", "describe", *wanted, "--coordinator", "1", code=1)
    assert "no such diskless topic: spread-" in one
