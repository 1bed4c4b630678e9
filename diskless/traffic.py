"""Counts what producers sent and consumers got, by topic.

Source: docs/broker.md#metrics-of-a-broker; `diskless.topic_metrics` exports the counts.
"""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.persistent_map import Map


class Traffic:
    """Counts of accepted and served data by topic id, since the process began."""

    def __init__(self, topics: Map[UUID, TopicImage]) -> None:
        """Create counts of zero.

        Args:  topics: those of the present image.
        """
        self.records_in = Counter[UUID]()
        self.bytes_in = Counter[UUID]()  # of batches
        self.bytes_out = Counter[UUID]()
        self._topics = topics  # of the newest image

    def on_image(self, image: MetadataImage) -> None:
        """Forget the counts of deleted topics."""
        if image.topics is self._topics:
            return
        before, self._topics = self._topics, image.topics
        for topic_id in before.gone(image.topics):
            for counts in (self.records_in, self.bytes_in, self.bytes_out):
                counts.pop(topic_id, None)
