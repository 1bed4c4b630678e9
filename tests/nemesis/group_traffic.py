"""A consumer group of two at work while the nemesis is.

Each member hands over what it reads, and commits it, again and again until the commit is taken. The
claims, checked as it goes:

- nothing is skipped: who is given a partition begins no later than behind what was handed over;
- no commit is lost: nobody begins before what a commit was acknowledged for;
- in the end the group has had every record.

Rebalances are counted: the death of whoever acts for the group should cost none
(docs/design/groups.md).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from types import TracebackType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.nemesis.record_history import WrongRecordsError
from tests.nemesis.record_traffic import COMMON
from tests.waiting import DEADLINE_S, Deadline, wait_until

MEMBERS: Final = 2
READ_S: Final = 0.1
CONSUMING: Final = COMMON | {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
    "heartbeat.interval.ms": 300,
    "session.timeout.ms": 200_000,  # longer than any fault lasts, on however busy a machine
    "topic.metadata.refresh.interval.ms": 500,
}
LEFT_BEHIND: Final = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
}


class GroupTraffic:
    """Members in threads, while the block lasts and until `read_up_to`."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.happened: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = group
        self._lock = threading.Lock()
        self._handed: dict[int, int] = defaultdict(int)  # behind the last record handed over
        self._committed: dict[int, int] = defaultdict(int)  # as far as commits are acknowledged
        self._assigned: dict[int, int] = {}  # how many partitions, by thread
        self._assigned_at_first = 0
        self._stop = threading.Event()
        # Daemons: librdkafka's synchronous commit knows no timeout, and a Metadata answer that
        # names nobody makes it wait for ever (`tests.clients.test_nobody_serves`).
        self._members = [
            threading.Thread(target=self._guarded, daemon=True) for _ in range(MEMBERS)
        ]

    @property
    def rebalances(self) -> int:
        """Assignments since all were members."""
        return self.happened["assigned"] - self._assigned_at_first

    def _commit_nothing_read(self) -> None:
        """Offset 0 everywhere, before anybody joins. Where nothing is committed, librdkafka asks
        for the earliest offset, and may take that up half a second later, for a partition which by
        then is another member's, or has a committed offset (`rd_kafka_toppar_handle_Offset`).
        """
        consumer = Consumer(
            CONSUMING | {"bootstrap.servers": self._bootstrap, "group.id": self._group}
        )
        try:
            partitions = wait_until(
                lambda: (
                    consumer.list_topics(self._topic, DEADLINE_S).topics[self._topic].partitions
                ),
                "a broker tells the topic's partitions",
            )
            places = [TopicPartition(self._topic, at, 0) for at in partitions]
            consumer.commit(offsets=places, asynchronous=False)
        finally:
            consumer.close()

    def __enter__(self) -> GroupTraffic:
        self._commit_nothing_read()
        for thread in self._members:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._members:
            thread.join(DEADLINE_S)
        if error is None and any(thread.is_alive() for thread in self._members):
            raise WrongRecordsError("a member of the group does not come back from librdkafka")
        if error is None and self.failed is not None:
            raise self.failed

    def settle(self) -> None:
        """Wait until every member has its share."""
        wait_until(
            lambda: (
                len([one for one in self._assigned.values() if one]) == MEMBERS
                or self.failed is not None
            ),
            "all are members",
        )
        self._assigned_at_first = self.happened["assigned"]

    def has_had(self, ends: dict[int, int]) -> bool:
        """Has the group had, and committed, all before these offsets? Raises what it met."""
        if self.failed is not None:
            raise self.failed
        with self._lock:
            return all(self._committed[partition] >= end for partition, end in ends.items())

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failed = error
            self._stop.set()

    def _work(self) -> None:
        consumer = Consumer(
            CONSUMING | {"bootstrap.servers": self._bootstrap, "group.id": self._group}
        )
        following: dict[int, int] = {}  # by partition, of this assignment

        def assigned(_: Consumer, places: list[TopicPartition]) -> None:
            self.happened["assigned"] += 1
            self._assigned[threading.get_ident()] = len(places)
            following.clear()

        try:
            consumer.subscribe([self._topic], on_assign=assigned)
            while not self._stop.is_set():
                for message in consumer.consume(500, READ_S):
                    self._take(message, following)
                if following:
                    self._commit(consumer, following)
        finally:
            consumer.close()

    def _take(self, message: Any, following: dict[int, int]) -> None:
        error = message.error()
        if error is not None:
            self.happened[f"group: {error.name()}"] += 1
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise WrongRecordsError(f"the group's place is gone: {error.str()}")
            return
        partition, offset = message.partition(), message.offset()
        with self._lock:
            expected = following.get(partition)
            if expected is None:  # the first since it was assigned
                if offset > self._handed[partition]:
                    raise WrongRecordsError(
                        f"{partition}: begins at {offset}, and {self._handed[partition]} was "
                        "never handed over"
                    )
                if offset < self._committed[partition]:
                    raise WrongRecordsError(
                        f"{partition}: begins at {offset}, and {self._committed[partition]} was "
                        "committed"
                    )
            elif offset != expected:
                raise WrongRecordsError(f"{partition}: {offset} after {expected - 1}")
            following[partition] = offset + 1
            self._handed[partition] = max(self._handed[partition], offset + 1)

    def _commit(self, consumer: Consumer, following: dict[int, int]) -> None:
        """Until it is taken, or the group has gone on without this member."""
        deadline = Deadline("a commit is taken")
        with self._lock:
            due = {at: end for at, end in following.items() if end > self._committed[at]}
        while due and not self._stop.is_set():
            places = [TopicPartition(self._topic, at, end) for at, end in due.items()]
            try:
                consumer.commit(offsets=places, asynchronous=False)
            except KafkaException as error:
                code = error.args[0].code()
                self.happened[f"commit: {error.args[0].name()}"] += 1
                if code in LEFT_BEHIND:
                    following.clear()
                    return
                time.sleep(deadline.pause_s(error))
            else:
                with self._lock:
                    for at, end in due.items():
                        self._committed[at] = max(self._committed[at], end)
                return
