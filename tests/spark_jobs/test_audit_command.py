"""Tests `esker spark audit`: exit codes, text output and JSON output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from esker.commands.spark import app
from records.frame import encode_record
from records.metadata import TopicRecord
from records.schema import MetadataRecord
from records.uuids import encode_uuid
from spark_jobs.readers.logs import CLUSTER_METADATA
from tests.coordinator.batch.actors import TOPIC
from tests.coordinator.batch.subjects import KEYS
from tests.spark_jobs.audit_plants import PLANTS, edit_commit
from tests.spark_jobs.audit_world import (
    CLUSTER_ID,
    COORDINATOR,
    Entry,
    Unknown,
    a_history,
    checkpoint_at,
    write_checkpoint,
    write_entries,
)
from tests.spark_jobs.logs import mark_committed
from tests.spark_jobs.test_audit_cluster import the_history
from tests.spark_jobs.test_audit_store import put, the_world


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def a_node(directory: Path, coordinator: list[Entry], *more: MetadataRecord) -> Path:
    """Write a node's logs: of the cluster, with more records at its end, and of a coordinator."""
    cluster = [Entry(1), *(Entry(record) for record in (*the_history(), *more))]
    ends = {
        CLUSTER_METADATA: write_entries(directory / CLUSTER_METADATA, cluster),
        COORDINATOR: write_entries(directory / COORDINATOR, coordinator),
    }
    mark_committed(directory, ends, CLUSTER_ID)
    return directory


@pytest.fixture
def node(tmp_path: Path) -> Path:
    entries, objects = the_world()
    directory = a_node(tmp_path / "node1", list(entries))
    put(tmp_path / "store", objects)
    return directory


def test_an_audit_without_violations_reports_the_checked_logs_and_the_skipped_checks(
    node: Path,
) -> None:
    code, output, _ = run("--log-dir", node)
    assert code == 0
    first, _, cluster, coordinator, *unchecked, last = output.splitlines()
    assert first == f"Audit of cluster {CLUSTER_ID}, engine local"
    assert cluster.split()[:2] == [CLUSTER_METADATA, "0"]
    assert coordinator.split()[4] == "20"
    assert [line.partition("(")[2] for line in unchecked] == [
        "no --store)",
        "one replica was given)",
        "there is no checkpoint but the one that a log begins with)",
    ]
    assert last.startswith("Clean: ")


def test_an_audit_violation_exits_with_1_and_is_written_to_the_file(
    node: Path, tmp_path: Path
) -> None:
    entries, _ = the_world()
    other = a_node(tmp_path / "node2", edit_commit(list(entries), 9, broker_epoch=5))
    out = tmp_path / "violations.jsonl"
    code, output, _ = run("--log-dir", node, "--log-dir", other, "--out", out)
    assert code == 1
    assert f"replicas-agree: {COORDINATOR}, offset 13, batch: {node} has epoch 1" in output
    (line,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (line["rule"], line["offset"]) == ("replicas-agree", 13)


def test_the_audit_names_topics_and_says_their_ids(tmp_path: Path) -> None:
    topic = TopicRecord(name="orders", topic_id=TOPIC)
    faulty = PLANTS["log-start-rises"][0](list(a_history()))
    code, output, _ = run("--log-dir", a_node(tmp_path / "node", faulty, topic))
    assert code == 1
    assert ": orders-0: log start" in output
    assert f"(orders: topic id {encode_uuid(TOPIC)})" in output


def test_an_audit_that_finds_lost_objects_exits_with_6(node: Path, tmp_path: Path) -> None:
    (tmp_path / "store" / KEYS.key(8)).unlink()
    options = ("--log-dir", node, "--store", tmp_path / "store", "--prefix", KEYS.prefix)
    code, output, _ = run(*options, "--bytes", "full", "--json")
    assert code == 6
    found: dict[str, Any] = json.loads(output)
    assert found["data_loss"] is True
    (violation,) = found["violations"]
    assert (violation["rule"], violation["count"]) == ("object-exists", 1)
    assert violation["first"]["object_id"] == 8
    assert (found["logs"][1]["objects"], found["logs"][1]["objects_read"]) == (19, 18)
    assert "offsets 40 to 44" in violation["first"]["what"]


def test_the_audit_command_reports_unknown_record_types_and_compares_checkpoints(
    tmp_path: Path,
) -> None:
    entries, _ = the_world()
    unknown = Entry(Unknown(b"\x01\xd0\x0f\x00later"))
    node = a_node(tmp_path / "node1", [*entries, unknown])
    values = [encode_record(record) for record in checkpoint_at(entries, 20)]
    write_checkpoint(node / COORDINATOR, 20, values)
    code, output, _ = run("--log-dir", node)
    assert code == 0
    assert (
        f"type 2000 version 0 is unknown to this release, first at offset {len(entries)}" in output
    )
    assert "checkpoint-*" not in output


def test_an_audit_of_unreadable_input_exits_with_3_and_invalid_options_with_2(
    node: Path, tmp_path: Path
) -> None:
    code, _, stderr = run("--log-dir", tmp_path / "nothing")
    assert (code, "is not a node's log directory" in stderr) == (3, True)
    code, _, stderr = run("--log-dir", node, "--store", tmp_path / "nowhere")
    assert (code, "no such directory" in stderr) == (3, True)
    code, _, stderr = run()
    assert (code, "say where the logs are" in stderr) == (2, True)
    code, _, stderr = run("--log-dir", node, "--store", "ftp://x")
    assert code == 2
