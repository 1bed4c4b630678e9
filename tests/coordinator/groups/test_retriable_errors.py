"""Refusals with error codes that clients retry.

Some clients fail on a code that Kafka's broker never sends for a request. Source: the code of
Java's consumer, librdkafka, aiokafka and kafka-python.
"""

from __future__ import annotations

from uuid import UUID

from records.kafka_errors import ErrorCode
from records.rpc.groups import OffsetCommitRequest, OffsetFetchRequest
from tests.coordinator.groups.test_moves import other
from tests.coordinator.groups.world import GROUP, Consumer, World, stable


def test_any_broker_answers_offset_fetch_for_any_group() -> None:
    """After NOT_COORDINATOR librdkafka leaves a partition without an offset.

    Source: invariant 9 (docs/design/invariants.md).
    """
    world = World(brokers=(1, 2))
    one = Consumer(world)
    stable(world, one)
    assert one.commit(5) == 0
    assert one.commit(6, broker=other(world)) == 16
    assert world.committed(broker=other(world)) == 5
    world.unfenced.clear()
    world.tell_brokers()
    assert world.committed(broker=1) == world.committed(broker=2) == 5


def test_group_requests_that_time_out_get_an_error_that_clients_retry() -> None:
    """Kafka never answers a Heartbeat or a SyncGroup with COORDINATOR_LOAD_IN_PROGRESS, and clients
    fail on it.
    """
    world = World()
    one = Consumer(world)
    stable(world, one)
    world.brokers[1].forget(GROUP, ErrorCode.NOT_COORDINATOR)
    world.log.depose()
    world.run()
    tickets = [
        world.send(request, version=request.schema().versions.last)
        for request in (one.beat_request(), one.sync_request({}), one.leave_request())
    ]
    joining = one.send_join()
    world.pass_ms(5_000)
    assert [world.answers[ticket].error_code for ticket in tickets] == [15, 15, 15]
    assert world.answers[joining].error_code == 14


def test_a_broker_refuses_an_offset_commit_with_too_many_offsets_before_its_validation() -> None:
    world = World()
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=GROUP, member_id="", topics=(topic(name="t", partitions=(partition,) * 10_001),)
    )
    answer = world.ask(request, version=9)
    assert {partition.error_code for partition in answer.topics[0].partitions} == {28}


def test_a_broker_refuses_an_offset_fetch_that_repeats_one_topic_id_too_often() -> None:
    world = World()
    long = "t" * 249
    world.topics.known[long] = (UUID(int=73), 1)
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = group.OffsetFetchRequestTopics(topic_id=UUID(int=73), partition_indexes=())
    request = OffsetFetchRequest(groups=(group(group_id=GROUP, topics=(topic,) * 10_000),))
    world.holds = lambda _broker, _call: True
    assert world.ask(request).groups[0].error_code == 42
    assert not world.held
