"""What is on the store, what stays on it, and what goes. KIP-630, When to Delete Snapshots."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from raft.interfaces import SnapshotChunk
from raft.segments.files import RealFileSystem
from records.types import OffsetAndEpoch
from snapshot import SnapshotStore, checkpoint_name
from tests.examples import seeds
from tests.simulation.disk import PowerLoss, SimulatedDisk
from tests.snapshot.checkpoints import DIRECTORY, new_disk, written

IDS = tuple(OffsetAndEpoch(offset, 3) for offset in (10, 20, 30))
WHOLE = written(5)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def disk_with(*ids: OffsetAndEpoch) -> SimulatedDisk:
    disk = new_disk()
    for one in ids:
        disk.replace(DIRECTORY / checkpoint_name(one), WHOLE)
    return disk


def shelf_with(*ids: OffsetAndEpoch, clock: Clock | None = None) -> SnapshotStore:
    return SnapshotStore(disk_with(*ids), DIRECTORY, now_ms=clock or Clock(), pin_ms=1_000)


def test_the_checkpoint_store_lists_complete_checkpoints_oldest_first():
    store = shelf_with(IDS[2], IDS[0], IDS[1])
    assert store.ids == IDS
    assert store.newest == IDS[2]
    assert shelf_with().newest is None


def test_opening_the_checkpoint_store_removes_only_partial_and_deleted_checkpoint_files():
    disk = disk_with(IDS[1])
    strangers = ["partition.metadata", "00000000000000000000.log", "bootstrap.checkpoint"]
    leftovers = [
        f"{checkpoint_name(IDS[0])}.deleted",
        "00000000000000000030-0000000003-77.checkpoint.part",  # generated
        "00000000000000000010-0000000003-0.checkpoint.part",  # a download, overtaken
    ]
    kept = "00000000000000000040-0000000003-0.checkpoint.part"
    for name in [*strangers, *leftovers, kept]:
        disk.replace(DIRECTORY / name, b"x")
    SnapshotStore(disk, DIRECTORY, now_ms=Clock())
    assert disk.listdir(DIRECTORY) == sorted([*strangers, kept, checkpoint_name(IDS[1])])


@pytest.mark.parametrize("position", [0, 1, 61, len(WHOLE) - 1, len(WHOLE)])
@pytest.mark.parametrize("size", [0, 1, 100, 10_000, -5])
def test_the_checkpoint_store_returns_the_requested_bytes_of_a_checkpoint(position, size):
    piece = shelf_with(*IDS).read(IDS[0], position, size)
    assert piece == SnapshotChunk(len(WHOLE), WHOLE[position : position + max(0, size)])


@pytest.mark.parametrize("position", [-1, len(WHOLE) + 1, 1 << 62, -(1 << 63)])
def test_the_checkpoint_store_refuses_a_read_position_outside_the_checkpoint(position):
    with pytest.raises(ValueError, match="position"):
        shelf_with(*IDS).read(IDS[0], position, 100)


def test_the_checkpoint_store_returns_none_for_a_checkpoint_that_it_does_not_have():
    store = shelf_with(*IDS)
    for unknown in (OffsetAndEpoch(10, 2), OffsetAndEpoch(11, 3), OffsetAndEpoch(-1, -1)):
        assert store.read(unknown, 0, 100) is None
        assert store.size_bytes(unknown) is None
    assert store.size_bytes(IDS[0]) == len(WHOLE)


def test_the_checkpoint_store_drops_older_checkpoints_below_the_log_start():
    store = shelf_with(*IDS)
    store.drop_below(10)
    assert store.ids == IDS
    store.drop_below(20)
    assert store.ids == IDS[1:]
    assert store.files.listdir(DIRECTORY) == [checkpoint_name(one) for one in IDS[1:]]


def test_the_checkpoint_store_never_drops_the_newest_checkpoint():
    """A log that starts past 0 has nothing else to begin with."""
    store = shelf_with(*IDS)
    store.drop_below(1_000)
    assert store.ids == IDS[2:]


def test_the_checkpoint_store_does_not_drop_a_checkpoint_that_is_being_read():
    """Mutant: pin_ms=0 here, and the follower begins anew with every checkpoint of the leader."""
    clock = Clock()
    store = shelf_with(*IDS, clock=clock)
    for position in range(0, len(WHOLE), 100):
        piece = store.read(IDS[0], position, 100)
        assert piece is not None, "dropped under its reader"
        clock.now_ms += 900
        store.drop_below(30)
    assert store.ids == (IDS[0], IDS[2])
    clock.now_ms += 100
    store.drop_below(30)
    assert store.ids == IDS[2:]
    assert store.files.listdir(DIRECTORY) == [checkpoint_name(IDS[2])]


def test_reading_the_size_of_a_checkpoint_does_not_prevent_its_deletion():
    store = shelf_with(*IDS)
    store.size_bytes(IDS[0])
    store.drop_below(20)
    assert store.ids == IDS[1:]


def test_an_open_checkpoint_reader_continues_after_its_checkpoint_is_dropped(tmp_path: Path):
    for one in IDS:
        (tmp_path / checkpoint_name(one)).write_bytes(WHOLE)
    store = SnapshotStore(RealFileSystem(), tmp_path, now_ms=Clock())
    with store.path(IDS[0]).open("rb") as file:
        store.drop_below(30)
        assert [path.name for path in tmp_path.iterdir()] == [checkpoint_name(IDS[2])]
        assert file.read() == WHOLE


def test_a_checkpoint_added_to_the_store_is_listed_in_order():
    disk = disk_with(IDS[0], IDS[2])
    store = SnapshotStore(disk, DIRECTORY, now_ms=Clock())
    disk.replace(DIRECTORY / checkpoint_name(IDS[1]), WHOLE)
    store.added(IDS[1])
    store.added(IDS[1])
    assert store.ids == IDS
    with pytest.raises(AssertionError, match="not there"):
        store.added(OffsetAndEpoch(40, 3))


def test_a_closed_checkpoint_store_keeps_no_file_open_and_returns_no_checkpoint_bytes(
    tmp_path: Path,
):
    """A node lives on when one of its groups ends; what was read a moment ago is let go of, too."""
    for one in IDS:
        (tmp_path / checkpoint_name(one)).write_bytes(WHOLE)
    store = SnapshotStore(RealFileSystem(), tmp_path, now_ms=Clock())
    store.size_bytes(IDS[0])
    assert store.read(IDS[1], 0, 100) is not None
    assert len(open_below(tmp_path)) == 1  # nobody pins the one that was looked at
    store.close()
    assert open_below(tmp_path) == []
    assert store.read(IDS[1], 0, 100) is None
    assert store.size_bytes(IDS[0]) is None
    assert store.ids == IDS
    store.close()


def open_below(directory: Path) -> list[Path]:
    """What this process has open there."""
    links = Path("/proc/self/fd").iterdir()
    targets = [link.readlink() for link in links if link.is_symlink()]
    return [target for target in targets if directory in target.parents]


@pytest.mark.parametrize("seed", seeds(10))
def test_a_power_loss_while_checkpoints_are_dropped_leaves_each_complete_or_deleted(seed):
    for step in range(8):
        disk = disk_with(*IDS)
        store = SnapshotStore(disk, DIRECTORY, now_ms=Clock())
        disk.power_loss_at = step
        with pytest.raises(PowerLoss):  # noqa: PT012 (at the latest in the second line)
            store.drop_below(30)
            disk.power_loss_at = 0
            disk.fsync_directory(DIRECTORY)
        disk.crash(random.Random(seed * 100 + step))
        store = SnapshotStore(disk, DIRECTORY, now_ms=Clock())
        assert store.newest == IDS[2]
        assert all(disk.content(store.path(one)) == WHOLE for one in store.ids)
        assert len(disk.listdir(DIRECTORY)) == len(store.ids), "leftovers stayed"


def test_an_error_while_dropping_a_checkpoint_leaves_the_other_checkpoints_unchanged():
    disk = disk_with(*IDS)
    store = SnapshotStore(disk, DIRECTORY, now_ms=Clock())
    disk.fail_next("rename")
    with pytest.raises(OSError, match="Input/output"):
        store.drop_below(30)
    assert store.newest == IDS[2]
    store = SnapshotStore(disk, DIRECTORY, now_ms=Clock())
    store.drop_below(30)
    assert disk.listdir(DIRECTORY) == [checkpoint_name(IDS[2])]


def test_the_checkpoint_store_lets_several_threads_read_and_drop_checkpoints_concurrently(
    tmp_path: Path,
):
    """Nobody reads from a file that was closed: each answer is the file's bytes, or None."""
    ids = [OffsetAndEpoch(offset, 1) for offset in range(1, 60)]
    for one in ids:
        (tmp_path / checkpoint_name(one)).write_bytes(WHOLE)
    store = SnapshotStore(RealFileSystem(), tmp_path, now_ms=Clock(), pin_ms=0)
    errors: list[BaseException] = []

    def read_all() -> None:
        try:
            for one in ids:
                piece = store.read(one, 61, 100)
                assert piece is None or piece.data == WHOLE[61:161]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for offset in range(1, 60):
        store.drop_below(offset)
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.ids == (ids[-1],)
