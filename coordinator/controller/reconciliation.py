"""Compares a new controller's image with what a batch coordinator has.

A new controller does not know which calls its predecessor made, so it compares its whole image with
everything a coordinator has. That takes some 60 ms for ten thousand topics, and brokers' heartbeats
arrive meanwhile: so it compares a few hundred topics at a time.

Topics that are created or deleted between two slices do not matter: the compared image is
immutable, and every creation or deletion informs the coordinators anyway.

Source: docs/design/controller.md#hand-over-between-groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage

SLICE_TOPICS: Final = 250
"""Topics of one slice: one and a half ms, with ten partitions each."""

SLICE_HOSTED_TOPICS: Final = 4_000
"""Topics of one slice that are only looked up in the image."""

HostedPartitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""The partitions of a coordinator by topic id, without tombstones."""


class WantedTopic(NamedTuple):
    """The partitions of a topic that a coordinator is to have."""

    name: str
    partitions: int  # their number, from 0 on
    restored: frozenset[int]  # released under an earlier controller, to be created again


class Reconciliation:
    """The comparison of one coordinator: call `compare_slice` until it returns False."""

    def __init__(self, image: MetadataImage, coordinator: int, hosted: HostedPartitions) -> None:
        self.missing: dict[UUID, WantedTopic] = {}
        self.left_over: list[UUID] = []
        self._image = image
        self._coordinator = coordinator
        self._hosted = hosted
        self._topics: Iterator[TopicImage] = image.iter_topics()
        self._hosted_ids = iter(hosted)

    def compare_slice(self) -> bool:
        """Compare the image's next topics with the coordinator's; return whether more remain."""
        looked = 0
        for topic in islice(self._topics, SLICE_TOPICS):
            looked += 1
            wanted = missing_partitions(topic, self._coordinator, self._hosted)
            if wanted is not None:
                self.missing[topic.topic_id] = wanted
        if looked == SLICE_TOPICS:
            return True
        looked = 0
        for topic_id in islice(self._hosted_ids, SLICE_HOSTED_TOPICS):
            looked += 1
            if topic_id not in self._image.topics:
                self.left_over.append(topic_id)
        return looked == SLICE_HOSTED_TOPICS


def missing_partitions(
    topic: TopicImage, coordinator: int, hosted: HostedPartitions
) -> WantedTopic | None:
    """Return a topic's partitions that a batch coordinator lacks; None if there are none.

    If it knows the topic, it may have released the missing partitions: those are named one by one.
    """
    if topic.is_internal:
        return None
    if topic.coordinators:
        own = {index for index in topic.partitions if topic.coordinator(index) == coordinator}
    else:
        own = set(topic.partitions) if coordinator == 0 else set()
    rest = own - hosted.get(topic.topic_id, frozenset())
    if not rest:
        return None
    restored = frozenset(rest if topic.topic_id in hosted else ())
    return WantedTopic(topic.name, max(own) + 1, restored)


def hosted_counts(topic: TopicImage) -> dict[int, int]:
    """Return the number of partitions of a topic that each of its coordinators must create.

    An Init names a number, not a list, so a coordinator of partitions 0 and 5 creates six. The
    mapping defines which of them are its own.
    """
    counts: dict[int, int] = {}
    for index in topic.partitions:
        coordinator = topic.coordinator(index)
        counts[coordinator] = max(counts.get(coordinator, 0), index + 1)
    return counts
