"""Small fixed log files for the tests of `dump-log`, with every kind of batch and record."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

from records.batch import CONTROL, TRANSACTIONAL
from records.batch_writer import build_batch, build_value_batch
from records.control import LeaderChangeMessage, Voter
from records.frame import encode_control_record, encode_record
from records.metadata import FeatureLevelRecord, PartitionRecord, TopicRecord

TIME = 1_700_000_000_000
TOPIC = UUID(int=7)
SEGMENT = "00000000000000000100.log"

LEADER = LeaderChangeMessage(
    leader_id=1, voters=(Voter(voter_id=1), Voter(voter_id=2)), granting_voters=(Voter(voter_id=1),)
)
PARTITION = PartitionRecord(
    partition_id=0,
    topic_id=TOPIC,
    replicas=(1, 2, 3),
    isr=(1, 2, 3),
    removing_replicas=(),
    adding_replicas=(),
    leader=1,
    leader_epoch=0,
    partition_epoch=0,
    directories=(UUID(int=1), UUID(int=2), UUID(int=3)),
)


def control_batch(base_offset: int, epoch: int) -> bytes:
    key, value = encode_control_record(LEADER)
    return bytes(
        build_batch(
            [(key, value, TIME, ())],
            base_offset=base_offset,
            leader_epoch=epoch,
            attributes=CONTROL,
        )
    )


def metadata_batch(base_offset: int, epoch: int) -> bytes:
    values = [encode_record(TopicRecord(name="orders", topic_id=TOPIC)), encode_record(PARTITION)]
    return bytes(
        build_value_batch(values, base_offset=base_offset, leader_epoch=epoch, timestamp=TIME + 1)
    )


def strange_batch(base_offset: int, epoch: int) -> bytes:
    """Build a batch of unknown types and versions, client records and terminal escape codes."""
    hurts = FeatureLevelRecord(name="\x1b[31mred\u202e", feature_level=1)
    records = [
        (None, b"\x01\x8f\x4e\x00abc", TIME + 2, ()),
        (None, b"\x01\x02\x09abc", TIME + 2, ()),
        (b"key", b"\xff\x00value", TIME + 3, (("trace", b"\x1b[2J"), ("none", None))),
        (None, encode_record(hurts), TIME + 4, ()),
    ]
    return bytes(
        build_batch(
            records,
            base_offset=base_offset,
            leader_epoch=epoch,
            attributes=TRANSACTIONAL,
            producer_id=42,
            producer_epoch=1,
            base_sequence=9,
        )
    )


def segment_bytes() -> bytes:
    return control_batch(100, 4) + metadata_batch(101, 4) + strange_batch(103, 4)


def write_segment(directory: Path, data: bytes | None = None) -> Path:
    path = directory / SEGMENT
    path.write_bytes(segment_bytes() if data is None else data)
    return path


def write_indexes(directory: Path) -> None:
    """Write the offset and time indexes of the segment that `write_segment` writes."""
    position = len(control_batch(100, 4))
    entries = struct.pack(">ii", 2, position)
    (directory / SEGMENT.replace(".log", ".index")).write_bytes(entries)
    times = struct.pack(">qi", TIME, 0) + struct.pack(">qi", TIME + 1, 2)
    (directory / SEGMENT.replace(".log", ".timeindex")).write_bytes(times)
