"""Cold catch-up of a merged topic beside raw reading, and a producer's latency beside a backfill.

    python -m bench.bench_catch_up_cold [cold] [backfill] [--megabytes 1000] [--rounds 5] [--tiny]

Without words, both. Three quorum nodes and two brokers, `esker start` with default settings,
objects in a directory; librdkafka with default settings, each client a process.

- cold: 12 partitions of 1 KiB records are merged (`esker spark merge`), and a broker that has
  neither objects in memory nor local segments serves one consumer from offset 0: librdkafka's with
  fetch.queue.backoff.ms=10, because by default it waits a second whenever 64 MB are not consumed;
  and a client that only receives, with the same Fetches (`bench.consuming`). Their peer reads the
  same objects one after the other, 1 MiB at a time. Before each of the three the kernel's page
  cache is emptied, if this user may do that, and the broker is started again. Each client then
  reads once more, from what the broker and the kernel have in memory by then.
- backfill: a producer sends 1 MB/s to a second topic through that broker. Its delivery times are
  taken without and with a consumer that reads the first topic again and again from offset 0; and,
  to tell the broker's part from the machine's, with the same consumer at the other broker.

Must (issue 21): 0.5 times raw reading; 2 times the p99.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from bench.bench_broker import create, produce
from bench.bench_defaults import DEFAULT_INTERVAL
from bench.consuming import read_all, receive_all
from tests.clients.cluster import FIRST_BROKER, EskerCluster

TOPIC: Final = "t"
BESIDE: Final = "beside"
PARTITIONS: Final = 12
RECORD_BYTES: Final = 1_024
RATE: Final = 1_000  # records a second of the producer beside
CLIENTS: Final = {"--read": "librdkafka's consumer", "--receive": "a client that only receives"}
WRITER: Final = FIRST_BROKER
READER: Final = FIRST_BROKER + 1
DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")


def rack(broker: int) -> dict[str, str]:
    """Return a client's settings with which it uses one broker."""
    return {"client.id": f"bench,esker_rack=r{broker}", "client.rack": f"r{broker}"}


def empty_page_cache() -> bool:
    """Let the kernel forget all files' contents; return False if this user may not do that."""
    os.sync()
    try:
        DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True


def merge(cluster: EskerCluster, home: Path) -> str:
    """Merge the topic's objects as an operator does; return what the command says at the end."""
    controllers = ",".join(f"{host}:{port}" for host, port in cluster.controllers)
    plan = home / "plan.jsonl"
    esker = (sys.executable, "-m", "esker", "spark", "merge")
    where = ("--bootstrap-controller", controllers)
    subprocess.run(
        [*esker, "plan", "--out", str(plan), "--min-age-ms", "0", "--max-wait-ms", "0", *where],
        check=True, capture_output=True,
    )  # fmt: skip
    done = subprocess.run(
        [*esker, "apply", str(plan), "--store", str(cluster.store), *where],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip().splitlines()[-1]


def consume_s(cluster: EskerCluster, how: str, records: int) -> float:
    """Return the seconds in which a process reads the first topic from offset 0.

    Args:  how: --read for librdkafka's consumer, --receive for a client that only receives.
    """
    words = (how, f"127.0.0.1:{cluster.ports[READER]}", str(READER), str(records))
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_catch_up_cold", *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def raw_s(objects: list[Path]) -> float:
    """Return the seconds in which this process reads files one after the other."""
    buffer = bytearray(1 << 20)
    began = time.perf_counter()
    for path in objects:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - began


def restart(cluster: EskerCluster, broker: int) -> None:
    """Give a broker an empty memory."""
    cluster.stop(broker)
    cluster.launch(broker)
    cluster.wait_until_ready(broker)


def cold(cluster: EskerCluster, home: Path, records: int, rounds: int) -> None:
    """Compare a cold consumer with raw reading of the topic's merged objects."""
    small = {path for path in cluster.store.rglob("*") if path.is_file()}
    print(f"cold: {merge(cluster, home)}", flush=True)
    merged = {path for path in cluster.store.rglob("*") if path.is_file()} - small
    objects = sorted(merged or small)  # of a few megabytes there may be one, and nothing to merge
    megabytes = sum(path.stat().st_size for path in objects) / 1e6
    served = records * RECORD_BYTES / 1e6
    emptied = True
    raw: list[float] = []
    rates: dict[str, list[float]] = {how: [] for how in CLIENTS}
    again: dict[str, list[float]] = {how: [] for how in CLIENTS}
    for turn in range(rounds):
        for side in ("raw", *CLIENTS) if turn % 2 else (*CLIENTS, "raw"):
            restart(cluster, READER)
            emptied = empty_page_cache()
            if side == "raw":
                raw.append(megabytes / raw_s(objects))
            else:
                rates[side].append(served / consume_s(cluster, side, records))
                again[side].append(served / consume_s(cluster, side, records))
    print(
        f"cold: raw {statistics.median(raw):.0f} ({min(raw):.0f}-{max(raw):.0f}) MB/s of "
        f"{len(objects)} objects with {megabytes:.0f} MB, page cache "
        f"{'emptied' if emptied else 'NOT emptied'}"
    )
    for how, name in CLIENTS.items():
        ratios = sorted(own / peer for own, peer in zip(rates[how], raw, strict=True))
        print(
            f"cold: {name} {statistics.median(rates[how]):.0f} MB/s, ratio "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}), must 0.5; "
            f"once more {statistics.median(again[how]):.0f} MB/s",
            flush=True,
        )


@contextmanager
def backfilling(
    cluster: EskerCluster, broker: int, records: int, reads: list[float]
) -> Iterator[None]:
    """Let a consumer read the first topic in a loop; append the MB/s of each whole reading."""
    words = ("--backfill", f"127.0.0.1:{cluster.ports[broker]}", str(broker), str(records))
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bench_catch_up_cold", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(1)  # it connects
        yield
    finally:
        process.kill()
        printed, _ = process.communicate()
    reads += [records * RECORD_BYTES / 1e6 / float(line) for line in printed.split()]


def delivery_ms(bootstrap: str, seconds: float) -> list[float]:
    """Send at a steady rate, and return how long each record took to be acknowledged, sorted."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, **rack(READER)}
    settings.pop("client.rack")
    producer = Producer(settings)
    took: list[float] = []
    value = os.urandom(RECORD_BYTES)
    began = time.perf_counter()
    for number in range(int(seconds * RATE)):
        while (wait := began + number / RATE - time.perf_counter()) > 0:
            producer.poll(min(wait, 0.001))
        sent = time.perf_counter()

        def delivered(error: Any, _: Any, sent: float = sent) -> None:
            assert error is None, error
            took.append((time.perf_counter() - sent) * 1_000)

        producer.produce(BESIDE, value, on_delivery=delivered)
    assert producer.flush(60) == 0, "records remain unacknowledged"
    return sorted(took[len(took) // 10 :])  # the first ones meet a cold connection


def backfill(cluster: EskerCluster, records: int, rounds: int, seconds: float) -> None:
    """Compare a producer's delivery times with and without a backfill, on its broker or another."""
    bootstrap = f"127.0.0.1:{cluster.ports[READER]}"
    create(bootstrap, BESIDE, PARTITIONS)
    delivery_ms(bootstrap, seconds)
    reads: dict[int, list[float]] = {READER: [], WRITER: []}
    taken: list[dict[int | None, list[float]]] = []
    for turn in range(rounds):
        places = (None, READER, WRITER)
        taken.append({})
        for broker in reversed(places) if turn % 2 else places:
            beside = (
                backfilling(cluster, broker, records, reads[broker])
                if broker is not None
                else contextlib.nullcontext()
            )
            with beside:
                taken[-1][broker] = delivery_ms(bootstrap, seconds)
    for broker, place, must in ((READER, "its broker", ", must 2"), (WRITER, "the other", "")):
        rate = f"{statistics.median(reads[broker]):.0f} MB/s" if reads[broker] else "no rate"
        print(f"backfill at {place}, {rate}", flush=True)
        for name, share, limit in (("p50", 0.5, ""), ("p99", 0.99, must)):
            pairs = [
                tuple(took[key][int(len(took[key]) * share)] for key in (None, broker))
                for took in taken
            ]
            ratios = sorted(with_it / alone for alone, with_it in pairs)
            alone, with_it = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(
                f"  {name} {alone:.1f} ms alone, {with_it:.1f} ms beside, ratio "
                f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}){limit}",
                flush=True,
            )


def main() -> None:
    """Run what the command line names, or both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="cold, backfill; default: both")
    parser.add_argument("--megabytes", type=int, default=1_000, help="of records; default: 1000")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)  # a consumer's own process
    parser.add_argument("--receive", nargs=3, help=argparse.SUPPRESS)  # a lean client's process
    parser.add_argument("--backfill", nargs=3, help=argparse.SUPPRESS)  # the same, in a loop
    options = parser.parse_args()
    if options.receive:
        bootstrap, broker, records = options.receive
        print(f"{receive_all(bootstrap, TOPIC, PARTITIONS, int(records), f'r{broker}'):.3f}")
        return
    if options.read or options.backfill:
        bootstrap, broker, records = options.read or options.backfill
        while True:
            settings = rack(int(broker))
            if options.read:
                settings["fetch.queue.backoff.ms"] = "10"
            took = read_all(bootstrap, TOPIC, PARTITIONS, int(records), settings)
            print(f"{took:.3f}", flush=True)
            if options.read:
                return
    print(
        f"python={platform.python_version()} machine={platform.machine()} cores={os.cpu_count()} "
        f"load={os.getloadavg()[0]:.1f}"
    )
    megabytes, rounds, seconds = (3, 1, 2.0) if options.tiny else (
        options.megabytes, options.rounds, 10.0
    )  # fmt: skip
    records = megabytes * 1_000_000 // RECORD_BYTES
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        cluster = EskerCluster(
            home / "esker",
            brokers=2,
            settings=DEFAULT_INTERVAL,
            settings_of={broker: {"broker.rack": f"r{broker}"} for broker in (WRITER, READER)},
            fresh=True,
        )
        with cluster:
            cluster.start()
            bootstrap = f"127.0.0.1:{cluster.ports[WRITER]}"
            create(bootstrap, TOPIC, PARTITIONS)
            value = os.urandom(RECORD_BYTES)
            produce(
                bootstrap,
                TOPIC,
                value,
                records,
                {"client.id": rack(WRITER)["client.id"]},
                PARTITIONS,
            )
            parts = options.parts or ["cold", "backfill"]
            if "cold" in parts:
                cold(cluster, home, records, rounds)
            if "backfill" in parts:
                backfill(cluster, records, rounds, seconds)


if __name__ == "__main__":
    main()
