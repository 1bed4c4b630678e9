"""Random schedules of whole transactions, and the mistakes that they find.

The mutants of the batch coordinators' and the group log's own tests run here, too: a mistake of one
part has to be seen by a reader of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import ANY

import pytest

from coordinator.batch import reads
from coordinator.transactions import decide, markers
from coordinator.transactions.leader import TransactionLog
from coordinator.transactions.markers import MarkerDelivery
from coordinator.transactions.state import State, Transaction
from diskless.transactions.owner import TransactionOwner
from diskless.transactions.proofs import TransactionProofs
from records.kafka_errors import ErrorCode
from records.rpc.transaction_log import CheckTransactionResponse, ProveTransactionRequest
from tests.coordinator.batch.transactions_mutants import MUTANTS as OF_BATCHES
from tests.coordinator.groups import test_transactional_mutants as of_groups
from tests.coordinator.transactions import test_decisions as decisions
from tests.coordinator.transactions import test_log as claims
from tests.coordinator.transactions.schedules import Simulation
from tests.examples import seeds

Patch = pytest.MonkeyPatch
SOUGHT: Final = 150
"""Seeds with which a mistake is looked for at most."""


@pytest.mark.parametrize("seed", seeds(300))
def test_random_schedules_of_transactions_show_each_transaction_as_a_whole_or_not_at_all(
    seed: int,
) -> None:
    Simulation(seed).run()


def test_the_random_schedules_of_transactions_cover_every_fault() -> None:
    seen: Counter[str] = Counter()
    for seed in range(15):
        seen += Simulation(seed).run().seen
    wanted = (
        "late call", "late markers", "late commit", "refused by number", "fenced", "gave up",
        "timeout", "leader lost records", "new producer id", "committed", "aborted", "visible",
    )  # fmt: skip
    assert min(seen[name] for name in wanted) > 0, seen


def schedules() -> None:
    """Run schedules until one fails."""
    for seed in range(SOUGHT):
        Simulation(seed).run()


# --- mistakes --------------------------------------------------------------------------------


def verification_is_skipped(patch: Patch) -> None:
    """A broker stamps the number that its replica names, whatever the partitions and state."""

    def find(self: Any, producer: Any, _partition: Any, version: int) -> Any:
        image, _ = self._cluster.transactions()
        known = image.ids.get(producer.transactional_id)
        if known is None:
            return None
        return self._proof(producer, known.number, known.epoch_began_at_ms, version)

    patch.setattr(TransactionProofs, "find", find)


def the_last_stable_offset_is_of_an_older_state(patch: Patch) -> None:
    """A replica tells runs of its state, and the last stable offset of an older one."""
    find: Any = reads._find
    older: dict[Any, Any] = {}

    def stale(topic_id: Any, requested: Any, tables: Any, *more: Any) -> Any:
        class Mixed:
            open_transactions = older.get((id(tables), topic_id), {})

            def __getattr__(self, name: str) -> Any:
                return getattr(tables, name)

        mixed = Mixed()
        older[id(tables), topic_id] = dict(tables.open_transactions)
        return find(topic_id, requested, mixed, *more)

    patch.setattr(reads, "_find", stale)


def an_owner_goes_on_after_a_call_in_doubt(patch: Patch) -> None:
    """An owner keeps its ownership epoch though a call may still arrive."""
    forward: Any = TransactionOwner._forward

    async def careless(self: Any, name: str, owned: Any, make: Any, **more: Any) -> Any:
        kept = owned.ownership_epoch

        def note(epoch: int) -> Any:
            nonlocal kept
            kept = epoch
            return make(epoch)

        answer = await forward(self, name, owned, note, **more)
        owned.ownership_epoch = kept
        return answer

    patch.setattr(TransactionOwner, "_forward", careless)


def the_log_ignores_ownership_epochs(patch: Patch) -> None:
    """The log's leader accepts calls of former owners."""
    patch.setattr(decide, "_is_owned", lambda transaction, _epoch: transaction is not None)


def any_broker_acquires_an_id(patch: Patch) -> None:
    """The log's leader grants an id to any broker, not to the rendezvous choice only."""
    patch.setattr(decide, "transaction_broker", lambda *_: ANY)


def a_lagging_image_means_deleted(patch: Patch) -> None:
    """A partition that the leader's image lacks counts as deleted."""

    def place(self: Any, row: Any, _offset: int) -> None:
        found = self._places.coordinator(row.topic_id, row.partition)
        if found is None:
            self._done(row)
        else:
            self._queue(found, row)

    patch.setattr(MarkerDelivery, "_place", place)


def an_unknown_partition_counts_as_deleted(patch: Patch) -> None:
    """A marker is done if a batch coordinator does not know its partition."""
    patch.setattr(markers, "_DONE", markers._DONE | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


def proofs_compare_topic_names(patch: Patch) -> None:
    """The log's leader proves partitions by topic name, which a new topic may have."""

    def proof(transaction: Transaction, wanted: Mapping[Any, str]) -> Any:
        present = {(name, p) for (_, p), name in transaction.partitions.items()}
        missing = {key: name for key, name in wanted.items() if (name, key[1]) not in present}
        return transaction.number, missing

    patch.setattr(decide, "proof", proof)


def a_new_leader_forgets_prepared_transactions(patch: Patch) -> None:
    """A leader delivers the markers only of transactions that end under it."""

    def lead(self: Any, epoch: Any) -> None:
        self._delivered = self.machine.image.prepared
        self.proposer.lead(epoch)
        self._leads = True

    patch.setattr(TransactionLog, "lead", lead)


def one_marker_completes_a_transaction(patch: Patch) -> None:
    """A transaction completes when the first of its markers is written."""

    def done(self: Any, row: Any) -> None:
        key = (row.transactional_id, row.number)
        if key in self._endings:
            self._finish(key)

    patch.setattr(MarkerDelivery, "_done", done)


def markers_do_not_wait_for_the_decision(patch: Patch) -> None:
    """The next transaction begins while markers of the last one are on their way."""
    refuse: Any = decide._refuse_producer

    def lenient(before: Any, producer_id: int, epoch: int) -> ErrorCode:
        code: ErrorCode = refuse(before, producer_id, epoch)
        return ErrorCode.NONE if code is ErrorCode.CONCURRENT_TRANSACTIONS else code

    patch.setattr(decide, "_refuse_producer", lenient)


def a_fence_leaves_the_epoch(patch: Patch) -> None:
    """A transaction that is aborted by its timeout keeps its producer's epoch."""
    fenced: Any = decide.fenced

    def careless(before: Any, now_ms: int) -> Any:
        return fenced(before, now_ms)._replace(producer_epoch=before.producer_epoch)

    patch.setattr(decide, "fenced", careless)


def a_fence_raises_the_epoch_twice(patch: Patch) -> None:
    """A fence raises the epoch, and its Prepare state raises it again."""
    fenced: Any = decide.fenced

    def twice(before: Any, now_ms: int) -> Any:
        after = fenced(before, now_ms)
        return after._replace(producer_epoch=after.producer_epoch + 1)

    patch.setattr(decide, "fenced", twice)


def numbers_begin_again_with_a_producer(patch: Patch) -> None:
    """InitProducerId sets the number of the next transaction to 1."""
    judge: Any = decide._judge_init

    def careless(request: Any, before: Any, now_ms: int) -> Any:
        after = judge(request, before, now_ms)
        is_new = not isinstance(after, ErrorCode) and after.state is State.EMPTY
        return after._replace(number=0) if is_new else after

    patch.setattr(decide, "_judge_init", careless)


def an_administrators_marker_is_not_checked(patch: Patch) -> None:
    """The log lets an administrator's marker end an open transaction."""
    patch.setattr(claims, "check", lambda *_: CheckTransactionResponse(error_code=0))


def epochs_pass_the_last_one(patch: Patch) -> None:
    """A producer id whose epochs are used up is used on."""
    patch.setattr(Transaction, "is_exhausted", property(lambda _: False))


def a_transaction_of_tv2_leaves_the_epoch(patch: Patch) -> None:
    """An EndTxn of TV2 keeps its producer's epoch, as in TV1."""
    prepared: Any = decide._prepared

    def careless(request: Any, before: Any, now_ms: int) -> Any:
        return prepared(request, before, now_ms)._replace(producer_epoch=before.producer_epoch)

    patch.setattr(decide, "_prepared", careless)


def the_last_epoch_may_begin_transactions(patch: Patch) -> None:
    """A call with the epoch that fences the last producer of an id begins a transaction."""
    patch.setattr(decide, "LAST_EPOCH", 2**15)


def a_late_batch_of_tv2_finds_another_epoch() -> None:
    """Check that a batch that is read after its EndTxn of TV2 cannot join the next transaction."""
    before = decisions.stored(State.ONGOING, 3, 2)
    row = decisions.Ending(State.ONGOING, 3, 2, True, 3, 2, ErrorCode.NONE)
    ended = decide.decide_end(decisions.end(row), decisions.context(before))
    prepared = decisions.after(before, ended)
    complete = decide.decide_complete("x", before.number, decisions.context(prepared))
    late = ProveTransactionRequest(
        transactional_id="x", producer_id=before.producer_id, producer_epoch=3, adds=True,
        topics=decisions.topics(decisions.TOPIC),
    )  # fmt: skip
    given = decisions.context(decisions.after(prepared, complete))
    assert decide.decide_prove(late, given).response.error_code == ErrorCode.PRODUCER_FENCED


def a_proof_of_another_topic_is_refused() -> None:
    """Check the row of the table with another topic of the same name."""
    decisions.test_the_transaction_log_adds_and_proves_partitions_as_kafka_does(
        decisions.ADDINGS[6]
    )


def the_last_epoch_is_refused() -> None:
    """Check the row of the table with epoch 32767."""
    decisions.test_the_transaction_log_adds_and_proves_partitions_as_kafka_does(
        decisions.ADDINGS[0]
    )


MUTANTS: Final[Mapping[str, tuple[Callable[[Patch], None], Callable[[], object]]]] = {
    "verification is skipped": (verification_is_skipped, schedules),
    "the last stable offset is stale": (the_last_stable_offset_is_of_an_older_state, schedules),
    "pending offsets are visible": (of_groups.pending_offsets_are_visible, schedules),
    "the number of offsets is ignored": (of_groups.the_number_is_ignored, schedules),
    "an owner goes on after a call in doubt": (an_owner_goes_on_after_a_call_in_doubt, schedules),
    "ownership epochs are ignored": (the_log_ignores_ownership_epochs, schedules),
    "any broker acquires an id": (
        any_broker_acquires_an_id,
        claims.test_only_the_broker_chosen_by_rendezvous_hashing_acquires_a_transactional_id,
    ),
    "a lagging image means deleted": (a_lagging_image_means_deleted, schedules),
    "an unknown partition counts as deleted": (
        an_unknown_partition_counts_as_deleted,
        claims.test_the_transaction_log_sends_a_marker_to_the_coordinator_to_which_its_partition_moved,
    ),
    "proofs compare topic names": (
        proofs_compare_topic_names,
        a_proof_of_another_topic_is_refused,
    ),
    "a new leader forgets": (a_new_leader_forgets_prepared_transactions, schedules),
    "one marker completes": (one_marker_completes_a_transaction, schedules),
    "the next transaction does not wait": (markers_do_not_wait_for_the_decision, schedules),
    "a fence leaves the epoch": (a_fence_leaves_the_epoch, schedules),
    "a fence raises the epoch twice": (
        a_fence_raises_the_epoch_twice,
        decisions.test_init_producer_id_aborts_an_ongoing_transaction_under_the_next_epoch,
    ),
    "numbers begin again": (numbers_begin_again_with_a_producer, schedules),
    "epochs pass the last one": (epochs_pass_the_last_one, schedules),
    "a transaction of TV2 leaves the epoch": (
        a_transaction_of_tv2_leaves_the_epoch,
        a_late_batch_of_tv2_finds_another_epoch,
    ),
    "the last epoch may begin transactions": (
        the_last_epoch_may_begin_transactions,
        the_last_epoch_is_refused,
    ),
    "an administrator's marker is not checked": (
        an_administrators_marker_is_not_checked,
        claims.test_the_transaction_log_refuses_an_administrators_marker_of_an_open_transaction,
    ),
}


@pytest.mark.parametrize("name", MUTANTS, ids=str)
def test_a_transaction_without_one_of_its_rules_fails_a_schedule(
    name: str, monkeypatch: Patch
) -> None:
    mutate, claim = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        claim()


SEEN_BY_READERS: Final = (
    "the_number_of_a_batch_is_ignored",
    "an_ended_number_is_accepted_again",
    "a_marker_is_not_idempotent",
    "a_marker_without_data_raises_no_number",
    "the_last_stable_offset_is_the_high_watermark",
    "the_aborted_list_is_dropped_with_the_marker",
    "no_marker_clears_the_kept_batches",
)
"""Mistakes of a batch coordinator that readers of whole transactions notice."""


@pytest.mark.parametrize("name", SEEN_BY_READERS)
def test_a_batch_coordinator_without_a_rule_of_transactions_fails_a_schedule(name: str) -> None:
    mutant: AbstractContextManager[None] = OF_BATCHES[name]()
    with mutant, pytest.raises(AssertionError):
        schedules()
