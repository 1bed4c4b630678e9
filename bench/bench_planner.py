"""How long does retention think about ten million runs, and what is the least it could take?

    python -m bench.bench_planner [--runs 10000000] [--partitions 1000]

Half of each partition is too old, and its size limit keeps a third. The floor is one pass of NumPy
over the three columns (their sums): no plan can look at every run in less. The naive one tries
prefix after prefix in Python, on few runs: it is quadratic. CPU time, the least of the rounds.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from coordinator.batch.retention_planner import Runs, plan_retention

ROUNDS: Final = 5
NOW_MS: Final = 1_700_000_000_000
RUN_BYTES: Final = 4_000
NAIVE_RUNS: Final = 300


def least(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of `work` over several rounds."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    options = parser.parse_args()
    each = max(1, options.runs // options.partitions)
    count = each * options.partitions
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit}, Python {platform.python_version()}, {platform.machine()}")
    ages = np.tile(np.arange(each, 0, -1, dtype=np.int64), options.partitions)
    runs = Runs(
        last_offsets=np.tile(np.arange(1, each + 1, dtype=np.int64) * 10 - 1, options.partitions),
        timestamps=NOW_MS - ages,
        byte_sizes=np.full(count, RUN_BYTES, np.int64),
    )
    per_partition = np.ones(options.partitions, np.int64)
    bounds = np.arange(0, count + 1, each, dtype=np.int64)

    def plan() -> None:
        found = plan_retention(
            runs,
            bounds,
            log_start_offsets=per_partition * 0,
            total_bytes=per_partition * each * RUN_BYTES,
            retention_ms=per_partition * (each // 2),
            retention_bytes=per_partition * (each * RUN_BYTES // 3),
            now_ms=NOW_MS,
        )
        assert (found.removed_runs == each - -(-each // 3)).all(), found

    def naive() -> None:
        kept = NAIVE_RUNS * RUN_BYTES // 3
        for prefix in range(1, NAIVE_RUNS + 1):
            any(NOW_MS - int(ts) <= each // 2 for ts in runs.timestamps[:prefix])
            _ = sum(int(size) for size in runs.byte_sizes[prefix:NAIVE_RUNS]) >= kept

    planned, floor = least(plan), least(lambda: [column.sum() for column in runs])
    tried = least(naive) if count >= NAIVE_RUNS else float("nan")
    print(f"{count:,} runs of {options.partitions:,} partitions")
    print(f"plan       {planned * 1e3:9.1f} ms  {count / planned / 1e6:8.1f} M runs/s")
    print(f"one pass   {floor * 1e3:9.1f} ms  ratio {planned / floor:.1f}")
    print(f"naive, {NAIVE_RUNS} runs {tried * 1e3:6.1f} ms")


if __name__ == "__main__":
    main()
