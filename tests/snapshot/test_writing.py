"""What a writer writes, a reader reads; in bounded memory. Source: KIP-630, Snapshot Format."""

from __future__ import annotations

import tracemalloc

import pytest

from raft.interfaces import MAX_EPOCHS
from raft.segments.files import RealFileSystem
from records.batch import HEADER_SIZE_BYTES, iter_batches
from records.batch_writer import build_value_batch
from records.compression import Compression
from records.control import SnapshotHeaderRecord
from records.errors import BatchTooLargeError
from records.frame import encode_record
from records.types import OffsetAndEpoch
from snapshot import CheckpointReader, CheckpointWriter, Origin, verify_checkpoint
from snapshot.encoder import MAX_BATCH_BYTES, TARGET_BATCH_BYTES
from snapshot.store import SnapshotStore
from tests.interop.recording import DIRECTORY as RECORDED
from tests.interop.recording import Recording
from tests.snapshot.checkpoints import (
    DIRECTORY,
    ID,
    KRAFT_VERSION,
    PATH,
    TIME,
    VOTERS,
    as_kafka_closes,
    closed,
    control_batch,
    data_batch,
    features,
    header_batch,
    new_disk,
    verified,
    written,
)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_the_checkpoint_reader_returns_the_written_records_in_order(count):
    disk = new_disk()
    disk.replace(PATH, written(count))
    with CheckpointReader(disk, PATH) as reader:
        found = list(reader.records())
    assert [record for _, record in found] == features(count)
    assert [offset for offset, _ in found] == list(range(1, count + 1))


def test_the_checkpoint_header_holds_timestamp_kraft_version_and_voters():
    found = verified(written(3, kraft_version=1, voters=VOTERS))
    assert found.preamble == (TIME, 1, VOTERS, ())
    assert (found.epoch, found.record_count, found.origin) == (ID.epoch, 3, Origin.ESKER)


def test_two_checkpoints_of_the_same_state_have_the_same_bytes():
    assert written(9) == written(9)


def test_the_checkpoint_reader_names_kafka_as_the_origin_of_a_checkpoint_that_kafka_wrote():
    content = header_batch(KRAFT_VERSION, VOTERS) + data_batch(3, base_offset=3)
    found = verified(as_kafka_closes(content))
    assert (found.record_count, found.origin) == (3, Origin.KAFKA)
    assert found.preamble == (TIME, 1, VOTERS, ())


@pytest.mark.parametrize("compression", Compression)
def test_the_checkpoint_reader_accepts_compressed_batches_although_esker_writes_none(compression):
    values = [encode_record(record) for record in features(100)]
    batch = build_value_batch(
        values, base_offset=1, leader_epoch=3, timestamp=TIME, compression=compression
    )
    assert verified(closed(header_batch() + bytes(batch))).record_count == 100


def test_a_checkpoint_batch_exceeds_the_target_size_only_for_a_larger_record():
    disk = new_disk()
    large = b"\1" + bytes(TARGET_BATCH_BYTES)
    with CheckpointWriter.create(disk, DIRECTORY, ID, last_timestamp=TIME) as writer:
        writer.append_values([large, *([bytes(1000)] * 3000)])
        assert writer.record_count == 3002
        path = writer.freeze()
    sizes = [batch.header.size_bytes for batch in iter_batches(disk.content(path))]
    assert len(large) < sizes[1] < len(large) + HEADER_SIZE_BYTES + 30
    assert max(sizes[2:]) <= TARGET_BATCH_BYTES
    assert len(sizes) == 15  # header, large, 3 MB in twelve, footer


def test_the_checkpoint_writer_refuses_a_record_that_readers_would_refuse():
    disk = new_disk()
    writer = CheckpointWriter.create(disk, DIRECTORY, ID, last_timestamp=TIME)
    with pytest.raises(BatchTooLargeError), writer:
        writer.append_value(bytes(MAX_BATCH_BYTES))
    assert disk.listdir(DIRECTORY) == []


def test_writing_a_large_checkpoint_takes_constant_memory(tmp_path):
    files, snapshot_id = RealFileSystem(), OffsetAndEpoch(10**6, 7)
    value = b"\x01\x0c\x00" + bytes(997)
    tracemalloc.start()
    try:
        with CheckpointWriter.create(files, tmp_path, snapshot_id, last_timestamp=TIME) as writer:
            for _ in range(24_000):
                writer.append_value(bytes(value))
            path = writer.freeze()
        found = verify_checkpoint(files, path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.size_bytes > 24_000_000
    assert peak < 3_000_000, f"{peak} bytes at once"


def test_verification_accepts_each_recorded_checkpoint_of_kafka_and_recognizes_its_origin():
    found = {
        path: verify_checkpoint(RealFileSystem(), path, decode=True)
        for path in Recording(RECORDED).checkpoints()
    }
    assert len(found) >= 4
    assert {checkpoint.origin for checkpoint in found.values()} == {Origin.KAFKA}
    with_voters = [c.preamble for c in found.values() if c.preamble.voters is not None]
    assert {preamble.kraft_version for preamble in with_voters} == {1}


def epochs_of(data: bytes) -> tuple:
    """The epochs that the store reads from a checkpoint of these bytes."""
    disk = new_disk()
    disk.replace(PATH, data)
    return tuple(SnapshotStore(disk, DIRECTORY, now_ms=lambda: 0.0).epochs(ID))


def named(*pairs: tuple[int, int]) -> bytes:
    epochs = tuple(
        SnapshotHeaderRecord.EpochStart(epoch=epoch, start_offset=offset) for epoch, offset in pairs
    )
    header = SnapshotHeaderRecord(last_contained_log_timestamp=TIME, epochs=epochs)
    return closed(control_batch(header, base_offset=0, epoch=3))


def test_a_checkpoints_header_keeps_the_newest_epochs_that_its_writer_was_given():
    assert epochs_of(written(2)) == ()
    assert epochs_of(named((1, 0), (3, 40))) == ((1, 0), (3, 40))
    many = [(epoch, 2 * epoch) for epoch in range(MAX_EPOCHS + 9)]
    assert epochs_of(named(*many)) == tuple(many[9:])


@pytest.mark.parametrize("pairs", [((3, 0), (1, 40)), ((1, 40), (3, 40)), ((-1, 0), (2, 5))])
def test_the_checkpoint_reader_ignores_header_epochs_that_are_out_of_order(pairs):
    assert epochs_of(named(*pairs)) == ()
    assert verified(named(*pairs)).preamble.epochs == ()


def test_the_checkpoint_reader_returns_no_epochs_from_a_damaged_header():
    assert epochs_of(named((1, 0))[:-40]) == ((1, 0),), "only its header is read"
    assert epochs_of(b"damaged" + named((1, 0))) == ()
