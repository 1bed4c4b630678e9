"""What a new controller finds when it goes through all topics: missing here, left over there.

It knows nothing of what its predecessor told to whom, so it compares its whole image with all that
a coordinator has. That is some 60 ms for ten thousand topics, and brokers' heartbeats come
meanwhile: so it looks at a few hundred at a time.

The surprise is what does not matter: topics that come or go between two slices. The image that is
compared stands still, and whoever creates or deletes a topic tells the coordinators of it anyway.

Source: docs/design/controller.md#hand-over-between-groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage

SLICE_TOPICS: Final = 250
"""One and a half ms, if they have ten partitions each."""

STRANGERS_OF_SLICE: Final = 4_000
"""Of which it is only asked whether they are known."""

Hosted: TypeAlias = Mapping[UUID, frozenset[int]]
"""What a coordinator has: topic id -> partitions. Tombstones are not there."""


class Wanted(NamedTuple):
    """What a coordinator is to have of a topic."""

    name: str
    partitions: int  # so many, from 0 on
    restored: frozenset[int]  # let go under an earlier controller, and wanted again


class Comparison:
    """One coordinator's, in slices: `go_on` until it says that there is no more."""

    def __init__(self, image: MetadataImage, coordinator: int, hosted: Hosted) -> None:
        self.missing: dict[UUID, Wanted] = {}
        self.left_over: list[UUID] = []
        self._image = image
        self._coordinator = coordinator
        self._hosted = hosted
        self._topics: Iterator[TopicImage] = image.iter_topics()
        self._strangers = iter(hosted)

    def go_on(self) -> bool:
        """Look at a few more; is there perhaps something left to look at?"""
        looked = 0
        for topic in islice(self._topics, SLICE_TOPICS):
            looked += 1
            wanted = lacking(topic, self._coordinator, self._hosted)
            if wanted is not None:
                self.missing[topic.topic_id] = wanted
        if looked == SLICE_TOPICS:
            return True
        looked = 0
        for topic_id in islice(self._strangers, STRANGERS_OF_SLICE):
            looked += 1
            if topic_id not in self._image.topics:
                self.left_over.append(topic_id)
        return looked == STRANGERS_OF_SLICE


def lacking(topic: TopicImage, coordinator: int, hosted: Hosted) -> Wanted | None:
    """What a coordinator lacks of a topic. None: nothing.

    What it lacks of a topic that it knows, it may have let go: that is named one by one.
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
    return Wanted(topic.name, max(own) + 1, restored)


def hosted_counts(topic: TopicImage) -> dict[int, int]:
    """For each coordinator that has any of a topic's partitions: so many from 0 on.

    An Init names a number, not a list, so a coordinator of partitions 0 and 5 is told of six. The
    mapping says which of them are its own.
    """
    counts: dict[int, int] = {}
    for index in topic.partitions:
        coordinator = topic.coordinator(index)
        counts[coordinator] = max(counts.get(coordinator, 0), index + 1)
    return counts
