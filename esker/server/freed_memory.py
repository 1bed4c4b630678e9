"""Lets a broker's process keep freed memory for its next large buffers.

A broker reads and writes objects of megabytes all the time. The C library returns a freed buffer of
that size to the kernel, and the next one costs a page fault for every 4 KiB again: more CPU than
the copy into it. So buffers of up to `LARGEST_KEPT_BYTES` come from one heap that all threads
share, and what is freed in it is used again.

The price is memory: freed buffers between others stay with the process, also after a burst. With a
cache of 256 MiB and buffers of 64 KiB to 16 MiB it took 576 to 634 MB instead of 426 to 456. An
operator who wants the C library's own behaviour sets one of `SETTINGS` in the environment; then
nothing is changed. Nor is it under musl, which has no such settings.

Source: mallopt(3); docs/performance-notes.md#work-per-byte-and-per-commit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Freed memory at the end of the heap that the process keeps. In front of that, all is kept."""

LARGEST_KEPT_BYTES: Final = 32 * 1024 * 1024
"""A larger buffer is mapped by itself, and unmapped when it is freed: glibc's upper limit."""

SETTINGS: Final = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Environment variables with which an operator tunes glibc's memory."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Change the C library's settings, before threads start; return whether they were changed.

    They are not if `environment` tunes memory, or if the C library has no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in environment for name in SETTINGS):
        return False
    options = (  # the first one is refused where the limit is lower: on 32 bits
        (_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_ARENA_MAX, 1),
    )
    return all(mallopt(name, value) == 1 for name, value in options)
