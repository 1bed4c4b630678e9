"""Lets a broker's process keep freed memory for its next large buffers.

A broker reads and writes objects of megabytes all the time. The C library returns a freed buffer of
that size to the kernel, and the next one costs a page fault for every 4 KiB again: more CPU than
the copy into it. So the process keeps up to `KEPT_BYTES` of freed memory, in one arena that all
threads share. Under musl, which has no such settings, nothing is changed.

Source: mallopt(3), environ(7); docs/performance-notes.md.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Freed memory at the end of the heap that the process keeps."""

LARGEST_KEPT_BYTES: Final = 32 * 1024 * 1024
"""A larger buffer is mapped by itself, and unmapped when it is freed: glibc's upper limit."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_freed_memory() -> bool:
    """Change the C library's settings; return whether it has them. Call before threads start."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
    )
    return all(mallopt(name, value) == 1 for name, value in options)
