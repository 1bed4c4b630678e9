"""`esker restore plan|apply`, as a person and as a program read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from esker.cli import app
from esker.restore import run as restoring
from tests.esker.restore.lost import CLUSTER_ID, COORDINATOR, lost_logs, write_node
from tests.esker.restore.test_directories import NEW_ID, PORTS, make_home


def esker(*words: object, code: int = 0) -> Any:
    ran = CliRunner().invoke(app, ["restore", *map(str, words)])
    assert ran.exit_code == code, (ran.stdout, ran.stderr, ran.exception)
    return ran


def write_properties(home: Path) -> list[str]:
    """Write the files of all nodes; return the words that name them."""
    words = []
    for node, port in PORTS.items():
        role = "broker" if node > 100 else "controller"
        path = home / f"{node}.properties"
        path.write_text(
            f"process.roles={role}\nnode.id={node}\n"
            "controller.quorum.voters=1@127.0.0.1:9091,2@127.0.0.1:9092,3@127.0.0.1:9093\n"
            "controller.listener.names=CONTROLLER\n"
            f"listeners={'PLAINTEXT' if node > 100 else 'CONTROLLER'}://127.0.0.1:{port}\n"
            f"log.dirs={home / 'new' / str(node)}\n"
            f"esker.storage.directory.path={home / 'store'}\n"
        )
        words += ["--config", str(path)]
    return words


def test_the_plan_is_a_table_that_names_what_may_have_changed(tmp_path: Path) -> None:
    source = write_node(tmp_path / "101", lost_logs(committed_offset=17), unknown={COORDINATOR: 1})
    ran = esker("plan", "--from", source)
    assert f"Restore of cluster {CLUSTER_ID}, timeline 1. This is UNSAFE" in ran.stdout
    assert "__diskless-metadata-0" in ran.stdout
    assert "1 topics, 1 partitions, 20 records in 2 objects." in ran.stdout
    assert "t-0: offsets 10 to 19" in ran.stdout
    assert "g: t-0 from 17 to 10" in ran.stdout
    assert f"--from {source} --config FILE" in ran.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["101"]


def test_the_plan_as_json_has_every_log_and_every_loss(tmp_path: Path) -> None:
    logs = lost_logs(committed_offset=17)
    source = write_node(tmp_path / "101", logs, unknown={COORDINATOR: 1})
    plan = json.loads(esker("plan", "--from", source, "--json").stdout)
    assert plan["lostClusterId"] == CLUSTER_ID
    (log,) = (one for one in plan["logs"] if one["log"] == COORDINATOR.name)
    end = len(logs[COORDINATOR])
    assert (log["endOffset"], log["knownCommitted"], log["lostRecords"]) == (end, end - 1, 0)
    assert plan["uncertainPartitions"] == [
        {"topic": "t", "partition": 0, "exactEnd": 10, "endOffset": 20}
    ]
    assert plan["lostGroupOffsets"] == [
        {"group": "g", "topic": "t", "partition": 0, "committedOffset": 17, "offset": 10}
    ]
    assert len(plan["clusterId"]) == len(CLUSTER_ID)


def test_apply_writes_the_directories_and_says_what_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "WAITED_TIMEOUTS", 0)
    home = make_home(tmp_path)
    words = ["--from", home / "101", "--cluster-id", NEW_ID, *write_properties(home)]
    ran = esker("apply", *words)
    assert "The data is claimed." in ran.stdout
    assert f"Cluster {NEW_ID} is restored: start these nodes" in ran.stdout
    assert sorted(one.name for one in (home / "new").iterdir()) == sorted(map(str, PORTS))
    again = json.loads(esker("apply", *words, "--json").stdout)
    assert again["directories"] == [str(home / "new" / str(node)) for node in PORTS]
    assert again["missingObjects"] == []


def test_a_refusal_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    ran = esker("plan", "--from", tmp_path, code=1)
    assert ran.stderr == (
        f"esker: {tmp_path} is no node's log directory: meta.properties is missing; name the "
        "directory of log.dirs\n"
    )


def test_a_missing_source_is_a_usage_error(tmp_path: Path) -> None:
    assert "--from" in esker("plan", code=2).stderr
    assert "--config" in esker("apply", "--from", tmp_path, "-t", NEW_ID, code=2).stderr
