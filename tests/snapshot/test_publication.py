"""A checkpoint appears whole or not at all, whatever goes wrong.

Source: docs/design/snapshots.md#publishing-and-installing.
"""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from records.types import OffsetAndEpoch
from snapshot import (
    CheckpointWriter,
    DamagedFileError,
    PartFile,
    checkpoint_name,
    list_checkpoints,
    list_parts,
    remove_leftovers,
    verify_checkpoint,
)
from snapshot.names import BOOTSTRAP_NAME
from tests.examples import seeds
from tests.simulation.disk import PowerLoss, SimulatedDisk
from tests.snapshot.checkpoints import DIRECTORY, ID, PATH, TIME, features, new_disk, written

OLDER = OffsetAndEpoch(12, 1)
STEPS = 11  # create; header, five batches, footer; flush, rename, directory sync


def write(disk: SimulatedDisk) -> None:
    with CheckpointWriter.create(disk, DIRECTORY, ID, last_timestamp=TIME) as writer:
        writer.target_batch_bytes = 64
        for record in features(5):
            writer.append(record)
        writer.freeze()


def test_publishing_a_checkpoint_takes_the_expected_number_of_disk_operations():
    disk = new_disk()
    write(disk)
    assert disk.steps == STEPS
    assert disk.listdir(DIRECTORY) == [PATH.name]


@pytest.mark.parametrize("step", range(STEPS + 1))
@pytest.mark.parametrize("seed", seeds(20))
def test_a_power_loss_during_publication_leaves_the_complete_checkpoint_or_none(step, seed):
    disk = new_disk()
    disk.replace(DIRECTORY / checkpoint_name(OLDER), written())
    disk.power_loss_at = step
    with contextlib.suppress(PowerLoss):
        write(disk)
        disk.power_loss_at = 0
    disk.crash(random.Random(seed))
    remove_leftovers(disk, DIRECTORY)
    found = list_checkpoints(disk, DIRECTORY)
    if step == STEPS:
        assert found == [OLDER, ID], "it was published, so it must be there"
    assert found in ([OLDER], [OLDER, ID])
    assert len(disk.listdir(DIRECTORY)) == len(found), "leftovers stayed"
    if ID in found:
        assert verify_checkpoint(disk, PATH, decode=True).record_count == 5


@pytest.mark.parametrize("operation", ["create", "write", "fdatasync", "rename"])
def test_a_disk_error_while_a_checkpoint_is_renamed_leaves_no_file(operation):
    disk = new_disk()
    disk.fail_next(operation)
    with pytest.raises(OSError, match=r"Input/output error"):
        write(disk)
    assert disk.listdir(DIRECTORY) == []


def test_a_checkpoint_that_filled_the_disk_is_deleted_before_the_next_attempt():
    disk = new_disk()
    disk.capacity_bytes = 300
    with pytest.raises(OSError, match=r"No space") as caught:
        write(disk)
    assert caught.value.errno == errno.ENOSPC
    assert disk.listdir(DIRECTORY) == []
    disk.capacity_bytes = None
    write(disk)
    assert disk.listdir(DIRECTORY) == [PATH.name]


def test_a_checkpoint_that_is_abandoned_while_it_is_written_leaves_no_file():
    disk = new_disk()
    with CheckpointWriter.create(disk, DIRECTORY, ID, last_timestamp=TIME) as writer:
        writer.append(features(1)[0])
    assert disk.listdir(DIRECTORY) == []


def test_a_new_bootstrap_checkpoint_replaces_the_old_bootstrap_checkpoint():
    disk = new_disk()
    for count in (1, 3):
        with CheckpointWriter.create_bootstrap(disk, DIRECTORY) as writer:
            for record in features(count):
                writer.append(record)
            path = writer.freeze()
        assert path == DIRECTORY / BOOTSTRAP_NAME
        found = verify_checkpoint(disk, path, decode=True)
        assert (found.record_count, found.epoch, found.preamble.last_timestamp) == (count, 0, 0)
    assert disk.listdir(DIRECTORY) == [BOOTSTRAP_NAME]


def test_a_failed_append_to_a_checkpoint_download_does_not_change_its_partial_file():
    disk = new_disk()
    data = written(5)
    with PartFile.create(disk, DIRECTORY, ID, unique=1) as part:
        part.append(data[:100])
        disk.fail_next("write", error=errno.ENOSPC)
        with pytest.raises(OSError, match=r"No space"):
            part.append(data[100:])
        assert part.size_bytes == 100
        part.append(data[100:])
        part.publish()
    assert disk.content(PATH) == data


@pytest.mark.parametrize("seed", seeds(50))
def test_verification_detects_bytes_that_a_resumed_download_lost_to_a_power_loss(seed):
    """The part was not flushed before the power went, so any of its bytes may be wrong."""
    disk = new_disk()
    data = written(20)
    part = PartFile.create(disk, DIRECTORY, ID, unique=1)
    disk.fsync_directory(DIRECTORY)
    for start in range(0, 900, 90):
        part.append(data[start : start + 90])
    disk.crash(random.Random(seed))
    (left,) = list_parts(disk, DIRECTORY, ID)
    with PartFile.resume(disk, left) as part:
        part.append(data[part.size_bytes :])
        whole = disk.content(left) == data
        try:
            found = verify_checkpoint(disk, left)
        except DamagedFileError:
            assert not whole
        else:
            assert whole
            assert found.record_count == 20
