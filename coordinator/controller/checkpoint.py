"""Turns an image into the records of a checkpoint.

The order is upstream's (features first, because a reader needs metadata.version to read the rest),
and inside each kind by key. So replicas with the same image write the same bytes, however their
maps were built.

Source: KIP-630, Snapshot Format; upstream's ImageWriter, whose order this is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.security import Security
from records.chunks import TopicPartitionToBatchCoordinatorMapping
from records.features import METADATA_VERSION
from records.frame import encode_record
from records.metadata import ConfigRecord, FeatureLevelRecord, TopicRecord
from records.schema import MetadataRecord


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield every record of the cluster image, in the order in which a reader applies records."""
    levels = image.features.recorded
    for name in sorted(levels, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=levels[name])
    if image.timeline is not None:
        yield image.timeline
    for broker_id in sorted(image.brokers):
        yield image.brokers[broker_id]
    for controller_id in sorted(image.controllers):
        yield image.controllers[controller_id]
    for topic in image.iter_topics():
        yield from _topic_records(topic)
    for resource in sorted(image.configs):
        settings = image.configs[resource]
        for name in sorted(settings):
            yield ConfigRecord(
                resource_type=resource.type,
                resource_name=resource.name,
                name=name,
                value=settings[name],
            )
    yield from image.producer_ids
    yield from _security_records(image.security)


def _topic_records(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for index in sorted(topic.partitions):
        yield topic.partitions[index]
    for index in sorted(topic.chunks):
        yield from topic.chunks[index]
    for index in sorted(topic.coordinators):
        yield TopicPartitionToBatchCoordinatorMapping(
            partition_index=index,
            topic_id=topic.topic_id,
            batch_coordinator_partition_index=topic.coordinators[index],
        )
    for index in sorted(topic.timelines):
        yield topic.timelines[index]


def _security_records(security: Security) -> Iterator[MetadataRecord]:
    yield from _by_bytes(security.quotas.values())
    yield from _by_bytes(security.acls.values())
    yield from _by_bytes(security.scrams.values())
    yield from _by_bytes(security.tokens.values())
    if security.zk_migration is not None:
        yield security.zk_migration


def _by_bytes(records: Iterable[MetadataRecord]) -> list[MetadataRecord]:
    """Return the records sorted by their encoded bytes.

    Their keys hold nulls, which Python does not compare.
    """
    return sorted(records, key=encode_record)


class FrozenImage:
    """An image to be written to a checkpoint; see `raft.interfaces.Frozen`.

    Images are immutable, so nothing needs to be copied.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image: MetadataImage | None = image

    def values(self) -> Iterator[bytes]:
        """Yield the encoded records of the frozen cluster image, one at a time."""
        assert self._image is not None, "the frozen image is closed"
        return map(encode_record, image_records(self._image))

    def close(self) -> None:
        """Release the reference to the frozen cluster image."""
        self._image = None
