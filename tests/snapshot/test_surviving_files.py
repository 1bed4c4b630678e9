"""Reading a surviving directory of one log without changing it."""

from __future__ import annotations

import pytest

from raft.segments import EpochStart, Log, LogConfig
from raft.segments.segment import segment_name
from records.types import Offset, OffsetAndEpoch
from snapshot import CheckpointWriter, checkpoint_name
from snapshot.surviving_files import read_copy
from snapshot.surviving_logs import NoCopyError
from tests.raft.segments.conftest import fill
from tests.raft.segments.model import DIRECTORY
from tests.simulation.disk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    """Twenty batches of one record in segments of about five: epoch 3 from 0, epoch 6 from 12."""
    disk = SimulatedDisk()
    log = Log.create(disk, DIRECTORY, LogConfig(segment_bytes=1000))
    fill(log, 12, epoch=3)
    fill(log, 8, epoch=6)
    log.flush()
    log.note_committed(Offset(17))
    log.record_recovery_point()
    log.close()
    return disk


def checkpoint(disk: SimulatedDisk, offset: int, epoch: int) -> None:
    snapshot_id = OffsetAndEpoch(offset, epoch)
    with CheckpointWriter.create(disk, DIRECTORY, snapshot_id, last_timestamp=1) as writer:
        writer.freeze()


def drop_below(disk: SimulatedDisk, offset: int) -> None:
    log = Log.open(disk, DIRECTORY)
    log.delete(log.cut_prefix(Offset(offset)))
    log.close()


def spoil(disk: SimulatedDisk, name: str, position: int) -> None:
    path = DIRECTORY / name
    data = bytearray(disk.content(path))
    data[position] ^= 1
    disk.replace(path, bytes(data))


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: disk.content(DIRECTORY / name) for name in disk.listdir(DIRECTORY)}


def segments(disk: SimulatedDisk) -> list[str]:
    return sorted(name for name in disk.listdir(DIRECTORY) if name.endswith(".log"))


def test_a_sound_log_is_read_to_its_end_with_its_epochs_and_committed_end(
    disk: SimulatedDisk,
) -> None:
    before = contents(disk)
    found = read_copy(disk, DIRECTORY)
    assert (found.log.end, found.log.committed) == (20, 17)
    assert found.log.epochs == (EpochStart(3, 0), EpochStart(6, 12))
    assert (found.checkpoint, found.damage) == (None, ())
    assert not found.log.damaged
    assert read_copy(disk, DIRECTORY, high_watermark=19).log.committed == 19
    assert contents(disk) == before


def test_a_damaged_batch_ends_the_copy_and_is_named_and_stays_on_disk(disk: SimulatedDisk) -> None:
    third = segments(disk)[2]
    spoil(disk, third, 70)
    before = contents(disk)
    found = read_copy(disk, DIRECTORY)
    assert found.log.end == int(third.removesuffix(".log"))
    assert found.log.committed == 17
    assert third in found.damage[0]
    assert found.log.damaged
    assert "recovery point" in found.damage[1]
    assert contents(disk) == before


def test_a_missing_segment_ends_the_copy_before_the_gap(disk: SimulatedDisk) -> None:
    second = segments(disk)[1]
    disk.unlink(DIRECTORY / second)
    found = read_copy(disk, DIRECTORY)
    assert found.log.end == int(second.removesuffix(".log"))
    assert "missing" in found.damage[0]


def test_a_log_without_its_beginning_and_without_a_checkpoint_cannot_be_restored(
    disk: SimulatedDisk,
) -> None:
    drop_below(disk, 14)
    with pytest.raises(NoCopyError, match="offset 14"):
        read_copy(disk, DIRECTORY)


def test_a_checkpoint_stands_for_the_records_below_the_log_start(disk: SimulatedDisk) -> None:
    checkpoint(disk, 15, 6)
    drop_below(disk, 14)
    found = read_copy(disk, DIRECTORY)
    assert (found.checkpoint, found.log.end) == ((15, 6), 20)
    assert found.damage == ()


def test_a_damaged_checkpoint_is_named_and_the_older_checkpoint_used(disk: SimulatedDisk) -> None:
    checkpoint(disk, 15, 6)
    checkpoint(disk, 18, 6)
    drop_below(disk, 14)
    newest = checkpoint_name(OffsetAndEpoch(18, 6))
    spoil(disk, newest, 70)
    found = read_copy(disk, DIRECTORY)
    assert found.checkpoint == (15, 6)
    assert newest in found.damage[0]
    assert not found.log.damaged  # its end is sound
    assert found.log.end == 20


def test_damage_below_the_newest_checkpoint_costs_no_record(disk: SimulatedDisk) -> None:
    checkpoint(disk, 18, 6)
    spoil(disk, segment_name(0), 70)
    found = read_copy(disk, DIRECTORY)
    assert (found.log.end, found.log.last_epoch, found.damage) == (20, 6, ())


def test_a_checkpoint_beyond_the_sound_records_is_the_end_of_the_copy(disk: SimulatedDisk) -> None:
    checkpoint(disk, 18, 6)
    spoil(disk, segments(disk)[-1], 70)
    found = read_copy(disk, DIRECTORY)
    assert (found.log.end, found.log.committed, found.log.last_epoch) == (18, 18, 6)
