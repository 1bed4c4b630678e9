"""Metadata: the same from every broker, and Kafka's errors.

Source: docs/design/broker.md#any-broker-leads; KIP-1114.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.controller.apply import ImageEdit
from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import (
    PlacedBroker,
    PlacementScope,
    leader,
    leaders,
    place,
    placement_scope,
    unfenced_brokers,
)
from coordinator.rendezvous import group_broker
from diskless.apis.metadata import ClientView, describe, reachable
from diskless.loop_turns import SLICE_PARTITIONS, Pace
from records.codec import decode_message, encode_message
from records.metadata import BrokerRegistrationChangeRecord
from records.rpc.brokers import BrokerHeartbeatRequest
from records.rpc.cluster import MetadataRequest, MetadataResponse
from tests.coordinator.controller.test_chunks import with_topic
from tests.coordinator.controller.test_refusals import chunk
from tests.coordinator.controller.world import World

VIEW = ClientView("c-1", "PLAIN", None)
_asked = MetadataRequest.MetadataRequestTopic


def answer_to(
    request: MetadataRequest, version: int, image: MetadataImage, view: ClientView = VIEW
) -> MetadataResponse:
    answer = asyncio.run(describe(request, version, image, view))
    return decode_message(MetadataResponse, encode_message(answer, version), version)


def ask(image: MetadataImage, *names: str, version: int = 12) -> MetadataResponse:
    request = MetadataRequest(topics=tuple(_asked(name=name) for name in names) or None)
    return answer_to(request, version, image)


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


def test_metadata_describes_a_topic_at_every_version() -> None:
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
                unfenced_brokers(image),
            )
            assert partition.leader_id == expected
            assert partition.leader_id in partition.isr_nodes == partition.replica_nodes
            assert partition.leader_epoch == (0 if version >= 7 else -1)


def test_metadata_returns_all_topics_for_a_null_list_and_in_version_0_for_an_empty_list() -> None:
    image = beating().image
    assert [t.name for t in ask(image).topics] == sorted(image.topic_ids)
    none = MetadataRequest(topics=())
    assert len(answer_to(none, 0, image).topics) == len(image.topics)
    assert answer_to(none, 1, image).topics == ()
    internal = {t.name: t.is_internal for t in ask(image).topics}
    assert internal["__diskless-metadata"]
    assert not internal["t"]


def test_metadata_returns_an_error_for_each_unknown_topic() -> None:
    image = beating().image
    by_name = ask(image, "nowhere", "t").topics
    assert [(t.name, t.error_code) for t in by_name] == [("nowhere", 3), ("t", 0)]
    request = MetadataRequest(topics=(_asked(topic_id=UUID(int=99), name=None),))
    (by_id,) = answer_to(request, 12, image).topics
    assert (by_id.error_code, by_id.topic_id) == (100, UUID(int=99))


def test_metadata_finds_a_topic_by_its_id_and_returns_its_name() -> None:
    image = beating().image
    topic_id = image.topic_ids["t"]
    request = MetadataRequest(topics=(_asked(topic_id=topic_id, name=None),))
    (found,) = answer_to(request, 12, image).topics
    assert (found.error_code, found.name, found.topic_id) == (0, "t", topic_id)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_versions_10_and_11_refuse_topic_ids(version: int) -> None:
    """KAFKA-13428."""
    image = beating().image
    request = MetadataRequest(topics=(_asked(topic_id=image.topic_ids["t"], name="t"),))
    (refused,) = answer_to(request, version, image).topics
    assert refused.error_code == 42


def test_metadata_describes_a_topic_once_that_its_request_names_repeatedly() -> None:
    """Otherwise a request of a megabyte could cause a response of many."""
    image = beating().image
    assert len(ask(image, *["t"] * 1_000, "u", "u").topics) == 2


@pytest.mark.parametrize("names", [None, ["t", "u"] * 5_000])
def test_metadata_yields_to_the_event_loop_after_each_slice(
    monkeypatch: pytest.MonkeyPatch, names: list[str] | None
) -> None:
    """Neither a list of all topics nor names that are repeated are worked through in one turn."""
    image = beating().image
    topic_ids = image.topic_ids.edit()
    for number in range(5_000):
        topic_ids.set(f"t{number}", image.topic_ids["t"])
    image = replace(image, topic_ids=topic_ids.freeze())
    topics = None if names is None else tuple(_asked(name=name) for name in names)
    steps = 0
    yielded: list[int] = []
    step = Pace.step

    async def counted(pace: Pace, count: int = 1) -> None:
        nonlocal steps
        steps += count
        await step(pace, count)

    async def watch() -> None:
        nonlocal steps
        while True:
            yielded.append(steps)
            steps = 0
            await asyncio.sleep(0)

    async def main() -> None:
        watching = asyncio.ensure_future(watch())
        await describe(MetadataRequest(topics=topics), 12, image, VIEW)
        watching.cancel()

    monkeypatch.setattr(Pace, "step", counted)
    asyncio.run(main())
    assert sum(yielded) >= 5_000
    assert max(yielded) <= SLICE_PARTITIONS


def heartbeat(world: World, broker_id: int, *, fence: bool = False, leave: bool = False) -> None:
    """Send a heartbeat of a broker that has caught up."""
    world.ask(
        BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=world.image.brokers[broker_id].broker_epoch,
            current_metadata_offset=world.image.offset,
            want_fence=fence,
            want_shut_down=leave,
        )
    )


def leads_nothing(answer: MetadataResponse) -> bool:
    """Assert that each partition is without a leader, as in Kafka."""
    return all(
        (partition.error_code, partition.leader_id, partition.isr_nodes) == (5, -1, ())
        for partition in answer.topics[0].partitions
    )


def test_metadata_lists_no_fenced_broker_while_an_unfenced_broker_exists() -> None:
    world = beating()
    heartbeat(world, 2, fence=True)
    answer = ask(world.image, "t")
    assert {broker.node_id for broker in answer.brokers} == {1, 3}
    assert {partition.leader_id for partition in answer.topics[0].partitions} <= {1, 3}


def without_preference(world: World, *broker_ids: int) -> MetadataImage:
    """The image after the controller has decided against these brokers."""
    edit = ImageEdit(world.image)
    for broker_id in broker_ids:
        epoch = world.image.brokers[broker_id].broker_epoch
        change = BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=epoch, unpreferred_reason="full"
        )
        edit.apply(change)
    return edit.publish(world.image.offset, world.image.epoch)


def test_metadata_lists_a_broker_that_is_not_preferred_but_never_as_a_leader() -> None:
    world = beating()
    ids = sorted(world.image.brokers)
    for unready in ids:
        image = without_preference(world, unready)
        answer = ask(image, "t")
        assert [broker.node_id for broker in answer.brokers] == ids
        (topic,) = answer.topics
        for partition in topic.partitions:
            assert partition.leader_id != unready
            assert unready not in partition.replica_nodes
        group = "my-group"
        assert group_broker(group, [broker.broker_id for broker in unfenced_brokers(image)]) == (
            group_broker(group, ids)
        ), "groups stay"


def test_metadata_names_leaders_of_partitions_even_if_no_broker_is_preferred() -> None:
    world = beating()
    (topic,) = ask(without_preference(world, *world.image.brokers), "t").topics
    assert all(partition.leader_id in world.image.brokers for partition in topic.partitions)


def test_clients_of_a_rack_without_preferred_brokers_get_leaders_in_other_racks() -> None:
    brokers = [PlacedBroker(1, "a"), PlacedBroker(2, "b", is_preferred=False)]
    scope = placement_scope(brokers, "b")
    assert scope.rack == "b", "the rack is known"
    assert place(UUID(int=1), 0, scope).leader_id == 1


def test_metadata_lists_all_brokers_without_leaders_if_every_broker_is_fenced() -> None:
    """librdkafka forgets brokers that are not listed, and does not recover from an empty list."""
    world = beating()
    serving = ask(world.image, "t").brokers
    heartbeat(world, 1, leave=True)
    for broker_id in (2, 3):
        heartbeat(world, broker_id, fence=True)
    answer = ask(world.image, "t")
    assert answer.brokers == serving
    assert [broker.node_id for broker in serving] == [1, 2, 3]
    assert leads_nothing(answer)
    assert answer_to(MetadataRequest(topics=()), 12, world.image).brokers == serving


@pytest.mark.parametrize("asked", [None, 1, 2, 3, 4])
def test_every_metadata_response_that_lists_brokers_names_a_broker_as_the_controller(
    asked: int | None,
) -> None:
    """librdkafka's admin client asks only once, and waits for minutes if there is none."""
    world = beating()
    request, view = MetadataRequest(topics=()), VIEW._replace(broker_id=asked)
    for fenced in (1, 2, 3):
        serves = asked is not None and fenced <= asked <= 3
        expected = asked if serves else fenced  # itself, else the first that serves
        assert answer_to(request, 12, world.image, view).controller_id == expected
        heartbeat(world, fenced, fence=True)
    answer = answer_to(request, 12, world.image, view)
    assert answer.controller_id == (asked if asked in (1, 2, 3) else 1)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_fenced_or_leaving_broker_is_listed_in_the_metadata_responses_of_this_broker(
    leaves: bool,
) -> None:
    """Otherwise a client forgets it, and may be left with brokers that it cannot reach."""
    world = beating()
    heartbeat(world, 2, fence=not leaves, leave=leaves)
    request = MetadataRequest(topics=(_asked(name="t"),))
    answer = answer_to(request, 12, world.image, VIEW._replace(broker_id=2))
    assert {broker.node_id for broker in answer.brokers} == {1, 2, 3}
    others = ask(world.image, "t")
    assert {broker.node_id for broker in others.brokers} == {1, 3}
    assert (answer.topics, answer.controller_id) == (others.topics, others.controller_id)


def test_metadata_lists_no_broker_before_the_first_broker_has_registered() -> None:
    world = with_topic()
    image = MetadataImage(
        topics=world.image.topics, topic_ids=world.image.topic_ids, offset=world.image.offset
    )
    answer = ask(image, "t")
    assert (answer.brokers, answer.controller_id) == ((), -1)
    assert leads_nothing(answer)


def test_a_client_gets_the_broker_addresses_of_its_own_listener() -> None:
    """It gets no broker that it cannot reach."""
    other = VIEW._replace(listener="OTHER")
    request = MetadataRequest(topics=(_asked(name="t"),))
    answer = answer_to(request, 12, beating().image, other)
    assert answer.brokers == ()
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {-1}


def test_metadata_returns_authorized_operations_only_on_request() -> None:
    """KIP-430: all operations, as there is no authorization; the numbers are those of Kafka."""
    image = beating().image
    request = MetadataRequest(
        topics=(_asked(name="t"),),
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    answer = answer_to(request, 8, image)
    assert answer.cluster_authorized_operations == 0b1_1111_1010_0000
    assert answer.topics[0].topic_authorized_operations == 0b1101_1111_1000
    silent = ask(image, "t", version=8)
    assert silent.cluster_authorized_operations == -(2**31)
    assert silent.topics[0].topic_authorized_operations == -(2**31)


def test_a_metadata_response_has_the_chunks_of_a_partition_in_tagged_fields() -> None:
    world = beating()
    world.ask(chunk(replicas=(3, 1), start=10))
    cut, whole = ask(world.image, "t").topics[0].partitions
    assert cut.start_offset == 10
    assert [(c.start_offset, c.end_offset, c.replica_nodes) for c in cut.chunks] == [(0, 9, (1, 2))]
    assert (whole.start_offset, whole.chunks) == (-1, ())
    assert reachable(world.image, "PLAIN") == unfenced_brokers(world.image)


# --- any broker leads (docs/design/broker.md#any-broker-leads) ------------------------------------

racks = st.none() | st.sampled_from("abc")
brokers = st.dictionaries(st.integers(0, 40), racks, max_size=7).map(
    lambda found: [PlacedBroker(broker_id, rack) for broker_id, rack in sorted(found.items())]
)
topic_ids = st.integers(1, 2**128 - 1).map(lambda value: UUID(int=value))


@given(
    brokers=brokers, topic_id=topic_ids, index=st.integers(0, 99), rack=racks, order=st.randoms()
)
def test_the_placement_in_metadata_does_not_depend_on_the_order_of_brokers(
    brokers: list[PlacedBroker], topic_id: UUID, index: int, rack: str | None, order: object
) -> None:
    """The order of registrations does not matter; the replicas are each rack's leaders."""
    shuffled = list(brokers)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    here = place(topic_id, index, PlacementScope(brokers, rack))
    assert here == place(topic_id, index, PlacementScope(shuffled, rack))
    assert here.leader_id == leader(topic_id, index, rack, brokers)
    best, by_rack = leaders(topic_id, index, brokers)
    assert best == leader(topic_id, index, None, brokers)
    for one in {broker.rack for broker in brokers if broker.rack is not None}:
        assert by_rack[one] == leader(topic_id, index, one, brokers)
        assert by_rack[one] in here.replicas
    assert (here.leader_id is None) == (not brokers)


@given(
    brokers=brokers.filter(bool),
    topic_id=topic_ids,
    rack=racks,
    which=st.integers(min_value=0),
)
def test_a_broker_that_joins_or_leaves_changes_the_leaders_of_its_own_partitions_only(
    brokers: list[PlacedBroker], topic_id: UUID, rack: str | None, which: int
) -> None:
    gone = brokers[which % len(brokers)]
    rest = [broker for broker in brokers if broker != gone]
    for index in range(30):
        before = place(topic_id, index, PlacementScope(brokers, rack)).leader_id
        after = place(topic_id, index, PlacementScope(rest, rack)).leader_id
        assert before == after or before == gone.broker_id
