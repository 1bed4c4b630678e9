"""confluent-kafka: librdkafka, as Python applications use it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

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

BATCH: Final = 500
QUICK: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
IGNORED: Final = {KafkaError._PARTITION_EOF}


def refused(error: KafkaError) -> Refused:
    return Refused(error.code(), error.str())


class Confluent(Client):
    """Each call makes its own producer or consumer: their settings differ."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._common = QUICK | {"bootstrap.servers": bootstrap}
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._common)
        return self._admin

    # --- messages -----------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        messages: Sequence[Message],
        how: How = PLAIN,
    ) -> list[tuple[int, int]] | None:
        producer = Producer(
            self._common
            | {
                "acks": how.acks,
                "compression.type": how.codec,
                "enable.idempotence": how.idempotent,
                "message.max.bytes": how.max_request_bytes,
                "linger.ms": 5,
                "message.timeout.ms": int(DEADLINE_S * 1000),
            }
        )
        places: dict[int, tuple[int, int]] = {}
        errors: list[KafkaError] = []

        def told(number: int, error: KafkaError | None, sent: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                places[number] = (sent.partition(), sent.offset())

        for number, message in enumerate(messages):
            where: dict[str, Any] = {} if how.partition is None else {"partition": how.partition}
            if message.timestamp_ms is not None:
                where["timestamp"] = message.timestamp_ms
            try:
                producer.produce(
                    topic, message.value, message.key, headers=list(message.headers) or None,
                    on_delivery=lambda error, sent, number=number: told(number, error, sent),
                    **where,
                )  # fmt: skip
            except KafkaException as error:
                raise refused(error.args[0]) from error
        left = producer.flush(DEADLINE_S)
        if errors:
            raise refused(errors[0])
        assert not left, f"{left} of {len(messages)} messages have no answer"
        return [places[number] for number in range(len(messages))]

    def _consumer(self, group: str, **settings: object) -> Consumer:
        return Consumer(
            self._common
            | {
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 30_000,
                "topic.metadata.refresh.interval.ms": 1_000,
                "topic.metadata.propagation.max.ms": 1_000,
                "check.crcs": True,
                **settings,
            }
        )

    def follow(
        self, topic: str, partition: int, start: Start, *, committed_only: bool = False
    ) -> Reader:
        isolation = "read_committed" if committed_only else "read_uncommitted"
        consumer = self._consumer("nobody", **{"isolation.level": isolation})
        place = TopicPartition(topic, partition)
        try:
            consumer.list_topics(topic, timeout=DEADLINE_S)  # else it looks after half a second
            place.offset = self._offset(consumer, place, start)
        except KafkaException as error:
            consumer.close()
            raise refused(error.args[0]) from error
        consumer.assign([place])
        return ConfluentReader(consumer)

    @staticmethod
    def _offset(consumer: Consumer, place: TopicPartition, start: Start) -> int:
        match start:
            case Last(count):
                _, end_offset = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
                return int(end_offset - count)
            case int():
                return start  # librdkafka has -2 for the earliest, too
            case _:
                asked = TopicPartition(place.topic, place.partition, start.timestamp_ms)
                (found,) = consumer.offsets_for_times([asked], timeout=DEADLINE_S)
                return int(found.offset)

    def join(self, group: str, topic: str, how: Membership = ORDINARY) -> Member:
        settings: dict[str, object] = {"enable.auto.commit": True}  # when it gives some up
        if how.instance is not None:
            settings["group.instance.id"] = how.instance
        if how.cooperative:
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        consumer = self._consumer(group, **settings)
        consumer.subscribe([topic])
        return ConfluentMember(consumer)

    # --- topics -------------------------------------------------------------------------------

    def leaders(self, topic: str) -> dict[int, int]:
        found = self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        return {one.id: one.leader for one in found.partitions.values()}

    def topics(self) -> frozenset[str]:
        return frozenset(self.admin.list_topics(timeout=DEADLINE_S).topics)

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        new = NewTopic(topic, partitions, 1, config=dict(configs))
        _wait(self.admin.create_topics([new])[topic])

    def delete_topic(self, topic: str) -> None:
        _wait(self.admin.delete_topics([topic])[topic])

    def create_partitions(self, topic: str, total: int) -> None:
        _wait(self.admin.create_partitions([NewPartitions(topic, total)])[topic])

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        place = TopicPartition(topic, partition, before)
        _wait(self.admin.delete_records([place])[place])

    def describe_topic(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = _wait(self.admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in found.items()}

    def alter_topic(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _wait(self.admin.incremental_alter_configs([resource])[resource])

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=dict(settings))
        with warnings.catch_warnings(action="ignore"):  # that AlterConfigs is deprecated
            _wait(self.admin.alter_configs([resource])[resource])

    def elect_leader(self, topic: str, partition: int) -> None:
        place = TopicPartition(topic, partition)
        outcomes = _wait(self.admin.elect_leaders(ElectionType.PREFERRED, [place]))
        for outcome in outcomes.values():
            if outcome is not None:
                raise refused(outcome)

    def access_rules(self) -> int:
        every = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        return len(_wait(self.admin.describe_acls(every, request_timeout=DEADLINE_S)))

    def add_access_rule(self, topic: str) -> None:
        rule = AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ann", "*",
            AclOperation.READ, AclPermissionType.ALLOW,
        )  # fmt: skip
        _wait(self.admin.create_acls([rule])[rule])

    def credentials(self, *users: str) -> int:
        found = self.admin.describe_user_scram_credentials(list(users) or None)
        if isinstance(found, Future):
            return len(_wait(found))
        return len([_wait(future) for future in found.values()])

    # --- groups -------------------------------------------------------------------------------

    def list_groups(self) -> frozenset[str]:
        found = _wait(self.admin.list_consumer_groups(request_timeout=DEADLINE_S))
        assert not found.errors, found.errors
        return frozenset(group.group_id for group in found.valid)

    def describe_group(self, group: str) -> tuple[str, int]:
        futures = self.admin.describe_consumer_groups([group], request_timeout=DEADLINE_S)
        found = _wait(futures[group])
        return found.state.name, len(found.members)

    def delete_group(self, group: str) -> None:
        _wait(self.admin.delete_consumer_groups([group])[group])

    def committed(self, group: str, topic: str) -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = _wait(self.admin.list_consumer_group_offsets(asked)[group])
        return {one.partition: one.offset for one in found.topic_partitions if one.topic == topic}

    def begin_transactions(self, transactional_id: str) -> None:
        producer = Producer(self._common | {"transactional.id": transactional_id})
        try:
            producer.init_transactions(DEADLINE_S)
        except KafkaException as error:
            raise refused(error.args[0]) from error

    def open_transactional(
        self, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> Transactional:
        producer = Producer(
            self._common
            | {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        )
        asking(lambda: producer.init_transactions(DEADLINE_S))
        return ConfluentTransactional(producer, self._consumer)


def asking(call: Callable[[], object]) -> None:
    """Call a function of the library. Raises Refused for the library's errors."""
    try:
        call()
    except KafkaException as error:
        raise refused(error.args[0]) from error


class ConfluentTransactional(Transactional):
    """A producer that writes in transactions."""

    def __init__(self, producer: Producer, make_consumer: Callable[[str], Consumer]) -> None:
        self._producer = producer
        self._make_consumer = make_consumer

    def begin(self) -> None:
        asking(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        errors: list[KafkaError] = []

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                errors.append(error)

        for value in values:
            produce = partial(
                self._producer.produce, topic, value, partition=partition, on_delivery=told
            )
            asking(produce)
        left = self._producer.flush(DEADLINE_S)
        if errors:
            raise refused(errors[0])
        assert not left, f"{left} of {len(values)} records have no answer"

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        consumer = self._make_consumer(group)
        try:
            places = [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
            metadata = consumer.consumer_group_metadata()
            asking(lambda: self._producer.send_offsets_to_transaction(places, metadata, DEADLINE_S))
        finally:
            consumer.close()

    def commit(self) -> None:
        asking(lambda: self._producer.commit_transaction(DEADLINE_S))

    def abort(self) -> None:
        asking(lambda: self._producer.abort_transaction(DEADLINE_S))

    def close(self) -> None:
        self._producer.purge()


def _wait(future: Future[Any]) -> Any:
    try:
        return future.result(DEADLINE_S)
    except KafkaException as error:
        raise refused(error.args[0]) from error


class ConfluentReader(Reader):
    """Of one partition."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Read]:
        got = []
        first = self._consumer.poll(timeout_s)
        for message in [first, *self._consumer.consume(BATCH, 0)] if first is not None else []:
            error = message.error()
            if error is None:
                got.append(
                    Read(message.partition(), message.offset(), message.value(), message.key(),
                         message.timestamp()[1], tuple(message.headers() or ()))
                )  # fmt: skip
            elif error.code() not in IGNORED:
                raise refused(error)
        return got

    def close(self) -> None:
        self._consumer.close()


class ConfluentMember(ConfluentReader, Member):
    """Of a group."""

    def assigned(self) -> frozenset[int]:
        return frozenset(place.partition for place in self._consumer.assignment())

    def close(self) -> None:
        with contextlib.suppress(KafkaException):  # nothing was read: there is nothing to commit
            self._consumer.commit(asynchronous=False)
        super().close()


assert EARLIEST == -2, "librdkafka's own number"
