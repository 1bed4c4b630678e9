"""Runs every job on coordinators' logs with transactions: open, committed, aborted, fenced.

Source: docs/design/transactions-batches.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator.batch.memory import InMemoryState
from spark_jobs.orphans.known_objects import Kind, known_objects_of
from spark_jobs.readers.log_files import LogFiles
from tests.spark_jobs.audit_world import (
    Entry,
    write_entries,
)
from tests.spark_jobs.transactions_world import the_transactional_history


def oracle(entries: list[Entry], offset: int) -> InMemoryState:
    """Return the coordinator's own state after the first `offset` entries."""
    state = InMemoryState()
    for at, entry in enumerate(entries[:offset]):
        if not isinstance(entry.value, int):
            state.apply(at, entry.value)
    return state


def test_known_objects_are_read_from_commits_of_transactional_batches(tmp_path: Path) -> None:
    entries = list(the_transactional_history())
    end = write_entries(tmp_path, entries)
    known = known_objects_of(LogFiles(tmp_path).spans(end), end, coordinator=0)
    objects = oracle(entries, end).objects
    kinds = [Kind.LIVE if one.marked_at_ms < 0 else Kind.MARKED for one in objects.values()]
    assert known.classify(np.array(list(objects))).tolist() == kinds
