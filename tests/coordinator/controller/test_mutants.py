"""Deliberate mistakes in the controller, each with the test that catches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coordinator.controller import leader
from coordinator.controller.handover import _CoordinatorOutbox
from coordinator.controller.leader import Controller, PendingImage
from coordinator.controller.requests import Requests
from coordinator.controller.sessions import BrokerSessions
from raft.interfaces import Draft, draft_values
from records.schema import MetadataRecord
from records.types import Epoch
from tests.coordinator.controller import test_brokers, test_chunks, test_handover, test_leader
from tests.coordinator.controller.coordinators import OneCoordinator

Claim = Callable[[], None]


def deleted_topic_without_tombstone(patch: pytest.MonkeyPatch) -> None:
    """A coordinator forgets a deleted topic at once, so a late Init creates it again."""
    init: Any = OneCoordinator.__init__

    def forgetful(self: OneCoordinator, *, keeps_tombstones: bool = True) -> None:
        init(self, keeps_tombstones=not keeps_tombstones)

    patch.setattr(OneCoordinator, "__init__", forgetful)


def calls_without_epochs(patch: pytest.MonkeyPatch) -> None:
    """Calls carry no controller epoch, so a former controller's calls still count."""
    init: Any = _CoordinatorOutbox.__init__

    def anonymous(self: _CoordinatorOutbox, owner: Any, coordinator: int, epoch: Epoch) -> None:  # noqa: ARG001
        init(self, owner, coordinator, Epoch(0))

    patch.setattr(_CoordinatorOutbox, "__init__", anonymous)


def fence_everyone_after_an_election(patch: pytest.MonkeyPatch) -> None:
    """A broker without a heartbeat at this leader counts as silent."""

    def known(self: BrokerSessions, broker_id: int, broker_epoch: int, *, fenced: bool) -> bool:  # noqa: ARG001
        session = self.get(broker_id, broker_epoch)
        return session is not None and self._now_ms < session.last_heartbeat_ms + self.timeout_ms

    patch.setattr(BrokerSessions, "is_alive", known)


def await_the_session_of_a_closed_connection(patch: pytest.MonkeyPatch) -> None:
    """A broker whose connection was closed keeps its whole session."""
    patch.setattr(BrokerSessions, "note_connection", lambda *_: None)


def fence_at_the_first_closed_connection(patch: pytest.MonkeyPatch) -> None:
    """A broker has one second to reconnect, however rarely it sends heartbeats."""
    patch.setattr("coordinator.controller.sessions.MISSED_HEARTBEATS", 0)


def fence_everyone_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    """The leader does not notice that it was paused itself."""

    def see(self: BrokerSessions, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)

    patch.setattr(BrokerSessions, "update_clock", see)


def chunk_from_a_stale_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """The high watermark is read without the barrier."""
    patch.setattr(test_chunks.OneReader, "call", test_chunks.OneReader.without_barrier)


def chunk_over_two_batches(patch: pytest.MonkeyPatch) -> None:
    """Every record is written in a batch of its own."""

    def apart(values: Sequence[Sequence[bytes]], now_ms: int) -> Draft:
        drafts = [draft_values([v], timestamp_ms=now_ms) for decided in values for v in decided]
        return Draft([d.parts[0] for d in drafts], [1] * len(drafts))

    patch.setattr(leader, "make_draft", apart)


def settings_before_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    """Proposed records are visible before they are committed."""
    apply = PendingImage.apply

    def hasty(self: PendingImage, offset: int, record: MetadataRecord) -> None:
        apply(self, offset, record)
        self._machine.image = self.image

    patch.setattr(PendingImage, "apply", hasty)


def answers_before_the_coordinator_has_it(patch: pytest.MonkeyPatch) -> None:
    """CreateTopics is answered as soon as the controller's own log has the topic."""

    def at_once(self: Requests, made: Any, timeout_ms: int, finish: Any) -> None:  # noqa: ARG001
        finish({})

    patch.setattr(Requests, "_hand_over", at_once)


def no_reconciliation(patch: pytest.MonkeyPatch) -> None:
    """A new controller does not reconcile the coordinators."""

    def trusting(self: _CoordinatorOutbox) -> None:
        self._is_reconciled = True
        self.send_next()

    patch.setattr(_CoordinatorOutbox, "_reconcile", trusting)


def reconciliation_before_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """Coordinators do not keep the epoch of a call that changes nothing."""
    patch.setattr(OneCoordinator, "release", lambda *_: frozenset())


def heartbeats_that_wait_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat ignores pending records of its own broker."""
    patch.setattr(
        PendingImage, "broker", lambda self, broker_id: self._machine.image.brokers.get(broker_id)
    )


def heartbeats_that_wait_for_everything(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat waits for the commit of all pending records."""
    patch.setattr(Controller, "settled_context", lambda *_: None)


def _with(claim: Callable[..., None], world: Callable[[], Any]) -> Claim:
    return lambda: claim(world())


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Claim]] = {
    "partition restored by a late Init": (
        deleted_topic_without_tombstone,
        _with(
            test_handover.test_a_late_init_topics_call_for_a_deleted_topic_creates_no_partition,
            test_handover.with_brokers,
        ),
    ),
    "partition restored by a former controller's Init": (
        calls_without_epochs,
        _with(
            test_handover.test_a_coordinator_refuses_a_late_init_topics_call_of_a_former_controller,
            test_handover.with_brokers,
        ),
    ),
    "fence everyone after an election": (
        fence_everyone_after_an_election,
        _with(
            test_brokers.test_a_new_controller_fences_no_broker_before_a_full_session_has_passed,
            lambda: test_brokers.World().elect(),
        ),
    ),
    "a closed connection does not shorten a session": (
        await_the_session_of_a_closed_connection,
        _with(
            test_brokers.test_the_controller_fences_a_killed_broker_two_heartbeats_after_its_connection_closes,
            lambda: test_brokers.World().elect(),
        ),
    ),
    "fence at the first closed connection": (
        fence_at_the_first_closed_connection,
        _with(
            test_brokers.test_the_controller_fences_no_broker_that_reconnects_within_two_heartbeat_intervals,
            lambda: test_brokers.World().elect(),
        ),
    ),
    "fence everyone after a pause": (
        fence_everyone_after_a_pause,
        _with(
            test_brokers.test_a_controller_that_was_paused_fences_no_broker_when_it_resumes,
            lambda: test_brokers.World().elect(),
        ),
    ),
    "chunk created from a stale high watermark": (
        chunk_from_a_stale_high_watermark,
        test_chunks.test_a_chunk_is_created_at_a_high_watermark_read_after_the_read_barrier,
    ),
    "a chunk's records split over two batches": (
        chunk_over_two_batches,
        _with(
            test_chunks.test_all_records_of_a_create_chunks_request_are_in_one_batch,
            test_chunks.with_topic,
        ),
    ),
    "configuration applied before it is committed": (
        settings_before_they_are_committed,
        test_leader.test_the_controller_does_not_describe_a_changed_setting_before_its_record_is_committed,
    ),
    "a topic answered before its coordinator has it": (
        answers_before_the_coordinator_has_it,
        _with(
            test_handover.test_the_controller_answers_create_topics_after_the_coordinator_has_created_the_topic,
            test_handover.with_brokers,
        ),
    ),
    "a new controller reconciles before it announces its epoch": (
        reconciliation_before_the_epoch,
        _with(
            test_handover.test_a_new_controller_announces_its_epoch_to_a_coordinator_before_reconciliation,
            test_handover.with_brokers,
        ),
    ),
    "a heartbeat ahead of its own broker's fencing": (
        heartbeats_that_wait_for_nothing,
        test_leader.test_a_broker_heartbeat_waits_for_uncommitted_records_of_the_same_broker,
    ),
    "a heartbeat behind all pending commits": (
        heartbeats_that_wait_for_everything,
        test_leader.test_a_broker_heartbeat_does_not_wait_for_the_controllers_other_requests,
    ),
    "a new controller does not reconcile": (
        no_reconciliation,
        _with(
            test_handover.test_a_new_controller_makes_each_call_that_a_coordinator_has_missed,
            test_handover.with_brokers,
        ),
    ),
}


@pytest.mark.parametrize("name", MUTANTS, ids=str)
def test_each_controller_mutant_fails_its_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, claim = MUTANTS[name]
    claim()  # holds without the mutation
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        claim()
