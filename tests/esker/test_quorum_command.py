"""`esker start` and `esker quorum describe`, with three real nodes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from esker.cli import app
from tests.quorum_processes import NODES, Quorum
from tests.waiting import DEADLINE_S

runner = CliRunner()


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory):
    with Quorum(tmp_path_factory.mktemp("quorum")) as three:
        three.start(*NODES)
        three.ready()
        yield three


def describe(quorum: Quorum, *words: str):
    addresses = ",".join(f"127.0.0.1:{port}" for port in quorum.ports.values())
    return runner.invoke(app, ["quorum", "describe", "--bootstrap-controller", addresses, *words])


def test_quorum_describe_prints_the_field_names_of_kafkas_tool(quorum):
    shown = describe(quorum)
    assert shown.exit_code == 0, shown.stderr
    words = [line.split(":")[0] for line in shown.stdout.splitlines()]
    assert words == [
        "ClusterId",
        "LeaderId",
        "LeaderEpoch",
        "HighWatermark",
        "MaxFollowerLag",
        "MaxFollowerLagTimeMs",
        "CurrentVoters",
        "CurrentObservers",
    ]


def test_quorum_describe_prints_the_same_status_from_any_controller(quorum):
    answers = []
    for port in quorum.ports.values():
        shown = runner.invoke(
            app,
            ["quorum", "describe", "--bootstrap-controller", f"127.0.0.1:{port}", "--json"],
        )
        answers.append(json.loads(shown.stdout))
    assert len({(a["clusterId"], a["leaderId"], a["leaderEpoch"]) for a in answers}) == 1
    assert sorted(replica["nodeId"] for replica in answers[0]["replicas"]) == list(NODES)


def test_quorum_replication_prints_one_line_per_replica_with_the_leader_first(quorum):
    shown = describe(quorum, "--replication", "--group", "esker-bench-log-0")
    head, leader, *followers = shown.stdout.splitlines()
    assert head.split()[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    assert head.split()[-4:] == ["Status", "LogStartOffset", "NewestSnapshot", "Floor"]
    assert leader.split()[-4] == "Leader"
    assert [line.split()[-4] for line in followers] == ["Follower", "Follower"]


def test_quorum_accept_clock_prints_the_time_of_each_coordinator(quorum):
    addresses = ",".join(f"127.0.0.1:{port}" for port in quorum.ports.values())
    words = ["quorum", "accept-clock", "--bootstrap-controller", addresses, "--json"]
    shown = runner.invoke(app, words)
    assert shown.exit_code == 0, shown.stderr
    (accepted,) = json.loads(shown.stdout)["coordinators"]
    assert accepted["coordinator"] == 0
    assert not accepted["wasHeld"]
    assert abs(accepted["steadyMs"] / 1000 - time.time()) < DEADLINE_S
    line = runner.invoke(app, words[:-1]).stdout
    assert line.startswith("Coordinator: 0  Time: ")
    assert line.endswith("Clock: not held\n")


def test_quorum_describe_names_an_unknown_group_in_its_error(quorum):
    shown = describe(quorum, "--group", "nothing-0")
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert "nothing-0" in shown.stderr
    for group in ("nothing", "nothing-\u00b2", "nothing-99999999999"):
        assert describe(quorum, "--group", group).exit_code == 2


def test_quorum_describe_reports_an_unreachable_address_in_one_line():
    shown = runner.invoke(app, ["quorum", "describe", "--bootstrap-controller", "127.0.0.1:1"])
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert "127.0.0.1:1" in shown.stderr


def test_a_node_that_cannot_start_prints_an_error_of_one_line(quorum, tmp_path: Path):
    file = tmp_path / "node.properties"
    text = quorum.properties(1).read_text()
    file.write_text(text.replace(str(quorum.home / "1"), str(tmp_path / "empty")))
    for path, reason in ((file, "not formatted"), (quorum.properties(1), "in use")):
        ran = subprocess.run(
            [sys.executable, "-m", "esker", "start", str(path)],
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert ran.returncode == 1, ran.stderr
        assert reason in ran.stderr
        assert ran.stderr.splitlines()[-1].startswith("esker: ")
        assert "Traceback" not in ran.stderr
