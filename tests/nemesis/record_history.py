"""What producers were told of their records, and whether the partitions' logs agree.

Every record has a value of its own: who sent it, to which partition, as its how many-th. Then the
claims can be checked one by one, on what is read in the end:

- what was acknowledged is there, at the offset that was told (nothing lost);
- nothing is there twice (idempotent producers), and nothing that nobody sent;
- of one producer and partition, everything is in the order in which it was sent;
- offsets have no gaps;
- what was acknowledged before another was sent, comes before it (the order agrees with real time);
- whoever read along saw the same records at the same offsets.

A record whose outcome the producer does not know may be there or not, once.

Source: invariants 5, 6 and 9 (docs/design/invariants.md).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class WrongRecordsError(Exception):
    """The logs contradict what producers or consumers were told."""


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


class Acknowledged(NamedTuple):
    """What a producer was told."""

    offset: int | None  # None: it was not told where
    at_ns: int


Log: TypeAlias = Sequence[tuple[int, Value]]
"""A partition: offsets and values, by rising offset."""


@dataclass(slots=True)
class RecordHistory:
    """Of one run; filled by several threads."""

    sent_ns: dict[Value, int] = field(default_factory=dict)
    acknowledged: dict[Value, Acknowledged] = field(default_factory=dict)
    unknown: dict[Value, str] = field(default_factory=dict)  # and what the producer said
    lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, logs: Mapping[int, Log]) -> None:
        """Compare with all partitions, as one broker has them. Raises WrongRecordsError."""
        for partition, log in logs.items():
            _check_offsets(partition, log)
            self._check_values(partition, log)
            _check_order(partition, log)
        self._check_lost(logs)
        for partition, log in logs.items():
            self._check_told(partition, log)
            self._check_real_time(partition, log)

    def _check_values(self, partition: int, log: Log) -> None:
        seen: dict[Value, int] = {}
        for offset, value in log:
            if value not in self.sent_ns:
                raise WrongRecordsError(f"{partition}:{offset}: nobody sent {value}")
            if value.partition != partition:
                raise WrongRecordsError(f"{partition}:{offset}: {value} was sent elsewhere")
            if value in seen:
                raise WrongRecordsError(
                    f"{partition}: duplicate: {value} at {seen[value]} and {offset}"
                )
            seen[value] = offset

    def _check_lost(self, logs: Mapping[int, Log]) -> None:
        there = {value for log in logs.values() for _, value in log}
        lost = [value for value in self.acknowledged if value not in there]
        if lost:
            raise WrongRecordsError(
                f"lost: {len(lost)} of {len(self.acknowledged)} acknowledged records, "
                f"among them {min(lost)}, {self.acknowledged[min(lost)]}"
            )

    def _check_told(self, partition: int, log: Log) -> None:
        for offset, value in log:
            told = self.acknowledged.get(value)
            if told is not None and told.offset is not None and told.offset != offset:
                raise WrongRecordsError(
                    f"{partition}: {value} is at {offset}, and its producer was told {told.offset}"
                )

    def _check_real_time(self, partition: int, log: Log) -> None:
        """Walk backwards: nothing later in the log was acknowledged before this was sent."""
        earliest: tuple[int, Value] | None = None
        for offset, value in reversed(log):
            sent_ns = self.sent_ns[value]
            if earliest is not None and earliest[0] < sent_ns:
                raise WrongRecordsError(
                    f"{partition}: {value} at {offset} was sent after {earliest[1]}, which is "
                    "behind it, was acknowledged"
                )
            told = self.acknowledged.get(value)
            if told is not None and (earliest is None or told.at_ns < earliest[0]):
                earliest = told.at_ns, value


def _check_offsets(partition: int, log: Log) -> None:
    for expected, (offset, value) in enumerate(log):
        if offset != expected:
            raise WrongRecordsError(f"{partition}: gap: {value} is at {offset}, not at {expected}")


def _check_order(partition: int, log: Log) -> None:
    last: dict[str, int] = defaultdict(lambda: -1)
    for offset, value in log:
        if value.number <= last[value.producer]:
            raise WrongRecordsError(
                f"{partition}:{offset}: out of order: {value} after number {last[value.producer]}"
            )
        last[value.producer] = value.number


def check_same(name: str, one: Mapping[int, Log], other: Mapping[int, Log]) -> None:
    """Two readers read the same records. Raises WrongRecordsError."""
    for partition, log in one.items():
        for mine, yours in zip(log, other[partition], strict=False):
            if mine != yours:
                raise WrongRecordsError(f"{name}: {partition}: {mine} here, and {yours} there")
        if len(log) != len(other[partition]):
            raise WrongRecordsError(
                f"{name}: {partition}: {len(log)} records here, {len(other[partition])} there"
            )
