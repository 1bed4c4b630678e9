"""Producers and consumers at work while the nemesis is: librdkafka and aiokafka, as applications
use them, and a watcher that looks up end offsets.

with Traffic(bootstrap, topic, partitions) as traffic:
    ...  # the nemesis at work
traffic.read_up_to(ends)
traffic.history

Producers are idempotent. One that hears a fatal error (librdkafka gives up when it cannot tell any
more which records are stored) begins anew under another name, as an application would; what it had
under way is unknown. None gives up on a message by itself: librdkafka takes a new producer epoch
then, and sends again under it whatever may be stored already (docs/clients.md). Consumers begin at
offset 0 and have no place to fall back to: an offset that is out of range is an anomaly.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, NamedTuple

import aiokafka
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.errors import OffsetOutOfRangeError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.nemesis.record_history import Record, RecordHistory, Value
from tests.raft.driver.client import Client as Wire
from tests.raft.driver.client import ClientError
from tests.waiting import wait_until


class Pace(NamedTuple):
    """The rate at which a producer sends."""

    linger_ms: int
    outstanding: int  # records; beyond, it waits


HASTY: Final = Pace(linger_ms=5, outstanding=400)
"""Always has as many requests under way as an idempotent producer may have. librdkafka's threads
then spin: three such producers took more than one core of two."""
CALM: Final = Pace(linger_ms=100, outstanding=100)
"""Has at most four of the five requests to a broker under way, even while no broker answers."""
PACES: Final = (HASTY, CALM, CALM)

AT_ONCE: Final = 10  # records between two looks at what came back
PAUSE_S: Final = 0.02
FLUSH_S: Final = 70.0
READ_S: Final = 0.1
WATCH_S: Final = 0.05  # between two look-ups of the watcher
PATIENCE_S: Final = 3.0  # of the watcher, for one answer
REQUEST_TIMEOUT_MS: Final = 1_000
LIST_OFFSETS_VERSION: Final = 6
LATEST: Final = -1  # ListOffsets' timestamp
COMMON: Final = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 500,
    "socket.timeout.ms": 3_000,
    "log_level": 0,
}
PRODUCING: Final = COMMON | {
    "enable.idempotence": True,
    "request.timeout.ms": REQUEST_TIMEOUT_MS,
    "message.timeout.ms": 0,  # none: see the module
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
}
CONSUMING: Final = COMMON | {
    "group.id": "nobody",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
}
LASTING: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
ERRORS: Final = "aiokafka: "
AIO_COMMON: Final = {"metadata_max_age_ms": 500, "retry_backoff_ms": 20}
AIO_REQUEST_TIMEOUT_MS: Final = 100_000  # longer than any fault: then it gives up no batch


class Traffic:
    """Threads that work while the block lasts; all is flushed when it is left."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        paces: Sequence[Pace] = PACES,
        *,
        watched: Sequence[tuple[str, int]] = (),
        with_aiokafka: bool = False,
        seed: int = 0,
    ) -> None:
        """
        Args:  paces: of each producer. seed: of the watcher's choices.
               watched: brokers whose end offsets are looked up, whether they lead or not.
        """
        self.history = RecordHistory()
        self.happened: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._watched = list(watched)
        self._random = Random(seed)
        self._stop = threading.Event()
        self._all_read = threading.Event()
        self._ends: dict[int, int] | None = None  # where consumers may stop
        self._positions: dict[str, list[int]] = {}  # by consumer and partition: behind what it got
        works: list[tuple[Any, ...]] = [
            (self._produce, f"p{number}", pace) for number, pace in enumerate(paces)
        ]
        if watched:
            works.append((self._watch,))
        if with_aiokafka:
            works.append((self._produce_with_aiokafka,))
        readers = [self._consume_with_aiokafka] if with_aiokafka else []
        self._workers = [
            threading.Thread(target=self._guarded, args=work, daemon=True) for work in works
        ]
        self._readers = [
            threading.Thread(target=self._guarded, args=(read,), daemon=True)
            for read in (self._consume, *readers)
        ]

    @property
    def acknowledged(self) -> int:
        return self.history.acknowledged

    @property
    def outstanding(self) -> int:
        return self.history.outstanding

    def check_alive(self) -> None:
        """Raise the error that ended a client's work, if there is one."""
        if self.failed is not None:
            raise self.failed

    def __enter__(self) -> Traffic:
        for thread in (*self._workers, *self._readers):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._workers:
            thread.join()
        if error is not None:
            self._stop_reading()

    def read_up_to(self, ends: dict[int, int]) -> None:
        """Wait until the consumers have read all before these offsets, if they do at all.

        A consumer that does not come there has not seen everything, which its history shows.
        """
        self._ends = ends
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(one.is_alive() for one in self._readers), "all is read")
        self._stop_reading()
        self.check_alive()

    def _stop_reading(self) -> None:
        self._all_read.set()
        for thread in self._readers:
            thread.join()

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.failed = error
            self._stop.set()

    # --- producers ----------------------------------------------------------------------------

    def _produce(self, name: str, pace: Pace) -> None:
        incarnation = 0
        while not self._stop.is_set():
            incarnation += 1
            if self._produce_until_fatal(f"{name}.{incarnation}", pace):
                self.happened["producer began anew"] += 1

    def _produce_until_fatal(self, name: str, pace: Pace) -> bool:
        """Produce until a fatal error, or the end of the run; return whether it was an error."""
        settings = {"bootstrap.servers": self._bootstrap, "linger.ms": pace.linger_ms}
        producer = Producer(PRODUCING | settings)
        history, numbers = self.history, [0] * self._partitions
        fatal: list[str] = []

        def answered(value: Value, error: KafkaError | None, sent: Any) -> None:
            if error is None:
                history.acknowledge(value, sent.offset())
                return
            history.give_up(value)
            self.happened[error.name()] += 1
            if error.fatal() or error.code() == KafkaError._FATAL:
                fatal.append(error.str())

        while not self._stop.is_set() and not fatal:
            for at in range(AT_ONCE):
                if len(producer) >= pace.outstanding:
                    break
                value = Value(name, at % self._partitions, numbers[at % self._partitions])
                history.send(value)
                try:
                    producer.produce(
                        self._topic, value.encode(), partition=value.partition,
                        on_delivery=lambda error, sent, value=value: answered(value, error, sent),
                    )  # fmt: skip
                except (KafkaException, BufferError) as error:
                    fatal.append(repr(error))
                    history.give_up(value, is_refused=True)
                    break
                numbers[value.partition] += 1
            try:
                producer.poll(0)
            except KafkaException as error:  # a fatal error, before any of its messages hears of it
                fatal.append(repr(error))
            self._stop.wait(PAUSE_S)
        producer.flush(FLUSH_S)  # what is left then has no outcome
        if fatal:
            print(f"{name}: {fatal[0]}")
        return bool(fatal)

    def _produce_with_aiokafka(self) -> None:
        asyncio.run(self._produce_on_a_loop())

    async def _produce_on_a_loop(self) -> None:
        history, incarnation = self.history, 0
        while not self._stop.is_set():
            incarnation += 1
            name, numbers = f"aio.{incarnation}", [0] * self._partitions
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, enable_idempotence=True, acks="all",
                linger_ms=20, request_timeout_ms=AIO_REQUEST_TIMEOUT_MS, **AIO_COMMON,
            )  # fmt: skip
            waiting: dict[asyncio.Future[Any], Value] = {}
            try:
                await producer.start()
                while not self._stop.is_set() and not _is_over(waiting):
                    for partition in range(self._partitions):
                        value = Value(name, partition, numbers[partition])
                        history.send(value)
                        try:
                            future = await producer.send(
                                self._topic, value.encode(), partition=partition
                            )
                        except AioKafkaError:
                            history.give_up(value)
                            raise
                        numbers[partition] += 1
                        waiting[future] = value
                        future.add_done_callback(
                            lambda future, value=value: self._answered_by_aiokafka(future, value)
                        )
                    await asyncio.sleep(PAUSE_S)
            except AioKafkaError as error:
                self.happened[f"{ERRORS}{type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)
            finally:
                with contextlib.suppress(AioKafkaError, asyncio.TimeoutError):
                    await asyncio.wait_for(producer.stop(), FLUSH_S)

    def _answered_by_aiokafka(self, future: asyncio.Future[Any], value: Value) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is None:
            offset = future.result().offset
            self.history.acknowledge(value, offset if offset >= 0 else None)
        else:
            self.happened[f"{ERRORS}{type(error).__name__}"] += 1
            self.history.give_up(value)

    # --- consumers ----------------------------------------------------------------------------

    def _begin(self, consumer: str) -> list[int]:
        self.history.assign(consumer, dict.fromkeys(range(self._partitions), 0))
        positions = self._positions[consumer] = [0] * self._partitions
        return positions

    def _consume(self) -> None:
        consumer = Consumer(CONSUMING | {"bootstrap.servers": self._bootstrap})
        positions = self._begin("librdkafka")
        try:
            consumer.assign([TopicPartition(self._topic, at, 0) for at in range(self._partitions)])
            while not self._all_read.is_set() and not self._has_all(positions):
                invoked = time.monotonic_ns()
                messages = [one for one in consumer.consume(1_000, READ_S) if self._is_good(one)]
                self._got("librdkafka", invoked, records_of(messages))
        finally:
            consumer.close()

    def _is_good(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        self.happened[f"consumer: {error.name()}"] += 1
        if error.code() in LASTING:
            self.history.lose_position("librdkafka", error.str())
            self._all_read.set()
        return False

    def _got(self, consumer: str, invoked: int, records: Sequence[Record]) -> None:
        self.history.poll(consumer, invoked, records)
        for partition, offset, _ in records:
            self._positions[consumer][partition] = offset + 1

    def _has_all(self, positions: Sequence[int]) -> bool:
        return self._ends is not None and all(
            positions[partition] >= end for partition, end in self._ends.items()
        )

    def _consume_with_aiokafka(self) -> None:
        asyncio.run(self._consume_on_a_loop())

    async def _consume_on_a_loop(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, auto_offset_reset="none", enable_auto_commit=False,
            fetch_max_wait_ms=100, request_timeout_ms=int(PATIENCE_S * 1000), **AIO_COMMON,
        )  # fmt: skip
        places = [aiokafka.TopicPartition(self._topic, at) for at in range(self._partitions)]
        positions = self._begin("aiokafka")
        while not self._all_read.is_set():
            try:
                await consumer.start()
                break
            except AioKafkaError as error:
                self.happened[f"{ERRORS}{type(error).__name__}"] += 1
        try:
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while not self._all_read.is_set() and not self._has_all(positions):
                invoked = time.monotonic_ns()
                try:
                    polled = await consumer.getmany(timeout_ms=int(READ_S * 1000))
                except OffsetOutOfRangeError as error:
                    self.history.lose_position("aiokafka", repr(error))
                    return
                except AioKafkaError as error:
                    self.happened[f"{ERRORS}{type(error).__name__}"] += 1
                    continue
                records = [
                    Record(one.partition, one.offset, Value.decode(one.value or b""))
                    for messages in polled.values()
                    for one in messages
                ]
                self._got("aiokafka", invoked, records)
        finally:
            with contextlib.suppress(AioKafkaError):
                await consumer.stop()

    # --- the watcher --------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look up end offsets: at one broker after the other, and where librdkafka does it."""
        consumer = Consumer(CONSUMING | {"bootstrap.servers": self._bootstrap})
        try:
            while not self._stop.wait(WATCH_S):
                partition = self._random.randrange(self._partitions)
                invoked = time.monotonic_ns()
                try:
                    if self._random.randrange(4):
                        address = self._random.choice(self._watched)
                        with Wire(*address, timeout_s=PATIENCE_S) as wire:
                            offset = end_offset(wire, self._topic, partition)
                    else:
                        place = TopicPartition(self._topic, partition)
                        _, offset = consumer.get_watermark_offsets(place, PATIENCE_S)
                except (OSError, ClientError, KafkaException):
                    continue
                self.history.read_end(partition, invoked, offset)
        finally:
            consumer.close()


def _is_over(waiting: dict[asyncio.Future[Any], Value]) -> bool:
    """Forget the futures that are done; return whether one of them failed."""
    done = [future for future in waiting if future.done()]
    for future in done:
        del waiting[future]
    return any(future.cancelled() or future.exception() for future in done)


def records_of(messages: Sequence[Any]) -> list[Record]:
    """The records of librdkafka's messages."""
    return [Record(one.partition(), one.offset(), Value.decode(one.value())) for one in messages]


def end_offset(wire: Wire, topic: str, partition: int) -> int:
    """Ask one broker for a partition's end offset. Raises ClientError, OSError."""
    asked = ListOffsetsRequest.ListOffsetsTopic
    place = asked.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
    request = ListOffsetsRequest(replica_id=-1, topics=(asked(name=topic, partitions=(place,)),))
    answer = wire.ask(request, ListOffsetsResponse, LIST_OFFSETS_VERSION)
    (found,) = answer.topics[0].partitions
    if found.error_code:
        raise ClientError(found.error_code)
    return found.offset
