"""Corrects pieces of a log for runs that were replaced: merged, or compacted.

A replaced run lies in another piece than the record that replaces it, so a piece alone does not say
which of its runs live. Digests of pieces stay as they are, in their cache, and have the records of
replacements besides. From these the plan knows the replaced ranges and the runs in their place, a
few for each partition. Only pieces with runs in such a range are corrected: their replaced runs are
left out, and each new run is added to the piece that has its last offset. So the runs of a
partition rise from piece to piece, as the planner expects.

The trap: effects are summed up object by object, and the runs of a rewritten object end in many
pieces. There the new runs form a piece of their own.

Source: docs/design/compaction.md#readers-of-replaced-runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from records.batch import Batch
from records.compression import Buffer
from records.frame import decode_record
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Span
from spark_jobs.retention.digests import (
    AnyNumbers,
    Digest,
    Numbers,
    Piece,
    Rows,
    build_piece,
    concatenate,
    group_runs,
)
from spark_jobs.tables.coordinator_log import CoordinatorLog
from spark_jobs.tables.runs import RUN_COLUMNS

Place = tuple[str, int]
"""Topic id and partition."""

LAST, OBJECT, SIZE, NEWEST, APPENDED = 1, 2, 4, 5, 6
"""Columns of a rewritten run that planning needs, of RUN_COLUMNS."""


class NewRuns(NamedTuple):
    """Runs that rewriters wrote, as columns; sizes of objects by the objects' numbers."""

    topic_ids: Sequence[str]
    topics: Numbers  # of each run: which of them
    partitions: Numbers
    rows: Rows


class Correction(NamedTuple):
    """The difference between the runs that a piece has, and those that live."""

    replaced: dict[Place, list[tuple[int, int]]]  # ranges, sorted and disjoint; ends are exclusive
    added: NewRuns


@dataclass(frozen=True, slots=True)
class CorrectedSpan:
    """A span of a log, and the correction of its runs."""

    span: Span
    correction: Correction

    @property
    def is_checkpoint(self) -> bool:
        """Return whether the span is a checkpoint."""
        return self.span.is_checkpoint

    @property
    def start_offset(self) -> int:
        """Return the first offset of the span, inclusive."""
        return self.span.start_offset

    @property
    def end_offset(self) -> int:
        """Return the end offset of the span, exclusive."""
        return self.span.end_offset

    def without_added(self) -> CorrectedSpan:
        """Return the same span without the runs that rewriters wrote."""
        return replace(self, correction=self.correction._replace(added=NO_RUNS))

    def within(self, lowest: int, highest: int) -> Span | None:
        """Raise NotImplementedError, because a correction cannot be divided by offsets."""
        raise NotImplementedError(f"{lowest} to {highest} of a corrected span")

    def values(self) -> Iterator[tuple[LogPosition, Buffer]]:
        """Yield the position and framed value of each record in the span, in order."""
        return self.span.values()

    def batches(self) -> Iterator[Batch]:
        """Yield the record batches of the span, by rising offset."""
        return self.span.batches()


def _new_runs(log: CoordinatorLog, chosen: Sequence[tuple[Place, tuple[int, ...]]]) -> NewRuns:
    """Return rewritten runs as columns; all bytes of their objects count as stored batches."""
    topic_ids = list(dict.fromkeys(topic_id for (topic_id, _), _ in chosen))
    code = {topic_id: i for i, topic_id in enumerate(topic_ids)}
    runs = np.array([run for _, run in chosen], np.int64).reshape(-1, len(RUN_COLUMNS)).T
    ids, objects = np.unique(runs[OBJECT], return_inverse=True)
    known = log.rewritten_objects
    sizes = np.array([known[object_id].size_bytes for object_id in ids.tolist()], np.int64)
    last, size, newest, appended = runs[[LAST, SIZE, NEWEST, APPENDED]]
    times = np.where(newest < 0, appended, newest)
    return NewRuns(
        topic_ids,
        np.array([code[topic_id] for (topic_id, _), _ in chosen], np.int64),
        np.array([partition for (_, partition), _ in chosen], np.int64),
        Rows(last, times, size, objects.astype(np.int64), sizes, sizes),
    )


NO_RUNS: Final = _new_runs(CoordinatorLog(), [])


def replacements_of(digests: Sequence[Digest]) -> CoordinatorLog | None:
    """Apply all records of replaced runs in a log; return None if there are none."""
    log = None
    for digest in digests:
        for value in digest.replacements:
            log = log or CoordinatorLog()
            log.apply(-1, decode_record(value))
    return log


def rewritten_piece(log: CoordinatorLog) -> Piece:
    """Return all runs that replaced others, and were not replaced since, as a piece."""
    runs = [(place, row) for place, rows in log.rewritten.items() for row in rows]
    new = _new_runs(log, runs)
    return build_piece(*group_runs(new.topic_ids, new.topics, new.partitions, new.rows), [], [])


def corrections(log: CoordinatorLog, digests: Sequence[Digest]) -> dict[int, Correction]:
    """Return the correction of each piece that has replaced runs, or gets new ones.

    Args:    digests: of all pieces of the log, in order.
    """
    ranges: dict[int, dict[Place, list[tuple[int, int]]]] = {}
    added: dict[int, list[tuple[Place, tuple[int, ...]]]] = {}
    ends: dict[Place, list[tuple[int, int]]] = {}  # last offset, and piece
    for piece, digest in enumerate(digests):
        for place, first_end, last in _rows_of(digest, log.replaced.keys()):
            ends.setdefault(place, []).append((last, piece))
            here = [pair for pair in log.replaced[place] if pair[0] <= last and pair[1] > first_end]
            if here:
                ranges.setdefault(piece, {})[place] = here
    for place, runs in log.rewritten.items():
        pieces = ends.get(place, [])
        at = np.searchsorted([last for last, _ in pieces], [run[LAST] for run in runs])
        for run, index in zip(runs, at.tolist(), strict=True):
            if index < len(pieces):  # else its partition is gone
                added.setdefault(pieces[index][1], []).append((place, run))
    return {
        piece: Correction(ranges.get(piece, {}), _new_runs(log, added.get(piece, [])))
        for piece in sorted({*ranges, *added})
    }


def _rows_of(digest: Digest, places: Any) -> Iterator[tuple[Place, int, int]]:
    """Yield place, last offset of the first run, and last offset, of a digest's partitions."""
    names = [digest.topic_ids[code] for code in digest.topics.tolist()]
    for place, first_end, last in zip(
        zip(names, digest.partitions.tolist(), strict=True),
        digest.first_ends.tolist(),
        digest.last_offsets.tolist(),
        strict=True,
    ):
        if place in places:
            yield place, first_end, last


def corrected(piece: Piece, correction: Correction) -> Piece:
    """Return a piece without its replaced runs, and with the new ones that end in it."""
    digest, rows = piece.digest, piece.rows
    code = np.repeat(np.arange(len(digest)), digest.run_counts)
    stays = ~_is_replaced(digest, rows.last_offsets, correction.replaced)
    kept = replace(
        rows,
        last_offsets=rows.last_offsets[stays],
        timestamps=rows.timestamps[stays],
        byte_sizes=rows.byte_sizes[stays].astype(np.int64),
        objects=rows.objects[stays],
    )
    new = correction.added
    number = {topic_id: i for i, topic_id in enumerate([*digest.topic_ids])}
    of_new = [number.setdefault(topic_id, len(number)) for topic_id in new.topic_ids]
    topics = np.array(of_new, np.int64)[new.topics]
    grouped = group_runs(
        tuple(number),
        np.concatenate((digest.topics[code][stays], topics)),
        np.concatenate((digest.partitions[code][stays], new.partitions)),
        concatenate(kept, new.rows),
    )
    return build_piece(*grouped, digest.records, digest.replacements)


def _is_replaced(
    digest: Digest, last_offsets: AnyNumbers, replaced: dict[Place, list[tuple[int, int]]]
) -> Any:
    """Return a mask of the runs that lie in replaced ranges, by their last offsets."""
    found = np.zeros(len(last_offsets), np.bool_)
    ends = np.cumsum(digest.run_counts)
    names = [digest.topic_ids[code] for code in digest.topics.tolist()]
    places = zip(names, digest.partitions.tolist(), strict=True)
    for row, place in enumerate(places):
        pairs = replaced.get(place)
        if pairs:
            mine = slice(int(ends[row] - digest.run_counts[row]), int(ends[row]))
            first, end = np.array(pairs, np.int64).T
            at = np.searchsorted(first, last_offsets[mine], side="right") - 1
            found[mine] = (at >= 0) & (last_offsets[mine] < end[np.maximum(at, 0)])
    return found
