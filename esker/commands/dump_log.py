"""`esker dump-log`: print or verify the contents of log files, as a table or as JSON lines.

The command never changes a file. A damaged file does not stop it: it reads all the files, and its
exit code is that of the worst.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Protocol

import typer

from diskless.stores.interface import StorageError
from esker.client.client import ClientError
from esker.commands.cluster_access import broker_addresses
from esker.commands.dump_objects import Objects
from esker.dump.backups import count_manifest, load_manifest, read_manifest
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
from esker.dump.kinds import Kind, UnknownKindError, kind_of, object_kind_of
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
"""Size from which a file gets a progress bar: smaller files are read within a moment."""
PROGRESS_STEP_BYTES: Final = 1024 * 1024

OK: Final = 0
DAMAGED: Final = 1
UNREADABLE: Final = 2  # also what a wrong command line gives
BROKEN_PIPE: Final = 141  # as a shell counts a process that died of SIGPIPE
UNREADABLE_ERRORS: Final = (
    UnknownKindError, NoSuchObjectError, StorageError, ClientError, OSError,
)  # fmt: skip


class Printer(Protocol):
    """Formats items as text or as JSON."""

    def render(self, item: Item) -> str:
        """Format an item of a log file as one or more lines, without a final line feed."""


Names = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="Segment, checkpoint, index or other file of a log; or a WAL object, given as a "
        "file, as s3://BUCKET/KEY, or by its object key or object id; or a backup's manifest, "
        "named in the same ways.",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--verify", help="Check each file and print the result; default: print the contents."
    ),
]
Deep = Annotated[
    bool,
    typer.Option(
        "--deep",
        help="With --verify: also decode every record, which is slower; default: check "
        "batches only.",
    ),
]
AllowGaps = Annotated[
    bool,
    typer.Option(
        "--allow-gaps",
        help="With --verify: accept gaps in offsets, as in compacted topics; default: a "
        "gap is damage.",
    ),
]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as JSON, one object per line; default: print text."
    ),
]
PrintDataLog = Annotated[
    bool,
    typer.Option(
        "--print-data-log",
        help="Also print the records of WAL objects; default: print only the objects' footers.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|s3://BUCKET",
        help="Directory or s3://BUCKET in which to find a WAL object by key or id; default: "
        "the brokers' object store.",
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL (http://HOST:PORT) of the bucket's S3 service; default: Amazon's URL.",
    ),
]
Region = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the bucket's AWS region; default: the AWS configuration's region.",
    ),
]
BootstrapServer = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT[,...]",
        help="Addresses (host:port,...) of brokers to ask for the object store's location and, "
        "with --verify, for the coordinator's metadata of each object; default: no broker "
        "is asked.",
    ),
]
Coordinator = Annotated[
    int,
    typer.Option(
        min=0,
        help="Number of the partition of __diskless-metadata that assigned the object "
        "id; default: 0.",
    ),
]


@app.command(name="dump-log", epilog=EXAMPLE, no_args_is_help=True)
def dump_log(
    names: Names,
    check: Check = False,
    deep: Deep = False,
    allow_gaps: AllowGaps = False,
    as_json: JsonLines = False,
    print_data_log: PrintDataLog = False,
    store: Store = None,
    endpoint: Endpoint = None,
    region: Region = None,
    bootstrap_server: BootstrapServer = None,
    coordinator: Coordinator = 0,
) -> None:
    """Print the contents of log files: batches, records, index entries, election state.

    For a WAL object, prints its footer's entry of each partition.

    Exit code 0: every file is sound. 1: a file is damaged; its position is printed.
    2: a file could not be read.
    """
    if (deep or allow_gaps) and not check:
        raise typer.BadParameter("requires --verify", param_hint="--deep, --allow-gaps")
    options = _Options(check, deep, allow_gaps, as_json, print_data_log)
    brokers = None if bootstrap_server is None else broker_addresses(bootstrap_server)
    objects = Objects(store, endpoint, region, brokers, coordinator)
    try:
        code = _run(names, objects, options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output again at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    raise typer.Exit(code)


class _Options(NamedTuple):
    """The options that say how each file is shown or checked."""

    check: bool
    deep: bool
    allow_gaps: bool
    as_json: bool
    records: bool


def _run(names: list[str], objects: Objects, options: _Options) -> int:
    """Print or verify each file, and return the exit code of the worst result."""
    printer: Printer = LinePrinter() if options.as_json else _human_printer()
    code = OK
    for name in names:
        path, kind = Path(name), None
        try:
            found = objects.find(name)
            if found is not None:
                kind = object_kind_of(found.name)
                with closing(found):
                    if kind is Kind.BACKUP_MANIFEST:
                        _show_manifest(found, printer, options)
                    elif options.check:
                        _print(_verified_object(objects, found, options))
                    else:
                        for item in read_object(found, records=options.records):
                            _print(printer.render(item))
                continue
            _require_regular_file(path)
            kind = kind_of(path)
            if options.check:
                _print(_verify_line(path, kind, options))
            else:
                _show(path, kind, printer)
        except RecordError as error:
            _report_damage(name, kind, error, as_json=options.as_json, check=options.check)
            code = max(code, DAMAGED)
        except BrokenPipeError:
            raise
        except UNREADABLE_ERRORS as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise  # standard output is full, not the file that is read
            _report_unreadable(name, error, as_json=options.as_json)
            code = UNREADABLE
    return code


def _require_regular_file(path: Path) -> None:
    """Raise UnknownKindError unless the path is a regular file, as a pipe could block.

    Raises:  OSError if the file cannot be found.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        advice = f"name the files in it, for example {path}/*.log"
        raise UnknownKindError(f"{path}: a directory; {advice}")
    if not stat.S_ISREG(mode):
        raise UnknownKindError(f"{path}: not a regular file")


def _verify_line(path: Path, kind: Kind, options: _Options) -> str:
    """Check a file and return the line that reports its success. Raises the errors of `verify`."""
    with _progress(path, beside_output=True) as progress:
        tally = verify(
            ReadOnly(),
            path,
            kind,
            deep=options.deep,
            allow_gaps=options.allow_gaps,
            progress=progress,
        )
    if options.as_json:
        return verified_line(path, kind, path.stat().st_size, tally)
    return f"sound    {printable(path)}: {kind.value}, {tally_text(kind, tally)}"


def _verified_object(objects: Objects, found: ObjectBytes, options: _Options) -> str:
    """Check a WAL object, and compare the object with its coordinator's metadata.

    Raises as `Objects` does.
    """
    tally = verify_object(found, deep=options.deep, known=objects.known(found))
    if options.as_json:
        return verified_line(found.name, Kind.WAL_OBJECT, found.size_bytes, tally)
    text = tally_text(Kind.WAL_OBJECT, tally)
    return f"sound    {printable(found.name)}: {Kind.WAL_OBJECT.value}, {text}"


def _show_manifest(found: ObjectBytes, printer: Printer, options: _Options) -> None:
    """Print or check the manifest of a backup. Raises the errors of `load_manifest`."""
    if not options.check:
        for item in read_manifest(found):
            _print(printer.render(item))
        return
    tally, kind = count_manifest(load_manifest(found)), Kind.BACKUP_MANIFEST
    if options.as_json:
        _print(verified_line(found.name, kind, found.size_bytes, tally))
    else:
        _print(f"sound    {printable(found.name)}: {kind.value}, {tally_text(kind, tally)}")


def _show(path: Path, kind: Kind, printer: Printer) -> None:
    """Print a file's contents. Raises the errors of `read_batches_file` and `read_small`."""
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
    """Report a damaged file, on standard output with `--verify` or JSON, else on standard error."""
    if as_json:
        position, offset = getattr(error, "position", None), getattr(error, "offset", None)
        reason = str(getattr(error, "reason", error))
        _print(error_line(name, reason, position=position, offset=offset))
        return
    text = f"{on_one_line(str(error))}; {_advice(kind, error)}"
    if check:
        _print(f"DAMAGED  {text}")
    else:
        _print_error(text)


def _advice(kind: Kind | None, error: RecordError) -> str:
    match kind:
        case Kind.SEGMENT if isinstance(error, TruncatedFileError):
            return "all before it is sound, and a node truncates an incomplete end when it starts"
        case Kind.SEGMENT:
            return "all before it is sound; records after it are safe on the other replicas only"
        case Kind.CHECKPOINT:
            return DAMAGED_CHECKPOINT
        case Kind.OFFSET_INDEX | Kind.TIME_INDEX:
            return "delete it: a node rebuilds it when it starts"
        case Kind.WAL_OBJECT:
            return "its records are lost unless the store has an older version of it"
        case Kind.BACKUP_MANIFEST:
            return "restore another cut by --at: `esker backup verify --all` says which are sound"
        case _:
            return "do not start its node with this file"


def _report_unreadable(name: str, error: Exception, *, as_json: bool) -> None:
    reason = f"{name}: {error.strerror}" if isinstance(error, OSError) else str(error)
    if as_json:
        _print(error_line(name, reason, position=None, offset=None))
    else:
        _print_error(on_one_line(reason))


def _print_error(text: str) -> None:
    sys.stdout.flush()  # so that the error follows the output that it concerns
    print(f"esker: {text}", file=sys.stderr)


def _human_printer() -> HumanPrinter:
    """Return a printer for a terminal, or for plain text of 100 columns without a terminal."""
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
    """Show a progress bar on standard error while the command reads a long file.

    Args:    beside_output: show it although standard output is a terminal, too.
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
