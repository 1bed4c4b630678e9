"""The transaction log: ownership, timeouts, expiry, markers across leader changes, checkpoints."""

from __future__ import annotations

import pytest

from coordinator.errors import CoordinatorError
from coordinator.transactions.decide import check
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.markers import GROUP_LOG, coordinator_request
from coordinator.transactions.settings import TransactionSettings
from coordinator.transactions.state import State
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as rpc
from tests.coordinator.groups.world import load, records_of
from tests.coordinator.transactions.world import (
    GROUPS,
    ID,
    OTHER,
    TIMEOUT_MS,
    TOPIC,
    World,
)


def test_the_transaction_log_sends_a_marker_to_each_destination_and_completes_the_transaction() -> (
    None
):
    world = World()
    owner = world.begin(TOPIC, OTHER, GROUPS)
    world.holds = True
    assert world.end(owner).error_code == 0  # answered before any marker is done
    assert world.state is State.PREPARE_COMMIT
    assert sorted(destination for destination, _ in world.sent) == [GROUP_LOG, 0, 1]
    for at, (_, rows, answered) in enumerate(world.held):
        assert world.state is State.PREPARE_COMMIT, at
        assert [(row.number, row.is_committed) for row in rows] == [(1, True)]
        answered([0])
        world.run()
    assert world.state is State.COMPLETE_COMMIT
    assert not world.transaction.partitions


def test_the_transaction_log_sends_the_markers_of_many_transactions_in_one_request() -> None:
    world = World()
    owner = world.begin(TOPIC)
    world.end(owner)
    (_, rows) = world.sent[-1]
    request = coordinator_request(0, [*rows, rows[0]._replace(topic_id=OTHER)], 7)
    assert request.topic_ids == (TOPIC, OTHER)
    assert [marker.topic_index for marker in request.markers] == [0, 1]
    assert {marker.coordinator_epoch for marker in request.markers} == {7}


@pytest.mark.parametrize("code", [3, 6, 7, 15, 42])
def test_the_transaction_log_repeats_a_marker_until_it_is_written(code: int) -> None:
    world = World()
    owner = world.begin(TOPIC)
    world.code_of = lambda _destination, _row: code
    world.end(owner, committed=False)
    for _ in range(5):
        world.pass_ms(1_000)
    assert world.state is State.PREPARE_ABORT
    assert len(world.sent) > 3
    world.code_of = lambda _destination, _row: 0
    world.pass_ms(1_000)
    assert world.state is State.COMPLETE_ABORT


def test_the_transaction_log_sends_a_marker_to_the_coordinator_to_which_its_partition_moved() -> (
    None
):
    world = World()
    owner = world.begin(TOPIC)
    world.code_of = lambda destination, _row: 0 if destination == 9 else 3
    world.end(owner)
    world.places.known[TOPIC] = 9
    world.pass_ms(1_000)
    assert world.state is State.COMPLETE_COMMIT
    assert world.sent[-1][0] == 9


def test_a_lagging_cluster_image_does_not_complete_a_transaction_without_its_marker() -> None:
    world = World()
    owner = world.begin(TOPIC)
    del world.places.known[TOPIC]
    world.places.image_offset = 49  # the broker's image had the topic at 50
    world.end(owner)
    world.pass_ms(10_000)
    assert world.state is State.PREPARE_COMMIT
    world.places.known[TOPIC] = 0
    world.transactions.delivery.places_changed()
    world.run()
    assert world.state is State.COMPLETE_COMMIT
    assert [destination for destination, _ in world.sent] == [0]


def test_the_transaction_log_counts_the_marker_of_a_deleted_topic_as_written() -> None:
    world = World()
    owner = world.begin(TOPIC, OTHER)
    del world.places.known[TOPIC]  # at an image past the broker's
    world.end(owner)
    assert world.state is State.COMPLETE_COMMIT
    assert [destination for destination, _ in world.sent] == [1]


def test_a_new_leader_of_the_transaction_log_delivers_the_markers_again() -> None:
    world = World()
    owner = world.begin(TOPIC, OTHER)
    world.holds = True
    world.end(owner)
    world.change_leader()
    late = list(world.held)
    world.holds = False
    for _, _, answered in late[:2]:
        answered([0])  # of the former leadership: it counts for nothing
    assert world.state is State.PREPARE_COMMIT
    for _, _, answered in late[2:]:
        answered([0])
    world.run()
    assert world.state is State.COMPLETE_COMMIT
    assert len(world.sent) == 4


def test_a_transaction_can_end_only_after_the_former_transactions_markers_are_written() -> None:
    world = World()
    owner = world.begin(TOPIC)
    world.holds = True
    world.end(owner)
    assert world.add(owner).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.prove().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    world.held[0][2]([0])
    world.run()
    assert world.add(owner).transaction_number == 2
    assert world.prove().transaction_number == 2


def test_a_delayed_end_under_a_former_ownership_does_not_end_the_next_transaction() -> None:
    world = World()
    owner = world.begin(TOPIC)
    world.end(owner)
    again = world.acquire().ownership_epoch
    assert world.add(again).transaction_number == 2
    assert world.end(owner).error_code == ErrorCode.NOT_COORDINATOR
    assert world.state is State.ONGOING


def test_only_the_broker_chosen_by_rendezvous_hashing_acquires_a_transactional_id() -> None:
    world = World()
    world.brokers = [1, 2, 3]
    codes = {broker: world.acquire(broker).error_code for broker in world.brokers}
    assert sorted(codes.values()) == [0, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR]


def test_the_transaction_log_creates_transactional_ids_only_on_request_and_up_to_a_limit() -> None:
    world = World(TransactionSettings(max_ids=1))
    missing = world.acquire(create=False)
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert not world.image.ids
    assert world.acquire().error_code == 0
    assert world.acquire(name="y").error_code == ErrorCode.POLICY_VIOLATION
    assert world.acquire(name="z" * 1025).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("count", [700, pytest.param(100_000, marks=pytest.mark.soak)])
def test_transactional_ids_that_never_come_back_are_bounded_and_expire(count: int) -> None:
    world = World(TransactionSettings(max_ids=count))
    for number in range(count):
        name = f"id-{number}"
        owner = world.acquire(name=name).ownership_epoch
        started = world.ask(
            rpc.InitTransactionalIdRequest(
                transactional_id=name, ownership_epoch=owner, spare_producer_id=number,
                timeout_ms=TIMEOUT_MS,
            )
        )  # fmt: skip
        assert started.error_code == 0
    end_offset = world.log.end_offset
    assert world.acquire(name="one more").error_code == ErrorCode.POLICY_VIOLATION
    assert world.log.end_offset == end_offset
    assert len(world.image.ids) == count
    world.pass_ms(TransactionSettings().id_expiration_ms)
    removed: list[int] = []
    world.transactions.remove_expired(removed.append)
    world.run()
    assert removed == [count]
    assert world.image.record_count == 1  # a checkpoint has no trace of them
    assert not world.image.by_producer
    assert world.acquire(name="one more").error_code == 0


def test_the_transaction_log_aborts_a_transaction_under_the_next_epoch_after_its_timeout() -> None:
    world = World()
    owner = world.begin(TOPIC)
    world.pass_ms(TIMEOUT_MS - 1)
    world.transactions.abort_timed_out()
    world.run()
    assert world.state is State.ONGOING
    world.pass_ms(1)
    aborted: list[int] = []
    world.transactions.abort_timed_out(aborted.append)
    world.run()
    assert aborted == [1]
    assert world.state is State.COMPLETE_ABORT
    (_, rows) = world.sent[-1]
    assert [(row.producer_epoch, row.is_committed) for row in rows] == [(1, False)]
    assert world.end(owner).error_code == ErrorCode.PRODUCER_FENCED
    assert world.add(owner).error_code == ErrorCode.PRODUCER_FENCED


def test_a_transactional_id_without_an_open_transaction_expires_after_its_last_call() -> None:
    week_ms = TransactionSettings().id_expiration_ms
    world = World()
    owner = world.begin(TOPIC)
    world.pass_ms(week_ms)
    world.transactions.remove_expired()
    world.run()
    assert ID in world.image.ids
    world.end(owner)
    world.pass_ms(week_ms - 1)
    world.transactions.remove_expired()
    world.run()
    assert ID in world.image.ids
    world.pass_ms(1)
    removed: list[int] = []
    world.transactions.remove_expired(removed.append)
    world.run()
    assert removed == [1]
    assert not world.image.ids
    assert not world.image.by_producer
    assert world.image.record_count == 1
    unknown = world.end(owner)
    assert unknown.error_code == ErrorCode.NOT_COORDINATOR


def test_the_transaction_log_refuses_an_administrators_marker_of_an_open_transaction() -> None:
    world = World()
    owner = world.begin(TOPIC)
    world.holds = True

    def code(number: int) -> int:
        request = rpc.CheckTransactionRequest(producer_id=4000, transaction_number=number)
        return int(check(request, world.image).error_code)

    assert code(1) == ErrorCode.INVALID_TXN_STATE
    assert code(0) == 0
    world.end(owner)
    assert code(1) == ErrorCode.INVALID_TXN_STATE
    world.held[0][2]([0])
    world.run()
    assert code(1) == 0


def test_a_checkpoint_of_the_transaction_log_restores_the_whole_state() -> None:
    world = World()
    owner = world.begin(TOPIC, OTHER, GROUPS)
    world.holds = True
    world.acquire(name="other")
    values = records_of(world.machine)
    assert len(values) == world.image.record_count
    loaded = TransactionMachine()
    load(loaded, world.machine.applied, values)
    assert dict(loaded.image.ids) == dict(world.image.ids)
    assert loaded.image.next_ownership_epoch == world.image.next_ownership_epoch
    assert dict(loaded.image.ongoing) == {ID: 1}
    assert dict(loaded.image.by_producer) == {4000: ID}
    world.end(owner)
    values = records_of(world.machine)
    load(loaded, world.machine.applied, values)
    assert dict(loaded.image.ids) == dict(world.image.ids)
    assert dict(loaded.image.prepared) == {(ID, 1): True}


def test_a_transaction_log_call_that_a_deposed_leader_did_not_commit_has_an_unknown_outcome() -> (
    None
):
    world = World()
    owner = world.begin(TOPIC)
    world.log.auto_commit = False
    answers: list[object] = []
    world.transactions.ask(
        rpc.EndTransactionRequest(
            transactional_id=ID,
            ownership_epoch=owner,
            producer_id=4000,
            producer_epoch=0,
            committed=True,
            client_version=0,
        ),
        answers.append,
    )
    world.run()
    assert not answers
    world.log.auto_commit = True
    world.change_leader(lose=True)
    (error,) = answers
    assert isinstance(error, CoordinatorError)
    assert world.state is State.ONGOING
    assert not world.sent  # no marker before Prepare is committed
