"""Runs a program of nodes on an event loop, and turns what ends it into one line.

words = run_to_end(run_until_signalled(settings), settings.log_dir, votes=True)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from coordinator.batch.log_records import UnreadableRecordError
from coordinator.controller.registration import RegistrationRefusedError
from coordinator.features import UnsupportedLevelError
from diskless.broker import NotStartedError
from diskless.lineage import SupersededError
from diskless.stores import StorageError as StoreError
from diskless.stores.interface import StoreSettingError
from esker.server.fatal_errors import describe_fatal_error
from esker.server.storage import StorageError
from esker.server.supervisor import HostError
from esker.settings.errors import ConfigError
from raft.driver.errors import NodeError
from raft.net.runner import run
from raft.segments.errors import StorageError as DiskError
from records.errors import RecordError

ENDS: Final = (
    ConfigError,
    HostError,
    StorageError,
    NodeError,
    DiskError,
    RecordError,
    NotStartedError,
    SupersededError,
    RegistrationRefusedError,
    StoreError,
    StoreSettingError,
    UnreadableRecordError,
    UnsupportedLevelError,
    sqlite3.Error,
    OSError,
)
"""Errors that end a node with one line instead of a traceback."""


def run_to_end(main: Coroutine[Any, Any, None], log_dir: Path, *, votes: bool) -> str | None:
    """Run `main` to its end; return None, or one line for the error that ended it.

    Args:  votes: is `log_dir` a voter's?
    """
    try:
        run(main)
    except ENDS as error:
        return describe_fatal_error(error, log_dir, votes=votes)
    return None
