"""Each way of being wrong is noticed, by one pinned story in about a second.

The story holds of the real coordinator, and fails of the mutant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from coordinator.batch.memory import InMemoryState
from tests.coordinator import leadership, proposer_stories
from tests.coordinator.batch import (
    mutants,
    rewriting_mutants,
    test_rewriting_pending,
    test_steady_clock,
    transactions_mutants,
)
from tests.coordinator.batch.actors import Broker, create
from tests.coordinator.batch.conformance import TABLE, run_row
from tests.coordinator.batch.subjects import START_MS, MemoryWorld
from tests.coordinator.batch.test_memory import TestMemory as Memory
from tests.coordinator.batch.test_quorum_contract import TestQuorum as Quorum

Killer = Callable[[Path], None]

ROWS: Final = {row.claim: row for row in TABLE}


def row(claim: str) -> Killer:
    """Run a row of the conformance table."""
    return lambda _: asyncio.run(run_row(ROWS[claim], 0, MemoryWorld()))


def contract(name: str, *arguments: object) -> Killer:
    """Run a story of the contract on the in-memory coordinator."""
    return lambda _: getattr(Memory(), f"test_{name}")(*arguments)


def on_quorum(name: str) -> Killer:
    """Run a story of the contract on the quorum's coordinator."""

    def run(path: Path) -> None:
        subject = Quorum()
        subject.directory = path
        getattr(subject, f"test_{name}")()

    return run


def led(story: Callable[[Path], object]) -> Killer:
    """Run a story of leaders on the quorum's coordinator."""
    return lambda path: asyncio.run(story(path))  # type: ignore[arg-type]


def replayed_later(_: Path) -> None:
    """A log that is replayed a year later gives the same state."""

    async def story() -> InMemoryState:
        world = MemoryWorld()
        mutants.CLOCK[0] = START_MS
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        await broker.commit()
        mutants.CLOCK[0] += 365 * 24 * 3_600_000
        replayed = InMemoryState()
        for offset, record in world.coordinator.log:
            replayed.apply(offset, record)
        assert replayed.checkpoint() == world.coordinator.state.checkpoint()
        return replayed

    asyncio.run(story())


MUTANTS: Final = mutants.MUTANTS | rewriting_mutants.MUTANTS | transactions_mutants.MUTANTS

KILLERS: Final[dict[str, Killer]] = {
    "a_duplicate_is_answered_at_once": led(
        leadership.a_duplicate_is_not_answered_before_its_original_is_committed
    ),
    "inherited_state_is_used_too_early": led(
        leadership.a_new_leader_decides_only_on_all_that_it_inherited
    ),
    "unaccepted_proposals_are_answered": (
        proposer_stories.nothing_is_answered_that_the_log_has_not_accepted
    ),
    "refused_requests_are_decided_again_last": (
        proposer_stories.refused_requests_are_decided_again_first_and_in_order
    ),
    "refused_requests_are_decided_again_in_reverse": (
        proposer_stories.refused_requests_are_decided_again_first_and_in_order
    ),
    "refused_requests_are_forgotten_with_the_leadership": (
        proposer_stories.refused_requests_get_not_available_when_leadership_is_lost
    ),
    "two_proposals_are_undetermined": proposer_stories.one_proposal_at_most_is_undetermined,
    "a_late_answer_of_another_epoch_is_believed": (
        proposer_stories.a_late_answer_of_the_log_does_not_concern_the_next_epoch
    ),
    "an_overlay_keeps_its_counters": led(leadership.lost_records_leave_the_counters),
    "orphans_are_listed_from_pending_state": led(leadership.orphans_are_listed_from_applied_state),
    "delays_run_on_the_wall_clock": contract(
        "a_clock_jump_at_an_election_does_not_shorten_the_delete_delay", 10**12
    ),
    "a_lease_is_closed_by_the_clock_in_apply": replayed_later,
    "answers_are_not_in_the_checkpoint": contract(
        "a_repeated_commit_gets_the_response_of_its_first_attempt_despite_later_state_changes"
    ),
    "six_batches_are_kept": row("the sixth last is forgotten"),
    "only_the_last_batch_is_kept": row("the fifth last is a duplicate"),
    "a_lower_object_id_is_accepted_after_a_higher": contract(
        "the_coordinator_refuses_a_commit_of_an_object_id_below_the_brokers_last_committed_id"
    ),
    "an_unknown_producer_is_accepted_at_7": row("an unknown new producer may not begin at 7"),
    "an_old_producer_must_begin_at_0": row(
        "an unknown producer whose state can have expired begins anywhere"
    ),
    "expiry_is_judged_by_the_age_of_producer_ids": contract(
        "a_producer_expired_too_early_by_a_wrong_clock_continues_at_its_next_sequence"
    ),
    "dismantling_counts_as_expiry": contract(
        "the_coordinator_refuses_a_producers_sequence_gap_after_the_deletion_of_another_topic"
    ),
    "deletion_goes_by_the_wall_clock": contract(
        "a_coordinator_whose_wall_clock_steps_ahead_deletes_no_young_records"
    ),
    "deletion_goes_by_steady_time_alone": contract(
        "a_coordinator_whose_wall_clock_steps_back_delays_deletion_by_time"
    ),
    "every_wall_clock_is_believed_at_the_start": contract(
        "a_coordinator_whose_wall_clock_is_days_ahead_deletes_by_time_only_after_accept_clock"
    ),
    "replayed_stamps_are_noted": (
        test_steady_clock.test_a_restarted_follower_elected_without_a_newer_steady_time_record_holds_its_clock
    ),
    "the_sequence_does_not_wrap": row("after the greatest sequence comes 0"),
    "a_bumped_epoch_is_compared_with_the_old_one": row("a higher epoch begins at 0"),
    "an_old_producer_epoch_is_let_in": row("an old epoch is fenced"),
    "any_controller_epoch_is_kept": contract(
        "a_coordinator_call_with_an_uncommitted_controller_epoch_gets_a_retriable_error"
    ),
    "any_broker_epoch_gets_a_lease": contract(
        "a_coordinator_grants_a_lease_only_to_the_registered_broker_epoch"
    ),
    "a_stale_broker_epoch_commits": contract(
        "a_lease_for_a_newer_broker_epoch_fences_commits_of_the_older_epoch"
    ),
    "safe_to_delete_is_no_fence": contract(
        "the_coordinator_refuses_a_commit_of_an_object_reported_as_safe_to_delete"
    ),
    "a_partition_with_data_is_released": contract(
        "the_coordinator_refuses_commits_to_a_released_partition"
    ),
    "a_late_init_restores_a_released_partition": contract(
        "the_coordinator_restores_a_released_partition_only_under_a_higher_controller_epoch"
    ),
    "an_init_restores_partitions_it_does_not_name": contract(
        "the_coordinator_restores_a_released_partition_only_under_a_higher_controller_epoch"
    ),
    "a_range_is_replaced_while_its_replacement_is_proposed": led(
        test_rewriting_pending.a_range_that_is_being_replaced_is_not_replaced_again
    ),
    "runs_are_live_by_the_applied_log_start": led(
        test_rewriting_pending.runs_below_a_pending_log_start_are_not_replaced
    ),
    "the_digest_of_the_old_runs_is_not_compared": contract(
        "the_coordinator_refuses_a_replacement_of_runs_that_differ_from_the_live_runs"
    ),
    "one_refused_partition_refuses_the_others": contract(
        "the_coordinator_accepts_or_refuses_each_partition_of_a_run_replacement_separately"
    ),
    "a_repeat_is_not_judged_by_state": contract(
        "a_repeated_replacement_of_runs_gets_the_first_response_even_after_its_lease_has_ended"
    ),
    "an_open_object_is_marked": contract(
        "the_coordinator_does_not_mark_an_open_rewritten_object_without_live_runs_for_deletion"
    ),
    "a_closed_object_takes_runs": contract(
        "the_coordinator_refuses_further_runs_in_a_closed_rewritten_object"
    ),
    "the_end_of_a_lease_leaves_its_objects_open": contract(
        "the_end_of_a_rewrite_lease_closes_its_objects_and_makes_its_unused_object_ids_orphans"
    ),
    "a_lease_in_use_expires": contract(
        "a_rewrite_lease_that_is_renewed_before_its_timeout_does_not_expire"
    ),
    "cleaned_until_rises_over_gaps": contract(
        "compaction_progress_advances_only_by_ranges_that_continue_it_from_the_log_start"
    ),
    "another_bound_goes_on_where_the_last_one_was": contract(
        "compaction_progress_advances_only_by_ranges_that_continue_it_from_the_log_start"
    ),
    "horizons_are_accepted_anywhere": contract(
        "a_coordinator_accepts_delete_horizons_and_removed_tombstones_only_in_compacted_offsets"
    ),
    "spans_of_replaced_runs_stay": on_quorum(
        "the_coordinators_search_by_timestamp_finds_rewritten_runs"
    ),
    "objects_are_rewritten_below_the_feature_level": contract(
        "the_coordinator_refuses_requests_to_rewrite_objects_below_esker_version_3"
    ),
    "a_rewritten_run_has_the_time_of_its_replacement": contract(
        "a_rewritten_run_has_the_append_time_of_its_newest_source_run"
    ),
    "a_record_replaces_any_number_of_runs": contract(
        "the_coordinator_refuses_a_malformed_run_replacement_without_a_change_of_its_state"
    ),
    "the_number_of_a_batch_is_ignored": contract(
        "the_coordinator_refuses_a_batch_of_an_ended_or_other_transaction_retriably"
    ),
    "an_ended_number_is_accepted_again": contract(
        "a_marker_of_a_transaction_without_batches_refuses_its_late_batches"
    ),
    "another_open_number_is_accepted": contract(
        "the_coordinator_refuses_a_batch_of_an_ended_or_other_transaction_retriably"
    ),
    "duplicates_are_answered_after_the_number": contract(
        "the_coordinator_refuses_a_batch_of_an_ended_or_other_transaction_retriably"
    ),
    "a_producer_without_batches_begins_anywhere": contract(
        "a_marker_of_a_transaction_without_batches_refuses_its_late_batches"
    ),
    "the_age_of_the_producer_id_alone_is_judged": contract(
        "only_an_old_epoch_of_tv1_may_begin_above_sequence_0_without_producer_state"
    ),
    "every_marker_clears_the_kept_batches": contract(
        "a_transaction_marker_of_the_same_epoch_keeps_the_producers_sequence"
    ),
    "no_marker_clears_the_kept_batches": contract(
        "a_transaction_marker_of_the_same_epoch_keeps_the_producers_sequence"
    ),
    "a_marker_is_not_idempotent": contract(
        "a_repeated_transaction_marker_writes_no_record_and_succeeds"
    ),
    "a_higher_marker_ends_a_lower_number": contract(
        "a_marker_with_a_higher_transaction_number_does_not_end_the_lower_open_transaction"
    ),
    "a_marker_without_data_raises_no_number": contract(
        "a_marker_of_a_transaction_without_batches_refuses_its_late_batches"
    ),
    "an_open_transaction_expires": contract("a_producer_with_an_open_transaction_does_not_expire"),
    "runs_mix_transactions": contract(
        "read_committed_look_ups_end_at_the_last_run_below_the_last_stable_offset"
    ),
    "the_last_stable_offset_is_the_high_watermark": contract(
        "the_coordinator_replaces_runs_only_below_the_last_stable_offset"
    ),
    "the_aborted_list_is_dropped_with_the_marker": contract(
        "find_batches_returns_an_aborted_transaction_whose_records_are_in_the_response"
    ),
    "the_last_stable_offset_ignores_the_log_start": contract(
        "an_open_transaction_whose_records_are_deleted_holds_back_later_records"
    ),
    "the_log_start_ends_open_transactions": contract(
        "an_open_transaction_whose_records_are_deleted_holds_back_later_records"
    ),
    "aborted_entries_go_with_their_first_offset": contract(
        "find_batches_returns_an_aborted_transaction_whose_records_are_in_the_response"
    ),
}


def test_the_table_of_coordinator_mutants_names_a_test_for_each_mutant() -> None:
    assert KILLERS.keys() == MUTANTS.keys()


@pytest.mark.parametrize("name", KILLERS)
def test_each_coordinator_mutant_fails_a_test(name: str, tmp_path: Path) -> None:
    (tmp_path / "sound").mkdir()
    (tmp_path / "mutant").mkdir()
    KILLERS[name](tmp_path / "sound")
    with MUTANTS[name](), pytest.raises(AssertionError):
        KILLERS[name](tmp_path / "mutant")


@pytest.mark.parametrize("story", proposer_stories.STORIES, ids=lambda story: story.__name__)
def test_a_proposer_decides_and_answers_requests_in_order_although_its_log_is_slow(
    story: Callable[[], None],
) -> None:
    story()


@pytest.mark.parametrize("story", leadership.STORIES, ids=lambda story: story.__name__)
def test_a_coordinator_leaders_responses_do_not_depend_on_records_that_can_still_be_lost(
    story: Callable[[Path], object], tmp_path: Path
) -> None:
    led(story)(tmp_path)
