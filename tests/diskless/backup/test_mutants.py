"""A backup without one of its rules is found out by the test that is named beside it.

Source: docs/design/backup.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from diskless.backup import cut, shipper
from diskless.backup.bucket import Bucket
from diskless.backup.expiry import Expiry
from diskless.backup.hold import DeletionHold
from diskless.backup.manifest import BackupError
from diskless.backup.shipper import Shipper
from diskless.stores.interface import StorageError
from tests.diskless.backup import test_expiry, test_shipper
from tests.diskless.backup.backup_world import choose_by_image

Patch = Callable[[pytest.MonkeyPatch], None]


def takes_the_ends_of_copies(patch: pytest.MonkeyPatch) -> None:
    """An offset of a group may be ahead of its data."""
    patch.setattr(cut, "ORDER", tuple(reversed(cut.ORDER)))


def overwrites_manifests(patch: pytest.MonkeyPatch) -> None:
    """A paused broker's late manifest replaces a newer one."""
    write = Bucket.write_manifest

    async def forced(self: Bucket, manifest: Any) -> None:
        await self._store.delete([self.manifest_key(manifest.number)])
        await write(self, manifest)

    patch.setattr(Bucket, "write_manifest", forced)


def writes_the_manifest_first(patch: pytest.MonkeyPatch) -> None:
    """A broker that is killed leaves a manifest whose data is not there."""
    write = Shipper._write_logs

    async def lost(self: Shipper, previous: Any, number: int, ends: Any) -> Any:
        logs = await write(self, previous, number, ends)
        bucket = self._bucket
        late = [
            bucket.data_key(name)
            for name in await bucket.list_data()
            if name.startswith(f"{number:020d}")
        ]
        await bucket._store.delete(late)
        return logs

    patch.setattr(Shipper, "_write_logs", lost)


def writes_quiet_records(patch: pytest.MonkeyPatch) -> None:
    """An idle cluster costs PUTs for ever."""
    patch.setattr(shipper, "is_quiet", lambda _: False)


def believes_every_store(patch: pytest.MonkeyPatch) -> None:
    """Two brokers spoil each other's backups."""

    async def has(*_: Any) -> bool:
        return True

    patch.setattr(shipper, "has_conditional_writes", has)


def ships_without_proof(patch: pytest.MonkeyPatch) -> None:
    """A cluster that was restored elsewhere goes on writing."""
    real = Shipper.__init__

    def living(self: Shipper, *words: Any, **options: Any) -> None:
        real(self, *words, **options | {"is_living": lambda: True})

    patch.setattr(Shipper, "__init__", living)


def compares_nothing(patch: pytest.MonkeyPatch) -> None:
    """The backup of records that the quorum has lost is replaced by the logs without them."""
    patch.setattr(shipper, "_contradiction", lambda *_: None)


def compares_no_epochs(patch: pytest.MonkeyPatch) -> None:
    """As long a log of another history is taken for the same one."""
    real = shipper._contradiction

    class Blind:
        def __init__(self, log: Any) -> None:
            self.name = log.name

        def epoch_before(self, _: int) -> None:
            return None

    patch.setattr(shipper, "_contradiction", lambda log, *words: real(Blind(log), *words))


def tells_no_leader(patch: pytest.MonkeyPatch) -> None:
    """The leader of a log that lost records goes on."""

    async def report(_: Shipper) -> None:
        """Send nothing."""

    patch.setattr(Shipper, "_report", report)


def begins_no_log_anew(patch: pytest.MonkeyPatch) -> None:
    """Manifests grow for ever."""
    patch.setattr(shipper, "_begins_anew", lambda log, known: known.end < log.start_offset)


def expires_all_but_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Expiry, "oldest", lambda self: self._listed[-1] if self._listed else None)


def expires_nothing_in_an_idle_cluster(patch: pytest.MonkeyPatch) -> None:
    """Objects that were deleted last stay in the store for ever."""
    patch.setattr(Expiry, "is_newest_only", lambda _: False)


def sweeps_data_that_a_kept_cut_names(patch: pytest.MonkeyPatch) -> None:
    real = Bucket.sweep

    async def sweep(self: Bucket, oldest: Any) -> int:
        newest = (await self.list_manifests())[-1]
        return await real(self, await self.read_manifest(newest)) + oldest.number

    patch.setattr(Bucket, "sweep", sweep)


def trusts_the_times_of_marks(patch: pytest.MonkeyPatch) -> None:
    """A new leader's clock is behind, so its mark looks older than the oldest cut."""

    def is_held(self: DeletionHold, coordinator: int, object_id: int) -> bool:
        times = {one: at for at, one in self._replica(coordinator).marked_objects(0, 1 << 40)}
        seen = self._seen[coordinator]
        released: Any = self._backup
        before = [times[one] for one, below in seen.items() if below <= released.below]
        return object_id not in times or not before or times[object_id] > max(before)

    patch.setattr(DeletionHold, "is_held", is_held)


def releases_objects_that_were_not_noted(patch: pytest.MonkeyPatch) -> None:
    real = DeletionHold.is_held

    def is_held(self: DeletionHold, coordinator: int, object_id: int) -> bool:
        return object_id in self._seen[coordinator] and real(self, coordinator, object_id)

    patch.setattr(DeletionHold, "is_held", is_held)


CASES: Final[dict[Patch, Callable[..., None]]] = {
    takes_the_ends_of_copies: (
        test_shipper.test_the_ends_of_a_cut_are_taken_from_the_groups_to_the_cluster
    ),
    overwrites_manifests: (
        test_shipper.test_a_paused_broker_cannot_write_on_top_of_an_old_manifest
    ),
    writes_the_manifest_first: (
        test_shipper.test_a_cut_has_the_bytes_of_all_logs_and_later_cuts_add_only_what_is_new
    ),
    writes_quiet_records: (
        test_shipper.test_an_idle_cluster_writes_nothing_and_its_backup_does_not_age
    ),
    believes_every_store: (
        test_shipper.test_a_store_that_overwrites_objects_gets_no_backup_and_a_sentence
    ),
    ships_without_proof: (
        test_shipper.test_nothing_is_shipped_without_a_proof_that_the_cluster_is_the_living_one
    ),
    compares_nothing: (
        lambda: test_shipper.test_a_log_that_has_lost_backed_up_records_is_a_contradiction(101)
    ),
    compares_no_epochs: (
        test_shipper.test_another_epoch_before_the_end_of_the_backup_is_a_contradiction
    ),
    tells_no_leader: (
        test_shipper.test_the_leader_of_a_log_that_lost_records_is_told_every_five_seconds
    ),
    expires_all_but_the_newest: (
        test_expiry.test_every_cut_is_kept_for_the_retention_after_a_newer_one_and_is_whole_until_then
    ),
    expires_nothing_in_an_idle_cluster: (
        test_expiry.test_an_idle_cluster_lets_its_older_cuts_go_by_one_more_manifest
    ),
    sweeps_data_that_a_kept_cut_names: (
        test_expiry.test_every_cut_is_kept_for_the_retention_after_a_newer_one_and_is_whole_until_then
    ),
    trusts_the_times_of_marks: (
        test_expiry.test_a_mark_with_an_earlier_time_than_older_marks_is_held_all_the_same
    ),
    releases_objects_that_were_not_noted: (
        test_expiry.test_an_object_is_held_until_the_oldest_cut_has_the_record_that_marked_it
    ),
}


@pytest.mark.parametrize("patch", CASES, ids=lambda patch: patch.__name__)
def test_a_backup_without_one_of_its_rules_is_caught(
    patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_by_image(monkeypatch)
    patch(monkeypatch)
    with pytest.raises((AssertionError, BackupError, StorageError)):
        CASES[patch]()


def test_a_log_that_never_begins_anew_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_by_image(monkeypatch)
    begins_no_log_anew(monkeypatch)
    with pytest.raises(AssertionError):
        test_shipper.test_a_manifest_has_a_bounded_number_of_ranges(monkeypatch)
