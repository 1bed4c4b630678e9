"""Do local segments serve consumers as fast as a warm Kafka, and how much CPU do they save?

    python -m bench.bench_local_segments [--megabytes 200] [--rounds 3] [--kafka] [--tiny]

One cluster of three quorum nodes and three brokers, objects in a directory, each broker in a rack
of its own: `segments` keeps local segments and no objects in memory, `memory` has the default cache
of objects, `store` has neither and reads the store for each Fetch. librdkafka consumers with
default settings, one at a time and five at once, each a process that names its broker's rack, read
a topic of 12 partitions with 1 KiB records from its beginning. Before that the topic is read until
the segments hold all of it. With --kafka one node of Apache Kafka, warm, takes its turn in the same
run. Figures are MB/s of all consumers, CPU seconds of the broker a GB, the GETs of the reading, and
the median of the rounds' ratios to Kafka's rate.

The cluster may merge the topic's objects meanwhile. Segments of the former objects serve no more,
so a round after that has GETs.

Must (issue 21): 1.0 times as fast as Kafka, for one consumer and for five.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from bench.bench_broker import WarmKafka, create, produce
from bench.bench_defaults import DEFAULT_INTERVAL, Server, cpu_s
from bench.consuming import read_all
from tests.clients.apache_kafka import apache_kafka_node
from tests.clients.cluster import FIRST_BROKER, EskerCluster
from tests.interop.kafka_release import fetch
from tests.ports import free_port
from tests.waiting import wait_until

TOPIC: Final = "t"
PARTITIONS: Final = 12
RECORD_BYTES: Final = 1_024
SEGMENTS: Final = "segments"
KAFKA: Final = "kafka"
RACKS: Final = (SEGMENTS, "memory", "store")


def read_by(server: Server, readers: int, records: int) -> float:
    """Return the seconds in which consumers, each a process, read all records at once."""
    words = (sys.executable, "-m", "bench.bench_local_segments", "--read", server.bootstrap)
    children = [
        subprocess.Popen([*words, server.name, str(records)], stdout=subprocess.PIPE, text=True)
        for _ in range(readers)
    ]
    return max(float(child.communicate()[0]) for child in children)


def metric(server: Server, name: str) -> float:
    """Return a metric of a broker, or 0 of Kafka."""
    if server.broker is None:
        return 0.0
    with urlopen(f"http://{server.broker[0]}/metrics") as page:
        lines = page.read().decode().splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"esker_broker_{name} ")]
    return float(values[0])


def servers(stack: ExitStack, home: Path, *, kafka: bool) -> Iterator[Server]:
    """Start the cluster, and Kafka; yield a broker of each rack, and Kafka."""
    brokers = range(FIRST_BROKER, FIRST_BROKER + len(RACKS))
    places = {broker: f"127.0.0.1:{free_port()}" for broker in brokers}
    nothing = {"esker.fetch.cache.max.bytes": "0", "esker.fetch.read.ahead.max.bytes": "0"}
    of_rack = {
        SEGMENTS: {
            **nothing,
            "esker.cache.dir": str(home / "cache"),
            "esker.cache.fill.max.bytes.per.second": str(2**30),
        },
        "memory": {},
        "store": nothing,
    }
    cluster = EskerCluster(
        home / "esker",
        brokers=len(RACKS),
        settings=DEFAULT_INTERVAL,
        settings_of={
            broker: {
                "broker.rack": rack,
                "esker.metrics.listener": places[broker],
                **of_rack[rack],
            }
            for broker, rack in zip(brokers, RACKS, strict=True)
        },
    )
    stack.callback(cluster.kill)
    cluster.start()
    for broker, rack in zip(brokers, RACKS, strict=True):
        pid = cluster.processes[broker].pid
        yield Server(rack, cluster.bootstrap, (pid,), (places[broker], pid))
    if kafka:
        node = stack.enter_context(apache_kafka_node(WarmKafka(fetch()), home / "kafka"))
        yield Server(KAFKA, f"127.0.0.1:{node.ports['PLAINTEXT']}", (node.process.pid,))


def warm(server: Server, records: int) -> None:
    """Read until a broker with local segments has all of a topic there."""
    for _ in range(20):
        before = metric(server, "local_segment_missed_bytes_total")
        read_by(server, 1, records)
        wait_until(
            lambda: metric(server, "local_segment_queued_bytes") == 0, "all is written to segments"
        )
        if metric(server, "local_segment_missed_bytes_total") == before:
            return
    raise AssertionError("after twenty reads local segments lack a part of the topic")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200, help="of records; default: 200")
    parser.add_argument("--rounds", type=int, default=3, help="of each row; default: 3")
    parser.add_argument("--kafka", action="store_true", help="beside a warm Apache Kafka")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)  # a consumer's own process
    options = parser.parse_args()
    if options.read:
        bootstrap, rack, records = options.read
        of_rack = {"client.id": f"bench,esker_rack={rack}", "client.rack": rack}
        print(read_all(bootstrap, TOPIC, PARTITIONS, int(records), of_rack))
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(
        f"commit={commit} python={platform.python_version()} machine={platform.machine()} "
        f"cores={os.cpu_count()} load={os.getloadavg()[0]:.1f}",
        flush=True,
    )
    megabytes, rounds = (2, 1) if options.tiny else (options.megabytes, options.rounds)
    records = megabytes * 1_000_000 // RECORD_BYTES
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        found = list(servers(stack, Path(home), kafka=options.kafka))
        for bootstrap in {server.bootstrap for server in found}:
            create(bootstrap, TOPIC, PARTITIONS)
            settings = {"client.id": f"bench,esker_rack={SEGMENTS}"}
            produce(bootstrap, TOPIC, os.urandom(RECORD_BYTES), records, settings, PARTITIONS)
        for server in found:
            if server.name == SEGMENTS:
                warm(server, records)
            else:
                read_by(server, 1, records)
        for readers in (1, 5):
            compare(found, readers, records, rounds)


def compare(found: list[Server], readers: int, records: int, rounds: int) -> None:
    """Print what each server takes for so many consumers at once; they take turns."""
    gigabytes = readers * records * RECORD_BYTES / 1e9
    rates: dict[str, list[float]] = {server.name: [] for server in found}
    cpu: dict[str, list[float]] = {server.name: [] for server in found}
    gets: dict[str, float] = dict.fromkeys(rates, 0.0)
    for turn in range(rounds):
        for server in found if turn % 2 else found[::-1]:
            before = cpu_s(server.pids[0]), metric(server, "store_gets_total")
            rates[server.name].append(gigabytes * 1_000 / read_by(server, readers, records))
            cpu[server.name].append((cpu_s(server.pids[0]) - before[0]) / gigabytes)
            gets[server.name] += metric(server, "store_gets_total") - before[1]
    for name in rates:
        print(
            f"{readers} consumers  {name:10}{statistics.median(rates[name]):8.1f} MB/s"
            f"{statistics.median(cpu[name]):8.2f} CPU s/GB{gets[name] / rounds:10.0f} GETs"
            + (ratio_text(rates[name], rates[KAFKA]) if KAFKA in rates and name != KAFKA else ""),
            flush=True,
        )


def ratio_text(ours: list[float], kafkas: list[float]) -> str:
    """Return the median of the rounds' ratios to Kafka's rates, and their range, as words."""
    ratios = sorted(our / kafka for our, kafka in zip(ours, kafkas, strict=True))
    median = statistics.median(ratios)
    return f"    {median:.2f} of Kafka's rate ({ratios[0]:.2f}-{ratios[-1]:.2f})"


if __name__ == "__main__":
    main()
