"""Facts about a coordinator's state: from its checkpoint, and from the log before it.

`read_checkpoint` reads one. Its runs are kept as a checksum for each partition, so the result is
small however many runs there are. `replay_facts` makes the same facts from the log: from the
ledger, from the state at the end of each span, and from the live runs that each span counted.
`spark_jobs.audit.checkpoint_rules` compares the two.

Why there is no replay: a log start only rises and an object's batches stand in one record, so the
live runs at an offset can be counted span by span, in any order.

Source: invariants 4, 5, 7 and 8 (docs/design/invariants.md); KIP-630.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from records.diskless import (
    AbortedState,
    CleaningState,
    CoordinatorState,
    DisklessBrokerState,
    DisklessTopicState,
    KeptAnswerState,
    LeaseState,
    ObjectsState,
    ProducersState,
    RunsState,
)
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.uuids import encode_uuid
from spark_jobs.audit.answers import (
    INITIAL_COUNTERS,
    Counters,
    KeptAnswers,
    NamedIds,
    Ranges,
    counters_at,
    dead_ids,
)
from spark_jobs.audit.ledger import NEVER, Cleaning, Ledger, pairs
from spark_jobs.audit.objects import LiveState, live_state_of, marker_checksums
from spark_jobs.audit.rows import (
    COLUMNS,
    EndState,
    KeptBatch,
    Numbers,
    Producer,
    Rows,
    TopicPartition,
)
from spark_jobs.audit.transactions import Aborted, Open, ProducerState, TransactionState
from spark_jobs.readers.logs import Span

OPEN: Final = -2
"""Stands in the place of an object's mark while a rewriter fills the object."""


class Partition(NamedTuple):
    """A partition's state, from a checkpoint or from the log."""

    log_id: int
    log_start: int  # inclusive
    high_watermark: int  # exclusive


class Topic(NamedTuple):
    """A topic's state, from a checkpoint or from the log."""

    name: str
    deleted_at_ms: int  # -1: it lives


class Lease(NamedTuple):
    """A lease's state, from a checkpoint or from the log."""

    broker_id: int
    broker_epoch: int
    first: int
    end: int  # exclusive
    last_committed: int
    granted_at_ms: int
    closed_at_ms: int  # -1: open
    skipped: Ranges  # never committed, below the last that was
    fenced: tuple[int, ...]  # above it
    orphans: Ranges  # once it is closed


class Object(NamedTuple):
    """An object's state, from a checkpoint or from the log."""

    size_bytes: int
    used_bytes: int
    broker_id: int
    committed_at_ms: int
    marked_at_ms: int  # -1: not marked; OPEN


class Stretch(NamedTuple):
    """Consecutive runs of one partition in a checkpoint."""

    base_offset: int
    first_last_offset: int  # the last offset of its first run
    end_offset: int  # exclusive


@dataclass(slots=True)
class CoordinatorFacts:
    """A coordinator's state, as far as the audit compares it."""

    offset: int  # exclusive
    topics: dict[str, Topic] = field(default_factory=dict)
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    stretches: dict[TopicPartition, list[Stretch]] = field(default_factory=dict)
    live: LiveState = field(default_factory=LiveState)
    objects: dict[int, Object] = field(default_factory=dict)
    producers: dict[tuple[TopicPartition, int], Producer] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    counters: Counters = INITIAL_COUNTERS
    kept: KeptAnswers = field(default_factory=KeptAnswers)
    cleanings: dict[TopicPartition, Cleaning] = field(default_factory=dict)
    aborted: dict[TopicPartition, list[Aborted]] = field(default_factory=dict)
    uncovered: list[tuple[TopicPartition, str]] = field(default_factory=list)  # aborted entries
    inside: list[tuple[TopicPartition, str]] = field(default_factory=list)  # open transactions
    outside: list[tuple[int, str]] = field(default_factory=list)  # runs that exceed their object


# --- reading one --------------------------------------------------------------------------------


def read_checkpoint(span: Span) -> tuple[CoordinatorFacts, Rows]:
    """Read a checkpoint; return the coordinator's state, and the runs of batches as rows.

    Raises:  LostRangeError; DamagedFileError, RecordError; OSError.
    """
    assert span.is_checkpoint, f"no checkpoint: {span}"
    reading = _CheckpointReader(span.end_offset)
    for _, value in span.values():
        cls = METADATA_RECORDS.get(read_frame(value)[0])
        take = None if cls is None else _TAKE.get(cls)
        if take is not None:
            take(reading, decode_record(value))
    rows = reading.rows()
    reading.facts.live = live_state_of(rows)
    reading.check_aborted(rows)
    reading.check_open(rows)
    return reading.facts, rows


def end_state_of_checkpoint(facts: CoordinatorFacts) -> EndState:
    """Return the coordinator's state at the end of a checkpoint, where the log continues."""
    return EndState(
        {place: item.high_watermark for place, item in facts.partitions.items()},
        {lease_id: item.last_committed for lease_id, item in facts.leases.items()},
        dict(facts.producers),
    )


class _CheckpointReader:
    """Collects a checkpoint's facts and runs from its records."""

    def __init__(self, offset: int) -> None:
        self.facts = CoordinatorFacts(offset)
        self.places: dict[int, TopicPartition] = {}  # by log id
        self.codes: list[TopicPartition] = []
        self.parts: list[tuple[int, list[Numbers]]] = []

    def counters(self, record: CoordinatorState) -> None:
        self.facts.counters = Counters(
            record.controller_epoch, record.next_lease_id, record.next_object_id,
            record.next_log_id,
        )  # fmt: skip

    def topic(self, record: DisklessTopicState) -> None:
        topic_id = encode_uuid(record.topic_id)
        self.facts.topics[topic_id] = Topic(record.topic_name, record.deleted_at_ms)
        columns = (record.log_ids, record.log_start_offsets, record.high_watermarks)
        for i, log in enumerate(zip(*columns, strict=True)):
            if log[0] >= 0:
                place = topic_id, record.first_partition + i
                self.facts.partitions[place] = Partition(*log)
                self.places[log[0]] = place

    def lease(self, record: LeaseState) -> None:
        self.facts.leases[record.lease_id] = Lease(
            record.broker_id, record.broker_epoch, record.first_object_id, record.end_object_id,
            record.last_committed_id, record.granted_at_ms, record.closed_at_ms,
            pairs(record.skipped), record.fenced, pairs(record.orphans),
        )  # fmt: skip

    def objects(self, record: ObjectsState) -> None:
        columns = (
            record.sizes_bytes, record.used_bytes, record.broker_ids, record.committed_at_ms,
            record.marked_at_ms,
        )  # fmt: skip
        rows = map(Object._make, zip(*columns, strict=True))
        self.facts.objects.update(zip(record.object_ids, rows, strict=True))

    def runs(self, record: RunsState) -> None:
        place = self.places.get(record.log_id, (f"log id {record.log_id}", -1))
        last = np.array(record.last_offsets, np.int64)
        if not len(last):
            return
        base = np.concatenate(([record.base_offset], last[:-1] + 1))
        stretch = Stretch(record.base_offset, int(last[0]), int(last[-1]) + 1)
        self.facts.stretches.setdefault(place, []).append(stretch)
        if not self.codes or self.codes[-1] != place:
            self.codes.append(place)
        formats = np.array(record.object_formats or [1] * len(last), np.int64)
        facts = np.full((4, len(last)), -1)
        facts[:, formats == 0] = (
            record.marker_producer_ids, record.marker_epochs, record.marker_outcomes,
            record.marker_coordinator_epochs,
        )  # fmt: skip
        marker = np.where(formats == 0, marker_checksums(facts), 0)
        columns: Sequence[Any] = (
            base, last - base + 1, record.object_ids, record.byte_offsets, record.byte_sizes,
            record.max_timestamps, record.timestamp_types,
            record.record_counts or last - base + 1,
            record.append_times or [-1] * len(last),
            formats, marker, *facts,
        )  # fmt: skip
        arrays = [np.array(column, np.int64) for column in columns]
        self.parts.append((len(self.codes) - 1, arrays))
        sizes = self.facts.objects
        ends = zip(record.object_ids, record.byte_offsets, record.byte_sizes, strict=True)
        for object_id, byte_offset, byte_size in ends:
            known = sizes.get(object_id)
            if known is not None and not 0 <= byte_offset <= known.size_bytes - byte_size:
                what = f"bytes {byte_offset} to {byte_offset + byte_size} of {known.size_bytes}"
                self.facts.outside.append((object_id, what))

    def cleaning(self, record: CleaningState) -> None:
        rows = zip(record.cleaned_until, record.bounds, record.rewritten_until, strict=True)
        for log_id, row in zip(record.log_ids, rows, strict=True):
            place = self.places.get(log_id, (f"log id {log_id}", -1))
            self.facts.cleanings[place] = Cleaning(*row)

    def producers(self, record: ProducersState) -> None:
        place = self.places.get(record.log_id, (f"log id {record.log_id}", -1))
        facts = zip(
            record.open_numbers, record.first_offsets, record.ended_numbers,
            record.coordinator_epochs, strict=True,
        )  # fmt: skip
        batches = zip(
            record.base_sequences, record.last_sequences, record.base_offsets, strict=True
        )
        for producer_id, epoch, appended_at_ms, count in zip(
            record.producer_ids,
            record.producer_epochs,
            record.appended_at_ms,
            record.batch_counts,
            strict=True,
        ):
            kept = tuple(KeptBatch(*next(batches), self.facts.offset - 1) for _ in range(count))
            transactions = next(facts, (-1,) * 4)
            self.facts.producers[place, producer_id] = Producer(
                epoch, kept, appended_at_ms, transactions
            )

    def aborted(self, record: AbortedState) -> None:
        place = self.places.get(record.log_id, (f"log id {record.log_id}", -1))
        rows = zip(
            record.producer_ids, record.first_offsets, record.last_offsets,
            record.last_stable_offsets, strict=True,
        )  # fmt: skip
        self.facts.aborted.setdefault(place, []).extend(map(Aborted._make, rows))

    def check_open(self, rows: Rows) -> None:
        """Note the open transactions that begin inside of a run, where no reader can stop."""
        facts = self.facts
        opened = {
            key: one.transactions[1]
            for key, one in facts.producers.items() if one.transactions[0] >= 0
        }  # fmt: skip
        if not opened:
            return
        names = [rows.places[code] for code in rows.place.tolist()]
        bases = set(zip(names, rows["base_offset"].tolist(), strict=True))
        for (place, producer_id), first in opened.items():
            partition = facts.partitions.get(place)
            start = partition.log_start if partition is not None else 0
            if first >= start and (place, first) not in bases:
                what = f"the transaction of producer {producer_id} begins at {first}"
                facts.inside.append((place, f"{what}, where no run begins"))

    def check_aborted(self, rows: Rows) -> None:
        """Note the aborted transactions that do not end at a marker that aborts them.

        A rewritten run may hold the marker.
        """
        for place, entries in self.facts.aborted.items():
            code = self.codes.index(place) if place in self.codes else -1
            mine = rows.where(np.flatnonzero(rows.place == code))
            order = np.argsort(mine["base_offset"])
            bases = mine["base_offset"][order]
            for entry in entries:
                at = int(np.searchsorted(bases, entry.last_offset, side="right")) - 1
                what = _describe_end(mine, int(order[at]), entry) if at >= 0 else "no run"
                if what is not None or entry.first_offset >= entry.last_offset:
                    found = f"{entry}: at its end is {what or 'its beginning'}"
                    self.facts.uncovered.append((place, found))

    def broker(self, record: DisklessBrokerState) -> None:
        self.facts.kept.broker(record)

    def answer(self, record: KeptAnswerState) -> None:
        self.facts.kept.answer(record)

    def rows(self) -> Rows:
        """Return the checkpoint's runs of batches as rows, with its last log offset in each row."""
        names = (
            "base_offset", "record_count", "object_id", "byte_offset", "byte_size",
            "max_timestamp", "timestamp_type", "kept_records", "append_time", "object_format",
            "marker", *_OF_MARKER,
        )  # fmt: skip
        empty = np.zeros(0, np.int64)
        given = {
            name: np.concatenate([empty, *(arrays[i] for _, arrays in self.parts)])
            for i, name in enumerate(names)
        }
        place = np.concatenate(
            [empty, *(np.full(len(arrays[0]), code) for code, arrays in self.parts)]
        )
        columns = {name: np.zeros(len(place), np.int64) for name in COLUMNS} | given
        columns["log_offset"] += self.facts.offset - 1
        columns["transaction_number"] -= 1
        ids, inverse = np.unique(columns["object_id"], return_inverse=True)
        known = [self.facts.objects.get(one) for one in ids.tolist()]
        sizes = np.array([-1 if one is None else one.size_bytes for one in known], np.int64)
        columns["size_bytes"] = sizes[inverse]
        times = np.array([-1 if one is None else one.committed_at_ms for one in known], np.int64)
        given_time = columns["append_time"]
        columns["append_time"] = np.where(given_time < 0, times[inverse], given_time)
        return Rows(self.codes, place, columns)


_OF_MARKER: Final = ("producer_id", "producer_epoch", "outcome", "coordinator_epoch")


def _describe_end(rows: Rows, row: int, entry: Aborted) -> str | None:
    """Describe the run at an aborted transaction's end unless it can be its marker."""
    if entry.last_offset >= int(rows.end_offset[row]):
        return "no run"
    kind, producer_id = int(rows["object_format"][row]), int(rows["producer_id"][row])
    if kind == 1 or (kind == 0 and (producer_id, int(rows["outcome"][row])) != (
        entry.producer_id, 0,
    )):  # fmt: skip
        return "a run of records" if kind else f"another marker, of producer {producer_id}"
    return None


def transactions_of_checkpoint(facts: CoordinatorFacts) -> TransactionState:
    """Return the transactions at the end of a checkpoint, where the log continues."""
    at, found = facts.offset - 1, {}
    for key, producer in facts.producers.items():
        number, first, ended, coordinator_epoch = producer.transactions
        if producer.transactions != (-1,) * 4 or not producer.batches:
            opened = Open(number, first, producer.appended_at_ms) if number >= 0 else None
            found[key] = ProducerState(
                opened, ended, coordinator_epoch, producer.epoch, producer.appended_at_ms, at, at
            )
    return TransactionState(found, facts.aborted)


_TAKE: Final[dict[type, Callable[[_CheckpointReader, Any], None]]] = {
    CoordinatorState: _CheckpointReader.counters,
    DisklessTopicState: _CheckpointReader.topic,
    LeaseState: _CheckpointReader.lease,
    ObjectsState: _CheckpointReader.objects,
    RunsState: _CheckpointReader.runs,
    CleaningState: _CheckpointReader.cleaning,
    ProducersState: _CheckpointReader.producers,
    AbortedState: _CheckpointReader.aborted,
    DisklessBrokerState: _CheckpointReader.broker,
    KeptAnswerState: _CheckpointReader.answer,
}


# --- the log's own ------------------------------------------------------------------------------


def replay_facts(
    offset: int,
    ledger: Ledger,
    ends: EndState,
    live: LiveState,
    committed: Mapping[int, Object],
    kept: KeptAnswers,
    named: NamedIds,
    transactions: TransactionState,
) -> CoordinatorFacts:
    """Compute a coordinator's state from all records below a log offset (exclusive).

    Args:    ends: where the spans below it left off. live: of all of them, as of it.
             committed: every object below it, those of the first checkpoint too.
             kept, transactions: as of it. named: of the ledger.
    """
    facts = CoordinatorFacts(offset, live=live, counters=counters_at(ledger, offset), kept=kept)
    for topic_id in ledger.topics:
        topic = ledger.topic(topic_id, offset)
        if topic is not None:
            deleted_at_ms = topic.deleted_at_ms if topic.deleted < offset else -1
            facts.topics[topic_id] = Topic(topic.name, deleted_at_ms)
    for place in ledger.places:
        incarnation = ledger.incarnation(place, offset)
        if incarnation is not None:
            high_watermark = ends.partitions.get(place, 0)
            facts.partitions[place] = Partition(
                incarnation.log_id, incarnation.start_before(offset), high_watermark
            )
            cleaning = ledger.cleaning(place, offset)
            if cleaning is not None:
                facts.cleanings[place] = cleaning
    for object_id, item in committed.items():
        if ledger.removed.get(object_id, NEVER) >= offset:
            marked, marked_at_ms = ledger.marked.get(object_id, (NEVER, -1))
            unmarked = OPEN if ledger.object_is_open(object_id, offset) else -1
            facts.objects[object_id] = item._replace(
                used_bytes=live.used.get(object_id, 0),
                marked_at_ms=marked_at_ms if marked < offset else unmarked,
            )
    for object_id, stays in ledger.found_orphans.items():
        for stay in stays:
            if stay.found < offset <= stay.gone:  # one that was there stays as it was
                facts.objects.setdefault(object_id, Object(0, 0, -1, -1, stay.marked_at_ms))
    for key in ends.producers.keys() | transactions.producers.keys():
        producer = ends.producers.get(key)
        left = producer and producer.since(ledger.expired.get(key, ()), offset)
        found = _with_transactions(left, transactions.producers.get(key))
        if found is not None and key[0] in facts.partitions:
            facts.producers[key] = found
    facts.aborted = {place: rows for place, rows in transactions.aborted.items() if rows}
    ids = sorted(committed)
    for lease_id, lease in ledger.leases.items():
        if not lease.rewrites and lease.granted < offset <= lease.forgotten:
            mine = named.within(ids, lease.last_committed + 1, lease.end)
            facts.leases[lease_id] = Lease(
                lease.broker_id, lease.broker_epoch, lease.first, lease.end,
                ends.leases.get(lease_id, lease.first - 1), lease.granted_at_ms,
                lease.closed_at_ms if lease.closed < offset else -1,
                *dead_ids(lease, mine, ledger, named, offset),
            )  # fmt: skip
    return facts


def _with_transactions(producer: Producer | None, state: ProducerState | None) -> Producer | None:
    """Return a producer's state with what markers have changed of it.

    A marker of a higher epoch has cleared the batches before it; a batch behind it has that epoch.
    """
    if state is None:
        return producer
    opened = (-1, -1) if state.open is None else state.open[:2]
    transactions = (*opened, state.ended, state.coordinator_epoch)
    if producer is None:
        return Producer(state.epoch, (), state.marked_at_ms, transactions)
    is_newest = state.marked > producer.batches[-1].log_offset
    return Producer(
        max(producer.epoch, state.epoch),
        producer.batches if producer.epoch >= state.epoch else (),
        state.marked_at_ms if is_newest else producer.appended_at_ms,
        transactions,
    )
