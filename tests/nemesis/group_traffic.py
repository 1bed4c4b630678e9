"""A consumer group of two at work while the nemesis is.

Each member takes what it reads and commits it, again and again until the commit is taken, but never
an offset below one that the group has committed. A watcher looks up what is committed. What members
got and were told goes into the history of `record_traffic`, where anomalies are found.

Rebalances are counted: the death of the broker that acts for the group should cost none
(docs/design/groups.md).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.nemesis.record_history import RecordHistory
from tests.nemesis.record_traffic import COMMON, PATIENCE_S, WATCH_S, records_of
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

    def __init__(self, bootstrap: str, topic: str, group: str, history: RecordHistory) -> None:
        self.happened: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = group
        self._history = history
        self._lock = threading.Lock()
        self._committed: dict[int, int] = defaultdict(int)  # as far as commits are acknowledged
        self._assigned: dict[int, int] = {}  # how many partitions, by thread
        self._assigned_at_first = 0
        self._stop = threading.Event()
        # Daemons: librdkafka's synchronous commit knows no timeout, and a Metadata answer that
        # names nobody makes it wait for ever (`tests.clients.test_nobody_serves`).
        self._members = [
            threading.Thread(
                target=self._guarded, args=(self._work, f"{group} {number}"), daemon=True
            )
            for number in range(MEMBERS)
        ]
        self._members.append(
            threading.Thread(target=self._guarded, args=(self._watch,), daemon=True)
        )
        history.groups[group] = [f"{group} {number}" for number in range(MEMBERS)]

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
            invoked = time.monotonic_ns()
            consumer.commit(offsets=places, asynchronous=False)
            for at in partitions:
                self._history.commit(self._group, at, invoked, 0, is_acknowledged=True)
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
            raise AssertionError("a member of the group does not come back from librdkafka")
        if error is None and self.failed is not None:
            raise self.failed

    def settle(self) -> None:
        """Wait until every member has its share.

        The first member may still have all partitions when the second has been given some.
        """
        partitions = len(self._partitions())

        def all_have_shares() -> bool:
            shares = [share for share in self._assigned.values() if share]
            return len(shares) == MEMBERS and sum(shares) == partitions

        wait_until(lambda: all_have_shares() or self.failed is not None, "all are members")
        self._assigned_at_first = self.happened["assigned"]

    def _partitions(self) -> set[int]:
        return {partition for group, partition in self._history.commits if group == self._group}

    def has_had(self, ends: dict[int, int]) -> bool:
        """Whether the group has committed all before these offsets. Raises a member's error."""
        if self.failed is not None:
            raise self.failed
        with self._lock:
            return all(self._committed[partition] >= end for partition, end in ends.items())

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.failed = error
            self._stop.set()

    def _work(self, member: str) -> None:
        consumer = Consumer(
            CONSUMING | {"bootstrap.servers": self._bootstrap, "group.id": self._group}
        )
        following: dict[int, int] = {}  # by partition, of this assignment

        def assigned(_: Consumer, places: list[TopicPartition]) -> None:
            self.happened["assigned"] += 1
            self._assigned[threading.get_ident()] = len(places)
            following.clear()
            self._history.assign(member, dict.fromkeys(place.partition for place in places))

        try:
            consumer.subscribe([self._topic], on_assign=assigned)
            while not self._stop.is_set():
                invoked = time.monotonic_ns()
                messages = [one for one in consumer.consume(500, READ_S) if self._is_good(one)]
                self._history.poll(member, invoked, records_of(messages))
                following.update({one.partition(): one.offset() + 1 for one in messages})
                if following:
                    self._commit(consumer, following)
        finally:
            consumer.close()

    def _is_good(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        self.happened[f"group: {error.name()}"] += 1
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._history.lose_position(self._group, error.str())
        return False

    def _commit(self, consumer: Consumer, following: dict[int, int]) -> None:
        """Commit until it is taken, or the group has gone on without this member."""
        deadline = Deadline("a commit is taken")
        with self._lock:
            due = {at: end for at, end in following.items() if end > self._committed[at]}
        while due and not self._stop.is_set():
            places = [TopicPartition(self._topic, at, end) for at, end in due.items()]
            invoked = time.monotonic_ns()
            try:
                consumer.commit(offsets=places, asynchronous=False)
            except KafkaException as error:
                code = error.args[0].code()
                self.happened[f"commit: {error.args[0].name()}"] += 1
                self._note_commits(due, invoked, is_acknowledged=False)
                if code in LEFT_BEHIND:
                    following.clear()
                    return
                time.sleep(deadline.pause_s(error))
            else:
                self._note_commits(due, invoked, is_acknowledged=True)
                return

    def _note_commits(self, due: dict[int, int], invoked: int, *, is_acknowledged: bool) -> None:
        for at, end in due.items():
            self._history.commit(self._group, at, invoked, end, is_acknowledged=is_acknowledged)
            if is_acknowledged:
                with self._lock:
                    self._committed[at] = max(self._committed[at], end)

    def _watch(self) -> None:
        """Look up the committed offsets, as an administrator would."""
        consumer = Consumer(
            CONSUMING | {"bootstrap.servers": self._bootstrap, "group.id": self._group}
        )
        places = [TopicPartition(self._topic, at) for at in self._partitions()]
        try:
            while not self._stop.wait(WATCH_S):
                invoked = time.monotonic_ns()
                try:
                    found = consumer.committed(places, PATIENCE_S)
                except KafkaException:
                    continue
                for place in found:
                    if place.error is None:
                        offset = max(place.offset, -1)  # nothing is committed: -1001
                        at = place.partition
                        self._history.read_committed(self._group, at, invoked, offset)
        finally:
            consumer.close()
