"""Producers that write in transactions, one that transforms an input topic, and their readers.

Each producer has a transactional id, and continues under it after any error: an outcome that it was
not told is unknown. The transformer commits the offsets of its input with its output, and is left
and begun anew now and then, without an end of its transaction.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.nemesis.transaction_history import (
    Outcome,
    Read,
    Transaction,
    TransactionHistory,
    Value,
)
from tests.waiting import DEADLINE_S

GROUP: Final = "transformers"
QUICK: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
CALL_S: Final = 10.0
IGNORED: Final = {KafkaError._PARTITION_EOF}


class TransactionTraffic:
    """Traffic on one output topic. `run` returns when all of its work is done."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        input_topic: str,
        inputs: int,
        transactions: int,
        seed: int,
        producers: int = 2,
    ) -> None:
        """Prepare traffic.

        Args:  inputs: records of the input topic's partition 0, whose values are their numbers.
               transactions: of each producer.
        """
        self.history = TransactionHistory(inputs=inputs)
        self._common = QUICK | {"bootstrap.servers": bootstrap}
        self._topic = topic
        self._input_topic = input_topic
        self._partitions = partitions
        self._count = transactions
        self._seed = seed
        self._names = [f"p{index}" for index in range(producers)]
        self._failures: list[BaseException] = []
        self._is_over = threading.Event()

    def run(self, timeout_s: float) -> TransactionHistory:
        """Run everything, read what there is in the end, and return the history."""
        reader = self._start(self._read, "reader")
        work = [self._start(self._produce, name) for name in self._names]
        work.append(self._start(self._transform, "transformer"))
        deadline = time.monotonic() + timeout_s
        for thread in work:
            thread.join(max(0.0, deadline - time.monotonic()))
        is_late = any(thread.is_alive() for thread in work)
        self._is_over.set()
        for thread in (reader, *work):
            thread.join(DEADLINE_S)
        if self._failures:
            raise self._failures[0]
        assert not is_late, f"not done in {timeout_s} s: {self.history.counts()}"
        for name in (*self._names, "transformer"):
            self._open(name)  # ends what was left open
        self.history.logs = self.read_logs()
        return self.history

    def _start(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                work(name)
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=guarded, name=name)
        thread.start()
        return thread

    # --- producers ----------------------------------------------------------------------------

    def _open(self, name: str) -> Producer:
        """Return a producer under a name's transactional id; a former one is fenced."""
        while True:
            producer = Producer(
                self._common
                | {
                    "transactional.id": f"{self._topic}-{name}",
                    "transaction.timeout.ms": 10_000,
                    "linger.ms": 1,
                }
            )
            try:
                producer.init_transactions(CALL_S)
            except KafkaException as error:
                if self._is_over.is_set() and not error.args[0].retriable():
                    raise
            else:
                return producer

    def _produce(self, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        producer, number = self._open(name), 0
        for index in range(self._count):
            if self._is_over.is_set():
                return
            values = []
            for _ in range(chance.randrange(1, 5)):
                values.append((chance.randrange(self._partitions), Value(name, index, number)))
                number += 1
            if not self._write(producer, values, is_committed=chance.random() < 0.7):
                producer = self._open(name)

    def _write(
        self,
        producer: Producer,
        values: Sequence[tuple[int, Value]],
        *,
        is_committed: bool,
        offsets: Callable[[], None] = lambda: None,
    ) -> bool:
        """Write one transaction; return False if its outcome is unknown."""
        transaction = Transaction(list(values))
        with self.history.lock:
            self.history.transactions[values[0][1][:2]] = transaction
        try:
            producer.begin_transaction()
            for partition, value in values:
                producer.produce(self._topic, value.encode(), partition=partition)
            offsets()
            if producer.flush(CALL_S):
                return False
            if is_committed:
                transaction.commit_invoked = time.monotonic_ns()
                producer.commit_transaction(CALL_S)
                transaction.outcome = Outcome.COMMITTED
            else:
                producer.abort_transaction(CALL_S)
                transaction.outcome = Outcome.ABORTED
        except KafkaException:
            return False
        return True

    # --- the transformer ----------------------------------------------------------------------

    def _transform(self, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        place = TopicPartition(self._input_topic, 0)
        index = number = done = 0
        while done < self.history.inputs and not self._is_over.is_set():
            producer = self._open(name)
            consumer = self._consumer(GROUP, "read_committed")
            (committed,) = self._retry(lambda c=consumer: c.committed([place], CALL_S))
            done = max(0, committed.offset)
            consumer.assign([TopicPartition(self._input_topic, 0, done)])
            while done < self.history.inputs and not self._is_over.is_set():
                messages = [m for m in consumer.consume(5, 1.0) if m.error() is None]
                if not messages:
                    break
                values = []
                for message in messages:
                    made_of = int(message.value())
                    partition = chance.randrange(self._partitions)
                    values.append((partition, Value(name, index, number, made_of)))
                    number += 1
                index += 1
                end = messages[-1].offset() + 1
                is_left = chance.random() < 0.1  # without an end

                def offsets(end: int = end, p: Any = producer, c: Any = consumer) -> None:
                    places = [TopicPartition(self._input_topic, 0, end)]
                    p.send_offsets_to_transaction(places, c.consumer_group_metadata(), CALL_S)

                if is_left:
                    self._leave(producer, values, offsets)
                    break
                if not self._write(producer, values, is_committed=True, offsets=offsets):
                    break
                done = end
            consumer.close()

    def _leave(
        self,
        producer: Producer,
        values: Sequence[tuple[int, Value]],
        offsets: Callable[[], None],
    ) -> None:
        """Write a transaction and leave it open, as a process that is killed does."""
        with self.history.lock:
            self.history.transactions[values[0][1][:2]] = Transaction(list(values))
        try:
            producer.begin_transaction()
            for partition, value in values:
                producer.produce(self._topic, value.encode(), partition=partition)
            offsets()
            producer.flush(CALL_S)
        except KafkaException:
            return

    def _retry(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except KafkaException:
                if self._is_over.is_set():
                    raise

    # --- readers ------------------------------------------------------------------------------

    def _consumer(self, group: str, isolation: str) -> Consumer:
        return Consumer(
            self._common
            | {
                "group.id": group,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )

    def _read(self, name: str) -> None:
        """Read all partitions from their beginnings, committed records only, until all is over."""
        consumer = self._consumer("nobody", "read_committed")
        consumer.assign([TopicPartition(self._topic, p, 0) for p in range(self._partitions)])
        while not self._is_over.is_set():
            for message in consumer.consume(100, 0.2):
                if message.error() is None:
                    self._keep(name, message)
        consumer.close()

    def _keep(self, name: str, message: Any) -> None:
        read = Read(
            time.monotonic_ns(),
            message.partition(),
            message.offset(),
            Value.decode(message.value()),
        )
        with self.history.lock:
            self.history.reads[name].append(read)

    def read_logs(self, isolation: str = "read_committed") -> dict[int, list[tuple[int, Value]]]:
        """Return every partition as a new reader with this isolation level gets it, to its end."""
        logs: dict[int, list[tuple[int, Value]]] = {p: [] for p in range(self._partitions)}
        consumer = self._consumer("nobody", isolation)
        consumer.assign([TopicPartition(self._topic, p, 0) for p in logs])
        at_end: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(at_end) < len(logs):
            assert time.monotonic() < deadline, f"only {at_end} of {len(logs)} partitions ended"
            for message in consumer.consume(500, 0.5):
                error = message.error()
                if error is None:
                    value = Value.decode(message.value())
                    logs[message.partition()].append((message.offset(), value))
                elif error.code() in IGNORED:
                    at_end.add(message.partition())
        consumer.close()
        return logs
