"""Deliberate mistakes with the offsets of transactions, each with the test that catches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.groups import (
    checkpoint,
    decide,
    decide_transactions,
    leader,
    offsets,
    reads,
    service,
)
from coordinator.groups.group import ClassicGroup
from coordinator.groups.outbox import GroupOutbox
from coordinator.groups.pending import PendingOffsets, _Edit
from coordinator.groups.state import GroupsEdit
from records.kafka_errors import ErrorCode
from records.rpc.group_log import RemoveGroupRequest
from tests.coordinator.groups import test_transactional_commits as commits
from tests.coordinator.groups import test_transactional_offsets as rules

Patch = pytest.MonkeyPatch


def pending_offsets_are_visible(patch: Patch) -> None:
    """A pending offset is a committed one at once."""
    apply = GroupsEdit._apply_pending

    def hasty(self: GroupsEdit, record: Any) -> None:
        apply(self, record)
        group = self._groups.get(record.group_id)
        assert group is not None
        offsets = group.offsets.edit()
        for place, waiting in group.pending.by_partition.items():
            offsets.set(place, waiting[-1].committed)
        self._groups.set(record.group_id, group._replace(offsets=offsets.freeze()))

    patch.setattr(GroupsEdit, "_apply_pending", hasty)


def the_later_marker_wins(patch: Patch) -> None:
    """A commit marker brings back pending offsets of records before a plain commit."""
    patch.setattr(GroupsEdit, "_supersede", lambda _self, _group_id, group, _places: group)


def a_later_marker_brings_back_an_earlier_record(patch: Patch) -> None:
    """A committed transaction leaves the pending offsets of earlier records."""
    end: Any = PendingOffsets.end

    def lenient(self: PendingOffsets, key: Any, *, is_committed: bool) -> Any:
        _, _, counting = end(self, key, is_committed=is_committed)
        edit = _Edit(self)
        for place in self.transactions.get(key, ()):
            edit.replace(place, tuple(p for p in edit.at(place) if p.transaction != key))
        return *edit.publish(), counting if is_committed else []

    patch.setattr(PendingOffsets, "end", lenient)


def the_number_is_ignored(patch: Patch) -> None:
    """A commit is accepted whatever its transaction's number."""
    patch.setattr(decide_transactions, "_refuse_number", lambda *_: ErrorCode.NONE)


def an_ended_number_is_accepted_again(patch: Patch) -> None:
    """A commit is refused only under another number than the open one."""

    def lenient(commit: Any, image: Any) -> ErrorCode:
        producer = image.producers.get(commit.producer_id)
        others = () if producer is None else producer.open
        is_other = any(number != commit.transaction_number for number in others)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_other else ErrorCode.NONE

    patch.setattr(decide_transactions, "_refuse_number", lenient)


def another_open_number_is_accepted(patch: Patch) -> None:
    """A commit is refused only at or below the ended number."""

    def lenient(commit: Any, image: Any) -> ErrorCode:
        producer = image.producers.get(commit.producer_id)
        has_ended = producer is not None and commit.transaction_number <= producer.ended_number
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if has_ended else ErrorCode.NONE

    patch.setattr(decide_transactions, "_refuse_number", lenient)


def a_repeated_marker_is_another_one(patch: Patch) -> None:
    """The end of a transaction leaves its offsets pending, for a later marker to end again."""
    end: Any = PendingOffsets.end

    def forgetful(self: PendingOffsets, key: Any, *, is_committed: bool) -> Any:
        _, _, counting = end(self, key, is_committed=is_committed)
        return self, set(), counting

    patch.setattr(PendingOffsets, "end", forgetful)


def deleted_offsets_stay_pending(patch: Patch) -> None:
    """OffsetDelete leaves the pending offset of its partition to the marker."""
    apply = GroupsEdit._apply_offsets_removed

    def partial(self: GroupsEdit, record: Any) -> None:
        with pytest.MonkeyPatch.context() as only_here:
            only_here.setattr(GroupsEdit, "_supersede", lambda _self, _id, group, _places: group)
            apply(self, record)

    patch.setattr(GroupsEdit, "_apply_offsets_removed", partial)


def a_marker_ends_every_number(patch: Patch) -> None:
    """A marker ends all open transactions of its producer id."""
    apply = GroupsEdit._apply_markers

    def careless(self: GroupsEdit, record: Any) -> None:
        for producer_id, committed in zip(record.producer_ids, record.committed, strict=True):
            producer = self._producers.get(producer_id)
            for number in () if producer is None else tuple(producer.open):
                given = type(record)(
                    producer_ids=(producer_id,), transaction_numbers=(number,),
                    committed=(committed,), ended_at_ms=record.ended_at_ms,
                )  # fmt: skip
                apply(self, given)
        apply(self, record)

    patch.setattr(GroupsEdit, "_apply_markers", careless)


def ended_numbers_need_pending_offsets(patch: Patch) -> None:
    """A marker of a producer id without pending offsets raises no ended number."""
    patch.setattr(
        decide_transactions,
        "_ends_anything",
        lambda producer_id, number, image: (
            producer_id in image.producers and number in image.producers[producer_id].open
        ),
    )


def checkpoints_forget_pending_offsets(patch: Patch) -> None:
    """A node that loads a checkpoint has no pending offsets."""

    values = checkpoint.group_values

    def without(group_id: str, group: Any) -> Any:
        return values(group_id, group._replace(pending=PendingOffsets()))

    patch.setattr(checkpoint, "group_values", without)


def open_producers_expire(patch: Patch) -> None:
    """A producer id is forgotten although it has pending offsets."""
    expired = decide_transactions.is_producer_expired

    def careless(producer: Any, context: Any) -> bool:
        return expired(producer._replace(open={}), context)

    patch.setattr(decide_transactions, "is_producer_expired", careless)


def groups_with_pending_offsets_are_removed(patch: Patch) -> None:
    """A group is removed although it has pending offsets."""
    remove, expire = decide.decide_remove, decide._expire_group

    def blind(group: Any) -> Any:
        return group._replace(pending=PendingOffsets())

    def careless(request: Any, context: Any) -> Any:
        groups = context.image.groups
        if request.group_id in groups:
            groups = groups.set(request.group_id, blind(groups[request.group_id]))
        return remove(request, replace(context, image=context.image._replace(groups=groups)))

    patch.setitem(leader._DECISIONS, RemoveGroupRequest, careless)
    patch.setattr(decide, "_expire_group", lambda n, group, *more: expire(n, blind(group), *more))


def members_only(patch: Patch) -> None:
    """A producer that names no member is refused in a group with members."""
    patch.setattr(decide_transactions, "refuse_transactional_commit", decide.refuse_commit)


def stability_is_not_asked_for(patch: Patch) -> None:
    """The log answers a committed offset although a pending one may replace it."""
    topics: Any = service._topics

    def blind(request: Any, group: Any) -> Any:
        return topics(request, group._replace(pending=PendingOffsets()))

    patch.setattr(service, "_topics", blind)


def a_commit_in_doubt_is_sent_again(patch: Patch) -> None:
    """A transactional commit whose answer is lost is sent again, as plain commits are."""
    patch.setattr(GroupOutbox, "_is_sent_once", staticmethod(lambda _entry: False))


def closed_connections_are_not_noticed(patch: Patch) -> None:
    """A commit of a client that has closed its connection is sent all the same."""
    patch.setattr(GroupOutbox, "_drop_disconnected", lambda _self: None)


def rebalances_end_producers(patch: Patch) -> None:
    """A transactional commit during a rebalance gets REBALANCE_IN_PROGRESS."""
    patch.setattr(ClassicGroup, "refuse_transactional_commit", ClassicGroup.refuse_commit)


def a_broker_forgets_require_stable(patch: Patch) -> None:
    """A broker does not pass `require_stable` on to the group log."""
    fetch = offsets.fetch_request

    def careless(group: Any) -> Any:
        return fetch(group._replace(require_stable=False))

    patch.setattr(reads, "fetch_request", careless)


MUTANTS: dict[str, tuple[Callable[[Patch], None], Callable[[], object]]] = {
    "pending offsets are visible": (
        pending_offsets_are_visible,
        rules.test_an_offset_fetch_returns_no_pending_offset_before_the_transaction_marker,
    ),
    "the later marker wins against a plain commit": (
        the_later_marker_wins,
        rules.test_a_plain_offset_commit_after_a_pending_offset_survives_the_commit_marker,
    ),
    "the later marker wins, in a random schedule": (
        the_later_marker_wins,
        lambda: rules.run_schedule(0),
    ),
    "the later marker wins against a later record": (
        a_later_marker_brings_back_an_earlier_record,
        rules.test_the_offset_of_the_later_pending_record_counts_in_any_order_of_the_markers,
    ),
    "the number is ignored": (
        the_number_is_ignored,
        rules.test_the_group_log_refuses_a_commit_of_an_ended_transaction_with_a_retriable_code,
    ),
    "the number is ignored, in a random schedule": (
        the_number_is_ignored,
        lambda: rules.run_schedule(0),
    ),
    "an ended number is accepted again": (
        an_ended_number_is_accepted_again,
        rules.test_the_group_log_refuses_a_commit_of_an_ended_transaction_with_a_retriable_code,
    ),
    "another open number is accepted": (
        another_open_number_is_accepted,
        rules.test_the_group_log_refuses_a_commit_of_a_transaction_other_than_the_open_transaction,
    ),
    "a repeated marker is another one": (
        a_repeated_marker_is_another_one,
        rules.test_a_repeated_marker_does_not_change_the_outcome_of_its_transaction,
    ),
    "a deleted offset stays pending": (
        deleted_offsets_stay_pending,
        commits.test_deleting_an_offset_drops_its_pending_offsets_too,
    ),
    "a marker ends every number": (
        a_marker_ends_every_number,
        rules.test_a_marker_ends_only_the_transaction_with_its_number,
    ),
    "a marker without pending offsets is forgotten": (
        ended_numbers_need_pending_offsets,
        rules.test_the_group_log_refuses_a_commit_of_an_ended_transaction_with_a_retriable_code,
    ),
    "a checkpoint forgets pending offsets": (
        checkpoints_forget_pending_offsets,
        rules.test_pending_offsets_survive_a_checkpoint_in_the_order_of_their_records,
    ),
    "a producer id with pending offsets expires": (
        open_producers_expire,
        rules.test_numbers_of_ended_transactions_expire_only_while_their_producer_has_none_open,
    ),
    "a group with pending offsets is removed": (
        groups_with_pending_offsets_are_removed,
        rules.test_the_group_log_removes_no_group_with_pending_offsets_before_their_marker,
    ),
    "a producer without a member is refused": (
        members_only,
        rules.test_the_group_log_accepts_a_transactional_commit_without_a_member_in_a_nonempty_group,
    ),
    "a commit in doubt is sent again": (
        a_commit_in_doubt_is_sent_again,
        commits.test_a_broker_does_not_repeat_a_transactional_commit_whose_response_was_lost,
    ),
    "a closed connection is not noticed": (
        closed_connections_are_not_noticed,
        commits.test_a_broker_drops_a_queued_transactional_commit_if_its_connection_closes,
    ),
    "a rebalance ends a producer": (
        rebalances_end_producers,
        commits.test_a_transactional_commit_before_the_assignment_gets_illegal_generation,
    ),
    "a broker forgets require_stable": (
        a_broker_forgets_require_stable,
        lambda: (
            commits.test_an_offset_fetch_that_requires_stable_offsets_fails_until_the_transaction_marker(
                9
            )
        ),
    ),
    "require_stable is ignored": (
        stability_is_not_asked_for,
        rules.test_an_offset_fetch_returns_no_pending_offset_before_the_transaction_marker,
    ),
}


@pytest.mark.parametrize("name", MUTANTS, ids=str)
def test_each_transactional_offset_mutant_fails_its_test(name: str, monkeypatch: Patch) -> None:
    mutate, claim = MUTANTS[name]
    claim()  # holds without the mutation
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        claim()
