"""Apache Kafka's own group tools and consumer, asked of our brokers: what an operator types."""

from __future__ import annotations

from typing import Final

import pytest

from tests.clients.client import Message
from tests.clients.confluent import Confluent
from tests.clients.world import World
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.java, pytest.mark.timeout(660)]

CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
COOPERATIVE: Final = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
MESSAGES: Final = 60
PARTITIONS: Final = 3


class Tools:
    """Both, as a person calls them."""

    def __init__(self, kafka: Kafka, world: World) -> None:
        self._kafka = kafka
        self._server = ("--bootstrap-server", world.bootstrap)

    def consume(self, topic: str, group: str, count: int, *more: str) -> list[str]:
        """What a Java consumer reads as the one member of a group, before it leaves."""
        words = ("--topic", topic, "--group", group, "--from-beginning")
        until = ("--max-messages", str(count), "--timeout-ms", "30000")
        said = self._kafka.run(CONSUMER, *self._server, *words, *until, *more)
        return [line for line in said.out.splitlines() if line.startswith("v")]

    def groups(self, *words: str) -> list[list[str]]:
        """The rows of what the group tool prints, in words."""
        said = self._kafka.run(GROUPS, *self._server, *words)
        return [line.split() for line in said.out.splitlines() if line.strip()]


@pytest.fixture
def tools(kafka: Kafka, world: World) -> Tools:
    return Tools(kafka, world)


@pytest.fixture
def topic(world: World) -> str:
    name = world.topic(PARTITIONS)
    with Confluent(world.bootstrap) as client:
        values = [f"v{number:02}".encode() for number in range(MESSAGES)]
        client.send(name, [Message(value, key=value) for value in values])
    return name


def test_kafkas_group_tool_describes_a_java_consumer_that_joined_and_committed(
    tools: Tools, topic: str, world: World
) -> None:
    group = world.name("group")
    read = tools.consume(topic, group, MESSAGES)
    assert sorted(read) == [f"v{number:02}" for number in range(MESSAGES)]
    assert [group] in tools.groups("--list")
    assert [group, "Empty"] in tools.groups("--list", "--state")
    rows = {
        row[2]: (row[3], row[4], row[5])
        for row in tools.groups("--describe", "--group", group)
        if row[:2] == [group, topic]
    }
    assert set(rows) == {str(partition) for partition in range(PARTITIONS)}
    assert all(current == end and lag == "0" for current, end, lag in rows.values())
    assert sum(int(end) for _, end, _ in rows.values()) == MESSAGES


def test_a_static_cooperative_java_consumer_resumes_at_offsets_reset_by_kafkas_tool(
    tools: Tools, topic: str, world: World
) -> None:
    group = world.name("group")
    static = ("--command-property", "group.instance.id=one",
              "--command-property", f"partition.assignment.strategy={COOPERATIVE}",
              "--command-property", "session.timeout.ms=200000")  # fmt: skip
    assert len(tools.consume(topic, group, MESSAGES)) == MESSAGES
    rows = tools.groups(
        "--group", group, "--topic", topic, "--reset-offsets", "--to-offset", "2", "--execute"
    )
    assert sorted(row for row in rows if row[0] == group) == [
        [group, topic, str(partition), "2"] for partition in range(PARTITIONS)
    ]
    left = MESSAGES - 2 * PARTITIONS
    assert len(tools.consume(topic, group, left, *static)) == left
    (member,) = (
        row for row in tools.groups("--describe", "--group", group, "--members") if row[0] == group
    )
    assert member[1].startswith("one-"), "it did not leave: its session runs"
    assert member[2] == "one"
    assert member[5] == str(PARTITIONS)


def test_kafkas_tool_deletes_a_group_without_members(
    tools: Tools, topic: str, world: World
) -> None:
    group = world.name("group")
    assert len(tools.consume(topic, group, MESSAGES)) == MESSAGES
    tools.groups("--delete", "--group", group)
    assert [group] not in tools.groups("--list")
    assert len(tools.consume(topic, group, MESSAGES)) == MESSAGES, "it begins anew"
