"""Reads a whole topic by one consumer of librdkafka, for the benchmarks that compare readers."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

WAIT_S = 60
"""The longest wait for the next records."""


def read_all(
    bootstrap: str,
    topic: str,
    partitions: int,
    records: int,
    settings: Mapping[str, str] | None = None,
) -> float:
    """Return the seconds in which one consumer reads a topic from offset 0 on.

    Args:    records: of all partitions together. settings: of the consumer, in addition.
    Raises:  AssertionError if no more records come.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            **(settings or {}),
        }
    )
    begun, count = time.perf_counter(), 0
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while count < records:
        messages = consumer.consume(min(1_000, records - count), timeout=WAIT_S)
        assert messages, f"{count} of {records} records came, and then none"
        count += sum(message.error() is None for message in messages)
    took_s = time.perf_counter() - begun
    consumer.close()
    return took_s
