"""Rules about objects: they stay while anything refers to them. And what is live of a span.

All batches of an object stand in one record, so one span knows all that ever referred to it; when
each of them died the ledger knows. So whether an object was marked too early is found where its
commit is read, without bringing the batches of all spans together.

The same way a span says, for any later offset, what of it is live there: a checksum and a number
of bytes for each partition, and the bytes used of each object. Added up over all spans that is the
state which a checkpoint claims (`spark_jobs.audit.checkpoints`).

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
from spark_jobs.audit.rows import Numbers, Place, Rows, groups, mixed, slices
from spark_jobs.audit.rules import Fault, Faults, rule

RUN_COLUMNS: Final = (
    "base_offset", "record_count", "object_id", "byte_offset", "byte_size", "max_timestamp",
    "timestamp_type",
)  # fmt: skip


def runs_of(rows: Rows) -> Rows:
    """Accepted batches that lie back to back in one object, as one row each."""
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


def died(runs: Rows, ledger: Ledger) -> Numbers:
    """The log offset whose record took each run's life; NEVER: it is live."""
    found = np.full(len(runs), NEVER, np.int64)
    last_offset = runs.end_offset - 1
    order, starts = groups(runs.place)
    for start, end in slices(starts, len(order)):
        mine = order[start:end]
        lives = ledger.places.get(runs.places[runs.place[mine[0]]], ())
        for life in lives:
            here = mine[(runs["log_offset"][mine] > life.created)]
            found[here] = life.gone
            if life.starts:
                offsets, log_starts = (
                    np.array(column) for column in zip(*life.starts, strict=True)
                )
                at = np.searchsorted(log_starts, last_offset[here], side="right")
                known = at < len(offsets)
                found[here[known]] = np.minimum(offsets[at[known]], life.gone)
    return found


# --- the rules ----------------------------------------------------------------------------------


@rule("marked-unused", "7", "An object is marked once nothing refers to it, not before.")
def marked_unused(commits: Commits) -> Faults:
    marked = {object_id: offset for object_id, (offset, _) in commits.ledger.marked.items()}
    yield from _too_early(commits, marked, "marked", "ObjectsMarkedRecord")


@rule("removed-unused", "7", "An object is removed once it is marked, and was never in use since.")
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
    for row, death in enumerate(died(runs, commits.ledger).tolist()):
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


@rule("orphans-deleted", "7", "A lease is forgotten once all its ids are committed or removed.")
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
    """Of a partition's live runs: how many, their bytes, and a sum of checksums."""

    runs: int
    bytes: int
    checksum: int


@dataclass(slots=True)
class Live:
    """What is live of one span, or of all, as of an offset."""

    partitions: dict[Place, Digest] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)  # bytes, by object

    def add(self, other: Live) -> None:
        """With another span's."""
        for place, one in other.partitions.items():
            before = self.partitions.get(place, Digest(0, 0, 0))
            checksum = (before.checksum + one.checksum) % 2**64
            self.partitions[place] = Digest(
                before.runs + one.runs, before.bytes + one.bytes, checksum
            )
        for object_id, used in other.used.items():
            self.used[object_id] = self.used.get(object_id, 0) + used


def live_at(runs: Rows, deaths: Numbers, offset: int) -> Live:
    """What of these runs everything below a log offset (exclusive) leaves alive."""
    return digests(runs.where(deaths >= offset))


def digests(runs: Rows) -> Live:
    """Of runs that are live."""
    live = Live()
    checksums = mixed(runs[name] for name in RUN_COLUMNS)
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
    "COMMIT", "Digest", "Live", "died", "digests", "live_at", "marked_committed", "marked_unused",
    "removed_unused", "runs_of",
]  # fmt: skip
