"""`esker spark tables` on a real cluster, as its user sees it.

Source: docs/tables.md#keeping-topics-as-tables.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from typer.testing import CliRunner

from esker.commands.spark import app
from esker.commands.spark.tables_metrics import TablesMetrics
from spark_jobs.topic_tables.catalogs import open_catalog
from spark_jobs.topic_tables.job import Lag, Step
from tests.clients.cluster import EskerCluster
from tests.spark_jobs.topics_world import SETTINGS, TopicsWorld

KILLS = 50


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicsWorld]:
    """A cluster with a topic of random records."""
    home = tmp_path_factory.mktemp("cluster")
    with EskerCluster(home, quorum=(1,), brokers=1, settings=SETTINGS) as running:
        running.start()
        world = TopicsWorld(running)
        world.create("random")
        world.fill("random", seed=3, count=40)
        yield world


def words(world: TopicsWorld, lake: Path, command: str, *more: str) -> list[str]:
    return [
        "tables", command, "random", "--bootstrap-server", world.cluster.bootstrap,
        "--store", str(world.cluster.store), "--warehouse", str(lake), *more,
    ]  # fmt: skip


def rows_of(catalog: Catalog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found = catalog.load_table(("kafka", "random")).scan().to_arrow().to_pylist()
    names = ("partition", "offset", "key", "value")
    return sorted(tuple(row[name] for name in names) for row in found)


def expected_rows(world: TopicsWorld) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return sorted((row[1], row[2], row[5], row[6]) for row in world.consume("random"))


@pytest.mark.timeout(900)  # beside all other tests its 12 s become minutes
def test_the_tables_commands_write_and_describe_a_table(world: TopicsWorld, tmp_path: Path) -> None:
    def invoke(command: str, *more: str) -> str:
        done = CliRunner().invoke(app, words(world, tmp_path / "lake", command, *more))
        assert done.exit_code == 0, done.output
        return done.output

    lines = invoke("run", "--once", "--max-records", "120", "--json").splitlines()
    steps = [json.loads(line) for line in lines]
    assert sum(step["rows"] for step in steps) == 200
    assert steps[-1]["lag"] == {"records": 0, "seconds": 0}
    assert invoke("run", "--once") == "", "nothing is missing"
    world.fill("random", seed=4, count=10)
    assert "random  kafka.random  200 " in invoke("describe")
    assert json.loads(invoke("describe", "--json"))["tables"][0]["lag_records"] == 50
    assert "50 rows in" in invoke("run", "--once", "--interval", "1")
    catalog = open_catalog(str(tmp_path / "lake"), None, {})
    assert rows_of(catalog) == expected_rows(world)
    compact = ["tables", "compact", "random", "--warehouse", str(tmp_path / "lake")]
    done = CliRunner().invoke(app, [*compact, "--min-files", "2", "--json"])
    (compacted,) = json.loads(done.output)["tables"]
    assert compacted["replaced_files"] > compacted["new_files"] > 0
    assert rows_of(catalog) == expected_rows(world)
    assert "ReplacedFiles" in CliRunner().invoke(app, compact).output

    lake = tmp_path / "late"
    late = words(world, lake, "run", "--once", "--starting", "latest")
    assert CliRunner().invoke(app, late).output == ""
    filled = CliRunner().invoke(app, words(world, lake, "backfill", "--max-records", "200"))
    assert (filled.output.count("rows in"), "0 records before it" in filled.output) == (2, True)
    assert rows_of(open_catalog(str(lake), None, {})) == expected_rows(world)

    def in_directory(command: str, *more: str) -> str:
        given = words(world, tmp_path, command, *more)
        given[given.index("--warehouse")] = "--directory"
        return CliRunner().invoke(app, given).output

    assert "rows in" in in_directory("run", "--once")
    assert in_directory("run", "--once") == ""
    assert json.loads(in_directory("describe", "--json"))["tables"][0]["lag_records"] == 0
    assert " -     " in in_directory("describe")
    found = pq.read_table(sorted((tmp_path / "random").glob("random-*.parquet"))).to_pylist()
    names = ("partition", "offset", "key", "value")
    assert sorted(tuple(row[name] for name in names) for row in found) == expected_rows(world)
    assert "give it, or --warehouse" in " ".join(
        in_directory("run", "--warehouse", "x").replace("│", " ").split()
    )

    world.create("compacted", cleanup_policy="compact")
    for command in ("backfill", "run"):
        words_of = words(world, tmp_path / "lake", command)
        words_of[2] = "compacted"
        refused = CliRunner().invoke(app, words_of)
        assert (refused.exit_code, "cleanup.policy=compact" in refused.output) == (2, True)
    words_of[2] = "missing"
    assert "missing" in CliRunner().invoke(app, words_of).output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--format", "avro"], "--format avro needs --schema-file"),
        (["--format", "protobuf", "--schema-file", "x"], "--format protobuf needs --message"),
        (["--format", "confluent"], "--format confluent needs --schemas"),
        (["--schema-file", "x"], "--schema-file has no meaning with --format raw"),
        (["--format", "json", "--schemas", "x"], "--schemas has no meaning with --format json"),
        (["--format", "json", "--schema-file", "missing"], "missing: No such file"),
        (["--format", "confluent", "--schemas", "missing"], "missing is neither a directory nor"),
        (["--format", "json", "--schema-file", "/dev/null"], "not a JSON Schema"),
    ],
)
def test_formats_and_schemas_that_do_not_fit_are_usage_errors(
    options: list[str], reason: str
) -> None:
    words = ["tables", "run", "t", "--store", "s", "--warehouse", "w", *options]
    done = CliRunner().invoke(app, words)
    text = " ".join(done.output.replace("│", " ").split())
    assert (done.exit_code, reason in text) == (2, True), text


def test_metrics_count_rows_and_show_the_lag() -> None:
    registry = CollectorRegistry()
    metrics = TablesMetrics(registry)
    metrics.add("t", Step(7, 1, 8, Lag(5, 2.5), 0.5))
    metrics.add("t", Step(0, 0, 0, Lag(0, 0.0), 0.1))
    labels = {"topic": "t"}
    for name, value in (
        ("rows_total", 7), ("bad_records_total", 1), ("commits_total", 1), ("lag_records", 0),
        ("lag_seconds", 0), ("batch_seconds", 0.5),
    ):  # fmt: skip
        assert registry.get_sample_value(f"esker_tables_{name}", labels) == value, name


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_run_that_is_killed_again_and_again_writes_each_record_once(
    world: TopicsWorld, tmp_path: Path
) -> None:
    """Kill -9 at random moments, from the imports to the last commit."""
    random_ = random.Random(11)
    arguments = words(world, tmp_path / "lake", "run", "--once", "--max-records", "20")
    command = [sys.executable, "-m", "esker", "spark", *arguments]
    for number in range(KILLS):
        world.fill("random", seed=100 + number, count=10)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random_.uniform(0.5, 5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True)
    assert rows_of(open_catalog(str(tmp_path / "lake"), None, {})) == expected_rows(world)
