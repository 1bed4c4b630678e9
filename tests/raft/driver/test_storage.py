"""One group's directory: memory and disk give the same bytes; nothing is begun twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from raft.core.roles import ElectionState
from raft.core.voters import ReplicaKey
from raft.driver.errors import LostDiskError
from raft.driver.snapshot_hosting import NoSnapshots
from raft.driver.storage import Storage
from raft.segments.files import RealFileSystem
from raft.segments.log import LogConfig
from raft.wire.responses import Group
from records.batch import iter_batches
from records.batch_writer import build_value_batch
from records.types import Epoch, NodeId, Offset

GROUP = Group("t", 0, UUID(int=5))
VOTERS = (NodeId(1), NodeId(2), NodeId(3))
SMALL = LogConfig(segment_bytes=4_000, index_interval_bytes=200)


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Storage]]:
    """Opens a directory; what was opened is closed when the test ends."""
    with ExitStack() as stack:

        def open_one(log_dir: Path) -> Storage:
            storage = Storage.open(RealFileSystem(), log_dir, GROUP, SMALL, VOTERS)
            stack.callback(storage.close)
            return storage

        yield open_one


@pytest.fixture
def storage(tmp_path: Path, opened: Callable[[Path], Storage]) -> Storage:
    Storage.create(RealFileSystem(), tmp_path, GROUP, SMALL, recovering=False)
    return opened(tmp_path)


def fill(storage: Storage, appends: int) -> list[int]:
    """Append batches of one to five records, some appends of several; where batches begin."""
    chance = random.Random(3)
    begins = []
    for _ in range(appends):
        base = storage.log.log_end_offset
        data = bytearray()
        end = int(base)
        for _ in range(chance.randrange(1, 4)):
            count = chance.randrange(1, 6)
            begins.append(end)
            data += build_value_batch(
                [chance.randbytes(chance.randrange(60))] * count,
                base_offset=end, leader_epoch=1, timestamp=0,
            )  # fmt: skip
            end += count
        storage.append(data, base, Offset(end))
    return begins


@pytest.mark.parametrize("max_bytes", [1, 300, 2_000, 10**6])
def test_every_read_of_a_raft_groups_storage_returns_whole_batches_from_its_offset_on(
    storage: Storage, max_bytes: int
) -> None:
    begins = fill(storage, 60)
    end_offset = storage.log.log_end_offset
    for from_memory in (True, False):
        if not from_memory:
            storage.forget_tail()
        for begin in begins:
            data = storage.read_bytes(Offset(begin), end_offset, max_bytes)
            headers = [batch.header for batch in iter_batches(data)]
            assert headers[0].base_offset == begin
            assert len(headers) == 1 or len(data) <= max_bytes
        assert storage.read_bytes(end_offset, end_offset, max_bytes) == b""


def test_no_read_of_a_raft_groups_storage_returns_batches_past_the_requested_end(
    storage: Storage,
) -> None:
    begins = fill(storage, 30)
    for from_memory in (True, False):
        if not from_memory:
            storage.forget_tail()
        for begin, end in zip(begins, begins[3:], strict=False):
            data = storage.read_bytes(Offset(begin), Offset(end), 10**6)
            assert list(iter_batches(data))[-1].header.end_offset <= end


def test_storage_returns_no_truncated_batch_from_its_memory_cache(
    storage: Storage,
) -> None:
    begins = fill(storage, 10)
    cut = Offset(begins[5])
    storage.truncate(cut)
    batch = build_value_batch([b"new"], base_offset=cut, leader_epoch=2, timestamp=0)
    storage.append(batch, cut, Offset(cut + 1))
    assert storage.read_bytes(cut, Offset(cut + 1), 10**6) == batch


def test_the_election_state_of_a_raft_group_survives_a_restart(
    storage: Storage, tmp_path: Path, opened: Callable[[Path], Storage]
) -> None:
    voted = ReplicaKey(NodeId(2), UUID(int=22))
    assert storage.election_state() == ElectionState(epoch=Epoch(0))
    storage.persist(ElectionState(epoch=Epoch(4), voted=voted))
    storage.close()
    found = opened(tmp_path).election_state()
    assert (found.epoch, found.leader_id, found.voted and found.voted.id) == (4, None, 2)


def test_a_raft_group_that_lost_its_disk_stays_in_recovery_until_it_has_caught_up(
    tmp_path: Path, opened: Callable[[Path], Storage]
) -> None:
    Storage.create(RealFileSystem(), tmp_path, GROUP, SMALL, recovering=True)
    storage = opened(tmp_path)
    assert storage.recovering
    storage.clear_recovering()
    assert not opened(tmp_path).recovering


def test_a_node_reports_a_missing_or_foreign_raft_group_directory_as_a_lost_disk(
    tmp_path: Path, opened: Callable[[Path], Storage]
) -> None:
    with pytest.raises(LostDiskError):
        opened(tmp_path)
    other = GROUP._replace(topic_id=UUID(int=6))
    Storage.create(RealFileSystem(), tmp_path, other, SMALL, recovering=False)
    with pytest.raises(LostDiskError, match="topic id"):
        opened(tmp_path)


def test_closing_the_storage_of_a_raft_group_closes_its_checkpoint_store(storage: Storage) -> None:
    """Checkpoint files stay open while the group may serve them, and no longer."""
    closed = []
    storage.snapshots = NoSnapshots()
    storage.snapshots.close = lambda: closed.append(storage)  # type: ignore[method-assign]
    storage.close()
    assert closed == [storage]


def test_a_raft_groups_recorded_committed_offset_is_lowered_only_by_a_start_in_recovery(
    tmp_path: Path,
) -> None:
    """Source: docs/design/forks.md#the-floor."""
    files = RealFileSystem()
    Storage.create(files, tmp_path, GROUP, SMALL, recovering=False)
    storage = Storage.open(files, tmp_path, GROUP, SMALL, VOTERS)
    fill(storage, 3)
    end = storage.log.log_end_offset
    storage.log.note_committed(end)
    storage.close()
    storage = Storage.open(files, tmp_path, GROUP, SMALL, VOTERS)
    assert storage.log_state().floor == end
    storage.close()
    (storage.directory / "recovering").touch()
    storage = Storage.open(files, tmp_path, GROUP, SMALL, VOTERS)
    assert storage.log_state().floor == 0
    storage.close()


def test_a_raft_group_marked_as_forked_stays_marked_until_its_marker_file_is_removed(
    storage: Storage,
) -> None:
    assert storage.doubt is None
    storage.mark_doubt("two histories")
    assert storage.doubt == "two histories"
    (storage.directory / "in-doubt").write_bytes(b"\xff\x00")
    assert storage.doubt, "the file's being there decides"
    (storage.directory / "in-doubt").write_bytes(b"")
    assert storage.doubt
    (storage.directory / "in-doubt").unlink()
    assert storage.doubt is None
