"""What do backups of the logs cost? PUTs a minute, and the latency of commits beside them.

    python -m bench.bench_backup [--rounds 3] [--seconds 60] [--tiny]

PUTs: a cluster at the default interval of backups, first idle, then with a producer at a steady
rate, then with two uploaders that commit one object after the other at its batch coordinator, and
print their rate; what its store has below `backup/` afterwards is counted. Each object there is one
PUT.

Latency: two clusters side by side, one of which ships a backup every second, the shortest interval.
Each round measures the producer of bench_broker's latency row at one after the other, while the
other is idle. The ratio of the 99th percentiles is printed; the bench fails unless backups were
shipped meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.bench_broker import (
    LATENCY_RATE,
    PARTITIONS,
    create,
    esker,
    percentile,
    produce_latencies,
)
from bench.commits import Load, as_json
from tests.clients.cluster import EskerCluster

BACKED_UP: Final = {"esker.backup.enable": "true"}
SHIPPING: Final = BACKED_UP | {"esker.backup.interval.ms": "1000"}
TOPIC: Final = "measured"
WARM_UP_S: Final = 2.0
SECONDS: Final = 6.0
INTERVALS: Final = 2  # until a cluster that has just begun has shipped its first records
INTERVAL_S: Final = 20.0


def puts(cluster: EskerCluster) -> int:
    """Return the number of objects that backups have written."""
    return sum(path.is_file() for path in (cluster.store / "backup").rglob("*"))


def count_puts(home: Path, settings: Mapping[str, str], seconds: float, settle_s: float) -> None:
    """Print the PUTs a minute of an idle cluster, and of one with a producer."""
    with esker(str(home), dict(settings)) as cluster:
        create(cluster.bootstrap, TOPIC, PARTITIONS)
        time.sleep(settle_s)
        for name in ("idle", f"{LATENCY_RATE} records/s"):
            before = puts(cluster)
            if name == "idle":
                time.sleep(seconds)
            else:
                produce_latencies(cluster.bootstrap, TOPIC, seconds)
            written = puts(cluster) - before
            print(f"{name:<18} {written * 60 / seconds:5.1f} PUTs a minute", flush=True)
        before = puts(cluster)
        load = Load(
            addresses=[[host, port] for host, port in cluster.controllers], topic=9,
            uploaders=2, partitions=1, batches_each=1, seconds=seconds, warm_up_s=0.0,
        )  # fmt: skip
        ran = subprocess.run(
            [sys.executable, "-m", "bench.commits", as_json(load)],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        name = f"{json.loads(ran.stdout)['commits'] / seconds:,.0f} commits/s"
        print(
            f"{name:<18} {(puts(cluster) - before) * 60 / seconds:5.1f} PUTs a minute", flush=True
        )


def measure(home: Path, rounds: int, seconds: float) -> None:
    """Print each round's latencies, and the median ratio of their 99th percentiles."""
    ratios = []
    with esker(str(home / "quiet"), {}) as quiet, esker(str(home / "shipping"), SHIPPING) as busy:
        for cluster in (quiet, busy):
            create(cluster.bootstrap, TOPIC, PARTITIONS)
            produce_latencies(cluster.bootstrap, TOPIC, WARM_UP_S)
        print("round  p50 ms  p99 ms  p50 shipping  p99 shipping  ratio of p99  PUTs", flush=True)
        for number in range(rounds):
            took = {}
            before = puts(busy)
            for name, cluster in list({"quiet": quiet, "busy": busy}.items())[:: (-1) ** number]:
                took[name] = produce_latencies(cluster.bootstrap, TOPIC, seconds)
            shipped = puts(busy) - before
            assert shipped, "no backup was shipped"
            p50, p99 = (
                {name: percentile(one, share) for name, one in took.items()}
                for share in (0.5, 0.99)
            )
            ratios.append(p99["busy"] / p99["quiet"])
            print(
                f"{number:5}  {p50['quiet']:6.1f}  {p99['quiet']:6.1f}  {p50['busy']:12.1f}"
                f"  {p99['busy']:12.1f}  {ratios[-1]:12.2f}  {shipped:4}",
                flush=True,
            )
    print(f"median ratio {percentile(ratios, 0.5):.2f}")


def main() -> None:
    """Run both parts."""
    words = argparse.ArgumentParser(
        prog="python -m bench.bench_backup", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    words.add_argument("--rounds", type=int, default=3, help="number of rounds; default: 3")
    words.add_argument(
        "--seconds", type=float, default=60.0, help="seconds in which PUTs are counted; default: 60"
    )
    words.add_argument("--tiny", action="store_true", help="small sizes, for tests")
    chosen = words.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    load = os.getloadavg()[0]
    print(f"commit {commit}, Python {platform.python_version()}, load {load:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as home:
        if chosen.tiny:
            count_puts(Path(home) / "puts", SHIPPING, 2.0, 0.0)
            measure(Path(home), 1, 2.0)
        else:
            count_puts(Path(home) / "puts", BACKED_UP, chosen.seconds, INTERVALS * INTERVAL_S)
            measure(Path(home), chosen.rounds, SECONDS)


if __name__ == "__main__":
    main()
