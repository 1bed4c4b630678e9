"""`esker snapshot list|take` on running nodes, and the snapshots in `quorum describe`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from esker.cli import app
from tests.quorum_processes import NODES, Quorum
from tests.raft.driver.client import Client
from tests.waiting import wait_until

runner = CliRunner()
CLUSTER, BENCH = "__cluster_metadata-0", "esker-bench-log-0"


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory):
    """Start three nodes whose bench log has a state machine."""
    with Quorum(tmp_path_factory.mktemp("quorum")) as three:
        for node in NODES:
            with three.properties(node).open("a") as file:
                file.write("esker.bench.log.state=kv\n")
        three.start(*NODES)
        with Client("127.0.0.1", three.ports[three.ready()]) as client:
            client.produce_keyed([(b"key-%d" % n, b"value") for n in range(50)])
        yield three


def esker(quorum: Quorum, *words: str, nodes=NODES):
    addresses = ",".join(f"127.0.0.1:{quorum.ports[node]}" for node in nodes)
    return runner.invoke(app, [*words, "--bootstrap-controller", addresses])


def lines(shown) -> list[dict]:
    assert shown.exit_code == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_snapshot_take_on_every_node_requires_the_address_of_only_one_node(quorum):
    taken = lines(esker(quorum, "snapshot", "take", "--group", BENCH, "--json", nodes=[2]))
    assert [checkpoint["nodeId"] for checkpoint in taken] == list(NODES)
    listed = lines(esker(quorum, "snapshot", "list", "--group", BENCH, "--json", nodes=[3]))
    for checkpoint, node in zip(taken, listed, strict=True):
        newest = node["snapshots"][-1]
        assert (node["nodeId"], node["group"]) == (checkpoint["nodeId"], BENCH)
        assert (newest["endOffset"], newest["epoch"]) == (
            checkpoint["endOffset"],
            checkpoint["epoch"],
        )
        assert newest["sizeBytes"] == checkpoint["sizeBytes"] > 0
        assert node["appliedOffset"] >= newest["endOffset"] > 50
    table = esker(quorum, "snapshot", "list").stdout.splitlines()
    assert table[0].split()[:4] == ["Group", "Node", "EndOffset", "Epoch"]
    assert sum(line.startswith(BENCH) for line in table) >= 3
    assert sum(line.startswith(CLUSTER) for line in table) == 3


def test_snapshot_take_with_a_node_id_takes_a_checkpoint_on_that_node_only(quorum):
    shown = esker(quorum, "snapshot", "take", "--node", "2")
    assert shown.exit_code == 0, shown.stderr
    (line,) = shown.stdout.splitlines()
    assert line.startswith(f"{CLUSTER}: node 2 has a checkpoint up to offset ")
    missing = esker(quorum, "snapshot", "take", "--node", "7")
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert "no node 7 answers" in missing.stderr


def test_quorum_replication_shows_each_replicas_newest_snapshot_and_log_start(quorum):
    (taken,) = lines(esker(quorum, "snapshot", "take", "--group", BENCH, "--node", "1", "--json"))
    words = ("quorum", "describe", "--replication", "--group", BENCH)
    head = esker(quorum, *words).stdout.splitlines()[0]
    assert head.split()[-3:] == ["LogStartOffset", "NewestSnapshot", "Floor"]

    def newest(node: str) -> str:
        rows = [row.split() for row in esker(quorum, *words).stdout.splitlines()[1:]]
        return next(row[-2] for row in rows if row[0] == node)

    wait_until(lambda: newest("1") == f"{taken['endOffset']}-{taken['epoch']}", "it is the newest")

    def starts() -> list[int | None]:
        (described,) = lines(esker(quorum, *words, "--json"))
        return [replica["logStartOffset"] for replica in described["replicas"]]

    # A node that is too busy to answer in time is shown without.
    wait_until(lambda: None not in starts(), "every node tells its log start")
    assert all(start is None or start >= 0 for start in starts())


def test_snapshot_commands_name_an_unknown_group_in_their_error(quorum):
    for command in ("list", "take"):
        shown = esker(quorum, "snapshot", command, "--group", "nothing-0")
        assert shown.exit_code == 1
        assert "nothing-0" in shown.stderr
        assert esker(quorum, "snapshot", command, "--group", "nothing").exit_code == 2


def test_snapshot_list_refuses_directories_together_with_running_nodes(quorum):
    home = str(quorum.home / "1")
    assert esker(quorum, "snapshot", "list", home).exit_code == 2
    assert runner.invoke(app, ["snapshot", "list"]).exit_code == 2
    shown = runner.invoke(app, ["snapshot", "list", "--verify", home])  # its node is running
    assert shown.exit_code == 0, shown.stderr


def test_snapshot_list_reports_an_unreachable_quorum_in_one_line():
    for command in ("list", "take"):
        words = ["snapshot", command, "--bootstrap-controller", "127.0.0.1:1"]
        shown = runner.invoke(app, words)
        assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
        assert "127.0.0.1:1" in shown.stderr


def test_snapshot_list_reports_a_stopped_node_and_lists_the_checkpoints_of_running_nodes(quorum):
    quorum.kill(3)
    try:
        shown = esker(quorum, "snapshot", "list", "--json", "--group", CLUSTER)
        assert shown.exit_code == 1
        assert [json.loads(line)["nodeId"] for line in shown.stdout.splitlines()] == [1, 2]
        assert f"127.0.0.1:{quorum.ports[3]}" in shown.stderr
        _, *rows = esker(quorum, "quorum", "describe", "--replication").stdout.splitlines()
        assert {row.split()[0]: row.split()[-1] for row in rows}["3"] == "-"
    finally:
        quorum.start(3)
        quorum.ready()


def test_snapshot_take_prints_its_help_in_a_separate_process():
    ran = subprocess.run(
        [sys.executable, "-m", "esker", "snapshot", "take", "--help"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert "Example: esker snapshot take" in ran.stdout
