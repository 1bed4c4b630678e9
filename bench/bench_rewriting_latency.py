"""A producer's latency while its broker compacts at full throttle, against the same without.

    python -m bench.bench_rewriting_latency [--rounds 3] [--megabytes 200]
    python -m bench.bench_rewriting_latency --throttle-mib 0 --megabytes 1500

Three quorum nodes and a broker whose compaction reads and writes 32 MiB a second, its default, or
as the throttle says; 0 is no limit.
Each round measures the producer of bench_broker's latency row twice: first while nothing is to be
compacted, then while the broker compacts a topic that was filled before, and whose cleanup policy
then became compact. The bench fails if the compaction ends before the second measurement.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Final
from urllib.request import urlopen

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from prometheus_client.parser import text_string_to_metric_families

from bench.bench_broker import DELIVERED_S, PARTITIONS, create, esker, percentile, produce_latencies
from tests.ports import free_port

SETTINGS: Final = {
    "esker.compaction.interval.ms": "200",
    "esker.compaction.min.age.ms": "3600000",  # compaction alone: nothing is merged
}
SECONDS: Final = 6.0
WAIT_S: Final = 90.0


def fill(bootstrap: str, topic: str, megabytes: int) -> None:
    """Produce records of 1 KiB with different keys into one partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.kbytes": 1 << 20})
    value = os.urandom(1_000)
    for number in range(megabytes * 1_000):
        while True:
            try:
                producer.produce(topic, value, key=b"%020d" % number, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(DELIVERED_S) == 0


def compact(bootstrap: str, topic: str) -> None:
    """Set a topic's cleanup policy to compact."""
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([wanted]).values():
        future.result(30)


def metric(place: str, name: str) -> float:
    """Return a metric of the broker's rewriting, the sum of its kinds."""
    with urlopen(f"http://{place}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return sum(each.value for each in samples if each.name == f"esker_broker_rewriting_{name}")


def wait_until(has_come: Callable[[], bool], name: str) -> None:
    """Ask repeatedly until an event has come, for `WAIT_S` at most."""
    deadline = time.monotonic() + WAIT_S
    while not has_come():
        assert time.monotonic() < deadline, f"{name} in {WAIT_S} s"
        time.sleep(0.05)


def main() -> None:
    """Print each round's latencies, and the median ratio of their 99th percentiles."""
    words = argparse.ArgumentParser(
        prog="python -m bench.bench_rewriting_latency", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    words.add_argument("--rounds", type=int, default=3, help="number of rounds; default: 3")
    words.add_argument(
        "--megabytes", type=int, default=200, help="MB to compact in each round; default: 200"
    )
    words.add_argument(
        "--throttle-mib", type=int, default=32,
        help="MiB a second that compaction reads and writes, 0: no limit; default: 32",
    )  # fmt: skip
    chosen = words.parse_args()
    throttle = str(chosen.throttle_mib * 1024 * 1024)
    settings = SETTINGS | {"esker.compaction.max.bytes.per.second": throttle}
    place = f"127.0.0.1:{free_port()}"
    ratios = []
    print("round  p50 ms  p99 ms  p50 compacting  p99 compacting  ratio of p99  compacted MB/s")
    with tempfile.TemporaryDirectory() as home, esker(home, settings, place) as cluster:
        bootstrap = cluster.bootstrap
        create(bootstrap, "measured", PARTITIONS)
        produce_latencies(bootstrap, "measured", 2.0)
        for number in range(chosen.rounds):
            topic = f"backlog-{number}"
            create(bootstrap, topic, 1)
            fill(bootstrap, topic, chosen.megabytes)
            quiet = produce_latencies(bootstrap, "measured", SECONDS)
            done = metric(place, "read_bytes_total")
            began = time.monotonic()
            compact(bootstrap, topic)
            wait_until(lambda: metric(place, "backlog_bytes") > 0, "no compaction was planned")
            busy = produce_latencies(bootstrap, "measured", SECONDS)
            has_lasted = metric(place, "read_bytes_total") == done
            wait_until(
                lambda done=done: metric(place, "read_bytes_total") > done,  # type: ignore[misc]
                "the compaction did not end",
            )
            speed = chosen.megabytes / (time.monotonic() - began)
            assert has_lasted, "the compaction ended before the producer: use more --megabytes"
            ratios.append(percentile(busy, 0.99) / percentile(quiet, 0.99))
            print(
                f"{number:5}  {percentile(quiet, 0.5):6.1f}  {percentile(quiet, 0.99):6.1f}"
                f"  {percentile(busy, 0.5):14.1f}  {percentile(busy, 0.99):14.1f}"
                f"  {ratios[-1]:12.2f}  {speed:14.1f}",
                flush=True,
            )
    print(f"median ratio {percentile(ratios, 0.5):.2f}")


if __name__ == "__main__":
    main()
