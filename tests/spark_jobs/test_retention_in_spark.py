"""Spark's plan equals the local engine's, and the naive planner's for each world alone.

Many worlds are the coordinators of one cluster, so that a Spark job looks at all of them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from records.uuids import encode_uuid
from spark_jobs.plans.retention_plan import write_plan
from spark_jobs.readers.engines import LocalEngine, SparkEngine
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.logs import LogsError
from spark_jobs.retention.digest_cache import DigestCache
from spark_jobs.retention.sweep import make_plan
from spark_jobs.tables.log_state import LogState, state_at
from spark_jobs.tables.topics import TopicSettings
from tests.spark_jobs.logs import write_log
from tests.spark_jobs.plans import Worlds, naive_effect, naive_rows
from tests.spark_jobs.random_worlds import NAMES, TOPICS, random_log

SEED = 20261121
NOW_MS = 1_000


def some_settings(random: Random) -> dict[str, TopicSettings]:
    return {
        encode_uuid(topic): TopicSettings(
            NAMES[topic],
            random.choice([-1, 0, 300, 900]),
            random.choice([-1, 0, 150, 700]),
            random.choice(["external", "both", "external", "coordinator"]),
        )
        for topic in TOPICS[: random.randint(2, 4)]
    }


def make_worlds(tmp_path: Path, count: int, random: Random) -> tuple[Worlds, list[LogState]]:
    logs, states = [], []
    for number in range(count):
        directory = tmp_path / f"world-{number}"
        end = write_log(directory, random_log(random), index_interval_bytes=1)
        logs.append((directory, end))
        states.append(state_at(LogFiles(directory), end))
    return Worlds(tmp_path, logs, random), states


def compare(worlds: Worlds, states: list[LogState], settings: Any, **how: Any) -> Any:
    """Return the plan, after comparing it with the naive plan of every world."""
    worlds.set(settings)
    plan = make_plan(worlds, now_ms=NOW_MS, **how)
    expected = []
    for number, state in enumerate(states):
        rows = naive_rows(state, settings, coordinator=number, now_ms=NOW_MS)
        expected += rows
        assert plan.effects[number] == naive_effect(state, rows, worlds.batch_bytes(number)), (
            f"world {number}, seed {SEED}"
        )
    assert plan.rows == expected, f"seed {SEED}"
    return plan


def test_retention_plans_of_random_logs_equal_those_of_a_quadratic_planner(tmp_path: Path) -> None:
    random = Random(SEED)
    worlds, states = make_worlds(tmp_path, 40, random)
    reasons: set[int] = set()
    for _ in range(4):
        plan = compare(worlds, states, some_settings(random), engine=LocalEngine())
        reasons.update(row.reason for row in plan.rows)
    assert reasons == {1, 2}


@pytest.mark.spark
def test_spark_and_the_local_engine_make_the_same_retention_plan(
    tmp_path: Path, spark: Any
) -> None:
    """The plans are equal byte for byte, with Spark's own digests and with those of the local
    engine.
    """
    random = Random(SEED + 1)
    worlds, states = make_worlds(tmp_path, 50, random)
    settings = some_settings(random)
    engine, kept = SparkEngine(spark, tasks=4), DigestCache(tmp_path / "digests")
    ours = compare(worlds, states, settings, engine=engine, digest_cache=kept)
    assert len(ours.rows) > 50
    write_plan(ours, tmp_path / "spark.jsonl")
    write_plan(make_plan(worlds, now_ms=NOW_MS), tmp_path / "local.jsonl")
    assert (tmp_path / "spark.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


@pytest.mark.spark
def test_spark_and_the_local_engine_report_the_same_error_for_a_damaged_log(
    tmp_path: Path, spark: Any
) -> None:
    worlds, _ = make_worlds(tmp_path, 1, Random(SEED))
    worlds.set({})
    (segment,) = (tmp_path / "world-0").glob("*.log")
    data = segment.read_bytes()
    segment.write_bytes(data[:100] + b"?" + data[101:])
    with pytest.raises(LogsError, match=str(segment)):
        make_plan(worlds, now_ms=NOW_MS, engine=SparkEngine(spark))
