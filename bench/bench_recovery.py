"""How fast is a log checked after a crash, against reading the file and its CRC-32C alone?

    python -m bench.bench_recovery [--tiny]

Both work on the same segment, already in the page cache. Floor: read it in 1 MiB pieces and
checksum each piece. Ours: `Segment.rebuild`, which checks every header, offset, epoch and checksum,
and makes both indexes. They take turns; a line gives the median of the rounds' ratios floor time /
our time (must be at least 0.5). Small batches cost Python steps, not bytes: the lines show how
much, and from where on.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from crc32c import crc32c

from raft.segments.files import Mode, RealFileSystem
from raft.segments.segment import Segment, segment_name
from records.batch_writer import build_value_batch, stamp
from records.types import Offset

ROUNDS: Final = 9
SEGMENT_BYTES: Final = 128 * 1024 * 1024
BATCH_BYTES: Final = (1024 * 1024, 64 * 1024, 16 * 1024, 4 * 1024, 1024)
READ_BYTES: Final = 1024 * 1024


def write_segment(directory: Path, batch_bytes: int, segment_bytes: int) -> int:
    batch = build_value_batch([bytes(batch_bytes - 70)], base_offset=0, leader_epoch=1, timestamp=1)
    count = max(1, segment_bytes // len(batch))
    with (directory / segment_name(0)).open("wb") as file:
        for offset in range(count):
            stamp(batch, base_offset=offset, leader_epoch=1)
            file.write(batch)
    return count * len(batch)


def floor(path: Path) -> float:
    fd = os.open(path, os.O_RDONLY)
    buffer = memoryview(bytearray(READ_BYTES))
    started = time.perf_counter()
    while size := os.readv(fd, [buffer]):
        crc32c(buffer[:size])
    elapsed = time.perf_counter() - started
    os.close(fd)
    return elapsed


def ours(directory: Path, size: int) -> float:
    segment = Segment.open(
        RealFileSystem(), directory, Offset(0), mode=Mode.READ, index_interval_bytes=4096
    )
    started = time.perf_counter()
    result = segment.rebuild()
    elapsed = time.perf_counter() - started
    segment.close()
    assert (segment.size_bytes, result.damage) == (size, None), f"not what was written: {result}"
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a small file, to see that it runs")
    tiny = parser.parse_args().tiny
    rounds, segment_bytes = (1, 1024 * 1024) if tiny else (ROUNDS, SEGMENT_BYTES)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores")
    print(f"{'batch bytes':>12}  {'floor GB/s':>10} {'scan GB/s':>10} {'ratio':>6} (min..max)")
    directory = Path(tempfile.mkdtemp(prefix="bench-recovery-", dir=Path.cwd()))
    try:
        for batch_bytes in BATCH_BYTES:
            size = write_segment(directory, batch_bytes, segment_bytes)
            path = directory / segment_name(0)
            times = [(floor(path), ours(directory, size)) for _ in range(rounds)]
            ratios = [floor_time / our_time for floor_time, our_time in times]
            floor_time, our_time = (statistics.median(c) for c in zip(*times, strict=True))
            print(
                f"{batch_bytes:>12}  {size / floor_time / 1e9:10.2f} {size / our_time / 1e9:10.2f} "
                f"{statistics.median(ratios):6.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
            )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
