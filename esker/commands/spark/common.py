"""What every `esker spark` command shares: how it ends, how it shows that it lives.

A job that cannot go on says one sentence and ends with a code that says whose turn it is; 1 and 6
are not failures but findings. What is printed while it works goes to stderr, to a terminal only.

Source: docs/design/pipeline.md#exit-codes.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, NoReturn

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
    """Who works: this process, or Spark."""

    LOCAL = "local"
    SPARK = "spark"


class EngineOrAuto(StrEnum):
    """The same, or whichever is done sooner; what comes out is the same."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@contextmanager
def bar(what: str, total: int | None) -> Iterator[Step]:
    """A bar on a terminal, nothing elsewhere; gives what moves it on by so many.

    Args:  total: None where nobody knows: it moves, and does not fill.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda n: progress.advance(task, n)


def reason(error: BaseException) -> str:
    """What went wrong, in words, and what helps; of a file no error number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    from spark_jobs.readers.archive_layout import DamagedArchiveError

    if isinstance(error, DamagedArchiveError):
        return f"the archive is damaged: {error}; `esker spark archive --verify` tells all of it"
    if isinstance(error, DamagedFileError):
        return f"{error}; another node has it whole: name its --log-dir, or ask the quorum"
    return str(error)


def to_apply(job: str, plan: Path, controllers: str | None) -> str:
    """The command that applies a plan; where only files were read, nobody knows a controller."""
    at = "HOST:PORT" if controllers is None else shlex.quote(controllers)
    return f"esker spark {job} apply {shlex.quote(str(plan))} --bootstrap-controller {at}"


def all_answered(journal: Path) -> str:
    """Said of a plan that is applied once more: no cluster was asked, were it even another one."""
    return f"  Nothing was asked now: {journal} has all answers"


def stop(message: str, code: int) -> NoReturn:
    """End with this code, and say why."""
    typer.echo(f"esker: {message}", err=True)
    raise typer.Exit(code)


def for_a_file(path: Path) -> None:
    """End, before any work, if a file cannot be written under this name."""
    if path.is_dir():
        stop(f"{path} is a directory: name a file in it", USAGE)
    if not path.parent.is_dir():
        stop(f"{path} cannot be written: there is no directory {path.parent}", USAGE)


def for_a_directory(path: Path) -> None:
    """The same of a directory, which need not be there yet."""
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        stop(f"{there} is a file: name a directory", USAGE)


def not_installed(error: ModuleNotFoundError) -> NoReturn:
    """End for what a job imports and this installation has not got."""
    name = error.name or ""
    missing = "PySpark" if name.startswith("pyspark") else name
    stop(f"{missing} is not installed: pip install 'esker[spark]'", ENVIRONMENT)
