"""The front door: `esker COMMAND`.

Each command lives in a module of its own under `esker.commands`, imported only when it is asked
for, so that `esker dump-log` does not wait for what a broker needs. A module offers `app`, a Typer
with one command or a group of them.

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
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: Final = {
    "brokers": "esker.commands.brokers",
    "chunks": "esker.commands.chunks",
    "configs": "esker.commands.configs",
    "consume": "esker.commands.consume",
    "dev": "esker.commands.dev",
    "diskless": "esker.commands.diskless",
    "doctor": "esker.commands.doctor",
    "dump-log": "esker.commands.dump_log",
    "groups": "esker.commands.groups",
    "produce": "esker.commands.produce",
    "quorum": "esker.commands.quorum",
    "snapshot": "esker.commands.snapshot",
    "spark": "esker.commands.spark",
    "start": "esker.commands.start",
    "storage": "esker.commands.storage",
    "topics": "esker.commands.topics",
}
"""Name on the command line, and the module with its `app`."""

SUMMARIES: Final = {
    "brokers": "Brokers of a running cluster.",
    "chunks": "Chunks of partitions (KIP-1114).",
    "configs": "Settings of topics and brokers.",
    "consume": "Print each record's value as a line. Ends by Ctrl-C, which commits what was "
    "printed.",
    "dev": "Run three quorum nodes and brokers on this machine, until Ctrl-C.",
    "diskless": "Diskless topics and the objects they lie in.",
    "doctor": "Say what this machine has for jobs of `esker spark`, and what it lacks.",
    "dump-log": "Show what the files of a log hold: batches, typed records, index entries, "
    "election state.",
    "groups": "Consumer groups: who reads what, and how far.",
    "produce": "Write each line of standard input as a record; a line's end is not part of it.",
    "quorum": "The metadata quorum: its leader and replicas.",
    "snapshot": "The checkpoints of the quorum's logs (KIP-630).",
    "spark": "Analysis of the log, and retention sweeps.",
    "start": "Run one node, with the roles its file says. SIGTERM or Ctrl-C stops it cleanly.",
    "storage": "A node's log directory: format it, look at it.",
    "topics": "Topics of a running cluster.",
}
"""The same, and how each begins its help: so `esker --help` imports none of them."""

EXAMPLE = "Example: esker dev"

USAGE: Final = 2
INTERRUPTED: Final = 130
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""How writing to a file may fail, and reading cannot."""


class LazyCommands(TyperGroup):
    """Imports a command's module when the command is used, not when it is listed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands.update(dict.fromkeys(COMMANDS))  # type: ignore[arg-type]  # names to list
        self._listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (Typer's signature)
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=SUMMARIES[cmd_name])
        command = typer.main.get_command(_load(cmd_name).app)
        command.name = cmd_name
        return command


def _load(command: str) -> ModuleType:
    """A command's module. What loading makes stays: looking for garbage takes a sixth of it."""
    gc.disable()
    try:
        return importlib.import_module(COMMANDS[command])
    finally:
        gc.enable()


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=EXAMPLE,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # not by the way: it takes longer than Typer

        typer.echo(f"esker {version('esker')}")
        raise typer.Exit


@app.callback()
def esker(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    """Esker: a Kafka-compatible diskless streaming store with a KRaft quorum, in Python."""


def main() -> None:
    """The entry point of the `esker` command."""
    if not __debug__:
        print(
            "esker: refuses to run with assertions off; start it without -O and PYTHONOPTIMIZE",
            file=sys.stderr,
        )
        raise SystemExit(USAGE)
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a poor locale is no reason to stop
    match sys.argv[1:]:
        case ["start", file] if not file.startswith("-"):
            _start(file)
        case _:
            _ask()


def _open_what_is_closed() -> None:
    """Standard files that whoever started us has closed lead nowhere.

    Else a socket would get the number of one: uvloop aborts when it is to close that, and what was
    meant for a terminal would go to a broker.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _ask() -> None:
    """Any command. What is nobody's fault here ends it with a line, not a traceback."""
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
    """`esker start FILE`, without what Typer parses it with: a quarter of the time to a node."""
    try:
        _load("start").start(Path(file))
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:  # while modules are loaded; a node has its own way to end
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
