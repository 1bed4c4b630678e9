"""Do N broker processes of one properties file do N times the work of one, at the same price?

    python -m bench.bench_processes [throughput] [objects] [--share 0.25] [--tiny]

Without words, both. Three quorum nodes, one supervisor and librdkafka in processes of its own share
the machine; objects lie in a directory.

- throughput: 1, 2 and 4 broker processes, each held to a share of a core, take what idempotent
  producers can send to 16 partitions. Printed are MB/s, the brokers' CPU seconds for a GB, and both
  against one process. A thread holds a process to its share: it reads the process's CPU clock every
  few ms, stops it (SIGSTOP) once it has used more than its part, and lets it go on later.
- objects: 2 MB/s over 200 partitions, with 1 and with 4 processes that are not held: objects a
  second, which are PUTs. The budget of the file is divided by its processes.

A row whose busiest process used less than 80 % of its share says nothing about processes: the
machine, or the producers, could not do more. It is marked; a smaller share may do.

Must (issue 21), at a quarter of a core: 1.8 times with two and 3.2 times with four.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from tests.clients.confluent import Confluent
from tests.clients.hosted import HostedCluster

PRODUCERS: Final = 2
RECORD_BYTES: Final = 1_024
TENTH_S: Final = 0.1
CHECK_S: Final = 0.004
SLACK_S: Final = 0.005  # of CPU time beyond its share, for which a process is not stopped yet
INTERVAL: Final = {"diskless.append.commit.interval.ms": "250"}
MUST: Final = {1: "", 2: "must 1.8x, aim 2x", 4: "must 3.2x, aim 3.8x"}


@dataclass(frozen=True, slots=True)
class Length:
    """The seconds for which a row is measured, and those of load before them."""

    seconds: float
    warm_up_s: float


FULL: Final = Length(20.0, 5.0)
TINY: Final = Length(3.0, 1.0)


@dataclass(frozen=True, slots=True)
class Job:
    """The load of one producer process."""

    bootstrap: str
    topic: str
    partitions: int
    bytes_per_s: float | None  # None: as much as is taken


def produce(job: Job) -> Counter[int]:
    """Send records until standard input ends; return the delivered bytes by tenth of a second.

    Prints a line once the first record was delivered. Times are those of the system's monotonic
    clock, which all processes share.
    """
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 50_000,
        }
    )
    delivered: Counter[int] = Counter()

    def on_delivery(error: Any, _: Any) -> None:
        assert error is None, error
        if not delivered:
            print("ready", flush=True)
        delivered[int(time.monotonic() / TENTH_S)] += RECORD_BYTES

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    value, number, begun = os.urandom(RECORD_BYTES), 0, time.monotonic()
    while not ended.is_set():
        allowed = (time.monotonic() - begun) * (job.bytes_per_s or math.inf)
        if number * RECORD_BYTES > allowed:
            producer.poll(0.002)
            continue
        try:
            producer.produce(
                job.topic, value, partition=number % job.partitions, on_delivery=on_delivery
            )
            number += 1
        except BufferError:
            producer.poll(0.01)
        if number % 100 == 0:
            producer.poll(0)
    producer.flush(60)
    return delivered


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a running process, all of its threads included."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


@contextmanager
def held(pids: Sequence[int], share: float | None) -> Iterator[None]:
    """Hold each process to a share of a core; None: hold none."""
    if share is None:
        yield
        return
    stop = threading.Event()

    def hold() -> None:
        begun = time.monotonic()
        spent = {pid: cpu_s(pid) for pid in pids}
        stopped: set[int] = set()
        while not stop.wait(CHECK_S):
            allowed = (time.monotonic() - begun) * share
            for pid in pids:
                used = cpu_s(pid) - spent[pid]
                if used > allowed + SLACK_S and pid not in stopped:
                    os.kill(pid, signal.SIGSTOP)
                    stopped.add(pid)
                elif used <= allowed and pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                    stopped.remove(pid)
                if used < allowed - 1.0:  # what it did not use is not saved up
                    spent[pid] -= allowed - 1.0 - used

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one run with a number of broker processes."""

    bytes_per_s: float
    cpu_s_per_gb: float
    objects_per_s: float
    peak_share: float  # of a core, of the process that used most


def measure(
    processes: int, partitions: int, length: Length, *, share: float | None, rate: float | None
) -> Measured:
    """Run a cluster with so many broker processes under load.

    Args:  share: of a core, for each broker; None: as much as it takes.
           rate: bytes a second of all producers; None: as many as are taken.
    """
    with (
        tempfile.TemporaryDirectory() as home,
        HostedCluster(Path(home), brokers=processes, settings=INTERVAL) as cluster,
    ):
        cluster.start()
        Confluent(cluster.host_bootstrap).create_topic("t", partitions, {})
        pids = [cluster.pid(broker) for broker in cluster.broker_ids]
        job = Job(
            bootstrap=cluster.host_bootstrap,
            topic="t",
            partitions=partitions,
            bytes_per_s=None if rate is None else rate / PRODUCERS,
        )
        producers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "bench.bench_processes",
                    "--produce",
                    json.dumps(asdict(job)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(PRODUCERS)
        ]
        for producer in producers:
            assert producer.stdout is not None
            assert producer.stdout.readline() == "ready\n"
        with held(pids, share):
            time.sleep(length.warm_up_s)
            before, begun = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
            objects = count_objects(cluster.store)
            time.sleep(length.seconds)
            used = {pid: cpu_s(pid) - before[pid] for pid in pids}
            elapsed = time.monotonic() - begun
            objects = count_objects(cluster.store) - objects
        answers = [json.loads(producer.communicate(timeout=120)[0]) for producer in producers]
    window = range(int(begun / TENTH_S), int((begun + elapsed) / TENTH_S))
    sent = sum(answer.get(str(tenth), 0) for answer in answers for tenth in window)
    return Measured(
        bytes_per_s=sent / elapsed,
        cpu_s_per_gb=sum(used.values()) / max(sent, 1) * 1e9,
        objects_per_s=objects / elapsed,
        peak_share=max(used.values()) / elapsed,
    )


def count_objects(store: Path) -> int:
    """Return the number of objects with records in a directory store."""
    return sum(
        len(files)
        for directory, _, files in os.walk(store)
        if not {"probe", "lineage"} & set(Path(directory).parts)
    )


def throughput(length: Length, share: float) -> None:
    """Measure and print what processes take that are held to a share of a core."""
    base: Measured | None = None
    for processes in (1, 2, 4):
        found = measure(processes, 16, length, share=share, rate=None)
        base = base or found
        print(
            f"throughput  N={processes}  {found.bytes_per_s / 1e6:7.2f} MB/s  "
            f"{found.bytes_per_s / max(base.bytes_per_s, 1):5.2f}x   "
            f"CPU {found.cpu_s_per_gb:6.1f} s/GB  {found.cpu_s_per_gb / base.cpu_s_per_gb:5.2f}x   "
            f"{found.objects_per_s:5.1f} objects/s   busiest {found.peak_share:.2f} cores   "
            + (
                MUST[processes]
                if found.peak_share >= 0.8 * share
                else "NOT VALID: the processes were not at their limit"
            ),
            flush=True,
        )


def objects(length: Length) -> None:
    """Measure and print the objects of 2 MB/s over 200 partitions."""
    base: Measured | None = None
    for processes in (1, 4):
        found = measure(processes, 200, length, share=None, rate=2e6)
        base = base or found
        print(
            f"objects     N={processes}  {found.bytes_per_s / 1e6:7.2f} MB/s  "
            f"{found.objects_per_s:5.1f} objects/s  "
            f"{found.objects_per_s / max(base.objects_per_s, 0.1):5.2f}x   must 2x",
            flush=True,
        )


def main() -> None:
    """Measure what the words of the command line name, or everything."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bench_processes", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="throughput, objects; default: both"
    )
    parser.add_argument(
        "--share", type=float, default=0.25, help="of a core, for each broker; default: 0.25"
    )
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    parser.add_argument("--produce", help=argparse.SUPPRESS)  # a producer's own process
    options = parser.parse_args()
    if options.produce:
        print(json.dumps(produce(Job(**json.loads(options.produce)))))
        return
    parts = options.parts or ["throughput", "objects"]
    if unknown := set(parts) - {"throughput", "objects"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; parts: throughput, objects")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"commit={commit} python={platform.python_version()} cores={cores} load={load:.1f}")
    length = TINY if options.tiny else FULL
    if "throughput" in parts:
        throughput(length, options.share)
    if "objects" in parts:
        objects(length)


if __name__ == "__main__":
    main()
