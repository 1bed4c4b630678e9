"""How fast are record batches decoded to Arrow, on one core?

    python -m bench.bench_decoder [--tiny]

M records/s of CPU time, with checksums, decompression and all columns of Spark's Kafka source, for
records of 100 B and 1 KiB in batches as a busy producer makes them, and for records of 100 B with
three in a batch. Values are half random text; keys have 8 bytes. Beside it aiokafka's compiled
parser, which gives one Python object for each record; its records become the same Arrow columns.

Everything runs in one process, taking turns; the least CPU time of the rounds. Musts, in M
records/s: 100 B 1.5; 1 KiB 0.7; three a batch 0.5, and with lz4 0.25.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa
from aiokafka.record._crecords import default_records

from records.batch_writer import build_batch
from records.compression import Compression
from spark_jobs.topics.decoder import COLUMNS, TYPES, RunDecoder, StoredRun, schema_of

SEED: Final = 11
ROUNDS: Final = 5
RUN_BYTES: Final = 8 * 1024 * 1024  # decoded at once, as a task reads them
NOW_MS: Final = 1_790_000_000_000
SCHEMA: Final = schema_of(COLUMNS)
PEER_CODECS: Final = (Compression.NONE, Compression.GZIP)  # others need more packages there


class Load(NamedTuple):
    """Records of one size, and how many of them stand in a batch."""

    name: str
    value_bytes: int
    batch_records: int
    must: dict[Compression, float]  # M records/s


LOADS: Final = (
    Load("100 B, 160 a batch", 100, 160, {Compression.NONE: 1.5, Compression.LZ4: 1.5}),
    Load("1 KiB, 64 a batch", 1024, 64, {Compression.NONE: 0.7, Compression.LZ4: 0.7}),
    Load("100 B, 3 a batch", 100, 3, {Compression.NONE: 0.5, Compression.LZ4: 0.25}),
)
CODECS: Final = (Compression.NONE, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY)


def make_run(load: Load, codec: Compression, run_bytes: int) -> StoredRun:
    """Return a run of a WAL object whose records have about `run_bytes` before compression."""
    random_ = random.Random(SEED)
    text = random_.randbytes(1 << 16).hex().encode()
    batches: list[bytes] = []
    offset = 0
    while offset * load.value_bytes < run_bytes:
        records: list[tuple[bytes, bytes, int, tuple[()]]] = []
        for _ in range(load.batch_records):
            size = load.value_bytes + random_.randint(-load.value_bytes // 5, load.value_bytes // 5)
            at = random_.randrange(len(text) - 2 * load.value_bytes)
            value = text[at : at + size // 2] + b"," * (size - size // 2)
            records.append((random_.randbytes(8), value, NOW_MS + random_.randrange(2000), ()))
        batches.append(
            bytes(build_batch(records, base_offset=0, leader_epoch=-1, compression=codec))
        )
        offset += load.batch_records
    data = b"".join(batches)
    return StoredRun("orders", 0, data, 0, offset, False, None, 0, offset, "a benchmark's run")


def decode(run: StoredRun) -> int:
    """Decode a run with our decoder; return the number of rows."""
    return sum(rows.num_rows for rows in RunDecoder(SCHEMA).decode([run]))


def decode_by_aiokafka(run: StoredRun) -> int:
    """Decode a run with aiokafka's compiled parser into the same columns; return the rows."""
    keys: list[Any] = []
    values: list[Any] = []
    offsets: list[int] = []
    times: list[int] = []
    data, position = memoryview(run.data), 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12])
        batch = default_records.DefaultRecordBatch(bytes(data[position : position + size]))
        if not batch.validate_crc():
            raise ValueError("checksum")
        base = len(offsets)
        for record in batch:
            keys.append(record.key)
            values.append(record.value)
            offsets.append(base + record.offset)
            times.append(record.timestamp)
        position += size
    count = len(keys)
    columns = (
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([run.topic] * count, pa.string()),
        pa.array([0] * count, pa.int32()),
        pa.array(offsets),
        pa.array(times, pa.timestamp("ms", "UTC")).cast(TYPES["timestamp"]),
        pa.array([0] * count, pa.int32()),
    )
    return int(pa.RecordBatch.from_arrays(list(columns), schema=SCHEMA).num_rows)


def million_per_second(work: Callable[[StoredRun], int], run: StoredRun, rounds: int) -> float:
    """Return how many M records are decoded in a second of CPU time, in the best of the rounds."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        rows = work(run)
        best = min(best, time.process_time() - begin)
        assert rows == run.end_offset, f"{rows} rows of {run.end_offset}"
    return run.end_offset / best / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a few of each, to see that it runs")
    tiny = parser.parse_args().tiny
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores")
    print(f"{'':22}{'codec':8}{'ours':>8}{'aiokafka':>10}   must")
    missed = False
    for load in LOADS:
        for codec in CODECS:
            run = make_run(load, codec, 20_000 if tiny else RUN_BYTES)
            ours = million_per_second(decode, run, 1 if tiny else ROUNDS)
            peer = "-"
            if codec in PEER_CODECS:
                peer = f"{million_per_second(decode_by_aiokafka, run, 1 if tiny else 2):.2f}"
            must = load.must.get(codec)
            note = "" if must is None else f"{must:.2f}"
            if must is not None and ours < must and not tiny:
                missed, note = True, f"{note} MISSED"
            print(f"{load.name:22}{codec.name.lower():8}{ours:8.2f}{peer:>10}   {note}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
