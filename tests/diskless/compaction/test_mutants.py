"""Each rule of compaction, broken on purpose: a test must find it. docs/design/compaction.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from diskless.compaction import leases, planner, rewriter, service
from diskless.compaction.tasks import CompactionTask
from records import cleaning
from records.aborted import AbortedBatches, TransactionReader
from records.rpc.rewriting import HORIZONS_SET
from tests.diskless.compaction import test_life, test_planner, test_rewriter, test_service
from tests.records import test_cleaning


def without_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewritten range ends wherever its last survivor does."""

    def end(content, builder, _last) -> None:
        content.runs += builder.take()

    monkeypatch.setattr(rewriter, "_end", end)


def with_control_batches_in_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control records of different producers count as equal keys."""
    monkeypatch.setattr(cleaning, "is_compacted", lambda _batch: True)


def past_damaged_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound stays behind a damaged run, whose keys are not in the map."""
    mapped = rewriter.Rewriter._map_keys

    async def map_keys(self, task, report):
        offsets = await mapped(self, task, report)
        report.bound = task.bound
        return offsets

    monkeypatch.setattr(rewriter.Rewriter, "_map_keys", map_keys)


def from_the_start_of_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of the dirty part alone decides by offset about the clean part, too."""

    def choose(self, block):
        self._newest = self._offsets.drain_offsets() if self._newest is None else self._newest
        return cleaning.newest_by_offset(block, self._newest)

    monkeypatch.setattr(rewriter._Survivors, "choose", choose)


def without_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that sets delete horizons does not say so."""
    assert HORIZONS_SET
    monkeypatch.setattr(rewriter, "HORIZONS_SET", 0)


def whatever_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction goes on although its topic is not compacted any more."""
    monkeypatch.setattr(service.Rewriting, "_is_compacted", lambda _self, _source: True)


def with_deleted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the log start cuts is merged whole, although its deleted bytes must be gone."""
    monkeypatch.setattr(service.Rewriting, "_deleted_before", lambda *_: 0)


def without_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that hold deleted bytes are rewritten only if less than half of them is used."""
    found = service.Rewriting._sparse_objects

    async def sparse_objects(self, *words):
        sparse, _ = await found(self, *words)
        return sparse, set()

    monkeypatch.setattr(service.Rewriting, "_sparse_objects", sparse_objects)


def with_horizons_that_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone goes in the round after the one that sets its delete horizon, however soon."""
    monkeypatch.setattr(cleaning, "_horizon", lambda _header: 0)


def without_last_batches_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch of an active producer goes if it has lost all records."""
    monkeypatch.setattr(cleaning, "_last_sequence", lambda _header: -2)


def with_times_relative_to_another_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that gets a delete horizon keeps its records' time deltas off by one."""
    rebase = cleaning._rebase_records

    def shifted(block, kept, base_timestamp: int) -> bytes:
        return rebase(block, kept, base_timestamp + 1)

    monkeypatch.setattr(cleaning, "_rebase_records", shifted)


def with_aborted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted record may count as the newest of its key."""
    monkeypatch.setattr(AbortedBatches, "covers", lambda *_: False)


def with_ended_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round takes transactions that ended before its first batch for aborted ones ahead."""

    def aborted_from(self, _runs):
        return self.aborted[min(self.aborted)] if self.aborted else ()

    monkeypatch.setattr(CompactionTask, "aborted_from", aborted_from)


def with_entries_without_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker goes, and the entry of its aborted transaction stays."""
    monkeypatch.setattr(AbortedBatches, "ended_by", lambda *_: None)


def without_markers_of_batches_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker gets its horizon while batches of its transaction are left."""
    note_marker = TransactionReader._note_marker

    def unused(self, header) -> None:
        self._with_batches.clear()
        note_marker(self, header)

    monkeypatch.setattr(TransactionReader, "_note_marker", unused)


def with_markers_of_unread_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed round takes the first marker of a producer for one without batches."""
    init = TransactionReader.__init__

    def from_log_start(self, aborted, *, from_log_start: bool) -> None:
        del from_log_start
        init(self, aborted, from_log_start=True)

    monkeypatch.setattr(TransactionReader, "__init__", from_log_start)


def above_the_last_stable_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round takes records of open transactions."""
    cleanable = planner._cleanable

    def all_cleanable(runs, cleaning, *words):
        return cleanable(runs, cleaning._replace(last_stable_offset=1 << 62), *words)

    monkeypatch.setattr(planner, "_cleanable", all_cleanable)


def without_append_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged batch of a topic with LogAppendTime has its producer's timestamps."""
    monkeypatch.setattr(rewriter, "LOG_APPEND_TIME", -5)


def with_one_object_id_for_two_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is tried again writes its object under the id of the first attempt."""
    next_id = leases.RewriteLeases.next_id
    first: list[int] = []

    async def same_id(self) -> int:
        first.append(await next_id(self))
        self._leases[first[0]] = self._lease
        return first[0]

    monkeypatch.setattr(leases.RewriteLeases, "next_id", same_id)


def without_a_delete_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is deleted once its last run was replaced, although readers have found the run."""
    monkeypatch.setattr(test_service, "REPLACED_S", 600)


def live_random_lives() -> None:
    test_life.live_some(30)


def compact_random_partitions() -> None:
    test_rewriter.test_compaction_keeps_the_newest_record_of_each_key_and_the_end_offset(300)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = [
    (
        without_the_last_batch,
        test_rewriter.test_compaction_keeps_the_last_batch_of_a_range_without_records_if_it_removes_them_all,
    ),
    (
        with_control_batches_in_the_map,
        test_cleaning.test_cleaning_keeps_control_batches_and_ignores_the_keys_of_control_records,
    ),
    (
        past_damaged_runs,
        test_rewriter.test_a_compaction_round_ends_before_a_damaged_run_and_reports_the_damage,
    ),
    (
        from_the_start_of_every_round,
        test_rewriter.test_a_compaction_round_with_a_full_key_map_ends_early_and_the_next_round_continues,
    ),
    (without_flags, compact_random_partitions),
    (
        with_deleted_records,
        test_service.test_a_merge_removes_deleted_records_from_the_run_and_the_batch_at_the_log_start,
    ),
    (
        without_the_deadline,
        test_service.test_brokers_rewrite_an_object_with_live_batches_to_remove_bytes_of_deleted_records,
    ),
    (
        whatever_the_policy,
        test_service.test_removing_compact_from_the_cleanup_policy_ends_compaction_before_its_next_replacement,
    ),
    (
        with_aborted_records,
        test_rewriter.test_compaction_removes_an_aborted_record_and_keeps_the_committed_record_of_its_key,
    ),
    (with_ended_transactions, live_random_lives),
    (
        with_entries_without_markers,
        test_rewriter.test_a_marker_goes_after_its_batches_and_its_horizon_and_ends_its_aborted_entry,
    ),
    (with_entries_without_markers, live_random_lives),
    (without_markers_of_batches_that_are_left, live_random_lives),
    (
        with_markers_of_unread_batches,
        test_rewriter.test_an_attempt_that_resumes_a_round_keeps_markers_whose_batches_it_has_not_read,
    ),
    (
        above_the_last_stable_offset,
        test_planner.test_a_planned_compaction_round_ends_before_unstable_records_and_too_young_runs,
    ),
    (
        without_append_times,
        test_rewriter.test_merging_objects_writes_one_object_sorted_by_partition_and_changes_no_record,
    ),
    (
        with_one_object_id_for_two_objects,
        test_service.test_a_rewriting_process_that_dies_at_any_step_loses_no_record_and_leaks_no_object,
    ),
    (
        without_a_delete_delay,
        test_service.test_a_fetch_reads_the_same_records_if_its_runs_are_replaced_before_the_read,
    ),
    (from_the_start_of_every_round, live_random_lives),
    (with_horizons_that_have_passed, live_random_lives),
    (without_last_batches_of_producers, live_random_lives),
    (with_times_relative_to_another_base, live_random_lives),
]


@pytest.mark.parametrize(("mutant", "finds"), MUTANTS, ids=lambda each: each.__name__)
def test_each_compaction_mutant_fails_its_test(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable, finds: Callable
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        finds()


def test_each_trap_on_the_design_page_names_existing_tests_and_mutants() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "design" / "compaction.md").read_text()
    _, _, table = page.partition("## Each trap has a test")
    named = re.findall(r"(?<=\| )`(\w+)` \|", table)
    assert len(named) > 60
    folders = ("diskless/compaction", "coordinator/batch", "records")
    files = [file for folder in folders for file in (root / "tests" / folder).glob("*.py")]
    there = set(re.findall(r"def (\w+)\(", "".join(file.read_text() for file in files)))
    assert not set(named) - there
