"""`esker dev`: run a complete cluster on this machine, for first steps and for tests."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from esker.client.security import CommandConfigError, read_command_config
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
    ports_of_brokers,
    remove,
)
from esker.dev.processes import POLL_S, Processes
from esker.dev.secure import LISTENER
from esker.dev.secure import secure as secure_directory
from esker.server.storage import StorageError
from esker.settings import SETTINGS
from esker.settings.config import ConfigError
from raft.net.security import outgoing
from records.errors import RecordError

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: esker dev --dir ./esker-data --port 9092"

MAX_PORT: Final = 65_535
READY_WITHIN_S: Final = 60.0
ASK_EVERY_S: Final = 0.1
ECHO_S: Final = 0.3
SHOWN: Final = ("esker.append.quiet.ms", "diskless.append.commit.interval.ms")


Directory = Annotated[
    Path,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Directory of all files of the cluster, created if missing; default: esker-data.",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_PORT,
        help="Port number of the first broker; further brokers use the next higher ports; "
        "default: 9092.",
    ),
]
Brokers = Annotated[
    int, typer.Option(min=1, max=MAX_BROKERS, help="Number of brokers to run; default: 1.")
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=MAX_BROKERS,
        help="Number of brokers to run as processes of one properties file, which share the port "
        "--port; not with --brokers; default: a properties file for each broker.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="s3://BUCKET",
        help="S3 bucket (s3://BUCKET) to store records in; default: the directory named objects "
        "in --dir.",
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL (http://HOST:PORT) of the bucket's S3 service; requires --store; default: "
        "Amazon's URL.",
    ),
]
Region = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the bucket's AWS region; requires --store; default: the AWS "
        "configuration's region.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting of every node as KEY=VALUE; may be repeated; default: no extra settings.",
    ),
]
Reset = Annotated[
    bool,
    typer.Option(
        "--reset",
        help="Remove the cluster's files from --dir before the start; default: no file is removed.",
    ),
]
WithoutAsking = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="With --reset: remove files without a confirmation; default: the command asks for it.",
    ),
]


Secure = Annotated[
    bool,
    typer.Option(
        "--secure",
        help="Use TLS and SASL on all listeners, with certificates and a first user created in "
        "--dir; default: PLAINTEXT listeners.",
    ),
]


@app.command(name="dev", epilog=EXAMPLE)
def dev(
    directory: Directory = Path("esker-data"),
    port: Port = 9092,
    brokers: Brokers = 1,
    processes: ProcessesOption = None,
    store: StoreOption = None,
    endpoint: Endpoint = None,
    region: Region = None,
    settings: Settings = None,
    secure: Secure = False,
    reset: Reset = False,
    yes: WithoutAsking = False,
) -> None:
    """Run three quorum nodes and one or more brokers on this machine, until Ctrl-C.

    The first start creates the cluster; later starts continue it. All nodes listen on loopback
    only. S3 credentials come from the AWS environment variables or ~/.aws.
    """
    if processes is not None and brokers != 1:
        raise typer.BadParameter("name one of --brokers and --processes", param_hint="--processes")
    if (last := ports_of_brokers(port, brokers, processes)[-1]) > MAX_PORT:
        which = "broker" if processes is None else "process"
        raise typer.BadParameter(
            f"the last {which}'s port would be {last}: name a lower one", param_hint="--port"
        )
    extra = pairs(settings or [], "--set")
    for key in extra:
        if key not in SETTINGS:
            raise typer.BadParameter(
                f"unknown setting {key}: see docs/configuration.md", param_hint="--set"
            )
    wanted = _store(store, endpoint, region)
    directory = directory.resolve()
    try:
        with owned(directory):
            if reset:
                _reset(directory, sure=yes)
            identity = identify(directory, wanted)
            if identity.store.bucket is not None:
                from esker.dev.store_probe import check_bucket  # needed with S3 only

                check_bucket(identity)
            secured = secure_directory(directory) if secure else None
            plan = make_plan(
                directory,
                identity,
                port=port,
                brokers=brokers,
                processes=processes,
                extra=extra if secured is None else secured.settings | extra,
                listener="PLAINTEXT" if secured is None else LISTENER,
            )
            client_file = None if secured is None else secured.client_file
            with outgoing(None if client_file is None else read_command_config(client_file)):
                _run(plan, extra, client_file)
    except OSError as error:
        from esker.server.fatal_errors import describe_fatal_error  # needed after a failure only

        fail(describe_fatal_error(error, directory))
    except ConfigError as error:  # of --set: the settings of ours are valid
        typer.echo(f"esker: {error}", err=True)
        raise typer.Exit(2) from None
    except (CommandConfigError, DevError, StorageError, RecordError) as error:
        fail(str(error))


def _store(store: str | None, endpoint: str | None, region: str | None) -> Store | None:
    if store is None:
        if endpoint is not None or region is not None:
            raise typer.BadParameter(
                "requires --store s3://BUCKET", param_hint="--endpoint, --region"
            )
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
            fail("nothing was removed: give --yes, as standard input is not a terminal")
        if not typer.confirm("Remove it?", err=True):
            fail("nothing was removed")
    remove(paths)


class _SecondSignal(Exception):
    """A second SIGINT or SIGTERM."""


class _Signals:
    """Records the first Ctrl-C or SIGTERM as a flag; a second signal raises _SecondSignal.

    The first raises nothing, because an event loop can swallow an exception from a signal handler.
    A signal within ECHO_S of the first is the same one: a signal to the process group and to this
    process arrives twice.
    """

    def __init__(self) -> None:
        self.stop_requested = False
        self._since = 0.0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.stop_requested and now - self._since > ECHO_S:
            raise _SecondSignal
        if not self.stop_requested:
            self.stop_requested, self._since = True, now

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch SIGINT and SIGTERM in a `with` block, then restore the previous handlers."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self._on_signal) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def _run(plan: Plan, settings: Mapping[str, str], client_file: Path | None) -> None:
    processes = Processes(plan, lambda line: typer.echo(f"esker dev: {line}", err=True))
    signals = _Signals()
    with signals.caught():
        try:
            started = time.monotonic()
            typer.echo(f"Starting {_count(plan)} in {plan.directory} ...")
            sys.stdout.flush()
            processes.start()
            if _wait_until_ready(processes, signals):
                typer.echo(_greeting_text(plan, time.monotonic() - started, settings, client_file))
                sys.stdout.flush()
            while not signals.stop_requested:
                processes.watch()
                time.sleep(POLL_S)
            typer.echo("\nStopping; the same command continues this cluster.", err=True)
            processes.stop()
        except _SecondSignal:
            typer.echo("Killed the processes; no acknowledged record is lost.", err=True)
        finally:
            processes.kill()  # any process that still runs, also after an exception


def _wait_until_ready(processes: Processes, signals: _Signals) -> bool:
    """Wait until all processes are ready; return False if a signal to stop came first.

    Raises:  DevError if they are not ready within READY_WITHIN_S, or if a process exits.
    """
    deadline = time.monotonic() + READY_WITHIN_S
    while not signals.stop_requested:
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
    brokers = plan.broker_count
    return f"{len(plan.quorum)} quorum nodes and {brokers} broker{'s' if brokers > 1 else ''}"


def _greeting_text(
    plan: Plan, seconds: float, settings: Mapping[str, str], client_file: Path | None
) -> str:
    rows = {
        "bootstrap server": plan.bootstrap,
        "controllers": plan.controllers,
        "objects": plan.identity.store.place(plan.directory),
        "output of processes": str(plan.directory / "output"),
    }
    if client_file is not None:
        rows["client settings"] = f"--command-config {client_file}"
    quiet_ms, interval_ms = (settings.get(key, SETTINGS[key].default_text) for key in SHOWN)
    return "\n".join(
        [
            f"Ready after {seconds:.1f} s.",
            *(f"  {name + ':':<22}{value}" for name, value in rows.items()),
            f"Records are written when producers pause for {quiet_ms} ms, at the latest after "
            f"{interval_ms} ms; see docs/tuning.md.",
            "Ctrl-C stops it; the same command continues this cluster.",
        ]
    )
