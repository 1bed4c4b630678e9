"""The files around a log: indexes, epochs, election state, identity. Ours and Kafka's are the same.

Each claim is made of what a node wrote during this run, and of the recording (see test_kafka_logs).
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from raft.segments.epochs import EpochStart, read_epochs, write_epochs
from raft.segments.files import RealFileSystem
from raft.segments.log import Log
from raft.segments.properties import (
    read_meta_properties,
    read_partition_metadata,
    read_quorum_state,
    write_meta_properties,
    write_partition_metadata,
    write_quorum_state,
)
from records.batch import BatchHeader, iter_batches
from records.types import METADATA_TOPIC_ID, Epoch, Offset
from snapshot.names import BOOTSTRAP_NAME, list_checkpoints
from snapshot.reader import CheckpointReader, verify_checkpoint
from tests.interop import recording
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.interop.recording import DYNAMIC, METADATA, STATIC, Recording

FILES = RealFileSystem()
INDEX_INTERVAL_BYTES = 4096  # log.index.interval.bytes, where nobody sets it
VERSION_OF_QUORUM_STATE = {DYNAMIC: 1, STATIC: 0}


@pytest.fixture(params=[DYNAMIC, STATIC])
def node(request: pytest.FixtureRequest, kafka_files: Recording) -> Path:
    """A node's directory: `meta.properties` and its metadata log."""
    return kafka_files.directory / str(request.param)


@pytest.fixture
def copied_log(node: Path, tmp_path: Path) -> Path:
    """A copy of the log that we may open: opening writes a recovery point."""
    shutil.copytree(node / METADATA, tmp_path / METADATA)
    return tmp_path / METADATA


def test_esker_opens_kafkas_log_directory_and_reads_its_bytes(node: Path, copied_log: Path) -> None:
    segments = sorted((node / METADATA).glob("*.log"))
    written = b"".join(segment.read_bytes() for segment in segments)
    log = Log.open(FILES, copied_log)
    try:
        found = bytearray()
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            records = log.read(offset, max_bytes=1 << 20)
            assert records is not None
            found += records.data
            offset = records.end_offset
        assert found == written
        assert list(log.epochs) == read_epochs(FILES, node / METADATA)
    finally:
        log.close()
    for segment in segments:
        assert (copied_log / segment.name).read_bytes() == segment.read_bytes()


def test_offset_indexes_that_esker_rebuilds_equal_the_offset_indexes_of_kafka(
    node: Path, copied_log: Path, kafka_files: Recording
) -> None:
    """Kafka makes at most one entry for an append, and on a busy machine appends several batches
    at once. Which it did, a file does not tell: then its entries must be what such appends make.
    """
    _rebuild(copied_log, ".index")
    for theirs in (node / METADATA).glob("*.index"):
        if (copied_log / theirs.name).read_bytes() != theirs.read_bytes():
            assert kafka_files.directory != recording.DIRECTORY, theirs.name
            _check_offset_index(theirs)


def test_time_indexes_that_esker_rebuilds_have_no_entry_that_contradicts_kafkas_time_indexes(
    node: Path, copied_log: Path, kafka_files: Recording
) -> None:
    """Kafka adds an entry whenever it closes a segment, so its index may say more, never else."""
    _rebuild(copied_log, ".timeindex")
    for theirs in (node / METADATA).glob("*.timeindex"):
        ours = _entries(copied_log / theirs.name)
        if not set(ours) <= set(_entries(theirs)):
            assert kafka_files.directory != recording.DIRECTORY, theirs.name
            _check_time_index(theirs)


def _check_offset_index(index: Path) -> None:
    """Each entry is of an append that began more than an interval behind the one before."""
    batches, base_offset, before = _batches(index), int(index.stem), 0
    ends = [batch.end_offset - 1 - base_offset for _, batch in batches]
    first = {position: end for (position, _), end in zip(batches, ends, strict=True)}
    for offset, position in struct.iter_unpack(">ii", index.read_bytes()):
        assert position - before > INDEX_INTERVAL_BYTES, index.name
        assert offset in ends, index.name
        assert offset >= first[position], index.name
        before = position


def _check_time_index(index: Path) -> None:
    """Each entry is of a batch with a newer time than all before it."""
    base_offset, newest = int(index.stem), -1
    made = set()
    for _, batch in _batches(index):
        if batch.max_timestamp > newest:
            newest = batch.max_timestamp
            offsets = range(batch.base_offset, batch.end_offset)
            made |= {(newest, offset - base_offset) for offset in offsets}
    assert set(_entries(index)) <= made, index.name


def _batches(index: Path) -> list[tuple[int, BatchHeader]]:
    """The batches of an index's segment, each with its position."""
    found, position = [], 0
    for batch in iter_batches(index.with_suffix(".log").read_bytes()):
        found.append((position, batch.header))
        position += len(batch.view)
    return found


def _rebuild(log: Path, suffix: str) -> None:
    for index in log.glob(f"*{suffix}"):
        index.unlink()
    Log.open(FILES, log).close()


def _entries(time_index: Path) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">qi", time_index.read_bytes()))


def test_esker_writes_the_leader_epoch_file_with_kafkas_bytes(node: Path, tmp_path: Path) -> None:
    epochs = read_epochs(FILES, node / METADATA)
    assert epochs[0] == EpochStart(Epoch(1), Offset(0))
    write_epochs(FILES, tmp_path, epochs)
    name = "leader-epoch-checkpoint"
    assert (tmp_path / name).read_bytes() == (node / METADATA / name).read_bytes()


def test_esker_writes_the_partition_metadata_file_with_kafkas_bytes(
    node: Path, tmp_path: Path
) -> None:
    assert read_partition_metadata(FILES, node / METADATA) == METADATA_TOPIC_ID
    write_partition_metadata(FILES, tmp_path, METADATA_TOPIC_ID)
    name = "partition.metadata"
    ours, theirs = (tmp_path / name).read_bytes(), (node / METADATA / name).read_bytes()
    assert ours == theirs


def test_esker_writes_the_quorum_state_file_with_kafkas_bytes(node: Path, tmp_path: Path) -> None:
    state = read_quorum_state(FILES, node / METADATA)
    assert state is not None
    assert state.epoch == read_epochs(FILES, node / METADATA)[-1].epoch
    version = VERSION_OF_QUORUM_STATE[node.name]
    write_quorum_state(FILES, tmp_path, state, version=version)
    written = (tmp_path / "quorum-state").read_bytes()
    assert written == (node / METADATA / "quorum-state").read_bytes()
    assert json.loads(written)["data_version"] == version


def test_esker_writes_the_meta_properties_file_with_the_same_properties_as_kafka(
    node: Path, tmp_path: Path
) -> None:
    """Their bytes differ in the comment, where Java puts the date, and in the order of lines."""
    meta = read_meta_properties(FILES, node)
    assert meta.cluster_id == CLUSTER_ID
    assert meta.directory_id is not None
    write_meta_properties(FILES, tmp_path, meta)
    assert _properties(tmp_path) == _properties(node)


def _properties(directory: Path) -> set[str]:
    lines = (directory / "meta.properties").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def test_kafkas_checkpoints_pass_eskers_verification(node: Path) -> None:
    """Their footers lack our count and checksum, which is no reason to refuse them."""
    found = list_checkpoints(FILES, node / METADATA)
    assert len(found) == len(list((node / METADATA).glob("*.checkpoint")))
    for path in [*(node / METADATA).glob("*.checkpoint"), node / BOOTSTRAP_NAME]:
        checkpoint = verify_checkpoint(FILES, path, decode=True)
        assert checkpoint is not None
        with CheckpointReader(FILES, path) as reader:
            assert reader.size_bytes == path.stat().st_size
