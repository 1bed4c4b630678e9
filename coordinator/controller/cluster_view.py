"""Presents the controller's image as a `coordinator.batch.cluster_view.ClusterView`.

Source: docs/design/controller.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final
from uuid import UUID

from coordinator.batch.cluster_view import Enforcer, TopicConfig
from coordinator.controller.config_defs import DELETE
from coordinator.controller.decide.configs import (
    CLUSTER_DEFAULT,
    cleanup_policies,
    topic_value,
)
from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.features import Features

IN_THE_FUTURE: Final = 2**62  # ms: of ids that this image has not allocated yet


class ImageView:
    """A ClusterView of the newest published image."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def features(self) -> Features:
        """Return the finalized feature levels of the cluster image."""
        return self._image().features

    def topic_config(self, topic_id: UUID) -> TopicConfig | None:
        """Return a topic's retention settings: no limits unless cleanup.policy contains `delete`.

        A limit with an invalid value counts as unlimited.
        """
        image = self._image()
        topic: TopicImage | None = image.topics.get(topic_id)
        if topic is None:
            return None
        is_deleted = DELETE in cleanup_policies(image, topic.name)
        keep_ms, keep_bytes = (
            _limit(topic_value(image, topic.name, name)) if is_deleted else None
            for name in ("retention.ms", "retention.bytes")
        )
        return TopicConfig(
            retention_ms=keep_ms,
            retention_bytes=keep_bytes,
            enforcer=_enforcer(topic_value(image, topic.name, "esker.retention.enforcer")),
        )

    def broker_epoch(self, broker_id: int) -> int:
        """Return the epoch of a broker's registration, or -1 if the broker is not registered."""
        broker = self._image().brokers.get(broker_id)
        return -1 if broker is None else int(broker.broker_epoch)

    def controller_epoch(self) -> int:
        """Return the epoch of the last committed record in this node's copy of the cluster log."""
        return self._image().epoch

    def producer_id_handed_out_ms(self, producer_id: int) -> int | None:
        """Return a producer id's allocation time in ms since 1970, or None if it is unknown."""
        blocks = self._image().producer_ids
        index = bisect_right(blocks, producer_id, key=lambda block: block.next_producer_id)
        if index == len(blocks):
            return IN_THE_FUTURE
        time_ms = blocks[index].block_time_ms
        return None if time_ms < 0 else time_ms

    def last_producer_id_before(self, time_ms: int) -> int:
        """Return the largest producer id allocated up to `time_ms`, or -1 if no id was."""
        blocks = self._image().producer_ids
        old = (block for block in blocks if block.block_time_ms <= time_ms)
        return max((block.next_producer_id - 1 for block in old), default=-1)

    def producer_expiration_ms(self) -> int:
        """Return the cluster-wide `producer.id.expiration.ms`."""
        value = self._image().config(CLUSTER_DEFAULT, "producer.id.expiration.ms")
        found = _limit(value) if value is not None else None
        return 86_400_000 if found is None else found


def _limit(value: str) -> int | None:
    """Parse a retention limit; return None, no limit, for a negative or invalid number."""
    try:
        number = int(value)
    except ValueError:
        return None
    return None if number < 0 else number


def _enforcer(value: str) -> Enforcer:
    try:
        return Enforcer(value)
    except ValueError:
        return Enforcer.EXTERNAL
