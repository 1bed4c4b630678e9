"""What does the log cost over writing and flushing the same bytes?

    python -m bench.bench_append [--tiny]

Raw: `write` and `fdatasync` of each group to one growing file. Log: `Log.append` of the group's
batches (every header and CRC-32C checked, indexed) and one `Log.flush`. "Together" appends a group
in one call, as a follower does with what it fetched and a leader with what piled up during a flush;
"singly" calls append for each batch. All write the same batches, built beforehand, to the same
directory, taking turns; a ratio is the median over rounds of raw time / log time (1 = as fast as
the disk; together must be at least 0.8).
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

from raft.segments import Log, LogConfig, RealFileSystem
from records.batch_writer import build_value_batch

ROUNDS: Final = 9
GROUPS: Final = 400  # per round
SHAPES: Final = (  # batches in a group, values in a batch, bytes in a value
    (1, 64, 1015),
    (4, 16, 1015),
    (16, 4, 1010),
    (64, 1, 950),
    (1, 512, 120),
)
SEGMENT_BYTES: Final = 16 * 1024 * 1024  # so that rolling is part of what is measured


def build(shape: tuple[int, int, int], groups: int) -> list[list[bytes]]:
    batches_per_group, values, size = shape
    offset, built = 0, []
    for _ in range(groups):
        group = []
        for _ in range(batches_per_group):
            group.append(
                bytes(
                    build_value_batch(
                        [bytes(size)] * values, base_offset=offset, leader_epoch=1, timestamp=offset
                    )
                )
            )
            offset += values
        built.append(group)
    return built


def raw(directory: Path, groups: list[list[bytes]]) -> float:
    fd = os.open(directory / "raw", os.O_RDWR | os.O_CREAT, 0o644)
    joined = [b"".join(group) for group in groups]
    started = time.perf_counter()
    for data in joined:
        os.write(fd, data)
        os.fdatasync(fd)
    elapsed = time.perf_counter() - started
    os.close(fd)
    return elapsed


def ours(directory: Path, groups: list[list[bytes]], *, together: bool) -> float:
    config = LogConfig(segment_bytes=SEGMENT_BYTES)
    log = Log.create(RealFileSystem(), directory / f"log-{together}", config)
    appends = [[b"".join(group)] for group in groups] if together else groups
    started = time.perf_counter()
    for group in appends:
        for data in group:
            log.append(data)
        log.flush()
    elapsed = time.perf_counter() - started
    log.close()
    return elapsed


def one_round(groups: list[list[bytes]], number: int) -> tuple[float, float, float]:
    """Return the times of raw, joint and single appends; `number` rotates their order."""
    directory = Path(tempfile.mkdtemp(prefix="bench-append-", dir=Path.cwd()))
    runs = [
        lambda: raw(directory, groups),
        lambda: ours(directory, groups, together=True),
        lambda: ours(directory, groups, together=False),
    ]
    times = [0.0, 0.0, 0.0]
    try:
        for i in range(3):
            times[(i + number) % 3] = runs[(i + number) % 3]()
    finally:
        shutil.rmtree(directory)
    return times[0], times[1], times[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a few groups, to see that it runs")
    tiny = parser.parse_args().tiny
    rounds, groups = (1, 5) if tiny else (ROUNDS, GROUPS)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores")
    print(f"{'group':>14} {'raw MB/s':>9}  {'together':>8} (min..max)   {'singly':>7} (min..max)")
    for shape in SHAPES:
        built = build(shape, groups)
        size = sum(len(batch) for group in built for batch in group)
        times = [one_round(built, number) for number in range(rounds)]
        print(
            f"{f'{shape[0]} x {size // groups // shape[0]} B':>14} "
            f"{size / statistics.median(raw_time for raw_time, _, _ in times) / 1e6:9.1f}  "
            f"{spread([raw_time / log_time for raw_time, log_time, _ in times])}  "
            f"{spread([raw_time / log_time for raw_time, _, log_time in times])}"
        )


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):8.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


if __name__ == "__main__":
    main()
