"""Metadata logs and checkpoints written by us, for Kafka's tools to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from records.batch import CONTROL
from records.batch_writer import build_batch, build_value_batch
from records.compression import Compression
from records.control import KRaftVersionRecord, LeaderChangeMessage, Voter, VotersRecord
from records.frame import encode_control_record, encode_record
from records.schema import ControlRecord, MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.writer import CheckpointWriter

TIMESTAMP: Final = 1_700_000_000_123  # ms since 1970
RECORDS_PER_BATCH: Final = 17
SEGMENT_BYTES: Final = 16 * 1024

VOTERS: Final = VotersRecord(
    voters=tuple(
        VotersRecord.Voter(
            voter_id=number,
            voter_directory_id=UUID(int=number),
            endpoints=(
                VotersRecord.Voter.Endpoint(name="CONTROLLER", host="127.0.0.1", port=65535),
            ),
            k_raft_version_feature=VotersRecord.Voter.KRaftVersionFeature(
                min_supported_version=0, max_supported_version=1
            ),
        )
        for number in (1, 2, 3)
    )
)


@dataclass(frozen=True, slots=True)
class OurFiles:
    """What we wrote: segments and checkpoints, and the records in them."""

    segments: list[Path]
    checkpoints: list[Path]
    records: list[tuple[MetadataRecord, int]]  # of the log, and of every checkpoint


def append_leader_change(
    log: Log, *, epoch: int, leader: int, voters: Sequence[int], kraft_version: int = 1
) -> None:
    """What a new leader appends first (KIP-595); with kraft.version 1 the voters too (KIP-853)."""
    named = tuple(Voter(voter_id=number) for number in voters)
    majority = named[: len(named) // 2 + 1]
    controls: list[ControlRecord] = [
        LeaderChangeMessage(leader_id=leader, voters=named, granting_voters=majority)
    ]
    if kraft_version == 1:
        controls += [KRaftVersionRecord(k_raft_version=1), VOTERS]
    batch = build_batch(
        [(*encode_control_record(control), TIMESTAMP, ()) for control in controls],
        base_offset=log.log_end_offset,
        leader_epoch=epoch,
        attributes=CONTROL,
    )
    log.append(batch)


def write_segments(
    directory: Path,
    values: Sequence[bytes],
    *,
    segment_bytes: int = SEGMENT_BYTES,
    records_per_batch: int = RECORDS_PER_BATCH,
    codecs: Sequence[Compression] = (Compression.NONE,),
) -> list[Path]:
    """A log of two epochs, each begun by a leader change; its segments in order.

    Args:    codecs: of the batches, taken in turn.
    """
    config = LogConfig(segment_bytes=segment_bytes)
    log = Log.create(RealFileSystem(), directory, config)
    half = len(values) // 2
    for epoch, part in ((1, values[:half]), (2, values[half:])):
        append_leader_change(log, epoch=epoch, leader=epoch, voters=[1, 2, 3])
        for start in range(0, len(part), records_per_batch):
            chosen = part[start : start + records_per_batch]
            batch = build_value_batch(
                chosen,
                base_offset=log.log_end_offset,
                leader_epoch=epoch,
                timestamp=TIMESTAMP + log.log_end_offset,
                compression=codecs[start // records_per_batch % len(codecs)],
            )
            log.append(batch)
    log.close()
    return sorted(directory.glob("*.log"))


def write_checkpoint(
    directory: Path,
    values: Sequence[bytes],
    *,
    end_offset: int,
    epoch: int = 2,
) -> Path:
    """A checkpoint of kraft.version 1 that holds `values`."""
    directory.mkdir(parents=True, exist_ok=True)
    snapshot_id = OffsetAndEpoch(Offset(end_offset), Epoch(epoch))
    with CheckpointWriter.create(
        RealFileSystem(),
        directory,
        snapshot_id,
        last_timestamp=TIMESTAMP,
        kraft_version=1,
        voters=VOTERS,
    ) as writer:
        writer.append_values(values)
        return writer.freeze()


def write_everything(directory: Path, records: list[tuple[MetadataRecord, int]]) -> OurFiles:
    """The records as a log with every compression that there is, and as a checkpoint."""
    values = [encode_record(record, version) for record, version in records]
    segments = write_segments(directory / "log", values, codecs=tuple(Compression))
    checkpoint = write_checkpoint(directory / "checkpoints", values, end_offset=1000)
    return OurFiles(segments, [checkpoint], records)
