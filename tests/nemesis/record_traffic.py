"""Producers and a consumer at work while the nemesis is: librdkafka, as applications use it.

with Traffic(bootstrap, topic, partitions) as traffic:
    ...  # the nemesis at work
traffic.history, traffic.seen

Producers are idempotent. One that hears a fatal error (librdkafka gives up when it cannot tell any
more which records are stored) begins anew under another name, as an application would; what it had
under way is unknown. None gives up on a message by itself: librdkafka takes a new producer epoch
then, and sends again under it whatever may be stored already (docs/clients.md). The consumer has no
place to fall back to: an offset that is out of range, or that it does not expect, is a failure of
the run.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.nemesis.record_history import Acknowledged, RecordHistory, Value, WrongRecordsError


class Pace(NamedTuple):
    """How fast a producer sends."""

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
REQUEST_TIMEOUT_MS: Final = 1_000
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


class Traffic:
    """Threads that work while the block lasts; all is flushed when it is left."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, paces: Sequence[Pace] = PACES
    ) -> None:
        """
        Args:  paces: of each producer.
        """
        self.history = RecordHistory()
        self.seen: dict[int, list[tuple[int, Value]]] = {at: [] for at in range(partitions)}
        self.happened: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._all_read = threading.Event()
        self._ends: dict[int, int] | None = None  # where the consumer may stop
        self._producers = [
            threading.Thread(target=self._guarded, args=(self._produce, f"p{number}", pace))
            for number, pace in enumerate(paces)
        ]
        self._consumer = threading.Thread(target=self._guarded, args=(self._consume,))

    @property
    def acknowledged(self) -> int:
        return len(self.history.acknowledged)

    @property
    def outstanding(self) -> int:
        history = self.history
        return len(history.sent_ns) - len(history.acknowledged) - len(history.unknown)

    def check_alive(self) -> None:
        """Raises what ended somebody's work."""
        if self.failed is not None:
            raise self.failed

    def __enter__(self) -> Traffic:
        for thread in (*self._producers, self._consumer):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._producers:
            thread.join()
        if error is not None:
            self._all_read.set()
            self._consumer.join()

    def read_up_to(self, ends: dict[int, int]) -> None:
        """Wait until the consumer has read all before these offsets. Raises what it met."""
        self._ends = ends
        self._consumer.join()
        self.check_alive()

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.failed = error
            self._stop.set()

    # --- producers ----------------------------------------------------------------------------

    def _produce(self, name: str, pace: Pace) -> None:
        life = 0
        while not self._stop.is_set():
            life += 1
            if self._live(f"{name}.{life}", pace):
                self.happened["producer began anew"] += 1

    def _live(self, name: str, pace: Pace) -> bool:
        """One producer's life; was it ended by a fatal error?"""
        settings = {"bootstrap.servers": self._bootstrap, "linger.ms": pace.linger_ms}
        producer = Producer(PRODUCING | settings)
        history, numbers = self.history, [0] * self._partitions
        fatal: list[str] = []

        def told(value: Value, error: KafkaError | None, sent: Any) -> None:
            with history.lock:
                if error is None:
                    offset = sent.offset()
                    history.acknowledged[value] = Acknowledged(offset, time.monotonic_ns())
                else:
                    history.unknown[value] = error.str()
                    self.happened[error.name()] += 1
                    if error.fatal() or error.code() == KafkaError._FATAL:
                        fatal.append(error.str())

        while not self._stop.is_set() and not fatal:
            for at in range(AT_ONCE):
                if len(producer) >= pace.outstanding:
                    break
                value = Value(name, at % self._partitions, numbers[at % self._partitions])
                with history.lock:
                    history.sent_ns[value] = time.monotonic_ns()
                try:
                    producer.produce(
                        self._topic, value.encode(), partition=value.partition,
                        on_delivery=lambda error, sent, value=value: told(value, error, sent),
                    )  # fmt: skip
                except (KafkaException, BufferError) as error:
                    fatal.append(repr(error))
                    with history.lock:
                        history.unknown[value] = repr(error)
                    break
                numbers[value.partition] += 1
            try:
                producer.poll(0)
            except KafkaException as error:  # a fatal error, before any of its messages hears of it
                fatal.append(repr(error))
            self._stop.wait(PAUSE_S)
        if producer.flush(FLUSH_S):
            raise WrongRecordsError(f"{name} has records of which it was told nothing")
        if fatal:
            print(f"{name}: {fatal[0]}")
        return bool(fatal)

    # --- the consumer -------------------------------------------------------------------------

    def _consume(self) -> None:
        consumer = Consumer(CONSUMING | {"bootstrap.servers": self._bootstrap})
        try:
            consumer.assign([TopicPartition(self._topic, at, 0) for at in self.seen])
            while not self._all_read.is_set() and not self._done():
                for message in consumer.consume(1_000, READ_S):
                    self._saw(message)
        finally:
            consumer.close()

    def _saw(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            self.happened[f"consumer: {error.name()}"] += 1
            if error.code() in LASTING:
                raise WrongRecordsError(f"the consumer's place is gone: {error.str()}")
            return
        log = self.seen[message.partition()]
        if message.offset() != len(log):
            raise WrongRecordsError(
                f"{message.partition()}: consumed {message.offset()} after {len(log) - 1}"
            )
        log.append((message.offset(), Value.decode(message.value())))

    def _done(self) -> bool:
        return self._ends is not None and all(
            len(self.seen[partition]) >= end for partition, end in self._ends.items()
        )
