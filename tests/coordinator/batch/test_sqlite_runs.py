"""Runs in SQLite: what they answer is what a list of them would.

Source: docs/design/batch-coordinator.md#runs.
"""

from __future__ import annotations

import random
import sqlite3
from itertools import islice
from pathlib import Path

import pytest

from coordinator.batch.runs import Run
from coordinator.batch.sqlite import database
from coordinator.batch.sqlite.rows import run_row
from coordinator.batch.sqlite.runs import Runs, Tally
from tests.examples import seeds


class Model:
    """A partition's runs as a list, and every question answered by looking at all of them."""

    def __init__(self) -> None:
        self.rows: list[Run] = []  # dead ones, too, as long as they are not taken away
        self.log_start_offset = 0
        self.next_offset = 0

    def live(self) -> list[Run]:
        return [row for row in self.rows if row.last_offset >= self.log_start_offset]

    def walk(self, offset: int, limit: int) -> list[Run]:
        return [row for row in self.live() if row.last_offset >= offset][:limit]

    def live_from(self, offset: int) -> list[Run]:
        return [row for row in self.live() if row.last_offset >= offset]

    def first_since(self, timestamp: int, offset: int = 0) -> Run | None:
        found = (row for row in self.live_from(offset) if row.max_timestamp >= timestamp)
        return next(found, None)

    def end_of(self, limit: int) -> int | None:
        return next((row.last_offset for row in reversed(self.live()[:limit])), None)

    def greatest_time(self, offset: int = 0) -> int | None:
        return max((row.max_timestamp for row in self.live_from(offset)), default=None)


@pytest.mark.parametrize("seed", seeds(12))
def test_searches_for_batch_runs_in_sqlite_agree_with_searches_in_a_python_list(
    tmp_path: Path, seed: int
) -> None:
    """With spans of four runs, so that a few hundred make several of level two."""
    rng = random.Random(seed)
    runs = Runs(database.create(tmp_path / "state.db"), span_runs=4)
    models = [Model() for _ in range(3)]
    tallies = {log_id: Tally(log_id) for log_id in range(3)}
    for _ in range(120):
        log_id = rng.randrange(3)
        model, tally = models[log_id], tallies[log_id]
        if rng.random() < 0.75:
            new = []
            for _ in range(rng.randrange(1, 6)):
                base = model.next_offset
                model.next_offset += rng.randrange(1, 5)
                time = rng.randrange(1000) if rng.random() < 0.9 else rng.randrange(10**6)
                row = Run(
                    base, model.next_offset - 1, 7, 0, 10, time, 5, 0, model.next_offset - base
                )
                new.append(row)
            runs.add(tallies, [run_row(log_id, row) for row in new])
            model.rows += new
        elif model.next_offset:
            model.log_start_offset = rng.randint(model.log_start_offset, model.next_offset)
            limit = rng.choice((1, 3, 1000))
            kept = len(model.rows) - min(limit, len(model.rows) - len(model.live()))
            dead, is_done = runs.drop_below(tally, model.log_start_offset, -1, limit)
            assert sum(piece.run_count for piece in dead) == len(model.rows) - kept
            model.rows = model.rows[len(model.rows) - kept :]
            assert is_done == (model.rows == model.live())
        assert tally.runs == len(model.rows)
        assert tally.bytes == 10 * len(model.rows)
        offset = rng.randint(model.log_start_offset, model.next_offset)
        assert list(islice(runs.walk(log_id, offset), 7)) == model.walk(offset, 7)
        assert runs.end_of(log_id, model.log_start_offset, 9) == model.end_of(9)
        assert runs.greatest_time(log_id, model.log_start_offset) == model.greatest_time()
        for time in (rng.randrange(1000), rng.randrange(10**6), model.greatest_time() or 0):
            found = runs.first_since(log_id, model.log_start_offset, time)
            assert found == model.first_since(time), f"seed {seed}: since {time}"
            found = runs.first_since(log_id, offset, time)
            assert found == model.first_since(time, offset), f"seed {seed}: since {time}, {offset}"
        assert runs.greatest_time(log_id, offset) == model.greatest_time(offset), f"seed {seed}"


@pytest.mark.slow
def test_a_coordinators_search_by_timestamp_reads_a_small_part_of_its_database_rows(
    tmp_path: Path,
) -> None:
    """70,000 runs, the time sought is the last one's: three short walks, counted in steps."""
    connection = database.create(tmp_path / "state.db")
    runs, tally = Runs(connection), Tally(1)
    runs.add({1: tally}, ((1, n, n, 7, 0, 1, n, 5, 0, 1, 1, None) for n in range(70_000)))
    runs.drain()
    assert (tally.runs, tally.span2_spans, tally.span_runs) == (70_000, 17, 112)
    steps = count_steps(connection, lambda: runs.first_since(1, 0, 69_999))
    assert steps < 20_000  # of SQLite's machine; a walk of all runs takes over half a million


def count_steps(connection: sqlite3.Connection, work: object) -> int:
    """Instructions of SQLite's virtual machine, to the nearest hundred."""
    steps = 0

    def tick() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection.set_progress_handler(tick, 100)
    assert callable(work)
    assert work() is not None
    connection.set_progress_handler(None, 0)
    return steps
