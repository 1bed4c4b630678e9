"""The power fails before each single step of installing, and of cutting a log. KIP-630.

After every restart a replica has a log that begins at 0, or where a checkpoint of its own ends; and
once a checkpoint has its name for good, the log is begun anew there whatever it held.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from raft.core.effects import InstallSnapshot
from raft.core.events import Start
from raft.core.quorum import Quorum
from raft.core.roles import ElectionState
from raft.core.voters import Endpoint, ReplicaKey, Voter, VoterSet, VoterSetHistory
from raft.driver.errors import MissingSnapshotError
from raft.driver.storage import Storage
from raft.interfaces import SnapshotChunk
from raft.segments.log import LogConfig
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from snapshot import CheckpointWriter
from snapshot.store import SnapshotStore
from tests.examples import seeds
from tests.simulation.disk import PowerLoss, SimulatedDisk
from tests.snapshot.checkpoints import features

pytestmark = pytest.mark.slow

GROUP = Group("t", 0, UUID(int=5))
LOG_DIR = Path("/node")
DIRECTORY = LOG_DIR / GROUP.name
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
VOTERS = (NodeId(1), NodeId(2), NodeId(3))
ID = OffsetAndEpoch(Offset(100), Epoch(3))
END = Offset(30)

Steps = Callable[[Storage], None]


def store(disk: SimulatedDisk, directory: Path) -> SnapshotStore:
    return SnapshotStore(disk, directory, now_ms=lambda: 0)


def opened(disk: SimulatedDisk) -> Storage:
    return Storage.open(disk, LOG_DIR, GROUP, CONFIG, VOTERS, lambda *_: store(disk, DIRECTORY))


def prepared() -> SimulatedDisk:
    """A follower's disk: a log of epoch 1, up to offset 30."""
    disk = SimulatedDisk()
    disk.make_directory(LOG_DIR)
    Storage.create(disk, LOG_DIR, GROUP, CONFIG, recovering=False)
    storage = opened(disk)
    storage.persist(ElectionState(epoch=Epoch(3)))
    append(storage, END, epoch=1)
    storage.close()
    return disk


def append(storage: Storage, end: int, *, epoch: int) -> None:
    for offset in range(storage.log.log_end_offset, end):
        data = build_value_batch([b"v" * 40], base_offset=offset, leader_epoch=epoch, timestamp=0)
        storage.append(data, Offset(offset), Offset(offset + 1))
    storage.flush()


def leaders_file(snapshot_id: OffsetAndEpoch = ID) -> bytes:
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    with CheckpointWriter.create(disk, DIRECTORY, snapshot_id, last_timestamp=0) as writer:
        writer.target_batch_bytes = 100
        for record in features(20):
            writer.append(record)
        return disk.content(writer.freeze())


DATA = leaders_file()


def download(storage: Storage) -> None:
    coming = storage.snapshots.receive(ID)
    while not coming.take(
        coming.position,
        SnapshotChunk(len(DATA), DATA[coming.position : coming.position + 300]),
    ):
        pass
    coming.publish()
    storage.snapshots.added(ID)


def install(storage: Storage) -> None:
    """What the driver does for the core: fetch, then `InstallSnapshot`, then append."""
    download(storage)
    storage.reset(ID)
    append(storage, ID.offset + 3, epoch=3)


def restart(disk: SimulatedDisk) -> tuple[Storage, bool]:
    """Open what is there, ask the core, do what it says: the storage, and did it install?"""
    storage = opened(disk)
    quorum = Quorum(
        identity=ReplicaKey(NodeId(1)),
        cluster_id="c",
        voters=VoterSetHistory(
            VoterSet(
                Voter(key=ReplicaKey(node), endpoints=(Endpoint("C", "h", node),))
                for node in VOTERS
            )
        ),
        log=storage.log_state(),
        election=storage.election_state(),
        random=Random(1),
    )
    effects = [one for one in quorum.step(Start(), 0) if isinstance(one, InstallSnapshot)]
    for effect in effects:
        storage.reset(effect.snapshot_id)
    assert quorum.log.end_offset == storage.log.log_end_offset
    assert quorum.log.start_offset == storage.log.log_start_offset
    return storage, bool(effects)


def power_losses(steps: Steps, seed: int) -> list[tuple[bool, Offset, Offset, bool]]:
    """Before each step in turn: was the checkpoint there, start and end of the log, installed?"""
    found = []
    for step in range(10_000):
        disk = prepared()
        disk.steps = 0
        storage = opened(disk)
        disk.power_loss_at = disk.steps + step
        finished = False
        with contextlib.suppress(PowerLoss):
            steps(storage)
            finished = True
        disk.crash(random.Random(seed * 10_000 + step))
        storage, installed = restart(disk)
        there = ID in storage.snapshots.ids
        found.append((there, storage.log.log_start_offset, storage.log.log_end_offset, installed))
        storage.close()
        again, twice = restart(disk)
        assert not twice, f"step {step}: installed at every start"
        again.close()
        if finished:
            return found
    raise AssertionError("it never ended")


@pytest.mark.parametrize("seed", seeds(4))
def test_a_power_loss_during_a_snapshot_install_leaves_the_old_log_or_the_snapshot(
    seed: int,
) -> None:
    found = power_losses(install, seed)
    for step, (there, start, end, _) in enumerate(found):
        if there:
            assert start == ID.offset <= end, f"seed {seed} step {step}"
        else:
            assert (start, end) == (0, END), f"seed {seed} step {step}: the old log is whole"
    assert any(installed for *_, installed in found), "never between the rename and the reset"
    assert found[-1][:3] == (True, ID.offset, ID.offset + 3)


def test_a_mutant_that_resets_the_log_before_the_rename_loses_the_snapshot() -> None:
    """A mutant: the log is emptied first, then the checkpoint gets its name."""

    def the_other_way_round(storage: Storage) -> None:
        storage.reset(ID)
        download(storage)

    with pytest.raises(MissingSnapshotError):
        power_losses(the_other_way_round, 0)


def test_a_mutant_that_does_not_sync_the_rename_loses_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant: the checkpoint is renamed, and its directory not synced."""

    def install_unsynced(storage: Storage) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SimulatedDisk, "fsync_directory", lambda *_: None)
            download(storage)
        storage.reset(ID)

    def hunt() -> None:
        for seed in range(10):
            power_losses(install_unsynced, seed)

    with pytest.raises(MissingSnapshotError):
        hunt()


OWN = OffsetAndEpoch(Offset(20), Epoch(1))


def cut(storage: Storage) -> None:
    """A checkpoint of our own, then the log is cut to it, in the driver's order."""
    disk = storage._files
    assert isinstance(disk, SimulatedDisk)
    with CheckpointWriter.create(disk, DIRECTORY, OWN, last_timestamp=0) as writer:
        for record in features(3):
            writer.append(record)
        writer.freeze()
    storage.snapshots.added(OWN)
    storage.log.delete(storage.cut_prefix(OWN.offset))
    storage.snapshots.drop_below(OWN.offset)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_power_loss_while_the_log_start_moves_leaves_the_old_or_the_new_start(seed: int) -> None:
    for step in range(10_000):
        disk = prepared()
        storage = opened(disk)
        disk.power_loss_at = disk.steps + step
        finished = False
        with contextlib.suppress(PowerLoss):
            cut(storage)
            finished = True
        disk.crash(random.Random(seed * 10_000 + step))
        storage, installed = restart(disk)
        assert not installed, f"seed {seed} step {step}"
        assert storage.log.log_end_offset == END
        start = storage.log.log_start_offset
        assert start in (0, OWN.offset), f"seed {seed} step {step}"
        kept = storage.read_bytes(start, END, 10**6)
        assert len(kept) > 0
        storage.close()
        if finished:
            assert start == OWN.offset
            return
    raise AssertionError("it never ended")
