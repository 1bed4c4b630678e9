"""State as DataFrames equals the state of one process, however the log is split."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.readers.log_files import LogFiles
from spark_jobs.tables.frames import StateFrames, state_frames
from spark_jobs.tables.log_state import LogState, state_at
from tests.spark_jobs.logs import write_log
from tests.spark_jobs.plans import Cut
from tests.spark_jobs.random_worlds import random_log

pytestmark = pytest.mark.spark
SEED = 20261122
KEYS = {
    "topics": ["topic_id"],
    "partitions": ["topic_id", "partition"],
    "runs": ["topic_id", "partition", "base_offset"],
    "objects": ["object_id"],
    "producers": ["topic_id", "partition", "producer_id"],
}


def assert_same(frames: StateFrames, state: LogState) -> None:
    assert frames.offset == state.offset
    for name, key in KEYS.items():
        expected: pa.Table = getattr(state, name)
        found = getattr(frames, name).toArrow().sort_by([(one, "ascending") for one in key])
        rows = expected.sort_by([(one, "ascending") for one in key]).to_pylist()
        assert found.column_names == expected.column_names
        assert found.to_pylist() == rows, f"{name}, seed {SEED}"


def test_the_state_computed_by_spark_equals_the_state_computed_in_one_process(
    tmp_path: Path, spark: Any
) -> None:
    """From the beginning, cut in pieces; at the end, and at a time before it."""
    random = Random(SEED)
    end = write_log(tmp_path / "log-0", random_log(random, 60), index_interval_bytes=1)
    log = LogFiles(tmp_path / "log-0")
    cut = Cut(log, end, random)
    state = state_at(log)
    assert state.producers.num_rows > 5
    assert state.runs.num_rows > 20
    assert (state.objects.column("broker_id").to_numpy() < 0).any(), "orphans"
    assert_same(state_frames(spark, cut), state)


def test_spark_and_one_process_compute_the_state_at_a_timestamp_for_the_same_offset(
    tmp_path: Path, spark: Any
) -> None:
    random = Random(SEED)
    end = write_log(tmp_path / "log-0", random_log(random, 60), index_interval_bytes=1)
    log = LogFiles(tmp_path / "log-0")
    frames = state_frames(spark, Cut(log, end, random), timestamp_ms=1_030)
    middle = state_at(log, timestamp_ms=1_030)
    assert (frames.offset, frames.runs.count()) == (middle.offset, middle.runs.num_rows)
    assert 0 < middle.offset < end
