"""aiokafka, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from tests.clients.client import (
    EARLIEST,
    ORDINARY,
    PLAIN,
    Client,
    How,
    Last,
    Member,
    Membership,
    Message,
    Read,
    Reader,
    Refused,
    Start,
    Transactional,
)
from tests.waiting import DEADLINE_S

T = TypeVar("T")

OWN_ERROR: Final = -1


class Loop:
    """An event loop that goes on between calls, for heartbeats."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")
        self._thread.start()

    def run(self, work: Awaitable[T], timeout_s: float = 2 * DEADLINE_S) -> T:
        """Raises Refused for the library's errors."""

        async def bounded() -> T:
            return await asyncio.wait_for(work, timeout_s)

        try:
            return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()
        except KafkaError as error:
            raise Refused(getattr(error, "errno", OWN_ERROR), repr(error)) from error

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Aiokafka(Client):
    """Its producer knows compression and acks from its beginning, so each call makes one."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._loop = Loop()
        self._started_admin: AIOKafkaAdminClient | None = None

    @property
    def _admin(self) -> AIOKafkaAdminClient:
        if self._started_admin is None:

            async def start() -> AIOKafkaAdminClient:
                admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
                await admin.start()
                return admin

            self._started_admin = self._loop.run(start())
        return self._started_admin

    # --- messages -----------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        messages: Sequence[Message],
        how: How = PLAIN,
    ) -> list[tuple[int, int]] | None:
        return self._loop.run(self._send(topic, messages, how))

    async def _send(
        self, topic: str, messages: Sequence[Message], how: How
    ) -> list[tuple[int, int]] | None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all" if how.acks < 0 else how.acks,
            compression_type=None if how.codec == "none" else how.codec,
            enable_idempotence=how.idempotent,
            max_request_size=how.max_request_bytes,
            max_batch_size=65_536,
            linger_ms=5,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic, message.value, message.key, how.partition,
                    message.timestamp_ms, list(message.headers),
                )
                for message in messages
            ]  # fmt: skip
            sent = [await future for future in futures]
            return [(one.partition, one.offset) for one in sent] if how.acks else None
        finally:
            await producer.stop()

    def follow(
        self, topic: str, partition: int, start: Start, *, committed_only: bool = False
    ) -> Reader:
        isolation = "read_committed" if committed_only else "read_uncommitted"
        consumer = self._loop.run(self._follow(topic, partition, start, isolation))
        return AiokafkaReader(self._loop, consumer)

    async def _follow(
        self, topic: str, partition: int, start: Start, isolation: str
    ) -> AIOKafkaConsumer:
        consumer = self._consumer(None, isolation_level=isolation)
        await consumer.start()
        try:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            match start:
                case Last(count):
                    await consumer.seek_to_end(place)
                    consumer.seek(place, await consumer.position(place) - count)
                case int():
                    if start == EARLIEST:
                        await consumer.seek_to_beginning(place)
                    else:
                        consumer.seek(place, start)
                case _:
                    found = await consumer.offsets_for_times({place: start.timestamp_ms})
                    consumer.seek(place, found[place].offset)
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    def join(self, group: str, topic: str, how: Membership = ORDINARY) -> Member:
        async def start() -> AIOKafkaConsumer:
            consumer = self._consumer(group, group_instance_id=how.instance)
            consumer.subscribe([topic])
            await consumer.start()
            return consumer

        return AiokafkaMember(self._loop, self._loop.run(start()))

    def _consumer(self, group: str | None, **settings: Any) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=group is not None,  # when it gives some up
            fetch_max_wait_ms=100,
            heartbeat_interval_ms=100,
            session_timeout_ms=30_000,
            metadata_max_age_ms=1_000,
            check_crcs=True,
            **settings,
        )

    # --- topics -------------------------------------------------------------------------------

    def leaders(self, topic: str) -> dict[int, int]:
        (found,) = self._loop.run(self._admin.describe_topics([topic]))
        _check(found["error_code"])
        return {one["partition"]: one["leader"] for one in found["partitions"]}

    def topics(self) -> frozenset[str]:
        return frozenset(self._loop.run(self._admin.list_topics()))

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=dict(configs))
        answer = self._loop.run(self._admin.create_topics([new]))
        _check(answer.topic_errors[0][1])

    def delete_topic(self, topic: str) -> None:
        answer = self._loop.run(self._admin.delete_topics([topic]))
        _check(answer.topic_error_codes[0][1])

    def create_partitions(self, topic: str, total: int) -> None:
        self._loop.run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        asked = {TopicPartition(topic, partition): RecordsToDelete(before)}
        self._loop.run(self._admin.delete_records(asked))

    def describe_topic(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._loop.run(self._admin.describe_configs([resource]))
        (found,) = answer.resources
        _check(found[0])
        return {entry[0]: entry[1] for entry in found[4]}

    def alter_topic(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        (answer,) = self._loop.run(self._admin.alter_configs([resource]))
        (found,) = answer.resources
        _check(found[0])

    # --- groups -------------------------------------------------------------------------------

    def list_groups(self) -> frozenset[str]:
        return frozenset(one[0] for one in self._loop.run(self._admin.list_consumer_groups()))

    def describe_group(self, group: str) -> tuple[str, int]:
        (answer,) = self._loop.run(self._admin.describe_consumer_groups([group]))
        (found,) = answer.groups
        _check(found[0])
        return found[2].upper(), len(found[5])

    def committed(self, group: str, topic: str) -> dict[int, int]:
        found = self._loop.run(self._admin.list_consumer_group_offsets(group))
        return {place.partition: one.offset for place, one in found.items() if place.topic == topic}

    def begin_transactions(self, transactional_id: str) -> None:
        async def begin() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, transactional_id=transactional_id
            )
            try:
                await producer.start()
            finally:
                await producer.stop()

        self._loop.run(begin())

    def open_transactional(
        self, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> Transactional:
        async def open_producer() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        return AiokafkaTransactional(self._loop, self._loop.run(open_producer()))

    def close(self) -> None:
        if self._started_admin is not None:
            self._loop.run(self._started_admin.close())
        self._loop.close()


def _check(code: int) -> None:
    if code:
        raise Refused(code, for_code(code).__name__)


class AiokafkaReader(Reader):
    """Of one partition."""

    def __init__(self, loop: Loop, consumer: AIOKafkaConsumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Read]:
        found: Mapping[Any, Sequence[Any]] = self._loop.run(
            self._consumer.getmany(timeout_ms=int(timeout_s * 1000))
        )
        return [
            Read(one.partition, one.offset, one.value, one.key, one.timestamp, tuple(one.headers))
            for batch in found.values()
            for one in batch
        ]

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


class AiokafkaMember(AiokafkaReader, Member):
    """Of a group."""

    def assigned(self) -> frozenset[int]:
        return frozenset(place.partition for place in self._consumer.assignment())

    def close(self) -> None:
        if self._consumer.assignment():
            self._loop.run(self._consumer.commit())
        super().close()


class AiokafkaTransactional(Transactional):
    """A producer that writes in transactions."""

    def __init__(self, loop: Loop, producer: AIOKafkaProducer) -> None:
        self._loop = loop
        self._producer = producer

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        async def send() -> None:
            futures = [
                await self._producer.send(topic, value, partition=partition) for value in values
            ]
            await asyncio.gather(*futures)

        self._loop.run(send())

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = {TopicPartition(topic, p): offset for p, offset in offsets.items()}
        self._loop.run(self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def close(self) -> None:
        self._loop.run(self._producer.stop())
