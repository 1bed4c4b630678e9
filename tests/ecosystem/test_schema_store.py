"""A schema registry's store: one compacted partition that each instance reads to its end."""

from __future__ import annotations

from tests.clients.client import EARLIEST, How, Message
from tests.clients.world import World

SUBJECTS = 4
VERSIONS = 5


def test_a_schema_store_reads_the_latest_schema_of_each_subject_from_a_compacted_topic(
    world: World,
) -> None:
    """A registry that starts writes a marker and reads until it meets that marker."""
    topic = world.topic(1, {"cleanup.policy": "compact"})
    schemas = [
        Message(f"schema {version}".encode(), key=f"subject {subject}".encode())
        for version in range(VERSIONS)
        for subject in range(SUBJECTS)
    ]
    deletion = Message(None, key=b"subject 0")
    world.other.send(topic, [*schemas, deletion], How(acks=-1, partition=0))
    marker = world.other.send(topic, [Message(b"", key=b"marker")], How(acks=-1, partition=0))
    assert marker == [(0, len(schemas) + 1)]

    latest: dict[bytes | None, bytes | None] = {}
    with world.other.follow(topic, 0, EARLIEST) as reader:
        position = 0
        while position <= marker[0][1]:
            for message in reader.poll(0.2):
                latest[message.key] = message.value
                position = message.offset + 1
    expected = {f"subject {number}".encode(): b"schema 4" for number in range(1, SUBJECTS)}
    assert latest == {**expected, b"subject 0": None, b"marker": b""}
