"""An offset belongs to a topic id; the broker's image maps names to ids, and may be old."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.groups.leader import MAX_GONE_TOPICS
from records.rpc.groups import ListGroupsRequest, OffsetFetchRequest, OffsetFetchResponse
from tests.coordinator.groups.world import GROUP, TOPICS, World

NAMED, BY_ID, OLD = 9, 10, 7
LOADING, UNKNOWN_TOPIC_ID, NOT_AVAILABLE = 14, 100, 15
UNKNOWN_TOPIC_OR_PARTITION = 3
BEFORE, NOW = (UUID(int=70), 4), TOPICS["t"]


def question(version: int, *, everything: bool = False) -> OffsetFetchRequest:
    """Build an OffsetFetch of t-0, or of all the group's offsets."""
    if version == OLD:
        one = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
        return OffsetFetchRequest(group_id=GROUP, topics=None if everything else (one,))
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    called: dict[str, Any] = {"topic_id": NOW[0]} if version == BY_ID else {"name": "t"}
    topic = group.OffsetFetchRequestTopics(**called, partition_indexes=(0,))
    return OffsetFetchRequest(
        groups=(group(group_id=GROUP, topics=None if everything else (topic,)),)
    )


def outcome(answer: Any) -> tuple[int, list[tuple[int, int]]]:
    """Return the group's error, and the error and offset of each partition."""
    assert isinstance(answer, OffsetFetchResponse)
    group = answer.groups[0] if answer.groups else answer
    found = [(p.error_code, p.committed_offset) for t in group.topics for p in t.partitions]
    return group.error_code, found if not group.error_code else []


def world_with_an_offset() -> World:
    """Return a world with an offset that was committed through an up-to-date broker."""
    world = World()
    assert world.commit(offset=5, version=NAMED) == 0
    return world


@pytest.mark.parametrize("everything", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("version", [OLD, NAMED, BY_ID])
def test_an_offset_fetch_at_a_broker_with_old_metadata_returns_the_new_topics_committed_offset(
    version: int, everything: bool
) -> None:
    """The topic was recreated and the group has committed since; this broker's image is older."""
    world = world_with_an_offset()
    world.topics.known["t"], world.topics.level_at_ms = BEFORE, world.now_ms - 1
    ticket = world.send(question(version, everything=everything), version=version)
    world.pass_ms(300)
    assert ticket not in world.answers
    world.topics.known["t"], world.topics.level_at_ms = NOW, world.now_ms
    world.pass_ms(500)
    assert outcome(world.answers[ticket]) == (0, [(0, 5)])


@pytest.mark.parametrize("version", [OLD, NAMED, BY_ID])
def test_an_offset_fetch_at_a_broker_whose_metadata_stays_old_gets_a_retriable_error(
    version: int,
) -> None:
    """The error is the only one that all clients retry."""
    world = world_with_an_offset()
    world.topics.known["t"], world.topics.level_at_ms = BEFORE, None
    ticket = world.send(question(version), version=version)
    world.pass_ms(world.settings.answer_timeout_ms)
    assert outcome(world.answers[ticket])[0] == LOADING


def test_a_broker_returns_no_offset_of_a_deleted_topic_for_a_new_topic_of_the_same_name() -> None:
    world = world_with_an_offset()
    world.topics.known["t"], world.topics.level_at_ms = (UUID(int=99), 4), world.now_ms - 1
    ticket = world.send(question(NAMED), version=NAMED)
    assert ticket not in world.answers
    world.topics.level_at_ms = world.now_ms
    world.pass_ms(500)
    assert outcome(world.answers[ticket]) == (0, [(0, -1)])


def test_an_offset_request_reports_an_unknown_topic_id_once_the_brokers_metadata_is_current() -> (
    None
):
    world = world_with_an_offset()
    world.topics.known, world.topics.level_at_ms = {}, world.now_ms - 1
    ticket = world.send(question(BY_ID), version=BY_ID)
    assert ticket not in world.answers
    world.topics.level_at_ms = world.now_ms
    world.pass_ms(500)
    assert outcome(world.answers[ticket]) == (0, [(UNKNOWN_TOPIC_ID, -1)])


def test_a_fenced_broker_refuses_list_groups() -> None:
    """A fenced or unregistered broker coordinates no groups, so it answers with an error."""
    world = world_with_an_offset()
    assert [group.group_id for group in world.ask(ListGroupsRequest()).groups] == [GROUP]
    world.unfenced.clear()
    world.tell_brokers()
    answer = world.ask(ListGroupsRequest(), broker=1)
    assert (answer.error_code, answer.groups) == (NOT_AVAILABLE, ())


@pytest.mark.parametrize("is_swept", [False, True])
def test_the_group_log_stores_no_commit_by_topic_name_under_a_deleted_topics_id(
    is_swept: bool,
) -> None:
    """The topic was recreated, and this broker's image is older: the stored offset could never be
    fetched, though it was acknowledged. So the commit gets an error that clients retry.
    """
    world = World()
    world.topics.known["t"] = BEFORE
    assert world.commit(offset=3, version=NAMED) == 0
    world.groups.topic_deleted(BEFORE[0])
    if is_swept:
        world.groups.expire_groups()
        world.run()
    assert world.commit(offset=5, version=NAMED) == LOADING
    world.topics.known["t"] = NOW
    assert world.commit(offset=5, version=NAMED) == 0
    assert world.committed() == 5


def test_an_offset_commit_for_a_deleted_topic_gets_an_unknown_topic_error() -> None:
    world = World()
    world.groups.topic_deleted(NOW[0])
    assert world.commit(offset=5, version=NAMED) == LOADING
    del world.topics.known["t"]
    assert world.commit(offset=5, version=NAMED) == UNKNOWN_TOPIC_OR_PARTITION


def test_the_group_log_stores_the_ids_of_a_bounded_number_of_deleted_topics() -> None:
    world = World()
    for number in range(MAX_GONE_TOPICS):
        world.groups.topic_deleted(UUID(int=1_000 + number))
    world.groups.topic_deleted(NOW[0])
    assert world.commit(offset=5, version=NAMED) == LOADING
    assert len(world.groups.context(world.machine.image, 0).gone_topics) == MAX_GONE_TOPICS
