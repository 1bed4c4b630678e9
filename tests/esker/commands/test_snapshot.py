"""`esker snapshot list|inspect` on a directory: listing, contents and damage of checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from esker.cli import app
from raft.segments.files import RealFileSystem
from raft.segments.log import Log
from records.batch import iter_batches
from records.batch_writer import build_value_batch
from records.compression import Compression
from snapshot import checkpoint_name
from snapshot.names import part_name
from tests.interop.recording import DIRECTORY, DYNAMIC, METADATA
from tests.snapshot.checkpoints import (
    ID,
    TIME,
    VOTERS,
    as_kafka_closes,
    closed,
    header_batch,
    written,
)

GROUP = "__cluster_metadata-0"
NAME = checkpoint_name(ID)
OLDER = ID._replace(offset=40)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Make a node's directory: one group with a log, two checkpoints and temporary files."""
    group = tmp_path / "node1" / GROUP
    group.parent.mkdir()
    Log.create(RealFileSystem(), group).close()
    (group / NAME).write_bytes(written(5))
    (group / checkpoint_name(OLDER)).write_bytes(written(2))
    (group / part_name(ID._replace(offset=99), 7)).write_bytes(written(5)[:100])
    (group / f"{checkpoint_name(OLDER._replace(offset=3))}.deleted").write_bytes(written(1))
    (tmp_path / "node1" / "meta.properties").write_text("version=1\n")
    return tmp_path / "node1"


def test_snapshot_list_sorts_checkpoints_by_end_offset_and_shows_their_state(esker, node):
    ran = esker("snapshot", "list", "--json", str(node))
    assert ran.code == 0
    group, *files = ran.lines
    assert (group["group"], group["logStartOffset"], group["segments"]) == (GROUP, 0, 1)
    assert group["checkpointBytes"] == sum(one["sizeBytes"] for one in files)
    found = [(one["endOffset"], one["epoch"], one["state"]) for one in files]
    assert found == [(3, 3, "deleted"), (40, 3, "whole"), (57, 3, "whole"), (99, 3, "part")]
    assert files[2]["sizeBytes"] == len(written(5))
    assert files[2]["lastContainedLogTimestamp"] == TIME


def test_snapshot_list_shows_the_log_start_offset_and_sizes(esker, node):
    out = esker("snapshot", "list", str(node)).out
    head, *rows, gap, summary = out.splitlines()
    assert head.split()[:4] == ["Group", "EndOffset", "Epoch", "Bytes"]
    assert [row.split()[1] for row in rows] == ["3", "40", "57", "99"]
    assert gap == ""
    assert f"{node / GROUP}: log from offset 0, 0 bytes in 1 segment; checkpoints, " in summary


def test_snapshot_list_accepts_the_directory_of_one_group(esker, node):
    assert (
        esker("snapshot", "list", str(node / GROUP)).out == esker("snapshot", "list", str(node)).out
    )


def test_snapshot_list_reads_checkpoint_headers_or_with_verify_whole_checkpoints(esker, node):
    data = bytearray(written(5))
    data[-80] ^= 1
    (node / GROUP / NAME).write_bytes(data)
    assert esker("snapshot", "list", str(node)).code == 0
    ran = esker("snapshot", "list", "--verify", "--json", str(node))
    assert ran.code == 1
    states = [one["state"] for one in ran.lines[1:]]
    assert states == ["deleted", "whole", "damaged", "part"]
    assert ran.lines[2]["records"] == 2
    assert "position" in ran.lines[3]["damage"]
    shown = esker("snapshot", "list", "--verify", str(node))
    assert "DAMAGED, position" in shown.out
    assert "sound, 2 records" in shown.out


@pytest.mark.parametrize("data", [b"", b"\0" * 61, written(5)[:50]])
def test_dump_log_verify_reports_a_checkpoint_without_a_header_but_no_temporary_file(
    esker, node, data
):
    for name in (NAME, part_name(ID, 9)):
        (node / GROUP / name).write_bytes(data)
    ran = esker("snapshot", "list", "--json", str(node))
    found = {one["file"].rpartition("/")[2]: one["state"] for one in ran.lines[1:]}
    assert (ran.code, found[NAME], found[part_name(ID, 9)]) == (1, "damaged", "part")


def test_snapshot_list_reports_a_path_that_is_not_a_log_directory_in_one_line(esker, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, says in (("nix", "No such file"), ("file", "Not a directory"), ("empty", "no log")):
        ran = esker("snapshot", "list", name)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert says in ran.err
        assert "name a node's log directory" in ran.err


def test_snapshot_list_accepts_the_directory_of_a_kafka_node(esker):
    ran = esker("snapshot", "list", "--verify", "--json", str(DIRECTORY / DYNAMIC))
    group, *files = ran.lines
    assert (ran.code, group["logStartOffset"]) == (0, None)
    assert [one["state"] for one in files] == ["whole", "whole"]


# --- inspect -------------------------------------------------------------------------------------


def test_snapshot_inspect_counts_records_by_type_and_verifies_the_checkpoint_footer(esker, node):
    (ran,) = esker("snapshot", "inspect", "--json", str(node / GROUP / NAME)).lines
    assert ran["endOffset"] == 57
    assert (ran["epoch"], ran["records"], ran["origin"], ran["voters"]) == (3, 5, "esker", None)
    assert ran["types"]["FeatureLevelRecord"]["records"] == 5
    out = esker("snapshot", "inspect", str(node / GROUP / NAME)).out
    assert "end offset      57 (exclusive), epoch 3" in out
    assert "FeatureLevelRecord  5" in out
    assert "count and checksum in the footer are right" in out


def test_snapshot_inspect_prints_the_voters_that_a_checkpoint_records(esker, tmp_path):
    (tmp_path / NAME).write_bytes(written(1, kraft_version=1, voters=VOTERS))
    (ran,) = esker("snapshot", "inspect", "--json", NAME).lines
    assert (ran["kraftVersion"], ran["voters"]) == (1, [1])


@pytest.mark.parametrize("codec", Compression)
def test_snapshot_inspect_reads_compressed_checkpoints(esker, tmp_path, codec):
    values = [b"\x01\x14\x00\x00"] * 9
    batch = build_value_batch(
        values, base_offset=1, leader_epoch=3, timestamp=TIME, compression=codec
    )
    (tmp_path / NAME).write_bytes(closed(header_batch() + bytes(batch)))
    (ran,) = esker("snapshot", "inspect", "--json", NAME).lines
    assert ran["types"] == {"NoOpRecord": {"records": 9, "value_bytes": 36}}


def test_snapshot_inspect_counts_records_of_an_unknown_type_without_reporting_damage(
    esker, tmp_path
):
    batch = build_value_batch(
        [b"\x01\x8f\x4e\x00abc"], base_offset=1, leader_epoch=3, timestamp=TIME
    )
    (tmp_path / NAME).write_bytes(as_kafka_closes(header_batch() + bytes(batch)))
    (ran,) = esker("snapshot", "inspect", "--json", NAME).lines
    assert list(ran["types"]) == ["unknown type 9999"]


def test_snapshot_inspect_reports_the_position_of_damage_and_reads_later_files(esker, tmp_path):
    data = bytearray(written(5))
    position = [batch.position for batch in iter_batches(bytes(data))][2]
    data[position + 61] ^= 1
    (tmp_path / NAME).write_bytes(data)
    other = checkpoint_name(OLDER)
    (tmp_path / other).write_bytes(written(1))
    ran = esker("snapshot", "inspect", NAME, other)
    assert ran.code == 1
    assert f"{NAME}: DAMAGED at byte {position}: " in ran.err
    assert "records         1" in ran.out
    (line,) = esker("snapshot", "inspect", "--json", NAME).lines
    assert (line["type"], line["position"]) == ("damaged", position)


@pytest.mark.parametrize(
    "value", [b"\x00", b"\x01\x0c\x00\xff\xff"], ids=["not metadata", "malformed"]
)
def test_snapshot_inspect_reports_an_undecodable_record_with_a_valid_checksum_as_damage(
    esker, tmp_path, value
):
    batch = build_value_batch([value], base_offset=1, leader_epoch=3, timestamp=TIME)
    (tmp_path / NAME).write_bytes(closed(header_batch() + bytes(batch)))
    assert esker("snapshot", "inspect", NAME).code == 1


def test_snapshot_inspect_reports_a_path_that_is_not_a_file_in_one_line(esker, tmp_path):
    (tmp_path / "dir.checkpoint").mkdir()
    for name in ("nix.checkpoint", "dir.checkpoint"):
        ran = esker("snapshot", "inspect", name)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_the_help_of_each_snapshot_subcommand_ends_with_an_example(esker):
    for command in ("list", "inspect"):
        out = esker("snapshot", command, "--help").out
        assert f"Example: esker snapshot {command}" in out.split("─╯")[-1]


@settings(max_examples=25, deadline=None)
@given(
    position=st.floats(0, 1), put=st.binary(min_size=1, max_size=9), cut=st.floats(0, 1) | st.none()
)
def test_snapshot_list_and_inspect_of_arbitrary_bytes_end_with_printable_output(
    tmp_path_factory, position, put, cut
):
    data = bytearray(written(6, kraft_version=1, voters=VOTERS))
    start = int(position * (len(data) - 1))
    data[start : start + len(put)] = put
    group = tmp_path_factory.mktemp("group")
    (group / NAME).write_bytes(data if cut is None else data[: int(cut * len(data))])
    for words in (
        ["list", str(group)],
        ["list", "--verify", str(group)],
        ["inspect", str(group / NAME)],
    ):
        for more in ([], ["--json"]):
            ran = CliRunner().invoke(app, ["snapshot", *words, *more])
            assert ran.exit_code in (0, 1), ran.output
            assert ran.output.replace("\n", "").isprintable()
    shutil.rmtree(group)


def test_snapshot_inspect_counts_every_record_of_a_checkpoint_that_kafka_wrote(esker):
    (path,) = (DIRECTORY / DYNAMIC / METADATA).glob("*159-*.checkpoint")
    (ran,) = esker("snapshot", "inspect", "--json", str(path)).lines
    assert (ran["origin"], ran["records"]) == ("kafka", 81)
    assert sum(tally["records"] for tally in ran["types"].values()) == 81
