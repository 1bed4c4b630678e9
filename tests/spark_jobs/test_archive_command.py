"""Tests `esker spark archive`: output, exit codes, and a kill -9.

Source: docs/design/pipeline.md#the-archive.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from esker.commands.spark import app
from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import write_high_watermarks
from raft.segments.properties import MetaProperties, write_meta_properties
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.metadata import FeatureLevelRecord
from records.types import NodeId
from spark_jobs.archive.check import check_archive
from spark_jobs.archive.engines import LocalArchiveEngine
from spark_jobs.readers.archived_logs import ArchivedLogs
from spark_jobs.readers.object_store import open_store
from tests.spark_jobs.archive_world import CLUSTER_ID, LOG, FileLogs, odd_batches
from tests.waiting import DEADLINE_S, Deadline, wait_until


def run(*arguments: object) -> tuple[int, str, str]:
    """Run `esker spark archive`; return exit code, stdout and stderr."""
    done = CliRunner().invoke(app, ["archive", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


class Node:
    """A node's log directory with one log and its committed end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = FileLogs(directory)
        directory.mkdir()
        meta = MetaProperties(cluster_id=CLUSTER_ID, node_id=NodeId(1), directory_id=UUID(int=5))
        write_meta_properties(RealFileSystem(), directory, meta)

    def append(self, batches: list[bytes], *, roll: bool = False) -> None:
        self.logs.append(batches, roll=roll)
        self.commit(self.logs.end_offset)

    def commit(self, end_offset: int) -> None:
        marks = {("__cluster_metadata", 0): end_offset}
        write_high_watermarks(RealFileSystem(), self.directory, marks)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path / "node")
    node.append(odd_batches(seed=5, count=40))
    return node


def test_the_archive_command_reports_a_pass_and_archives_no_record_twice(
    node: Node, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "archive"
    code, told, _ = run("--out", out, "--log-dir", node.directory)
    assert code == 0
    first, heading, row, *kept, last = told.splitlines()
    assert first.endswith(f"cluster {CLUSTER_ID} -> {out} (avro)")
    end = str(node.logs.end_offset)
    assert row.split()[:5] == [LOG, "0", end, end, end]
    assert len(heading.split()) == len(row.split())
    assert any("type 9999 version 0 (a type that is not known here)" in line for line in kept)
    assert any("type 2 version 127 (TopicRecord)" in line for line in kept)
    assert last.startswith(f"{end} records in ")

    code, told, _ = run("--out", out, "--log-dir", node.directory, "--json", "--verify")
    assert code == 0
    answer = json.loads(told)
    assert answer["cluster_id"] == CLUSTER_ID
    (log,) = answer["logs"]
    assert (log["start_offset"], log["records"], log["lost"]) == (int(end), 0, [])
    found = answer["verification"]
    assert (found["records"], found["faults"], found["lost"]) == (int(end), [], [])


def test_the_archive_command_verifies_an_archive_without_access_to_the_logs(
    node: Node, tmp_path: Path
) -> None:
    out = tmp_path / "archive"
    run("--out", out, "--log-dir", node.directory)
    code, told, _ = run("--out", out, "--verify")
    assert (code, told.splitlines()[-1].endswith("all as it was written")) == (0, True)
    (envelope,) = (out / "data" / LOG / "record").iterdir()
    envelope.write_bytes(envelope.read_bytes()[:-20])
    code, told, _ = run("--out", out, "--verify")
    assert code == 6
    assert f"record/{envelope.name} is not what was written" in told
    assert told.splitlines()[-1].endswith("1 faults")


def test_the_archive_pass_and_every_later_verification_report_lost_offsets(
    node: Node, tmp_path: Path
) -> None:
    out = tmp_path / "archive"
    run("--out", out, "--log-dir", node.directory)
    archived = node.logs.end_offset
    node.append(odd_batches(6, 20, first_offset=archived, epoch=2))
    at = node.logs.end_offset
    node.append(odd_batches(7, 20, first_offset=at, epoch=3), roll=True)
    node.logs.checkpoint(at, 2, ["x"])
    node.logs.cut_to(at)
    code, told, _ = run("--out", out, "--log-dir", node.directory)
    assert code == 6
    assert f"LOST: offsets {archived} to {at - 1} were cut off" in told
    code, told, _ = run("--out", out, "--log-dir", node.directory, "--verify")
    assert code == 1
    assert f"offsets {archived} to {at - 1} were lost" in told


def test_the_archive_command_refuses_invalid_options_with_one_sentence(
    node: Node, tmp_path: Path
) -> None:
    out = tmp_path / "archive"
    run("--out", out, "--log-dir", node.directory)
    other = Node(tmp_path / "other")
    meta = MetaProperties(cluster_id="another", node_id=NodeId(1), directory_id=UUID(int=6))
    write_meta_properties(RealFileSystem(), other.directory, meta)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("in the way")
    cases = [
        (("--out", out), 2, "name the logs"),
        (("--out", out, "--log-dir", node.directory, "--follow", "--verify"), 2, "use one of them"),
        (("--out", out, "--log-dir", other.directory), 4, "the archive of cluster"),
        (("--out", out, "--log-dir", node.directory, "--as", "parquet"), 2, "give another --out"),
        (("--out", out, "--log-dir", tmp_path / "nowhere"), 3, "log directory: no meta.properties"),
        (("--out", tmp_path / "empty", "--verify"), 3, "is not an archive"),
        (("--out", "gs://bucket", "--verify"), 2, "neither a directory nor"),
        (
            ("--out", tmp_path / "file", "--log-dir", node.directory),
            2,
            "is a file: name a directory",
        ),
    ]
    for arguments, code, said in cases:
        found, told, errors = run(*arguments)
        text = " ".join((told + errors).replace("│", " ").split())
        assert (found, said in text) == (code, True), (arguments, found, text)
        assert "Traceback" not in text


@pytest.mark.parametrize("follow", [(), ("--follow", "--interval", 60)])
def test_the_archive_command_fails_for_a_log_that_diverges_from_the_archived_records(
    node: Node, tmp_path: Path, follow: tuple[object, ...]
) -> None:
    out = tmp_path / "archive"
    run("--out", out, "--log-dir", node.directory)
    shutil.rmtree(node.directory / LOG)
    node.append(odd_batches(seed=6, count=80, epoch=9))
    code, _, errors = run("--out", out, "--log-dir", node.directory, *follow)
    assert (code, "this is another log" in " ".join(errors.split())) == (4, True), errors


def test_the_archive_command_reports_deleted_offsets_without_a_checkpoint_as_data_loss(
    node: Node, tmp_path: Path
) -> None:
    node.append(odd_batches(seed=6, count=20, first_offset=node.logs.end_offset), roll=True)
    node.logs.cut_to(1)
    code, _, errors = run("--out", tmp_path / "archive", "--log-dir", node.directory)
    assert (code, "there is no checkpoint before it" in " ".join(errors.split())) == (6, True)


def test_the_archive_command_fails_for_a_damaged_log_and_names_the_place(
    node: Node, tmp_path: Path
) -> None:
    (segment,) = (node.directory / LOG).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    code, _, errors = run("--out", tmp_path / "archive", "--log-dir", node.directory)
    assert code == 3
    assert f"{segment.name}, position " in errors


# --- real processes -------------------------------------------------------------------------------


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "esker", "spark", "archive", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def many(first_offset: int, batches: int) -> list[bytes]:
    """Generate batches of about 30 KB of log each."""
    made = []
    for number in range(batches):
        values = [
            encode_record(FeatureLevelRecord(name="f" * 80, feature_level=i % 100))
            for i in range(300)
        ]
        offset = first_offset + 300 * number
        made.append(
            bytes(build_value_batch(values, base_offset=offset, leader_epoch=1, timestamp=number))
        )
    return made


def test_an_archive_is_complete_after_its_job_was_killed_repeatedly(tmp_path: Path) -> None:
    """The job is killed at the plan and after some ranges; the log grows between the attempts."""
    node = Node(tmp_path / "node")
    node.append(many(0, 100))
    out = tmp_path / "archive"
    options = ("--out", out, "--log-dir", node.directory, "--range-mib", 1)
    for reached in ("plan/*/*.json", "manifest/*/*.json", "manifest/*/*1*.json"):
        process = start(*options)
        try:
            wait_until(
                lambda reached=reached, process=process: (
                    list(out.glob(reached)) or process.poll() is not None
                ),
                f"it comes to {reached}",
                longest_pause_s=0.002,
            )
        finally:
            process.kill()
            process.communicate()
        node.append(many(node.logs.end_offset, 1))
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    code, told, _ = run(*options)
    assert code == 0, told
    store = open_store(str(out))
    found = check_archive(store, engine=LocalArchiveEngine())
    assert (found.faults, found.strangers) == ([], [])
    log = ArchivedLogs(store).log(LOG)
    assert log.end_offset() == node.logs.end_offset
    spans = log.spans(log.end_offset())
    assert b"".join(bytes(b.view) for span in spans for b in span.batches()) == node.logs.raw()


def test_the_follow_option_repeats_archive_passes_until_an_interrupt(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.append(many(0, 1))
    out = tmp_path / "archive"
    process = start("--out", out, "--log-dir", node.directory, "--follow", "--interval", 0.1)
    try:
        for _ in range(3):
            end = f"{node.logs.end_offset:020d}.log.json"
            deadline = Deadline(f"it comes to {end}")
            while not list(out.glob(f"manifest/*/*{end}")):
                assert process.poll() is None, process.communicate()
                time.sleep(deadline.pause_s())
            node.append(many(node.logs.end_offset, 1))
        os.kill(process.pid, signal.SIGINT)
        told, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "logs may be deleted before they are archived" in told
    assert told.splitlines()[-1] == "esker: interrupted; run the same command to continue"
    assert "Traceback" not in told
