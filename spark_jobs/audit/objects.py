"""Checks that objects stay while anything refers to them, and counts what is live of a span.

All batches of an object stand in one record, so one span knows all references to it, and the ledger
knows when each of them died. So an object that was marked too early is found where its commit is
read, without bringing the batches of all spans together.

In the same way a span counts, for any later offset, what of it is live there: a checksum and a
number of bytes for each partition, and the used bytes of each object. The sum over all spans is the
state that a checkpoint claims (`spark_jobs.audit.checkpoints`).

Source: docs/design/batch-coordinator.md#runs, docs/design/batch-coordinator.md#deletion; invariants
4, 7 and 8 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from spark_jobs.audit.commits import COMMIT, Commits
from spark_jobs.audit.ledger import NEVER, Ledger
from spark_jobs.audit.rows import (
    COLUMNS,
    NO_OBJECT,
    Numbers,
    Rows,
    TopicPartition,
    groups,
    row_checksums,
    slices,
)
from spark_jobs.audit.rules import Fault, Faults, rule

RUN_COLUMNS: Final = (
    "base_offset", "record_count", "object_id", "byte_offset", "byte_size", "max_timestamp",
    "timestamp_type", "kept_records", "append_time", "object_format", "marker",
)  # fmt: skip

DEAD_AT_ONCE: Final = "dead_at_once"
"""Column of rewritten runs: 1 if a run ended below the log start when it was written."""

OF_MARKER: Final = ("producer_id", "producer_epoch", "outcome", "coordinator_epoch")
"""Columns that are facts of a marker: the column `marker` has a checksum of them, or 0."""


def runs_of(rows: Rows) -> Rows:
    """Merge accepted batches that are adjacent in one object into one row for each run.

    Batches of two transactions are two runs.
    """
    kept = rows.where(rows.accepted)
    kept.columns["kept_records"] = kept["record_count"]  # of a rewritten run fewer than offsets
    kept.columns["append_time"] = kept["committed_at_ms"]
    kept.columns["object_format"] = np.ones(len(kept), np.int64)
    kept.columns["marker"] = np.zeros(len(kept), np.int64)
    if not len(kept):
        return kept
    place, kind, number = kept.place, kept["timestamp_type"], kept["transaction_number"]
    producer = np.where(number >= 0, kept["producer_id"], -1)
    end = kept["byte_offset"] + kept["byte_size"]
    new = np.ones(len(kept), np.bool_)
    new[1:] = (
        (place[1:] != place[:-1])
        | (kept["object_id"][1:] != kept["object_id"][:-1])
        | (kept["byte_offset"][1:] != end[:-1])
        | (kind[1:] != kind[:-1])
        | (number[1:] != number[:-1])
        | (producer[1:] != producer[:-1])
    )
    first = np.flatnonzero(new)
    runs = kept.where(first)
    for name in ("record_count", "kept_records", "byte_size"):
        runs.columns[name] = np.add.reduceat(kept[name], first)
    runs.columns["max_timestamp"] = np.maximum.reduceat(kept["max_timestamp"], first)
    return runs


def marker_runs_of(markers: Rows) -> Rows:
    """Return the markers with an offset as runs without an object."""
    runs = markers.where(markers["base_offset"] >= 0)
    runs.columns["kept_records"] = runs["record_count"]
    runs.columns["append_time"] = runs["committed_at_ms"]
    runs.columns["object_format"] = np.zeros(len(runs), np.int64)
    runs.columns["marker"] = marker_checksums(runs[name] for name in OF_MARKER)
    return runs


def marker_checksums(facts: Iterable[Numbers]) -> Numbers:
    """Return a checksum of each marker's facts, in the order of OF_MARKER."""
    return row_checksums(facts).view(np.int64)


def death_offsets(runs: Rows, ledger: Ledger) -> Numbers:
    """Return the log offset of the record that deleted each run of batches; NEVER if none did."""
    found = np.full(len(runs), NEVER, np.int64)
    last_offset = runs.end_offset - 1
    order, starts = groups(runs.place)
    for start, end in slices(starts, len(order)):
        mine = order[start:end]
        incarnations = ledger.places.get(runs.places[runs.place[mine[0]]], ())
        for incarnation in incarnations:
            here = mine[(runs["log_offset"][mine] > incarnation.created)]
            found[here] = incarnation.gone
            if incarnation.starts:
                offsets, log_starts = (
                    np.array(column) for column in zip(*incarnation.starts, strict=True)
                )
                at = np.searchsorted(log_starts, last_offset[here], side="right")
                known = at < len(offsets)
                found[here[known]] = np.minimum(offsets[at[known]], incarnation.gone)
        for row in ledger.replaced.get(runs.places[runs.place[mine[0]]], ()):
            base = runs["base_offset"][mine]
            inside = (base >= row.first) & (base < row.end)
            inside &= (runs["log_offset"][mine] < row.offset) & (found[mine] > row.offset)
            found[mine[inside]] = row.offset
    return found


def rewritten_runs(ledger: Ledger) -> Rows:
    """Return the runs of batches in rewritten objects, including runs that are dead by now."""
    places = list(ledger.replaced)
    cells: list[tuple[int, ...]] = []
    for code, place in enumerate(places):
        for row in ledger.replaced[place]:
            item, base = ledger.rewritten[row.object_id], row.first
            incarnation = ledger.incarnation(place, row.offset)
            start = 0 if incarnation is None else incarnation.start_before(row.offset)
            for last, records, byte_offset, size, newest, appended, kind in row.runs:
                cells.append(
                    (code, row.offset, row.object_id, item.size_bytes, item.broker_id, base,
                     last - base + 1, records, byte_offset, size, newest, appended, kind,
                     last < start)
                )  # fmt: skip
                base = last + 1
    names = (
        "log_offset", "object_id", "size_bytes", "broker_id", "base_offset", "record_count",
        "kept_records", "byte_offset", "byte_size", "max_timestamp", "append_time",
        "timestamp_type", DEAD_AT_ONCE,
    )  # fmt: skip
    place_codes, *given = np.array(cells, np.int64).reshape(-1, len(names) + 1).T
    columns = {name: np.zeros(len(cells), np.int64) for name in COLUMNS}
    columns |= dict(zip(names, given, strict=True))
    columns["object_format"] = np.full(len(cells), 2, np.int64)
    columns["marker"] = np.zeros(len(cells), np.int64)
    return Rows(places, place_codes, columns)


_OF_OLD_RUN: Final = ("base_offset", "object_id", "byte_offset", "byte_size")


class OldRuns(NamedTuple):
    """The live runs that a replacement found in its range, summed up."""

    runs: int = 0
    offsets: int = 0
    records: int = 0
    first: int = NEVER
    end: int = -1
    rows: bytes = b""  # base offset, object id, byte offset and size of each, as int64

    @property
    def digest(self) -> int:
        """Return the digest by which a ReplaceRuns request identifies these runs."""
        rows = np.frombuffer(self.rows, np.int64).reshape(-1, len(_OF_OLD_RUN))
        in_order = rows[np.argsort(rows[:, 0], kind="stable"), 1:]
        found = blake2b(in_order.astype(">i8").tobytes(), digest_size=8).digest()
        return int.from_bytes(found, "big") >> 1

    def add(self, other: OldRuns) -> OldRuns:
        """Return the totals of these and the other replaced runs of batches."""
        return OldRuns(
            self.runs + other.runs, self.offsets + other.offsets, self.records + other.records,
            min(self.first, other.first), max(self.end, other.end), self.rows + other.rows,
        )  # fmt: skip


OldRunsOf = dict[tuple[int, TopicPartition], OldRuns]
"""The old runs of each replacement, by the log offset of its record and its partition."""


def old_runs(runs: Rows, deaths: Numbers, ledger: Ledger) -> OldRunsOf:
    """Sum up the replaced runs of batches in a span, by replacement record and partition."""
    found: OldRunsOf = {}
    ended = np.isin(deaths, [row.offset for rows in ledger.replaced.values() for row in rows])
    dead, at = runs.where(ended), deaths[ended]
    order, starts = groups(dead.place, at)
    for start, end in slices(starts, len(order)):
        mine = dead.where(order[start:end])
        key = int(at[order[start]]), mine.places[int(mine.place[0])]
        found[key] = OldRuns(
            len(mine), int(mine["record_count"].sum()), int(mine["kept_records"].sum()),
            int(mine["base_offset"].min()), int(mine.end_offset.max()),
            np.stack([mine[name] for name in _OF_OLD_RUN], axis=1).astype(np.int64).tobytes(),
        )  # fmt: skip
    return found


@rule(
    "replaced-live",
    "5",
    "The named live runs tiled the range that is replaced, and no record appears.",
)
def replaced_live(ledger: Ledger, old: OldRunsOf) -> Faults:
    for place, rows in ledger.replaced.items():
        for row in rows:
            found = old.get((row.offset, place), OldRuns())
            here = (row.first, row.end, row.end - row.first, row.old_runs)
            name = f"{place[0]}-{place[1]} {row.first} to {row.end}"
            what = ""
            if (found.first, found.end, found.offsets, found.runs) != here:
                what = f"{row.old_runs} runs are replaced, {found.runs} live runs of"
                what += f" {found.offsets} offsets were there"
            elif row.records > found.records or (row.bound < 0 and row.records != found.records):
                what = f"{found.records} records became {row.records}"
            elif found.digest != row.old_digest:
                what = "the live runs are not those whose digest the record has"
            if what:
                yield Fault(row.offset, f"{name}: {what}", "RunsReplacedRecord", row.object_id)


# --- the rules ----------------------------------------------------------------------------------


@rule("marked-unused", "7", "An object is marked only after its last reference is gone.")
def marked_unused(commits: Commits) -> Faults:
    marked = {object_id: offset for object_id, (offset, _) in commits.ledger.marked.items()}
    yield from _too_early(commits, marked, "marked", "ObjectsMarkedRecord")


@rule(
    "removed-unused",
    "7",
    "An object is removed only after it was marked, and is not used after that.",
)
def removed_unused(commits: Commits) -> Faults:
    removed, marked = commits.ledger.removed, commits.ledger.marked
    yield from _too_early(commits, removed, "removed", "ObjectsRemovedRecord")
    ids, first = np.unique(commits.rows["object_id"], return_index=True)
    for at in np.flatnonzero(np.isin(ids, list(removed))).tolist():
        object_id = int(ids[at])
        if removed[object_id] < int(commits.rows["log_offset"][first[at]]):
            continue  # of an orphan's removal, and its id committed later: other rules say so
        if marked.get(object_id, (NEVER, 0))[0] > removed[object_id]:
            what = "removed and not marked before"
            yield Fault(removed[object_id], what, "ObjectsRemovedRecord", object_id)


def _too_early(commits: Commits, when: dict[int, int], how: str, record: str) -> Faults:
    named = np.isin(commits.rows["object_id"], list(when))
    runs = runs_of(commits.rows.where(named))
    yield from used_after(runs, commits.ledger, when, how, record)


def used_after(runs: Rows, ledger: Ledger, when: dict[int, int], how: str, record: str) -> Faults:
    """Yield the runs that were live when their object was marked for deletion or removed."""
    runs = runs.where(np.isin(runs["object_id"], list(when)))
    for row, death in enumerate(death_offsets(runs, ledger).tolist()):
        object_id = int(runs["object_id"][row])
        if death >= when[object_id]:
            until = "" if death == NEVER else f" until log offset {death}"
            what = f"{how} while {runs.name(row)} used {runs['byte_size'][row]} bytes{until}"
            yield Fault(when[object_id], what, record, object_id)


@rule("marked-committed", "7", "Only objects that were committed are marked.")
def marked_committed(ledger: Ledger, committed: Numbers, base_objects: Iterable[int]) -> Faults:
    ids = np.array(list(ledger.marked), np.int64)
    known = np.isin(ids, committed) | np.isin(ids, list(base_objects))
    for object_id in ids[~known].tolist():
        offset, _ = ledger.marked[object_id]
        yield Fault(offset, "marked and never committed", "ObjectsMarkedRecord", object_id)


@rule(
    "orphans-deleted", "7", "A lease is forgotten only after all its ids are committed or removed."
)
def orphans_deleted(ledger: Ledger, committed: Numbers) -> Faults:
    committed = np.unique(committed)
    removed = np.array(sorted(ledger.removed.items()), np.int64).reshape(-1, 2)
    removed = removed[~np.isin(removed[:, 0], committed)]
    for lease_id, lease in ledger.leases.items():
        if lease.granted < 0 or lease.forgotten == NEVER or lease.closed == NEVER:
            continue  # of a checkpoint's leases the ids before it are not known
        bounds = lease.first, lease.used_end
        done = committed[slice(*np.searchsorted(committed, bounds))]
        gone = removed[slice(*np.searchsorted(removed[:, 0], bounds))]
        ids = np.union1d(done, gone[gone[:, 1] < lease.forgotten, 0])
        left = lease.used_end - lease.first - len(ids)
        if left > 0:
            # Where the ids run ahead of counting, one is left out.
            ahead = np.append(ids, NEVER) > lease.first + np.arange(len(ids) + 1)
            first = lease.first + int(np.argmax(ahead))
            what = f"lease {lease_id} is forgotten, and {left} ids were neither, the first {first}"
            yield Fault(lease.forgotten, what, "LeasesForgottenRecord", first)


# --- what is live -------------------------------------------------------------------------------


class Digest(NamedTuple):
    """Count, bytes and checksum of a partition's live runs."""

    runs: int
    bytes: int
    checksum: int


@dataclass(slots=True)
class LiveState:
    """The live runs and used bytes of one span, or of all, at an offset."""

    partitions: dict[TopicPartition, Digest] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)  # bytes, by object

    def add(self, other: LiveState) -> None:
        """Add the undeleted runs of batches and the used bytes of another span of the log."""
        for place, digest in other.partitions.items():
            before = self.partitions.get(place, Digest(0, 0, 0))
            checksum = (before.checksum + digest.checksum) % 2**64
            self.partitions[place] = Digest(
                before.runs + digest.runs, before.bytes + digest.bytes, checksum
            )
        for object_id, used in other.used.items():
            self.used[object_id] = self.used.get(object_id, 0) + used


def live_at(runs: Rows, deaths: Numbers, offset: int) -> LiveState:
    """Sum up, by partition and object, the runs of batches that exist at a log offset."""
    return live_state_of(runs.where((deaths >= offset) & (runs["log_offset"] < offset)))


def live_state_of(runs: Rows) -> LiveState:
    """Sum up existing runs of batches by partition, and their bytes by object."""
    live = LiveState()
    checksums = row_checksums(runs[name] for name in RUN_COLUMNS)
    order, starts = groups(runs.place)
    for start, end in slices(starts, len(order)):
        mine = order[start:end]
        total = int(np.add.reduce(checksums[mine], dtype=np.uint64))
        live.partitions[runs.places[runs.place[mine[0]]]] = Digest(
            len(mine), int(runs["byte_size"][mine].sum()), total
        )
    ids, inverse = np.unique(runs["object_id"], return_inverse=True)
    used = np.zeros(len(ids), np.int64)
    np.add.at(used, inverse, runs["byte_size"])
    live.used = dict(zip(ids.tolist(), used.tolist(), strict=True))
    live.used.pop(NO_OBJECT, None)
    return live


__all__ = [
    "COMMIT",
    "Digest",
    "LiveState",
    "OldRuns",
    "OldRunsOf",
    "death_offsets",
    "live_at",
    "live_state_of",
    "marked_committed",
    "marked_unused",
    "marker_checksums",
    "marker_runs_of",
    "old_runs",
    "removed_unused",
    "replaced_live",
    "rewritten_runs",
    "runs_of",
    "used_after",
]  # fmt: skip
