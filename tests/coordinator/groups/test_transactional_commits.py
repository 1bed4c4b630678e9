"""A broker's group coordinator commits offsets of transactions: once, in order, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from records.kafka_errors import ErrorCode
from records.rpc import group_log
from records.rpc import groups as rpc
from tests.coordinator.groups.test_moves import hold, other
from tests.coordinator.groups.world import GROUP, Consumer, World, commit_request, stable

NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def request(offset: int, member: Any = None, partition: int = 0, **more: Any) -> Any:
    """Build a TxnOffsetCommit of producer id 7 for a partition of t."""
    topic = rpc.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    one = topic.TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="note"
    )
    given: dict[str, Any] = {"transactional_id": "x", "group_id": GROUP, "producer_epoch": 0}
    if member is not None:
        given |= {"member_id": member.member_id, "generation_id": member.generation}
    given |= more
    return rpc.TxnOffsetCommitRequest(
        producer_id=7, topics=(topic(name="t", partitions=(one,)),), **given
    )


def code(answer: Any) -> int:
    """Return the error of the first partition."""
    return int(answer.topics[0].partitions[0].error_code)


def commit(world: World, offset: int, member: Any = None, number: int = 0, **more: Any) -> int:
    """Commit an offset in a transaction; return the error."""
    return code(world.ask(request(offset, member, **more), number=number))


def end(world: World, number: int = 0, *, is_committed: bool = True) -> None:
    """Write the marker of a transaction of producer id 7."""
    marker = group_log.WriteGroupMarkersRequest(
        producer_ids=(7,), transaction_numbers=(number,), committed=(is_committed,)
    )
    answers: list[Any] = []
    world.groups.ask(marker, answers.append)
    world.run()
    assert answers[0].error_code == 0


def fetched(world: World, version: int = 9) -> tuple[int, int]:
    """Return error and offset of t-0, fetched with `require_stable`."""
    if version < 8:
        old = rpc.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
        given = rpc.OffsetFetchRequest(group_id=GROUP, topics=(old,), require_stable=True)
        found = world.ask(given, version=version).topics[0].partitions[0]
    else:
        one = rpc.OffsetFetchRequest.OffsetFetchRequestGroup
        topic = one.OffsetFetchRequestTopics(name="t", partition_indexes=(0,))
        given = rpc.OffsetFetchRequest(
            groups=(one(group_id=GROUP, topics=(topic,)),), require_stable=True
        )
        found = world.ask(given, version=version).groups[0].topics[0].partitions[0]
    return int(found.error_code), int(found.committed_offset)


@pytest.mark.parametrize("version", [7, 9])
def test_an_offset_fetch_that_requires_stable_offsets_fails_until_the_transaction_marker(
    version: int,
) -> None:
    world = World()
    assert commit(world, 5) == 0
    assert fetched(world, version) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert world.committed() == -1
    end(world)
    assert fetched(world, version) == (0, 5)


@pytest.mark.parametrize("version", range(6))
def test_the_group_coordinator_answers_each_partition_of_every_txn_offset_commit_version(
    version: int,
) -> None:
    world = World()
    given = request(5, **({} if version > 2 else {"generation_id": -1}))
    assert code(world.ask(given, version=version, number=0)) == 0
    assert code(world.ask(request(5, partition=9), version=version, number=0)) == 3


def test_a_member_commits_offsets_in_a_transaction_only_under_its_current_generation() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    assert commit(world, 5, one) == 0
    one.generation -= 1
    assert commit(world, 6, one) == ErrorCode.ILLEGAL_GENERATION
    one.generation += 2  # of a rebalance that no log has
    assert commit(world, 6, one) == ErrorCode.ILLEGAL_GENERATION
    one.member_id = "stranger"
    assert commit(world, 6, one) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_producer_without_a_member_id_commits_offsets_while_the_group_has_members() -> None:
    world = World()
    stable(world, Consumer(world))
    assert commit(world, 5) == 0
    end(world)
    assert world.committed() == 5


def test_a_transactional_commit_before_the_assignment_gets_illegal_generation() -> None:
    world = World()
    one = Consumer(world)
    assert one.join() == 0  # not synced yet
    assert one.commit(5) == ErrorCode.REBALANCE_IN_PROGRESS
    assert commit(world, 5, one) == ErrorCode.ILLEGAL_GENERATION


def test_a_transactional_commit_with_a_generation_in_a_missing_group_gets_illegal_generation() -> (
    None
):
    world = World()
    assert commit(world, 5, generation_id=3, member_id="m") == ErrorCode.ILLEGAL_GENERATION
    assert GROUP not in world.image.groups


def test_the_group_coordinator_refuses_a_transactional_commit_with_an_empty_group_id() -> None:
    world = World()
    assert commit(world, 5, group_id="") == ErrorCode.INVALID_GROUP_ID


def test_a_broker_that_does_not_coordinate_the_group_refuses_a_transactional_commit() -> None:
    world = World(brokers=(1, 2))
    answer = world.ask(request(5), broker=other(world), number=0)
    assert code(answer) == ErrorCode.NOT_COORDINATOR


def test_a_commit_of_an_ended_transaction_makes_the_client_look_up_the_coordinator() -> None:
    world = World()
    assert commit(world, 5, number=3) == 0
    end(world, 3)
    assert commit(world, 6, number=3) == NOT_AVAILABLE
    assert world.committed() == 5


# --- sent once ------------------------------------------------------------------------------------


def test_a_broker_does_not_repeat_a_transactional_commit_whose_response_was_lost() -> None:
    world = World()
    assert commit(world, 4) == 0
    hold(world, group_log.CommitTransactionalOffsetsRequest)
    ticket = world.send(request(5), number=0)
    (held,) = world.held
    world.lose_answer(*held)
    assert code(world.answers[ticket]) == NOT_AVAILABLE
    world.pass_ms(60_000)
    assert world.held == [held]


def test_a_late_copy_of_a_commit_does_not_replace_a_newer_offset_of_its_transaction() -> None:
    world = World()
    assert commit(world, 4) == 0
    hold(world, group_log.CommitTransactionalOffsetsRequest)
    world.send(request(5), number=0)
    (held,) = world.held
    world.lose_answer(*held)
    world.holds = lambda _broker, _call: False
    assert commit(world, 6) == 0
    world.deliver(*held)
    world.run()
    end(world)
    assert world.committed() == 6


def test_a_broker_drops_a_queued_transactional_commit_if_its_connection_closes() -> None:
    world = World()
    assert commit(world, 4) == 0
    hold(world, group_log.CommitTransactionalOffsetsRequest)
    world.send(request(5), number=0)
    connected = [True]
    world.send(request(6), number=0, is_connected=lambda: connected[0])
    connected[0] = False
    world.holds = lambda _broker, _call: False
    world.deliver(*world.held[0], world.brokers[1])
    world.run()
    end(world)
    assert world.committed() == 5


def test_a_broker_sends_waiting_transactional_commits_in_one_request() -> None:
    world = World()
    assert commit(world, 4) == 0
    hold(world, group_log.CommitTransactionalOffsetsRequest)
    tickets = [world.send(request(index, partition=index), number=0) for index in range(4)]
    world.deliver(*world.held[0], world.brokers[1])
    world.run()
    assert len(world.held[1][1].request.commits) == 3  # type: ignore[attr-defined]
    world.holds = lambda _broker, _call: False
    world.deliver(*world.held[1], world.brokers[1])
    world.run()
    assert [code(world.answers[ticket]) for ticket in tickets] == [0] * 4


def test_the_group_log_applies_plain_and_transactional_commits_of_a_group_in_their_order() -> None:
    world = World()
    assert world.commit(None, 1) == 0
    hold(world, group_log.CommitGroupOffsetsRequest)
    world.send(commit_request(None, 2), version=9)
    world.send(request(3), number=0)
    world.send(commit_request(None, 4), version=9)
    world.holds = lambda _broker, _call: False
    world.deliver(*world.held[0], world.brokers[1])
    world.run()
    assert world.committed() == 4
    end(world)
    assert world.committed() == 4


def test_pending_offsets_survive_the_failure_of_the_groups_broker() -> None:
    world = World(brokers=(1, 2))
    assert commit(world, 5) == 0
    world.stop_broker(world.owner())
    assert fetched(world)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert commit(world, 6) == 0
    end(world)
    assert world.committed() == 6


def test_deleting_a_group_with_pending_offsets_gets_non_empty_group() -> None:
    world = World()
    assert commit(world, 5) == 0
    delete = rpc.DeleteGroupsRequest(groups_names=(GROUP,))
    assert world.ask(delete, broker=1).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    end(world)
    assert world.ask(delete, broker=1).results[0].error_code == 0


def test_deleting_an_offset_drops_its_pending_offsets_too() -> None:
    world = World()
    assert commit(world, 5) == 0
    topic = rpc.OffsetDeleteRequest.OffsetDeleteRequestTopic
    one = topic.OffsetDeleteRequestPartition(partition_index=0)
    delete = rpc.OffsetDeleteRequest(group_id=GROUP, topics=(topic(name="t", partitions=(one,)),))
    assert world.ask(delete).error_code == 0
    end(world)
    assert world.committed() == -1
