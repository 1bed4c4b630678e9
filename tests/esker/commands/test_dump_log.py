"""`esker dump-log`: its text output, its JSON output and its exit codes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from raft.segments.epochs import EpochStart, write_epochs
from raft.segments.files import RealFileSystem
from raft.segments.properties import (
    MetaProperties,
    QuorumState,
    write_meta_properties,
    write_partition_metadata,
    write_quorum_state,
)
from raft.segments.recovery_point import LogState, RecoveryPointFile
from records.batch_writer import build_value_batch
from records.compression import Compression
from records.diskless import TransactionMarkersRecord
from records.frame import encode_record
from records.transactions import TransactionStateRecord
from tests.esker.commands.files import (
    SEGMENT,
    TIME,
    TOPIC,
    segment_bytes,
    write_indexes,
    write_segment,
)
from tests.interop.recording import DIRECTORY, Recording
from tests.snapshot.checkpoints import written

HERE = Path(__file__).parent
INDEX = SEGMENT.replace(".log", ".index")
TIME_INDEX = SEGMENT.replace(".log", ".timeindex")
CHECKPOINT = "00000000000000000057-0000000003.checkpoint"


@pytest.mark.parametrize(
    ("options", "golden"), [([], "golden_table.txt"), (["--json"], "golden_lines.jsonl")]
)
def test_dump_log_output_equals_the_golden_file(esker, tmp_path, options, golden):
    write_segment(tmp_path)
    write_indexes(tmp_path)
    ran = esker("dump-log", *options, SEGMENT, INDEX, TIME_INDEX)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (HERE / golden).read_text()


def test_dump_log_tables_have_at_most_100_columns_and_no_escape_codes(esker, tmp_path):
    values = [b"\x01" + bytes([n]) * 4000 for n in range(256)]
    data = build_value_batch(values, base_offset=0, leader_epoch=1, timestamp=TIME)
    (tmp_path / SEGMENT).write_bytes(segment_bytes() + data)
    out = esker("dump-log", SEGMENT).out
    assert all(len(line) <= 100 for line in out.splitlines())
    assert out.replace("\n", "").isprintable()


def test_dump_log_shortens_a_long_record_as_text_but_not_as_json(esker, tmp_path):
    name = "x" * 5000
    value = b"\x01\x0c\x00" + b"\x89\x27" + name.encode() + b"\x00\x01\x00"
    data = build_value_batch([value], base_offset=100, leader_epoch=1, timestamp=TIME)
    write_segment(tmp_path, bytes(data))
    assert "more characters, --json shows all" in esker("dump-log", SEGMENT).out
    _, _, record, _ = esker("dump-log", "--json", SEGMENT).lines
    assert record["data"] == {"name": name, "featureLevel": 1}


@pytest.mark.parametrize("codec", Compression)
def test_dump_log_prints_the_codec_of_a_compressed_batch(esker, tmp_path, codec):
    data = build_value_batch(
        [b"\x01\x14\x00\x00"], base_offset=0, leader_epoch=1, timestamp=TIME, compression=codec
    )
    (tmp_path / "copy.log").write_bytes(data)
    _, batch, record, _ = esker("dump-log", "--json", "copy.log").lines
    assert (batch["compression"], record["record"]) == (codec.name.lower(), "NoOpRecord")


def test_dump_log_states_whether_a_checkpoints_footer_is_valid(esker, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(written(3))
    ran = esker("dump-log", "--json", CHECKPOINT)
    assert ran.lines[-1]["remarks"] == ["whole: count and checksum in the footer are right"]
    footer = ran.lines[-2]
    assert footer["record"] == "SnapshotFooterRecord"
    assert footer["data"]["recordCount"] == 4
    assert "whole: count and checksum" in esker("dump-log", "--verify", CHECKPOINT).out


def test_dump_log_prints_the_state_files_beside_a_log_with_kafkas_field_names(esker, tmp_path):
    files = RealFileSystem()
    write_epochs(files, tmp_path, [EpochStart(1, 0), EpochStart(4, 17)])
    write_quorum_state(files, tmp_path, QuorumState(epoch=4, leader_id=2), version=1)
    write_partition_metadata(files, tmp_path, TOPIC)
    meta = MetaProperties(cluster_id="c", node_id=3, directory_id=TOPIC)
    write_meta_properties(files, tmp_path, meta)
    RecoveryPointFile.create(files, tmp_path, LogState(5, 9, floor=7)).close()
    names = ["leader-epoch-checkpoint", "quorum-state", "partition.metadata", "meta.properties"]
    ran = esker("dump-log", "--json", *names, "recovery-point")
    topic = "AAAAAAAAAAAAAAAAAAAABw"
    shown = [
        {key: value for key, value in line.items() if key not in ("type", "file")}
        for line in ran.lines
        if line["type"] not in ("file", "end")
    ]
    assert shown == [
        {"epoch": 1, "startOffset": 0},
        {"epoch": 4, "startOffset": 17},
        {
            "leaderEpoch": 4,
            "leaderId": 2,
            "votedId": None,
            "votedDirectoryId": None,
            "currentVoters": [],
        },
        {"topicId": topic},
        {"clusterId": "c", "nodeId": 3, "directoryId": topic},
        {"logStartOffset": 5, "recoveryPoint": 9, "floor": 7, "resetting": False},
    ]
    table = esker("dump-log", *names, "recovery-point")
    assert table.code == 0
    assert f'clusterId="c"  nodeId=3  directoryId={topic}' in table.out


def test_dump_log_never_writes_to_a_file(esker, tmp_path):
    path = write_segment(tmp_path)
    RecoveryPointFile.create(RealFileSystem(), tmp_path, LogState(5, 9)).close()
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    for file in tmp_path.iterdir():
        file.chmod(0o444)
    assert esker("dump-log", "--verify", path.name, "recovery-point").code == 0
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}


def test_dump_log_prints_the_same_fields_as_kafkas_tool(esker):
    """Compare every record of a log and of checkpoints that Kafka wrote with DumpLogSegments."""
    recording = Recording(DIRECTORY)
    compared = 0
    for path, batches in recording.dumped().items():
        ran = esker("dump-log", "--json", str(path))
        assert ran.code == 0, ran.err
        ours = [line for line in ran.lines if line["type"] == "record"]
        theirs = [record for batch in batches for record in batch.records]
        for mine, theirs_record in zip(ours, theirs, strict=True):
            assert (mine["offset"], mine["version"]) == (
                theirs_record.offset,
                theirs_record.version,
            )
            assert mine["data"] == theirs_record.data
            compared += 1
    assert compared > 200


def test_dump_log_verifies_files_written_by_kafka(esker):
    paths = [
        str(path)
        for path in sorted(DIRECTORY.rglob("*"))
        if path.is_file() and path.suffix not in (".json", ".md", ".snapshot")
    ]
    ran = esker("dump-log", "--verify", "--deep", *paths)
    assert ran.code == 0, ran.out
    assert ran.out.count("sound  ") == len(paths) > 20
    assert "malformed" not in ran.out
    assert "unknown" not in ran.out


def test_dump_log_prints_bytes_as_base64_and_uuids_as_kafka_does(esker, tmp_path):
    write_segment(tmp_path)
    records = [line for line in esker("dump-log", "--json", SEGMENT).lines if "offset" in line]
    strange = next(record for record in records if record["offset"] == 105)
    assert base64.b64decode(strange["value"]) == b"\xff\x00value"


def test_dump_log_names_states_of_transactions_and_outcomes_of_markers_for_people(esker, tmp_path):
    state = TransactionStateRecord(
        transactional_id="t", producer_id=7, producer_epoch=0, last_producer_epoch=-1,
        timeout_ms=60_000, state=2, transaction_number=3, epoch_began_at_ms=1, started_at_ms=2,
        updated_at_ms=3,
    )  # fmt: skip
    markers = TransactionMarkersRecord(
        written_at_ms=3, topic_ids=(TOPIC,), topic_indexes=(0, 0, 0), partitions=(0, 1, 2),
        offsets=(5, 5, 5), producer_ids=(7, 8, 9), producer_epochs=(0, 0, 0),
        transaction_numbers=(3, 1, 1), outcomes=(1, 0, 9), coordinator_epochs=(1, 1, 1),
        first_offsets=(4, 4, 4), last_stable_offsets=(6, 6, 6),
    )  # fmt: skip
    values = [encode_record(record) for record in (state, markers)]
    data = build_value_batch(values, base_offset=0, leader_epoch=1, timestamp=TIME)
    write_segment(tmp_path, bytes(data))
    table = " ".join(esker("dump-log", SEGMENT).out.split())
    assert "state=2:PrepareCommit" in table
    assert "outcomes=[1:COMMIT, 0:ABORT, 9]" in table
    _, _, first, second, _ = esker("dump-log", "--json", SEGMENT).lines
    assert (first["data"]["state"], second["data"]["outcomes"]) == (2, [1, 0, 9])
