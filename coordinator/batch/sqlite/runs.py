"""The rows of `runs`, and the spans above them: written in bulk, found without a walk.

New runs gather in a list and go to SQLite sorted, many at a time, before the transaction commits or
before a read: appends of one partition then touch one page once.

A search by time walks level-2 spans, then level-1, then runs: at most 256 rows of the last two.
Only the first span of each level can hold dead runs and so promise what is no longer there; then
the walk goes on after it. Rows of dead runs may be there for a while
(`coordinator.batch.sqlite.deferred_deletes`), so every walk begins at the log start or above.

Source: docs/design/batch-coordinator.md#runs; docs/coordinator-state.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from coordinator.batch.runs import ReplacedRange, Run
from coordinator.batch.sqlite.rows import StoredRun, run_row, unpack_run
from coordinator.batch.sqlite.schema import SPAN_RUNS

MAX_OFFSET: Final = 2**63 - 1

NO_TIMESTAMP: Final = -(2**63)
"""Less than every timestamp: of a span that is empty."""

_INSERT: Final = "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_LOAD: Final = (
    "INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, IIF(?8 >= 0, ?8,"
    " (SELECT committed_at_ms FROM objects WHERE object_id = ?4)), ?9, ?10, ?11, ?12)"
)
_INSERT_SPAN: Final = "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?)"
COLUMNS: Final = (
    "base_offset, last_offset, object_id, byte_offset, byte_size,"
    " max_timestamp, appended_at_ms, timestamp_type, record_count, object_format, marker"
)


class Tally:
    """A partition's count of runs, their bytes, and its unfinished spans."""

    __slots__ = ("bytes", "log_id", "runs", "span2_max", "span2_spans", "span_max", "span_runs")

    def __init__(
        self,
        log_id: int,
        runs: int = 0,
        size_bytes: int = 0,
        span_runs: int = 0,
        span_max: int = NO_TIMESTAMP,
        span2_spans: int = 0,
        span2_max: int = NO_TIMESTAMP,
    ) -> None:
        self.log_id = log_id
        self.runs = runs
        self.bytes = size_bytes
        self.span_runs = span_runs
        self.span_max = span_max
        self.span2_spans = span2_spans
        self.span2_max = span2_max

    def row(self) -> tuple[int, ...]:
        """Return a partition's run totals as the last six columns of the table `partitions`.

        They begin with `live_runs`.
        """
        return (
            self.runs,
            self.bytes,
            self.span_runs,
            self.span_max,
            self.span2_spans,
            self.span2_max,
        )


class Dead(NamedTuple):
    """The runs of one object that a move of a log start made dead, or a replacement."""

    object_id: int
    size_bytes: int
    run_count: int
    since_ms: int  # in steady time; -1: it is not noted


class Runs:
    """See the module. Reads see what was added before them."""

    def __init__(self, connection: sqlite3.Connection, *, span_runs: int = SPAN_RUNS) -> None:
        self._connection = connection
        self._span_runs = span_runs
        self._new: list[StoredRun] = []
        self._new_spans: list[tuple[int, int, int, int]] = []

    # -- writing -------------------------------------------------------------------------------

    def add(self, tallies: Mapping[int, Tally], rows: Iterable[StoredRun]) -> None:
        """Append new runs of batches, which have rising offsets within each partition.

        Args:  tallies: of the partitions, by log id; they are brought up to date.
        """
        before, span_runs = len(self._new), self._span_runs
        self._new += rows
        for row in islice(self._new, before, None):  # `_count`, in line
            log_id, _, last_offset, _, _, byte_size, time, *_ = row
            tally = tallies[log_id]
            tally.runs += 1
            tally.bytes += byte_size
            if time > tally.span_max:
                tally.span_max = time
            tally.span_runs += 1
            if tally.span_runs == span_runs:
                self._close_span(tally, last_offset)

    def load(self, tally: Tally, rows: Iterable[Run]) -> int:
        """Insert one partition's runs of batches from a checkpoint; return the number of runs.

        Their objects are in the table already, and have the append time where a run has -1.

        Args:  rows: by rising offset.
        """
        loaded = [run_row(tally.log_id, row) for row in rows]
        self._connection.executemany(_LOAD, loaded)
        for _, _, last, _, _, byte_size, time, *_ in loaded:
            self._count(tally, last, byte_size, time)
        return len(loaded)

    def _count(self, tally: Tally, last_offset: int, byte_size: int, time: int) -> None:
        tally.runs += 1
        tally.bytes += byte_size
        if time > tally.span_max:
            tally.span_max = time
        tally.span_runs += 1
        if tally.span_runs == self._span_runs:
            self._close_span(tally, last_offset)

    def _close_span(self, tally: Tally, last_offset: int) -> None:
        self._new_spans.append((tally.log_id, 1, last_offset, tally.span_max))
        tally.span2_max = max(tally.span2_max, tally.span_max)
        tally.span2_spans += 1
        tally.span_runs, tally.span_max = 0, NO_TIMESTAMP
        if tally.span2_spans == self._span_runs:
            self._new_spans.append((tally.log_id, 2, last_offset, tally.span2_max))
            tally.span2_spans, tally.span2_max = 0, NO_TIMESTAMP

    def __len__(self) -> int:
        """Return the number of runs of batches that wait to be written to SQLite."""
        return len(self._new)

    def drain(self) -> None:
        """Write the waiting runs of batches to SQLite."""
        if self._new:
            self._new.sort()
            self._connection.executemany(_INSERT, self._new)
            self._new.clear()
        if self._new_spans:
            self._connection.executemany(_INSERT_SPAN, self._new_spans)
            self._new_spans.clear()

    def drop_below(
        self, tally: Tally, offset: int, since_ms: int, limit: int
    ) -> tuple[list[Dead], bool]:
        """Delete up to `limit` of a partition's runs that end below an offset, oldest first.

        Returns the deleted runs by object, and whether none is left.

        Args:  since_ms: when they died.
        """
        self.drain()
        where = "FROM runs WHERE log_id = ? AND last_offset < ?"
        more = self._connection.execute(
            f"SELECT last_offset {where} ORDER BY last_offset LIMIT 1 OFFSET ?",
            (tally.log_id, offset, limit),
        ).fetchone()
        key = (tally.log_id, offset if more is None else more[0])
        dead = [
            Dead(object_id, size_bytes, count, since_ms)
            for object_id, size_bytes, count in self._connection.execute(
                f"SELECT object_id, SUM(byte_size), COUNT(*) {where} GROUP BY object_id", key
            )
        ]
        if dead:
            self._connection.execute(f"DELETE {where}", key)
            tally.runs -= sum(piece.run_count for piece in dead)
            tally.bytes -= sum(piece.size_bytes for piece in dead)
        self._connection.execute(
            "DELETE FROM spans WHERE log_id = ? AND level IN (1, 2) AND last_offset < ?", key
        )
        self._connection.execute("DELETE FROM aborted WHERE log_id = ? AND last_offset < ?", key)
        return dead, more is None

    def replace(
        self, tally: Tally, replaced: ReplacedRange, log_start_offset: int, since_ms: int
    ) -> tuple[list[Dead], list[Run]]:
        """Replace the runs of batches in an offset range, and the spans that index these runs.

        Returns the deleted runs by object, and the new runs: those that are not dead.
        """
        self.drain()
        log_id, last = tally.log_id, replaced.end_offset - 1
        where = "FROM runs WHERE log_id = ? AND last_offset BETWEEN ? AND ?"
        key = (log_id, replaced.first_offset, last)
        dead = [
            Dead(object_id, size_bytes, count, since_ms)
            for object_id, size_bytes, count in self._connection.execute(
                f"SELECT object_id, SUM(byte_size), COUNT(*) {where} GROUP BY object_id", key
            )
        ]
        old_count = sum(piece.run_count for piece in dead)
        assert old_count == replaced.old_run_count, f"{old_count} runs of {log_id}: {replaced}"
        self._connection.execute(f"DELETE {where}", key)
        new = [run for run in replaced.runs if run.last_offset >= log_start_offset]
        self._connection.executemany(_INSERT, [run_row(log_id, run) for run in new])
        tally.runs += len(new) - old_count
        tally.bytes += sum(run.byte_size for run in new)
        tally.bytes -= sum(piece.size_bytes for piece in dead)
        self._rebuild_spans(tally, replaced.first_offset, last, log_start_offset)
        return dead, new

    def _rebuild_spans(self, tally: Tally, first: int, last: int, log_start_offset: int) -> None:
        """Replace the spans that index the runs which end between two offsets.

        On each level these are whole spans, so those before and behind them stay exact. The last
        of them may be shorter than others.
        """
        below = "SELECT last_offset, max_timestamp FROM runs WHERE log_id = ?"
        begin, end = self._span_bounds(tally.log_id, 1, first, last)
        rest = self._regroup(tally.log_id, 1, below, max(begin, log_start_offset), end)
        if end is None:
            tally.span_runs, tally.span_max = rest
        below = "SELECT last_offset, max_timestamp FROM spans WHERE level = 1 AND log_id = ?"
        begin, end = self._span_bounds(tally.log_id, 2, first, last if end is None else end)
        rest = self._regroup(tally.log_id, 2, below, max(begin, log_start_offset), end)
        if end is None:
            tally.span2_spans, tally.span2_max = rest

    def _span_bounds(
        self, log_id: int, level: int, first: int, last: int
    ) -> tuple[int, int | None]:
        """Delete the spans that index the runs which end from `first` to `last`.

        Returns the range of last offsets that they were above; an end of None is open.
        """
        spans = "FROM spans WHERE log_id = ? AND level = ?"
        (before,) = self._connection.execute(
            f"SELECT MAX(last_offset) {spans} AND last_offset < ?", (log_id, level, first)
        ).fetchone()
        (end,) = self._connection.execute(
            f"SELECT MIN(last_offset) {spans} AND last_offset >= ?", (log_id, level, last)
        ).fetchone()
        begin = 0 if before is None else before + 1
        self._connection.execute(
            f"DELETE {spans} AND last_offset BETWEEN ? AND ?",
            (log_id, level, begin, MAX_OFFSET if end is None else end),
        )
        return begin, end

    def _regroup(
        self, log_id: int, level: int, below: str, begin: int, end: int | None
    ) -> tuple[int, int]:
        """Insert the spans of a level that index the runs which end in a range of offsets.

        Returns the number and greatest time of what is left over at an open end.
        """
        rows = self._connection.execute(
            f"{below} AND last_offset BETWEEN ? AND ? ORDER BY last_offset",
            (log_id, begin, MAX_OFFSET if end is None else end),
        ).fetchall()
        size = self._span_runs
        groups = [rows[at : at + size] for at in range(0, len(rows), size)]
        open_group = groups.pop() if groups and end is None and len(groups[-1]) < size else []
        self._connection.executemany(
            _INSERT_SPAN,
            [(log_id, level, group[-1][0], max(time for _, time in group)) for group in groups],
        )
        return len(open_group), max((time for _, time in open_group), default=NO_TIMESTAMP)

    # -- reading -------------------------------------------------------------------------------

    def walk(self, log_id: int, offset: int) -> Iterator[Run]:
        """Yield a partition's runs of batches from the run that contains `offset` on."""
        self.drain()
        for row in self._connection.execute(
            f"SELECT {COLUMNS} FROM runs WHERE log_id = ? AND last_offset >= ?"
            " ORDER BY last_offset",
            (log_id, offset),
        ):
            yield unpack_run(row)

    def first_since(self, log_id: int, log_start_offset: int, timestamp: int) -> Run | None:
        """Return a partition's first undeleted run with a record at or after `timestamp`.

        Its max timestamp is at least `timestamp`.
        """
        self.drain()
        lowest = log_start_offset
        while True:
            begin, end = self._narrow(log_id, 2, lowest, None, timestamp)
            begin, end = self._narrow(log_id, 1, begin, end, timestamp)
            upper = "" if end is None else f"AND last_offset <= {end}"
            row = self._connection.execute(
                f"SELECT {COLUMNS} FROM runs WHERE log_id = ? AND last_offset >= ? {upper}"
                " AND max_timestamp >= ? ORDER BY last_offset LIMIT 1",
                (log_id, begin, timestamp),
            ).fetchone()
            if row is not None:
                return unpack_run(row)
            if end is None:
                return None
            lowest = end + 1

    def _narrow(
        self, log_id: int, level: int, begin: int, end: int | None, timestamp: int
    ) -> tuple[int, int | None]:
        """Narrow an offset range to the first span with a max timestamp >= `timestamp`.

        The range is of last offsets. An end of None is open: what follows the last closed span.
        """
        spans = "FROM spans WHERE log_id = ? AND level = ? AND last_offset >= ?"
        found = self._connection.execute(
            f"SELECT last_offset {spans} AND max_timestamp >= ? ORDER BY last_offset LIMIT 1",
            (log_id, level, begin, timestamp),
        ).fetchone()
        if found is not None and (end is None or found[0] <= end):
            end = found[0]
        before = "" if end is None else f"AND last_offset < {end}"
        (previous,) = self._connection.execute(
            f"SELECT MAX(last_offset) {spans} {before}", (log_id, level, begin)
        ).fetchone()
        return begin if previous is None else previous + 1, end

    def greatest_time(self, log_id: int, log_start_offset: int) -> int | None:
        """Return the greatest timestamp of a partition's undeleted batches, or None if empty."""
        self.drain()
        first1 = self._end_of_first(log_id, 1, log_start_offset)
        if first1 is None:  # no span closed: all of at most 255 runs
            return self._greatest_run(log_id, log_start_offset, None)
        parts = [self._greatest_run(log_id, log_start_offset, first1)]
        first2 = self._end_of_first(log_id, 2, log_start_offset)
        if first2 is not None:
            parts.append(self._greatest_span(log_id, 1, first1 + 1, first2))
            parts.append(self._greatest_span(log_id, 2, first2 + 1, None))
        last2 = self._last_end(log_id, 2)
        parts.append(self._greatest_span(log_id, 1, max(first1, last2) + 1, None))
        parts.append(self._greatest_run(log_id, self._last_end(log_id, 1) + 1, None))
        return max((part for part in parts if part is not None), default=None)

    def _end_of_first(self, log_id: int, level: int, begin: int) -> int | None:
        (end,) = self._connection.execute(
            "SELECT MIN(last_offset) FROM spans"
            " WHERE log_id = ? AND level = ? AND last_offset >= ?",
            (log_id, level, begin),
        ).fetchone()
        return None if end is None else int(end)

    def _last_end(self, log_id: int, level: int) -> int:
        (end,) = self._connection.execute(
            "SELECT MAX(last_offset) FROM spans WHERE log_id = ? AND level = ?", (log_id, level)
        ).fetchone()
        return -1 if end is None else int(end)

    def _greatest_span(self, log_id: int, level: int, begin: int, end: int | None) -> int | None:
        upper = "" if end is None else f"AND last_offset <= {end}"
        (time,) = self._connection.execute(
            "SELECT MAX(max_timestamp) FROM spans"
            f" WHERE log_id = ? AND level = ? AND last_offset >= ? {upper}",
            (log_id, level, begin),
        ).fetchone()
        return None if time is None else int(time)

    def _greatest_run(self, log_id: int, begin: int, end: int | None) -> int | None:
        upper = "" if end is None else f"AND last_offset <= {end}"
        (time,) = self._connection.execute(
            f"SELECT MAX(max_timestamp) FROM runs WHERE log_id = ? AND last_offset >= ? {upper}",
            (log_id, begin),
        ).fetchone()
        return None if time is None else int(time)

    def end_of(self, log_id: int, log_start_offset: int, limit: int) -> int | None:
        """Return the last offset of a partition's first `limit` undeleted runs of batches."""
        self.drain()
        walk = (
            f"SELECT last_offset FROM runs WHERE log_id = {log_id}"
            f" AND last_offset >= {log_start_offset} ORDER BY last_offset"
        )
        for query in (f"{walk} LIMIT 1 OFFSET {limit - 1}", f"{walk} DESC LIMIT 1"):
            found = self._connection.execute(query).fetchone()
            if found is not None:
                return int(found[0])
        return None
