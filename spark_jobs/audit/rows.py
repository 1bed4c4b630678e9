"""Commits as NumPy columns, and what of them the next span must know.

A rule about batches looks at a whole span's columns at once. What was before them is little: where
each partition ended, the last object of each lease, the last five batches of each producer. That is
`Ends`. One pass finds the ends of every span, whoever puts them together in order knows what was
before each, and then every span is judged by itself, in any order, on any machine.

The surprise: nothing is corrected. After a gap the next batch is held to where the one after the
gap ended, so one mistake is one violation and not ten thousand.

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

Place = tuple[str, int]
"""A partition: its topic's id, and its index."""

_LIFT: Final = 2**31  # of indexes, so that none is below 0

KEPT_BATCHES: Final = 5
MAX_SEQUENCE: Final = 2**31 - 1
"""After it comes 0."""

COLUMNS: Final = (
    "log_offset", "object_id", "size_bytes", "broker_id", "broker_epoch", "lease_id",
    "committed_at_ms", "byte_offset", "byte_size", "base_offset", "record_count", "max_timestamp",
    "timestamp_type", "producer_id", "producer_epoch", "base_sequence", "error_code", "duplicate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Batches in the log's order; of a checkpoint, runs, which have no log offset of their own."""

    places: Sequence[Place]
    place: Numbers  # of each row: which of `places`
    columns: dict[str, Numbers]

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, column: str) -> Numbers:
        return self.columns[column]

    def where(self, chosen: Numbers | Flags) -> Rows:
        """Some of them."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Rows(self.places, self.place[chosen], columns)

    @property
    def accepted(self) -> Flags:
        """Which have offsets of their own."""
        accepted: Flags = (self["error_code"] == 0) & (self["duplicate"] == 0)
        return accepted

    @property
    def end_offset(self) -> Numbers:
        """Exclusive."""
        return self["base_offset"] + self["record_count"]

    def name(self, row: int) -> str:
        """Of a row's partition, for people."""
        topic_id, index = self.places[int(self.place[row])]
        return f"{topic_id}-{index}"


def rows_of(batch: pa.RecordBatch) -> Rows:
    """The rows of an `object_commit` table."""
    topics = batch.column("topic_id").dictionary_encode()
    names = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    indexes = batch.column("partition").to_numpy().astype(np.int64)
    pairs, place = np.unique((codes << 32) + indexes + _LIFT, return_inverse=True)
    places = [(names[pair >> 32], (pair & (2**32 - 1)) - _LIFT) for pair in pairs.tolist()]
    columns = {name: batch.column(name).to_numpy().astype(np.int64) for name in COLUMNS}
    return Rows(places, place.astype(np.int64), columns)


def groups(*keys: Numbers) -> tuple[Numbers, Numbers]:
    """Rows sorted by keys, in their own order within equal ones; and where each group begins."""
    order: Numbers = np.lexsort(tuple(reversed(keys)))  # stable
    if not len(order):
        return order, order
    new = np.zeros(len(order), np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    return order, np.flatnonzero(new)


def slices(starts: Numbers, total: int) -> Iterator[tuple[int, int]]:
    """First and end of each group."""
    firsts = starts.tolist()
    return zip(firsts, [*firsts[1:], total], strict=False)  # of nothing, no group


_MIX: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mixed(columns: Iterable[Numbers]) -> npt.NDArray[np.uint64]:
    """A checksum of each row: other numbers, another one, nearly surely. Source: splitmix64."""
    add, first, second = (np.uint64(number) for number in _MIX)
    sums: Any = np.uint64(0)
    for column in columns:
        sums = (sums ^ column.astype(np.uint64)) + add
        sums = (sums ^ (sums >> np.uint64(30))) * first
        sums = (sums ^ (sums >> np.uint64(27))) * second
        sums ^= sums >> np.uint64(31)
    found: npt.NDArray[np.uint64] = sums
    return found


# --- what the next span must know ---------------------------------------------------------------


class Batch(NamedTuple):
    """One of the last batches of a producer."""

    base_sequence: int
    last_sequence: int  # inclusive
    base_offset: int
    log_offset: int  # of its commit


class Producer(NamedTuple):
    """A producer of a partition, as a coordinator keeps it."""

    epoch: int
    batches: tuple[Batch, ...]  # at most five, oldest first
    appended_at_ms: int

    def since(self, expired: Sequence[int], offset: int) -> Producer | None:
        """What a log offset (exclusive) still knows of it.

        Args:  expired: log offsets at which it was forgotten.
        """
        last = max((one for one in expired if one < offset), default=-1)
        left = tuple(batch for batch in self.batches if batch.log_offset >= last)
        return self._replace(batches=left) if left else None


NOTHING: Final = Producer(-1, (), -1)
"""Of a producer that a span has only duplicates of: nothing changes, but what was before counts."""


@dataclass(slots=True)
class Ends:
    """Where things stand after a span, as far as it changed them; or after all spans so far."""

    partitions: dict[Place, int] = field(default_factory=dict)  # high watermarks, exclusive
    leases: dict[int, int] = field(default_factory=dict)  # the last object committed
    producers: dict[tuple[Place, int], Producer] = field(default_factory=dict)

    def absorb(self, later: Ends) -> None:
        """What a later span changed."""
        self.partitions.update(later.partitions)
        self.leases.update(later.leases)
        for key, after in later.producers.items():
            before = self.producers.get(key)
            if after == NOTHING:
                continue
            if before is not None and before.epoch == after.epoch:
                both = (*before.batches, *after.batches)[-KEPT_BATCHES:]
                after = after._replace(batches=both)
            self.producers[key] = after

    def copy(self) -> Ends:
        """As it is now."""
        return Ends(dict(self.partitions), dict(self.leases), dict(self.producers))

    def of(self, changed: Ends, places: Iterable[Place]) -> Ends:
        """What stands here of everything that a span changes, and of these partitions."""
        wanted = {*changed.partitions, *places}
        return Ends(
            {key: self.partitions[key] for key in wanted if key in self.partitions},
            {key: self.leases[key] for key in changed.leases if key in self.leases},
            {key: self.producers[key] for key in changed.producers if key in self.producers},
        )


def ends_of(rows: Rows) -> Ends:
    """What a span's commits leave behind; partitions of refused batches are not among it."""
    ends = Ends()
    kept = rows.where(rows.accepted)
    end_offset = kept.end_offset
    order, starts = groups(kept.place)
    for _, end in slices(starts, len(order)):
        row = order[end - 1]
        ends.partitions[kept.places[kept.place[row]]] = int(end_offset[row])
    order, starts = groups(rows["lease_id"])
    for _, end in slices(starts, len(order)):
        row = order[end - 1]
        ends.leases[int(rows["lease_id"][row])] = int(rows["object_id"][row])
    told = rows.where((rows["error_code"] == 0) & (rows["producer_id"] >= 0))
    for place, producer_id in set(
        zip(told.place.tolist(), told["producer_id"].tolist(), strict=True)
    ):
        ends.producers.setdefault((rows.places[place], producer_id), NOTHING)
    _ends_of_producers(kept.where(kept["producer_id"] >= 0), ends)
    return ends


def _ends_of_producers(rows: Rows, ends: Ends) -> None:
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


def batch_of(rows: Rows, row: int) -> Batch:
    """An accepted batch, as its producer's state keeps it."""
    base = int(rows["base_sequence"][row])
    last = (base + int(rows["record_count"][row]) - 1) & MAX_SEQUENCE
    return Batch(base, last, int(rows["base_offset"][row]), int(rows["log_offset"][row]))
