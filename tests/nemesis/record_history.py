"""The history of one run: all that Kafka clients did to one topic, and all that they were told.

Every record has a value of its own, so each one can be followed: its producer, its partition, and
its number among the records of that producer and partition. Times are `time.monotonic_ns`. An
operation without an answer has no return: it may have happened at any time after its call, or not.

`tests.nemesis.anomalies` judges a history. Several threads fill it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tests.simulation.history import NEVER


class Value(NamedTuple):
    """Names one record."""

    producer: str
    partition: int
    number: int  # counts for this producer and partition

    def encode(self) -> bytes:
        return f"{self.producer}:{self.partition}:{self.number}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Value:
        producer, partition, number = data.decode().split(":")
        return cls(producer, int(partition), int(number))


class Send(NamedTuple):
    """A record that a producer sent, and its answer."""

    invoked: int
    returned: int = NEVER  # NEVER: the outcome is unknown
    offset: int | None = None  # None: the producer was not told
    is_refused: bool = False  # the client says that it was never sent


class Record(NamedTuple):
    """A record as a consumer got it."""

    partition: int
    offset: int
    value: Value


class Poll(NamedTuple):
    """Records that one call of a consumer returned."""

    invoked: int
    returned: int
    records: tuple[Record, ...]


class Assignment(NamedTuple):
    """Partitions that a consumer reads from here on, and offsets at which it asked to begin."""

    at: int
    starts: Mapping[int, int | None]  # None: where its group has committed


class EndRead(NamedTuple):
    """A look-up of a partition's end offset."""

    invoked: int
    returned: int
    offset: int


class Commit(NamedTuple):
    """An offset that a group's member committed."""

    invoked: int
    returned: int  # NEVER: unknown
    offset: int


class CommittedRead(NamedTuple):
    """A look-up of a group's committed offset."""

    invoked: int
    returned: int
    offset: int


Log: TypeAlias = Sequence[tuple[int, Value]]
"""A partition: offsets and values, by rising offset."""


@dataclass(slots=True)
class RecordHistory:
    """Operations of clients; times of calls are passed in, returns are taken when it is told."""

    sends: dict[Value, Send] = field(default_factory=dict)
    consumers: dict[str, list[Poll | Assignment]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, list[str]] = field(default_factory=dict)  # the members, by group
    end_reads: dict[int, list[EndRead]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[tuple[str, int], list[Commit]] = field(default_factory=lambda: defaultdict(list))
    committed_reads: dict[tuple[str, int], list[CommittedRead]] = field(
        default_factory=lambda: defaultdict(list)
    )
    lost_positions: list[str] = field(default_factory=list)  # consumers that could not go on
    logs: dict[str, Mapping[int, Log]] = field(default_factory=dict)
    """All partitions as they were read after everything, by reader; the first is the reference."""
    acknowledged: int = 0
    unknown: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def outstanding(self) -> int:
        """Records that may still be answered."""
        return len(self.sends) - self.acknowledged - self.unknown

    # --- producers ----------------------------------------------------------------------------

    def send(self, value: Value) -> None:
        with self.lock:
            self.sends[value] = Send(time.monotonic_ns())

    def acknowledge(self, value: Value, offset: int | None) -> None:
        with self.lock:
            self.acknowledged += 1
            send = self.sends[value]
            self.sends[value] = send._replace(returned=time.monotonic_ns(), offset=offset)

    def give_up(self, value: Value, *, is_refused: bool = False) -> None:
        """Note that the outcome stays unknown, or that the client refused to send the record."""
        with self.lock:
            self.unknown += 1
            self.sends[value] = self.sends[value]._replace(is_refused=is_refused)

    # --- consumers ----------------------------------------------------------------------------

    def assign(self, consumer: str, starts: Mapping[int, int | None]) -> None:
        with self.lock:
            self.consumers[consumer].append(Assignment(time.monotonic_ns(), dict(starts)))

    def poll(self, consumer: str, invoked: int, records: Sequence[Record]) -> None:
        if records:
            with self.lock:
                poll = Poll(invoked, time.monotonic_ns(), tuple(records))
                self.consumers[consumer].append(poll)

    def lose_position(self, consumer: str, reason: str) -> None:
        with self.lock:
            self.lost_positions.append(f"{consumer}: {reason}")

    # --- offsets ------------------------------------------------------------------------------

    def read_end(self, partition: int, invoked: int, offset: int) -> None:
        with self.lock:
            self.end_reads[partition].append(EndRead(invoked, time.monotonic_ns(), offset))

    def commit(
        self, group: str, partition: int, invoked: int, offset: int, *, is_acknowledged: bool
    ) -> None:
        with self.lock:
            returned = time.monotonic_ns() if is_acknowledged else NEVER
            self.commits[group, partition].append(Commit(invoked, returned, offset))

    def read_committed(self, group: str, partition: int, invoked: int, offset: int) -> None:
        with self.lock:
            read = CommittedRead(invoked, time.monotonic_ns(), offset)
            self.committed_reads[group, partition].append(read)
