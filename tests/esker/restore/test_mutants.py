"""A restore without one of its rules is found out by the story that is named beside it.

Source: docs/design/restore.md#the-four-rules, docs/design/restore.md#open-transactions. The mutants
of rules 3 and 4 that concern brokers are in tests/diskless/test_leader_epochs.py and
tests/diskless/test_lineage.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from coordinator.batch.state import Lease
from coordinator.transactions.state import State
from esker.restore import open_transactions, run, state_checkpoints, states
from esker.restore.open_transactions import Outcomes
from esker.restore.plan import ChosenLog
from records.diskless import ControllerEpochRecord
from tests.esker.restore import test_directories, test_states

Patch = Callable[[pytest.MonkeyPatch], None]


def jumps_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Two histories under one epoch."""
    patch.setattr(states, "EPOCHS", 0)


def jumps_no_id(patch: pytest.MonkeyPatch) -> None:
    """Objects, leases, broker epochs and owners of groups are handed out twice."""
    patch.setattr(states, "IDS", 0)
    patch.setattr(state_checkpoints, "IDS", 0)


def jumps_no_producer_id(patch: pytest.MonkeyPatch) -> None:
    """A new producer's first batch is answered as a duplicate."""
    patch.setattr(states, "PRODUCER_IDS", 0)


def looks_for_producer_ids_in_the_cluster_log_only(patch: pytest.MonkeyPatch) -> None:
    """A batch coordinator may be ahead of it."""
    patch.setattr(states, "highest_producer_id", lambda _: -1)
    patch.setattr(states, "PRODUCER_IDS", 1_000)


def leaves_leases_open(patch: pytest.MonkeyPatch) -> None:
    """A broker of the lost cluster could commit."""
    noted = ControllerEpochRecord(controller_epoch=1 << 20)  # it closes nothing
    patch.setattr(state_checkpoints, "_closing", lambda *_: noted)


def deletes_uncommitted_ids(patch: pytest.MonkeyPatch) -> None:
    """The lost cluster may have committed and acknowledged them."""

    def all_uncommitted(lease: Lease, _skipped: Any) -> Lease:
        return lease._replace(orphans=((lease.last_committed_id + 1, lease.end_object_id),))

    patch.setattr(state_checkpoints, "_without_orphans", all_uncommitted)


def drops_topics_that_the_image_lacks(patch: pytest.MonkeyPatch) -> None:
    """The first controller takes them for left-overs, and their objects are deleted."""
    patch.setattr(state_checkpoints.StateWriter, "_adopt", lambda *_: None)


def takes_all_records_for_committed(patch: pytest.MonkeyPatch) -> None:
    """Clients do not notice that an offset may hold another record."""
    end = property(lambda log: log.choice.chosen.end)
    patch.setattr(ChosenLog, "known_committed", end)


def leaves_group_offsets(patch: pytest.MonkeyPatch) -> None:
    """A group goes on behind records that it never read."""
    patch.setattr(
        state_checkpoints.StateWriter, "_limited", lambda _self, _group, topics: tuple(topics)
    )


def leaves_transactions_open(patch: pytest.MonkeyPatch) -> None:
    """No broker sends its markers, so readers of committed records never get past it."""
    patch.setattr(state_checkpoints, "end_in_coordinator", lambda *_: None)


def leaves_offsets_pending(patch: pytest.MonkeyPatch) -> None:
    """A group's offset is unstable for ever."""
    patch.setattr(state_checkpoints, "end_in_groups", lambda image, *_: image)


def aborts_what_the_log_has_committed(patch: pytest.MonkeyPatch) -> None:
    """An acknowledged transaction whose markers were lost is aborted."""
    patch.setattr(Outcomes, "is_committed", lambda *_: False)


def leaves_ongoing_transactions_to_their_producers(patch: pytest.MonkeyPatch) -> None:
    """A producer that lives commits a transaction whose acknowledged batches were lost."""
    patch.setattr(open_transactions, "fenced", lambda before, _: before)


def does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """Brokers of the old cluster delete and acknowledge meanwhile."""
    patch.setattr(run, "WAITED_TIMEOUTS", 0)


def claims_nothing(patch: pytest.MonkeyPatch) -> None:
    """The old cluster lives on, and a second restore makes a third."""

    async def nothing(*_: Any) -> None:
        pass

    patch.setattr(run, "write_claim", nothing)


def _ended(state: State, number: int, outcome: int) -> Callable[[Path], None]:
    ends = test_states.test_a_transaction_without_a_marker_on_its_way_is_ended_by_the_restore
    return lambda path: ends(path, state, number, outcome)


def _left_to_its_leader(state: State) -> Callable[[Path], None]:
    ends = test_states.test_a_transaction_that_the_transaction_log_has_open_is_left_to_its_leader
    return lambda path: ends(path, state)


_OF_STATES: Final = test_states.test_each_counter_jumps_over_all_that_the_lost_cluster_can_have_used
_EXACT_END: Final = (
    test_states.test_a_new_timeline_begins_at_the_last_offset_that_was_known_to_be_committed
)
_WAIT: Final = (
    test_directories.test_a_restore_waits_twice_as_long_as_a_proof_of_the_old_brokers_is_valid
)


@pytest.mark.parametrize(
    ("mutant", "story"),
    [
        (jumps_no_epoch, _OF_STATES),
        (jumps_no_id, _OF_STATES),
        (
            jumps_no_id,
            test_states.test_the_next_transaction_of_an_id_has_a_number_that_no_coordinator_has_seen,
        ),
        (jumps_no_producer_id, _OF_STATES),
        (looks_for_producer_ids_in_the_cluster_log_only, _OF_STATES),
        (
            leaves_leases_open,
            test_states.test_no_lease_is_open_and_no_broker_serves_in_the_restored_state,
        ),
        (
            deletes_uncommitted_ids,
            test_states.test_ids_that_the_lost_cluster_may_have_committed_later_are_not_deleted,
        ),
        (
            drops_topics_that_the_image_lacks,
            test_states.test_a_topic_that_only_a_batch_coordinator_has_is_not_taken_for_a_left_over,
        ),
        (takes_all_records_for_committed, _EXACT_END),
        (leaves_group_offsets, _EXACT_END),
        (leaves_transactions_open, _ended(State.COMPLETE_ABORT, 8, 0)),
        (leaves_offsets_pending, _ended(State.COMPLETE_COMMIT, 8, 1)),
        (aborts_what_the_log_has_committed, _ended(State.COMPLETE_COMMIT, 8, 1)),
        (aborts_what_the_log_has_committed, _left_to_its_leader(State.PREPARE_COMMIT)),
        (leaves_ongoing_transactions_to_their_producers, _left_to_its_leader(State.ONGOING)),
    ],
)
def test_a_state_that_breaks_a_rule_is_caught(
    mutant: Patch,
    story: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        story(tmp_path)


@pytest.mark.parametrize(
    ("mutant", "story"),
    [
        (does_not_wait, _WAIT),
        (claims_nothing, _WAIT),
        (
            claims_nothing,
            test_directories.test_a_second_restore_of_the_same_cluster_is_refused,
        ),
    ],
)
def test_a_restore_that_does_not_stop_the_old_cluster_is_caught(
    mutant: Patch,
    story: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = test_directories.make_home(tmp_path)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        story(home)
