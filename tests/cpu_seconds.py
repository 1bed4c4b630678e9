"""Prints which tests take how much processor time, with that of all processes they start.

A plugin: `pytest -n 0 -p tests.cpu_seconds tests/ROOM`. Wall time says how busy the machine is;
processor time hardly depends on it. Fixtures count for the test that sets them up or tears them
down, and what a node has used counts for the test during which it ran.

Time of a process that lost its parent is missing. Source: proc_pid_stat(5), proc_pid_task(5).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

FILES_PRINTED: Final = 40
TESTS_PRINTED: Final = 40
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")

_used: dict[str, float] = {}
_collected_s: list[float] = []


def cpu_seconds() -> float:
    """Processor time of this process and its descendants, of the ended ones as well."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + _running_below()


def _running_below() -> float:
    waiting, ticks = _children(os.getpid()), 0
    while waiting:
        process = waiting.pop()
        with suppress(OSError):  # it has ended
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
            waiting += _children(process)
    return ticks * TICK_S


def _children(process: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, thread.read_text().split())
    return found


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    try:
        return (yield)
    finally:
        _collected_s.append(cpu_seconds())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        _used[item.nodeid] = cpu_seconds() - before


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: defaultdict[str, list[float]] = defaultdict(list)
    for test, seconds in _used.items():
        files[test.partition("::")[0]].append(seconds)
    write = terminalreporter.write_line
    write(f"Processor seconds: {sum(_collected_s):.1f} until all tests were collected, "
          f"{sum(_used.values()):.1f} in tests. By file, with the number of tests:")  # fmt: skip
    for file, used in sorted(files.items(), key=lambda pair: -sum(pair[1]))[:FILES_PRINTED]:
        write(f"{sum(used):8.2f} {len(used):5} {file}")
    write("By test:")
    for test, seconds in sorted(_used.items(), key=lambda pair: -pair[1])[:TESTS_PRINTED]:
        write(f"{seconds:8.2f} {test}")
