"""`esker spark archive`: writes the committed logs as Avro files, once or continuously.

One pass archives all committed records that are not archived yet; `--follow` repeats passes, and
holds the logs' starts meanwhile. `--verify` reads everything again.

This process does the work by default: a pass takes as long as the records since the last one need,
mostly less than the seconds that a Spark session takes to start. `--engine spark` is for the first
pass over a long log, or with `--master` for many machines.

Source: docs/design/pipeline.md#the-archive.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from esker.commands.cluster_access import AsJson, TimeoutMs
from esker.commands.spark.common import (
    DATA_LOSS,
    ENVIRONMENT,
    FINDINGS,
    INTERRUPTED,
    STALE,
    USAGE,
    EngineName,
    bar,
    reason,
    require_directory,
    stop,
    stop_for_missing_package,
)
from esker.commands.spark.inputs import FromQuorum, LogDir, inputs_of, open_logs, reading_errors
from esker.commands.spark.session import MEMORY, Debug, Master, Memory, SparkLog, spark_session
from esker.commands.spark.store import Endpoint, Region, store_for_command
from esker.commands.text_tables import table

if TYPE_CHECKING:
    from spark_jobs.archive.check import ArchiveVerification
    from spark_jobs.archive.engines import ArchiveEngine
    from spark_jobs.archive.hold import Hold
    from spark_jobs.archive.job import LogPass
    from spark_jobs.readers.archive_layout import About, Counted
    from spark_jobs.readers.inputs import Inputs
    from spark_jobs.readers.logs import Logs
    from spark_jobs.readers.object_store import ObjectStore

EXAMPLE: Final = (
    "Example: esker spark archive --out s3://bucket/archive --follow "
    "--bootstrap-controller 127.0.0.1:9102"
)
SHOWN_FAULTS: Final = 20
TOLD_RATE: Final = 10_000  # records; the rate of fewer says nothing
MEBIBYTE: Final = 1024 * 1024


class Tables(StrEnum):
    """Format of the tables of decoded rows."""

    AVRO = "avro"
    PARQUET = "parquet"


Out = Annotated[
    str,
    typer.Option(
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Directory or s3://BUCKET/PREFIX of the archive; a missing directory is created.",
    ),
]
TablesFormat = Annotated[
    Tables | None,
    typer.Option(
        "--as",
        help="Format of decoded tables: avro or parquet; default: that of an existing archive, "
        "else avro.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Archive new records repeatedly until Ctrl-C; default: archive once.",
    ),
]
Interval = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=86_400,
        metavar="S",
        help="With --follow: time between two archiving passes, in seconds, at most a "
        "day; default: 60.",
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Verify all files of the archive, after archiving if logs are given; "
        "default: only archive.",
    ),
]
RangeMib = Annotated[
    int,
    typer.Option(
        min=1,
        max=256,
        metavar="MIB",
        help="Approximate size of the part of a log in one archive range, in MiB; default: 16.",
    ),
]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="Engine that writes the archive: this process (local) or Spark (spark); "
        "default: local."
    ),
]


def archive(
    out: Out,
    log_dir: LogDir = None,
    bootstrap_controller: FromQuorum = None,
    as_: TablesFormat = None,
    follow: Follow = False,
    interval: Interval = 60.0,
    verify: Verify = False,
    range_mib: RangeMib = 16,
    engine: Engine = EngineName.LOCAL,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    endpoint: Endpoint = None,
    region: Region = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Archive all committed records not archived yet; the next run resumes an interrupted run.

    Exit codes: 0 everything is archived; 1 --verify found offsets that were lost earlier; 4 the
    archive belongs to another cluster or history; 6 offsets were lost now, or --verify found
    damaged files.
    """
    wants_pass = log_dir is not None or bootstrap_controller is not None
    if not wants_pass and not verify:
        raise typer.BadParameter(
            "name the logs: --log-dir DIR or --bootstrap-controller HOST:PORT; or --verify alone"
        )
    if follow and verify:
        raise typer.BadParameter("--follow never ends, so --verify would not run: use one of them")
    _need_modules()
    inputs = inputs_of(log_dir, bootstrap_controller, None, timeout_ms) if wants_pass else None
    job = _Job(range_bytes=range_mib * MEBIBYTE, as_json=as_json)
    session: AbstractContextManager[Any] = nullcontext()
    if engine is EngineName.SPARK or master is not None:
        session = spark_session("archive", master, memory, spark_log, debug=debug)
    if inputs is not None and "://" not in out:
        _make_directory(Path(out))
    try:
        with store_for_command(out, endpoint, region) as store, session as spark:
            work = _engine(spark)
            if inputs is not None:
                about = _begin(inputs, store, as_)
                _require_shared_store(store, about, work)
                with _hold_logs(inputs, about) as hold:
                    job.run(inputs, store, about, work, hold, interval if follow else None)
            if verify:
                job.verify(store, work)
    except KeyboardInterrupt:
        stop("interrupted; run the same command to continue", INTERRUPTED)
    except reading_errors() as error:
        stop(reason(error), _code_of(error))
    job.end()


class _Job:
    """Runs passes and the verification, and prints their results."""

    def __init__(self, *, range_bytes: int, as_json: bool) -> None:
        self._range_bytes = range_bytes
        self._as_json = as_json
        self._output: dict[str, Any] = {}
        self._follows = False
        self._code = 0

    def run(
        self,
        inputs: Inputs,
        store: ObjectStore,
        about: About,
        engine: ArchiveEngine,
        hold: Hold | None,
        interval_s: float | None,
    ) -> None:
        """Archive new records once, or with --follow repeatedly; report and retry failures.

        Raises:  ForeignArchiveError, which a retry cannot mend; a single pass: as
                 `spark_jobs.archive.job`.
        """
        from spark_jobs.archive.job import ForeignArchiveError

        if interval_s is None:
            self._pass(inputs, store, about, engine, hold)
            return
        if hold is None:
            _note("without --bootstrap-controller logs may be deleted before they are archived")
        self._follows = True
        while True:
            try:
                self._pass(inputs, store, about, engine, hold)
            except ForeignArchiveError:
                raise
            except reading_errors() as error:
                _note(f"{error}; next attempt in {interval_s:g} s")
            time.sleep(interval_s)

    def _pass(
        self,
        inputs: Inputs,
        store: ObjectStore,
        about: About,
        engine: ArchiveEngine,
        hold: Hold | None,
    ) -> None:
        from spark_jobs.archive.hold import fetched_as
        from spark_jobs.archive.job import archive

        logs = fetched_as(open_logs(inputs), about.archive_id)
        total = _count_due(logs, store, hold)
        began = time.monotonic()
        with bar("archiving", total) as step:
            done = archive(
                logs,
                store,
                about=about,
                engine=engine,
                progress=lambda log_pass: step(log_pass.end_offset - log_pass.start_offset),
                range_bytes=self._range_bytes,
            )
        for log_pass in done:
            if hold is not None:
                hold.set_archived(log_pass.log, log_pass.end_offset, log_pass.last_epoch)
            if log_pass.lost:
                self._code = DATA_LOSS
        self._print_pass(about, store.uri, done, time.monotonic() - began)

    def _print_pass(self, about: About, uri: str, done: list[LogPass], seconds: float) -> None:
        if self._as_json:
            self._output |= {
                "cluster_id": about.cluster_id,
                "archive": uri,
                "tables": about.tables,
                "seconds": round(seconds, 3),
                "logs": [_as_json(log_pass) for log_pass in done],
            }
            if self._follows:
                typer.echo(json.dumps(self._output))
            return
        records = sum(log_pass.records for log_pass in done)
        time_text = datetime.now(UTC).isoformat(timespec="seconds")
        typer.echo(f"{time_text} cluster {about.cluster_id} -> {uri} ({about.tables})")
        typer.echo(table(_HEADINGS, [_cells(log_pass) for log_pass in done]))
        for log_pass in done:
            for kept in log_pass.kept_as_bytes:
                typer.echo(f"  {log_pass.log}: {_kept_text(kept)}")
            for first, end in log_pass.lost:
                typer.echo(
                    f"  {log_pass.log}: LOST: offsets {first} to {end - 1} were cut off before "
                    "they were archived; a checkpoint stands in for them"
                )
        rate = f", {records / seconds:,.0f} records/s" if records >= TOLD_RATE else ""
        typer.echo(f"{records} records in {seconds:.1f} s{rate}")

    def verify(self, store: ObjectStore, engine: ArchiveEngine) -> None:
        """Verify the checksums of every file of the archive."""
        from spark_jobs.archive.check import check_archive
        from spark_jobs.readers.archived_logs import list_ranges

        ranges = sum(len(of_log) for of_log in list_ranges(store).values())
        with bar("verifying", ranges) as step:
            found = check_archive(store, engine=engine, progress=lambda _: step(1))
        if found.faults:
            self._code = DATA_LOSS
        elif found.lost:
            self._code = self._code or FINDINGS
        if self._as_json:
            self._output["verification"] = _verification_as_json(found)
        else:
            _print_verification(found)

    def end(self) -> None:
        """Print the archive job's JSON result, and exit with its exit code."""
        if self._as_json:
            typer.echo(json.dumps(self._output))
        if self._code:
            raise typer.Exit(self._code)


# --- preparation ----------------------------------------------------------------------------------


def _need_modules() -> None:
    """Exit with an error if the Avro or Arrow package is not installed."""
    try:
        import fastavro  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)


def _make_directory(path: Path) -> None:
    """Create the directory of a local archive; a bucket must already exist."""
    require_directory(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"{path}: {error.strerror}", ENVIRONMENT)


def _code_of(error: Exception) -> int:
    """Return the exit code for a foreign archive, for lost data, or for any other error."""
    from spark_jobs.archive.job import ForeignArchiveError
    from spark_jobs.readers.archive_layout import DamagedArchiveError
    from spark_jobs.readers.log_files import LostRangeError

    if isinstance(error, ForeignArchiveError):
        return STALE
    return DATA_LOSS if isinstance(error, DamagedArchiveError | LostRangeError) else ENVIRONMENT


def _engine(spark: Any) -> ArchiveEngine:
    from spark_jobs.archive.engines import LocalArchiveEngine

    if spark is None:
        return LocalArchiveEngine()
    from spark_jobs.archive.engines import SparkArchiveEngine

    return SparkArchiveEngine(spark)


def _begin(inputs: Inputs, store: ObjectStore, tables: Tables | None) -> About:
    """Open the archive in `store`, or begin a new archive if `store` has none."""
    from spark_jobs.archive.job import TablesError, open_archive

    try:
        return open_archive(store, open_logs(inputs).cluster_id, tables and tables.value)
    except TablesError as error:
        stop(str(error), USAGE)


def _require_shared_store(store: ObjectStore, about: About, engine: ArchiveEngine) -> None:
    from spark_jobs.archive.job import require_shared_store

    require_shared_store(store, about, engine)


@contextmanager
def _hold_logs(inputs: Inputs, about: About) -> Iterator[Hold | None]:
    """Make the quorum keep records until they are archived; do nothing without a quorum."""
    if not inputs.controllers:
        yield None
        return
    from spark_jobs.archive.hold import Hold
    from spark_jobs.readers.quorum_link import Quorum

    quorum = Quorum(inputs.controllers, about.cluster_id, -1)
    with Hold(quorum, about.archive_id) as hold:
        yield hold


def _count_due(logs: Logs, store: ObjectStore, hold: Hold | None) -> int:
    """Count the committed offsets not yet archived; tell `hold` each log's archived end offset."""
    from spark_jobs.readers.archive_layout import chain
    from spark_jobs.readers.archived_logs import list_ranges

    total = 0
    chains = {name: chain(found) for name, found in list_ranges(store).items()}
    for name in logs.names():
        links = chains.get(name)
        archived_end = links[-1].end_offset if links else 0
        if hold is not None:
            hold.set_archived(name, archived_end)
        total += max(0, logs.log(name).end_offset() - archived_end)
    return total


# --- output ---------------------------------------------------------------------------------------

_HEADINGS: Final = ("Log", "From", "To", "Committed", "Records", "Batches", "Ranges", "Bytes")


def _note(text: str) -> None:
    """Print a message on standard error without ending the command."""
    typer.echo(f"esker: {text}", err=True)


def _cells(log_pass: LogPass) -> tuple[str, ...]:
    numbers = (log_pass.start_offset, log_pass.end_offset, log_pass.log_end_offset)
    return (
        log_pass.log,
        *map(str, (*numbers, log_pass.records, log_pass.batches, log_pass.ranges, log_pass.bytes)),
    )


def _kept_text(kept: Counted) -> str:
    name = kept.name or "a type that is not known here"
    return (
        f"{kept.kept_as_bytes} of {kept.records} records of type {kept.type} version "
        f"{kept.version} ({name}) are kept as bytes only"
    )


def _as_json(log_pass: LogPass) -> dict[str, Any]:
    numbers = ("start_offset", "end_offset", "log_end_offset", "records", "batches", "ranges")
    return {
        "log": log_pass.log,
        **{name: getattr(log_pass, name) for name in (*numbers, "bytes")},
        "lost": [list(offsets) for offsets in log_pass.lost],
        "types": [counted._asdict() for counted in log_pass.counts.values()],
    }


def _print_verification(found: ArchiveVerification) -> None:
    for fault in found.faults[:SHOWN_FAULTS]:
        typer.echo(f"  {fault.log} {fault.start_offset}-{fault.end_offset}: {fault.what}")
    if len(found.faults) > SHOWN_FAULTS:
        typer.echo(f"  ... and {len(found.faults) - SHOWN_FAULTS} more")
    for lost in found.lost:
        typer.echo(
            f"  {lost.log}: offsets {lost.start_offset} to {lost.end_offset - 1} were lost when "
            "they were archived; a checkpoint stands in for them"
        )
    if found.strangers:
        typer.echo(f"  {len(found.strangers)} files belong to no manifest: {found.strangers[0]}")
    verdict = f"{len(found.faults)} faults" if found.faults else "all as it was written"
    typer.echo(
        f"Verified {found.files} files of {found.bytes} bytes, {found.records} records in "
        f"{found.batches} batches: {verdict}"
    )


def _verification_as_json(found: ArchiveVerification) -> dict[str, Any]:
    return {
        "cluster_id": found.cluster_id,
        "files": found.files,
        "bytes": found.bytes,
        "records": found.records,
        "batches": found.batches,
        "ends": found.ends,
        "lost": [[lost.log, lost.start_offset, lost.end_offset] for lost in found.lost],
        "faults": [fault._asdict() for fault in found.faults],
        "strangers": found.strangers,
    }
