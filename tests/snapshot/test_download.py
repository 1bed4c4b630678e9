"""A download ends in the leader's bytes or in nothing, whatever comes in between.

Source: docs/design/snapshots.md#fetching-a-snapshot.
"""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.interfaces import RejectedSnapshotError, SnapshotChunk
from raft.segments.files import RealFileSystem
from records.batch import iter_batches
from records.types import OffsetAndEpoch
from snapshot import (
    CheckpointWriter,
    PartDownload,
    SnapshotStore,
    checkpoint_name,
    verify_checkpoint,
)
from snapshot import download as module
from tests.examples import seeds
from tests.simulation.disk import PowerLoss, SimulatedDisk
from tests.snapshot.checkpoints import (
    DIRECTORY,
    ID,
    PATH,
    TIME,
    as_kafka_closes,
    closed,
    data_batch,
    features,
    header_batch,
    new_disk,
    written,
)

WHOLE = written(20)
PIECE = 150


def shelf_on(disk: SimulatedDisk) -> SnapshotStore:
    return SnapshotStore(disk, DIRECTORY, now_ms=lambda: 0)


def pieces(data: bytes, position: int = 0, size: int = PIECE):
    """What a leader answers, from a position on."""
    while position < len(data):
        yield position, SnapshotChunk(len(data), data[position : position + size])
        position += size


def fetch(store: SnapshotStore, data: bytes = WHOLE, *, limit: int | None = None) -> PartDownload:
    """Ask for all there is, or for some pieces of it."""
    download = store.receive(ID)
    for count, (position, piece) in enumerate(pieces(data, download.position)):
        if count == limit:
            break
        assert download.take(position, piece) == (download.position == len(data))
    return download


def install(store: SnapshotStore, data: bytes = WHOLE) -> PartDownload:
    download = fetch(store, data)
    download.publish()
    store.added(ID)
    return download


def reject(download: PartDownload, position: int, piece: SnapshotChunk, match: str) -> None:
    """It is refused, and nothing is left of the part."""
    with pytest.raises(RejectedSnapshotError, match=match):
        download.take(position, piece)


def test_a_downloaded_checkpoint_equals_the_leaders_file():
    disk = new_disk()
    store = shelf_on(disk)
    assert store.newest is None
    download = install(store)
    assert disk.content(PATH) == WHOLE
    assert disk.listdir(DIRECTORY) == [PATH.name]
    assert store.newest == ID
    assert download.checkpoint is not None
    assert download.checkpoint.record_count == 20
    assert download.size_bytes == len(WHOLE)


def test_a_checkpoint_is_downloaded_to_the_real_file_system(tmp_path: Path):
    store = SnapshotStore(RealFileSystem(), tmp_path, now_ms=lambda: 0)
    fetch(store, limit=3).keep()
    store = SnapshotStore(RealFileSystem(), tmp_path, now_ms=lambda: 0)
    download = install(store)
    assert 0 < download.resumed_bytes <= 3 * PIECE
    assert (tmp_path / checkpoint_name(ID)).read_bytes() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_name(ID)]


def test_a_checkpoint_download_resumes_a_partial_file_after_the_last_complete_batch():
    disk = new_disk()
    store = shelf_on(disk)
    fetch(store, limit=4).keep()
    download = shelf_on(disk).receive(ID)
    ends = [batch.position + batch.header.size_bytes for batch in iter_batches(WHOLE)]
    assert download.position == max(end for end in ends if end <= 4 * PIECE)
    assert download.resumed_bytes == download.position
    download.keep()
    install(store)
    assert disk.content(PATH) == WHOLE


def test_a_download_that_resumes_a_complete_partial_checkpoint_requests_the_footer_again():
    """No leader answers a position at the end: upstream's refuses it."""
    store = shelf_on(new_disk())
    fetch(store).keep()
    download = store.receive(ID)
    assert 0 < download.position < len(WHOLE)
    download.keep()
    install(store)


def test_a_checkpoint_download_replaces_the_partial_file_of_another_snapshot():
    disk = new_disk()
    store = shelf_on(disk)
    strange = written(3).replace(b"\x00\x00\x00\x03\x02", b"\x00\x00\x00\x02\x02")  # epoch 2
    fetch(store, strange, limit=2).keep()
    assert store.receive(ID).position == 0


def test_a_download_refuses_a_checkpoint_smaller_than_its_partial_file_and_discards_the_file():
    disk = new_disk()
    store = shelf_on(disk)
    fetch(store, limit=4).keep()
    download = store.receive(ID)
    reject(download, download.position, SnapshotChunk(download.position - 1, b""), "bytes up to")
    assert disk.listdir(DIRECTORY) == []
    assert store.receive(ID).position == 0


@pytest.mark.parametrize(
    ("position", "piece", "match"),
    [
        (PIECE + 1, SnapshotChunk(len(WHOLE), b"x"), "expected from"),
        (0, SnapshotChunk(len(WHOLE), b"x"), "expected from"),
        (PIECE, SnapshotChunk(len(WHOLE) + 1, b"x"), "now it has"),
        (PIECE, SnapshotChunk(len(WHOLE), b""), "nothing from"),
        (PIECE, SnapshotChunk(len(WHOLE), WHOLE[PIECE:] + b"x"), "bytes up to"),
    ],
    ids=["a-gap", "a-repetition", "another-size", "nothing", "too-much"],
)
def test_an_invalid_fetch_snapshot_chunk_discards_the_partial_checkpoint_file(
    position, piece, match
):
    disk = new_disk()
    store = shelf_on(disk)
    reject(fetch(store, limit=1), position, piece, match)
    assert disk.listdir(DIRECTORY) == []
    install(store)


@pytest.mark.parametrize("size", [-1, -(1 << 63)])
def test_a_checkpoint_download_refuses_a_chunk_with_a_negative_checkpoint_size(size):
    download = shelf_on(new_disk()).receive(ID)
    reject(download, 0, SnapshotChunk(size, b""), "bytes up to 0")


def test_a_download_refuses_a_checkpoint_larger_than_the_free_disk_space_at_its_first_chunk():
    disk = new_disk()
    disk.capacity_bytes = 10_000
    store = shelf_on(disk)
    download = store.receive(ID)
    with pytest.raises(OSError, match="No space"):
        download.take(0, SnapshotChunk(1 << 50, b"x" * 100))
    assert disk.used_bytes == 0
    download.discard()
    assert disk.listdir(DIRECTORY) == []


DAMAGED = {
    "an-empty-file": b"",
    "truncated-in-a-batch": WHOLE[:-1],
    "without-a-footer": WHOLE[: -len(written(0)) // 2],
    "a-flipped-bit": WHOLE[:400] + bytes([WHOLE[400] ^ 1]) + WHOLE[401:],
    "something-after-the-footer": WHOLE + WHOLE[:61],
    "garbage": random.Random(7).randbytes(3_000),
    "of-another-epoch": closed(
        header_batch(epoch=4) + data_batch(3, base_offset=1, epoch=4), epoch=4
    ),
    "a-count-that-lies": closed(header_batch() + data_batch(3, base_offset=1), record_count=3),
    "no-header": closed(data_batch(3, base_offset=0)),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_checkpoint_download_never_renames_an_invalid_file_to_a_checkpoint(data):
    disk = new_disk()
    store = shelf_on(disk)
    download = store.receive(ID)
    with pytest.raises(RejectedSnapshotError):  # noqa: PT012 (the first piece, or the end)
        for position, piece in pieces(data):
            download.take(position, piece)
        download.publish()
    assert disk.listdir(DIRECTORY) == []
    install(store)
    assert disk.content(PATH) == WHOLE


def test_a_download_detects_a_checkpoint_joined_from_two_leaders_files_and_fetches_it_again():
    """Each batch is sound and in its place; only the footer knows.

    Source: docs/design/snapshots.md#fetching-a-snapshot.
    """
    first = header_batch() + data_batch(3, base_offset=1)
    second = header_batch() + data_batch(3, base_offset=1).replace(b"feature-1", b"feature-9")
    assert len(first) == len(second)
    second = header_batch() + _resealed(second[len(header_batch()) :])
    one = closed(first + data_batch(2, base_offset=4))
    two = closed(second + data_batch(2, base_offset=4))
    assert len(one) == len(two)
    disk = new_disk()
    store = shelf_on(disk)
    download = store.receive(ID)
    download.take(0, SnapshotChunk(len(one), one[: len(first)]))
    download.keep()
    download = shelf_on(disk).receive(ID)  # another leader answers the rest
    assert download.position == len(first)
    assert download.take(len(first), SnapshotChunk(len(two), two[len(first) :]))
    with pytest.raises(RejectedSnapshotError, match="crc of all before the footer"):
        download.publish()
    install(store, two)
    assert disk.content(PATH) == two


def _resealed(batch: bytes) -> bytes:
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def test_a_download_accepts_a_checkpoint_of_a_java_leader_without_eskers_footer_fields():
    data = as_kafka_closes(header_batch() + data_batch(3, base_offset=1))
    disk = new_disk()
    install(shelf_on(disk), data)
    assert disk.content(PATH) == data


def test_a_checkpoint_download_keeps_the_bytes_that_it_wrote_before_the_disk_was_full():
    disk = new_disk()
    store = shelf_on(disk)
    download = fetch(store, limit=3)
    position = download.position
    disk.capacity_bytes = disk.used_bytes + 10
    piece = SnapshotChunk(len(WHOLE), WHOLE[position : position + PIECE])
    for _ in range(3):
        with pytest.raises(OSError, match="No space") as caught:
            download.take(position, piece)
        assert caught.value.errno == errno.ENOSPC
        assert download.position == position
    download.keep()
    disk.capacity_bytes = None
    install(store)
    assert disk.content(PATH) == WHOLE


def test_a_checkpoint_download_whose_flush_fails_discards_its_partial_file(monkeypatch):
    """Nobody knows what is on the disk after one."""
    monkeypatch.setattr(module, "FLUSH_EVERY_BYTES", 400)
    disk = new_disk()
    store = shelf_on(disk)
    download = fetch(store, limit=2)
    disk.fail_next("fdatasync")
    reject(download, 2 * PIECE, SnapshotChunk(len(WHOLE), WHOLE[300:450]), "flushed")
    assert disk.listdir(DIRECTORY) == []
    install(store)


@pytest.mark.parametrize("operation", ["fdatasync", "rename", "fsync_directory"])
def test_publishing_a_downloaded_checkpoint_succeeds_when_repeated_after_a_disk_error(operation):
    disk = new_disk()
    store = shelf_on(disk)
    download = fetch(store)
    disk.fail_next(operation)
    with pytest.raises(OSError, match="Input/output"):
        download.publish()
    assert store.newest is None
    install(shelf_on(disk))
    assert disk.listdir(DIRECTORY) == [PATH.name]


def test_a_checkpoint_download_flushes_its_bytes_periodically(monkeypatch):
    monkeypatch.setattr(module, "FLUSH_EVERY_BYTES", 2 * PIECE)
    disk = new_disk()
    store = shelf_on(disk)
    fetch(store, limit=4).keep()
    (name,) = disk.listdir(DIRECTORY)
    assert disk.durable_bytes(DIRECTORY / name) == 4 * PIECE


def full_story(disk: SimulatedDisk) -> None:
    """An older checkpoint is there; half is fetched, kept, fetched to its end and published."""
    store = shelf_on(disk)
    fetch(store, limit=3).keep()
    install(shelf_on(disk))


def story_disk() -> SimulatedDisk:
    disk = new_disk()
    disk.replace(DIRECTORY / checkpoint_name(OffsetAndEpoch(12, 1)), written(1))
    return disk


@pytest.fixture
def often(monkeypatch):
    """Flushed so often that the power may fail around it."""
    monkeypatch.setattr(module, "FLUSH_EVERY_BYTES", 2 * PIECE)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", seeds(12))
def test_a_power_loss_during_a_checkpoint_download_leaves_a_complete_or_a_resumable_file(seed):
    disk = story_disk()
    full_story(disk)
    for step in range(disk.steps + 1):
        disk = story_disk()
        disk.power_loss_at = step
        with contextlib.suppress(PowerLoss):
            full_story(disk)
            disk.power_loss_at = 0
        disk.crash(random.Random(seed * 1_000 + step))
        store = shelf_on(disk)
        if store.newest == ID:
            assert disk.content(PATH) == WHOLE
            continue
        download = store.receive(ID)
        assert WHOLE.startswith(disk.content(download._part.path)), "garbage was kept"
        download.keep()
        install(store)
        assert disk.content(PATH) == WHOLE
        assert verify_checkpoint(disk, PATH).record_count == 20


@settings(max_examples=150, deadline=None)
@given(
    cuts=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=6),
    piece_bytes=st.integers(1, 400),
    seed=st.integers(0, 1 << 32),
)
def test_an_interrupted_checkpoint_download_always_ends_with_the_bytes_of_the_leaders_file(
    cuts, piece_bytes, seed
):
    """Kept, or the power fails; then again, with pieces of another size."""
    disk, rng = new_disk(), random.Random(seed)
    for count, power_fails in cuts:
        download = shelf_on(disk).receive(ID)
        for position, piece in list(pieces(WHOLE, download.position, piece_bytes))[:count]:
            download.take(position, piece)
        if power_fails:
            disk.crash(rng)
        else:
            download.keep()
    install(shelf_on(disk))
    assert disk.content(PATH) == WHOLE


def test_the_checkpoint_store_keeps_at_most_one_partial_download():
    disk = new_disk()
    store = shelf_on(disk)
    fetch(store, limit=2).keep()
    newer = OffsetAndEpoch(99, 3)
    store.receive(newer).keep()
    (name,) = disk.listdir(DIRECTORY)
    assert name.startswith(checkpoint_name(newer)[:20])


def test_a_checkpoint_download_does_not_resume_the_partial_file_of_a_local_checkpoint():
    """It is removed at the start: nobody knows whose bytes they would be joined to."""
    disk = new_disk()
    writer = CheckpointWriter.create(disk, DIRECTORY, ID, last_timestamp=TIME)
    writer.target_batch_bytes = 64
    for record in features(5):
        writer.append(record)
    store = shelf_on(disk)
    assert disk.listdir(DIRECTORY) == []
    assert store.receive(ID).position == 0
