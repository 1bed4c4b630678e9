"""A refused request of a group's clients, or of a made-up broker, writes nothing.

Source: docs/design/hostile-input.md.
"""

from __future__ import annotations

from coordinator.errors import CoordinatorError
from coordinator.groups.settings import LogSettings
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from tests.coordinator.groups.test_log import Log
from tests.coordinator.groups.world import GROUP, Consumer, World, commit_request


def refused_commits() -> list[tuple[int, rpc.OffsetCommitRequest]]:
    """OffsetCommits that no state of a group allows, and the error of each."""
    topic = rpc.OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    many = topic(name="t", partitions=(partition,) * 10_001)
    return [
        (3, commit_request(topic="nowhere")),
        (3, commit_request(partition=4)),
        (3, commit_request(partition=2**31 - 1)),
        (12, commit_request(metadata="m" * 4_097)),
        (28, rpc.OffsetCommitRequest(group_id=GROUP, member_id="", topics=(many,))),
    ]


def test_a_refused_offset_commit_writes_no_record_to_acquire_its_group() -> None:
    for error, request in refused_commits():
        world = World()
        before = world.log.end_offset
        answer = world.ask(request, version=8)
        assert answer.topics[0].partitions[0].error_code == error
        assert world.log.end_offset == before, f"error {error} wrote a record"


def test_the_group_log_refuses_a_commit_with_an_unknown_generation_and_creates_no_group() -> None:
    world = World()
    stranger = Consumer(world)
    stranger.member_id, stranger.generation = "nobody", 3
    before = world.log.end_offset
    assert stranger.commit() == ErrorCode.ILLEGAL_GENERATION
    assert world.log.end_offset == before


def test_the_group_log_refuses_a_group_claim_under_an_unregistered_broker_epoch() -> None:
    log = Log()
    log.registered = {1: 7}
    for broker_id, epoch in ((1, 8), (1, 2**63 - 1)):
        before = log.log.end_offset
        answer = log.acquire(broker_id, epoch=epoch)
        assert isinstance(answer, CoordinatorError)
        assert answer.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert log.log.end_offset == before
    assert not log.acquire(1, epoch=7).error_code
    for epoch in (6, -1):
        assert log.acquire(1, epoch=epoch).error_code == ErrorCode.STALE_BROKER_EPOCH
    log.registered = {}  # a copy of the cluster log that lags behind
    assert not log.acquire(1, epoch=7).error_code


def test_the_group_log_refuses_a_commit_for_a_new_group_above_the_group_limit() -> None:
    world = World(log_settings=LogSettings(max_groups=1))
    assert world.commit() == 0
    before = world.log.end_offset
    topic = rpc.OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    request = rpc.OffsetCommitRequest(
        group_id="another", member_id="", topics=(topic(name="t", partitions=(partition,)),)
    )
    answer = world.ask(request, version=8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION
    assert world.log.end_offset == before
    assert world.commit(offset=2) == 0


def test_a_consumer_group_begins_again_at_generation_1_after_the_largest_generation() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.generation(owner, 1, 2**31 - 1) == 0
    member = Consumer(log)
    assert (member.join(), member.sync()) == (0, 0)
    assert member.generation == 1
    assert (member.beat(), member.commit()) == (0, 0)
    group = log.image.groups[GROUP]
    assert group.generation_id == 1
    assert log.generation(group.ownership_epoch, 9, 0, "m") == ErrorCode.ILLEGAL_GENERATION


def test_the_group_log_refuses_generation_minus_one_after_the_largest_generation() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.generation(owner, 1, 2**31 - 1) == 0
    assert log.generation(owner, 2, -1) == ErrorCode.ILLEGAL_GENERATION
