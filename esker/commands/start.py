"""`esker start`: run one node in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Annotated, Final

import typer

from coordinator.batch.log_records import UnreadableRecordError
from coordinator.controller.registration import RegistrationRefusedError
from coordinator.features import UnsupportedLevelError
from diskless.broker import NotStartedError
from diskless.stores import StorageError as StoreError
from diskless.stores.interface import StoreSettingError
from esker.commands.storage import load_or_exit
from esker.server.fatal_errors import describe_fatal_error
from esker.server.process import run_until_signalled
from esker.server.storage import StorageError
from esker.settings.addresses import CONTROLLER
from esker.settings.errors import ConfigError
from raft.driver.errors import NodeError
from raft.net.logs import begin_logging
from raft.net.runner import run
from raft.segments.errors import StorageError as DiskError
from records.errors import RecordError

app = typer.Typer(add_completion=False)

ENDS: Final = (
    ConfigError,
    StorageError,
    NodeError,
    DiskError,
    RecordError,
    NotStartedError,
    RegistrationRefusedError,
    StoreError,
    StoreSettingError,
    UnreadableRecordError,
    UnsupportedLevelError,
    sqlite3.Error,
    OSError,
)
"""Errors that end a node with one line instead of a traceback."""

EXAMPLE = "Example: esker start node1.properties"


@app.command(name="start", epilog=EXAMPLE, no_args_is_help=True)
def start(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Path of the node's properties file.")
    ],
) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C.

    The file's process.roles are the node's roles. A broker prints one line with its address as soon
    as the cluster sends clients to it. The log, one `key=value` line for each change of state, is
    written to standard error; esker.log.format=json makes each line an object.
    """
    config = load_or_exit(file)
    begin_logging(config.values["esker.log.format"], config.values["esker.log.level"])
    for warning in config.warnings:
        logging.getLogger("esker").warning("%s", warning)
    try:
        run(run_until_signalled(config))
    except ENDS as error:
        words = describe_fatal_error(error, config.log_dir, votes=CONTROLLER in config.roles)
        typer.echo(f"esker: {words}", err=True)
        raise typer.Exit(1) from None
