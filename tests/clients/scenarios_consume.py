"""Consuming, row by row: from where one wants, alone, in groups, and what happens to topics."""

from __future__ import annotations

import contextlib
import time
from typing import Final

from tests.clients.client import (
    EARLIEST,
    Client,
    How,
    Last,
    Member,
    Membership,
    Message,
    Read,
    Refused,
    Since,
)
from tests.clients.world import World, numbered, values
from tests.waiting import wait_until

MANY: Final = 30
PARTITIONS: Final = 4
HOUR_MS: Final = 3_600_000
FOLLOWED_S: Final = 1.0  # after a topic was made anew: several fetches, and a metadata refresh
LARGE: Final = 400_000


def from_the_earliest(client: Client, world: World) -> None:
    """Offset 0, or what is first after a deletion."""
    topic = world.topic()
    world.other.send(topic, numbered(MANY))
    assert values(client.read(topic, MANY)) == [one.value for one in numbered(MANY)]
    world.other.delete_records(topic, 0, 12)
    found = client.read(topic, MANY - 12)
    assert [one.offset for one in found] == list(range(12, MANY))


def from_the_latest(client: Client, world: World) -> None:
    """So many before the end, as the broker has it."""
    topic = world.topic()
    world.other.send(topic, numbered(MANY))
    found = client.read(topic, 3, Last(3))
    assert [one.offset for one in found] == [MANY - 3, MANY - 2, MANY - 1]


def from_an_offset(client: Client, world: World) -> None:
    """In the middle of a batch."""
    topic = world.topic()
    world.other.send(topic, numbered(MANY))
    found = client.read(topic, MANY - 17, 17)
    assert [one.offset for one in found] == list(range(17, MANY))


def from_a_time(client: Client, world: World) -> None:
    """The first record that is not older: exactly it, not its batch."""
    topic = world.topic()
    begin = time.time_ns() // 1_000_000 - 12 * HOUR_MS  # retention would take what is old
    messages = [Message(b"%d" % hour, timestamp_ms=begin + hour * HOUR_MS) for hour in range(10)]
    world.other.send(topic, messages[:6])  # one batch
    world.other.send(topic, messages[6:])
    for since, first in ((begin + 3 * HOUR_MS, 3), (begin + 3 * HOUR_MS + 1, 4), (begin, 0)):
        found = client.read(topic, 10 - first, Since(since))
        assert found[0].offset == first, f"since {since}: {found[0]}"


def large_messages(client: Client, world: World) -> None:
    """A batch that is larger than any limit of the consumer is handed over whole (KIP-74)."""
    topic = world.topic(configs={"max.message.bytes": str(4 * LARGE)})
    messages = [Message(b"%d" % number * LARGE) for number in range(4)]
    for message in messages:
        world.other.send(topic, [message], How(max_request_bytes=4 * LARGE))
    world.other.send(topic, [Message(b"x" * 3 * LARGE)], How(max_request_bytes=4 * LARGE))
    found = client.read(topic, 5)
    assert values(found) == [*(one.value for one in messages), b"x" * 3 * LARGE]


def alone(client: Client, world: World) -> None:
    """A group of one has all partitions."""
    topic = world.topic(PARTITIONS)
    sent = _fill(world, topic)
    with client.join(world.name("group"), topic) as member:
        found = member.read(len(sent))
        assert member.assigned() == frozenset(range(PARTITIONS))
    assert sorted(values(found), key=str) == sorted(sent, key=str)


def group_of_two(client: Client, world: World) -> None:
    """They share the partitions, and each message goes to one; who stays, inherits.

    The first has read something of every partition before the second comes. Else librdkafka may
    still be asking where to begin when it has to give partitions up, and an answer that it gets
    after that makes it read them from the beginning later on, whatever is committed: see
    docs/clients.md.
    """
    topic, group = world.topic(PARTITIONS), world.name("group")
    with client.join(group, topic) as first:
        alone = _fill(world, topic, "alone")
        assert sorted(values(first.read(len(alone))), key=str) == sorted(alone, key=str)
        with client.join(group, topic) as second:
            early: list[Read] = []
            wait_until(lambda: _share(first, second, early), "two members share the partitions")
            assert not early, f"read again, although committed: {early[:3]}"
            sent = _fill(world, topic)
            found = {one: one.read(len(sent) // 2) for one in (first, second)}
            for member, read in found.items():
                assert {one.partition for one in read} == member.assigned()
            together = [one.value for read in found.values() for one in read]
            assert sorted(together, key=str) == sorted(sent, key=str)
        everything = frozenset(range(PARTITIONS))
        got: list[Read] = []
        wait_until(lambda: _polled(first, got) == everything, "who stays has all")
        assert not got, f"read again, although committed: {got[:3]}"
        late = _fill(world, topic, "late")
        assert sorted(values(first.read(len(late))), key=str) == sorted(late, key=str)


def commit_and_resume(client: Client, world: World) -> None:
    """Who comes next in the group begins where the last one ended."""
    topic, group = world.topic(), world.name("group")
    for part in range(2):
        sent = [one.value for one in numbered(MANY, f"part-{part}")]
        world.other.send(topic, [Message(value) for value in sent])
        with client.join(group, topic) as member:
            assert values(member.read(MANY)) == sent


def static_members(client: Client, world: World) -> None:
    """Who leaves and comes back under its name finds its partitions; the other is not disturbed."""
    topic, group = world.topic(PARTITIONS), world.name("group")
    first = client.join(group, topic, Membership(instance="first"))
    _have_all(first)
    with client.join(group, topic, Membership(instance="second")) as second:
        try:
            wait_until(lambda: _share(first, second, []), "two members share the partitions")
            mine, yours = first.assigned(), second.assigned()
        finally:
            first.close()
        with client.join(group, topic, Membership(instance="first")) as again:
            got: list[Read] = []
            wait_until(
                lambda: (_polled(again, got), _polled(second, got)) == (mine, yours),
                "each has its partitions again",
            )
            sent = _fill(world, topic)
            half = len(sent) // 2
            found = values(again.read(half)) + values(second.read(half))
            assert sorted(found, key=str) == sorted(sent, key=str)


def cooperative_members(client: Client, world: World) -> None:
    """Who comes second is given half, and the first keeps its half all the while (KIP-429)."""
    topic, group = world.topic(PARTITIONS), world.name("group")
    how, got = Membership(cooperative=True), list[Read]()
    everything = frozenset(range(PARTITIONS))
    with client.join(group, topic, how) as first:
        wait_until(lambda: _polled(first, got) == everything, "the first has all")
        fewest = [everything]
        with client.join(group, topic, how) as second:

            def shared() -> bool:
                done = _share(first, second, got)
                fewest.append(first.assigned())
                return done

            wait_until(shared, "two members share the partitions")
            assert min(map(len, fewest)) >= PARTITIONS // 2, f"gave up more: {fewest}"
            sent = _fill(world, topic)
            half = len(sent) // 2
            found = values(first.read(half)) + values(second.read(half))
            assert sorted(found, key=str) == sorted(sent, key=str)


def read_committed(client: Client, world: World) -> None:
    """Everything is committed: the last stable offset is the high watermark."""
    topic = world.topic()
    world.other.send(topic, numbered(MANY), How(idempotent=True))
    with client.follow(topic, 0, EARLIEST, committed_only=True) as reader:
        assert values(reader.read(MANY)) == [one.value for one in numbered(MANY)]


def out_of_range(client: Client, world: World) -> None:
    """From an offset that is not there the client is sent to the earliest, as it was told."""
    topic = world.topic()
    world.other.send(topic, numbered(MANY))
    world.other.delete_records(topic, 0, 5)
    for start in (2, 10 * MANY):
        found = client.read(topic, MANY - 5, start)
        assert found[0].offset == 5, f"from {start}: {found[0]}"


def several_brokers(client: Client, world: World) -> None:
    """Any one broker's address is enough; partitions are led by all of them."""
    partitions = 8 * len(world.brokers)
    topic = world.topic(partitions)
    leaders = []
    for number, broker in enumerate(world.brokers):
        with type(client)(broker) as through_one:
            leaders.append(through_one.leaders(topic))
            for partition in range(partitions):
                if partition % len(world.brokers) == number:
                    through_one.send(topic, numbered(1, broker), How(partition=partition))
    assert all(one == leaders[0] for one in leaders), f"brokers differ: {leaders}"
    assert len(set(leaders[0].values())) == len(world.brokers), f"not all lead: {leaders[0]}"
    with type(client)(world.brokers[0]) as through_one:
        for partition in (0, partitions - 1):
            assert len(through_one.read(topic, 1, partition=partition)) == 1


def topic_made_anew(client: Client, world: World) -> None:
    """Deleted and created again under a live consumer: it never sees the old one's bytes."""
    topic = world.topic()
    world.other.send(topic, numbered(MANY, "old"))
    with client.follow(topic, 0, 0) as reader:
        assert len(reader.read(MANY)) == MANY
        world.other.send(topic, numbered(MANY, "old"))
        _make_anew(world, topic)
        world.other.send(topic, numbered(3 * MANY, "new"))
        deadline = time.monotonic() + FOLLOWED_S
        seen: list[bytes | None] = []
        while time.monotonic() < deadline and len(seen) < MANY:
            try:
                seen += values(reader.poll(0.1))
            except Refused as refused:  # it says so, and an application begins anew
                print(f"{client.name} says {refused}")
                break
    old = [value for value in seen if value is not None and value.startswith(b"old")]
    # What it had fetched before the deletion, it may hand over: the second half, once.
    assert len(old) <= MANY, f"old bytes: {old[:3]}"
    new = [value for value in seen if value is not None and value.startswith(b"new")]
    assert seen == old + new, "old bytes after new ones"
    assert values(client.read(topic, 3 * MANY)) == [one.value for one in numbered(3 * MANY, "new")]


def _make_anew(world: World, topic: str) -> None:
    old = world.topic_id(topic)
    world.other.delete_topic(topic)

    def is_there_again() -> bool:
        """By our wish, or by the question of a reader that has what it asks for created."""
        with contextlib.suppress(Refused):  # it is still being deleted, or there
            world.other.create_topic(topic, 1, {})
        return world.topic_id(topic) not in (None, old)

    wait_until(is_there_again, f"{topic} is there again")


def _fill(world: World, topic: str, prefix: str = "value") -> list[bytes | None]:
    """The same number of messages in each partition."""
    sent = []
    for partition in range(PARTITIONS):
        messages = numbered(5, f"{prefix}-{partition}")
        world.other.send(topic, messages, How(partition=partition))
        sent += [one.value for one in messages]
    return sent


def _polled(member: Member, got: list[Read]) -> frozenset[int]:
    got += member.poll(0.05)
    return member.assigned()


def _have_all(member: Member) -> None:
    """Wait until it has every partition: of two kafka-pythons (3.0.12) that begin at once, one may
    never learn of its assignment."""
    everything = frozenset(range(PARTITIONS))
    try:
        wait_until(lambda: _polled(member, []) == everything, "the first has all")
    except BaseException:
        member.close()
        raise


def _share(first: Member, second: Member, got: list[Read]) -> bool:
    """Has each of them half of the partitions?"""
    mine, yours = _polled(first, got), _polled(second, got)
    return len(mine) == len(yours) == PARTITIONS // 2 and not mine & yours
