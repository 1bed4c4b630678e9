"""Checkpoints on a disk in memory, for the tests of this directory."""

from __future__ import annotations

from pathlib import Path

from crc32c import crc32c

from records.batch import CONTROL, iter_batches
from records.batch_writer import build_batch, build_value_batch
from records.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from records.frame import encode_control_record, encode_record
from records.metadata import FeatureLevelRecord
from records.schema import ControlRecord
from records.types import ZERO_UUID, OffsetAndEpoch
from snapshot import Checkpoint, CheckpointWriter, checkpoint_name, verify_checkpoint
from tests.simulation.disk import SimulatedDisk

DIRECTORY = Path("/esker/__cluster_metadata-0")
ID = OffsetAndEpoch(57, 3)
PATH = DIRECTORY / checkpoint_name(ID)
TIME = 1_700_000_000_000

VOTERS = VotersRecord(
    voters=(
        VotersRecord.Voter(
            voter_id=1,
            voter_directory_id=ZERO_UUID,
            endpoints=(),
            k_raft_version_feature=VotersRecord.Voter.KRaftVersionFeature(
                min_supported_version=0, max_supported_version=1
            ),
        ),
    )
)


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    return disk


def features(count: int) -> list[FeatureLevelRecord]:
    return [FeatureLevelRecord(name=f"feature-{i}", feature_level=i) for i in range(count)]


def written(count: int = 2, *, target_batch_bytes: int = 64, **settings) -> bytes:
    """The bytes of a checkpoint of `count` records, in several batches."""
    disk = new_disk()
    with CheckpointWriter.create(disk, DIRECTORY, ID, last_timestamp=TIME, **settings) as writer:
        writer.target_batch_bytes = target_batch_bytes
        for record in features(count):
            writer.append(record)
        path = writer.freeze()
    return disk.content(path)


def verified(data: bytes, path: Path = PATH, **settings) -> Checkpoint:
    """What `verify_checkpoint` says of a file of these bytes, decoding all."""
    disk = new_disk()
    disk.replace(path, data)
    return verify_checkpoint(disk, path, decode=True, **settings)


def data_batch(count: int, *, base_offset: int, epoch: int = 3) -> bytes:
    values = [encode_record(record) for record in features(count)]
    return bytes(
        build_value_batch(values, base_offset=base_offset, leader_epoch=epoch, timestamp=TIME)
    )


def control_batch(*records: ControlRecord, base_offset: int, epoch: int = 3) -> bytes:
    encoded = [(*encode_control_record(record), TIME, ()) for record in records]
    return bytes(
        build_batch(encoded, base_offset=base_offset, leader_epoch=epoch, attributes=CONTROL)
    )


HEADER = SnapshotHeaderRecord(last_contained_log_timestamp=TIME)
KRAFT_VERSION = KRaftVersionRecord(k_raft_version=1)


def header_batch(*more: ControlRecord, epoch: int = 3) -> bytes:
    return control_batch(HEADER, *more, base_offset=0, epoch=epoch)


def closed(content: bytes, *, epoch: int = 3, **lies: int) -> bytes:
    """`content` and the footer that belongs after it, or one that lies."""
    count = sum(batch.header.record_count for batch in iter_batches(content))
    truth = {"record_count": count, "content_crc": crc32c(content)}
    footer = SnapshotFooterRecord(**(truth | lies))
    return content + control_batch(footer, base_offset=count, epoch=epoch)


def as_kafka_closes(content: bytes, *, epoch: int = 3) -> bytes:
    """`content` and the footer that Kafka writes after it."""
    return closed(content, epoch=epoch, record_count=-1, content_crc=-1)
