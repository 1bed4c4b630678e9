"""kafka-python: every byte in Python, and the newest protocol versions of the three."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

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
JOINS_WITHIN_S: Final = 5.0
QUICK: Final = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200}


def asking(call: Callable[[], T]) -> T:
    """The library's errors as ours."""
    try:
        return call()
    except KafkaError as error:
        raise Refused(getattr(error, "errno", OWN_ERROR), repr(error)) from error


class KafkaPython(Client):
    """Its producer knows compression and acks from its beginning, so each call makes one."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._common = QUICK | {"bootstrap_servers": bootstrap.split(",")}
        self._started_admin: KafkaAdminClient | None = None

    @property
    def _admin(self) -> KafkaAdminClient:
        if self._started_admin is None:
            self._started_admin = KafkaAdminClient(**self._common)
        return self._started_admin

    # --- messages -----------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        messages: Sequence[Message],
        how: How = PLAIN,
    ) -> list[tuple[int, int]] | None:
        producer = KafkaProducer(
            **self._common,
            acks=how.acks,
            compression_type=None if how.codec == "none" else how.codec,
            enable_idempotence=how.idempotent,
            max_request_size=how.max_request_bytes,
            max_in_flight_requests_per_connection=5 if how.idempotent else 1,
            batch_size=65_536,
            linger_ms=5,
            max_block_ms=int(DEADLINE_S * 1000),
            retry_backoff_ms=20,
        )

        def send() -> list[tuple[int, int]] | None:
            futures = [
                producer.send(
                    topic, message.value, message.key, list(message.headers), how.partition,
                    message.timestamp_ms,
                )
                for message in messages
            ]  # fmt: skip
            producer.flush(DEADLINE_S)
            sent = [future.get(DEADLINE_S) for future in futures]
            return [(one.partition, one.offset) for one in sent] if how.acks else None

        try:
            return asking(send)
        finally:
            producer.close(timeout=5)

    def follow(
        self, topic: str, partition: int, start: Start, *, committed_only: bool = False
    ) -> Reader:
        isolation = "read_committed" if committed_only else "read_uncommitted"
        consumer = self._consumer(None, isolation_level=isolation)
        place = TopicPartition(topic, partition)

        def begin() -> None:
            consumer.assign([place])
            match start:
                case Last(count):
                    consumer.seek_to_end(place)
                    consumer.seek(place, consumer.position(place) - count)
                case int():
                    if start == EARLIEST:
                        consumer.seek_to_beginning(place)
                    else:
                        consumer.seek(place, start)
                case _:
                    found = consumer.offsets_for_times({place: start.timestamp_ms})
                    consumer.seek(place, found[place].offset)

        try:
            asking(begin)
        except BaseException:
            consumer.close()
            raise
        return KafkaPythonReader(consumer)

    def join(self, group: str, topic: str, how: Membership = ORDINARY) -> Member:
        settings: dict[str, Any] = {"group_instance_id": how.instance}
        if how.cooperative:
            settings["partition_assignment_strategy"] = [CooperativeStickyAssignor]
        consumer = self._consumer(group, **settings)
        consumer.subscribe([topic])
        return KafkaPythonMember(consumer)

    def _consumer(self, group: str | None, **settings: Any) -> KafkaConsumer:
        return KafkaConsumer(
            **self._common,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=group is not None,  # when it gives some up
            fetch_max_wait_ms=100,
            heartbeat_interval_ms=100,
            session_timeout_ms=30_000,
            metadata_max_age_ms=1_000,
            retry_backoff_ms=20,
            **settings,
        )

    # --- topics -------------------------------------------------------------------------------

    def leaders(self, topic: str) -> dict[int, int]:
        (found,) = asking(lambda: self._admin.describe_topics([topic]))
        return {one["partition_index"]: one["leader_id"] for one in found["partitions"]}

    def topics(self) -> frozenset[str]:
        return frozenset(asking(self._admin.list_topics))

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        new = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs)}
        asking(lambda: self._admin.create_topics({topic: new}))

    def delete_topic(self, topic: str) -> None:
        asking(lambda: self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        asking(lambda: self._admin.create_partitions({topic: total}))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        asking(lambda: self._admin.delete_records({TopicPartition(topic, partition): before}))

    def describe_topic(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = asking(lambda: self._admin.describe_configs([resource], config_filter="all"))
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    def alter_topic(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        said = asking(lambda: self._admin.alter_configs([resource]))["topic"][topic]
        if found := re.match(r"\[Error (\d+)\]", str(said)):  # it tells instead of raising
            raise Refused(int(found[1]), str(said))

    # --- groups -------------------------------------------------------------------------------

    def list_groups(self) -> frozenset[str]:
        return frozenset(one["group_id"] for one in asking(self._admin.list_groups))

    def describe_group(self, group: str) -> tuple[str, int]:
        found = asking(lambda: self._admin.describe_groups([group]))[group]
        return found["group_state"].upper(), len(found["members"])

    def delete_group(self, group: str) -> None:
        said = dict(asking(lambda: self._admin.delete_groups([group])))[group]
        if said != "OK":  # it tells instead of raising
            raise Refused(getattr(kafka_errors, said).errno, said)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        found = asking(lambda: self._admin.list_group_offsets({group: None}))[group]
        return {place.partition: one.offset for place, one in found.items() if place.topic == topic}

    def begin_transactions(self, transactional_id: str) -> None:
        producer = KafkaProducer(
            **self._common,
            transactional_id=transactional_id,
            max_block_ms=int(DEADLINE_S * 1000),
        )
        try:
            asking(producer.init_transactions)
        finally:
            producer.close(timeout=1)

    def open_transactional(
        self, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> Transactional:
        producer = KafkaProducer(
            **self._common,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(DEADLINE_S * 1000),
        )
        asking(producer.init_transactions)
        return KafkaPythonTransactional(producer)

    def close(self) -> None:
        if self._started_admin is not None:
            self._started_admin.close()


class KafkaPythonTransactional(Transactional):
    """A producer that writes in transactions."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer

    def begin(self) -> None:
        asking(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        def send() -> None:
            futures = [self._producer.send(topic, value, partition=partition) for value in values]
            for future in futures:
                future.get(timeout=DEADLINE_S)

        asking(send)

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = {
            TopicPartition(topic, p): OffsetAndMetadata(offset, "", -1)
            for p, offset in offsets.items()
        }
        asking(lambda: self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        asking(self._producer.commit_transaction)

    def abort(self) -> None:
        asking(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)


class KafkaPythonReader(Reader):
    """Of one partition."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Read]:
        found: Mapping[Any, Sequence[Any]] = asking(
            lambda: self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        )
        return [
            Read(one.partition, one.offset, one.value, one.key, one.timestamp, tuple(one.headers))
            for batch in found.values()
            for one in batch
        ]

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class KafkaPythonMember(KafkaPythonReader, Member):
    """Of a group, polled by a thread of its own, as in an application.

    A poll whose time is over while the group waits for others to join can lose the assignment that
    comes then, or never join (kafka-python 3.0.12, on Apache Kafka as well): so the first poll is a
    long one, and two members cannot be polled by turns in one thread.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        super().__init__(consumer)
        self._got: queue.Queue[list[Read] | Refused] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="kafka-python")
        self._thread.start()

    def _pump(self) -> None:
        while not self._stop.is_set():
            try:
                if read := super().poll(0.5 if self._consumer.assignment() else JOINS_WITHIN_S):
                    self._got.put(read)
            except Refused as refused:
                self._got.put(refused)
                return

    def poll(self, timeout_s: float) -> list[Read]:
        try:
            got = self._got.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if isinstance(got, Refused):
            raise got
        return got

    def assigned(self) -> frozenset[int]:
        return frozenset(place.partition for place in self._consumer.assignment())

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._consumer.assignment():
            asking(self._consumer.commit)
        super().close()
