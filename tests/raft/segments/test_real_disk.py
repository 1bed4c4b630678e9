"""What a simulated disk cannot show: the operating system's own errors, and a process that dies."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys

import pytest

from raft.segments import DiskFullError, Log, LogConfig, RealFileSystem
from tests.benches import ROOT, printed
from tests.raft.segments.conftest import batch, fill, values_of

CONFIG = LogConfig(segment_bytes=100_000, index_interval_bytes=300)


def test_the_log_removes_the_bytes_of_an_append_that_the_operating_system_cut_short(tmp_path):
    """RLIMIT_FSIZE lets a file grow to a size and no further: part of a write fits, as on a full
    disk, and the rest is refused."""
    log = Log.create(RealFileSystem(), tmp_path / "log", CONFIG)
    fill(log, 10)
    log.flush()
    size = log.size_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        with pytest.raises(DiskFullError):
            log.append(batch(10))
        with pytest.raises(DiskFullError):
            log.append(batch(10) + batch(11) + batch(12))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "log" / "00000000000000000000.log").stat().st_size == size
    assert values_of(log, 0) == list(range(10)), "the log stays readable"
    fill(log, 1)
    log.close()
    again = Log.open(RealFileSystem(), tmp_path / "log", CONFIG)
    assert again.log_end_offset == 11
    again.close()


def test_each_flush_calls_the_operating_systems_fdatasync(tmp_path, monkeypatch):
    """Only a power failure would show that it was not: the calls are counted instead."""
    flushed: set[int] = set()

    def note(fd: int, *_: int) -> None:
        flushed.add(os.fstat(fd).st_ino)

    if sys.platform == "darwin":
        monkeypatch.setattr(fcntl, "fcntl", note)
    else:
        monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    directory = tmp_path / "log"
    log = Log.create(RealFileSystem(), directory, CONFIG)
    assert directory.stat().st_ino in flushed, "the names in it are durable"
    assert tmp_path.stat().st_ino in flushed, "and its own"
    fill(log, 10)
    flushed.clear()
    log.flush()
    assert (directory / "00000000000000000000.log").stat().st_ino in flushed
    log.close()


APPENDER = """
import sys
from pathlib import Path
from raft.segments import Log, LogConfig, RealFileSystem
from tests.raft.segments.conftest import fill

config = LogConfig(segment_bytes=20_000, index_interval_bytes=300, recovery_point_interval_ms=10)
log = Log.open(RealFileSystem(), Path(sys.argv[1]), config)
while True:
    fill(log, 7, size=500)
    print(log.flush(), log.recovery_point, flush=True)
"""


def test_flushed_log_records_survive_the_kill_of_the_writing_process(tmp_path):
    directory = tmp_path / "log"
    Log.create(RealFileSystem(), directory, CONFIG).close()
    for lines in (1, 40, 5):
        process = subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(directory)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        for _ in range(lines):
            flushed, recovery_point = map(int, process.stdout.readline().split())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        log = Log.open(RealFileSystem(), directory, CONFIG)
        assert log.log_end_offset >= flushed >= recovery_point
        found = 0
        while records := log.read(found, max_bytes=1 << 16):
            assert records.base_offset == found
            found = records.end_offset
        assert found == log.log_end_offset
        log.close()


@pytest.mark.parametrize("bench", ["bench_append", "bench_recovery"])
def test_the_log_benchmarks_run_without_errors(bench, tmp_path):
    shown = printed(bench, "--tiny", cwd=tmp_path)
    assert "ratio" in shown or "together" in shown
    assert not list(tmp_path.iterdir()), "it cleans up"
