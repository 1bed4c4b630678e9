"""The view that the rule for log starts gets.

KIP-630, When to Increase the LogStartOffset; KIP-876.
"""

from __future__ import annotations

import errno
import itertools
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from raft.core.messages import ReplicaState
from raft.core.voters import ReplicaKey
from raft.driver.log_readers import MAX_READERS, ArchiveReader, ArchiveReaders
from raft.driver.log_start import LogStart
from raft.driver.snapshot_hosting import LogStartView, NoSnapshots, ReadingArchive
from raft.driver.storage import Storage
from raft.segments.files import RealFileSystem
from raft.segments.log import LogConfig
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.types import ZERO_UUID, Epoch, NodeId, Offset, OffsetAndEpoch

GROUP = Group("t", 0, UUID(int=5))
BATCHES = 20


class SnapshotStore(NoSnapshots):
    """Checkpoints without files."""

    def __init__(self, *offsets: int) -> None:
        self.ids = tuple(OffsetAndEpoch(Offset(offset), Epoch(1)) for offset in offsets)
        self.newest = self.ids[-1]

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int:  # noqa: ARG002
        return 100


def filled(tmp_path: Path) -> tuple[Storage, int]:
    """A log of equal batches of one record, in one segment; and the bytes of a batch."""
    files, config = RealFileSystem(), LogConfig(index_interval_bytes=1)
    Storage.create(files, tmp_path, GROUP, config, recovering=False)
    storage = Storage.open(files, tmp_path, GROUP, config, (NodeId(1),))
    for offset in range(BATCHES):
        data = build_value_batch([b"x" * 100], base_offset=offset, leader_epoch=1, timestamp=0)
        storage.append(data, Offset(offset), Offset(offset + 1))
    storage.flush()
    return storage, len(data)


def views(
    storage: Storage,
    *,
    observers: tuple[ReplicaState, ...] = (),
    readers: tuple[ArchiveReader, ...] = (),
) -> list[LogStartView]:
    """Return the views that the rule gets of this log at its leader; the rule moves nothing."""
    told: list[LogStartView] = []
    quorum = SimpleNamespace(
        node_id=1,
        leader_id=1,
        followers=SimpleNamespace(since_ms=0, voters=(), observers=observers),
        log=SimpleNamespace(snapshot_id=storage.snapshots.newest, high_watermark=BATCHES),
    )
    log_start = LogStart(
        quorum=quorum,  # type: ignore[arg-type]
        storage=storage,
        disk=SimpleNamespace(busy=False, delete_obsolete=lambda _: None),  # type: ignore[arg-type]
        rule=lambda view: told.append(view),
        leader_log_start=lambda _: None,
        before=lambda: None,
        on_fatal=lambda _: None,
    )
    for reader in readers:
        log_start.readers.record_fetch(*reader)
    log_start.look()
    return told


def test_bytes_below_the_log_start_do_not_count_as_log_size(tmp_path: Path) -> None:
    """A segment goes whole. What is dead in it takes room, but no cut would give that back; were it
    counted, a segment larger than the bound would end the wait for live replicas until it is full.
    """
    storage, batch_bytes = filled(tmp_path)
    storage.snapshots = SnapshotStore(5, 15)
    for start in (0, 5, 15):
        storage.cut_prefix(Offset(start))
        (view,) = views(storage)
        assert view.log_bytes == batch_bytes * (BATCHES - start)
        after = [batch_bytes * (BATCHES - max(start, offset)) for offset in (5, 15)]
        assert [one.log_bytes_after for one in view.checkpoints] == after
        assert all(one >= two for one, two in itertools.pairwise((view.log_bytes, *after)))
    assert storage.log.size_bytes == batch_bytes * BATCHES
    storage.close()


def test_the_log_start_waits_for_an_archives_durable_offset_not_its_fetch_offset(
    tmp_path: Path,
) -> None:
    """An archive fetches ahead of its durable offset, so it must not count as an observer."""
    storage, _ = filled(tmp_path)
    storage.snapshots = SnapshotStore(5, 15)
    archive, broker = (ReplicaKey(NodeId(node), ZERO_UUID) for node in (2_000_000_007, 9))
    observers = tuple(ReplicaState(key, Offset(20), 1_000, 1_000) for key in (archive, broker))
    (view,) = views(
        storage, observers=observers, readers=(ArchiveReader(archive, Offset(4), 1_000),)
    )
    assert view.readers == [ReadingArchive(archive.id, Offset(4), 1_000)]
    assert [replica.node_id for replica in view.replicas] == [broker.id]
    storage.close()


def test_a_leader_with_too_many_archive_readers_forgets_the_longest_silent_archive_reader() -> None:
    readers = ArchiveReaders()
    keys = [ReplicaKey(NodeId(node), ZERO_UUID) for node in range(MAX_READERS + 1)]
    for at_ms, key in enumerate(keys):
        readers.record_fetch(key, Offset(0), at_ms)
        readers.record_fetch(keys[0], Offset(at_ms), at_ms)  # which goes on fetching
    assert {reader.key for reader in readers.all} == {keys[0], *keys[2:]}
    assert readers.all[0] == ArchiveReader(keys[0], Offset(MAX_READERS), MAX_READERS)


def test_a_node_with_an_unreadable_checkpoint_runs_and_keeps_its_log_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many connections use up the descriptors, say; the next second is another chance."""
    storage, _ = filled(tmp_path)
    storage.snapshots = SnapshotStore(5)

    def fail(_store: SnapshotStore, _: OffsetAndEpoch) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotStore, "size_bytes", fail)
        assert views(storage) == []
    assert "Too many open files" in caplog.text
    assert len(views(storage)) == 1
    storage.close()
