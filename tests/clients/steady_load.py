"""A producer that goes on while a cluster changes, and notes what was acknowledged and refused."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.waiting import wait_until

REFUSALS: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}


class Load:
    """A producer that notes each acknowledged record and the longest time between two of them."""

    def __init__(self, topic: str, settings: dict[str, Any], first: int = 0) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.refused: list[str] = []  # by a server, or by this client at a server's certificate
        self.longest_gap_s = 0.0
        self._topic = topic
        self._at = time.monotonic()
        self._next = first
        self._ends = threading.Event()
        self._producer = Producer(
            {"enable.idempotence": True, "error_cb": self._on_error, "log_level": 0} | settings
        )
        self._thread = threading.Thread(target=self._run)

    def wait_for_more(self, what: str, records: int = 200) -> None:
        """Wait until this many more records are acknowledged."""
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > before + records, f"records, {what}")

    def gap_s(self) -> float:
        """Return the longest time between two acknowledgements since this was last asked."""
        longest, self.longest_gap_s = self.longest_gap_s, 0.0
        return longest

    def _run(self) -> None:
        while not self._ends.is_set():
            value, self._next = self._next, self._next + 1
            self._producer.produce(
                self._topic,
                str(value).encode(),
                partition=0,
                on_delivery=lambda error, _, value=value: self._on_delivery(error, value),
            )
            self._producer.poll(0.01)
        self._producer.flush(60)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSALS or "certificate" in str(error):
            self.refused.append(str(error))

    def _on_delivery(self, error: KafkaError | None, value: int) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self._at)
        self._at = now
        self.acknowledged.append(value)

    def __enter__(self) -> Load:
        self._at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send nothing more, and wait until all is acknowledged."""
        self._ends.set()
        self._thread.join()


def read_all(topic: str, settings: dict[str, Any], count: int) -> list[int]:
    """Return the numbers in partition 0 of a topic, until there are `count`, for a minute."""
    consumer = Consumer({"group.id": "judge"} | settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [int(m.value()) for m in consumer.consume(500, 1.0) if m.error() is None]
    consumer.close()
    return values
