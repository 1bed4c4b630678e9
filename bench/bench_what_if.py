"""Does `esker spark what-if` predict what broker processes do with other settings?

    .venv/bin/python -m bench.bench_what_if [--tiny]

Each run is a cluster of processes, with librdkafka producers that send at random times and, in each
zone, one consumer that reads along. The command reads the log of the first run (8 objects a second
at most) and predicts the others. Printed are predicted and measured figures a second, and the
error. GETs are only of the run with three zones, because a broker reads nothing that it wrote.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from esker.cli import app
from spark_jobs.what_if.model import Settings
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.ports import free_port

TINY: Final = "--tiny" in sys.argv
SECONDS: Final = 3.0 if TINY else 30.0
PARTITIONS: Final = 6
PRODUCERS: Final = 4
SENDS_PER_S: Final = 80.0  # of all producers together
RECORD_BYTES: Final = (100, 4_000)
DELIVERED_S: Final = 60.0
TOPIC: Final = "t"
MUST: Final = 20  # %

NOW: Final = Settings(brokers=1, objects_per_second=8)
RUNS: Final = {
    "interval of 1 s alone": NOW._replace(interval_ms=1_000, quiet_ms=0),
    "20 objects a second": NOW._replace(objects_per_second=20),
    "buffers of 20 kB": NOW._replace(quiet_ms=0, interval_ms=500, buffer_bytes=20_000),
    "three zones": NOW._replace(brokers=3, zones=3),
}


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of a run, and what the command predicted from it for other settings."""

    objects_per_s: float
    runs_per_s: float  # partitions in objects
    gets_per_s: float
    predictions: dict[str, dict[str, Any]]


def measure(settings: Settings, predict: Sequence[str] = (), seed: int = 1) -> Run:
    """Run brokers under load with these settings.

    Args:  predict: names of `RUNS` to predict from this run.
    """
    metrics: dict[int, str] = {}
    properties: dict[int, dict[str, str]] = {}
    for number in range(settings.brokers):
        metrics[number] = f"127.0.0.1:{free_port()}"
        properties[101 + number] = {
            "broker.rack": str(number % settings.zones),
            "esker.metrics.listener": metrics[number],
            "diskless.append.commit.interval.ms": str(settings.interval_ms),
            "diskless.append.buffer.max.bytes": str(settings.buffer_bytes),
            "esker.append.quiet.ms": str(settings.quiet_ms),
            "esker.append.objects.per.second": str(settings.objects_per_second),
        }
    with (
        tempfile.TemporaryDirectory() as home,
        EskerCluster(Path(home), brokers=settings.brokers, settings_of=properties) as cluster,
    ):
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        ended = threading.Event()
        readers = [
            threading.Thread(target=read_along, args=(cluster.bootstrap, str(zone), ended))
            for zone in range(settings.zones)
        ]
        for reader in readers:
            reader.start()
        try:
            gets = -sum(map(store_gets, metrics.values()))
            send(cluster.bootstrap, seed)
            time.sleep(1)  # readers get the last objects
            gets += sum(map(store_gets, metrics.values()))
        finally:
            ended.set()
            for reader in readers:
                reader.join()
        ports = ",".join(f"{host}:{port}" for host, port in cluster.controllers)
        found = what_if(ports, settings, settings)
        seconds = found["history"]["durationMs"] / 1_000
        return Run(
            objects_per_s=found["now"]["objectsPerSecond"],
            runs_per_s=found["now"]["runsPerSecond"],
            gets_per_s=gets / seconds,
            predictions={name: what_if(ports, settings, RUNS[name])["then"] for name in predict},
        )


def send(bootstrap: str, seed: int) -> None:
    """Send records at random times, whether earlier ones are answered or not."""
    random = Random(seed)
    settings = {"bootstrap.servers": bootstrap, "client.id": "what-if,diskless_az=0"}
    producers = [Producer({**settings, "linger.ms": 0}) for _ in range(PRODUCERS)]
    failed: list[str] = []

    def on_delivery(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error.str())

    ends = time.monotonic() + SECONDS
    due = time.monotonic()
    while (due := due + random.expovariate(SENDS_PER_S)) < ends:
        time.sleep(max(0.0, due - time.monotonic()))
        value = os.urandom(random.randrange(*RECORD_BYTES))
        producer, partition = random.choice(producers), random.randrange(PARTITIONS)
        producer.produce(TOPIC, value, partition=partition, on_delivery=on_delivery)
        producer.poll(0)
    left = sum(producer.flush(DELIVERED_S) for producer in producers)
    assert not left, f"{left} records were not delivered"
    assert not failed, failed[:3]


def read_along(bootstrap: str, zone: str, ended: threading.Event) -> None:
    """Read all partitions by one consumer of a zone, until the event is set."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": f"what-if,diskless_az={zone}",
            "group.id": "none",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    while not ended.is_set():
        consumer.consume(100, timeout=0.2)
    consumer.close()


def store_gets(place: str) -> float:
    """Return the number of GETs of a broker since its start."""
    with urlopen(f"http://{place}/metrics") as page:
        for family in text_string_to_metric_families(page.read().decode()):
            for sample in family.samples:
                if sample.name == "esker_broker_store_gets_total":
                    return sample.value
    raise AssertionError(f"{place} has no esker_broker_store_gets")


def what_if(controllers: str, now: Settings, then: Settings) -> dict[str, Any]:
    """Return what the command prints for a running cluster."""
    words = ["spark", "what-if", "--bootstrap-controller", controllers, "--json"]
    for name in ("interval_ms", "buffer_bytes", "quiet_ms", "objects_per_second"):
        option = name.replace("_", "-")
        words += [f"--now-{option}", str(getattr(now, name))]
        words += [f"--{option}", str(getattr(then, name))]
    words += ["--brokers", str(then.brokers), "--zones", str(then.zones)]
    ran = CliRunner().invoke(app, words)
    assert not ran.exit_code, ran.output
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def row(name: str, unit: str, predicted: float, measured: float) -> str:
    """Return one line: predicted and measured, and the error in percent of the measured."""
    error = 100 * (predicted / measured - 1) if measured else float("nan")
    return (
        f"{name:22}  {unit:14}  predicted {predicted:7.2f}/s  measured {measured:7.2f}/s  "
        f"error {error:+6.1f} %   must {MUST} %"
    )


def main() -> None:
    """Measure the runs, and print each beside its prediction."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"commit={commit} python={platform.python_version()} cores={cores} load={load:.1f}")
    names = list(RUNS)[:1] if TINY else list(RUNS)
    first = measure(NOW, names)
    print(f"history: {first.objects_per_s:.2f} objects/s, {first.runs_per_s:.1f} partitions/s")
    for seed, name in enumerate(names, 2):
        found, predicted = measure(RUNS[name], seed=seed), first.predictions[name]
        print(row(name, "objects", predicted["objectsPerSecond"], found.objects_per_s))
        print(row(name, "partitions", predicted["runsPerSecond"], found.runs_per_s))
        if RUNS[name].zones > 1:
            print(row(name, "GETs", predicted["getsPerSecond"], found.gets_per_s), flush=True)


if __name__ == "__main__":
    main()
