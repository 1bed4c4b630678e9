"""Runs every job on coordinators' logs with transactions: open, committed, aborted, fenced.

Source: docs/design/transactions-batches.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from coordinator.batch.memory import InMemoryState
from records.frame import encode_record
from records.uuids import encode_uuid
from spark_jobs.orphans.known_objects import Kind, known_objects_of
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.tables.arrow_batches import read_table
from spark_jobs.tables.coordinator_log import CHANGE_KEYS, CoordinatorLog, fold
from spark_jobs.tables.log_state import state_at, state_of_piece
from spark_jobs.tables.views import can_hold
from tests.coordinator.batch.actors import TOPIC
from tests.examples import seeds
from tests.spark_jobs.audit_world import (
    Entry,
    checkpoint_at,
    write_checkpoint,
    write_entries,
)
from tests.spark_jobs.test_state import as_rows, expected
from tests.spark_jobs.transactions_world import (
    a_random_transactional_history,
    the_transactional_history,
)


def oracle(entries: list[Entry], offset: int) -> InMemoryState:
    """Return the coordinator's own state after the first `offset` entries."""
    state = InMemoryState()
    for at, entry in enumerate(entries[:offset]):
        if not isinstance(entry.value, int):
            state.apply(at, entry.value)
    return state


def histories(tmp_path: Path, seed: int) -> list[Entry]:
    """Return the history with every case for seed -1, and random ones for the others."""
    if seed < 0:
        return list(the_transactional_history())
    return a_random_transactional_history(tmp_path, seed)


def test_known_objects_are_read_from_commits_of_transactional_batches(tmp_path: Path) -> None:
    entries = list(the_transactional_history())
    end = write_entries(tmp_path, entries)
    known = known_objects_of(LogFiles(tmp_path).spans(end), end, coordinator=0)
    objects = oracle(entries, end).objects
    kinds = [Kind.LIVE if one.marked_at_ms < 0 else Kind.MARKED for one in objects.values()]
    assert known.classify(np.array(list(objects))).tolist() == kinds


@pytest.mark.parametrize("seed", [-1, *seeds(3)])
def test_the_state_of_a_log_with_transactions_equals_the_coordinators(
    tmp_path: Path, seed: int
) -> None:
    entries = histories(tmp_path, seed)
    end = write_entries(tmp_path, entries)
    assert as_rows(state_at(LogFiles(tmp_path))) == expected(oracle(entries, end))
    middle = end // 2
    write_checkpoint(tmp_path, middle, [encode_record(r) for r in checkpoint_at(entries, middle)])
    for path in tmp_path.glob("*.log"):
        path.unlink()
    write_entries(tmp_path, [replace(entries[middle], gap=middle), *entries[middle + 1 :]])
    assert as_rows(state_at(LogFiles(tmp_path))) == expected(oracle(entries, end))


def test_each_piece_of_a_log_with_transactions_has_its_own_runs_and_markers(tmp_path: Path) -> None:
    entries = list(the_transactional_history())
    end = write_entries(tmp_path, entries, 1)
    spans = list(LogFiles(tmp_path).spans(end))
    changes = CoordinatorLog()
    for span in spans:
        fold(span.values(), changes.handlers(CHANGE_KEYS))
    pieces = [state_of_piece(span, changes, is_first=not i) for i, span in enumerate(spans)]
    assert len(pieces) > 10
    runs = pa.concat_tables([piece.runs for piece in pieces]).sort_by("base_offset")
    assert runs.equals(state_at(LogFiles(tmp_path)).runs.combine_chunks())


def test_the_view_of_markers_has_a_row_for_each_marker(tmp_path: Path) -> None:
    end = write_entries(tmp_path, list(the_transactional_history()))
    (span,) = LogFiles(tmp_path).spans(end)
    rows = pa.Table.from_batches(read_table("markers", span)).to_pylist()
    names = ("base_offset", "producer_id", "transaction_number", "outcome", "first_offset")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (8, 7, 1, 1, 3),
        (9, 8, 1, 0, 5),
        (12, 7, 2, 0, 10),
        (13, 8, 2, 0, 11),
        (16, 9, 4, 1, -1),
        (-1, 8, 5, 1, -1),
        (17, 8, 3, 1, 14),
    ]
    assert [row["last_stable_offset"] for row in rows] == [5, 10, 11, 14, 14, 14, 18]
    assert {row["topic_id"] for row in rows} == {encode_uuid(TOPIC)}
    assert can_hold("markers", "__diskless-metadata-3")
    assert can_hold("transaction_state", "__transaction_state-0")
    assert not can_hold("transaction_state", "__cluster_metadata-0")
