"""`esker spark report`: writes one page on what data costs and how much of it is dead.

The page needs only a browser; its tables are written beside it as Parquet. This process reads small
logs, Spark large ones, with the same result.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from esker.commands.cluster_access import AsJson, TimeoutMs
from esker.commands.spark.common import (
    INTERRUPTED,
    USAGE,
    EngineOrAuto,
    require_directory,
    stop,
    stop_for_missing_package,
)
from esker.commands.spark.inputs import (
    Archive,
    FromQuorum,
    LogDir,
    inputs_of,
    open_logs,
    reading_errors,
    stop_reading,
)
from esker.commands.spark.prices import PriceFile, prices_of
from esker.commands.spark.session import MEMORY, Debug, Master, Memory, SparkLog, spark_session
from esker.commands.spark.store import Endpoint, Region
from esker.commands.text_tables import table

if TYPE_CHECKING:
    from spark_jobs.readers.logs import Logs
    from spark_jobs.report.job import Question, Report
    from spark_jobs.report.summary import Summary

EXAMPLE = "Example: esker spark report --log-dir esker-data/quorum-1 --out report"

LARGE: Final = 2_000_000
"""Records of all logs together from which `auto` means Spark: two cores read them in minutes."""

MIB: Final = 1024 * 1024


Out = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Path of the directory to write report.html and tables/ to."),
]
CommitIntervalMs = Annotated[
    int,
    typer.Option(
        metavar="MS",
        min=1,
        help="Commit interval of the brokers (diskless.append.commit.interval.ms), in "
        "ms; default: 250.",
    ),
]
BufferBytes = Annotated[
    int,
    typer.Option(
        metavar="BYTES",
        min=1,
        help="Buffer size of the brokers (diskless.append.buffer.max.bytes), in bytes; "
        "default: 8388608.",
    ),
]
Now = Annotated[
    int | None,
    typer.Option(
        metavar="MS",
        help="Time at which the ages of objects are computed, in ms since 1970 UTC; default: now.",
    ),
]
Engine = Annotated[
    EngineOrAuto,
    typer.Option(
        help="Engine that counts records: local, spark or auto (local below 2 million "
        "records); default: auto."
    ),
]


def report(
    out: Out,
    log_dir: LogDir = None,
    bootstrap_controller: FromQuorum = None,
    archive: Archive = None,
    prices: PriceFile = None,
    commit_interval_ms: CommitIntervalMs = 250,
    buffer_bytes: BufferBytes = 8 * MIB,
    now: Now = None,
    engine: Engine = EngineOrAuto.AUTO,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    endpoint: Endpoint = None,
    region: Region = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Write a page on throughput, sizes, costs, dead bytes, hot partitions and broker history.

    Reads only the metadata logs, no objects, and changes nothing.
    """
    require_directory(out)
    inputs = inputs_of(
        log_dir, bootstrap_controller, archive, timeout_ms, endpoint=endpoint, region=region
    )
    try:
        from spark_jobs.report.history import HistoryError, read_history
        from spark_jobs.report.job import Question
        from spark_jobs.report.summary import summarise
        from spark_jobs.report.writing import as_json as in_json
        from spark_jobs.report.writing import write_report
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    now_ms = time.time_ns() // 1_000_000 if now is None else now
    paid = prices_of(prices)
    try:
        logs = open_logs(inputs)
        question = Question(
            now_ms=now_ms,
            prices=paid,
            commit_interval_ms=commit_interval_ms,
            buffer_bytes=buffer_bytes,
            earlier=read_history(out, logs.cluster_id, before_ms=now_ms),
        )
        chosen = _choose(engine, master, logs)
        with _progress_line() as tell:
            if chosen is EngineOrAuto.SPARK:
                with spark_session("report", master, memory, spark_log, debug=debug) as spark:
                    made = _by_spark(spark, logs, question, tell)
            else:
                made = _by_this_process(logs, question, tell)
            tell("drawing")
            summary = summarise(made)
            written = write_report(made, summary, out, engine=chosen.value)
    except HistoryError as error:
        stop(str(error), USAGE)
    except reading_errors() as error:
        stop_reading(error)
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)
    if as_json:
        answer = in_json(made, summary, engine=chosen.value)
        typer.echo(json.dumps({**answer, "page": str(written)}))
        return
    _print(made, summary)
    typer.echo(f"Written to {written}; {len(made.tables)} tables beside it in {out / 'tables'}")


Tell = Callable[[str], None]


def _by_spark(spark: Any, logs: Logs, question: Question, tell: Tell) -> Report:
    from spark_jobs.report.job import make_report
    from spark_jobs.report.spark_cube import SparkReportEngine

    return make_report(logs, SparkReportEngine(spark), question, progress=tell)


def _by_this_process(logs: Logs, question: Question, tell: Tell) -> Report:
    from spark_jobs.report.cube import LocalReportEngine
    from spark_jobs.report.job import make_report

    step, pieces = "", 0

    def next_step(what: str) -> None:
        nonlocal step, pieces
        step, pieces = what, 0
        tell(what)

    def piece() -> None:
        nonlocal pieces
        pieces += 1
        tell(f"{step} ({pieces} pieces)")

    return make_report(logs, LocalReportEngine(piece), question, progress=next_step)


def _choose(engine: EngineOrAuto, master: str | None, logs: Logs) -> EngineOrAuto:
    """Return the engine to use; `auto` chooses the engine by the number of records.

    Raises as reading logs does.
    """
    if engine is not EngineOrAuto.AUTO:
        return engine
    if master is not None:
        return EngineOrAuto.SPARK
    records = sum(logs.log(name).end_offset() for name in logs.names())
    return EngineOrAuto.SPARK if records >= LARGE else EngineOrAuto.LOCAL


@contextmanager
def _progress_line() -> Iterator[Tell]:
    """Show the current step of the report on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True).status("looking") as status:
        yield status.update


def _print(made: Report, summary: Summary) -> None:
    from spark_jobs.report.words import count, duration, plain, share, size

    n, prices = summary.numbers, made.question.prices
    typer.echo(summary.lead)
    stored = n["stored_bytes"] or 0
    p50, p99 = n["commit_latency_p50_ms"], n["commit_latency_p99_ms"]
    late = "-" if p50 is None or p99 is None else f"{duration(p50)} / {duration(p99)}"
    rows = [
        ("Cost a month", f"{prices.text(n['cost_month'] or 0)} ({plain(prices.source)})"),
        ("of it uploads", prices.text(n["cost_requests_month"] or 0)),
        ("of it dead and pinned", prices.text(n["cost_pinned_month"] or 0)),
        ("Stored", f"{size(stored)} in {count(n['objects_kept'] or 0)} objects"),
        (
            "Dead and pinned",
            f"{size(n['pinned_bytes'] or 0)} ({share(n['pinned_bytes'] or 0, stored)})",
        ),
        ("Written", f"{size(n['written_bytes'] or 0)} in {duration((n['window_s'] or 0) * 1000)}"),
        ("Uploads a second", count(n["puts_per_second"] or 0)),
        ("Commit latency p50 / p99", late),
        ("GETs to read a MiB", "-" if n["gets_per_mib"] is None else count(n["gets_per_mib"])),
        ("Stored in 90 days", size(n["stored_bytes_in_90_days"] or 0)),
        ("Partitions' Gini", f"{n['gini_partitions']:.2f}"),
    ]
    typer.echo(table(("What", "How much"), rows))
    for finding in summary.findings:
        typer.echo(f"{finding.about}: {finding.text}")
