"""Descriptions of topics and brokers from an image. Source: KIP-1114; docs/design/chunks.md."""

from __future__ import annotations

import pytest

from coordinator.controller import descriptions as describing
from coordinator.controller.descriptions import describe_brokers, describe_topics
from coordinator.controller.image import MetadataImage
from coordinator.controller.service import MAX_KEYS, ControllerService
from records.rpc.descriptions import DescribeBrokersRequest, DescribeTopicsRequest
from records.rpc.topics import FindCoordinatorRequest
from tests.coordinator.controller.test_chunks import with_topic
from tests.coordinator.controller.test_refusals import chunk


def test_a_topic_description_lists_every_chunk_of_a_partition_with_several_chunks() -> None:
    world = with_topic()
    world.ask(chunk(replicas=(3, 1), start=10))
    world.ask(chunk(replicas=(1, 2), start=25))
    answer = describe_topics(DescribeTopicsRequest(topic_names=("t",)), world.image)
    assert answer.image_offset == world.image.offset
    cut, whole = answer.topics[0].partitions
    assert [(c.start_offset, c.stop_offset, c.end_offset, c.replicas) for c in cut.chunks] == [
        (0, 9, 9, (1, 2)),
        (10, 24, 24, (3, 1)),
        (25, -1, -1, (1, 2)),
    ]
    assert whole.chunks == ()


def test_the_controller_describes_topics_by_name_with_errors_for_unknown_names() -> None:
    world = with_topic()
    world.create("a", 1)
    answer = describe_topics(DescribeTopicsRequest(), world.image)
    names = [topic.topic_name for topic in answer.topics]
    assert names == sorted(names)
    assert {"a", "t"} <= set(names)
    assert [t.topic_name for t in answer.topics if not t.is_internal] == ["a", "t"]
    answer = describe_topics(DescribeTopicsRequest(topic_names=("x", "a")), world.image)
    assert [(t.topic_name, t.error_code) for t in answer.topics] == [("a", 0), ("x", 3)]


def test_a_broker_refuses_to_describe_topics_with_too_many_partitions_in_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_topic()
    monkeypatch.setattr(describing, "MAX_PARTITIONS", 1)
    answer = describe_topics(DescribeTopicsRequest(), world.image)
    assert answer.error_code == 42
    assert answer.topics == ()
    answer = describe_topics(DescribeTopicsRequest(topic_names=("x", "y")), world.image)
    assert (answer.error_code, answer.topics) == (42, ())


def test_describe_brokers_returns_whether_each_broker_is_fenced() -> None:
    world = with_topic()
    answer = describe_brokers(DescribeBrokersRequest(), world.image)
    assert [broker.broker_id for broker in answer.brokers] == [1, 2, 3]
    for broker in answer.brokers:
        known = world.image.brokers[broker.broker_id]
        assert (broker.is_fenced, broker.broker_epoch) == (known.fenced, known.broker_epoch)


def test_find_coordinator_refuses_each_key_beyond_the_limit_of_keys_in_a_request() -> None:
    service = ControllerService(
        lambda *_: None,
        image=MetadataImage,
        find_log=lambda *_: None,
        endpoint=lambda _: None,
        node_id=1,
    )
    keys = ("nonsense",) * (MAX_KEYS + 2)
    found = service.find_coordinators(FindCoordinatorRequest(key_type=3, coordinator_keys=keys))
    assert len(found.coordinators) == len(keys)
    last = found.coordinators[-1]
    assert (last.error_code, last.node_id) == (42, -1)
    assert "10002 keys; at most 10000" in (last.error_message or "")


def test_create_topics_explains_why_requested_replicas_have_no_effect_on_an_object_store() -> None:
    world = with_topic()  # of three brokers
    assert world.create("plain", factor=3).topics[0].error_message is None
    assert world.create("default", factor=-1).topics[0].error_message is None
    (many,) = world.create("many", factor=5).topics
    (assigned,) = world.create("assigned", -1, factor=-1, assignments={0: (2,)}).topics
    for topic, factor in ((many, 3), (assigned, 1)):
        assert (topic.error_code, topic.replication_factor) == (0, factor)
        assert (topic.error_message or "").startswith("The object store keeps the copies")
