"""Shared parts of the `esker spark` commands: exit codes, progress bars, error sentences.

A job that cannot continue prints one sentence and exits with a code for the cause; 1 and 6 are
findings, not failures. Progress goes to stderr, and only to a terminal.

Source: docs/design/pipeline.md#exit-codes.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress

from snapshot.errors import DamagedFileError

FINDINGS: Final = 1
USAGE: Final = 2
ENVIRONMENT: Final = 3
STALE: Final = 4
PARTLY: Final = 5
DATA_LOSS: Final = 6
INTERRUPTED: Final = 130

Step = Callable[[int], None]


class EngineName(StrEnum):
    """The place a job runs in: this process, or Spark."""

    LOCAL = "local"
    SPARK = "spark"


class EngineOrAuto(StrEnum):
    """The place a job runs in; auto chooses the faster one, with the same result."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@contextmanager
def bar(what: str, total: int | None) -> Iterator[Step]:
    """Show a progress bar on a terminal, and yield the function that advances the bar.

    Args:  total: number of steps; None if unknown: then the bar moves but does not fill.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda n: progress.advance(task, n)


def reason(error: BaseException) -> str:
    """Describe an error in one sentence, with the remedy if one is known."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    from spark_jobs.readers.archive_layout import DamagedArchiveError

    if isinstance(error, DamagedArchiveError):
        return f"the archive is damaged: {error}; `esker spark archive --verify` lists all damage"
    if isinstance(error, DamagedFileError):
        return f"{error}; use another node's --log-dir, or --bootstrap-controller HOST:PORT"
    return str(error)


def apply_command(job: str, plan: Path, controllers: str | None) -> str:
    """Return the command line that applies a plan, with a placeholder for unknown controllers."""
    address = "HOST:PORT" if controllers is None else shlex.quote(controllers)
    return f"esker spark {job} apply {shlex.quote(str(plan))} --bootstrap-controller {address}"


def note_completed_plan(journal: Path) -> str:
    """Return the printed line that says why no request of a finished plan was sent."""
    return f"  No request was sent: {journal} has all answers"


def print_result(
    document: Callable[[], Mapping[str, Any]], lines: Callable[[], Iterable[str]], *, as_json: bool
) -> None:
    """Print a plan or a result: one JSON object for programs, or lines for people."""
    typer.echo(json.dumps(document()) if as_json else "\n".join(lines()))


def stop(message: str, code: int) -> NoReturn:
    """Print a message on standard error, and exit with the exit code `code`."""
    typer.echo(f"esker: {message}", err=True)
    raise typer.Exit(code)


def require_writable_file(path: Path) -> None:
    """Exit with a usage error, before any work, if this file is not writable."""
    if path.is_dir():
        stop(f"{path} is a directory: name a file in it", USAGE)
    if not path.parent.is_dir():
        stop(f"{path} cannot be written: there is no directory {path.parent}", USAGE)


def require_directory(path: Path) -> None:
    """Exit with a usage error, before any work, if this path cannot be a directory."""
    there = next(candidate for candidate in (path, *path.parents) if candidate.exists())
    if not there.is_dir():
        stop(f"{there} is a file: name a directory", USAGE)


def stop_for_missing_package(error: ModuleNotFoundError) -> NoReturn:
    """Exit with the name of a missing package."""
    name = error.name or ""
    missing = "PySpark" if name.startswith("pyspark") else name
    stop(f"{missing} is not installed: pip install 'esker[spark]'", ENVIRONMENT)
