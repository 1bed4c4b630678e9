"""What the scenarios have besides the client that they try: topics to use, and a second look.

Topics are made by librdkafka, whoever is tried, so that a row fails for one reason. What is stored
is read as a replica's tool would read it, with a Fetch of our own: the batches' headers, as the
producer wrote them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from records.batch import BatchHeader, iter_batches
from records.rpc.fetch import FetchRequest, FetchResponse
from tests.clients.client import (
    PLAIN,
    Client,
    How,
    Message,
    Read,
)
from tests.clients.confluent import Confluent
from tests.raft.driver.client import Client as Wire
from tests.waiting import DEADLINE_S

FETCH_VERSION: Final = 11  # the last that names topics and has no tagged fields
RAW_BYTES: Final = 16 * 1024 * 1024


class World:
    """A running cluster, whose ever it is."""

    def __init__(self, brokers: Sequence[tuple[str, int]]) -> None:
        self.brokers = tuple(f"{host}:{port}" for host, port in brokers)
        self.bootstrap = ",".join(self.brokers)
        self.other = Confluent(self.bootstrap)  # another client than the one that is tried
        self._prefix = uuid4().hex[:8]
        self._numbers = count()

    def name(self, what: str = "topic") -> str:
        """That nothing else has."""
        return f"{what}-{self._prefix}-{next(self._numbers)}"

    def topic(self, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        """A new one."""
        topic = self.name()
        self.other.create_topic(topic, partitions, configs or {})
        return topic

    def topic_id(self, topic: str) -> str | None:
        """None: there is no such topic, as far as is known."""
        found = self.other.admin.describe_topics(TopicCollection([topic]))[topic]
        try:
            return str(found.result(DEADLINE_S).topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def stored(self, topic: str, partition: int = 0) -> list[BatchHeader]:
        """The headers of a partition's batches, as they are stored."""
        host, port = self._leader(topic, partition)
        asked = FetchRequest.FetchTopic
        place = asked.FetchPartition(
            partition=partition, fetch_offset=0,
            partition_max_bytes=RAW_BYTES,
        )  # fmt: skip
        request = FetchRequest(
            max_wait_ms=1_000, min_bytes=1, max_bytes=RAW_BYTES,
            topics=(asked(topic=topic, partitions=(place,)),),
        )  # fmt: skip
        with Wire(host, port, timeout_s=DEADLINE_S) as wire:
            answer = wire.ask(request, FetchResponse, FETCH_VERSION)
        (found,) = answer.responses[0].partitions
        assert not found.error_code, f"{topic}-{partition}: error {found.error_code}"
        return [batch.header for batch in iter_batches(found.records or b"")]

    def _leader(self, topic: str, partition: int) -> tuple[str, int]:
        found = self.other.admin.list_topics(topic, timeout=DEADLINE_S)
        leader = found.brokers[found.topics[topic].partitions[partition].leader]
        return leader.host, leader.port


def numbered(count: int, prefix: str = "value") -> list[Message]:
    """Messages that compress well and are told apart."""
    return [
        Message(b"%b-%06d-" % (prefix.encode(), number) + b"x" * 100) for number in range(count)
    ]


def values(found: Sequence[Read]) -> list[bytes | None]:
    return [one.value for one in found]


def check_sent(
    client: Client,
    topic: str,
    messages: Sequence[Message],
    how: How = PLAIN,
) -> list[Read]:
    """Send to partition 0, read it back: the same messages in order, at gapless offsets from 0."""
    told = client.send(topic, messages, how)
    found = client.read(topic, len(messages))
    assert values(found) == [one.value for one in messages]
    assert [one.offset for one in found] == list(range(len(messages)))
    if told is not None and how.acks:
        assert told == [(0, offset) for offset in range(len(messages))], "offsets that were told"
    return found
