"""Producing, row by row: what is acknowledged is stored as it was sent."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from typing import Final

import pytest

from records.compression import Compression
from tests.clients.client import MESSAGE_TOO_LARGE, Client, How, Message, Refused
from tests.clients.world import World, check_sent, numbered
from tests.waiting import wait_until

MANY: Final = 50
LIMIT: Final = 200_000  # max.message.bytes of a topic
AROUND: Final = 100  # a batch of one message is its value and at most so much
LARGER_THAN_ALL: Final = 3_000_000
KEYS: Final = 7
HOUR_MS: Final = 3_600_000
INVALID_TIMESTAMP: Final = 32


def codec(client: Client, world: World, name: str) -> None:
    """The stored batches have the codec that the producer was told: nobody fell back to none."""
    topic = world.topic()
    check_sent(client, topic, numbered(MANY), How(codec=name))
    found = {header.compression for header in world.stored(topic)}
    assert found == {Compression[name.upper()]}, found


def acks(client: Client, world: World) -> None:
    """0, 1 and all."""
    for wanted in (0, 1, -1):
        check_sent(client, world.topic(), numbered(5), How(acks=wanted))


def idempotent(client: Client, world: World) -> None:
    """The batches have a producer, and sequences without a gap."""
    topic = world.topic()
    check_sent(client, topic, numbered(MANY), How(idempotent=True))
    headers = world.stored(topic)
    assert len({header.producer_id for header in headers}) == 1
    assert headers[0].producer_id >= 0, headers[0]
    following = 0
    for header in headers:
        assert header.base_sequence == following, headers
        following += header.record_count


def keyed(client: Client, world: World) -> None:
    """Equal keys go to one partition and stay in order; keys arrive as they were."""
    topic = world.topic(partitions=4)
    messages = [Message(b"%d" % number, key=b"key-%d" % (number % KEYS)) for number in range(MANY)]
    client.send(topic, messages)
    found: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    with client.join(world.name("group"), topic) as member:
        for one in member.read(MANY):
            assert one.key is not None
            assert one.value is not None
            found[one.key].append((one.partition, int(one.value)))
    assert len(found) == KEYS
    for key, rows in found.items():
        assert len({partition for partition, _ in rows}) == 1, f"{key!r} is in several partitions"
        order = [number for _, number in rows]
        assert order == sorted(order), f"{key!r} is out of order: {order}"


def headers_and_nulls(client: Client, world: World) -> None:
    """A tombstone stays one, and a header keeps its bytes."""
    topic = world.topic()
    headers = (("trace", b"abc"), ("kind", b"test"))
    sent = [Message(b"value", None, headers), Message(None, b"key", headers)]
    client.send(topic, sent)
    found = client.read(topic, 2)
    assert [(one.value, one.key, one.headers) for one in found] == [one[:3] for one in sent]


def timestamps(client: Client, world: World) -> None:
    """CreateTime is the producer's, to the millisecond; LogAppendTime is not."""
    early = time.time_ns() // 1_000_000 - HOUR_MS  # retention would take what is old
    (found,) = _timestamped(client, world.topic(), early)
    assert found == early
    topic = world.topic(configs={"message.timestamp.type": "LogAppendTime"})
    (found,) = _timestamped(client, topic, early)
    assert found > early + 1_000


def impossible_timestamps(client: Client, world: World) -> None:
    """Too far ahead, by default more than an hour; too old, where the topic says so."""
    now = time.time_ns() // 1_000_000
    strict = world.topic(configs={"message.timestamp.before.max.ms": "60000"})
    for topic, timestamp in ((world.topic(), now + 48 * HOUR_MS), (strict, now - HOUR_MS)):
        with pytest.raises(Refused) as refused:
            client.send(topic, [Message(b"value", timestamp_ms=timestamp)])
        assert refused.value.code == INVALID_TIMESTAMP, refused.value
        check_sent(client, topic, numbered(2))


def _timestamped(client: Client, topic: str, timestamp_ms: int) -> list[int]:
    client.send(topic, [Message(b"value", timestamp_ms=timestamp_ms)])
    return [one.timestamp_ms for one in client.read(topic, 1)]


def large_at_the_limit(client: Client, world: World) -> None:
    """A batch just below `max.message.bytes`, and a topic whose limit is above the default."""
    for limit in (LIMIT, LARGER_THAN_ALL):
        topic = world.topic(configs={"max.message.bytes": str(limit)})
        message = Message(os.urandom((limit - AROUND) // 2).hex().encode())
        check_sent(client, topic, [message], How(max_request_bytes=2 * limit))


def large_over_the_limit(client: Client, world: World) -> None:
    """MESSAGE_TOO_LARGE, as this client has it; what was small enough is not harmed by it."""
    topic = world.topic(configs={"max.message.bytes": str(LIMIT)})
    message = Message(b"v" * (LIMIT + 1))
    with pytest.raises(Refused) as refused:
        client.send(topic, [message], How(max_request_bytes=4 * LIMIT))
    assert refused.value.code == MESSAGE_TOO_LARGE, refused.value
    check_sent(client, topic, numbered(3))


def auto_created(client: Client, world: World) -> None:
    """A topic that is not there is made by the first who writes to it."""
    topic = world.name("auto")
    check_sent(client, topic, numbered(3), How(partition=0))
    wait_until(lambda: 0 in client.leaders(topic), f"{topic} is in the metadata")
