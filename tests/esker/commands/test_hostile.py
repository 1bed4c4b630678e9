"""`dump-log` ends without a crash and prints only printable text, whatever bytes a file holds."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from esker.cli import app
from records.batch_writer import build_value_batch
from records.compression import MAX_DECOMPRESSED_BYTES, Compression
from tests.esker.commands.files import SEGMENT, TIME, segment_bytes
from tests.interop.recording import DIRECTORY, DYNAMIC, METADATA
from tests.snapshot.checkpoints import VOTERS, written

RECORDED = DIRECTORY / DYNAMIC
SOUND = {
    SEGMENT: segment_bytes(),
    "00000000000000000057-0000000003.checkpoint": written(6, kraft_version=1, voters=VOTERS),
    "00000000000000000100.index": bytes.fromhex("0000000200000060"),
    "00000000000000000100.timeindex": bytes.fromhex("0000018bcfe5680000000000"),
    "leader-epoch-checkpoint": (RECORDED / METADATA / "leader-epoch-checkpoint").read_bytes(),
    "quorum-state": (RECORDED / METADATA / "quorum-state").read_bytes(),
    "partition.metadata": (RECORDED / METADATA / "partition.metadata").read_bytes(),
    "meta.properties": (RECORDED / "meta.properties").read_bytes(),
    "recovery-point": b"esker-recovery-point v0 seq=1 log_start=0 recovery_point=0 resetting=0",
}
OPTIONS = ([], ["--json"], ["--verify"], ["--verify", "--deep", "--json"])


def dump(name: str, data: bytes) -> None:
    """Run `dump-log` with each of its options on a file; every exit code is a documented one."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(data)
        for options in OPTIONS:
            ran = CliRunner().invoke(app, ["dump-log", *options, str(path)])
            assert ran.exit_code in (0, 1), ran.output
            assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
            assert ran.output.replace("\n", "").isprintable()
            if "--json" in options:
                assert all(json.loads(line)["type"] for line in ran.stdout.splitlines())


@pytest.mark.parametrize("name", SOUND)
@settings(max_examples=12, deadline=None)
@given(data=st.binary(max_size=300))
def test_dump_log_does_not_crash_on_arbitrary_bytes(name, data):
    dump(name, data)


@pytest.mark.parametrize("name", SOUND)
@settings(max_examples=20, deadline=None)
@given(
    position=st.floats(0, 1),
    replacement=st.binary(min_size=1, max_size=9),
    cut=st.floats(0, 1) | st.none(),
)
def test_dump_log_does_not_crash_on_a_mutated_file(name, position, replacement, cut):
    data = bytearray(SOUND[name])
    start = int(position * (len(data) - 1))
    data[start : start + len(replacement)] = replacement
    dump(name, bytes(data if cut is None else data[: int(cut * len(data))]))


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_dump_log_does_not_crash_on_arbitrary_values_with_a_valid_checksum(values):
    framed = [b"\x01" + value for value in values] + values
    batch = build_value_batch(framed, base_offset=100, leader_epoch=0, timestamp=TIME)
    dump(SEGMENT, bytes(batch))


@pytest.mark.parametrize("timestamp", [-(1 << 63) + 1, -2, (1 << 63) - 1])
def test_dump_log_prints_a_timestamp_outside_the_calendar_as_a_number(timestamp):
    batch = build_value_batch([b"x"], base_offset=100, leader_epoch=0, timestamp=timestamp)
    dump(SEGMENT, bytes(batch))


def test_dump_log_reports_a_decompression_bomb_as_an_error(tmp_path):
    values = [bytes(1024 * 1024)] * (MAX_DECOMPRESSED_BYTES // (1024 * 1024) + 1)
    batch = build_value_batch(
        values, base_offset=100, leader_epoch=0, timestamp=TIME, compression=Compression.ZSTD
    )
    dump(SEGMENT, bytes(batch))
    path = tmp_path / SEGMENT
    path.write_bytes(bytes(batch))
    assert CliRunner().invoke(app, ["dump-log", str(path)]).exit_code == 1


def test_dump_log_fails_at_once_on_a_sparse_file_larger_than_any_disk(tmp_path):
    path = tmp_path / SEGMENT
    with path.open("wb") as file:
        file.truncate(1 << 42)
    ran = CliRunner().invoke(app, ["dump-log", "--verify", "--json", str(path)])
    assert ran.exit_code == 1
    assert json.loads(ran.stdout)["position"] == 0
