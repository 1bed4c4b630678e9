"""Checks transactions: numbers, markers, last stable offsets, aborted entries.

A span gives the first batch of each transaction in each partition, and its markers; both are few
beside the batches. The driver walks them in the order of the log. What it knows of a producer in a
partition is what a coordinator keeps there: the open transaction, the highest ended number, the
epochs of the newest marker. Each rule looks at one batch or marker and at that state before it.

The trap: a marker without an open transaction is lawful, if it claims none. A coordinator writes it
as Kafka does, and it keeps out late batches of its number.

Source: docs/design/transactions-batches.md; invariants 5, 6 and 13 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from spark_jobs.audit.commits import COMMIT
from spark_jobs.audit.ledger import Ledger
from spark_jobs.audit.rows import NO_OBJECT, Rows, TopicPartition, groups, joined
from spark_jobs.audit.rules import RULES, Fault, Faults, Findings, rule

MARKERS: Final = "TransactionMarkersRecord"
REPLACED: Final = "RunsReplacedRecord"

MAX_TIMEOUT_MS: Final = 15 * 60_000
"""The default of `transaction.max.timeout.ms`."""

GRACE_MS: Final = 5 * 60_000
"""Time for the transaction log to notice a timeout and to deliver the markers."""

NO_NUMBER: Final = -1
_ABORTED: Final = 0

ProducerKey = tuple[TopicPartition, int]


class FirstBatch(NamedTuple):
    """A batch that may begin a transaction of its producer in its partition."""

    log_offset: int
    place: TopicPartition
    producer_id: int
    producer_epoch: int
    number: int  # NO_NUMBER: it is in no transaction
    base_offset: int
    committed_at_ms: int


class Marker(NamedTuple):
    """A row of a TransactionMarkersRecord."""

    log_offset: int
    place: TopicPartition
    producer_id: int
    producer_epoch: int
    number: int
    base_offset: int  # -1: only noted
    outcome: int
    coordinator_epoch: int
    first_offset: int  # -1: it claims no batch
    last_stable_offset: int
    written_at_ms: int


class Open(NamedTuple):
    """An open transaction of a producer in a partition."""

    number: int
    first_offset: int
    since_ms: int


class ProducerState(NamedTuple):
    """What transactions left of a producer in a partition."""

    open: Open | None = None
    ended: int = -1  # the highest number
    coordinator_epoch: int = -1
    epoch: int = -1  # of the newest marker
    marked_at_ms: int = -1
    marked: int = -1  # log offset of the newest marker
    touched: int = -1  # log offset of the last change


UNTOUCHED: Final = ProducerState()


class Aborted(NamedTuple):
    """An aborted transaction of a partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(slots=True)
class TransactionState:
    """Transactions of all partitions at one log offset."""

    producers: dict[ProducerKey, ProducerState] = field(default_factory=dict)
    aborted: dict[TopicPartition, list[Aborted]] = field(default_factory=dict)


# --- the rules ----------------------------------------------------------------------------------


class _Stable(NamedTuple):
    """Last stable offsets around a marker."""

    told_before: int  # by the partition's marker before it
    expected: int


@rule(
    "transaction-numbers-once", "6, 13",
    "A transaction has batches in a partition until its marker, and another only after that.",
)  # fmt: skip
def transaction_numbers_once(before: ProducerState, batch: FirstBatch) -> Faults:
    if batch.number == NO_NUMBER:
        if before.open is not None:
            what = f"has a batch outside of its open transaction {before.open.number}"
            yield _fault(batch, what)
    elif before.open is not None and before.open.number != batch.number:
        what = f"has a batch of number {batch.number} while {before.open.number} is open"
        yield _fault(batch, what)
    elif batch.number <= before.ended:
        what = f"has a batch of number {batch.number} after {before.ended} has ended"
        yield _fault(batch, what)


@rule(
    "transaction-epochs-rise", "6, 13",
    "No transaction begins with a lower producer epoch than that of the newest marker.",
)  # fmt: skip
def transaction_epochs_rise(before: ProducerState, batch: FirstBatch) -> Faults:
    if batch.producer_epoch < before.epoch:
        yield _fault(batch, f"begins with epoch {batch.producer_epoch} after {before.epoch}")


@rule(
    "markers-end-open", "13",
    "A marker that names batches ends the transaction that is open; others find none open.",
)  # fmt: skip
def markers_end_open(before: ProducerState, marker: Marker) -> Faults:
    name, opened = f"has a marker of number {marker.number}", before.open
    if opened is not None and opened.number == marker.number:
        if marker.base_offset < 0:
            yield _fault(marker, f"{name} without an offset, and that transaction is open")
        elif marker.first_offset != opened.first_offset:
            what = f"{name} from {marker.first_offset}, it began at {opened.first_offset}"
            yield _fault(marker, what)
    elif marker.first_offset >= 0:
        what = "no transaction is open" if opened is None else f"{opened.number} is open"
        yield _fault(marker, f"{name} from {marker.first_offset}, but {what}")
    elif opened is not None and marker.base_offset >= 0:
        yield _fault(marker, f"{name} at {marker.base_offset} while {opened.number} is open")
    elif opened is None and marker.base_offset < 0:
        yield _fault(marker, f"{name} without an offset, and none is open")


@rule("markers-once", "13", "A transaction number ends once in a partition, and ends rise.")
def markers_once(before: ProducerState, marker: Marker) -> Faults:
    opened = NO_NUMBER if before.open is None else before.open.number
    if marker.number != opened and marker.number <= max(before.ended, opened):
        newest = max(before.ended, opened)
        yield _fault(marker, f"has a marker of number {marker.number} after {newest}")


@rule("stable-offsets-rise", "13", "The last stable offset of a partition never goes back.")
def stable_offsets_rise(marker: Marker, stable: _Stable) -> Faults:
    if marker.last_stable_offset < stable.told_before:
        what = f"has last stable offset {marker.last_stable_offset} after {stable.told_before}"
        yield _fault(marker, what)


@rule(
    "stable-offsets-below-open", "13",
    "The last stable offset is where the oldest open transaction begins, or the high watermark.",
)  # fmt: skip
def stable_offsets_below_open(marker: Marker, stable: _Stable) -> Faults:
    if stable.told_before <= marker.last_stable_offset != stable.expected:
        what = f"has last stable offset {marker.last_stable_offset}, it is {stable.expected}"
        yield _fault(marker, what)


@rule("open-remembered", "6, 13", "A producer with an open transaction does not expire.")
def open_remembered(key: ProducerKey, before: ProducerState, expired: int) -> Faults:
    if before.open is not None:
        what = f"{_name(key)} expires, and its transaction {before.open.number} is open"
        yield Fault(expired, what, "ProducersExpiredRecord")


@rule(
    "aborted-ended-behind", "13",
    "Compaction ends an aborted transaction only with the marker of the transaction.",
)  # fmt: skip
def aborted_ended_behind(place: TopicPartition, offset: int, end: int, entry: Aborted) -> Faults:
    if entry.last_offset >= end:
        what = f"{_name((place, entry.producer_id))}: the range ends at {end}, the marker is at"
        yield Fault(offset, f"{what} {entry.last_offset}", REPLACED)


@rule(
    "transactions-timely", "13",
    "No transaction is open for longer than transaction.max.timeout.ms and five minutes.",
)  # fmt: skip
def transactions_timely(
    key: ProducerKey, state: ProducerState, now_ms: int, max_timeout_ms: int
) -> Faults:
    if state.open is not None and now_ms - state.open.since_ms > max_timeout_ms + GRACE_MS:
        number, first, since_ms = state.open
        minutes = (now_ms - since_ms) // 60_000
        what = f"{_name(key)}: number {number} is open at offset {first} for {minutes} minutes"
        yield Fault(state.touched, f"{what}; see esker transactions --help", COMMIT)


def _name(key: ProducerKey) -> str:
    (topic_id, index), producer_id = key
    return f"{topic_id}-{index}: producer {producer_id}"


def _fault(event: FirstBatch | Marker, what: str) -> Fault:
    record = COMMIT if isinstance(event, FirstBatch) else MARKERS
    return Fault(event.log_offset, f"{_name((event.place, event.producer_id))} {what}", record)


# --- of a span ----------------------------------------------------------------------------------


def first_batches_of(rows: Rows, markers: Rows) -> list[FirstBatch]:
    """Return the batches of a span that may begin a transaction, or stand outside of one.

    Of each producer in each partition that is its first batch in the span, and each one with
    another number than the batch before it, or behind a marker.
    """
    kept = joined(rows.where(rows.accepted & (rows["producer_id"] >= 0)), markers)
    order, starts = groups(kept.place, kept["producer_id"])
    numbers, is_marker = kept["transaction_number"][order], kept["object_id"][order] == NO_OBJECT
    changes = np.ones(len(order), np.bool_)
    changes[1:] = (numbers[1:] != numbers[:-1]) | is_marker[:-1]
    changes[starts] = True
    chosen = np.sort(order[changes & ~is_marker])
    names = (
        "log_offset", "producer_id", "producer_epoch", "transaction_number", "base_offset",
        "committed_at_ms",
    )  # fmt: skip
    columns = (kept[name][chosen].tolist() for name in names)
    places = [kept.places[code] for code in kept.place[chosen].tolist()]
    return [
        FirstBatch(offset, place, *rest)
        for place, offset, *rest in zip(places, *columns, strict=True)
    ]


def markers_of(rows: Rows) -> list[Marker]:
    """Return the markers of a span, in the log's order."""
    names = (
        "log_offset", "producer_id", "producer_epoch", "transaction_number", "base_offset",
        "outcome", "coordinator_epoch", "first_offset", "last_stable_offset", "committed_at_ms",
    )  # fmt: skip
    columns = (rows[name].tolist() for name in names)
    places = [rows.places[code] for code in rows.place.tolist()]
    return [
        Marker(offset, place, *rest) for place, offset, *rest in zip(places, *columns, strict=True)
    ]


# --- along the log ------------------------------------------------------------------------------


class TransactionTracker:
    """Walks a log's transactions once, checks them, and returns the state at chosen offsets."""

    def __init__(
        self,
        log: str,
        ledger: Ledger,
        base: TransactionState,
        batches: Iterable[FirstBatch],
        markers: Iterable[Marker],
        findings: Findings,
    ) -> None:
        """Prepare to walk from the beginning of the log.

        Args:    base: of the checkpoint that the log begins with.
                 batches, markers: of the whole log, each in its order.
        """
        self._log, self._ledger, self._findings = log, ledger, findings
        self._producers = dict(base.producers)
        self._aborted = {place: _by_first(entries) for place, entries in base.aborted.items()}
        self._open: dict[TopicPartition, dict[int, int]] = {}
        self._told: dict[TopicPartition, int] = {}
        for (place, producer_id), state in sorted(base.producers.items(), key=_first_offset):
            if state.open is not None:
                self._open.setdefault(place, {})[producer_id] = state.open.first_offset
        all_batches, all_markers = list(batches), list(markers)
        if not base.producers and not all_markers and all(one.number < 0 for one in all_batches):
            all_batches = []  # of a log without transactions there is nothing to follow
        steps: list[tuple[int, Callable[[Any], None], Any]] = [
            *((batch.log_offset, self._on_batch, batch) for batch in all_batches),
            *((marker.log_offset, self._on_marker, marker) for marker in all_markers),
            *((at, self._on_ended, row) for at, *row in _ended(ledger)),
        ]
        self._steps = sorted(steps, key=lambda step: step[0])
        self._at = 0
        self._expire_at = sorted(
            (at, key) for key, offsets in ledger.expired.items() for at in offsets
        )
        self._expired = 0

    def advance_to(self, offset: int) -> TransactionState:
        """Walk up to a log offset, and return the state there. Offsets must rise."""
        while self._at < len(self._steps) and self._steps[self._at][0] < offset:
            at, apply, event = self._steps[self._at]
            self._expire_before(at)
            apply(event)
            self._at += 1
        self._expire_before(offset)
        incarnations = {place for place, _ in self._producers}
        there = {one for one in incarnations if self._ledger.incarnation(one, offset) is not None}
        return TransactionState(
            {key: state for key, state in self._producers.items() if key[0] in there},
            {place: self._live_aborted(place, offset) for place in self._aborted if place in there},
        )

    def check_age(self, offset: int, now_ms: int, max_timeout_ms: int) -> dict[ProducerKey, Open]:
        """Report the transactions that are open for too long at the log's end; return all open."""
        opened = {}
        for key, state in self.advance_to(offset).producers.items():
            topic = self._ledger.topic(key[0][0], offset)
            if state.open is not None and topic is not None and topic.deleted >= offset:
                opened[key] = state.open
                found = transactions_timely(key, state, now_ms, max_timeout_ms)
                self._findings.add("transactions-timely", self._log, found)
        return opened

    def _check(self, name: str, *facts: Any) -> None:
        self._findings.add(name, self._log, RULES[name].check(*facts))

    def _expire_before(self, offset: int) -> None:
        while self._expired < len(self._expire_at) and self._expire_at[self._expired][0] < offset:
            at, key = self._expire_at[self._expired]
            self._expired += 1
            state = self._producers.pop(key, None)
            if state is not None:
                self._check("open-remembered", key, state, at)
                self._open.get(key[0], {}).pop(key[1], None)

    def _on_batch(self, batch: FirstBatch) -> None:
        key = batch.place, batch.producer_id
        before = self._producers.get(key, UNTOUCHED)
        self._check("transaction-numbers-once", before, batch)
        self._check("transaction-epochs-rise", before, batch)
        if batch.number == NO_NUMBER or (before.open and before.open.number == batch.number):
            return
        opened = Open(batch.number, batch.base_offset, batch.committed_at_ms)
        self._producers[key] = before._replace(open=opened, touched=batch.log_offset)
        of_place = self._open.setdefault(batch.place, {})
        of_place.pop(batch.producer_id, None)
        of_place[batch.producer_id] = batch.base_offset

    def _on_marker(self, marker: Marker) -> None:
        place, producer_id = key = marker.place, marker.producer_id
        before = self._producers.get(key, UNTOUCHED)
        self._check("markers-end-open", before, marker)
        self._check("markers-once", before, marker)
        after = before
        if before.open is not None and before.open.number == marker.number:
            after = before._replace(open=None)
            self._open.get(place, {}).pop(producer_id, None)
        self._producers[key] = after._replace(
            ended=max(before.ended, marker.number), coordinator_epoch=marker.coordinator_epoch,
            epoch=max(before.epoch, marker.producer_epoch), marked_at_ms=marker.written_at_ms,
            marked=marker.log_offset, touched=marker.log_offset,
        )  # fmt: skip
        stable = _Stable(self._told.get(place, 0), self._expected_stable(marker))
        self._check("stable-offsets-rise", marker, stable)
        self._check("stable-offsets-below-open", marker, stable)
        self._told[place] = marker.last_stable_offset
        if marker.outcome == _ABORTED and marker.first_offset >= 0 and marker.base_offset >= 0:
            entry = Aborted(
                producer_id, marker.first_offset, marker.base_offset, marker.last_stable_offset
            )
            self._aborted.setdefault(place, {})[producer_id, marker.first_offset] = entry

    def _expected_stable(self, marker: Marker) -> int:
        """Return the last stable offset of a marker's partition behind the marker."""
        still_open = self._open.get(marker.place)
        if not still_open:
            # of a marker that is only noted the high watermark is not known here
            return marker.base_offset + 1 if marker.base_offset >= 0 else marker.last_stable_offset
        incarnation = self._ledger.incarnation(marker.place, marker.log_offset)
        start = 0 if incarnation is None else incarnation.start_before(marker.log_offset)
        return max(start, next(iter(still_open.values())))

    def _on_ended(self, row: Sequence[Any]) -> None:
        place, offset, end, entries = row
        live = self._aborted.get(place, {})
        for key in entries:
            entry = live.pop(key, None)
            if entry is not None:
                self._check("aborted-ended-behind", place, offset, end, entry)

    def _live_aborted(self, place: TopicPartition, offset: int) -> list[Aborted]:
        incarnation = self._ledger.incarnation(place, offset)
        start = 0 if incarnation is None else incarnation.start_before(offset)
        left = [one for one in self._aborted[place].values() if one.last_offset >= start]
        self._aborted[place] = _by_first(left)
        return sorted(left, key=lambda entry: entry.last_offset)


def _by_first(entries: Iterable[Aborted]) -> dict[tuple[int, int], Aborted]:
    return {(entry.producer_id, entry.first_offset): entry for entry in entries}


def _first_offset(item: tuple[ProducerKey, ProducerState]) -> int:
    return item[1].open.first_offset if item[1].open is not None else -1


def _ended(ledger: Ledger) -> Iterator[tuple[int, TopicPartition, int, int, Sequence[Any]]]:
    """Yield the aborted transactions that compaction ended, by partition and record."""
    for place, rows in ledger.replaced.items():
        for row in rows:
            if row.ended:
                yield row.offset, place, row.offset, row.end, row.ended
