"""The files that a real Kafka node wrote (tests/data/kafka) are read, and our indexes equal its."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from raft.segments import (
    Log,
    LogConfig,
    QuorumState,
    RealFileSystem,
    read_meta_properties,
    read_partition_metadata,
    read_quorum_state,
    write_partition_metadata,
    write_quorum_state,
)
from raft.segments.epochs import read_epochs, write_epochs
from raft.segments.index import TimeIndex
from records.batch import iter_records
from records.types import METADATA_TOPIC_ID

RECORDED = Path(__file__).parents[2] / "data" / "kafka"
NODES = ["dynamic-voters", "static-voters"]
FILES = RealFileSystem()


@pytest.fixture(params=NODES)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one node's log directory."""
    return Path(shutil.copytree(RECORDED / request.param, tmp_path / request.param))


def partition(node: Path) -> Path:
    return node / "__cluster_metadata-0"


def test_esker_opens_a_log_written_by_kafka_completely(node):
    log = Log.open(FILES, partition(node))
    size = sum(path.stat().st_size for path in (RECORDED / node.name).glob("*/*.log"))
    assert log.size_bytes == size, "nothing was cut"
    assert list(log.epochs) == read_epochs(FILES, RECORDED / node.name / "__cluster_metadata-0")
    offset, records = 0, 0
    while found := log.read(offset, max_bytes=3000):
        assert found.base_offset == offset
        records += sum(1 for batch in found.batches for _ in iter_records(batch))
        offset = found.end_offset
    assert offset == records == log.log_end_offset
    log.close()


def test_a_log_written_by_kafka_accepts_appends(node):
    log = Log.open(FILES, partition(node), LogConfig(segment_bytes=8192))
    end = log.log_end_offset
    template = log.read(end - 1, max_bytes=1)
    data = bytearray(template.data)
    data[:8] = end.to_bytes(8, "big")
    log.append(data)
    log.close()
    again = Log.open(FILES, partition(node))
    assert again.log_end_offset == end + len(template.batches)
    again.close()


def test_rebuilt_indexes_equal_the_indexes_that_kafka_wrote(node):
    """The offset index byte for byte. The time index has every entry of ours; Kafka adds one more
    whenever it stops, and the recorded node was stopped in the middle of a segment."""
    originals = {path.name: path.read_bytes() for path in (RECORDED / node.name).glob("*/*index")}
    for path in partition(node).glob("*index"):
        path.unlink()
    Log.open(FILES, partition(node)).close()
    for name, original in originals.items():
        ours = (partition(node) / name).read_bytes()
        if name.endswith(".index"):
            assert ours == original
            continue
        entries = [original[i : i + 12] for i in range(0, len(original), 12)]
        assert all(ours[i : i + 12] in entries for i in range(0, len(ours), 12))
        assert ours[-12:] == original[-12:]


def test_a_time_index_written_by_kafka_answers_lookups(node):
    for path in partition(node).glob("*.timeindex"):
        index = TimeIndex(path, int(path.name[:20]))
        assert index.load(FILES)
        for i in range(len(index)):
            timestamp, offset = index.entry(i)
            assert index.lookup(timestamp + 1) == offset
            assert index.lookup(timestamp) < offset


def test_esker_reads_kafkas_metadata_files_and_writes_them_back_byte_for_byte(node):
    directory = partition(node)
    assert read_partition_metadata(FILES, directory) == METADATA_TOPIC_ID
    state = read_quorum_state(FILES, directory)
    meta = read_meta_properties(FILES, node)
    assert meta.cluster_id == "ZXNrZXIgaW50ZXJvcCAwMQ"
    assert isinstance(meta.directory_id, UUID)
    if node.name == "static-voters":
        assert state == QuorumState(epoch=1, leader_id=3000, voters=(3000,))
    else:
        assert state == QuorumState(epoch=2, leader_id=1)

    write_partition_metadata(FILES, directory, METADATA_TOPIC_ID)
    write_quorum_state(FILES, directory, state, version=0 if state.voters else 1)
    write_epochs(FILES, directory, read_epochs(FILES, directory))
    original = RECORDED / node.name / "__cluster_metadata-0"
    for name in ("partition.metadata", "quorum-state", "leader-epoch-checkpoint"):
        assert (directory / name).read_bytes() == (original / name).read_bytes()
