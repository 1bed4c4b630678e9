"""Topics, settings and groups, as each library administers them."""

from __future__ import annotations

import time
from typing import Final

import pytest

from tests.clients.client import UNKNOWN_TOPIC_OR_PARTITION, Client, How, Refused
from tests.clients.world import World, check_sent, numbered
from tests.waiting import wait_until

PARTITIONS: Final = 3
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_CONFIG: Final = 40
INVALID_TOPIC: Final = 17
INVALID_PARTITIONS: Final = 37
POLICY_VIOLATION: Final = 44
SECURITY_DISABLED: Final = 54
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
ELECTION_NOT_NEEDED: Final = 84
RESOURCE_NOT_FOUND: Final = 91
REFUSED_WITHIN_S: Final = 20.0  # libraries try for a minute what might pass


def create_topic(client: Client, world: World) -> None:
    """It is there for everybody once creating it is answered; twice is refused."""
    topic = world.name()
    client.create_topic(topic, PARTITIONS, {"retention.ms": "3600000"})
    for broker in world.brokers:  # at once, whichever broker is asked
        with type(client)(broker) as other:
            assert set(other.leaders(topic)) == set(range(PARTITIONS))
    check_sent(client, topic, numbered(3), How(partition=0))
    with pytest.raises(Refused) as refused:
        client.create_topic(topic, PARTITIONS, {})
    assert refused.value.code == TOPIC_ALREADY_EXISTS


def list_topics(client: Client, world: World) -> None:
    """All of them, asked for without a name."""
    made = {world.topic(), world.topic(PARTITIONS)}
    assert made <= client.topics()


def create_partitions(client: Client, world: World) -> None:
    """More of them, which can be written to."""
    topic = world.topic()
    client.create_partitions(topic, PARTITIONS)
    wait_until(lambda: len(client.leaders(topic)) == PARTITIONS, "all partitions are there")
    client.send(topic, numbered(3), How(partition=PARTITIONS - 1))
    assert len(client.read(topic, 3, partition=PARTITIONS - 1)) == 3


def delete_topic(client: Client, world: World) -> None:
    """It is gone, and its name is free."""
    topic = world.topic()
    check_sent(client, topic, numbered(3))
    client.delete_topic(topic)
    with pytest.raises(Refused) as refused:
        client.delete_topic(topic)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


def delete_records(client: Client, world: World) -> None:
    """What is before an offset is not there any more; deleting beyond the end is refused."""
    topic = world.topic()
    check_sent(client, topic, numbered(20))
    client.delete_records(topic, 0, 8)
    found = client.read(topic, 12)
    assert [one.offset for one in found] == list(range(8, 20))
    with pytest.raises(Refused) as refused:
        client.delete_records(topic, 0, 21)
    assert refused.value.code == 1, refused.value  # OFFSET_OUT_OF_RANGE


def describe_configs(client: Client, world: World) -> None:
    """What was set and what was not."""
    topic = world.topic(configs={"retention.ms": "7200000"})
    found = client.describe_topic(topic)
    assert found["retention.ms"] == "7200000"
    assert found["cleanup.policy"] == "delete"
    assert found["compression.type"] == "producer"
    assert found["message.timestamp.type"] == "CreateTime"


def alter_configs(client: Client, world: World) -> None:
    """A change is there for who asks next; an impossible one is refused, and changes nothing."""
    topic = world.topic()
    client.alter_topic(topic, "retention.ms", "7200000")
    wait_until(
        lambda: client.describe_topic(topic)["retention.ms"] == "7200000", "the change is there"
    )
    with pytest.raises(Refused) as refused:
        client.alter_topic(topic, "retention.ms", "soon")
    assert refused.value.code == INVALID_CONFIG, refused.value
    wait_until(  # another broker may be asked than before
        lambda: client.describe_topic(topic)["retention.ms"] == "7200000", "nothing has changed"
    )


def replace_configs(client: Client, world: World) -> None:
    """AlterConfigs resets each setting that it does not name; an invalid value changes none."""
    topic = world.topic(configs={"retention.ms": "7200000"})
    client.replace_settings(topic, {"max.message.bytes": "4321"})

    def is_replaced() -> bool:
        found = client.describe_topic(topic)
        return (found["max.message.bytes"], found["retention.ms"]) == ("4321", "604800000")

    wait_until(is_replaced, "the settings are replaced")
    with pytest.raises(Refused) as refused:
        client.replace_settings(topic, {"no.such": "1"})
    assert refused.value.code == INVALID_CONFIG, refused.value
    wait_until(is_replaced, "nothing has changed")


def elections(client: Client, world: World) -> None:
    """Every partition has the best leader; one that is not there has none."""
    topic = world.topic()
    with pytest.raises(Refused) as refused:
        client.elect_leader(topic, 0)
    assert refused.value.code == ELECTION_NOT_NEEDED, refused.value
    with pytest.raises(Refused) as refused:
        client.elect_leader(topic, 9)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION, refused.value


def no_security(client: Client, world: World) -> None:
    """Requests for access rules and credentials are answered at once that there are none."""
    topic = world.topic()
    assert client.access_rules() == 0  # librdkafka does not hand on that security is disabled
    with pytest.raises(Refused) as refused:
        client.add_access_rule(topic)
    assert refused.value.code == SECURITY_DISABLED, refused.value
    assert client.credentials() == 0
    with pytest.raises(Refused) as refused:
        client.credentials("ann")
    assert refused.value.code == RESOURCE_NOT_FOUND, refused.value


def groups(client: Client, world: World) -> None:
    """A group is listed, stable while it has a member, and empty after."""
    topic, group = world.topic(), world.name("group")
    world.other.send(topic, numbered(3))
    with client.join(group, topic) as member:
        member.read(3)
        assert group in client.list_groups()
        assert client.describe_group(group) == ("STABLE", 1)
    wait_until(lambda: client.describe_group(group) == ("EMPTY", 0), "the group is empty")


def group_offsets(client: Client, world: World) -> None:
    """What a group has committed, seen from outside."""
    topic, group = world.topic(PARTITIONS), world.name("group")
    for partition in range(PARTITIONS):
        world.other.send(topic, numbered(partition + 1), How(partition=partition))
    with client.join(group, topic) as member:
        member.read(1 + 2 + 3)
    assert client.committed(group, topic) == {0: 1, 1: 2, 2: 3}


def delete_groups(client: Client, world: World) -> None:
    """Not while it has a member; then it is gone, and whoever comes begins anew."""
    topic, group = world.topic(), world.name("group")
    world.other.send(topic, numbered(3))
    with client.join(group, topic) as member:
        member.read(3)
        with pytest.raises(Refused) as refused:
            client.delete_group(group)
        assert refused.value.code == NON_EMPTY_GROUP, refused.value
    assert client.committed(group, topic) == {0: 3}
    client.delete_group(group)
    assert group not in client.list_groups()
    assert client.committed(group, topic) == {}
    with pytest.raises(Refused) as refused:
        client.delete_group(group)
    assert refused.value.code == GROUP_ID_NOT_FOUND, refused.value
    with client.join(group, topic) as member:
        assert len(member.read(3)) == 3


def refused_topics(client: Client, world: World) -> None:
    """Names against the rules, and settings that would promise what is not kept."""
    for name in ("no spaces", "x" * 250, ".."):
        with pytest.raises(Refused) as refused:
            client.create_topic(name, 1, {})
        assert refused.value.code == INVALID_TOPIC, refused.value
    for configs in (
        {"cleanup.policy": "none"},
        {"remote.storage.enable": "true"},
        {"no.such": "1"},
    ):
        with pytest.raises(Refused) as refused:
            client.create_topic(world.name(), 1, configs)
        assert refused.value.code == INVALID_CONFIG, f"{configs}: {refused.value}"
    with pytest.raises(Refused) as refused:
        client.create_topic(world.name(), 0, {})
    assert refused.value.code == INVALID_PARTITIONS, refused.value


def internal_topics(client: Client, world: World) -> None:
    """Nobody deletes from them, nor them."""
    world.other.send(topic := world.topic(), numbered(1))
    with client.join(world.name("group"), topic) as member:
        member.read(1)  # so that Kafka has made its own
    with pytest.raises(Refused) as refused:
        client.delete_records("__consumer_offsets", 0, 0)
    assert refused.value.code == POLICY_VIOLATION, refused.value


def no_transactions(client: Client, world: World) -> None:
    """Refused at once, and for good: nobody waits for a transaction that cannot be."""
    began = time.monotonic()
    with pytest.raises(Refused) as refused:
        client.begin_transactions(world.name("transactional"))
    took_s = time.monotonic() - began
    assert took_s < REFUSED_WITHIN_S, f"{took_s:.2f} s until {refused.value}"
