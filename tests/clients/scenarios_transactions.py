"""Transactions, row by row: all of a transaction's records and offsets count, or none."""

from __future__ import annotations

from typing import Final

import pytest

from tests.clients.client import Client, Message, Reader, Refused
from tests.clients.world import World
from tests.waiting import wait_until

QUICK_TIMEOUT_MS: Final = 1_500
SILENCE_S: Final = 0.5
"""How long a reader is watched that must not get anything. It only helps to find a defect."""


def read_values(reader: Reader, count: int) -> list[bytes | None]:
    """Return the values of so many records."""
    return [one.value for one in reader.read(count)]


def committed_transaction(client: Client, world: World) -> None:
    """Every reader gets the records of a committed transaction, in all partitions."""
    topic = world.topic(partitions=2)
    with client.open_transactional(world.name("id")) as producer:
        for batch in ((b"a", b"b"), (b"c", b"d")):
            producer.begin()
            for partition in (0, 1):
                producer.send(topic, batch, partition)
            producer.commit()
    for partition in (0, 1):
        for committed_only in (True, False):
            with client.follow(topic, partition, 0, committed_only=committed_only) as reader:
                got = reader.read(4)
                assert [one.value for one in got] == [b"a", b"b", b"c", b"d"]
                assert [one.offset for one in got] == [0, 1, 3, 4]  # 2 is a marker


def aborted_transaction(client: Client, world: World) -> None:
    """A reader of committed records gets nothing of an aborted transaction, any other does."""
    topic = world.topic()
    with client.open_transactional(world.name("id")) as producer:
        producer.begin()
        producer.send(topic, (b"aborted",))
        producer.abort()
        producer.begin()
        producer.send(topic, (b"committed",))
        producer.commit()
    with client.follow(topic, 0, 0, committed_only=True) as reader:
        assert read_values(reader, 1) == [b"committed"]
    with client.follow(topic, 0, 0) as reader:
        assert read_values(reader, 2) == [b"aborted", b"committed"]


def open_transaction(client: Client, world: World) -> None:
    """Records behind an open transaction wait for its end, also those of other producers."""
    topic = world.topic()
    with client.open_transactional(world.name("id")) as producer:
        producer.begin()
        producer.send(topic, (b"open",))
        world.other.send(topic, [Message(b"plain")])
        with client.follow(topic, 0, 0) as reader:
            assert read_values(reader, 2) == [b"open", b"plain"]
        with client.follow(topic, 0, 0, committed_only=True) as reader:
            assert reader.poll(SILENCE_S) == []
            producer.commit()
            assert read_values(reader, 2) == [b"open", b"plain"]


def empty_transactions(client: Client, world: World) -> None:
    """A transaction without records writes nothing, whether committed or aborted."""
    topic = world.topic()
    with client.open_transactional(world.name("id")) as producer:
        producer.begin()
        producer.commit()
        producer.begin()
        producer.abort()
        producer.begin()
        producer.send(topic, (b"first",))
        producer.commit()
    with client.follow(topic, 0, 0, committed_only=True) as reader:
        (first,) = reader.read(1)
        assert (first.offset, first.value) == (0, b"first")


def fenced_producer(client: Client, world: World) -> None:
    """A second producer of an id aborts the first one's transaction, and ends the first one."""
    topic, transactional_id = world.topic(), world.name("id")
    former = client.open_transactional(transactional_id)
    former.begin()
    former.send(topic, (b"former",))
    with client.open_transactional(transactional_id) as producer:
        producer.begin()
        producer.send(topic, (b"second",))
        with pytest.raises(Refused):
            former.commit()
        producer.commit()
    with client.follow(topic, 0, 0, committed_only=True) as reader:
        assert read_values(reader, 1) == [b"second"]
    former.close()


def timed_out_transaction(client: Client, world: World) -> None:
    """The broker aborts a transaction that is open for longer than its timeout."""
    topic = world.topic()
    producer = client.open_transactional(world.name("id"), timeout_ms=QUICK_TIMEOUT_MS)
    producer.begin()
    producer.send(topic, (b"late",))
    world.other.send(topic, [Message(b"plain")])
    with client.follow(topic, 0, 0, committed_only=True) as reader:
        assert read_values(reader, 1) == [b"plain"]
    with pytest.raises(Refused):
        producer.commit()
    producer.close()


def transactional_offsets(client: Client, world: World) -> None:
    """A group's offsets count with the commit of their transaction, and not after an abort."""
    topic, output, group = world.topic(), world.topic(), world.name("group")
    world.other.send(topic, [Message(b"%d" % number) for number in range(6)])
    with client.open_transactional(world.name("id")) as producer:
        producer.begin()
        producer.send(output, (b"out",))
        producer.send_offsets(group, topic, {0: 2})
        assert world.other.committed(group, topic).get(0, -1) < 0
        producer.commit()
        wait_until(lambda: world.other.committed(group, topic) == {0: 2}, "offset 2 is committed")
        producer.begin()
        producer.send_offsets(group, topic, {0: 5})
        producer.abort()
        producer.begin()
        producer.send_offsets(group, topic, {0: 4})
        producer.commit()
    wait_until(lambda: world.other.committed(group, topic) == {0: 4}, "offset 4 is committed")
    with client.join(group, topic) as member:
        assert [one.offset for one in member.read(2)] == [4, 5]
