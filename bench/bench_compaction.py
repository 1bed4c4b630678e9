"""Speed of merging and compacting batches, against a copy of the same bytes.

    python -m bench.bench_compaction

Merging: runs in the form of WAL objects are verified, stamped and joined, as the rewriter does
after a read; the copy has a checksum, too. Compaction: the newest offset of each key is learnt, and
the batches are cleaned by it; each key comes twice, so half of the records go. CPU time of one
core, the least of the rounds.
"""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from random import Random
from typing import Final

from crc32c import crc32c

from diskless.compaction.rewriter import _blocks
from records.batch import Batch
from records.batch_writer import build_batch
from records.cleaning import Round, clean_block, newest_by_offset, note_keys
from records.compression import Compression
from records.final_batches import RunBuilder, finish_run
from records.offset_map import OffsetMap

SEED: Final = 16
ROUNDS: Final = 3
BYTES: Final = 32 * 1024 * 1024
RUN_BYTES: Final = 1024 * 1024
MIB: Final = 1024 * 1024
RULES: Final = Round(now_ms=1, delete_retention_ms=1, last_sequences={}, salt=bytes(16))


def least(work: Callable[[], object]) -> float:
    """Return the least CPU time of some rounds, in seconds."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def runs_of(value_bytes: int, batch_bytes: int, codec: Compression) -> list[tuple[bytes, int]]:
    """Return runs of about `RUN_BYTES`, and how many records each has; each key comes twice."""
    random = Random(SEED)
    count = max(1, BYTES // (value_bytes + 40))
    keys = [b"key-%012d" % (number // 2) for number in range(count)]
    random.shuffle(keys)
    each = max(1, batch_bytes // (value_bytes + 40))
    found, run, size_bytes, records = [], [], 0, 0
    for first in range(0, count, each):
        rows = [(key, random.randbytes(value_bytes), 5, ()) for key in keys[first : first + each]]
        batch = build_batch(rows, base_offset=0, leader_epoch=-1, compression=codec)
        run.append(batch)
        size_bytes += len(batch)
        records += len(rows)
        if size_bytes >= RUN_BYTES or first + each >= count:
            found.append((b"".join(run), records))
            run, size_bytes, records = [], 0, 0
    return found


def finished(runs: list[tuple[bytes, int]]) -> list[list[Batch]]:
    """Return the batches of runs in final form."""
    base, batches = 0, []
    for data, count in runs:
        batches.append(
            finish_run(data, base_offset=base, end_offset=base + count, append_time=None)
        )
        base += count
    return batches


def merge(runs: list[tuple[bytes, int]]) -> None:
    builder = RunBuilder(0)
    for batches in finished(runs):
        for batch in batches:
            for run in builder.add(batch, 0):
                crc32c(b"".join(run.parts))  # the object's footer


def copy(runs: list[tuple[bytes, int]]) -> None:
    for data, _ in runs:
        crc32c(bytearray(data))


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


def main() -> None:
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
        runs = runs_of(value_bytes, batch_bytes, codec)
        size_mib = sum(len(data) for data, _ in runs) / MIB
        records = sum(count for _, count in runs)
        merging = least(lambda runs=runs: merge(runs))
        copying = least(lambda runs=runs: copy(runs))
        batches = finished(runs)
        compacting = least(lambda batches=batches: compact(batches))
        print(
            f"{value_bytes:5}  {batch_bytes:5}  {codec.name:5}  {size_mib / merging:10.0f}"
            f"  {size_mib / copying:9.0f}  {copying / merging:5.2f}"
            f"  {size_mib / compacting:12.0f}  {records / compacting / 1e6:11.2f}"
        )


if __name__ == "__main__":
    main()
