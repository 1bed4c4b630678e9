"""Compaction of the same batches by Kafka's cleaner and by ours, each from files to files.

    python -m bench.bench_kafka_cleaner [--tiny]

Kafka's `Cleaner` cleans a segment in a Java process (`bench/peers/CleanLog.java`), with its default
sizes and no throttle. Our rewriter compacts the same bytes as runs of 4 MiB of an object in a
directory. Both read the data twice, learn the newest offset of each key, and write what is left;
each key comes twice. They leave equally many records, or the benchmark fails.

The figures: CPU time of the thread that cleans, and wall time; MB/s of the log's bytes, and
millions of records a second. Both run in turn, the best round of each counts, so that Java has
compiled its code. Ratio: our MB/s for Kafka's, by CPU time.

Needs Java 17 and the release that the interop tests fetch.
"""

from __future__ import annotations

import asyncio
import platform
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Final, NamedTuple

from bench.bench_compaction import MIB, SEED, finished, runs_of
from diskless.compaction.child import collect_seldom
from diskless.compaction.rewriter import Rewriter
from diskless.compaction.tasks import CompactionTask, RewriterSettings, RewrittenObject, Source
from diskless.fetch.runs_reader import Run
from diskless.stores.directory import DirectoryStorage
from records.compression import Compression
from records.final_batches import MAX_RUN_BYTES
from records.final_runs import RunBuilder
from records.wal import FINAL, PartitionBatches, build_object
from tests.diskless.compaction.test_rewriter import KEYS, P0
from tests.interop.kafka_release import fetch

ROUNDS: Final = 6
LOG_BYTES: Final = 128 * MIB
HARNESS: Final = Path(__file__).parent / "peers" / "CleanLog.java"
HEAP_MIB: Final = 1024  # Kafka's default


class Cleaning(NamedTuple):
    """One compaction of a log."""

    wall_s: float
    cpu_s: float
    kept_records: int


def clean_by_kafka(segment: Path, home: Path, rounds: int) -> Cleaning:
    """Clean a segment file with Kafka's cleaner; return the fastest round."""
    command = ["java", f"-Xmx{HEAP_MIB}m", "-cp", f"{fetch()}/*", str(HARNESS)]
    done = subprocess.run(
        [*command, str(segment), str(home), str(rounds)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"Kafka's cleaner failed: {done.stderr[-2_000:]}")
    rows = [line.split() for line in done.stdout.splitlines()]
    return min(Cleaning(float(row[0]), float(row[1]), int(row[5])) for row in rows)


class OneObject:
    """A log as an object in a directory, and the ids of the objects that replace it."""

    def __init__(self, home: Path, batches: list) -> None:
        self.store = DirectoryStorage(home)
        self.next = 1
        builder, runs = RunBuilder(0, max_run_bytes=MAX_RUN_BYTES), []
        for batch in batches:
            runs += builder.add(batch, 0)
        runs += builder.take()
        parts, size_bytes = build_object(
            [PartitionBatches(*P0, [part for run in runs for part in run.parts], 1)],
            cluster_id=KEYS.cluster_id, object_id=0, broker_id=1, broker_epoch=1,
            object_format=FINAL,
        )  # fmt: skip
        asyncio.run(self.store.upload(KEYS.key(0), parts, size_bytes))
        found, at = [], 0
        for run in runs:
            found.append(
                Run(KEYS.key(0), at, run.size_bytes, run.base_offset, run.last_offset, 0, 0, FINAL)
            )
            at += run.size_bytes
        self.runs = tuple(found)

    async def clean(self) -> Cleaning:
        """Compact the log with our rewriter."""

        async def next_id() -> int:
            self.next += 1
            return self.next

        async def replace(_: RewrittenObject) -> bool:
            return True

        end = self.runs[-1].last_offset + 1
        task = CompactionTask(Source(*P0, self.runs), end, 0, 0, 1, 1, {}, bytes(16))
        settings = RewriterSettings(KEYS, 1, 1, 64 * MIB, 128 * MIB)
        rewriter = Rewriter(self.store, settings, next_id=next_id, replace=replace)
        began, began_cpu = time.perf_counter(), time.process_time()
        report = await rewriter.compact(task)
        cleaning = Cleaning(
            time.perf_counter() - began, time.process_time() - began_cpu, report.kept_records
        )
        await rewriter.close()
        return cleaning


def row(value_bytes: int, batch_bytes: int, codec: Compression, size_bytes: int) -> str:
    """Compact a log in both ways; return a line of the table."""
    runs = runs_of(value_bytes, batch_bytes, codec, size_bytes)
    batches = [batch for run in finished(runs) for batch in run]
    records = sum(count for _, count in runs)
    with tempfile.TemporaryDirectory(prefix="cleaner-") as name:
        home = Path(name)
        segment = home / "segment"
        with segment.open("wb") as file:
            file.writelines(batch.view for batch in batches)
        size_mb = segment.stat().st_size / 1e6
        log = OneObject(home / "store", batches)
        del runs, batches
        rounds = ROUNDS if size_bytes > MIB else 1
        ours = min((asyncio.run(log.clean()) for _ in range(3)), key=lambda each: each.cpu_s)
        theirs = clean_by_kafka(segment, home, rounds)
    assert ours.kept_records == theirs.kept_records, (ours, theirs)
    return (
        f"{value_bytes:5}  {batch_bytes:6}  {codec.name:5}  {records / 1e6:9.3f}"
        f"  {size_mb / theirs.cpu_s:10.0f}  {size_mb / ours.cpu_s:9.0f}"
        f"  {theirs.cpu_s / ours.cpu_s:5.2f}  {size_mb / theirs.wall_s:11.0f}"
        f"  {size_mb / ours.wall_s:10.0f}  {records / ours.cpu_s / 1e6:13.2f}"
    )


def main() -> None:
    """Print the table."""
    words = ArgumentParser(prog="python -m bench.bench_kafka_cleaner", description=__doc__)
    words.add_argument("--tiny", action="store_true", help="use little data; ends in seconds")
    size_bytes = LOG_BYTES // 256 if words.parse_args().tiny else LOG_BYTES
    collect_seldom()  # as brokers' processes do
    print(f"Python {platform.python_version()}, {platform.machine()}, seed {SEED}")
    print(
        "value   batch  codec  M records  Kafka MB/s  our MB/s  ratio  Kafka (wall)"
        "  our (wall)  our M records/s"
    )
    for value_bytes, batch_bytes, codec in (
        (1024, 16 * 1024, Compression.NONE),
        (1024, 16 * 1024, Compression.LZ4),
        (60, 16 * 1024, Compression.NONE),
        (60, 16 * 1024, Compression.LZ4),
        (60, 1024, Compression.NONE),
    ):
        print(row(value_bytes, batch_bytes, codec, size_bytes), flush=True)


if __name__ == "__main__":
    main()
