"""Speed of merging and compacting batches, against a copy of the same bytes.

    python -m bench.bench_compaction            speed, catch-up, log bytes, memory of the key map
    python -m bench.bench_compaction --tiny     each part with little data, as the test runs it

Merging: the rewriter reads objects of a directory, verifies, stamps and joins their batches, and
writes one object. The copy reads the same objects through the same store, with a checksum, and
writes their bytes as one object. Compaction: the newest offset of each key is learnt, and
the batches are cleaned by it; each key comes twice, so half of the records go. CPU time of one
core, the least of the rounds.

Catch-up: one consumer reads one partition from its beginning, a MiB in a fetch, from a store that
takes 30 ms to the first byte; before and after its objects were merged, in as many levels as the
broker's planner asks for. Log bytes: of the record by which the coordinator replaces the runs,
against the bytes that were merged. Memory: of a process that maps so many different keys, up to
the brokers' default bound of a map; and of the process that compacts so many keys in one round,
started as brokers start it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from crc32c import crc32c

from coordinator.batch.log_records import draft_batch
from diskless.compaction.child import MMAP_THRESHOLD_BYTES
from diskless.compaction.planner import PartitionRuns, plan_merges
from diskless.compaction.rewriter import BLOCK_RECORDS, Rewriter, _blocks
from diskless.compaction.tasks import CompactionTask, RewriterSettings, RewrittenObject, Source
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import Run, read_runs
from diskless.stores import ByteRange
from diskless.stores.directory import DirectoryStorage
from diskless.stores.memory import MemoryStore
from records.batch import Batch, iter_batches
from records.batch_writer import build_batch
from records.cleaning import Round, clean_block, newest_by_offset, note_keys
from records.compression import Buffer, Compression
from records.diskless import RunsReplacedRecord
from records.final_runs import RunBuilder, finish_run
from records.frame import encode_record
from records.offset_map import ENTRY_BYTES, OffsetMap, digest_keys
from records.wal import FINAL, PartitionBatches, build_object
from tests.diskless.compaction.test_rewriter import KEYS, TOPICS, World

SEED: Final = 16
ROUNDS: Final = 3
BYTES: Final = 32 * 1024 * 1024
RUN_BYTES: Final = 1024 * 1024
MIB: Final = 1024 * 1024
FIRST_BYTE_S: Final = 0.03
FETCH_BYTES: Final = MIB
MERGED_BYTES: Final = 64 * MIB
NOW_MS: Final = 1_795_000_000_000
MERGED_MS: Final = 60_000  # between the oldest and the newest batch of a merged object
MAP_BYTES: Final = 128 * MIB  # the default of log.cleaner.dedupe.buffer.size
RULES: Final = Round(now_ms=1, delete_retention_ms=1, last_sequences={}, salt=bytes(16))


def least(work: Callable[[], object]) -> float:
    """Return the least CPU time of some rounds, in seconds."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def runs_of(
    value_bytes: int, batch_bytes: int, codec: Compression, size_bytes: int
) -> list[tuple[bytes, int]]:
    """Return runs of about `RUN_BYTES`, and how many records each has; each key comes twice."""
    random = Random(SEED)
    total = max(1, size_bytes // (value_bytes + 40))
    keys = [b"key-%012d" % (number // 2) for number in range(total)]
    random.shuffle(keys)
    each = max(1, batch_bytes // (value_bytes + 40))
    found, run, run_bytes, records = [], [], 0, 0
    for first in range(0, total, each):
        rows = [(key, random.randbytes(value_bytes), 5, ()) for key in keys[first : first + each]]
        batch = build_batch(rows, base_offset=0, leader_epoch=-1, compression=codec)
        run.append(batch)
        run_bytes += len(batch)
        records += len(rows)
        if run_bytes >= RUN_BYTES or first + each >= total:
            found.append((b"".join(run), records))
            run, run_bytes, records = [], 0, 0
    return found


def finished(runs: list[tuple[bytes, int]]) -> list[list[Batch]]:
    """Return the batches of runs in final form."""
    base, batches = 0, []
    for data, records in runs:
        batches.append(
            finish_run(data, base_offset=base, end_offset=base + records, append_time=None)
        )
        base += records
    return batches


async def merge_and_copy(runs: list[tuple[bytes, int]], root: Path) -> tuple[float, float]:
    """Merge objects of one run each, and copy them; return the least CPU seconds of both."""
    store = DirectoryStorage(root)
    ids, live, base = count(), list[Run](), 0

    async def next_id() -> int:
        return next(ids)

    async def replace(written: RewrittenObject) -> bool:
        assert sum(len(each.old_runs) for each in written.ranges) == len(runs)
        return True

    for data, records in runs:
        content = [PartitionBatches(TOPICS[0], 0, [data], records)]
        object_id = next(ids)
        parts, size_bytes = build_object(
            content, cluster_id=KEYS.cluster_id, object_id=object_id, broker_id=1, broker_epoch=2
        )
        await store.upload(KEYS.key(object_id), parts, size_bytes)
        live.append(Run(KEYS.key(object_id), 0, len(data), base, base + records - 1, 0, -1))
        base += records
    settings = RewriterSettings(KEYS, 1, 2, MERGED_BYTES, MIB)
    rewriter = Rewriter(store, settings, next_id=next_id, replace=replace)
    merging, copying = [], []
    for _ in range(ROUNDS):
        began = time.process_time()
        await rewriter.merge([Source(TOPICS[0], 0, tuple(live))])
        between = time.process_time()
        await copy(store, live, KEYS.key(next(ids)))
        merging.append(between - began)
        copying.append(time.process_time() - between)
    await rewriter.close()
    await store.close()
    return min(merging), min(copying)


async def copy(store: DirectoryStorage, runs: Sequence[Run], key: str) -> None:
    """Read each run's bytes, take its checksum, and write all of them as one object."""
    reads = [store.fetch(run.object_key, ByteRange(0, run.size_bytes)) for run in runs]
    parts = await asyncio.gather(*reads)
    for part in parts:
        crc32c(part)
    await store.upload(key, parts, sum(map(len, parts)))


def compact(runs: list[list[Batch]]) -> None:
    offsets = OffsetMap()
    for batches in runs:
        for block in _blocks(batches):
            note_keys(block, offsets, RULES.salt)
    newest = offsets.drain_offsets()
    builder = RunBuilder(0)
    for batches in runs:
        for block in _blocks(batches):
            for batch in clean_block(block, newest_by_offset(block, newest), RULES).batches:
                for _ in builder.add(batch, 0):
                    pass


class SlowStore(MemoryStore):
    """A store in memory that takes a while for each GET, and counts them."""

    gets = 0

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        """Return a part of an object after `FIRST_BYTE_S`."""
        self.gets += 1
        await asyncio.sleep(FIRST_BYTE_S)
        return await super().fetch(key, byte_range)


async def catch_up(store: SlowStore, runs: Sequence[Run]) -> tuple[float, float]:
    """Read a partition from its beginning; return the GETs per MB, and the MB/s."""
    cache, position, size_bytes = ObjectCache(store), 0, 0
    store.gets, began = 0, time.perf_counter()
    while position <= runs[-1].last_offset:
        rest = [run for run in runs if run.last_offset >= position]
        taken, wanted = [], 0
        for run in rest:
            taken.append(run)
            wanted += run.size_bytes
            if wanted >= FETCH_BYTES:
                break
        data = await read_runs(cache, taken, from_offset=position, max_bytes=FETCH_BYTES)
        size_bytes += len(data)
        *_, last = iter_batches(data, verify_crc=False)
        position = last.header.end_offset
    seconds = time.perf_counter() - began
    await cache.close()
    return store.gets / (size_bytes / 1e6), size_bytes / 1e6 / seconds


def log_bytes(written: RewrittenObject, random: Random) -> int:
    """Return the bytes of the log's batch that replaces runs by those of an object.

    Times and digests are as different as those of a running cluster.
    """
    ranges = written.ranges
    topic_ids = list(dict.fromkeys(each.topic_id for each in ranges))
    runs = [run for each in ranges for run in each.runs]
    record = RunsReplacedRecord(
        object_id=written.object_id,
        object_format=FINAL,
        size_bytes=written.size_bytes,
        broker_id=1,
        lease_id=1,
        replaced_at_ms=NOW_MS,
        closes_object=1,
        topic_ids=tuple(topic_ids),
        topic_indexes=tuple(topic_ids.index(each.topic_id) for each in ranges),
        partitions=tuple(each.partition for each in ranges),
        first_offsets=tuple(each.old_runs[0].base_offset for each in ranges),
        end_offsets=tuple(each.old_runs[-1].last_offset + 1 for each in ranges),
        old_run_counts=tuple(len(each.old_runs) for each in ranges),
        old_run_digests=tuple(random.getrandbits(63) for _ in ranges),
        bounds=tuple(each.bound for each in ranges),
        flags=tuple(each.flags for each in ranges),
        run_counts=tuple(len(each.runs) for each in ranges),
        last_offsets=tuple(run.last_offset for run in runs),
        record_counts=tuple(run.record_count for run in runs),
        byte_offsets=tuple(at for each in ranges for at in each.byte_offsets),
        byte_sizes=tuple(run.size_bytes for run in runs),
        max_timestamps=tuple(NOW_MS - random.randrange(MERGED_MS) for _ in runs),
        append_times=tuple(NOW_MS - random.randrange(MERGED_MS) for _ in runs),
        timestamp_types=tuple(run.timestamp_type for run in runs),
    )
    return sum(map(len, draft_batch([[encode_record(record)]], NOW_MS).parts))


async def catch_up_row(partitions: int, objects: int, batch_bytes: int) -> str:
    """Merge objects in which each partition has one batch, and measure before and after."""
    random = Random(SEED)
    store = SlowStore(lambda: 0)
    world = RewrittenWorld(object_bytes=MERGED_BYTES)
    world.use(store)
    for _ in range(objects):
        value = random.randbytes(batch_bytes)
        world.append({(TOPICS[0], at): [(b"k", value)] for at in range(partitions)})
    name = TOPICS[0], 0
    before = await catch_up(store, world.runs[name])
    data_bytes = sum(run.size_bytes for runs in world.runs.values() for run in runs)
    replaced = levels = 0
    while True:
        columns = [PartitionRuns(*place, runs) for place, runs in world.runs.items()]
        merges = plan_merges(
            columns, object_id=world.object_id, object_bytes=MERGED_BYTES, now_ms=1 << 40
        )
        if not merges:
            break
        levels += 1
        for merge in merges:
            await world.rewriter.merge(merge.sources)
    replaced = sum(log_bytes(written, random) for written in world.written)
    after = await catch_up(store, world.runs[name])
    return (
        f"{partitions:10}  {objects:7}  {before[0]:9.2f}  {before[1]:6.1f}  {levels:6}  "
        f"{after[0]:8.2f}  {after[1]:6.1f}  {100 * replaced / data_bytes:11.3f} %"
    )


def map_row(keys: int) -> str:
    """Put different keys into a map of newest offsets, and return the process's peak memory."""
    offsets, most = OffsetMap(), MAP_BYTES // ENTRY_BYTES
    for first in range(0, keys, BLOCK_RECORDS):
        if len(offsets) > most:
            offsets.merge()
        if len(offsets) > most:
            break  # as the rewriter: the rest is another round's
        some = range(first, min(keys, first + BLOCK_RECORDS))
        digests = digest_keys([b"%d" % number for number in some], RULES.salt)
        offsets.put(digests, np.arange(some.start, some.stop))
    mapped = len(offsets)
    offsets.drain_offsets()
    return f"{keys:10}  {mapped:10}  {peak_mib():8.0f}"


async def fill(store: DirectoryStorage, keys: int) -> list[Run]:
    """Write runs of records of 100 bytes with different keys; return the runs."""
    runs, each = list[Run](), RUN_BYTES // 100
    for object_id, first in enumerate(range(0, keys, each)):
        last = min(keys, first + each) - 1
        value = Random(first).randbytes(60)
        batches = [
            build_batch(
                [(b"%016d" % key, value, 5, ()) for key in range(at, min(last + 1, at + 150))],
                base_offset=0,
                leader_epoch=-1,
            )
            for at in range(first, last + 1, 150)
        ]
        key, size_bytes = KEYS.key(object_id), sum(map(len, batches))
        await store.upload(key, batches, size_bytes)
        runs.append(Run(key, 0, size_bytes, first, last, 0, -1))
    return runs


async def compact_whole(root: Path, runs: Sequence[Run]) -> str:
    """Compact runs of different keys in one round; return how much, and the peak memory."""
    ids = count(len(runs))

    async def next_id() -> int:
        return next(ids)

    async def replace(_: RewrittenObject) -> bool:
        return True

    store = DirectoryStorage(root)
    settings = RewriterSettings(KEYS, 1, 2, MERGED_BYTES, MAP_BYTES)
    rewriter = Rewriter(store, settings, next_id=next_id, replace=replace)
    report = await rewriter.compact(
        CompactionTask(
            Source(TOPICS[0], 0, tuple(runs)),
            bound=runs[-1].last_offset + 1,
            first_dirty=0,
            rewritten_until=0,
            delete_retention_ms=1,
            now_ms=NOW_MS,
            last_sequences={},
            salt=bytes(16),
        )
    )
    await rewriter.close()
    await store.close()
    return f"{runs[-1].last_offset + 1:10}  {report.kept_records:10}  {peak_mib():8.0f}"


def round_row(keys: int) -> str:
    """Compact in a process that is started as brokers start theirs; return its row."""
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "objects"

        async def prepare() -> list[Run]:
            store = DirectoryStorage(root)
            runs = await fill(store, keys)
            await store.close()
            return runs

        (Path(home) / "runs").write_bytes(pickle.dumps(asyncio.run(prepare())))
        return subprocess.run(
            [sys.executable, "-m", "bench.bench_compaction", "--round", home],
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD_BYTES)},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip


def peak_mib() -> float:
    """Return the peak of this process's resident memory, in MiB.

    Why not getrusage: its maximum is that of the process that started this one, if larger.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


class RewrittenWorld(World):
    """The partitions of the rewriter's tests, in a slow store."""

    def use(self, store: SlowStore) -> None:
        """Keep the objects in this store from now on."""
        self.store = store
        self.rewriter = Rewriter(
            store, self.rewriter._settings, next_id=self._next_id, replace=self._replace
        )

    def object_id(self, key: str) -> int:
        """Return the id in the key of an object."""
        return KEYS.object_id(key)


def main() -> None:
    words = ArgumentParser(prog="python -m bench.bench_compaction", description=__doc__)
    words.add_argument("--tiny", action="store_true", help="use little data; ends in seconds")
    words.add_argument("--map", type=int, help=SUPPRESS)  # in a process of its own
    words.add_argument("--round", type=Path, help=SUPPRESS)  # likewise
    chosen = words.parse_args()
    if chosen.round:
        runs = pickle.loads((chosen.round / "runs").read_bytes())
        print(asyncio.run(compact_whole(chosen.round / "objects", runs)))
        return
    if chosen.map:
        print(map_row(chosen.map))
        return
    show_speed(BYTES // 64 if chosen.tiny else BYTES)
    print("\npartitions  objects  GET/MB is  MB/s is  levels  GET/MB then  MB/s then  log of data")
    for row in ((4, 20, 2_000),) if chosen.tiny else ((16, 256, 16_000), (1_000, 64, 1_000)):
        print(asyncio.run(catch_up_row(*row)), flush=True)
    print("\n      keys      mapped  peak MiB")
    for keys in (10_000,) if chosen.tiny else (10_000, 1_000_000, 5_000_000, 50_000_000):
        command = [sys.executable, "-m", "bench.bench_compaction", "--map", str(keys)]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout, end="")
    print("\n      keys  kept  peak MiB of a whole round")
    for keys in (10_000,) if chosen.tiny else (5_000_000,):
        print(round_row(keys), end="", flush=True)


def show_speed(size_bytes: int) -> None:
    """Print the speed of merging and compaction of batches of several sizes."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit}, Python {platform.python_version()}, {platform.machine()}, seed {SEED}")
    print("value  batch   codec   merge MB/s  copy MB/s  ratio   compact MB/s  M records/s")
    for value_bytes, batch_bytes, codec in (
        (1024, 16 * 1024, Compression.NONE),
        (1024, 1100, Compression.NONE),
        (1024, 16 * 1024, Compression.LZ4),
        (60, 16 * 1024, Compression.NONE),
        (60, 1024, Compression.NONE),
        (60, 16 * 1024, Compression.LZ4),
    ):
        runs = runs_of(value_bytes, batch_bytes, codec, size_bytes)
        size_mib = sum(len(data) for data, _ in runs) / MIB
        records = sum(number for _, number in runs)
        with tempfile.TemporaryDirectory() as root:
            merging, copying = asyncio.run(merge_and_copy(runs, Path(root)))
        batches = finished(runs)
        compacting = least(lambda batches=batches: compact(batches))
        print(
            f"{value_bytes:5}  {batch_bytes:5}  {codec.name:5}  {size_mib / merging:10.0f}"
            f"  {size_mib / copying:9.0f}  {copying / merging:5.2f}"
            f"  {size_mib / compacting:12.0f}  {records / compacting / 1e6:11.2f}"
        )


if __name__ == "__main__":
    main()
