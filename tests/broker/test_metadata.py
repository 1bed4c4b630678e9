"""Metadata: the same from every broker, and Kafka's errors. Source: DESIGN §8; KIP-1114."""

from __future__ import annotations

from uuid import UUID

from coordinator.controller.image import MetadataImage
from diskless.metadata import ClientView, describe, unfenced
from diskless.placement import leader
from records.codec import decode_message, encode_message
from records.rpc.brokers import BrokerHeartbeatRequest
from records.rpc.cluster import MetadataRequest, MetadataResponse
from tests.controller.test_chunks import with_topic
from tests.controller.test_refusals import chunk
from tests.controller.world import World

VIEW = ClientView("c-1", "PLAIN", None)
_asked = MetadataRequest.MetadataRequestTopic


def ask(image: MetadataImage, *names: str, version: int = 12) -> MetadataResponse:
    request = MetadataRequest(topics=tuple(_asked(name=name) for name in names) or None)
    answer = describe(request, version, image, VIEW)
    return decode_message(MetadataResponse, encode_message(answer, version), version)


def beating() -> World:
    """A topic t of two partitions, and three brokers whose heartbeats have unfenced them."""
    world = with_topic()
    for broker_id, broker in world.image.brokers.items():
        world.ask(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                current_metadata_offset=world.image.offset,
                want_fence=False,
                want_shut_down=False,
            )
        )
    return world


def test_a_topic_is_described_at_every_version() -> None:
    image = beating().image
    for version in range(14):
        answer = ask(image, "t", version=version)
        (topic,) = answer.topics
        assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "t", 2)
        assert {broker.node_id for broker in answer.brokers} == {1, 2, 3}
        for partition in topic.partitions:
            expected = leader(
                image.topic("t").topic_id,  # type: ignore[union-attr]
                partition.partition_index,
                None,
                unfenced(image),
            )
            assert partition.leader_id == expected
            assert partition.leader_id in partition.isr_nodes == partition.replica_nodes
            assert partition.leader_epoch == (0 if version >= 7 else -1)


def test_all_topics_are_asked_for_by_null_or_in_version_0_by_none() -> None:
    image = beating().image
    assert [t.name for t in ask(image).topics] == sorted(image.topic_ids)
    none = MetadataRequest(topics=())
    assert len(describe(none, 0, image, VIEW).topics) == len(image.topics)
    assert describe(none, 1, image, VIEW).topics == ()
    internal = {t.name: t.is_internal for t in ask(image).topics}
    assert internal["__diskless-metadata"]
    assert not internal["t"]


def test_what_is_unknown_has_an_error_of_its_own() -> None:
    image = beating().image
    by_name = ask(image, "nowhere", "t").topics
    assert [(t.name, t.error_code) for t in by_name] == [("nowhere", 3), ("t", 0)]
    request = MetadataRequest(topics=(_asked(topic_id=UUID(int=99), name=None),))
    (by_id,) = describe(request, 12, image, VIEW).topics
    assert (by_id.error_code, by_id.topic_id) == (100, UUID(int=99))


def test_fenced_brokers_are_not_named_and_lead_nothing() -> None:
    world = with_topic()
    image = MetadataImage(
        topics=world.image.topics, topic_ids=world.image.topic_ids, offset=world.image.offset
    )
    answer = ask(image, "t")
    assert answer.brokers == ()
    assert answer.controller_id == -1
    for partition in answer.topics[0].partitions:
        assert (partition.error_code, partition.leader_id) == (5, -1)
        assert partition.isr_nodes == ()


def test_a_client_hears_of_brokers_by_its_own_listener() -> None:
    answer = describe(
        MetadataRequest(topics=()), 12, beating().image, VIEW._replace(listener="OTHER")
    )
    assert answer.brokers == ()


def test_chunks_travel_in_tagged_fields() -> None:
    world = beating()
    world.ask(chunk(replicas=(3, 1), start=10))
    cut, whole = ask(world.image, "t").topics[0].partitions
    assert cut.start_offset == 10
    assert [(c.start_offset, c.end_offset, c.replica_nodes) for c in cut.chunks] == [(0, 9, (1, 2))]
    assert (whole.start_offset, whole.chunks) == (-1, ())
