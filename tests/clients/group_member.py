"""Members of a group, in a process that can be killed, and that says what happens to them.

    python -m tests.clients.group_member confluent BOOTSTRAP GROUP TOPIC a b --static --cooperative

For each name a member, in a thread of its own. It reads, and commits what it read, synchronously,
again and again until that succeeds or the group refuses it. One JSON line on stdout for each event:

    {"who": "a", "what": "assigned", "partitions": [0, 1]}     or "revoked", "lost"
    {"who": "a", "what": "read", "at": [[0, 7, "value"], ...]}
    {"who": "a", "what": "committed", "offsets": {"0": 8}}     the next to be read
    {"who": "a", "what": "refused", "why": "..."}              of a commit: to join again, it says
    {"who": "a", "what": "error", "why": "..."}                a client that gave up, or complained

Ends, leaving its groups in good order, when stdin does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

POLL_S: Final = 0.2
JOINS_WITHIN_S: Final = 5.0  # kafka-python's first poll: see `tests.clients.kafka_python`
AGAIN_S: Final = 0.1

Say = Callable[..., None]

_OUT = threading.Lock()


def say(who: str, what: str, **more: Any) -> None:
    """One event, one line."""
    with _OUT:
        print(json.dumps({"who": who, "what": what, **more}), flush=True)


def confluent(options: argparse.Namespace, who: str, end: threading.Event) -> None:
    """librdkafka's."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "client.id": who,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": options.heartbeat_ms,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 1_000,
        "log_level": 0,
        "error_cb": lambda error: say(who, "complained", why=str(error)),
    }
    if options.static:
        settings["group.instance.id"] = who
    if options.cooperative:
        settings["partition.assignment.strategy"] = "cooperative-sticky"
    consumer = Consumer(settings)

    def told(what: str) -> Callable[[Any, Iterable[Any]], None]:
        return lambda _, places: say(who, what, partitions=sorted(p.partition for p in places))

    consumer.subscribe(
        [options.topic],
        on_assign=told("assigned"), on_revoke=told("revoked"), on_lost=told("lost"),
    )  # fmt: skip
    refusals = {
        KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS, KafkaError.FENCED_INSTANCE_ID,
    }  # fmt: skip
    while not end.is_set():
        read = []
        for message in consumer.consume(100, POLL_S):
            if message.error():
                say(who, "error", why=str(message.error()))
            else:
                at: tuple[Any, Any, Any] = message.partition(), message.offset(), message.value()
                read.append((*at[:2], at[2].decode()))
        if not read:
            continue
        say(who, "read", at=read)
        upto = {partition: offset + 1 for partition, offset, _ in read}
        places = [TopicPartition(options.topic, p, offset) for p, offset in upto.items()]
        while not end.is_set():
            try:
                done = consumer.commit(offsets=places, asynchronous=False)
                error = next((one.error for one in done if one.error), None)
            except KafkaException as raised:
                error = raised.args[0]
            if error is None:
                say(who, "committed", offsets=upto)
                break
            say(who, "refused" if error.code() in refusals else "retried", why=str(error))
            if error.code() in refusals:
                break
            end.wait(AGAIN_S)
    consumer.close()


def kafka_python(options: argparse.Namespace, who: str, end: threading.Event) -> None:
    """kafka-python's."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
    from kafka.errors import CommitFailedError, KafkaConnectionError, KafkaError

    class Listener(ConsumerRebalanceListener):
        """Tells of what is assigned and revoked."""

        def on_partitions_revoked(self, revoked: Any) -> None:
            say(who, "revoked", partitions=sorted(p.partition for p in revoked))

        def on_partitions_assigned(self, assigned: Any) -> None:
            say(who, "assigned", partitions=sorted(p.partition for p in assigned))

    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        client_id=who,
        group_id=options.group,
        group_instance_id=who if options.static else None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=options.heartbeat_ms,
        fetch_max_wait_ms=100,
        metadata_max_age_ms=1_000,
        reconnect_backoff_max_ms=500,
    )
    consumer.subscribe([options.topic], listener=Listener())
    while not end.is_set():
        try:
            timeout_s = POLL_S if consumer.assignment() else JOINS_WITHIN_S
            polled = consumer.poll(int(timeout_s * 1_000))
        except KafkaConnectionError as error:  # of a look at the metadata, at a broker that is away
            say(who, "complained", why=repr(error))
            continue
        read = [
            (place.partition, message.offset, message.value.decode())
            for place, messages in polled.items()
            for message in messages
        ]
        if not read:
            continue
        say(who, "read", at=read)
        upto = {partition: offset + 1 for partition, offset, _ in read}
        while not end.is_set():
            try:
                consumer.commit(
                    {
                        TopicPartition(options.topic, partition): OffsetAndMetadata(offset, "", -1)
                        for partition, offset in upto.items()
                    },
                    timeout_ms=10_000,
                )
            except CommitFailedError as error:
                say(who, "refused", why=repr(error))
                break
            except KafkaError as error:
                say(who, "retried", why=repr(error))
                end.wait(AGAIN_S)
            else:
                say(who, "committed", offsets=upto)
                break
    consumer.close()


def aiokafka(options: argparse.Namespace, who: str, end: threading.Event) -> None:
    """aiokafka's."""
    asyncio.run(_aiokafka(options, who, end))


async def _aiokafka(options: argparse.Namespace, who: str, end: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.errors import CommitFailedError, KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        """Tells of what is assigned and revoked."""

        async def on_partitions_revoked(self, revoked: Any) -> None:
            if revoked:
                say(who, "revoked", partitions=sorted(p.partition for p in revoked))

        async def on_partitions_assigned(self, assigned: Any) -> None:
            say(who, "assigned", partitions=sorted(p.partition for p in assigned))

    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        client_id=who,
        group_id=options.group,
        group_instance_id=who if options.static else None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=options.heartbeat_ms,
        fetch_max_wait_ms=100,
        metadata_max_age_ms=1_000,
    )
    consumer.subscribe([options.topic], listener=Listener())
    await consumer.start()
    while not end.is_set():
        polled = await consumer.getmany(timeout_ms=int(POLL_S * 1_000))
        read = [
            (place.partition, message.offset, message.value.decode())
            for place, messages in polled.items()
            for message in messages
        ]
        if not read:
            continue
        say(who, "read", at=read)
        upto = {partition: offset + 1 for partition, offset, _ in read}
        while not end.is_set():
            try:
                await consumer.commit(
                    {TopicPartition(options.topic, p): offset for p, offset in upto.items()}
                )
            except CommitFailedError as error:
                say(who, "refused", why=repr(error))
                break
            except KafkaError as error:
                say(who, "retried", why=repr(error))
                await asyncio.sleep(AGAIN_S)
            else:
                say(who, "committed", offsets=upto)
                break
    await consumer.stop()


LIBRARIES: Final = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=LIBRARIES)
    for name in ("bootstrap", "group", "topic"):
        parser.add_argument(name)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--cooperative", action="store_true")
    parser.add_argument("--session-ms", type=int, default=60_000)
    parser.add_argument("--heartbeat-ms", type=int, default=300)
    options = parser.parse_args()
    end = threading.Event()

    def live(who: str) -> None:
        try:
            LIBRARIES[options.library](options, who, end)
        except BaseException as error:
            say(who, "error", why=repr(error))
            raise
        say(who, "ended")

    threads = [threading.Thread(target=live, args=(name,)) for name in options.names]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    end.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
