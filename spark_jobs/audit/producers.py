"""Checks idempotent producers: a batch that was sent twice is stored once.

A partition's batches of one producer are put next to each other, in the log's order. Nearly all are
simply the next ones; only the others are looked at one by one.

The trap: the first batch after a producer was forgotten may begin with any sequence, and so may the
first one ever of an old id. The controller decides that, not the log; so a first batch proves
nothing.

Source: docs/design/batch-coordinator.md#idempotence; invariant 6 (docs/design/invariants.md);
upstream's ProducerStateEntry (five batches are kept).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spark_jobs.audit.commits import COMMIT, Commits
from spark_jobs.audit.rows import (
    KEPT_BATCHES,
    MAX_SEQUENCE,
    KeptBatch,
    Producer,
    Rows,
    batch_of,
    groups,
    slices,
)
from spark_jobs.audit.rules import Fault, Faults, rule


class _Step(NamedTuple):
    """A producer's batch that is not simply the next one, and the producer's state before it."""

    rows: Rows
    row: int
    epoch_before: int
    kept: Sequence[KeptBatch]  # of that epoch, oldest first; at most five

    @property
    def epoch(self) -> int:
        return int(self.rows["producer_epoch"][self.row])

    @property
    def sequences(self) -> tuple[int, int]:
        """Return the first and last sequence number of the batch, both inclusive."""
        base = int(self.rows["base_sequence"][self.row])
        return base, (base + int(self.rows["record_count"][self.row]) - 1) & MAX_SEQUENCE

    def original(self) -> KeptBatch | None:
        """Return the producer's earlier batch with this batch's sequence numbers, else None."""
        for batch in self.kept:
            if self.epoch == self.epoch_before and batch[:2] == self.sequences:
                return batch
        return None

    def fault(self, what: str) -> Fault:
        """Build the description of a violation, which names this batch."""
        rows, row, (first, last) = self.rows, self.row, self.sequences
        who = f"{rows.name(row)}: producer {rows['producer_id'][row]} epoch {self.epoch}"
        what = f"{who}, sequences {first} to {last}, {what}"
        return Fault(int(rows["log_offset"][row]), what, COMMIT, int(rows["object_id"][row]))


@rule("stored-once", "6", "A batch of an idempotent producer is stored once.")
def stored_once(commits: Commits) -> Faults:
    for step in _odd_steps(commits):
        original = step.original()
        if original is not None:
            yield step.fault(f"are stored already, at offset {original.base_offset}")


@rule("sequences-follow", "6", "Sequences of a producer's epoch start at 0 and have no gaps.")
def sequences_follow(commits: Commits) -> Faults:
    for step in _odd_steps(commits):
        if step.epoch > step.epoch_before and step.sequences[0] != 0:
            yield step.fault("begin a new epoch")
        elif step.epoch == step.epoch_before and step.original() is None:
            yield step.fault(f"after {step.kept[-1].last_sequence if step.kept else 'nothing'}")


@rule(
    "producer-epochs-rise", "6", "No batch of an older producer epoch is stored after a newer one."
)
def producer_epochs_rise(commits: Commits) -> Faults:
    for step in _odd_steps(commits):
        if step.epoch < step.epoch_before:
            yield step.fault(f"after epoch {step.epoch_before}")


@rule(
    "duplicates-answer-first", "6", "The answer to a duplicate is the offset of its first commit."
)
def duplicates_answer_first(commits: Commits) -> Faults:
    rows = commits.rows
    duplicates = (rows["error_code"] == 0) & (rows["duplicate"] == 1)
    if not duplicates.any():
        return
    # Only producers that have duplicates are walked, batch by batch.
    wanted = {
        (int(rows.place[row]), int(rows["producer_id"][row]))
        for row in np.flatnonzero(duplicates).tolist()
    }
    known = np.flatnonzero((rows["error_code"] == 0) & (rows["producer_id"] >= 0))
    order, starts = groups(rows.place[known], rows["producer_id"][known])
    for start, end in slices(starts, len(order)):
        mine = known[order[start:end]]
        if (int(rows.place[mine[0]]), int(rows["producer_id"][mine[0]])) in wanted:
            yield from _walk_duplicates(commits, mine.tolist())


def _walk_duplicates(commits: Commits, mine: Sequence[int]) -> Faults:
    rows = commits.rows
    before = _state_before(commits, rows, mine[0])
    epoch, kept = (before.epoch, before.batches) if before is not None else (-1, ())
    for row in mine:
        step = _Step(rows, row, epoch, kept)
        if rows["duplicate"][row]:
            original, base = step.original(), int(rows["base_offset"][row])
            if original is None:
                yield step.fault(f"answer offset {base} and are not stored")
            elif original.base_offset != base:
                yield step.fault(f"answer offset {base}, stored at {original.base_offset}")
            continue
        batch = batch_of(rows, row)
        kept = (*kept, batch)[-KEPT_BATCHES:] if step.epoch == epoch else (batch,)
        epoch = step.epoch


def _odd_steps(commits: Commits) -> Iterator[_Step]:
    """Yield batches that neither continue their producer's sequence nor start a producer epoch.

    Batches of a producer whose earlier state is unknown are left out.
    """
    rows = commits.rows.where(commits.rows.accepted & (commits.rows["producer_id"] >= 0))
    order, starts = groups(rows.place, rows["producer_id"])
    epoch, base = rows["producer_epoch"][order], rows["base_sequence"][order]
    following = (base + rows["record_count"][order]) & MAX_SEQUENCE
    odd = np.zeros(len(order), np.bool_)
    odd[1:] = (epoch[1:] != epoch[:-1]) | (base[1:] != following[:-1])
    odd[starts] = True
    first = np.zeros(len(order), np.int64)  # where its group begins
    first[starts] = starts
    first = np.maximum.accumulate(first) if len(first) else first
    for at in np.flatnonzero(odd).tolist():
        mine = order[max(int(first[at]), at - KEPT_BATCHES) : at + 1].tolist()
        step = _step(commits, rows, mine, int(order[first[at]]))
        if step is None:
            continue
        expected = (step.kept[-1].last_sequence + 1) & MAX_SEQUENCE if step.kept else -1
        starts_anew = step.epoch > step.epoch_before and step.sequences[0] == 0
        goes_on = step.epoch == step.epoch_before and step.sequences[0] == expected
        if not starts_anew and not goes_on:
            yield step


def _step(commits: Commits, rows: Rows, mine: Sequence[int], first: int) -> _Step | None:
    """Return the batch in the last row of `mine`, with its producer's state before that batch.

    The result is None if the producer was unknown, or forgotten.

    Args:    mine: the batch, and at most five before it in the span.
             first: its producer's first batch in the span.
    """
    row = mine[-1]
    if len(mine) == 1:
        before = _state_before(commits, rows, row)
        return None if before is None else _Step(rows, row, before.epoch, before.batches)
    previous = mine[-2]
    key = rows.places[rows.place[row]], int(rows["producer_id"][row])
    offsets = rows["log_offset"]
    if _is_forgotten_between(commits.ledger.expired.get(key, ()), offsets[previous], offsets[row]):
        return None
    epoch = int(rows["producer_epoch"][previous])
    kept = []
    for other in mine[:-1]:
        if rows["producer_epoch"][other] == epoch:
            kept.append(batch_of(rows, other))
    if len(kept) < KEPT_BATCHES and len(kept) == len(mine) - 1 and mine[0] == first:
        before = _state_before(commits, rows, first)
        if before is not None and before.epoch == epoch:
            kept = [*before.batches, *kept][-KEPT_BATCHES:]
    return _Step(rows, row, epoch, kept)


def _state_before(commits: Commits, rows: Rows, row: int) -> Producer | None:
    """Return a producer's state before this span of the log, or None if unknown or expired."""
    key = rows.places[rows.place[row]], int(rows["producer_id"][row])
    found = commits.before.producers.get(key)
    if found is None:
        return None
    return found.since(commits.ledger.expired.get(key, ()), int(rows["log_offset"][row]))


def _is_forgotten_between(expired: Sequence[int], after: int, before: int) -> bool:
    return any(after < offset < before for offset in expired)
