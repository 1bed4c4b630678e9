"""Plausible mistakes, each caught by the story that is named beside it.

The simulator hunts the same and more of them in a whole cluster; here one story each is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from records.types import OffsetAndEpoch
from snapshot import PartDownload, PartFile, SnapshotStore, surviving_logs
from snapshot.host import MachineHost
from snapshot.kv import KeyValueMachine, _Change
from snapshot.surviving_logs import OtherCopy, SurvivingLog
from tests.snapshot import test_download, test_host, test_surviving_logs
from tests.snapshot import test_store as test_shelf

Patch = Callable[[pytest.MonkeyPatch], None]


def drops_under_its_reader(patch: pytest.MonkeyPatch) -> None:
    """Who reads is not asked."""
    patch.setattr(SnapshotStore, "_is_pinned", lambda _store, _id: False)


def installs_before_verifying(patch: pytest.MonkeyPatch) -> None:
    """The name says that it is whole, and nobody has looked."""
    unknown = SimpleNamespace(preamble=SimpleNamespace(epochs=()))
    patch.setattr(PartDownload, "verify", lambda _download: unknown)


def loads_what_it_is_announced(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is older than the state."""

    def snapshot(self: MachineHost, snapshot_id: OffsetAndEpoch) -> None:
        self._agreed = False  # what would stop it is an assertion
        self._begin_load(snapshot_id)

    patch.setattr(MachineHost, "snapshot", snapshot)


def freezes_at_any_time(patch: pytest.MonkeyPatch) -> None:
    """Inside an open transaction, too."""
    patch.setattr(test_host.Closed, "checkpointable", KeyValueMachine.checkpointable)


def thaws_at_once(patch: pytest.MonkeyPatch) -> None:
    """Changes reach the frozen records while they are handed out."""
    patch.setattr(KeyValueMachine, "_change_overlay", KeyValueMachine._change_base)


def forgets_the_order(patch: pytest.MonkeyPatch) -> None:
    """A key that was deleted and set again while the state was frozen keeps its old place."""
    merge = KeyValueMachine._merge

    def merge_in_place(self: KeyValueMachine, limit: int) -> bool:
        for key, change in self._overlay.items():
            if change.value is not None:
                self._overlay[key] = _Change(change.value, anew=False)
        return merge(self, limit)

    patch.setattr(KeyValueMachine, "_merge", merge_in_place)


def counts_from_publication(patch: pytest.MonkeyPatch) -> None:
    """Changes made while the checkpoint was written are taken to be in it."""

    def checkpointed(self: KeyValueMachine, snapshot_id: OffsetAndEpoch, count: int) -> None:
        del snapshot_id, count
        self._changed = 0

    patch.setattr(KeyValueMachine, "checkpointed", checkpointed)


def renames_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """The name is durable, the bytes may not be."""

    def publish(self: PartFile) -> object:
        self._close()
        self._files.rename(self.path, self.final_path)
        self._finished = True
        self._files.fsync_directory(self.final_path.parent)
        return self.final_path

    patch.setattr(PartFile, "publish", publish)


def trusts_any_state(patch: pytest.MonkeyPatch) -> None:
    """A state that outlived its process is taken to be of this log's history."""

    def agree(self: MachineHost, epoch: object) -> bool:
        del epoch
        self._agreed = True
        self._cursor = self.machine.applied.offset
        return True

    patch.setattr(MachineHost, "_agree", agree)
    ignores_the_witness(patch)


def ignores_the_witness(patch: pytest.MonkeyPatch) -> None:
    """A state of another epoch than the log is thrown away like a cache."""
    patch.setattr(MachineHost, "_contradicts", lambda *_: False)


def restores_the_longest_copy(patch: pytest.MonkeyPatch) -> None:
    """The restore compares end offsets and ignores epochs."""
    patch.setattr(SurvivingLog, "last_epoch", 0)


def restores_across_a_fork(patch: pytest.MonkeyPatch) -> None:
    """Copies that differ in committed records are taken for copies of one history."""
    patch.setattr(surviving_logs, "_differ_below", lambda *_: None)


def restores_what_another_copy_disproves(patch: pytest.MonkeyPatch) -> None:
    """The newest copy is chosen although another copy disproves its last records."""
    patch.setattr(surviving_logs, "_uncommitted_from", lambda copy, _: copy.end)


def hides_dropped_records(patch: pytest.MonkeyPatch) -> None:
    """What only another copy has is taken to have never been acknowledged."""
    patch.setattr(OtherCopy, "doubtful", 0)


def takes_a_torn_tail_for_a_fork(patch: pytest.MonkeyPatch) -> None:
    """Records that a copy has lost itself count as its evidence against other copies."""
    patch.setattr(SurvivingLog, "held", property(lambda log: log.committed))


def power_losses() -> None:
    for seed in range(12):
        test_download.test_a_power_loss_during_a_checkpoint_download_leaves_a_complete_or_a_resumable_file(
            seed
        )


def another_history() -> None:
    test_host.test_the_state_machine_host_reports_a_stored_state_with_another_last_epoch_as_a_fork(
        41, snapshot=False
    )


STORIES: list[tuple[Patch, Callable[[], None]]] = [
    (
        drops_under_its_reader,
        test_shelf.test_the_checkpoint_store_does_not_drop_a_checkpoint_that_is_being_read,
    ),
    (
        installs_before_verifying,
        test_download.test_a_download_detects_a_checkpoint_joined_from_two_leaders_files_and_fetches_it_again,
    ),
    (
        loads_what_it_is_announced,
        test_host.test_the_state_machine_host_never_loads_a_checkpoint_older_than_its_state,
    ),
    (
        freezes_at_any_time,
        test_host.test_the_state_machine_host_freezes_no_state_inside_an_open_metadata_transaction,
    ),
    (
        restores_the_longest_copy,
        test_surviving_logs.test_a_newer_epoch_wins_over_a_longer_log_that_no_copy_disproves,
    ),
    (
        restores_across_a_fork,
        test_surviving_logs.test_copies_that_knew_different_records_as_committed_prove_a_fork,
    ),
    (
        restores_what_another_copy_disproves,
        test_surviving_logs.test_a_copy_is_left_out_where_an_older_one_knew_other_records_as_committed,
    ),
    (
        hides_dropped_records,
        test_surviving_logs.test_dropped_records_that_no_copy_disproves_may_have_been_acknowledged,
    ),
    (
        takes_a_torn_tail_for_a_fork,
        test_surviving_logs.test_a_torn_copy_proves_a_fork_only_by_records_that_it_still_has,
    ),
    (thaws_at_once, test_host.test_a_checkpoint_holds_the_state_at_the_time_of_its_freeze),
    (forgets_the_order, test_host.test_a_checkpoint_holds_the_state_at_the_time_of_its_freeze),
    (
        counts_from_publication,
        test_host.test_records_that_change_during_a_checkpoint_count_towards_the_next_checkpoint,
    ),
    (renames_before_the_flush, power_losses),
    (trusts_any_state, another_history),
    (ignores_the_witness, another_history),
]


@pytest.mark.parametrize(
    ("mutant", "story"), STORIES, ids=[mutant.__name__ for mutant, _ in STORIES]
)
def test_each_snapshot_mutant_fails_its_test(mutant: Patch, story: Callable[[], None]) -> None:
    story()
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        patch.delenv("CI", raising=False)  # there pytest takes a minute to explain this to nobody
        with pytest.raises((AssertionError, pytest.fail.Exception, RuntimeError)):
            story()
