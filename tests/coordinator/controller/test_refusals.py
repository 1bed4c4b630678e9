"""Every refusal: its code, what its message names, and that it writes nothing."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import pytest

from coordinator.controller.client import error_codes
from coordinator.controller.decide import Limits
from records.kafka_errors import ErrorCode
from records.rpc import brokers as rpc
from records.rpc import topics
from records.rpc.base import Request
from records.rpc.batch_coordinator import AssignPartitionToBatchCoordinatorRequest
from records.rpc.chunks import AlterChunkAssignmentsRequest, CreateChunksRequest
from records.rpc.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from records.types import ZERO_UUID
from tests.coordinator.controller.world import (
    DISKLESS_ID,
    World,
    creation,
    records_of,
    registration,
)

LISTENER = rpc.BrokerRegistrationRequest.Listener
FEATURE = rpc.BrokerRegistrationRequest.Feature


class Refused(NamedTuple):
    """A request, the code of its refusal, and words of the message (if its response has one)."""

    request: Request
    code: ErrorCode
    names: str = ""


def grow(name: str, count: int, *assigned: tuple[int, ...]) -> topics.CreatePartitionsRequest:
    topic = topics.CreatePartitionsRequest.CreatePartitionsTopic
    entries = tuple(topic.CreatePartitionsAssignment(broker_ids=replicas) for replicas in assigned)
    return topics.CreatePartitionsRequest(
        topics=(topic(name=name, count=count, assignments=entries or None),),
        timeout_ms=1_000,
        validate_only=False,
    )


def delete(name: str | None = None, topic_id: UUID = ZERO_UUID) -> topics.DeleteTopicsRequest:
    state = topics.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id)
    return topics.DeleteTopicsRequest(topics=(state,), timeout_ms=1_000)


def alter(
    kind: int, resource_name: str, name: str, value: str | None, operation: int = 0
) -> IncrementalAlterConfigsRequest:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resource.AlterableConfig(name=name, config_operation=operation, value=value)
    return IncrementalAlterConfigsRequest(
        resources=(resource(resource_type=kind, resource_name=resource_name, configs=(change,)),),
        validate_only=False,
    )


def describe(kind: int, name: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=(resource(resource_type=kind, resource_name=name, configuration_keys=None),)
    )


def chunk(
    topic: str = "t",
    partition: int = 0,
    replicas: tuple[int, ...] = (1, 2),
    start: int = 200,
    stop: int | None = None,
) -> CreateChunksRequest:
    item = CreateChunksRequest.TopicPartition(
        topic_name=topic,
        partition_id=partition,
        broker_ids=replicas,
        start_offset=start,
        start_timestamp=1,
        prev_stop_offset=start - 1 if stop is None else stop,
    )
    return CreateChunksRequest(topic_partitions=(item,))


def move_chunk(
    topic: str = "t",
    partition: int = 0,
    start: int = 0,
    replicas: tuple[int, ...] = (2, 3),
    epoch: int = -1,
) -> AlterChunkAssignmentsRequest:
    item = AlterChunkAssignmentsRequest.Assignment(
        topic_name=topic,
        partition_id=partition,
        start_offset=start,
        chunk_epoch=epoch,
        broker_ids=replicas,
    )
    return AlterChunkAssignmentsRequest(chunks=(item,))


def controller(controller_id: int = 101, **more: Any) -> rpc.ControllerRegistrationRequest:
    listener, supports = (
        rpc.ControllerRegistrationRequest.Listener,
        rpc.ControllerRegistrationRequest.Feature,
    )
    fields = {
        "controller_id": controller_id,
        "incarnation_id": UUID(int=9),
        "zk_migration_ready": False,
        "listeners": (listener(name="C", host="h", port=1, security_protocol=0),),
        "features": (
            supports(name="metadata.version", min_supported_version=7, max_supported_version=27),
            supports(name="esker.version", min_supported_version=1, max_supported_version=5),
            supports(name="transaction.version", min_supported_version=0, max_supported_version=2),
        ),
    }
    return rpc.ControllerRegistrationRequest(**(fields | more))


def assign(topic_id: UUID, partition: int, target: int) -> AssignPartitionToBatchCoordinatorRequest:
    topic = AssignPartitionToBatchCoordinatorRequest.Topic
    item = topic.Partition(partition_index=partition, batch_coordinator_partition_index=target)
    return AssignPartitionToBatchCoordinatorRequest(
        topics=(topic(topic_id=topic_id, partitions=(item,)),)
    )


def named_twice() -> topics.CreateTopicsRequest:
    one = creation("x").topics
    return topics.CreateTopicsRequest(topics=one + one)


def fresh() -> World:
    """Return a world to refuse requests in.

    It has brokers 1, 2 and 3; topic t of two partitions with two replicas, a chunk 0..99 in the
    first; coordinators 0 and 1.
    """
    world = World(limits=Limits(max_partitions_of_topic=50)).elect()
    world.register(1, 2, 3)
    world.create("t", 2, factor=2)
    world.create("a.b")
    assert world.ask(chunk(start=100)).results[0].error_code == 0
    assert world.ask(grow("__diskless-metadata", 2)).results[0].error_code == 0
    return world


C = ErrorCode
ID_UNKNOWN = UUID(int=77 << 70)

REFUSED: dict[str, Refused] = {
    # topics
    "empty name": Refused(creation(""), C.INVALID_TOPIC_EXCEPTION, "empty"),
    "dot": Refused(creation("."), C.INVALID_TOPIC_EXCEPTION, "'.'"),
    "two dots": Refused(creation(".."), C.INVALID_TOPIC_EXCEPTION, "'..'"),
    "long name": Refused(creation("x" * 250), C.INVALID_TOPIC_EXCEPTION, "249"),
    "odd letters": Refused(creation("a b"), C.INVALID_TOPIC_EXCEPTION, "'a b'"),
    "newline at the end": Refused(creation("a\n"), C.INVALID_TOPIC_EXCEPTION, "a"),
    "letters of elsewhere": Refused(creation("ü"), C.INVALID_TOPIC_EXCEPTION, "ü"),
    "collision": Refused(creation("a_b"), C.INVALID_TOPIC_EXCEPTION, "a.b"),
    "exists": Refused(creation("t"), C.TOPIC_ALREADY_EXISTS, "'t'"),
    "internal name": Refused(
        creation("__cluster_metadata"), C.INVALID_TOPIC_EXCEPTION, "__cluster_metadata"
    ),
    "internal topic": Refused(creation("__diskless-metadata"), C.TOPIC_ALREADY_EXISTS),
    "no partitions": Refused(creation("x", 0), C.INVALID_PARTITIONS, "x"),
    "negative partitions": Refused(creation("x", -2), C.INVALID_PARTITIONS, "-2"),
    "too many partitions": Refused(creation("x", 51), C.INVALID_PARTITIONS, "51"),
    "factor 0": Refused(creation("x", 1, factor=0), C.INVALID_REPLICATION_FACTOR, "x"),
    "factor -2": Refused(creation("x", 1, factor=-2), C.INVALID_REPLICATION_FACTOR, "-2"),
    "named twice": Refused(named_twice(), C.INVALID_REQUEST, "twice"),
    "assigned and counted": Refused(
        creation("x", 1, assignments={0: (1,)}), C.INVALID_REQUEST, "-1"
    ),
    "assignment with a gap": Refused(
        creation("x", -1, factor=-1, assignments={0: (1,), 2: (1,)}), C.INVALID_REPLICA_ASSIGNMENT
    ),
    "assigned to a stranger": Refused(
        creation("x", -1, factor=-1, assignments={0: (9,)}), C.INVALID_REPLICA_ASSIGNMENT, "9"
    ),
    "assigned twice": Refused(
        creation("x", -1, factor=-1, assignments={0: (1, 1)}), C.INVALID_REPLICA_ASSIGNMENT, "twice"
    ),
    "assigned to no broker": Refused(
        creation("x", -1, factor=-1, assignments={0: ()}), C.INVALID_REPLICA_ASSIGNMENT, "x-0"
    ),
    "uneven assignment": Refused(
        creation("x", -1, factor=-1, assignments={0: (1,), 1: (1, 2)}), C.INVALID_REPLICA_ASSIGNMENT
    ),
    "unknown setting": Refused(
        creation("x", configs={"no.such": "1"}), C.INVALID_CONFIG, "no.such"
    ),
    "unknown policy": Refused(
        creation("x", configs={"cleanup.policy": "compressed"}), C.INVALID_CONFIG, "cleanup.policy"
    ),
    "not diskless": Refused(
        creation("x", configs={"diskless.enable": "false"}), C.INVALID_CONFIG, "diskless.enable"
    ),
    "no number": Refused(
        creation("x", configs={"retention.ms": "soon"}), C.INVALID_CONFIG, "retention.ms"
    ),
    "setting without a value": Refused(
        creation("x", configs={"retention.ms": None}), C.INVALID_CONFIG, "retention.ms"
    ),
    # deletion
    "delete unknown": Refused(delete("nobody"), C.UNKNOWN_TOPIC_OR_PARTITION, "nobody"),
    "delete unknown id": Refused(delete(topic_id=ID_UNKNOWN), C.UNKNOWN_TOPIC_ID, str(ID_UNKNOWN)),
    "delete nothing": Refused(delete(), C.INVALID_REQUEST),
    "delete by both": Refused(delete("t", ID_UNKNOWN), C.INVALID_REQUEST),
    "delete internal": Refused(
        delete("__diskless-metadata"), C.INVALID_TOPIC_EXCEPTION, "__diskless-metadata"
    ),
    "delete the cluster's log": Refused(
        delete("__cluster_metadata"), C.INVALID_TOPIC_EXCEPTION, "__cluster_metadata"
    ),
    "delete internal by id": Refused(delete(topic_id=DISKLESS_ID), C.INVALID_TOPIC_EXCEPTION),
    # growth
    "grow unknown": Refused(grow("nobody", 3), C.UNKNOWN_TOPIC_OR_PARTITION, "nobody"),
    "grow to as many": Refused(grow("t", 2), C.INVALID_PARTITIONS, "2 would not be an increase"),
    "shrink": Refused(grow("t", 1), C.INVALID_PARTITIONS, "currently has 2 partition(s)"),
    "grow too far": Refused(grow("t", 51), C.INVALID_PARTITIONS, "51"),
    "grow with too few assigned": Refused(
        grow("t", 4, (1, 2)), C.INVALID_REPLICA_ASSIGNMENT, "2 partitions"
    ),
    "grow with other widths": Refused(
        grow("t", 3, (1,)), C.INVALID_REPLICA_ASSIGNMENT, "2 replicas"
    ),
    "grow to a stranger": Refused(grow("t", 3, (1, 9)), C.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
    "grow an internal topic": Refused(
        grow("__consumer_offsets", 3), C.INVALID_TOPIC_EXCEPTION, "__consumer_offsets"
    ),
    "assign coordinators": Refused(
        grow("__diskless-metadata", 3, (1,)), C.INVALID_REPLICA_ASSIGNMENT, "voter"
    ),
    "too many coordinators": Refused(grow("__diskless-metadata", 65), C.INVALID_PARTITIONS, "64"),
    # settings
    "set on a stranger": Refused(
        alter(2, "nobody", "retention.ms", "1"), C.UNKNOWN_TOPIC_OR_PARTITION, "nobody"
    ),
    "set unknown": Refused(alter(2, "t", "no.such", "1"), C.INVALID_CONFIG, "no.such"),
    "set nonsense": Refused(alter(2, "t", "retention.ms", "-2"), C.INVALID_CONFIG, "retention.ms"),
    "set to what only Python reads": Refused(
        alter(2, "t", "retention.ms", "1_000"),
        C.INVALID_CONFIG,
        "Invalid value 1_000 for configuration retention.ms",
    ),
    "set to digits of elsewhere": Refused(
        alter(2, "t", "retention.ms", "\u0663"), C.INVALID_CONFIG, "retention.ms"
    ),
    "set to too many digits": Refused(
        alter(2, "t", "retention.ms", "9" * 5_000), C.INVALID_CONFIG, "retention.ms"
    ),
    "broker id with a zero before it": Refused(
        alter(4, "01", "log.retention.ms", "1"), C.INVALID_REQUEST, "'01'"
    ),
    "change diskless": Refused(
        alter(2, "t", "diskless.enable", "false"), C.INVALID_CONFIG, "diskless.enable"
    ),
    "set internal": Refused(
        alter(2, "__cluster_metadata", "cleanup.policy", "delete"),
        C.INVALID_TOPIC_EXCEPTION,
        "__cluster_metadata",
    ),
    "append to no list": Refused(
        alter(2, "t", "retention.ms", "1", 2), C.INVALID_CONFIG, "not a list"
    ),
    "append an unknown policy": Refused(
        alter(2, "t", "cleanup.policy", "compressed", 2), C.INVALID_CONFIG, "cleanup.policy"
    ),
    "too long": Refused(
        alter(2, "t", "leader.replication.throttled.replicas", "é" * 16_384),
        C.INVALID_CONFIG,
        "32767",
    ),
    "odd operation": Refused(alter(2, "t", "retention.ms", "1", 9), C.INVALID_REQUEST, "9"),
    "odd resource": Refused(alter(32, "t", "retention.ms", "1"), C.INVALID_REQUEST, "32"),
    "no broker id": Refused(alter(4, "x", "log.retention.ms", "1"), C.INVALID_REQUEST, "'x'"),
    "broker unknown": Refused(
        alter(4, "9", "log.retention.ms", "1"), C.BROKER_ID_NOT_REGISTERED, "9"
    ),
    "describe unknown": Refused(describe(2, "nobody"), C.UNKNOWN_TOPIC_OR_PARTITION, "nobody"),
    "describe odd resource": Refused(describe(8, "x"), C.INVALID_REQUEST, "8"),
    # brokers
    "other cluster": Refused(registration(4, cluster_id="c-2"), C.INCONSISTENT_CLUSTER_ID),
    "id taken": Refused(
        registration(1, incarnation_id=UUID(int=1)), C.DUPLICATE_BROKER_REGISTRATION
    ),
    "negative id": Refused(registration(-1), C.INVALID_REGISTRATION),
    "no listener": Refused(registration(4, listeners=()), C.INVALID_REGISTRATION),
    "wildcard": Refused(
        registration(
            4, listeners=(LISTENER(name="P", host="0.0.0.0", port=1, security_protocol=0),)
        ),
        C.INVALID_REGISTRATION,
    ),
    "two listeners of a name": Refused(
        registration(4, listeners=(LISTENER(name="P", host="h", port=1, security_protocol=0),) * 2),
        C.INVALID_REGISTRATION,
    ),
    "reserved directory": Refused(registration(4, log_dirs=(UUID(int=3),)), C.INVALID_REGISTRATION),
    "directory twice": Refused(
        registration(4, log_dirs=(UUID(int=300),) * 2), C.INVALID_REGISTRATION
    ),
    "too old": Refused(
        registration(
            4,
            features=(
                FEATURE(name="metadata.version", min_supported_version=7, max_supported_version=26),
            ),
        ),
        C.UNSUPPORTED_VERSION,
    ),
    "without the feature": Refused(registration(4, features=()), C.UNSUPPORTED_VERSION),
    "from ZooKeeper": Refused(registration(4, is_migrating_zk_broker=True), C.INVALID_REGISTRATION),
    "beat of a stranger": Refused(
        rpc.BrokerHeartbeatRequest(
            broker_id=9,
            broker_epoch=1,
            current_metadata_offset=0,
            want_fence=False,
            want_shut_down=False,
        ),
        C.BROKER_ID_NOT_REGISTERED,
    ),
    "beat of the past": Refused(
        rpc.BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=1,
            current_metadata_offset=0,
            want_fence=False,
            want_shut_down=False,
        ),
        C.STALE_BROKER_EPOCH,
    ),
    "forget a stranger": Refused(
        rpc.UnregisterBrokerRequest(broker_id=9), C.BROKER_ID_NOT_REGISTERED, "9"
    ),
    "ids for a stranger": Refused(
        rpc.AllocateProducerIdsRequest(broker_id=9, broker_epoch=1), C.BROKER_ID_NOT_REGISTERED
    ),
    "ids for the past": Refused(
        rpc.AllocateProducerIdsRequest(broker_id=1, broker_epoch=1), C.STALE_BROKER_EPOCH
    ),
    "controller without a listener": Refused(controller(listeners=()), C.INVALID_REGISTRATION),
    "controller of too many features": Refused(
        controller(
            features=tuple(
                rpc.ControllerRegistrationRequest.Feature(
                    name=f"f-{i}", min_supported_version=0, max_supported_version=0
                )
                for i in range(129)
            )
        ),
        C.INVALID_REGISTRATION,
        "129",
    ),
    "controller too old": Refused(
        controller(features=()), C.UNSUPPORTED_VERSION, "metadata.version"
    ),
    # chunks: docs/design/chunks.md
    "chunk of no topic": Refused(chunk("x"), C.UNKNOWN_TOPIC_OR_PARTITION, "x-0"),
    "chunk of no partition": Refused(chunk("t", 2), C.UNKNOWN_TOPIC_OR_PARTITION, "t-2"),
    "chunk of an internal topic": Refused(
        chunk("__diskless-metadata"), C.INVALID_TOPIC_EXCEPTION, "__diskless-metadata-0"
    ),
    "start at the active chunk's": Refused(chunk(start=100), C.INVALID_REQUEST, "100"),
    "start below the active chunk's": Refused(chunk(start=99), C.INVALID_REQUEST, "100"),
    "empty range": Refused(chunk(partition=1, start=0), C.INVALID_REQUEST, "empty"),
    "negative start": Refused(chunk(partition=1, start=-5), C.INVALID_REQUEST, "-5"),
    "stop above the end": Refused(chunk(start=200, stop=200), C.INVALID_REQUEST, "100..199"),
    "stop below the start": Refused(chunk(start=200, stop=98), C.INVALID_REQUEST, "98"),
    "too few replicas": Refused(chunk(replicas=(1,)), C.INVALID_REPLICA_ASSIGNMENT, "2 replicas"),
    "too many replicas": Refused(
        chunk(replicas=(1, 2, 3)), C.INVALID_REPLICA_ASSIGNMENT, "2 replicas"
    ),
    "no replicas": Refused(chunk(replicas=()), C.INVALID_REPLICA_ASSIGNMENT, "t-0"),
    "a replica twice": Refused(chunk(replicas=(1, 1)), C.INVALID_REPLICA_ASSIGNMENT, "twice"),
    "a strange replica": Refused(chunk(replicas=(1, 9)), C.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
    "move no chunk": Refused(move_chunk(start=100), C.INVALID_REQUEST, "100"),
    "move of no topic": Refused(move_chunk("x"), C.UNKNOWN_TOPIC_OR_PARTITION, "x-0"),
    "move at a stale epoch": Refused(move_chunk(epoch=7), C.INVALID_UPDATE_VERSION, "epoch 0"),
    "move to too few": Refused(
        move_chunk(replicas=(2,)), C.INVALID_REPLICA_ASSIGNMENT, "2 replicas"
    ),
    "move to no broker": Refused(move_chunk(replicas=()), C.INVALID_REPLICA_ASSIGNMENT, "t-0"),
    "move to a stranger": Refused(
        move_chunk(replicas=(2, 9)), C.INVALID_REPLICA_ASSIGNMENT, "broker 9"
    ),
    # coordinators
    "assign an unknown topic": Refused(assign(ID_UNKNOWN, 0, 1), C.UNKNOWN_TOPIC_ID),
    "assign internal": Refused(assign(DISKLESS_ID, 0, 1), C.INVALID_TOPIC_EXCEPTION),
}


def _outcome(answer: Any) -> tuple[int, str]:
    """Return the code and the message of the requested item, wherever the api has them."""
    for name in ("topics", "results", "responses"):
        items = getattr(answer, name, None)
        if items:
            answer = items[0]
            break
    if getattr(answer, "partitions", None) and not hasattr(answer, "error_code"):
        answer = answer.partitions[0]
    return answer.error_code, getattr(answer, "error_message", None) or ""


@pytest.fixture
def world() -> World:
    return fresh()


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_the_controller_refuses_an_invalid_request_with_code_and_message_and_no_record(
    case: str, world: World
) -> None:
    request, code, names = REFUSED[case]
    before, end = records_of(world.image), world.log.end_offset
    got, message = _outcome(world.ask(request))
    assert (ErrorCode(got), names in message) == (code, True), message
    assert records_of(world.image) == before
    assert world.log.end_offset == end, "a refusal that writes"


def test_the_controller_still_serves_requests_after_every_kind_of_refusal(world: World) -> None:
    end = world.log.end_offset
    for refused in REFUSED.values():
        world.ask(refused.request)
    assert world.log.end_offset == end
    topic = world.image.topic("t")
    assert topic is not None
    assert world.ask(chunk(start=150)).results[0].error_code == 0
    assert world.ask(move_chunk(epoch=0)).results[0].error_code == 0
    assert world.ask(assign(topic.topic_id, 5, 1)).responses[0].partitions[0].error_code == 3
    assert world.ask(assign(topic.topic_id, 0, 2)).responses[0].partitions[0].error_code == 42


def test_an_invalid_topic_in_create_topics_does_not_affect_the_requests_other_topics() -> None:
    world = fresh()
    many = (*creation("ok").topics, *creation("a b").topics, *creation("fine", 3).topics)
    answer = world.ask(topics.CreateTopicsRequest(topics=many))
    assert [topic.error_code for topic in answer.topics] == [0, 17, 0]
    assert {"ok", "fine"} <= set(world.image.topic_ids)


def test_a_controller_request_with_validate_only_writes_no_record() -> None:
    world = fresh()
    end = world.log.end_offset
    answer = world.ask(creation("x", 3, validate_only=True))
    assert answer.topics[0].error_code == 0
    assert answer.topics[0].num_partitions == 3
    assert world.log.end_offset == end
    assert "x" not in world.image.topic_ids


def test_the_controller_refuses_an_append_to_a_setting_whose_value_would_not_fit_in_a_record() -> (
    None
):
    """Each appended part alone is short enough."""
    world = fresh()
    name = "leader.replication.throttled.replicas"
    first, second = (",".join(f"{n}:1" for n in range(at, at + 3_000)) for at in (1_000, 4_000))
    assert world.ask(alter(2, "t", name, first, 2)).responses[0].error_code == 0
    refused = world.ask(alter(2, "t", name, second, 2)).responses[0]
    assert (refused.error_code, name in refused.error_message) == (C.INVALID_CONFIG, True)
    assert world.create("next").topics[0].error_code == 0, "the controller goes on"


TOO_MANY = Limits().max_items_of_request + 1


def test_describe_configs_with_too_many_resources_returns_policy_violation_and_no_setting() -> None:
    world = fresh()
    resource = DescribeConfigsRequest.DescribeConfigsResource
    one = resource(resource_type=2, resource_name="t", configuration_keys=None)
    described = world.ask(DescribeConfigsRequest(resources=(one,) * TOO_MANY))
    assert {result.error_code for result in described.results} == {C.POLICY_VIOLATION}
    assert not any(result.configs for result in described.results)


def test_the_controller_refuses_the_items_of_a_request_past_the_limit_of_records() -> None:
    world = World(limits=Limits(max_records_of_request=2)).elect()
    world.register(1)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resource.AlterableConfig(name="retention.ms", config_operation=0, value="7")
    for name in ("a", "b", "c"):
        world.create(name)
    request = IncrementalAlterConfigsRequest(
        resources=tuple(
            resource(resource_type=2, resource_name=name, configs=(change,))
            for name in ("a", "b", "c")
        ),
        validate_only=False,
    )
    answers = world.ask(request).responses
    assert [answer.error_code for answer in answers] == [0, 0, C.POLICY_VIOLATION]
    assert "'c'" in answers[2].error_message


# --- caps of the cluster ------------------------------------------------------------------------


def test_the_controller_refuses_to_create_more_topics_than_the_limit_and_writes_no_record() -> None:
    world = World(limits=Limits(max_topics=2)).elect()
    world.register(1)
    assert error_codes(world.ask(creation("one"))) == error_codes(world.ask(creation("two"))) == {0}
    before = world.log.end_offset
    answer = world.ask(creation("three"))
    assert error_codes(answer) == {C.POLICY_VIOLATION}
    assert "esker.max.topics" in (answer.topics[0].error_message or "")
    assert world.log.end_offset == before
    assert error_codes(world.ask(delete("one"))) == {0}
    assert error_codes(world.ask(creation("three"))) == {0}


def test_the_controller_refuses_to_create_more_partitions_than_the_limit_and_writes_no_record() -> (
    None
):
    world = World(limits=Limits(max_partitions=5)).elect()
    world.register(1)
    assert error_codes(world.ask(creation("one", 3))) == {0}
    before = world.log.end_offset
    for refused in (creation("two", 3), grow("one", 6)):
        answer = world.ask(refused)
        assert error_codes(answer) == {C.POLICY_VIOLATION}
        assert world.log.end_offset == before
    assert error_codes(world.ask(creation("two", 2))) == {0}
    assert error_codes(world.ask(grow("one", 4))) == {C.POLICY_VIOLATION}
