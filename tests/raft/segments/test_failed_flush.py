"""A flush that failed leaves bytes in the page cache that the disk never took."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raft.segments.errors import FlushFailedError
from raft.segments.log import Log
from records.batch_writer import build_value_batch
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
