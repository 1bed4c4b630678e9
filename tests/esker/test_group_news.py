"""What a node tells its log of groups of the cluster log: brokers at work, topics that went."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.features import Features, may_write_format
from coordinator.persistent_map import Map
from esker.server.groups import ClusterNews
from records.metadata import RegisterBrokerRecord
from records.types import Offset


def broker(broker_id: int, **more: Any) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=broker_id),
        broker_epoch=1,
        end_points=(),
        features=(),
        rack=None,
        **more,
    )


def image(offset: int, brokers: tuple[RegisterBrokerRecord, ...], *topics: int) -> MetadataImage:
    ids, found = Map[UUID, TopicImage](), Map[int, RegisterBrokerRecord]()
    for topic in topics:
        topic_id = UUID(int=topic)
        ids = ids.set(topic_id, TopicImage(f"t{topic}", topic_id, Map(), Map(), Map()))
    for one in brokers:
        found = found.set(one.broker_id, one)
    return MetadataImage(offset=Offset(offset), brokers=found, topics=ids)


class Heard:
    """News, and the topics that it told of."""

    def __init__(self) -> None:
        self.gone: list[int] = []
        self.news = ClusterNews(lambda topic_id: self.gone.append(topic_id.int))


def test_consumer_groups_are_assigned_only_to_unfenced_brokers_not_in_shutdown() -> None:
    heard = Heard()
    assert heard.news.brokers is None, "nothing is known: nobody is refused"
    at_work, fenced = broker(1, fenced=False), broker(2, fenced=True)
    leaving = broker(3, fenced=False, in_controlled_shutdown=True)
    heard.news.on_image(image(5, (at_work, fenced, leaving)))
    assert heard.news.brokers == (1,)
    heard.news.on_image(image(6, (at_work, broker(2, fenced=False), leaving)))
    assert heard.news.brokers == (1, 2)


def test_the_group_log_ignores_the_lower_feature_level_of_an_older_metadata_image() -> None:
    heard = Heard()
    assert not may_write_format(heard.news.features, 2)
    levels = Features(Map().set("esker.version", 2))
    heard.news.on_image(replace(image(5, ()), features=levels))
    assert may_write_format(heard.news.features, 2)
    heard.news.on_image(image(4, ()))  # the log is read again
    assert may_write_format(heard.news.features, 2)


def test_the_group_coordinator_is_notified_once_of_each_topic_deletion() -> None:
    heard = Heard()
    heard.news.on_image(image(5, (), 1, 2, 3))
    heard.news.on_image(image(6, (), 1, 3, 4))
    heard.news.on_image(image(7, (), 1, 3, 4))
    assert heard.gone == [2]


def test_a_broker_that_rereads_the_cluster_log_deletes_only_topics_missing_at_its_end() -> None:
    """A replica that fell behind the log's start begins with an empty state, then a checkpoint."""
    heard = Heard()
    heard.news.on_image(image(5, (broker(1, fenced=False),), 1, 2))
    heard.news.on_image(MetadataImage())
    heard.news.on_image(image(3, (), 1))
    assert heard.gone == [], "topic 2 was made later"
    assert heard.news.brokers == (1,)
    heard.news.on_image(image(90, (broker(1, fenced=True),), 2, 3))
    assert heard.gone == [1]
    assert heard.news.brokers == ()
