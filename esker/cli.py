"""The command line: `esker COMMAND`.

Each command has its own module under `esker.commands`, which is imported only when the command
runs, so that `esker dump-log` does not load the broker's libraries. A module defines `app`, a Typer
application with one command or a group of commands.

Python without assertions is refused: they are part of the design, since stopping beats spreading a
wrong log.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Listed(NamedTuple):
    """A command as `esker --help` lists it: its panel, and the first line of the command's help."""

    panel: str
    summary: str


DATA: Final = "Write and read records"
NAMES: Final = "Topics, groups and settings"
CLUSTER: Final = "The cluster"
RUN: Final = "Run nodes"
INSPECT: Final = "Look into files and objects"
JOBS: Final = "Jobs on the logs"

COMMANDS: Final = {
    "produce": Listed(DATA, "Write each line of standard input or of a file to a topic."),
    "consume": Listed(DATA, "Print the value of each record of a topic as a line, until Ctrl-C."),
    "topics": Listed(
        NAMES, "Create, list, describe, alter and delete the topics of a running cluster."
    ),
    "groups": Listed(NAMES, "List, describe, reset and delete consumer groups."),
    "transactions": Listed(NAMES, "List, describe and abort transactions."),
    "records": Listed(NAMES, "Delete records of topics."),
    "configs": Listed(NAMES, "Print and change the settings of topics and brokers."),
    "chunks": Listed(
        NAMES, "Create and move chunks of partitions: offset ranges with replicas (KIP-1114)."
    ),
    "cluster": Listed(CLUSTER, "Describe a running cluster."),
    "brokers": Listed(CLUSTER, "List and unregister the brokers of a running cluster."),
    "profile": Listed(
        CLUSTER, "List and choose profiles: named clusters for other commands to connect to."
    ),
    "quorum": Listed(
        CLUSTER, "Describe the metadata quorum, or reset the batch coordinators' clocks."
    ),
    "features": Listed(CLUSTER, "Print and change the feature levels of a running cluster."),
    "dev": Listed(
        RUN, "Run three quorum nodes and one or more brokers on this machine, until Ctrl-C."
    ),
    "start": Listed(RUN, "Run one node in the foreground until SIGTERM or Ctrl-C."),
    "restart": Listed(
        RUN,
        "Restart broker processes of a running `esker start`, each after the one before is ready.",
    ),
    "storage": Listed(RUN, "Format and inspect a node's log directory."),
    "backup": Listed(RUN, "List, verify, request and release backups of the quorum's logs."),
    "restore": Listed(RUN, "Make a new cluster of what survived a loss."),
    "dump-log": Listed(
        INSPECT, "Print the contents of log files: batches, records, index entries, election state."
    ),
    "cache": Listed(INSPECT, "Describe a broker's local segments: batches on its own disk."),
    "compaction": Listed(INSPECT, "Describe the unfinished merging and compaction of topics."),
    "diskless": Listed(INSPECT, "Describe diskless topics and the objects that store them."),
    "snapshot": Listed(
        INSPECT, "List, inspect and take the checkpoints of the quorum's logs (KIP-630)."
    ),
    "doctor": Listed(INSPECT, "Check that this machine can run the jobs of `esker spark`."),
    "spark": Listed(
        JOBS,
        "Analyse, audit and archive logs; plan retention, merge objects, keep topics as tables.",
    ),
}
"""All commands, so that `esker --help` imports none; a command's module is `module_of` its name."""

EXAMPLE = "Example: esker dev"

USAGE: Final = 2
INTERRUPTED: Final = 130
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of writing to a file that reading cannot raise."""


class LazyCommands(TyperGroup):
    """Imports a command's module when the command is used, not when it is listed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands.update(dict.fromkeys(COMMANDS))  # type: ignore[arg-type]  # names only
        self._listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (Typer's signature)
        return list(COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._list_only():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        with self._list_only():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _list_only(self) -> Iterator[None]:
        """In a `with` block, let `get_command` return names and summaries but import no module."""
        self._listing = True
        try:
            yield
        finally:
            self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (Typer's signature)
        listed = COMMANDS.get(cmd_name)
        if listed is None:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=listed.summary, rich_help_panel=listed.panel)
        command = typer.main.get_command(_load(cmd_name).app)
        command.name = cmd_name
        return command


def module_of(command: str) -> str:
    """Return the name of the Python module that defines a command's Typer `app`.

    >>> module_of("dump-log")
    'esker.commands.dump_log'
    """
    return f"esker.commands.{command.replace('-', '_')}"


def _load(command: str) -> ModuleType:
    """Import a command's module with garbage collection off, to save a sixth of the import time."""
    gc.disable()
    try:
        return importlib.import_module(module_of(command))
    finally:
        gc.enable()


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXAMPLE,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # imported here: it takes longer than Typer

        typer.echo(f"esker {version('esker')}")
        raise typer.Exit


@app.callback()
def esker(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print Esker's version, then exit.",
        ),
    ] = False,
) -> None:
    """Run Esker, a Kafka-compatible diskless streaming store with a KRaft quorum, in Python."""


def main() -> None:
    """Run the `esker` command line: the entry point of the console script."""
    if not __debug__:
        print(
            "esker: refuses to run with assertions off; start it without -O and PYTHONOPTIMIZE",
            file=sys.stderr,
        )
        raise SystemExit(USAGE)
    _reopen_standard_files()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start a thread for each core
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # print escapes in an ASCII locale
    match sys.argv[1:]:
        case ["start", file] if not file.startswith("-"):
            _start(file)
        case _:
            _run_any()


def _reopen_standard_files() -> None:
    """Open /dev/null for each standard file that was closed before this process began.

    Otherwise a socket would get a standard file's descriptor: uvloop aborts when it closes that
    one, and output for the terminal would be sent to a broker.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _run_any() -> None:
    """Run any command; a full disk or a non-UTF-8 argument ends the command with one error line."""
    try:
        app()
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(f"esker: standard output: {error.strerror}")
    except ValueError:
        for word in sys.argv:
            if not word.isascii() and any("\udc80" <= letter <= "\udcff" for letter in word):
                print(f"esker: {word!a} is not UTF-8", file=sys.stderr)
                sys.exit(USAGE)
        raise


def _start(file: str) -> None:
    """Run `esker start FILE` without Typer's parser, which takes a quarter of the start time."""
    try:
        _load("start").start(Path(file))
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:  # while modules are loaded; a running node handles signals itself
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
