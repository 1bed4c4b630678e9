"""`esker dump-log`: what is in a log's files, as a table, as JSON lines, or whether it is sound.

Nothing is changed, whatever the files hold. One file's damage does not keep the next from being
shown: all are read, and the exit code is that of the worst.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Final, Protocol

import typer

from diskless.stores.interface import StorageError
from esker.client.client import ClientError
from esker.commands.cluster_access import brokers_at
from esker.commands.dump_objects import Objects
from esker.dump.batches import read_batches_file
from esker.dump.checkpoints import DAMAGED_CHECKPOINT
from esker.dump.checks import Progress, verify
from esker.dump.human import (
    HumanPrinter,
    Paint,
    no_paint,
    on_one_line,
    printable,
    tally_text,
)
from esker.dump.items import BatchItem, Item
from esker.dump.kinds import Kind, UnknownKindError, kind_of
from esker.dump.lines import LinePrinter, error_line, verified_line
from esker.dump.small import ReadOnly, read_small
from esker.dump.wal import ObjectBytes, read_object, verify_object
from esker.dump.wal_sources import NoSuchObjectError
from records.errors import RecordError
from snapshot.errors import TruncatedFileError

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: esker dump-log --verify data/__cluster_metadata-0/*.log"

PIPED_WIDTH: Final = 100
PROGRESS_FROM_BYTES: Final = 32 * 1024 * 1024
"""Smaller files are done before a bar could be read."""
PROGRESS_STEP_BYTES: Final = 1024 * 1024

OK: Final = 0
DAMAGED: Final = 1
UNREADABLE: Final = 2  # also what a wrong command line gives
BROKEN_PIPE: Final = 141  # as a shell counts a process that died of SIGPIPE
UNREADABLE_ERRORS: Final = (
    UnknownKindError, NoSuchObjectError, StorageError, ClientError, OSError,
)  # fmt: skip


class Printer(Protocol):
    """How items are shown: for people, or as JSON."""

    def render(self, item: Item) -> str:
        """One or more lines, without the end of the last."""


@app.command(name="dump-log", epilog=EXAMPLE, no_args_is_help=True)
def dump_log(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Segments, checkpoints, indexes, small files; WAL objects: a file, "
            "s3://BUCKET/KEY, a key or an id.",
        ),
    ],
    check: Annotated[
        bool, typer.Option("--verify", help="Print no contents, only whether each file is sound.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="With --verify: decode every record, too. Slower.")
    ] = False,
    allow_gaps: Annotated[
        bool,
        typer.Option("--allow-gaps", help="With --verify: offsets may skip (compacted topics)."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, for programs.")
    ] = False,
    print_data_log: Annotated[
        bool,
        typer.Option("--print-data-log", help="WAL objects: their records, too, not only sizes."),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(metavar="DIR|s3://BUCKET", help="Where a key or an id is looked for."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="An S3 that is not Amazon's.")
    ] = None,
    region: Annotated[str | None, typer.Option(metavar="NAME", help="The bucket's region.")] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,...]",
            help="Brokers that say where objects are, and, with --verify, what the coordinator "
            "has of them.",
        ),
    ] = None,
    coordinator: Annotated[
        int, typer.Option(min=0, help="Which partition of __diskless-metadata gave an id.")
    ] = 0,
) -> None:
    """Show what the files of a log hold: batches, typed records, index entries, election state.

    A WAL object shows what its footer says of each partition in it.

    Exit code 0: every file is sound. 1: one is damaged; its position is printed.
    2: one could not be read at all.
    """
    if (deep or allow_gaps) and not check:
        raise typer.BadParameter("goes with --verify", param_hint="--deep, --allow-gaps")
    brokers = None if bootstrap_server is None else brokers_at(bootstrap_server)
    objects = Objects(store, endpoint, region, brokers, coordinator)
    try:
        code = _run(
            names, objects, check=check, deep=deep, allow_gaps=allow_gaps, as_json=as_json,
            records=print_data_log,
        )  # fmt: skip
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit; there must be something to flush into.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    raise typer.Exit(code)


def _run(
    names: list[str],
    objects: Objects,
    *,
    check: bool,
    deep: bool,
    allow_gaps: bool,
    as_json: bool,
    records: bool,
) -> int:
    printer: Printer = LinePrinter() if as_json else _human_printer()
    code = OK
    for name in names:
        path, kind = Path(name), None
        try:
            found = objects.find(name)
            if found is not None:
                kind = Kind.WAL_OBJECT
                with closing(found):
                    if check:
                        _print(_verified_object(objects, found, deep=deep, as_json=as_json))
                    else:
                        for item in read_object(found, records=records):
                            _print(printer.render(item))
                continue
            _refuse_special(path)
            kind = kind_of(path)
            if check:
                _print(_verified(path, kind, deep=deep, allow_gaps=allow_gaps, as_json=as_json))
            else:
                _show(path, kind, printer)
        except RecordError as error:
            _report_damage(name, kind, error, as_json=as_json, check=check)
            code = max(code, DAMAGED)
        except BrokenPipeError:
            raise
        except UNREADABLE_ERRORS as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise  # it is our output that cannot be written
            _report_unreadable(name, error, as_json=as_json)
            code = UNREADABLE
    return code


def _refuse_special(path: Path) -> None:
    """Raises UnknownKindError: a pipe or device would be waited for, perhaps for ever; OSError."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        advice = f"name the files in it, for example {path}/*.log"
        raise UnknownKindError(f"{path}: a directory; {advice}")
    if not stat.S_ISREG(mode):
        raise UnknownKindError(f"{path}: not a regular file")


def _verified(path: Path, kind: Kind, *, deep: bool, allow_gaps: bool, as_json: bool) -> str:
    """Check a file and return the line that says it is sound. Errors: `verify`."""
    with _progress(path, beside_output=True) as progress:
        tally = verify(ReadOnly(), path, kind, deep=deep, allow_gaps=allow_gaps, progress=progress)
    if as_json:
        return verified_line(path, kind, path.stat().st_size, tally)
    return f"sound    {printable(path)}: {kind.value}, {tally_text(kind, tally)}"


def _verified_object(objects: Objects, found: ObjectBytes, *, deep: bool, as_json: bool) -> str:
    """The same for a WAL object, beside what its coordinator knows of it. Errors: `Objects`."""
    tally = verify_object(found, deep=deep, known=objects.known(found))
    if as_json:
        return verified_line(found.name, Kind.WAL_OBJECT, found.size_bytes, tally)
    text = tally_text(Kind.WAL_OBJECT, tally)
    return f"sound    {printable(found.name)}: {Kind.WAL_OBJECT.value}, {text}"


def _show(path: Path, kind: Kind, printer: Printer) -> None:
    """Print a file's contents. Errors: `read_batches_file`, `read_small`."""
    files = ReadOnly()
    is_batches = kind in (Kind.SEGMENT, Kind.CHECKPOINT)
    items = read_batches_file(files, path, kind) if is_batches else read_small(files, path, kind)
    with _progress(path, beside_output=False) as progress:
        for item in items:
            _print(printer.render(item))
            if progress is not None and isinstance(item, BatchItem):
                progress(item.position)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _report_damage(
    name: str, kind: Kind | None, error: RecordError, *, as_json: bool, check: bool
) -> None:
    """What is wrong, where the contents would be (for `--verify` and JSON), else on stderr."""
    if as_json:
        position, offset = getattr(error, "position", None), getattr(error, "offset", None)
        reason = str(getattr(error, "reason", error))
        _print(error_line(name, reason, position=position, offset=offset))
        return
    text = f"{on_one_line(str(error))}; {_advice(kind, error)}"
    if check:
        _print(f"DAMAGED  {text}")
    else:
        _complain(text)


def _advice(kind: Kind | None, error: RecordError) -> str:
    match kind:
        case Kind.SEGMENT if isinstance(error, TruncatedFileError):
            return "all before it is sound, and a node cuts off a torn end when it starts"
        case Kind.SEGMENT:
            return "all before it is sound; what follows is safe on the other replicas only"
        case Kind.CHECKPOINT:
            return DAMAGED_CHECKPOINT
        case Kind.OFFSET_INDEX | Kind.TIME_INDEX:
            return "delete it: a node makes it anew when it starts"
        case Kind.WAL_OBJECT:
            return "records in it are lost unless the store has an older version of it"
        case _:
            return "its node must not start with it"


def _report_unreadable(name: str, error: Exception, *, as_json: bool) -> None:
    reason = f"{name}: {error.strerror}" if isinstance(error, OSError) else str(error)
    if as_json:
        _print(error_line(name, reason, position=None, offset=None))
    else:
        _complain(on_one_line(reason))


def _complain(text: str) -> None:
    sys.stdout.flush()  # so that it stands after what it is about
    print(f"esker: {text}", file=sys.stderr)


def _human_printer() -> HumanPrinter:
    """Colours and the terminal's width where there is a terminal; plain 100 columns elsewhere."""
    if not sys.stdout.isatty():
        return HumanPrinter(width=PIPED_WIDTH)
    from rich.console import Console

    console = Console()
    colours = console.color_system is not None and not console.no_color
    return HumanPrinter(width=console.width, paint=_paint() if colours else no_paint)


def _paint() -> Paint:
    codes = {"bold": "1", "dim": "2", "green": "32", "cyan": "36"}

    def paint(text: str, style: str) -> str:
        return f"\x1b[{codes[style]}m{text}\x1b[0m"

    return paint


@contextmanager
def _progress(path: Path, *, beside_output: bool) -> Iterator[Progress | None]:
    """A bar on stderr while a long file is read.

    Args:    beside_output: nothing else is printed meanwhile, so the bar may share a screen.
    """
    visible = sys.stderr.isatty() and (beside_output or not sys.stdout.isatty())
    if not visible or path.stat().st_size < PROGRESS_FROM_BYTES:
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(escape(printable(Path(path.name))), total=path.stat().st_size)
        shown = 0

        def update(position: int) -> None:
            nonlocal shown
            if position - shown >= PROGRESS_STEP_BYTES:
                bar.update(task, completed=position)
                shown = position

        yield update
