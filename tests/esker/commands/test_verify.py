"""`esker dump-log --verify` reports each kind of damage with its position and an exit code."""

from __future__ import annotations

import struct

import pytest

from records.batch_writer import build_batch, build_value_batch
from tests.esker.commands.files import (
    SEGMENT,
    TIME,
    control_batch,
    metadata_batch,
    segment_bytes,
    strange_batch,
    write_indexes,
    write_segment,
)
from tests.snapshot.checkpoints import (
    as_kafka_closes,
    closed,
    data_batch,
    header_batch,
    written,
)

INDEX = SEGMENT.replace(".log", ".index")
TIME_INDEX = SEGMENT.replace(".log", ".timeindex")
CHECKPOINT = "00000000000000000057-0000000003.checkpoint"
GOOD = segment_bytes()
STARTS = (0, 96, 313)


def damaged(ran) -> dict:
    assert ran.code == 1
    (line,) = ran.lines
    assert line["type"] == "error"
    return line


def test_dump_log_verify_reports_a_flipped_bit_of_a_segment_at_its_batchs_start(esker, tmp_path):
    for i in range(0, len(GOOD), 7):
        data = bytearray(GOOD)
        data[i] ^= 4
        write_segment(tmp_path, bytes(data))
        line = damaged(esker("dump-log", "--verify", "--json", SEGMENT))
        # the high bytes of an epoch only look wrong beside the next batch's
        late = i % 1000 in range(12, 16) or i - 96 in range(12, 16) or i - 313 in range(12, 16)
        start = max(start for start in STARTS if start <= i)
        assert line["position"] == start or (late and line["position"] > start), f"byte {i}"


def test_dump_log_verify_accepts_a_truncated_segment_only_if_it_ends_at_a_batch_boundary(
    esker, tmp_path
):
    for size in range(0, len(GOOD), 5):
        write_segment(tmp_path, GOOD[:size])
        ran = esker("dump-log", "--verify", SEGMENT)
        assert ran.code == (0 if size in STARTS else 1), f"cut at {size}"


@pytest.mark.parametrize(
    ("data", "position", "offset", "reason"),
    [
        (control_batch(101, 4), 0, 101, "base offset 101, expected 100"),
        (GOOD[:96] + strange_batch(103, 4), 96, 103, "base offset 103, expected 101"),
        (GOOD[:96] + metadata_batch(100, 4), 96, 100, "base offset 100, expected 101"),
        (GOOD[:96] + metadata_batch(101, 3), 96, 101, "epoch 3 after epoch 4"),
        (GOOD + b"\0" * 10, 460, None, "ends inside a batch's header, 10 bytes are there"),
        (GOOD + b"\0" * 100, 460, None, "magic 0, only 2 is known"),
        (GOOD[:-1], 313, 103, "ends inside a batch of 147 bytes, 146 are there"),
    ],
)
def test_dump_log_reports_damage_with_file_position_offset_and_reason(
    esker, tmp_path, data, position, offset, reason
):
    write_segment(tmp_path, data)
    line = damaged(esker("dump-log", "--verify", "--json", SEGMENT))
    assert (line["file"], line["position"], line["offset"]) == (SEGMENT, position, offset)
    assert line["reason"].startswith(reason)
    human = esker("dump-log", "--verify", SEGMENT)
    assert human.code == 1
    assert human.out.startswith(f"DAMAGED  {SEGMENT}, position {position}")
    assert reason in human.out
    assert human.out.count("\n") == 1


def test_dump_log_with_allow_gaps_accepts_the_offset_gaps_of_a_compacted_topic(esker, tmp_path):
    write_segment(tmp_path, control_batch(105, 4) + strange_batch(200, 4))
    assert "--allow-gaps" in esker("dump-log", "--verify", SEGMENT).out
    assert esker("dump-log", "--verify", "--allow-gaps", SEGMENT).code == 0


def test_dump_log_without_verify_prints_the_contents_before_the_damage(esker, tmp_path):
    write_segment(tmp_path, GOOD[:-1])
    ran = esker("dump-log", SEGMENT)
    assert ran.code == 1
    assert "PartitionRecord" in ran.out
    assert ran.err.startswith(f"esker: {SEGMENT}, position 313, offset 103: ends inside")
    assert "a node truncates an incomplete end" in ran.err
    as_json = esker("dump-log", "--json", SEGMENT)
    assert (as_json.code, as_json.lines[-1]["position"]) == (1, 313)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header_batch() + data_batch(2, base_offset=1), "ends without a snapshot footer"),
        (closed(header_batch(), record_count=7), "1 records, the footer says 7"),
        (closed(header_batch(), content_crc=7), "the footer says 0x00000007"),
        (closed(header_batch()) + b"x", "1 bytes after the footer"),
        (closed(data_batch(1, base_offset=0)), "begins with data"),
    ],
)
def test_dump_log_verify_reports_an_incomplete_checkpoint_as_damaged(
    esker, tmp_path, content, reason
):
    (tmp_path / CHECKPOINT).write_bytes(content)
    assert reason in damaged(esker("dump-log", "--verify", "--json", CHECKPOINT))["reason"]


def test_dump_log_verify_names_the_program_that_wrote_a_checkpoint(esker, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(as_kafka_closes(header_batch()))
    ran = esker("dump-log", "--verify", CHECKPOINT)
    assert ran.code == 0
    assert "written by Kafka: its footer holds no checksum of the whole" in ran.out


def test_dump_log_deep_verification_reports_undecodable_records_with_a_valid_checksum(
    esker, tmp_path
):
    wrong = build_value_batch([b"\x01\x02\x00"], base_offset=1, leader_epoch=3, timestamp=TIME)
    (tmp_path / CHECKPOINT).write_bytes(closed(header_batch() + bytes(wrong)))
    assert esker("dump-log", "--verify", CHECKPOINT).code == 0
    line = damaged(esker("dump-log", "--verify", "--deep", "--json", CHECKPOINT))
    assert (line["offset"], line["reason"]) == (1, "malformed TopicRecord v0")
    keyed = build_batch([(b"key", b"value", TIME, ())], base_offset=1, leader_epoch=3)
    (tmp_path / CHECKPOINT).write_bytes(closed(header_batch() + bytes(keyed)))
    line = damaged(esker("dump-log", "--verify", "--deep", "--json", CHECKPOINT))
    assert line["reason"] == "a metadata record with a key"
    newer = build_value_batch([b"\x01\x8f\x4e\x00"], base_offset=1, leader_epoch=3, timestamp=TIME)
    (tmp_path / CHECKPOINT).write_bytes(closed(header_batch() + bytes(newer)))
    ran = esker("dump-log", "--verify", "--deep", CHECKPOINT)
    assert ran.code == 0, "a newer writer's record is no damage"
    assert "1 x unknown type 9999" in ran.out


@pytest.mark.parametrize(
    ("name", "data", "position", "reason"),
    [
        (INDEX, struct.pack(">iiii", 2, 96, 2, 313), 8, "does not rise"),
        (INDEX, struct.pack(">iiii", 2, 96, 6, 96), 8, "does not rise"),
        (INDEX, struct.pack(">ii", -1, 96), 0, "does not rise"),
        (INDEX, struct.pack(">ii", 2, -97), 0, "points to byte -97"),
        (INDEX, struct.pack(">ii", 2, 97), 0, "where no batch begins"),
        (INDEX, struct.pack(">ii", 2, 5000), 0, "where no batch begins"),
        (INDEX, struct.pack(">ii", 2, 313), 0, "points to a batch at offset 103"),
        (INDEX, struct.pack(">ii", 2, 96) + b"abc", 8, "ends inside an entry"),
        (TIME_INDEX, struct.pack(">qiqi", TIME, 2, TIME, 3), 12, "does not rise"),
        (TIME_INDEX, struct.pack(">qiqi", TIME, 2, TIME + 1, 1), 12, "does not rise"),
        (TIME_INDEX, b"abc", 0, "ends inside an entry"),
    ],
)
def test_dump_log_verify_reports_an_index_that_contradicts_its_log_or_its_own_entries(
    esker, tmp_path, name, data, position, reason
):
    write_segment(tmp_path)
    (tmp_path / name).write_bytes(data)
    line = damaged(esker("dump-log", "--verify", "--json", name))
    assert line["position"] == position
    assert reason in line["reason"]
    assert "a node rebuilds it" in esker("dump-log", "--verify", name).out


def test_dump_log_verify_accepts_the_preallocated_space_of_an_open_index(esker, tmp_path):
    write_segment(tmp_path)
    write_indexes(tmp_path)
    for name in (INDEX, TIME_INDEX):
        with (tmp_path / name).open("ab") as file:
            file.write(bytes(4800))
    ran = esker("dump-log", "--verify", INDEX, TIME_INDEX)
    assert ran.code == 0
    assert ran.out.count("4800 bytes of preallocated room") == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("leader-epoch-checkpoint", "0\n2\n1 0\n1 5\n"),
        ("quorum-state", '{"data_version":7}'),
        ("quorum-state", "{"),
        ("partition.metadata", "version: 0\ntopic_id: short"),
        ("meta.properties", "version=1\n"),
        ("recovery-point", "esker"),
        ("leader-epoch-checkpoint", "\0" * 100),
    ],
)
def test_dump_log_verify_reports_a_metadata_file_with_invalid_contents_as_damaged(
    esker, tmp_path, name, text
):
    (tmp_path / name).write_text(text)
    ran = esker("dump-log", "--verify", name)
    assert ran.code == 1
    assert ran.out.startswith(f"DAMAGED  {name}")
    assert ran.out.count("\n") == 1


def test_dump_log_verify_continues_with_the_next_file_after_a_damaged_file(esker, tmp_path):
    write_segment(tmp_path, GOOD[:-1])
    (tmp_path / CHECKPOINT).write_bytes(written(1))
    ran = esker("dump-log", "--verify", SEGMENT, "missing.log", CHECKPOINT)
    assert ran.code == 2
    assert [line.split()[0] for line in ran.out.splitlines()] == ["DAMAGED", "sound"]
    assert ran.err == "esker: missing.log: No such file or directory\n"
