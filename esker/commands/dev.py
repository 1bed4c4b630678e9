"""`esker dev`: a whole cluster on this machine, for a newcomer and for tests."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from esker.commands.cluster_access import fail, pairs
from esker.dev.cluster import (
    MAX_BROKERS,
    DevError,
    Plan,
    Store,
    belongings,
    identify,
    make_plan,
    owned,
    remove,
)
from esker.dev.processes import POLL_S, Processes
from esker.server.storage import StorageError
from esker.settings import SETTINGS
from esker.settings.config import ConfigError
from records.errors import RecordError

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: esker dev --dir ./esker-data --port 9092"

READY_WITHIN_S: Final = 60.0
ASK_EVERY_S: Final = 0.1
ECHO_S: Final = 0.3
INTERVAL: Final = "diskless.append.commit.interval.ms"


@app.command(name="dev", epilog=EXAMPLE)
def dev(
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where everything of the cluster is kept.")
    ] = Path("esker-data"),
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The first broker's; others have those above.")
    ] = 9092,
    brokers: Annotated[int, typer.Option(min=1, max=MAX_BROKERS, help="How many brokers.")] = 1,
    store: Annotated[
        str | None,
        typer.Option(metavar="s3://BUCKET", help="Where records go; default: DIR/objects."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An S3 that is not Amazon's; goes with --store."),
    ] = None,
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="The bucket's region; goes with --store.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting for all; may be repeated."),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First remove what DIR holds, after asking.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --reset: do not ask.")] = False,
) -> None:
    """Run three quorum nodes and brokers on this machine, until Ctrl-C.

    The first start makes the cluster, later ones go on with it. Nothing but this machine can
    reach it. Credentials for S3 come the AWS way (environment, ~/.aws).
    """
    extra = pairs(settings or [], "--set")
    for key in extra:
        if key not in SETTINGS:
            raise typer.BadParameter(f"{key} is no setting", param_hint="--set")
    wanted = _store(store, endpoint, region)
    directory = directory.resolve()
    try:
        with owned(directory):
            if reset:
                _reset(directory, sure=yes)
            identity = identify(directory, wanted)
            if identity.store.bucket is not None:
                from esker.dev.store_probe import check_bucket  # not needed without S3

                check_bucket(identity)
            plan = make_plan(directory, identity, port=port, brokers=brokers, extra=extra)
            _run(plan, interval_ms=extra.get(INTERVAL, str(SETTINGS[INTERVAL].default)))
    except OSError as error:
        from esker.server.fatal_errors import last_words  # not needed where all is well

        fail(last_words(error, directory))
    except (DevError, ConfigError, StorageError, RecordError) as error:
        fail(str(error))


def _store(store: str | None, endpoint: str | None, region: str | None) -> Store | None:
    if store is None:
        if endpoint is not None or region is not None:
            raise typer.BadParameter("goes with --store", param_hint="--endpoint, --region")
        return None
    scheme, separator, bucket = store.partition("://")
    if scheme != "s3" or not separator or not bucket or "/" in bucket:
        raise typer.BadParameter(f"{store!r} is not s3://BUCKET", param_hint="--store")
    return Store(bucket=bucket, endpoint=endpoint, region=region)


def _reset(directory: Path, *, sure: bool) -> None:
    paths = belongings(directory)
    if not paths:
        return
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    size_bytes = sum(file.stat().st_size for file in files if file.is_file())
    names = ", ".join(path.name for path in paths)
    typer.echo(f"--reset removes from {directory}: {names} ({size_bytes / 1e6:.1f} MB).", err=True)
    kept = identify(directory, None)
    if kept.store.bucket is not None:
        typer.echo(
            f"Objects in {kept.store.place(directory)} stay; their keys hold {kept.cluster_id}.",
            err=True,
        )
    if not sure:
        if not sys.stdin.isatty():
            fail("nothing was removed: say --yes where nobody can be asked")
        if not typer.confirm("Remove it?", err=True):
            fail("nothing was removed")
    remove(paths)


class _Hurry(Exception):
    """A second SIGINT or SIGTERM."""


class _Signals:
    """Ctrl-C and SIGTERM as something to look at; the second one is raised.

    An exception out of a signal handler gets lost inside an event loop, so the first is none. One
    that follows at once is the first again: what tells a process group tells its head twice.
    """

    def __init__(self) -> None:
        self.asked = False
        self._since = 0.0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked and now - self._since > ECHO_S:
            raise _Hurry
        if not self.asked:
            self.asked, self._since = True, now

    @contextmanager
    def caught(self) -> Iterator[None]:
        """While in this block."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, self._on_signal) for one in kinds}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _run(plan: Plan, *, interval_ms: str) -> None:
    processes = Processes(plan, lambda line: typer.echo(f"esker dev: {line}", err=True))
    signals = _Signals()
    with signals.caught():
        try:
            started = time.monotonic()
            typer.echo(f"Starting {_count(plan)} in {plan.directory} ...")
            sys.stdout.flush()
            processes.start()
            if _until_ready(processes, signals):
                typer.echo(_greeting(plan, time.monotonic() - started, interval_ms))
                sys.stdout.flush()
            while not signals.asked:
                processes.watch()
                time.sleep(POLL_S)
            typer.echo("\nStopping; the same command goes on with what is there.", err=True)
            processes.stop()
        except _Hurry:
            typer.echo("Killed instead; nothing that was acknowledged is lost.", err=True)
        finally:
            processes.kill()  # what is left, whatever happened


def _until_ready(processes: Processes, signals: _Signals) -> bool:
    """False if we are to stop. Raises DevError if it takes too long, or what is started dies."""
    deadline = time.monotonic() + READY_WITHIN_S
    while not signals.asked:
        processes.watch(restart=False)
        if processes.ready():
            return True
        if time.monotonic() > deadline:
            raise DevError(
                f"not ready within {READY_WITHIN_S:.0f} s: see {processes.plan.directory}/output"
            )
        time.sleep(ASK_EVERY_S)
    return False


def _count(plan: Plan) -> str:
    brokers = len(plan.brokers)
    return f"{len(plan.quorum)} quorum nodes and {brokers} broker{'s' if brokers > 1 else ''}"


def _greeting(plan: Plan, seconds: float, interval_ms: str) -> str:
    rows = {
        "bootstrap server": plan.bootstrap,
        "controllers": plan.controllers,
        "objects": plan.identity.store.place(plan.directory),
        "output of processes": str(plan.directory / "output"),
    }
    a_second = 1000 / max(1, int(interval_ms))
    return "\n".join(
        [
            f"Ready after {seconds:.1f} s.",
            *(f"  {name + ':':<22}{value}" for name, value in rows.items()),
            f"Commit interval {interval_ms} ms: a producer that waits for each record gets about "
            f"{a_second:.0f} a second; see docs/tuning.md.",
            "Ctrl-C stops it; the same command goes on with what is there.",
        ]
    )
