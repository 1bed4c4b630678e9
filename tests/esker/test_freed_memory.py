"""A broker's process keeps freed memory: large buffers cost few page faults."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Final

import pytest

from esker.server.freed_memory import keep_freed_memory

BUFFERS: Final = 200
PROGRAM: Final = f"""
import resource, sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from random import Random
from esker.server.freed_memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory({{}})
source, random, filled, cache = memoryview(bytes(1 << 24)), Random(1), 0, deque()
with ThreadPoolExecutor(8) as threads:  # as objects are read into a cache
    for _ in range({BUFFERS}):
        size = random.randrange(1 << 20, 1 << 24)
        cache.append(threads.submit(source[:size].tobytes))
        filled += size
        if len(cache) > 8:
            cache.popleft().result()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt / (filled / 4096))
"""


def faults(how: str) -> float:
    """Return a process's page faults for each page that it filled in its buffers."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def test_large_buffers_of_a_broker_reuse_memory_that_was_freed_before() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("the C library has no mallopt")
    assert faults("keep") < faults("not") / 2


def test_an_operators_own_settings_of_memory_are_left_alone() -> None:
    assert not keep_freed_memory({"MALLOC_ARENA_MAX": "2"})
    assert not keep_freed_memory({"GLIBC_TUNABLES": ""})
