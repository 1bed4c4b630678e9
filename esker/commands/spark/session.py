"""Starts a Spark session for a command, with the same options for every job of `esker spark`.

    def report(master: Master = None, memory: Memory = MEMORY, spark_log: SparkLog = None,
               debug: Debug = False) -> None:
        with spark_session("report", master, memory, spark_log, debug=debug) as spark:
            ...

Spark's output goes to a file; an error is one sentence on the terminal, with the remedy and the
file's name. `--debug` prints the whole error. Ctrl-C ends the command with code 130.

Source: docs/design/pipeline.md#exit-codes.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console

from esker.commands.spark.common import (
    DATA_LOSS,
    ENVIRONMENT,
    INTERRUPTED,
    USAGE,
    stop,
    stop_for_missing_package,
)
from spark_jobs.session.java import cache_directory
from spark_jobs.session.own_directory import make_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY: Final = "1g"
KEPT_LOGS: Final = 10

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="URL of the Spark master, such as spark://HOST:7077; default: Spark runs on this "
        "machine.",
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Heap size of Spark's driver and of each executor, such as 2g; default: 1g.",
    ),
]
SparkLog = Annotated[
    Path | None,
    typer.Option(
        "--spark-log",
        metavar="FILE",
        help="Path of a file for Spark's output; default: a new file in ~/.cache/esker/logs.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Print errors of Spark with stack traces; default: print only the error message.",
    ),
]


@contextmanager
def spark_session(
    app: str,
    master: str | None,
    memory: str,
    spark_log: Path | None,
    *,
    debug: bool = False,
    heavy: bool = False,
) -> Iterator[SparkSession]:
    """Open a Spark session for a `with` block; a Spark error ends the command.

    The job's own errors (of reading, of the store) pass through to the command.

    Args:  heavy: set for jobs in which the JVM itself computes for minutes.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from spark_jobs.session import spark_session as session
        from spark_jobs.session.failures import SessionError, explain, raised_in_worker
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    log_file = spark_log or _new_log(app)
    try:
        with _show_waiting("starting Spark"):
            started = session.start_session(
                master, app=app, memory=memory, log_file=log_file, heavy=heavy
            )
    except SessionError as error:
        code = USAGE if error.usage else ENVIRONMENT
        _fail(str(error), code, error, error.log_file, debug=debug)
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)
    try:
        yield started
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)
    except (PySparkException, Py4JError) as error:
        raised = raised_in_worker(error)
        code = DATA_LOSS if raised is not None and raised[0] == "LostRangeError" else ENVIRONMENT
        _fail(str(explain(error)), code, error, log_file, debug=debug)
    finally:
        session.stop_session(started)


def _fail(
    sentence: str, code: int, error: BaseException, log_file: Path | None, *, debug: bool
) -> NoReturn:
    if debug:
        traceback.print_exception(error)
    if log_file is not None:
        with suppress(OSError), log_file.open("a") as log:
            traceback.print_exception(error, file=log)
        sentence += f" (all of it: {log_file})"
    stop(sentence, code)


def _new_log(app: str) -> Path | None:
    """Create a Spark job's log file and delete the oldest log files; return None on failure."""
    directory = cache_directory() / "logs"
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{app}-{os.getpid()}.log"
    try:
        make_private(directory.parent)
        directory.mkdir(exist_ok=True)
        for old in sorted(directory.glob("*.log"))[: -KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
        (directory / name).touch()
    except OSError:
        return None
    return directory / name


def _show_waiting(what: str) -> Any:
    """Show a spinner during a wait, only on a terminal."""
    return Console(stderr=True).status(what) if sys.stderr.isatty() else nullcontext()
