"""Writes small logs to disk as a replica would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import write_high_watermarks
from raft.segments.log import Log, LogConfig
from raft.segments.properties import MetaProperties, write_meta_properties
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.schema import MetadataRecord
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from snapshot.writer import CheckpointWriter

CLUSTER_ID: Final = "xBIbbGYlSzqHPEyzl9QSWw"

Batches = Iterable[Sequence[MetadataRecord]]


def write_log(
    directory: Path,
    batches: Batches,
    *,
    start_offset: int = 0,
    segment_batches: int = 0,
    epoch: int = 1,
    index_interval_bytes: int = 4096,
) -> int:
    """Write these batches as a log, `segment_batches` in each segment; return its end offset."""
    return write_values(
        directory,
        ([encode_record(record) for record in records] for records in batches),
        start_offset=start_offset,
        segment_batches=segment_batches,
        epoch=epoch,
        index_interval_bytes=index_interval_bytes,
    )


def write_values(
    directory: Path,
    batches: Iterable[Sequence[bytes]],
    *,
    start_offset: int = 0,
    segment_batches: int = 0,
    epoch: int = 1,
    index_interval_bytes: int = 4096,
) -> int:
    """Write framed values as a log, like `write_log`."""
    directory.mkdir(parents=True)
    files, config = RealFileSystem(), LogConfig(index_interval_bytes=index_interval_bytes)
    log = Log.create(files, directory, config, start_offset=start_offset)
    offset = start_offset
    try:
        for number, values in enumerate(batches):
            if segment_batches and number and number % segment_batches == 0:
                log._roll()  # by size it takes 8 MiB
            log.append(
                build_value_batch(
                    values, base_offset=offset, leader_epoch=epoch, timestamp=1_000 + number
                )
            )
            offset += len(values)
    finally:
        log.close()
    return offset


def mark_committed(
    log_dir: Path, committed: Mapping[str, int], cluster_id: str = CLUSTER_ID
) -> None:
    """Make a directory a node's log directory with these committed ends."""
    meta = MetaProperties(cluster_id=cluster_id, node_id=NodeId(1), directory_id=UUID(int=5))
    write_meta_properties(RealFileSystem(), log_dir, meta)
    marks = {}
    for name, offset in committed.items():
        topic, _, partition = name.rpartition("-")
        marks[topic, int(partition)] = offset
    write_high_watermarks(RealFileSystem(), log_dir, marks)


def write_checkpoint(
    directory: Path, snapshot_id: tuple[int, int], records: Sequence[MetadataRecord]
) -> None:
    """Write a checkpoint of these records to a log's directory."""
    offset, epoch = snapshot_id
    snapshot = OffsetAndEpoch(Offset(offset), Epoch(epoch))
    with CheckpointWriter.create(
        RealFileSystem(), directory, snapshot, last_timestamp=900
    ) as writer:
        for record in records:
            writer.append(record)
        writer.freeze()
