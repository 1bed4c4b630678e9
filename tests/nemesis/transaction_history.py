"""The history of transactions on one topic, and the anomalies that committed readers met.

Every record has a value of its own, which names its transaction. A producer knows the outcome of a
transaction, or it does not: the call that ended it failed in doubt. Then all of its records may be
there, or none.

Source: Jepsen's Kafka workload (lost, aborted, torn, duplicated); tests.nemesis.record_history.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from tests.simulation.history import NEVER


class Outcome(StrEnum):
    """The end of a transaction, as its producer was told."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """What is wrong."""

    LOST = "lost"  # a committed record is not in the log
    ABORTED = "aborted"  # a reader of committed records got one of an aborted transaction
    TORN = "torn"  # a part of a transaction is in the log
    DUPLICATED = "duplicated"  # a record is in the log twice
    EARLY = "early"  # a reader got a record before its producer asked to commit it
    REORDERED = "reordered"  # the records of a producer are not in its order
    SKIPPED = "skipped"  # a reader passed a record of the log by
    ALTERED = "altered"  # a reader got another record at an offset than the log has
    INPUT_LOST = "input lost"  # an input record has no committed output
    INPUT_TWICE = "input twice"  # an input record has two committed outputs


class Value(NamedTuple):
    """Names one record: of a producer's transaction, by number among all that it has sent."""

    producer: str
    transaction: int
    number: int
    input: int = -1  # the number of the input record that it was made of; -1: of none

    def encode(self) -> bytes:
        """Return the record's value."""
        return ":".join(map(str, self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Value:
        """Read the record's value."""
        producer, transaction, number, made_of = data.decode().split(":")
        return cls(producer, int(transaction), int(number), int(made_of))


@dataclass(slots=True)
class Transaction:
    """The records that a producer has sent in a transaction, and how it ended."""

    values: list[tuple[int, Value]] = field(default_factory=list)  # with their partitions
    commit_invoked: int = NEVER  # NEVER: the producer has not asked to commit it
    outcome: Outcome = Outcome.UNKNOWN


class Read(NamedTuple):
    """A record that a reader of committed records got."""

    returned: int
    partition: int
    offset: int
    value: Value


class Anomaly(NamedTuple):
    """One thing that is wrong."""

    kind: Kind
    text: str


class AnomaliesError(AssertionError):
    """A history has anomalies."""


Log = Sequence[tuple[int, Value]]
"""A partition as a reader of committed records has read it in the end: offsets and values."""


@dataclass(slots=True)
class TransactionHistory:
    """All transactions, all reads, and the partitions as they were read after everything."""

    transactions: dict[tuple[str, int], Transaction] = field(default_factory=dict)
    reads: dict[str, list[Read]] = field(default_factory=lambda: defaultdict(list))  # by reader
    logs: Mapping[int, Log] = field(default_factory=dict)
    inputs: int = 0  # input records with numbers from 0 on, each to be transformed once
    lock: threading.Lock = field(default_factory=threading.Lock)

    def counts(self) -> dict[Outcome, int]:
        """Return the number of transactions by outcome."""
        found = dict.fromkeys(Outcome, 0)
        for transaction in self.transactions.values():
            found[transaction.outcome] += 1
        return found


def check(history: TransactionHistory) -> None:
    """Raise AnomaliesError if the history has any anomaly."""
    found = find_anomalies(history)
    if found:
        shown = "; ".join(f"{one.kind}: {one.text}" for one in found[:5])
        raise AnomaliesError(f"{len(found)} anomalies: {shown}")


def find_anomalies(history: TransactionHistory) -> list[Anomaly]:
    """Return everything that contradicts transactions that are atomic and isolated."""
    return [
        *_find_broken_transactions(history),
        *_find_broken_logs(history),
        *_find_early_reads(history),
        *_find_broken_reads(history),
        *_find_broken_inputs(history),
    ]


def _find_broken_transactions(history: TransactionHistory) -> Iterator[Anomaly]:
    stored = {value for log in history.logs.values() for _, value in log}
    for name, transaction in history.transactions.items():
        values = {value for _, value in transaction.values}
        present = values & stored
        if transaction.outcome is Outcome.ABORTED and present:
            yield Anomaly(Kind.ABORTED, f"{name}: {len(present)} of {len(values)} records")
        elif transaction.outcome is Outcome.COMMITTED and not present and values:
            yield Anomaly(Kind.LOST, f"{name}: all of {len(values)} records")
        elif present and present != values:
            yield Anomaly(Kind.TORN, f"{name}: {len(present)} of {len(values)} records")


def _find_broken_logs(history: TransactionHistory) -> Iterator[Anomaly]:
    places: dict[Value, list[tuple[int, int]]] = defaultdict(list)
    for partition, log in history.logs.items():
        last: dict[str, Value] = {}
        for offset, value in log:
            places[value].append((partition, offset))
            before = last.setdefault(value.producer, value)
            if value.number < before.number:
                yield Anomaly(Kind.REORDERED, f"{value} after {before} in {partition}")
            last[value.producer] = value
    for value, found in places.items():
        if len(found) > 1:
            yield Anomaly(Kind.DUPLICATED, f"{value} at {found}")


def _find_early_reads(history: TransactionHistory) -> Iterator[Anomaly]:
    for reader, reads in history.reads.items():
        for read in reads:
            transaction = history.transactions.get(read.value[:2])
            if transaction is None:
                yield Anomaly(Kind.ALTERED, f"{reader} got {read}, which no producer has sent")
            elif transaction.outcome is Outcome.ABORTED:
                yield Anomaly(Kind.ABORTED, f"{reader} got {read}")
            elif read.returned < transaction.commit_invoked:
                yield Anomaly(Kind.EARLY, f"{reader} got {read}")


def _find_broken_reads(history: TransactionHistory) -> Iterator[Anomaly]:
    stored = {partition: dict(log) for partition, log in history.logs.items()}
    for reader, reads in history.reads.items():
        by_partition: dict[int, list[Read]] = defaultdict(list)
        for read in reads:
            by_partition[read.partition].append(read)
        for partition, got in by_partition.items():
            yield from _find_broken_partition(reader, partition, got, stored.get(partition, {}))


def _find_broken_partition(
    reader: str, partition: int, got: Sequence[Read], stored: Mapping[int, Value]
) -> Iterator[Anomaly]:
    """Compare what a reader got of one partition, from its first offset on, with the log."""
    for read in got:
        if read.offset in stored and stored[read.offset] != read.value:
            yield Anomaly(Kind.ALTERED, f"{reader} got {read}, not {stored[read.offset]}")
    for before, after in pairwise(got):
        if after.offset <= before.offset:
            yield Anomaly(Kind.DUPLICATED, f"{reader} got {after} after {before}")
        skipped = [offset for offset in stored if before.offset < offset < after.offset]
        if skipped:
            yield Anomaly(Kind.SKIPPED, f"{reader} passed {skipped[:5]} of {partition} by")


def _find_broken_inputs(history: TransactionHistory) -> Iterator[Anomaly]:
    made: dict[int, int] = defaultdict(int)
    for log in history.logs.values():
        for _, value in log:
            if value.input >= 0:
                made[value.input] += 1
    for number in range(history.inputs):
        if made[number] == 0:
            yield Anomaly(Kind.INPUT_LOST, f"input {number}")
        elif made[number] > 1:
            yield Anomaly(Kind.INPUT_TWICE, f"input {number}: {made[number]} outputs")
