"""The first records of a new cluster, which `storage format` writes and the first leader appends.

The finalized metadata.version comes first, because a reader needs it to read the rest. Then come
the internal topics, one partition each, which start the groups beside `__cluster_metadata-0`. Every
node formats for itself and must write the same records, so a topic's id is derived from the cluster
id, not drawn.

Source: KIP-778 and upstream's BootstrapMetadata (bootstrap.checkpoint); KIP-1164
(`__diskless-metadata`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID, uuid5

from raft.segments.files import FileSystem
from records.features import IMPLIED, METADATA_VERSION, new_levels
from records.internal_topics import BENCH_LOG, CONSUMER_OFFSETS, DISKLESS_METADATA
from records.metadata import (
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from records.schema import MetadataRecord
from records.types import NodeId
from records.uuids import decode_uuid
from snapshot.writer import CheckpointWriter


def topic_id(cluster_id: str, name: str) -> UUID:
    """Return an internal topic's id, derived from the cluster id and the topic's name."""
    return uuid5(decode_uuid(cluster_id), name)


def bootstrap_records(
    cluster_id: str,
    voters: Iterable[NodeId],
    *,
    bench_log: bool,
    features: Mapping[str, int] | None = None,
    users: Iterable[UserScramCredentialRecord] = (),
) -> tuple[MetadataRecord, ...]:
    """Return the metadata records with which a new cluster's log begins, in log order.

    Args:  bench_log: add the group of the benchmarks.
           features: chosen levels; `new_levels` has those of the other features.
           users: SCRAM credentials of the first users.
    """
    replicas = tuple(sorted(voters))
    assert replicas, "a quorum without voters"
    levels = new_levels(features or {})
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in sorted(levels.items(), key=lambda item: item[0] != METADATA_VERSION)
        if level != IMPLIED.get(name, 0)  # so that a release without the feature reads the log
    ]
    for name in (DISKLESS_METADATA, CONSUMER_OFFSETS, *([BENCH_LOG] if bench_log else [])):
        identity = topic_id(cluster_id, name)
        records.append(TopicRecord(name=name, topic_id=identity))
        records.append(
            PartitionRecord(
                partition_id=0,
                topic_id=identity,
                replicas=replicas,
                isr=replicas,
                removing_replicas=(),
                adding_replicas=(),
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return (*records, *users)


def write_bootstrap(files: FileSystem, log_dir: Path, records: Iterable[MetadataRecord]) -> Path:
    """Write `bootstrap.checkpoint` durably, as Kafka's format tool does. Raises OSError."""
    with CheckpointWriter.create_bootstrap(files, log_dir) as writer:
        for record in records:
            writer.append(record)
        return writer.freeze()
