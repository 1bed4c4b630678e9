"""A log on a simulated disk, and batches to put into it."""

from __future__ import annotations

import pytest

from raft.segments import Log, LogConfig
from records.batch_writer import build_value_batch
from tests.raft.segments.model import DIRECTORY
from tests.simulation.disk import SimulatedDisk


def batch(
    offset: int, *, records: int = 1, size: int = 100, epoch: int = 1, time: int = 0
) -> bytes:
    """A batch whose values say where it belongs."""
    values = [(b"%d:" % (offset + i)).ljust(size) for i in range(records)]
    return bytes(
        build_value_batch(values, base_offset=offset, leader_epoch=epoch, timestamp=time or offset)
    )


def fill(log: Log, count: int, *, size: int = 100, epoch: int = 1, records: int = 1) -> None:
    for _ in range(count):
        log.append(batch(log.log_end_offset, size=size, epoch=epoch, records=records))


def values_of(log: Log, start: int, **limits: int) -> list[int]:
    """The offsets that the values at `start` and after say they belong to: one read."""
    records = log.read(start, **{"max_bytes": 1 << 20, **limits})
    return [] if records is None else [b.header.base_offset for b in records.batches]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> Log:
    """Empty; segments of 1000 bytes, an index entry every 300."""
    return Log.create(disk, DIRECTORY, LogConfig(segment_bytes=1000, index_interval_bytes=300))


@pytest.fixture
def config(log: Log) -> LogConfig:
    return log.config
