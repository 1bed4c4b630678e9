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
from typing import Final, NamedTuple

import numpy as np

from spark_jobs.audit.commits import COMMIT, Commits
from spark_jobs.audit.ledger import NEVER, Ledger
from spark_jobs.audit.rows import Numbers, Rows, TopicPartition, groups, row_checksums, slices
from spark_jobs.audit.rules import Fault, Faults, rule

RUN_COLUMNS: Final = (
    "base_offset", "record_count", "object_id", "byte_offset", "byte_size", "max_timestamp",
    "timestamp_type",
)  # fmt: skip


def runs_of(rows: Rows) -> Rows:
    """Merge accepted batches that are adjacent in one object into one row for each run."""
    kept = rows.where(rows.accepted)
    if not len(kept):
        return kept
    place, kind = kept.place, kept["timestamp_type"]
    end = kept["byte_offset"] + kept["byte_size"]
    new = np.ones(len(kept), np.bool_)
    new[1:] = (
        (place[1:] != place[:-1])
        | (kept["object_id"][1:] != kept["object_id"][:-1])
        | (kept["byte_offset"][1:] != end[:-1])
        | (kind[1:] != kind[:-1])
    )
    first = np.flatnonzero(new)
    runs = kept.where(first)
    for name in ("record_count", "byte_size"):
        runs.columns[name] = np.add.reduceat(kept[name], first)
    runs.columns["max_timestamp"] = np.maximum.reduceat(kept["max_timestamp"], first)
    return runs


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
    return found


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
    for row, death in enumerate(death_offsets(runs, commits.ledger).tolist()):
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
    """Sum up the runs of batches that are not deleted yet at a log offset (exclusive)."""
    return live_state_of(runs.where(deaths >= offset))


def live_state_of(runs: Rows) -> LiveState:
    """Sum up undeleted runs of batches by partition, and their bytes by object."""
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
    return live


__all__ = [
    "COMMIT", "Digest", "LiveState", "death_offsets", "live_at", "live_state_of",
    "marked_committed", "marked_unused", "removed_unused", "runs_of",
]  # fmt: skip
