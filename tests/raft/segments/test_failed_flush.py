"""A flush that failed leaves bytes in the page cache that the disk never took."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raft.segments.errors import FlushFailedError, WriteFailedError
from raft.segments.log import Log, LogConfig
from raft.segments.recovery_point import RECOVERY_POINT_FILE
from records.batch_writer import build_value_batch
from records.types import Offset
from tests.examples import seeds
from tests.simulation.disk import SimulatedDisk


@pytest.mark.parametrize("seed", seeds(20))
def test_a_log_reopened_after_a_failed_flush_keeps_its_records_through_a_power_loss(
    seed: int,
) -> None:
    """The process stops, another opens the log, the power fails. Found by simulation, seed 0x16."""
    disk, directory = SimulatedDisk(), Path("/log")
    log = Log.create(disk, directory)
    log.append(build_value_batch([b"kept"], base_offset=0, leader_epoch=1, timestamp=0))
    log.flush()
    log.append(build_value_batch([b"lost"], base_offset=1, leader_epoch=1, timestamp=0))
    disk.fail_next("fdatasync", name=".log")
    with pytest.raises(FlushFailedError):
        log.flush()

    promised = Log.open(disk, directory).flushed_end_offset
    disk.crash(Random(seed))

    assert Log.open(disk, directory).log_end_offset == promised == 1


@pytest.mark.parametrize("seed", seeds(20))
def test_a_log_start_found_after_a_failed_flush_does_not_move_back_in_a_power_loss(
    seed: int,
) -> None:
    """Its owner deletes the checkpoints below it. Found by simulation, seed 0x6d."""
    disk, directory = SimulatedDisk(), Path("/log")
    log = Log.create(disk, directory)
    log.append(build_value_batch([b"v"], base_offset=0, leader_epoch=1, timestamp=0))
    log.flush()
    disk.fail_next("fdatasync", name=RECOVERY_POINT_FILE)
    with pytest.raises(WriteFailedError):
        log.drop_prefix(Offset(1))

    found = Log.open(disk, directory).log_start_offset
    disk.crash(Random(seed))

    assert Log.open(disk, directory).log_start_offset == found


@pytest.mark.parametrize("seed", seeds(20))
def test_a_log_opened_on_a_full_disk_still_has_its_last_segments_after_a_power_loss(
    seed: int,
) -> None:
    """The process before had made segments whose names it had not synced; there is no room for
    indexes, whose renames would have synced them. Found by simulation, seed 0x8adae2."""
    disk, directory = SimulatedDisk(), Path("/log")
    config = LogConfig(segment_bytes=150, index_interval_bytes=1)
    log = Log.create(disk, directory, config)
    for offset in range(8):
        log.append(build_value_batch([b"v"], base_offset=offset, leader_epoch=1, timestamp=0))
    disk.capacity_bytes = disk.used_bytes  # and the process is killed

    promised = Log.open(disk, directory, config).flushed_end_offset
    assert promised == 8
    disk.crash(Random(seed))
    disk.capacity_bytes = None

    assert Log.open(disk, directory, config).log_end_offset == promised
