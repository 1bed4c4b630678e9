"""`esker snapshot list|take` on running nodes, and what `quorum describe` says of snapshots."""

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
    """Three nodes whose bench log has a state."""
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


def test_every_node_takes_one_and_any_node_leads_to_all_of_them(quorum):
    taken = lines(esker(quorum, "snapshot", "take", "--group", BENCH, "--json", nodes=[2]))
    assert [one["nodeId"] for one in taken] == list(NODES)
    listed = lines(esker(quorum, "snapshot", "list", "--group", BENCH, "--json", nodes=[3]))
    for one, said in zip(taken, listed, strict=True):
        newest = said["snapshots"][-1]
        assert (said["nodeId"], said["group"]) == (one["nodeId"], BENCH)
        assert (newest["endOffset"], newest["epoch"]) == (one["endOffset"], one["epoch"])
        assert newest["sizeBytes"] == one["sizeBytes"] > 0
        assert said["appliedOffset"] >= newest["endOffset"] > 50
    table = esker(quorum, "snapshot", "list").stdout.splitlines()
    assert table[0].split()[:4] == ["Group", "Node", "EndOffset", "Epoch"]
    assert sum(line.startswith(BENCH) for line in table) >= 3
    assert sum(line.startswith(CLUSTER) for line in table) == 3


def test_one_node_alone_is_asked_if_it_is_named(quorum):
    shown = esker(quorum, "snapshot", "take", "--node", "2")
    assert shown.exit_code == 0, shown.stderr
    (line,) = shown.stdout.splitlines()
    assert line.startswith(f"{CLUSTER}: node 2 has a checkpoint up to offset ")
    missing = esker(quorum, "snapshot", "take", "--node", "7")
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert "no node 7 answers" in missing.stderr


def test_the_newest_snapshot_and_the_log_start_stand_beside_each_replica(quorum):
    (taken,) = lines(esker(quorum, "snapshot", "take", "--group", BENCH, "--node", "1", "--json"))
    words = ("quorum", "describe", "--replication", "--group", BENCH)
    head = esker(quorum, *words).stdout.splitlines()[0]
    assert head.split()[-2:] == ["LogStartOffset", "NewestSnapshot"]

    def newest(node: str) -> str:
        rows = [row.split() for row in esker(quorum, *words).stdout.splitlines()[1:]]
        return next(row[-1] for row in rows if row[0] == node)

    wait_until(lambda: newest("1") == f"{taken['endOffset']}-{taken['epoch']}", "it is the newest")

    def starts() -> list[int | None]:
        (described,) = lines(esker(quorum, *words, "--json"))
        return [one["logStartOffset"] for one in described["replicas"]]

    # A node that is too busy to answer in time is shown without.
    wait_until(lambda: None not in starts(), "every node tells its log start")
    assert all(start is None or start >= 0 for start in starts())


def test_a_group_that_is_not_there_is_refused_by_name(quorum):
    for command in ("list", "take"):
        shown = esker(quorum, "snapshot", command, "--group", "nothing-0")
        assert shown.exit_code == 1
        assert "nothing-0" in shown.stderr
        assert esker(quorum, "snapshot", command, "--group", "nothing").exit_code == 2


def test_directories_and_nodes_are_not_asked_for_at_once(quorum):
    home = str(quorum.home / "1")
    assert esker(quorum, "snapshot", "list", home).exit_code == 2
    assert runner.invoke(app, ["snapshot", "list"]).exit_code == 2
    shown = runner.invoke(app, ["snapshot", "list", "--verify", home])  # its node is running
    assert shown.exit_code == 0, shown.stderr


def test_nobody_there_is_one_line():
    for command in ("list", "take"):
        words = ["snapshot", command, "--bootstrap-controller", "127.0.0.1:1"]
        shown = runner.invoke(app, words)
        assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
        assert "127.0.0.1:1" in shown.stderr


def test_a_silent_node_is_named_and_the_others_are_shown(quorum):
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


def test_the_commands_words_are_there_in_a_process_of_its_own():
    ran = subprocess.run(
        [sys.executable, "-m", "esker", "snapshot", "take", "--help"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert "Example: esker snapshot take" in ran.stdout
