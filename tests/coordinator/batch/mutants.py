"""Coordinators that are wrong in one way each: what the tests must notice.

A mutant patches the real code, for as long as its `with` block lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from coordinator.batch import applying, decide, steady_clock
from coordinator.batch.cluster_view import StaticView
from coordinator.batch.decide import Context, commit, leases, topics
from coordinator.batch.decide.commit import Refused, _Commit
from coordinator.batch.leader import Leader
from coordinator.batch.memory import InMemoryCoordinator, InMemoryState
from coordinator.batch.pending import PendingState
from coordinator.batch.state import NO_LOG
from coordinator.proposer import Proposer
from records.diskless import LeaseGrantedRecord, ObjectCommitRecord, ProducersExpiredRecord
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    InitDisklessTopicsRequest,
    ReleaseDisklessPartitionsRequest,
)
from records.rpc.objects import AcquireObjectLeaseRequest, IsSafeToDeleteFileRequest
from records.types import Offset
from tests.doubles.intercepted_call import decide_with

MUTANTS: Final[dict[str, Callable[[], Any]]] = {}


def mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Register a mutant under its name."""
    MUTANTS[make.__name__] = contextmanager(make)
    return make


# --- the leader --------------------------------------------------------------------------------


@mutant
def a_duplicate_is_answered_at_once() -> Iterator[None]:
    """An answer without a record is sent from pending state."""
    turn = Proposer._turn

    def hasty(self: Proposer) -> None:
        before = self.proposals
        turn(self)
        if self._in_flight and self.proposals == before:
            self._answer(self._in_flight.pop().answers, None)

    with patch.object(Proposer, "_turn", hasty):
        yield


@mutant
def inherited_state_is_used_too_early() -> Iterator[None]:
    """A leader decides as soon as it leads, whatever it has applied."""

    def lead(self: Proposer, epoch: Any) -> None:
        self._epoch = epoch
        self._end_offset = self._log.end_offset
        self._may_decide = True
        self._schedule()

    with patch.object(Proposer, "lead", lead):
        yield


@mutant
def unaccepted_proposals_are_answered() -> Iterator[None]:
    """The high watermark is taken for proof, even where another leader's record is there."""
    settle = Proposer._settle

    def hasty(self: Proposer) -> None:
        for proposal in self._in_flight:
            proposal.is_accepted = True
        settle(self)

    with patch.object(Proposer, "_settle", hasty):
        yield


@mutant
def refused_requests_are_decided_again_last() -> Iterator[None]:
    """It queues behind later requests: a broker's second object overtakes its first."""
    refused = Proposer._refused

    def late(self: Proposer, *arguments: Any) -> None:
        refused(self, *arguments)
        self._queue.extend(self._again)
        self._again = []

    with patch.object(Proposer, "_refused", late):
        yield


@mutant
def refused_requests_are_decided_again_in_reverse() -> Iterator[None]:
    """Refused requests are decided again in the wrong order."""
    refused = Proposer._refused

    def reversed_(self: Proposer, *arguments: Any) -> None:
        refused(self, *arguments)
        self._again.reverse()

    with patch.object(Proposer, "_refused", reversed_):
        yield


@mutant
def refused_requests_are_forgotten_with_the_leadership() -> Iterator[None]:
    """Only requests that were never decided get an error."""
    step_down = Proposer.step_down

    def forgetful(self: Proposer, epoch: Any) -> None:
        self._again.clear()
        step_down(self, epoch)

    with patch.object(Proposer, "step_down", forgetful):
        yield


@mutant
def two_proposals_are_undetermined() -> Iterator[None]:
    """The next turn does not wait until the log accepts or refuses the last proposal."""
    turn = Proposer._turn

    def eager(self: Proposer) -> None:
        turn(self)
        self._undetermined = None

    with patch.object(Proposer, "_turn", eager):
        yield


@mutant
def a_late_answer_of_another_epoch_is_believed() -> Iterator[None]:
    """A late refusal from an earlier epoch is taken for the present proposal's."""
    refused = Proposer._refused

    def gullible(self: Proposer, _proposal: Any, error: int) -> None:
        if self._undetermined is not None:
            refused(self, self._undetermined, error)

    with patch.object(Proposer, "_refused", gullible):
        yield


@mutant
def an_overlay_keeps_its_counters() -> Iterator[None]:
    """Dropped with what was lost, they would still count it: ids that no log has given."""
    drop = PendingState.drop

    def keeping(self: PendingState) -> None:
        kept = self.counters
        drop(self)
        if kept.next_object_id > self.counters.next_object_id:
            self.counters = kept

    with patch.object(PendingState, "drop", keeping):
        yield


@mutant
def orphans_are_listed_from_pending_state() -> Iterator[None]:
    """The end of a lease counts before it is committed."""

    def look_up(self: Leader, lookup: Any, request: Any) -> Any:
        context = self._context(self._clocks.now_ms())
        return lookup.read(request, self.pending, self._machine.store, context)

    with patch.object(Leader, "look_up", look_up):
        yield


@mutant
def delays_run_on_the_wall_clock() -> Iterator[None]:
    """A leader whose clock is ahead deletes at once."""

    def context(self: InMemoryCoordinator) -> Context:
        now_ms = self._now_ms()
        return Context(now_ms, now_ms, 0, now_ms, self.view, self.settings)

    with patch.object(InMemoryCoordinator, "context", context):
        yield


# --- apply -------------------------------------------------------------------------------------

CLOCK: Final = [0]
"""What a clock says that `apply` must not read."""


@mutant
def a_lease_is_closed_by_the_clock_in_apply() -> Iterator[None]:
    """Old leases end whenever a commit is applied, by whatever time it is there."""

    def apply(tables: Any, record: ObjectCommitRecord) -> None:
        applying._commit(tables, record)
        for lease_id, lease in list(tables.leases.items()):
            if lease.is_open and CLOCK[0] - lease.granted_at_ms > 900_000:
                applying._close(tables, lease_id, CLOCK[0], None)

    with patch.dict(applying._APPLY, {ObjectCommitRecord: apply}):
        yield


@mutant
def answers_are_not_in_the_checkpoint() -> Iterator[None]:
    """A retry after a snapshot was loaded finds nothing."""
    with patch.object(InMemoryState, "all_answers", lambda _: ()):
        yield


@mutant
def six_batches_are_kept() -> Iterator[None]:
    """One more than Kafka remembers."""
    with patch.object(applying, "KEPT_BATCHES", 6), patch.object(commit, "KEPT_BATCHES", 6):
        yield


@mutant
def only_the_last_batch_is_kept() -> Iterator[None]:
    """A client with five requests in flight resends them all."""

    def apply(tables: Any, record: ObjectCommitRecord, log_ids: Sequence[int]) -> None:
        _apply(tables, record, log_ids)
        for key, (epoch, at_ms, kept, row) in list(tables.producers.items()):
            tables.producers[key] = (epoch, at_ms, kept[-1:], row)

    _apply = applying.apply_commit
    with patch.object(applying, "apply_commit", apply):
        yield


# --- decide ------------------------------------------------------------------------------------


@mutant
def a_lower_object_id_is_accepted_after_a_higher() -> Iterator[None]:
    """A commit that was overtaken is accepted."""
    judge = commit._judge_object

    def lenient(request: Any, tables: Any, candidates: Any) -> Any:
        answered = judge(request, tables, candidates)
        lease = tables.leases.get(request.lease_id)
        code = None if answered is None else answered.response.error_code
        if code == ErrorCode.OPERATION_NOT_ATTEMPTED and lease.is_open:
            return None
        return answered

    with patch.object(commit, "_judge_object", lenient):
        yield


@mutant
def an_unknown_producer_is_accepted_at_7() -> Iterator[None]:
    """As Kafka does, where state may have been deleted."""
    with patch.object(_Commit, "_state_can_have_expired", lambda _, __: True):
        yield


@mutant
def an_old_producer_must_begin_at_0() -> Iterator[None]:
    """As Inkless does: expired state breaks live producers."""
    with patch.object(_Commit, "_state_can_have_expired", lambda _, __: False):
        yield


@mutant
def expiry_is_judged_by_the_age_of_producer_ids() -> Iterator[None]:
    """As at level 1: clocks that were wrong for a while end a live producer."""

    def by_age(self: _Commit, producer_id: int) -> bool:
        handed_out_ms = self.context.view.producer_id_handed_out_ms(producer_id)
        lifetime_ms = self.context.settings.producer_expiration_ms
        return handed_out_ms is None or self.context.now_ms - handed_out_ms >= lifetime_ms

    with patch.object(_Commit, "_state_can_have_expired", by_age):
        yield


@mutant
def dismantling_counts_as_expiry() -> Iterator[None]:
    """The producers of a deleted topic count as forgotten by time."""

    def apply(tables: Any, record: ProducersExpiredRecord) -> None:
        applying._producers_expired(tables, record)
        ids = (tables.counters.largest_expired_id, *record.producer_ids)
        tables.counters.largest_expired_id = max(ids)

    with patch.dict(applying._APPLY, {ProducersExpiredRecord: apply}):
        yield


@mutant
def deletion_goes_by_the_wall_clock() -> Iterator[None]:
    """Records are as old as the leader's wall clock says."""
    with patch.object(Context, "deletion_ms", property(lambda self: self.now_ms)):
        yield


@mutant
def deletion_goes_by_steady_time_alone() -> Iterator[None]:
    """A wall clock that is behind is not heeded."""
    with patch.object(Context, "deletion_ms", property(lambda self: self.shared_ms or 0)):
        yield


@mutant
def every_wall_clock_is_believed_at_the_start() -> Iterator[None]:
    """A started process compares its wall clock with nothing."""
    with patch.object(steady_clock, "_start", lambda _, wall_ms, __: wall_ms):
        yield


@mutant
def replayed_stamps_are_noted() -> Iterator[None]:
    """Stamps of a time when the process did not run set its clock."""
    note = Leader._note_stamp

    def gullible(self: Leader) -> None:
        self._stamps_from = Offset(0)
        note(self)

    with patch.object(Leader, "_note_stamp", gullible):
        yield


@mutant
def the_sequence_does_not_wrap() -> Iterator[None]:
    """After the greatest comes one greater still."""
    with patch.object(commit, "MAX_SEQUENCE", 2**40 - 1):
        yield


@mutant
def a_bumped_epoch_is_compared_with_the_old_one() -> Iterator[None]:
    """The checks run against the entries of the epoch before: as Inkless's in-memory plane."""
    judge = _Commit._judge_batch

    def confused(
        self: _Commit, known: Any, proof: Any, producer_id: int, epoch: int, *numbers: int
    ) -> Any:
        if known is not None and epoch > known[0]:
            if numbers[0] == known[2][-1][1] + 1:
                return None
            return judge(self, known, proof, producer_id, known[0], *numbers)
        return judge(self, known, proof, producer_id, epoch, *numbers)

    with patch.object(_Commit, "_judge_batch", confused):
        yield


@mutant
def an_old_producer_epoch_is_let_in() -> Iterator[None]:
    """A batch of an old producer epoch is accepted."""
    judge = _Commit._judge_batch

    def lenient(self: _Commit, *of_batch: Any) -> Any:
        refused = judge(self, *of_batch)
        return None if refused == Refused(47) else refused

    with patch.object(_Commit, "_judge_batch", lenient):
        yield


@mutant
def any_controller_epoch_is_kept() -> Iterator[None]:
    """A controller's call is decided without a look at the cluster log."""

    def lenient(request: Any, tables: Any, _: Any, context: Context) -> Any:
        return topics.decide_init_topics(request, tables, context)

    with decide_with(InitDisklessTopicsRequest, lenient):
        yield


@mutant
def any_broker_epoch_gets_a_lease() -> Iterator[None]:
    """A lease is granted without a look at the cluster log."""

    def lenient(request: Any, tables: Any, _: Any, context: Context) -> Any:
        return leases.decide_acquire(request, tables, context._replace(view=StaticView()))

    with decide_with(AcquireObjectLeaseRequest, lenient):
        yield


@mutant
def a_stale_broker_epoch_commits() -> Iterator[None]:
    """A newer epoch's lease leaves the older ones open."""
    granted = applying._granted

    def lenient(tables: Any, record: LeaseGrantedRecord) -> None:
        fields = {name: getattr(record, name) for name in record.__struct_fields__}  # type: ignore[attr-defined]
        granted(tables, LeaseGrantedRecord(**{**fields, "closed_lease_ids": ()}))

    with patch.dict(applying._APPLY, {LeaseGrantedRecord: lenient}):
        yield


@mutant
def safe_to_delete_is_no_fence() -> Iterator[None]:
    """The answer is right until the late commit arrives."""
    judge = decide.decide_safe_to_delete

    def unfenced(*arguments: Any) -> Any:
        return judge(*arguments)._replace(records=())

    with decide_with(IsSafeToDeleteFileRequest, unfenced):
        yield


# --- partitions that are let go ----------------------------------------------------------------


@mutant
def a_partition_with_data_is_released() -> Iterator[None]:
    """The high watermark is ignored."""
    decided = decide.decide_release_partitions

    def blind(request: Any, tables: Any, _: Any, context: Context) -> Any:
        seen = SimpleNamespace(topics=tables.topics, logs={}, counters=tables.counters)
        return decided(request, seen, context)

    with decide_with(ReleaseDisklessPartitionsRequest, blind):
        yield


@mutant
def a_late_init_restores_a_released_partition() -> Iterator[None]:
    """A call under the epoch that released the partition restores it."""
    with patch.object(topics, "may_return", lambda log_id, _: log_id < NO_LOG):
        yield


@mutant
def an_init_restores_partitions_it_does_not_name() -> Iterator[None]:
    """A higher epoch alone restores it: the next growth of a topic puts it at two coordinators."""
    wanted = topics._wanted

    def eager(asked: Any, *arguments: Any) -> Any:
        every = tuple(range(asked.num_partitions))
        return wanted(SimpleNamespace(num_partitions=len(every), restored=every), *arguments)  # type: ignore[arg-type]

    with patch.object(topics, "_wanted", eager):
        yield
