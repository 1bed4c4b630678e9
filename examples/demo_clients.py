"""The demo's clients: librdkafka, by confluent-kafka, as any application uses it.

A line's key is the file it is from, so a file's lines are in one partition, in order, and comparing
what comes back needs no more than to collect it by key.
"""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from examples.demo_cluster import DemoFailedError

Lines = dict[str, list[bytes]]
"""A file's non-empty lines, by its name."""

PATIENCE_S = 60


def real_lines(most: int) -> Lines:
    """Return up to `most` non-empty lines of the Python standard library's source files."""
    found: Lines = {}
    left = most
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        lines = [line for line in path.read_bytes().splitlines() if line.strip()][:left]
        if lines:
            found[path.name] = lines
            left -= len(lines)
    return found


def _noting(deed: Callable[[], None], done: Written) -> None:
    try:
        deed()
    except DemoFailedError as error:
        done.failures.append(str(error))


@dataclass(slots=True)
class Written:
    """What became of writing."""

    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    longest_gap_s: float = 0.0  # between two acknowledgements


def write(bootstrap: str, topic: str, lines: Lines, *, half_way: Callable[[], None]) -> Written:
    """Write all lines with an idempotent producer; after half, call `half_way` in a thread."""
    done = Written()
    started = last = time.monotonic()

    def acknowledged(error: KafkaError | None, _message: Message) -> None:
        nonlocal last
        if error is not None:
            done.failures.append(str(error))
            return
        done.acknowledged += 1
        now = time.monotonic()
        done.longest_gap_s = max(done.longest_gap_s, now - last)
        last = now

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 250,  # the brokers' commit interval: see docs/tuning.md
            "batch.size": 1_000_000,
        }
    )
    half = sum(map(len, lines.values())) // 2
    sent = 0
    doing: threading.Thread | None = None
    for name, some in lines.items():
        for line in some:
            if sent == half:
                producer.flush(PATIENCE_S)
                doing = threading.Thread(target=_noting, args=(half_way, done))
                doing.start()
            while True:
                try:
                    producer.produce(topic, line, key=name, on_delivery=acknowledged)
                except BufferError:  # librdkafka's queue is full: let it send
                    producer.poll(0.05)
                else:
                    break
            sent += 1
        producer.poll(0)
    producer.flush(PATIENCE_S)
    if doing is not None:
        doing.join()
    done.seconds = time.monotonic() - started
    return done


class Reading:
    """Consumers of one group, each in a thread of its own.

    A group's first member has every partition until the second is there, and a few thousand lines
    are read sooner than that. So each pauses what it is given, and reads once all have a share. And
    the group begins at offsets that are committed, all 0: librdkafka may read twice what it loses,
    or resumes, while it still asks where to begin (docs/clients.md).
    """

    def __init__(
        self, bootstrap: str, topic: str, group: str, *, members: int, partitions: int
    ) -> None:
        self.seconds = 0.0  # from when all had a share
        self._begin = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        self._topic = topic
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        self._found: list[tuple[str, bytes]] = []
        self._failures: list[str] = []
        self._shares: list[frozenset[int]] = [frozenset()] * members
        self._all_share = threading.Event()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._started = 0.0
        self._threads = [
            threading.Thread(target=self._consume, args=(member,)) for member in range(members)
        ]

    def shares(self) -> list[frozenset[int]]:
        """Return the partitions that each consumer was assigned when reading began.

        Raises:  DemoFailedError.
        """
        if not self._all_share.wait(PATIENCE_S):
            said = "; ".join(self._failures) or f"they have {[*map(sorted, self._shares)]}"
            raise DemoFailedError(f"all members have a share within {PATIENCE_S} s: {said}")
        return self._shares

    def until(self, count: int) -> list[tuple[str, bytes]]:
        """Wait until `count` lines were read; return (file name, line) pairs in reading order.

        Raises:  DemoFailedError.
        """
        self.shares()
        deadline = time.monotonic() + PATIENCE_S
        while len(self._found) < count and not self._failures:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.seconds = time.monotonic() - self._started
        if self._failures or len(self._found) < count:
            said = "; ".join(self._failures) or f"{len(self._found):,} came"
            raise DemoFailedError(f"{count:,} lines are read back within {PATIENCE_S} s: {said}")
        return list(self._found)

    def _consume(self, member: int) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic], on_assign=self._assigned)
        is_paused = True
        try:
            while not self._stop.is_set():
                if is_paused and self._note(member, consumer):
                    consumer.resume(consumer.assignment())
                    is_paused = False
                for message in consumer.consume(2_000, timeout=0.2 if self._started else 0.05):
                    if (error := message.error()) is not None:
                        if not error.retriable():
                            self._failures.append(str(error))
                        continue
                    with self._lock:
                        self._found.append((message.key().decode(), message.value()))
        finally:
            consumer.close()  # commits what was read

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if not self._all_share.is_set():
            consumer.pause(partitions)

    def _note(self, member: int, consumer: Consumer) -> bool:
        """Record a consumer's assignment; return whether all consumers have partitions to read."""
        with self._lock:
            if not self._all_share.is_set():
                own = frozenset(place.partition for place in consumer.assignment())
                self._shares[member] = own
                together = frozenset[int]().union(*self._shares)
                disjoint = sum(map(len, self._shares)) == len(together) == len(self._begin)
                if disjoint and all(self._shares):
                    self._started = time.monotonic()
                    self._all_share.set()
            return self._all_share.is_set()

    def _commit_beginning(self) -> None:
        nobody = Consumer(self._settings)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while True:
                try:
                    nobody.commit(offsets=self._begin, asynchronous=False)
                    return
                except KafkaException as error:
                    if time.monotonic() > deadline:
                        raise DemoFailedError(
                            f"the group's beginning is committed: {error}"
                        ) from error
        finally:
            nobody.close()

    def __enter__(self) -> Reading:
        self._commit_beginning()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def same_lines(expected: Lines, found: list[tuple[str, bytes]]) -> bool:
    """Return whether the lines read are all expected lines, in each file's order, once each."""
    by_file: Lines = {}
    for name, line in found:
        by_file.setdefault(name, []).append(line)
    return by_file == expected
