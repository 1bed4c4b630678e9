"""Holds commits as NumPy columns, and the state that the next span must know.

A rule about batches looks at a whole span's columns at once. The state before a span is small: the
end of each partition, the last object of each lease, the last five batches of each producer. That
is `EndState`. One pass finds the end state of every span, the driver adds them up in order, and
then every span is judged by itself, in any order, on any machine.

Why nothing is corrected: after a gap the next batch must follow the one after the gap, so one
mistake is one violation and not ten thousand.

Source: docs/design/batch-coordinator.md#idempotence,
docs/design/batch-coordinator.md#object-leases, docs/design/pipeline.md#the-audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

TopicPartition = tuple[str, int]
"""A partition: its topic's id, and its index."""

_LIFT: Final = 2**31  # of indexes, so that none is below 0

KEPT_BATCHES: Final = 5
MAX_SEQUENCE: Final = 2**31 - 1
"""The last sequence number; 0 follows it."""

COLUMNS: Final = (
    "log_offset", "object_id", "size_bytes", "broker_id", "broker_epoch", "lease_id",
    "committed_at_ms", "byte_offset", "byte_size", "base_offset", "record_count", "max_timestamp",
    "timestamp_type", "producer_id", "producer_epoch", "base_sequence", "error_code", "duplicate",
    "transaction_number",
)  # fmt: skip

OF_MARKERS: Final = ("outcome", "coordinator_epoch", "first_offset", "last_stable_offset")
"""Columns that only the rows of markers have, besides all of COLUMNS."""

NO_OBJECT: Final = -1
"""Stands for the object of a marker, which lies in none."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Batches in the log's order, as columns.

    A checkpoint's rows are runs, which have no log offset of their own.
    """

    places: Sequence[TopicPartition]
    place: Numbers  # of each row: which of `places`
    columns: dict[str, Numbers]

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, column: str) -> Numbers:
        return self.columns[column]

    def where(self, chosen: Numbers | Flags) -> Rows:
        """Return the rows that a mask or a list of indexes selects."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Rows(self.places, self.place[chosen], columns)

    @property
    def accepted(self) -> Flags:
        """Return a mask of the rows that were neither refused nor duplicates."""
        accepted: Flags = (self["error_code"] == 0) & (self["duplicate"] == 0)
        return accepted

    @property
    def end_offset(self) -> Numbers:
        """Return the end offset of each row, exclusive."""
        return self["base_offset"] + self["record_count"]

    def name(self, row: int) -> str:
        """Format the topic id and partition of a row for an error message."""
        topic_id, index = self.places[int(self.place[row])]
        return f"{topic_id}-{index}"


def _places(batch: pa.RecordBatch) -> tuple[Sequence[TopicPartition], Numbers]:
    """Return the partitions that a batch's rows name, and of each row which of them."""
    topics = batch.column("topic_id").dictionary_encode()
    names = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    indexes = batch.column("partition").to_numpy().astype(np.int64)
    pairs, place = np.unique((codes << 32) + indexes + _LIFT, return_inverse=True)
    places = [(names[pair >> 32], (pair & (2**32 - 1)) - _LIFT) for pair in pairs.tolist()]
    return places, place.astype(np.int64)


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Convert a batch of the `object_commit` table to rows."""
    places, place = _places(batch)
    return Rows(places, place, {name: _numbers(batch, name) for name in COLUMNS})


def marker_rows_of(batch: pa.RecordBatch) -> Rows:
    """Convert a batch of the view `markers` to rows without an object and bytes."""
    places, place = _places(batch)
    given = ("log_offset", "base_offset", "producer_id", "producer_epoch", "transaction_number")
    columns = {name: np.zeros(len(place), np.int64) for name in COLUMNS}
    columns |= {name: _numbers(batch, name) for name in (*given, *OF_MARKERS)}
    columns["committed_at_ms"] = columns["max_timestamp"] = _numbers(batch, "written_at_ms")
    columns["object_id"] += NO_OBJECT
    columns["record_count"] += 1
    return Rows(places, place, columns)


def joined(*parts: Rows) -> Rows:
    """Return the rows of all parts, with the columns of the first, in the order of the log."""
    places = list(dict.fromkeys(place for part in parts for place in part.places))
    code = {place: i for i, place in enumerate(places)}
    codes = [np.array([code[one] for one in part.places], np.int64)[part.place] for part in parts]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns}
    order = np.argsort(columns["log_offset"], kind="stable")
    return Rows(places, np.concatenate(codes), columns).where(order)


def _numbers(batch: pa.RecordBatch, name: str) -> Numbers:
    column = batch.column(name)
    values: Numbers = (column.fill_null(-1) if column.null_count else column).to_numpy()
    return values.astype(np.int64)


def groups(*keys: Numbers) -> tuple[Numbers, Numbers]:
    """Sort rows stably by keys; return the sorted order, and the index where each key begins."""
    order: Numbers = np.lexsort(tuple(reversed(keys)))  # stable
    if not len(order):
        return order, order
    new = np.zeros(len(order), np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    return order, np.flatnonzero(new)


def slices(starts: Numbers, total: int) -> Iterator[tuple[int, int]]:
    """Yield the start and exclusive end index of each group of rows."""
    firsts = starts.tolist()
    return zip(firsts, [*firsts[1:], total], strict=False)  # of nothing, no group


_MIX: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def row_checksums(columns: Iterable[Numbers]) -> npt.NDArray[np.uint64]:
    """Return a 64-bit checksum of each row.

    Different rows nearly always have different checksums. Source: splitmix64.
    """
    add, first, second = (np.uint64(number) for number in _MIX)
    sums: Any = np.uint64(0)
    for column in columns:
        sums = (sums ^ column.astype(np.uint64)) + add
        sums = (sums ^ (sums >> np.uint64(30))) * first
        sums = (sums ^ (sums >> np.uint64(27))) * second
        sums ^= sums >> np.uint64(31)
    found: npt.NDArray[np.uint64] = sums
    return found


# --- the state that the next span must know -----------------------------------------------------


class KeptBatch(NamedTuple):
    """One of the last batches of a producer."""

    base_sequence: int
    last_sequence: int  # inclusive
    base_offset: int
    log_offset: int  # of its commit


class Producer(NamedTuple):
    """A partition's producer, as a coordinator keeps it."""

    epoch: int
    batches: tuple[KeptBatch, ...]  # at most five, oldest first
    appended_at_ms: int
    transactions: tuple[int, int, int, int] = (-1, -1, -1, -1)
    """Open number, its first offset, highest ended number, coordinator epoch; -1: none."""

    def since(self, expired: Sequence[int], offset: int) -> Producer | None:
        """Return a producer's state without the batches that precede its last expiry.

        Returns: None if no batch is left.

        Args:  expired: log offsets at which it was forgotten.
        """
        last = max((one for one in expired if one < offset), default=-1)
        left = tuple(batch for batch in self.batches if batch.log_offset >= last)
        return self._replace(batches=left) if left else None


UNCHANGED: Final = Producer(-1, (), -1)
"""A producer of which a span has only duplicates: its state before the span still counts."""


@dataclass(slots=True)
class EndState:
    """Partitions, leases and producers after a span, as far as it changed them; or after all so
    far.
    """

    partitions: dict[TopicPartition, int] = field(
        default_factory=dict
    )  # high watermarks, exclusive
    leases: dict[int, int] = field(default_factory=dict)  # the last object committed
    producers: dict[tuple[TopicPartition, int], Producer] = field(default_factory=dict)

    def absorb(self, later: EndState) -> None:
        """Apply the changes that the next span of the log makes to this state."""
        self.partitions.update(later.partitions)
        self.leases.update(later.leases)
        for key, after in later.producers.items():
            before = self.producers.get(key)
            if after == UNCHANGED:
                continue
            if before is not None and before.epoch == after.epoch:
                both = (*before.batches, *after.batches)[-KEPT_BATCHES:]
                after = after._replace(batches=both)
            self.producers[key] = after

    def copy(self) -> EndState:
        """Return a copy of the state, so that later changes leave the copy unchanged."""
        return EndState(dict(self.partitions), dict(self.leases), dict(self.producers))

    def of(self, changed: EndState, places: Iterable[TopicPartition]) -> EndState:
        """Return the part of this state that concerns `places` or the keys of `changed`."""
        wanted = {*changed.partitions, *places}
        return EndState(
            {key: self.partitions[key] for key in wanted if key in self.partitions},
            {key: self.leases[key] for key in changed.leases if key in self.leases},
            {key: self.producers[key] for key in changed.producers if key in self.producers},
        )


def placed_rows(rows: Rows, markers: Rows) -> Rows:
    """Return everything that took offsets of partitions: accepted batches, and markers."""
    kept = rows.where(rows.accepted)
    if not len(markers):
        return kept
    return joined(kept, markers.where(markers["base_offset"] >= 0))


def end_state_of(rows: Rows, markers: Rows) -> EndState:
    """Compute the changes of a coordinator's state that the commits in a span of its log make.

    Partitions of refused batches are left out, and what markers change of producers.
    """
    ends = EndState()
    placed = placed_rows(rows, markers)
    end_offset = placed.end_offset
    order, starts = groups(placed.place)
    for _, end in slices(starts, len(order)):
        row = order[end - 1]
        ends.partitions[placed.places[placed.place[row]]] = int(end_offset[row])
    kept = rows.where(rows.accepted)
    order, starts = groups(rows["lease_id"])
    for _, end in slices(starts, len(order)):
        row = order[end - 1]
        ends.leases[int(rows["lease_id"][row])] = int(rows["object_id"][row])
    known = rows.where((rows["error_code"] == 0) & (rows["producer_id"] >= 0))
    for place, producer_id in set(
        zip(known.place.tolist(), known["producer_id"].tolist(), strict=True)
    ):
        ends.producers.setdefault((rows.places[place], producer_id), UNCHANGED)
    _ends_of_producers(kept.where(kept["producer_id"] >= 0), ends)
    return ends


def _ends_of_producers(rows: Rows, ends: EndState) -> None:
    order, starts = groups(rows.place, rows["producer_id"])
    for start, end in slices(starts, len(order)):
        last = order[end - 1]
        epoch = int(rows["producer_epoch"][last])
        batches = [
            batch_of(rows, row)
            for row in order[max(start, end - KEPT_BATCHES) : end].tolist()
            if rows["producer_epoch"][row] == epoch
        ]
        key = rows.places[rows.place[last]], int(rows["producer_id"][last])
        ends.producers[key] = Producer(epoch, tuple(batches), int(rows["committed_at_ms"][last]))


def batch_of(rows: Rows, row: int) -> KeptBatch:
    """Convert the accepted batch of a row to a `KeptBatch` of its producer's state."""
    base = int(rows["base_sequence"][row])
    last = (base + int(rows["record_count"][row]) - 1) & MAX_SEQUENCE
    return KeptBatch(base, last, int(rows["base_offset"][row]), int(rows["log_offset"][row]))
