"""What a supervisor tells other processes of its broker processes: a file beside its lock.

    write_status(host.log_dir, children)
    status = read_status(host.log_dir)      # None: no supervisor runs

The file is replaced as a whole, so a reader sees an old or a new one. It outlives a supervisor that
was killed; a reader asks for the supervisor's lock first, so that it believes no such file.

Source: docs/design/processes.md#one-child-restarts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

SUPERVISOR_LOCK: Final = ".supervisor.lock"
STATUS_FILE: Final = ".supervisor.json"


class BrokerProcess(NamedTuple):
    """One broker process, as its supervisor knows it."""

    state: str  # `starting`, `ready`, `waiting`, `stopping` or `stopped`
    starts: int  # how often it was started, the first time included
    pid: int | None  # None while no process runs


def write_status(log_dir: Path, processes: Mapping[int, BrokerProcess]) -> None:
    """Replace the status file by the processes by broker id. Raises OSError."""
    temporary = log_dir / f"{STATUS_FILE}.tmp"
    temporary.write_text(json.dumps(processes) + "\n")
    temporary.replace(log_dir / STATUS_FILE)


def read_status(log_dir: Path) -> dict[int, BrokerProcess] | None:
    """Return the broker processes by id, or None if no supervisor runs there.

    Raises:  OSError; ValueError for a file that no supervisor wrote.
    """
    if not _is_supervised(log_dir):
        return None
    try:
        text = (log_dir / STATUS_FILE).read_text()
    except FileNotFoundError:  # it begins
        return {}
    return {int(broker): BrokerProcess(*fields) for broker, fields in json.loads(text).items()}


def _is_supervised(log_dir: Path) -> bool:
    """Return whether another process holds the supervisor's lock."""
    try:
        lock = os.open(log_dir / SUPERVISOR_LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
