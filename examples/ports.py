"""Ports of the loopback for processes that examples and tests start: no two ever get the same.

Between here and a process that binds a port a second or more may pass. A port that the system
picked (a bind to 0) may meanwhile be the near end of anybody's connection; one that was looked for
may be found by a neighbour. So ports lie below the range that connections get, and each Python
process that asks owns a block of them, by a lock on a file that goes when the process does: workers
of pytest, two runs of it, a demo that a test starts.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
FIRST: Final = 15_000
BLOCK: Final = 400
BLOCKS: Final = 42  # up to 31,800: connections get 32,768 and up, where nobody changed that


class NoPortError(Exception):
    """Everything is taken."""


class _Ports:
    """The block of this process, walked through round and round."""

    def __init__(self) -> None:
        self._owner = 0  # the process that has the lock: a fork has none
        self._lock: FileIO | None = None
        self._lowest = 0
        self._next = 0

    def take(self, distances: Sequence[int]) -> int:
        """Return the next port that is free together with the ports at these distances above it."""
        self._own()
        span = 1 + max(distances)
        for _ in range(BLOCK):
            if self._next + span > BLOCK:
                self._next = 0
            port = self._lowest + self._next
            self._next += 1
            if all(_is_free(port + distance) for distance in distances):
                self._next += span - 1
                return port
        raise NoPortError(f"no free port among {BLOCK} from {self._lowest} on")

    def _own(self) -> None:
        if self._owner == os.getpid():
            return
        directory = Path(tempfile.gettempdir()) / f"esker-test-ports-{os.getuid()}"
        directory.mkdir(exist_ok=True)
        for number in range(BLOCKS):
            lock = (directory / str(FIRST + number * BLOCK)).open("wb", buffering=0)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            self._lock = lock
            break
        else:
            raise NoPortError(f"{BLOCKS} processes have all blocks of ports: {directory}")
        self._owner = os.getpid()
        self._lowest = FIRST + number * BLOCK
        self._next = 0


def _is_free(port: int) -> bool:
    """Return whether the port can be bound; a port of a just closed connection cannot."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


_ports = _Ports()


def free_port() -> int:
    """Return a free port that no other process gets from this module.

    Raises:  NoPortError.
    """
    return _ports.take((0,))


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports."""
    return [free_port() for _ in range(count)]


def free_row(distances: Sequence[int]) -> int:
    """Return a free port above which the ports at these distances are free, too."""
    return _ports.take(distances)
