"""When a controller may answer a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.controller.checkpoint import image_records
from coordinator.controller.client import error_codes
from coordinator.controller.decide import Limits
from coordinator.controller.leader import BATCH_RECORDS, make_draft
from coordinator.controller.requests import split_creation
from raft.interfaces import draft_values
from records.frame import encode_record
from records.kafka_errors import ErrorCode
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    TopicRecord,
)
from records.rpc.base import Request
from records.rpc.batch_coordinator import AssignPartitionToBatchCoordinatorRequest
from records.rpc.brokers import BrokerHeartbeatRequest, UnregisterBrokerRequest
from records.rpc.configs import DescribeConfigsRequest
from records.rpc.topics import CreateTopicsRequest, DeleteTopicsRequest
from records.types import Epoch
from tests.coordinator.controller.test_image import T1
from tests.coordinator.controller.test_stateful import alteration
from tests.coordinator.controller.world import (
    BOOTSTRAP,
    World,
    creation,
    log_batches,
    records_of,
    registration,
)
from tests.doubles.memory_log import SilentTicket


def held_back() -> World:
    """Return a leader whose commits wait for the test."""
    world = World(auto_commit=False)
    world.log.elect()
    commit(world)
    return world


def commit(world: World) -> None:
    for _ in range(5):
        world.log.commit()
        world.run()


def test_the_first_controller_of_an_empty_log_writes_the_bootstrap_transaction() -> None:
    world = World().elect()
    (batch,) = log_batches(world.log)
    assert batch == [
        BeginTransactionRecord(name="Bootstrap records"),
        *BOOTSTRAP,
        EndTransactionRecord(),
    ]
    world.depose()
    world.elect()
    assert len(log_batches(world.log)) == 1, "it begins once"


def test_a_new_controller_aborts_an_open_metadata_transaction_before_it_decides_requests() -> None:
    world = World().elect()
    before = records_of(world.image)
    records = (BeginTransactionRecord(name="half"), TopicRecord(name="ghost", topic_id=T1))
    propose(world, *records)
    world.depose()
    world.log.elect()
    answers = world.send(registration(1))
    world.run()
    assert answers[0].error_code == 0
    batches = log_batches(world.log)
    assert [type(record) for record in batches[2]][:1] == [AbortTransactionRecord]
    assert "ghost" not in world.image.topic_ids
    assert set(before) < set(records_of(world.image))


def test_a_new_controller_aborts_an_incomplete_bootstrap_transaction_and_writes_it_again() -> None:
    world = World()
    world.log.elect()
    propose(world, BeginTransactionRecord(name="Bootstrap records"), BOOTSTRAP[0])
    world.depose()
    world.elect()
    assert next(iter(image_records(world.image))) == FeatureLevelRecord(
        name="metadata.version", feature_level=27
    )
    assert world.image.record_count == len(BOOTSTRAP)


def propose(world: World, *records: Any) -> None:
    """Append a former leader's records to the log, without this controller."""
    epoch = world.log.leading_epoch
    assert epoch is not None
    draft = draft_values([encode_record(record) for record in records], timestamp_ms=0)
    world.log.propose(SilentTicket(), Epoch(epoch), draft)


def test_a_controllers_response_waits_for_the_commit_of_its_records() -> None:
    world = held_back()
    answers = world.send(registration(1))
    world.run()
    assert answers == []
    commit(world)
    assert answers[0].error_code == 0


def test_controller_responses_without_records_wait_for_the_read_barrier() -> None:
    """A controller that was deposed and does not know it has an older state than the next one."""
    world = World().elect()
    (epoch,) = world.register(1)
    world.create("t")
    barriers: list[Callable[[BaseException | None], None]] = []
    world.requests._barrier = barriers.append
    assign = AssignPartitionToBatchCoordinatorRequest.Topic
    place = assign.Partition(partition_index=0, batch_coordinator_partition_index=0)
    requests: tuple[Request, ...] = (
        creation("t"),
        creation("new", validate_only=True),
        DeleteTopicsRequest(topic_names=("gone",), timeout_ms=1),
        DescribeConfigsRequest(
            resources=(
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name="gone", configuration_keys=None
                ),
            )
        ),
        _beat(1, epoch + 1),
        _beat(2, epoch),
        UnregisterBrokerRequest(broker_id=2),
        AssignPartitionToBatchCoordinatorRequest(
            topics=(assign(topic_id=T1, partitions=(place,)),)
        ),
    )
    for request in requests:
        for lost in (None, ConnectionError("another leads")):
            answers = world.send(request)
            world.run()
            assert answers == [], f"answered by a node that may lead no more: {answers}"
            barriers.pop()(lost)
            world.run()
            said = error_codes(answers[0])
            assert (ErrorCode.NOT_CONTROLLER in said) == (lost is not None), (request, said)
    world.beat(1, epoch)
    world.create("u")
    world.register(2)
    assert barriers == [], "what is written proves it, and a heartbeat denies nothing"


def _beat(broker_id: int, broker_epoch: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        current_metadata_offset=0,
        want_fence=False,
        want_shut_down=False,
    )


def test_a_controllers_refusal_waits_for_the_commit_of_the_records_that_caused_the_refusal() -> (
    None
):
    """TOPIC_ALREADY_EXISTS may be answered only once the topic can no longer be lost."""
    world = held_back()
    world.send(registration(1))
    commit(world)
    world.send(creation("t"))
    world.run()
    second = world.send(creation("t"))
    world.run()
    assert second == [], "answered on the word of a record that can still be lost"
    world.depose(lose=True)
    assert second[0].topics[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.log.elect()
    commit(world)
    assert "t" not in world.image.topic_ids
    third = world.send(creation("t"))
    commit(world)
    assert third[0].topics[0].error_code == 0


def test_the_controller_does_not_describe_a_changed_setting_before_its_record_is_committed() -> (
    None
):
    world = held_back()
    world.send(registration(1))
    commit(world)
    world.send(creation("t"))
    commit(world)
    world.send(alteration("t", "retention.ms", "5"))
    world.run()
    seen = world.send(describe("t"))
    world.run()
    assert seen == []
    assert value(world, "retention.ms") is None
    commit(world)
    shown = {config.name: config.value for config in seen[0].results[0].configs}
    assert shown["retention.ms"] == "5"
    assert value(world, "retention.ms") == "5"


def describe(topic: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=(resource(resource_type=2, resource_name=topic, configuration_keys=None),)
    )


def value(world: World, name: str) -> str | None:
    settings = {r.name: s.get(name) for r, s in world.image.configs.items()}
    return settings.get("t")


def test_a_controller_that_does_not_lead_refuses_requests_with_not_controller() -> None:
    world = World()
    answer = world.ask(registration(1))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    assert world.log.end_offset == 0


def test_a_new_active_controller_decides_no_request_before_it_has_applied_its_log() -> None:
    world = World().elect()
    world.register(1)
    world.depose()
    world.applier.paused = True
    world.log.elect()
    answers = world.send(UnregisterBrokerRequest(broker_id=2))
    world.run()
    assert (answers, world.controller.active_epoch) == ([], None)
    world.applier.paused = False
    world.applier.go_on()
    world.run()
    assert answers[0].error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert world.controller.active_epoch is not None


def test_a_controller_decision_takes_account_of_uncommitted_records_of_earlier_decisions() -> None:
    world = held_back()
    answers = [world.send(registration(1)), world.send(creation("t")), world.send(creation("t"))]
    commit(world)
    codes = [answers[0][0].error_code, *(a[0].topics[0].error_code for a in answers[1:])]
    assert codes == [0, 0, ErrorCode.TOPIC_ALREADY_EXISTS]


def test_a_controller_decides_a_request_again_if_its_record_gets_an_unexpected_offset() -> None:
    """Another batch is at the offset at which the decision expected the log to end."""
    world = World().elect()
    world.register(1)
    answers = world.send(creation("t"))
    propose(world, NoOpRecord())
    world.run()
    assert answers[0].topics[0].error_code == 0
    assert "t" in world.image.topic_ids
    assert records_of(world.controller._pending.image) == records_of(world.image)


def test_a_controller_change_larger_than_one_batch_is_written_as_a_metadata_transaction() -> None:
    world = World().elect()
    world.register(1)
    shown: list[int] = []

    def look(image: Any) -> None:
        topic = image.topic("big")
        shown.append(0 if topic is None else len(topic.partitions))

    world.machine.listen(look)
    count = 3 * BATCH_RECORDS
    assert world.create("big", count).topics[0].error_code == 0
    batches = [batch for batch in log_batches(world.log) if len(batch) > 2][1:]
    assert all(len(batch) <= BATCH_RECORDS for batch in batches)
    assert len(batches) == 4 or len(batches) == 3
    assert isinstance(batches[0][0], BeginTransactionRecord)
    assert isinstance(log_batches(world.log)[-1][-1], EndTransactionRecord)
    assert set(shown) == {0, count}, "seen in part"


def test_a_controller_aborts_a_metadata_transaction_without_an_end_record() -> None:
    world = held_back()
    world.send(registration(1))
    commit(world)
    world.send(creation("big", 3 * BATCH_RECORDS))
    world.run()
    stored = world.log._stored
    world.log.commit(stored[-2].end_offset)  # all but the last batch
    world.depose(lose=True)
    assert world.machine.in_transaction
    world.log.elect()
    commit(world)
    assert not world.machine.in_transaction
    assert "big" not in world.image.topic_ids


def test_the_controller_writes_a_decision_that_must_be_atomic_in_one_batch() -> None:
    value_of = encode_record(NoOpRecord())
    long = [value_of] * (BATCH_RECORDS + 1)
    assert make_draft([[value_of], long], 0).counts == [BATCH_RECORDS + 2]


def test_the_active_controller_writes_periodic_no_op_records_to_an_idle_log() -> None:
    world = World(max_idle_interval_ms=500).elect()
    end = world.log.end_offset
    world.pass_ms(5_000)
    assert 4 <= world.log.end_offset - end <= 11
    assert [type(record) for record in log_batches(world.log)[-1]] == [NoOpRecord]
    world.depose()
    end = world.log.end_offset
    world.pass_ms(5_000)
    assert world.log.end_offset == end


def test_the_metadata_lag_metric_counts_committed_records_that_are_not_yet_applied() -> None:
    world = World().elect()
    assert world.controller.metadata_lag == 0
    world.applier.paused = True
    propose(world, NoOpRecord(), NoOpRecord())
    assert world.controller.metadata_lag == 2


def test_the_controller_counts_its_requests_by_api() -> None:
    world = World().elect()
    world.register(1)
    assert (world.requests.served[62], world.requests.served[63]) == (1, 1)


def many_topics(count: int, partitions: int) -> CreateTopicsRequest:
    topics = tuple(creation(f"t-{i}", partitions).topics[0] for i in range(count))
    return CreateTopicsRequest(topics=topics)


def test_the_controller_answers_a_heartbeat_while_it_decides_a_large_request_in_slices() -> None:
    world = World().elect()
    (epoch,) = world.register(1)
    answers = world.send(many_topics(100, 10))
    world.step()
    beat = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=epoch,
        current_metadata_offset=world.log.end_offset,
        want_fence=False,
        want_shut_down=False,
    )
    beats = world.send(beat)
    while not beats:
        assert world.step()
    assert answers == [], "the heartbeat came after all topics"
    world.run()
    assert [topic.name for topic in answers[0].topics] == [f"t-{i}" for i in range(100)]
    assert {topic.error_code for topic in answers[0].topics} == {0}
    batches = [len(batch) for batch in log_batches(world.log)]
    assert max(batches) < 700, batches


def beat(world: World, broker_id: int, epoch: int, **wants: bool) -> list[Any]:
    """Send a heartbeat; its answer is appended to the returned list."""
    return world.send(
        BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=world.log.end_offset,
            want_fence=wants.get("want_fence", False),
            want_shut_down=wants.get("want_shut_down", False),
        )
    )


def test_a_broker_heartbeat_does_not_wait_for_the_controllers_other_requests() -> None:
    """It depends on its broker's record, which is committed, and extends a session."""
    world = held_back()
    registered = world.send(registration(1))
    commit(world)
    epoch = registered[0].broker_epoch
    beat(world, 1, epoch)
    commit(world)
    created = world.send(creation("t", 3))
    world.run()
    end_offset = world.log.end_offset
    assert world.log.high_watermark < end_offset, "a topic waits for its commit"
    answered = beat(world, 1, epoch)
    assert [(answer.error_code, answer.is_fenced) for answer in answered] == [(0, False)]
    assert (created, world.log.end_offset) == ([], end_offset)
    world.pass_ms(8_000)
    assert len(beat(world, 1, epoch)) == 1
    world.pass_ms(8_000)
    assert not world.image.brokers[1].fenced


def test_a_broker_heartbeat_waits_for_uncommitted_records_of_the_same_broker() -> None:
    """The broker's fencing is not committed yet, so `is_fenced` could be answered wrongly."""
    world = held_back()
    registered = world.send(registration(1))
    commit(world)
    epoch = registered[0].broker_epoch
    assert beat(world, 1, epoch) == [], "the record that unfences it is not committed"
    commit(world)
    fencing = beat(world, 1, epoch, want_fence=True)
    world.run()
    later = beat(world, 1, epoch)
    world.run()
    assert (fencing, later) == ([], [])
    commit(world)
    assert [answer.is_fenced for answer in (*fencing, *later)] == [True, False]
    world.depose()
    (refused,) = beat(world, 1, epoch)
    assert refused.error_code == ErrorCode.NOT_CONTROLLER


def test_the_controller_splits_a_topic_creation_only_if_the_result_stays_the_same() -> None:
    request = many_topics(100, 10)
    assert len(split_creation(request)) == 20
    assert len(split_creation(many_topics(5, 10))) == 1
    twice = CreateTopicsRequest(topics=request.topics + request.topics[:1])
    parts = split_creation(twice)
    named = [[topic.name for topic in part.topics] for part in parts]
    assert len(parts) == 20
    assert [name for part in named for name in part if name == "t-0"] == named[0][:2], "together"
    tried = CreateTopicsRequest(topics=request.topics, validate_only=True)
    assert split_creation(tried) == [tried]


def test_a_deposed_controller_answers_a_partly_done_creation_with_not_leader_or_follower() -> None:
    """Clients repeat a request after NOT_CONTROLLER, and would find that their own topics exist."""
    world = World().elect()
    world.register(1)
    answers = world.send(many_topics(100, 10))
    while not hasattr(world.image.topic("t-30"), "name"):
        assert world.step()
    world.depose()
    codes = {topic.error_code for topic in answers[0].topics}
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER in codes
    assert ErrorCode.NOT_CONTROLLER not in codes
    late = world.send(many_topics(100, 10))
    assert {topic.error_code for topic in late[0].topics} == {ErrorCode.NOT_CONTROLLER}


def test_the_controller_refuses_a_topic_creation_above_the_record_limit_as_a_whole() -> None:
    world = World(limits=Limits(max_records_of_request=300)).elect()
    world.register(1)
    huge = many_topics(2, 100_000)
    assert split_creation(huge) == [huge]
    codes = [topic.error_code for topic in world.ask(huge).topics]
    assert codes == [ErrorCode.POLICY_VIOLATION] * 2


def test_a_controller_decides_no_request_before_it_aborts_an_open_transaction() -> None:
    """A heartbeat is urgent; written into the open transaction it would be aborted with it."""
    world = World(auto_commit=False)
    world.log.elect()
    commit(world)
    registered = world.send(registration(1))
    commit(world)
    epoch = registered[0].broker_epoch
    propose(world, BeginTransactionRecord(name="half"))
    commit(world)
    world.depose(lose=False)
    world.log.elect()
    beats = world.send(
        BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=epoch,
            current_metadata_offset=epoch,
            want_fence=False,
            want_shut_down=False,
        )
    )
    commit(world)
    assert beats[0].error_code in (0, ErrorCode.NOT_CONTROLLER)
    again = world.send(registration(1))
    commit(world)
    assert again[0].broker_epoch == epoch
    assert not world.machine.in_transaction
    if beats[0].error_code == 0:
        assert not world.image.brokers[1].fenced
