"""Kill -9 of a streaming driver and its JVM, at any moment, again and again: each offset once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from records.metadata import FeatureLevelRecord, NoOpRecord
from tests.examples import first_seed
from tests.processes import ROOT
from tests.spark_jobs.logs import mark_committed, write_log
from tests.waiting import Deadline

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")

pytestmark = pytest.mark.soak

LOG = "__cluster_metadata-0"
RECORDS = 6_000
BATCH = 250
KILLS = 3
WITHIN_S = 180.0


class Driver:
    """A process group of its own: killed as one, its JVM and Python workers with it."""

    def __init__(self, log_dir: Path, out: Path) -> None:
        command = [
            sys.executable, "-m", "tests.spark_jobs.stream_main", str(log_dir), "feature_level",
            str(out), str(out.with_suffix(".checkpoint")), str(BATCH),
        ]  # fmt: skip
        self.process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def pages(out: Path) -> int:
    return len(list((out / "_batches").glob("*.json")))


@pytest.mark.timeout(900)
def test_a_spark_stream_writes_each_offset_once_although_its_driver_is_killed(
    tmp_path: Path,
) -> None:
    seed = first_seed()
    random = Random(seed)
    batches = (
        [FeatureLevelRecord(name="f", feature_level=n), NoOpRecord()] for n in range(RECORDS // 2)
    )
    write_log(tmp_path / LOG, batches, segment_batches=400)
    mark_committed(tmp_path, {LOG: RECORDS})
    out = tmp_path / "out"
    for _ in range(KILLS):
        with Driver(tmp_path, out) as driver:
            enough = pages(out) + random.randint(1, 4)
            deadline = Deadline("the stream writes some pages", WITHIN_S)
            while pages(out) < enough:
                assert driver.process.poll() is None, "it ended by itself"
                time.sleep(deadline.pause_s())
            time.sleep(random.random() * 0.5)  # into the next batch, wherever that is by then
            driver.kill()
    assert pages(out) < RECORDS // BATCH, "killed too late to say anything"
    with Driver(tmp_path, out) as driver:
        assert driver.process.wait(WITHIN_S) == 0
    files = sorted(out.glob("*.parquet"))
    found = [n for file in files for n in pq.read_table(file)["log_offset"].to_pylist()]
    assert found == list(range(0, RECORDS, 2)), f"ESKER_FIRST_SEED={seed} pytest -m soak {__file__}"
    assert pages(out) == RECORDS // BATCH
