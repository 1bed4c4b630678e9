"""Each rule of local segments, broken on purpose: a test must find it.

Source: docs/design/local-segments.md#each-trap-has-a-test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diskless.fetch.local_segments import cache, filler, segment
from diskless.fetch.local_segments.cache import LocalSegments
from tests.diskless.compaction.life import Life
from tests.diskless.local_segments import test_serving
from tests.diskless.virtual_time import run


def state_not_consulted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range answers for its offsets, whichever run the state names there."""
    for module in (cache, filler):
        monkeypatch.setattr(module, "identify", lambda _run: b"i" * 16)


def foreign_segment_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is taken over whatever cluster, topic, partition and offset it is of."""

    class Anybody:
        __eq__ = lambda *_: True  # noqa: E731
        __ne__ = lambda *_: False  # noqa: E731
        __hash__ = None

    monkeypatch.setattr(segment, "owner_of", lambda *_: Anybody())


def gap_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a segment has nothing, an answer goes on with the next range that it has."""
    plan = LocalSegments._plan

    def plan_with_gaps(self, partition, runs, from_offset, max_bytes):
        pieces, is_missing, left = [], True, max_bytes
        for run_of_batches in runs:
            offset = max(from_offset, run_of_batches.base_offset)
            found, _ = plan(self, partition, [run_of_batches], offset, left)
            pieces += found
            is_missing = not pieces
        return pieces, is_missing

    monkeypatch.setattr(LocalSegments, "_plan", plan_with_gaps)


def bytes_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are sent as the disk gives them."""
    monkeypatch.setattr(LocalSegments, "_are_sound", lambda *_: True)


def damage() -> None:
    test_serving.test_damaged_torn_swapped_and_deleted_files_change_no_answer(
        test_serving.flip, True, ".log"
    )


MUTANTS = {
    state_not_consulted: (
        test_serving.test_merged_and_compacted_runs_are_never_answered_with_the_bytes_before
    ),
    foreign_segment_accepted: (
        test_serving.test_segments_of_another_cluster_topic_or_offset_are_deleted_at_the_start
    ),
    gap_invented: test_serving.test_a_range_that_a_segment_lacks_is_read_from_the_store,
    bytes_not_checked: damage,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_of_local_segments_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant]()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        MUTANTS[mutant]()


def test_random_operations_read_from_local_segments_leave_what_a_naive_model_keeps(
    tmp_path: Path,
) -> None:
    """`tests.diskless.compaction.life`, with a broker that has local segments."""
    life = Life(6, tmp_path / "cache")
    run(life.run)
    assert life.seen["local reads"] > 50
    assert life.seen["stale segments"]
    assert life.seen["removed records"]


def test_a_random_life_finds_ranges_that_answer_for_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_not_consulted(monkeypatch)
    with pytest.raises(AssertionError):
        run(Life(6, tmp_path / "cache").run)
