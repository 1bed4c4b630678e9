"""Small logs on disk, as a replica would have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.schema import MetadataRecord

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
    """A log of these batches, a new segment after every so many. Its end offset."""
    directory.mkdir(parents=True)
    files, config = RealFileSystem(), LogConfig(index_interval_bytes=index_interval_bytes)
    log = Log.create(files, directory, config, start_offset=start_offset)
    offset = start_offset
    try:
        for number, records in enumerate(batches):
            if segment_batches and number and number % segment_batches == 0:
                log._roll()  # by size it takes 8 MiB
            values = [encode_record(record) for record in records]
            log.append(
                build_value_batch(
                    values, base_offset=offset, leader_epoch=epoch, timestamp=1_000 + number
                )
            )
            offset += len(values)
    finally:
        log.close()
    return offset
