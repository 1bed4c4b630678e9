"""Deliberate mistakes in the group code, each with the test that catches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from coordinator.groups import decide, leader, reads, service
from coordinator.groups.group import ClassicGroup
from coordinator.groups.membership import Membership
from coordinator.groups.outbox import GroupOutbox
from coordinator.groups.rebalance import Rebalance
from coordinator.groups.state import GroupsEdit
from records.groups import GroupOwnerRecord
from records.kafka_errors import ErrorCode
from records.rpc.group_log import AcquireGroupOwnershipResponse, RemoveGroupRequest
from tests.coordinator.groups import (
    test_deleting,
    test_joining,
    test_log,
    test_moves,
    test_old_images,
)
from tests.coordinator.groups import test_member_requests as test_member_requests
from tests.coordinator.groups.test_stateful import run_schedule

Patch = pytest.MonkeyPatch


def former_owners_commit(patch: Patch) -> None:
    """The log ignores the ownership epoch."""
    owned = decide.check_owner

    def careless(context: Any, group_id: str, epoch: int, sequence: int) -> Any:
        group = context.image.groups.get(group_id)
        return owned(context, group_id, epoch if group is None else group.ownership_epoch, sequence)

    patch.setattr(decide, "check_owner", careless)


def late_copies_count(patch: Patch) -> None:
    """The log ignores the sequence number of a commit."""
    owned = decide.check_owner

    def careless(context: Any, group_id: str, epoch: int, _: int) -> Any:
        group, code, message = owned(context, group_id, epoch, 1 << 60)
        return group and group._replace(sequence=0), code, message

    patch.setattr(decide, "check_owner", careless)


def numbers_are_forgotten_by_checkpoints(patch: Patch) -> None:
    """A checkpoint loses the owner's last sequence number."""
    own = GroupsEdit._apply_owner

    def forgetful(self: GroupsEdit, record: GroupOwnerRecord) -> None:
        own(self, record)
        group = self._groups.get(record.group_id)
        assert group is not None
        self._groups.set(record.group_id, group._replace(sequence=0))

    patch.setattr(GroupsEdit, "_apply_owner", forgetful)


def told_before_it_is_stored(patch: Patch) -> None:
    """Members receive their assignment before the log has committed it."""

    def hasty(self: Rebalance, assignments: dict[str, bytes]) -> None:
        records = self.membership.to_records(self.protocol_name, assignments)
        self.outbox.commit_generation(self.generation_request(records), lambda _: None)
        self._assigned(self.generation, assignments, ErrorCode.NONE)

    patch.setattr(Rebalance, "assign", hasty)


def acknowledged_before_it_is_committed(patch: Patch) -> None:
    """A commit is acknowledged when it is sent."""
    commit = GroupOutbox.commit_offsets

    def hasty(self: GroupOutbox, request: Any, on_done: Any) -> None:
        on_done(ErrorCode.NONE)
        commit(self, request, lambda _: None)

    patch.setattr(GroupOutbox, "commit_offsets", hasty)


def lost_answers_are_yes(patch: Patch) -> None:
    """An unknown outcome counts as success."""
    on_response = GroupOutbox.on_response

    def hopeful(self: GroupOutbox, response: Any) -> None:
        unknown = response is None or response.error_code in (6, 15)
        if unknown and self._request is not None:
            errors = tuple(0 for _ in self._in_flight)
            response = type("Yes", (), {"error_code": 0, "commit_errors": errors})()
        on_response(self, response)

    patch.setattr(GroupOutbox, "on_response", hopeful)


def nothing_is_loaded(patch: Patch) -> None:
    """A new owner starts with an empty group."""
    init: Any = ClassicGroup.__init__

    def blank(self: Any, group_id: str, env: Any, loaded: AcquireGroupOwnershipResponse) -> None:
        epoch = loaded.ownership_epoch
        init(self, group_id, env, AcquireGroupOwnershipResponse(ownership_epoch=epoch))

    patch.setattr(ClassicGroup, "__init__", blank)


def any_generation_commits(patch: Patch) -> None:
    """Neither the broker nor the log checks a commit's generation."""

    def lenient(self: ClassicGroup, *_: Any) -> ErrorCode:  # noqa: ARG001
        return ErrorCode.NONE

    patch.setattr(ClassicGroup, "refuse_commit", lenient)
    patch.setattr(decide, "refuse_commit", lambda *_: ErrorCode.NONE)


def former_static_members_go_on(patch: Patch) -> None:
    """The instance id is not checked."""
    check = ClassicGroup._check_member
    rename = Membership.rename

    def lenient(self: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None and instance_id in self.membership.static:
            return check(self, self.membership.static[instance_id], instance_id)
        return check(self, member_id, None)

    patch.setattr(ClassicGroup, "_check_member", lenient)
    patch.setattr(Membership, "rename", rename)


def offsets_expire_under_members(patch: Patch) -> None:
    """Offsets expire while the group has members."""
    expire_groups = decide._expire_group

    def careless(group_id: str, group: Any, deleted: Any, context: Any) -> Any:
        return expire_groups(group_id, group._replace(member_ids=frozenset()), deleted, context)

    patch.setattr(decide, "_expire_group", careless)


def expired_at_once(patch: Patch) -> None:
    """Offsets expire by their commit time, even if the group has just become empty."""
    expires: Any = decide._expires_at
    patch.setattr(
        decide, "_expires_at", lambda committed, _, context: expires(committed, 0, context)
    )


def reads_without_a_barrier(patch: Patch) -> None:
    """A node answers reads from its own state without the barrier."""

    async def none(groups: Any) -> None: ...

    patch.setattr(service, "_barrier", none)


def epochs_are_used_again(patch: Patch) -> None:
    """The next ownership epoch is one above the highest that still exists."""

    def own(self: GroupsEdit, record: Any) -> None:
        applied(self, record)
        if type(record).__name__ == "GroupRemovedRecord":
            self._next_ownership_epoch = 1

    applied = GroupsEdit.apply
    patch.setattr(GroupsEdit, "apply", own)


def old_images_are_believed(patch: Patch) -> None:
    """Every image counts as current, however old it is."""
    patch.setattr(reads.Reads, "_is_image_current_since", lambda *_: True)


def any_copy_removes_a_group(patch: Patch) -> None:
    """The log ignores the ownership of a removal."""
    remove = decide.decide_remove

    def careless(request: Any, context: Any) -> Any:
        return remove(RemoveGroupRequest(group_id=request.group_id), context)

    patch.setitem(leader._DECISIONS, RemoveGroupRequest, careless)


def a_late_copy_after_a_checkpoint() -> None:
    """A late copy of a commit does not restore an offset that was removed with its topic."""
    log = test_log.Log()
    owner, topic_id = log.acquire().ownership_epoch, UUID(int=7)
    assert log.offsets(owner, 1, 5, topic_id=topic_id) == 0
    log.groups.topic_deleted(topic_id)
    assert log.expire_groups() == 1
    log.take_checkpoint()
    log.restart_log()
    assert log.offsets(owner, 1, 5, topic_id=topic_id) == 0, "the same commit, the same answer"
    assert log.stored is None


MUTANTS: dict[str, tuple[Callable[[Patch], None], Callable[[], object]]] = {
    "a former owner commits": (
        former_owners_commit,
        test_moves.test_of_two_brokers_that_claim_a_group_only_the_later_owner_can_commit_offsets,
    ),
    "a former owner commits, in a random schedule": (
        former_owners_commit,
        lambda: run_schedule(28),
    ),
    "a late copy undoes a commit": (
        late_copies_count,
        test_moves.test_the_group_log_ignores_a_copy_of_an_offset_commit_that_arrives_after_a_newer_commit,
    ),
    "a late copy undoes a commit, in a random schedule": (
        late_copies_count,
        lambda: run_schedule(13),
    ),
    "a checkpoint forgets how far an owner had come": (
        numbers_are_forgotten_by_checkpoints,
        a_late_copy_after_a_checkpoint,
    ),
    "members at work before the log knows": (
        told_before_it_is_stored,
        test_member_requests.test_a_sync_group_response_waits_until_the_log_has_committed_the_assignment,
    ),
    "members at work before the log knows, in a random schedule": (
        told_before_it_is_stored,
        lambda: run_schedule(0),
    ),
    "a commit acknowledged before it is committed": (
        acknowledged_before_it_is_committed,
        lambda: run_schedule(3),
    ),
    "a lost answer taken for a yes": (lost_answers_are_yes, lambda: run_schedule(4)),
    "a new owner loads nothing": (
        nothing_is_loaded,
        test_moves.test_the_failure_of_a_groups_broker_causes_no_rebalance_of_the_group,
    ),
    "any generation commits": (any_generation_commits, lambda: run_schedule(1)),
    "a former static member goes on": (
        former_static_members_go_on,
        test_joining.test_a_static_group_member_that_restarts_causes_no_rebalance,
    ),
    "offsets expire under members": (
        offsets_expire_under_members,
        test_log.test_committed_offsets_expire_only_once_their_group_is_empty,
    ),
    "offsets expire as soon as the group is empty": (
        expired_at_once,
        test_log.test_committed_offsets_expire_only_once_their_group_is_empty,
    ),
    "reads without a barrier": (
        reads_without_a_barrier,
        test_moves.test_the_group_log_answers_reads_and_refusals_only_after_the_read_barrier,
    ),
    "an ownership epoch used twice": (
        epochs_are_used_again,
        test_log.test_the_group_log_does_not_reuse_the_ownership_epoch_of_a_removed_group,
    ),
    "an old image denies an offset": (
        old_images_are_believed,
        lambda: (
            test_old_images.test_an_offset_fetch_at_a_broker_with_old_metadata_returns_the_new_topics_committed_offset(
                9, False
            )
        ),
    ),
    "a late copy removes a group that was made anew": (
        any_copy_removes_a_group,
        test_deleting.test_a_broker_repeats_a_group_deletion_with_a_lost_response_and_the_log_applies_it_once,
    ),
}


@pytest.mark.parametrize("name", MUTANTS, ids=str)
def test_each_group_coordinator_mutant_fails_its_test(name: str, monkeypatch: Patch) -> None:
    mutate, claim = MUTANTS[name]
    claim()  # holds without the mutation
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        claim()
