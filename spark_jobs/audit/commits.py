"""Checks commits: offsets, outcomes, bytes, leases.

Each rule looks at the commits of one span as columns, at the state before the span, and at the
ledger of all other records. So spans are judged in any order.

The trap: a partition that is named for the first time stood at 0. Its offsets must begin there; if
they do not, the beginning is lost.

Source: docs/design/batch-coordinator.md#one-record-per-object; invariants 5, 7 and 8
(docs/design/invariants.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_jobs.audit.ledger import NEVER, Ledger
from spark_jobs.audit.rows import NO_OBJECT, EndState, Flags, Numbers, Rows, groups, slices
from spark_jobs.audit.rules import Fault, Faults, rule

COMMIT: Final = "ObjectCommitRecord"


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits of one span, and the state that they are checked against."""

    rows: Rows
    placed: Rows  # those that were accepted, and markers: everything that took an offset
    before: EndState
    ledger: Ledger
    start_offset: int
    end_offset: int  # exclusive


def _fault(rows: Rows, row: int, what: str) -> Fault:
    offset, object_id = int(rows["log_offset"][row]), int(rows["object_id"][row])
    if object_id == NO_OBJECT:
        return Fault(offset, what, "TransactionMarkersRecord")
    return Fault(offset, what, COMMIT, object_id)


def _heads(rows: Rows) -> Rows:
    """Return the row of the first batch of each commit record."""
    _, first = np.unique(rows["log_offset"], return_index=True)
    return rows.where(first)


# --- offsets ------------------------------------------------------------------------------------


@rule("offsets-contiguous", "5", "A partition's batch begins where the one before it ended.")
def offsets_contiguous(commits: Commits) -> Faults:
    rows = commits.placed
    order, starts = groups(rows.place)
    base, end = rows["base_offset"][order], rows.end_offset[order]
    expected = np.zeros(len(order), np.int64)
    expected[1:] = end[:-1]
    places = [rows.places[code] for code in rows.place[order[starts]].tolist()]
    expected[starts] = [commits.before.partitions.get(place, 0) for place in places]
    for index in np.flatnonzero(base != expected).tolist():
        what = f"begins at {base[index]}, where {expected[index]} comes next"
        yield _fault(rows, order[index], f"{rows.name(order[index])} {what}")


@rule("batches-placed", "5", "A batch is accepted only for a partition that exists.")
def batches_placed(commits: Commits) -> Faults:
    rows, ledger = commits.placed, commits.ledger
    order, starts = groups(rows.place)
    for start, end in slices(starts, len(order)):
        mine = order[start:end]
        topic_id, _ = place = rows.places[int(rows.place[mine[0]])]
        offsets = rows["log_offset"][mine]
        there = np.zeros(len(mine), np.bool_)
        for incarnation in ledger.places.get(place, ()):
            there |= (offsets > incarnation.created) & (offsets < incarnation.gone)
        for topic in ledger.topics.get(topic_id, ()):
            there &= (offsets < topic.deleted) | (offsets > topic.expired)
        for row in mine[~there].tolist():
            yield _fault(rows, row, f"{rows.name(row)} is not there, or its topic is deleted")


@rule("released-empty", "5", "A released partition never had a batch.")
def released_empty(commits: Commits) -> Faults:
    rows = commits.placed
    for code, place in enumerate(rows.places):
        incarnations = commits.ledger.places.get(place, ())
        for incarnation in (incarnation for incarnation in incarnations if incarnation.released):
            offsets = rows["log_offset"]
            mine = (
                (rows.place == code)
                & (offsets > incarnation.created)
                & (offsets < incarnation.gone)
            )
            for row in np.flatnonzero(mine).tolist()[:1]:
                what = (
                    f"{rows.name(row)} has a batch, and is let go at log offset {incarnation.gone}"
                )
                yield _fault(rows, row, what)


@rule("log-start-within", "8", "A log start offset is not above the high watermark.")
def log_start_within(commits: Commits) -> Faults:
    moved = [
        event
        for event in commits.ledger.start_events
        if commits.start_offset <= event[0] < commits.end_offset
    ]
    if not moved:
        return
    rows = commits.placed
    order, starts = groups(rows.place)
    group_of = {
        rows.places[rows.place[order[start]]]: order[start:end]
        for start, end in slices(starts, len(order))
    }
    end_offset = rows.end_offset
    for offset, place, log_start in moved:
        end = commits.before.partitions.get(place, 0)
        mine = group_of.get(place)
        if mine is not None:
            at = int(np.searchsorted(rows["log_offset"][mine], offset))
            end = int(end_offset[mine[at - 1]]) if at else end
        if log_start > end:
            what = f"{place[0]}-{place[1]}: log start {log_start}, the high watermark is {end}"
            yield Fault(offset, what, "LogStartOffsetsRecord")


@rule("outcomes-consistent", "5", "A batch is accepted, refused without offset, or a duplicate.")
def outcomes_consistent(commits: Commits) -> Faults:
    rows = commits.rows
    base, error, duplicate = rows["base_offset"], rows["error_code"], rows["duplicate"]
    refused = error != 0
    wrong = (
        (refused & ((base != -1) | (duplicate != 0)))
        | (~refused & (base < 0))
        | (duplicate < 0)
        | (duplicate > 1)
        | (rows["record_count"] < 1)
    )
    for row in np.flatnonzero(wrong).tolist():
        what = f"error {error[row]}, duplicate {duplicate[row]}, offset {base[row]}"
        yield _fault(rows, row, f"{rows.name(row)}: {what}, {rows['record_count'][row]} records")


# --- bytes --------------------------------------------------------------------------------------


@rule("bytes-inside", "7", "A batch's bytes lie inside its object.")
def bytes_inside(commits: Commits) -> Faults:
    rows = commits.rows
    place, size, whole = rows["byte_offset"], rows["byte_size"], rows["size_bytes"]
    for row in np.flatnonzero((place < 0) | (size < 1) | (place + size > whole)).tolist():
        what = f"bytes {place[row]} to {place[row] + size[row]} of an object of {whole[row]}"
        yield _fault(rows, row, f"{rows.name(row)}: {what}")


@rule("bytes-disjoint", "5", "No two batches share bytes of an object.")
def bytes_disjoint(commits: Commits) -> Faults:
    rows = commits.rows
    order = np.lexsort((rows["byte_offset"], rows["log_offset"]))
    offset, place = rows["log_offset"][order], rows["byte_offset"][order]
    end = place + rows["byte_size"][order]
    shared: Flags = (offset[1:] == offset[:-1]) & (place[1:] < end[:-1])
    for index in np.flatnonzero(shared).tolist():
        first, second = int(order[index]), int(order[index + 1])
        what = f"{rows.name(first)} and {rows.name(second)} share byte {place[index + 1]}"
        yield _fault(rows, second, what)


# --- leases -------------------------------------------------------------------------------------


@rule("lease-open", "7", "An object is committed under a lease that is open.")
def lease_open(commits: Commits) -> Faults:
    for heads, row, lease_id in _by_lease(commits):
        lease, offset = commits.ledger.leases.get(lease_id), int(heads["log_offset"][row])
        if lease is None or lease.rewrites or not lease.granted < offset < lease.closed:
            when = "was never granted to append"
            if lease is not None and not lease.rewrites:
                until = "" if lease.closed == NEVER else f" to {lease.closed}"
                when = f"was open from log offset {lease.granted}{until}"
            yield _fault(heads, row, f"lease {lease_id} {when}")


@rule("lease-owner", "7", "Object id, broker and broker epoch of a commit are its lease's.")
def lease_owner(commits: Commits) -> Faults:
    for heads, row, lease_id in _by_lease(commits):
        lease = commits.ledger.leases.get(lease_id)
        if lease is None:
            continue
        broker, epoch = int(heads["broker_id"][row]), int(heads["broker_epoch"][row])
        inside = lease.first <= int(heads["object_id"][row]) < lease.end
        if not inside or (broker, epoch) != (lease.broker_id, lease.broker_epoch):
            what = f"of broker {broker} epoch {epoch}; lease {lease_id} has ids {lease.first} to"
            what += f" {lease.end - 1} for broker {lease.broker_id} epoch {lease.broker_epoch}"
            yield _fault(heads, row, what)


@rule("object-ids-rise", "7", "Objects of a lease are committed once, by rising id.")
def object_ids_rise(commits: Commits) -> Faults:
    heads = _heads(commits.rows)
    order, starts = groups(heads["lease_id"])
    for start, end in slices(starts, len(order)):
        lease_id = int(heads["lease_id"][order[start]])
        ids = heads["object_id"][order[start:end]]
        last = commits.before.leases.get(lease_id, -1)
        before: Numbers = np.concatenate(([last], ids[:-1]))
        for index in np.flatnonzero(ids <= before).tolist():
            what = f"committed after object {before[index]} of lease {lease_id}"
            yield _fault(heads, int(order[start + index]), what)


@rule("fenced-uncommitted", "7", "An object that was declared safe to delete is never committed.")
def fenced_uncommitted(commits: Commits) -> Faults:
    heads, ledger = _heads(commits.rows), commits.ledger
    fenced = {one: stays[0].found for one, stays in ledger.found_orphans.items()} | ledger.fenced
    for row in np.flatnonzero(np.isin(heads["object_id"], list(fenced))).tolist():
        object_id, here = int(heads["object_id"][row]), int(heads["log_offset"][row])
        if object_id in ledger.fenced or fenced[object_id] < here:
            at = fenced[object_id]
            yield _fault(heads, row, f"it was called safe to delete at log offset {at}")


def _by_lease(commits: Commits) -> Iterator[tuple[Rows, int, int]]:
    heads = _heads(commits.rows)
    for row, lease_id in enumerate(heads["lease_id"].tolist()):
        yield heads, row, lease_id
