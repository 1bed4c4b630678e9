"""`esker spark retention`: plans retention, shows the plan, and applies it, in three steps.

A plan is a file that can be reviewed before anything is deleted. Planning needs no coordinator and
no delete permission; applying needs the coordinators, which judge every row again.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import AsJson, Controller, Server, Target, TimeoutMs, target
from esker.commands.spark.common import (
    ENVIRONMENT,
    INTERRUPTED,
    PARTLY,
    STALE,
    USAGE,
    EngineOrAuto,
    apply_command,
    bar,
    note_completed_plan,
    print_result,
    reason,
    require_writable_file,
    stop,
    stop_for_missing_package,
)
from esker.commands.spark.coordinators import coordinators
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
from esker.commands.spark.retention_tables import SHOWN_ROWS, plan_json, plan_lines
from esker.commands.spark.session import MEMORY, Debug, Master, Memory, SparkLog, spark_session
from esker.commands.spark.store import Endpoint, Region
from raft.net.runner import run
from records.kafka_errors import ErrorCode
from spark_jobs.plans.apply import ROWS_OF_REQUEST, Journal, Outcome, apply_plan
from spark_jobs.plans.retention_plan import Plan, PlanError, read_plan, write_plan
from spark_jobs.prices import Prices
from spark_jobs.session.java import cache_directory

if TYPE_CHECKING:
    from spark_jobs.readers.engines import Engine

app = CommandGroup(
    "Plan and apply the retention of topics.",
    epilog="Example: esker spark retention show plan.jsonl",
)

_AT: Final = "--bootstrap-controller 127.0.0.1:9102"
PLAN_EXAMPLE = f"Example: esker spark retention plan --out plan.jsonl {_AT}"
SHOW_EXAMPLE = "Example: esker spark retention show plan.jsonl"
APPLY_EXAMPLE = f"Example: esker spark retention apply plan.jsonl {_AT}"

SPARK_PIECES: Final = 24
"""Pieces of 64 MiB from which `auto` takes Spark: its start takes as long as they take here."""

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="Path of a plan file that the plan subcommand wrote.")
]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Path of the file to write the plan to.")]
EngineOption = Annotated[
    EngineOrAuto,
    typer.Option(
        help="Engine that computes the plan: local, spark or auto (local below 1.5 GiB of "
        "logs); default: auto."
    ),
]
Digests = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Directory to cache summaries of logs in; default: ~/.cache/esker/digests.",
    ),
]
Now = Annotated[
    int | None,
    typer.Option(
        metavar="MS",
        help="Time at which the ages of records are computed, in ms since 1970 UTC; default: now.",
    ),
]


@app.command(epilog=PLAN_EXAMPLE)
def plan(
    out: Out,
    log_dir: LogDir = None,
    bootstrap_controller: FromQuorum = None,
    archive: Archive = None,
    endpoint: Endpoint = None,
    region: Region = None,
    engine: EngineOption = EngineOrAuto.AUTO,
    digests: Digests = None,
    prices: PriceFile = None,
    now: Now = None,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Plan retention of topics whose esker.retention.enforcer is external or both.

    Changes nothing: the plan is a file, to be shown and applied within an hour.
    """
    require_writable_file(out)
    inputs = inputs_of(
        log_dir, bootstrap_controller, archive, timeout_ms, endpoint=endpoint, region=region
    )
    paid = prices_of(prices)
    now_ms = time.time_ns() // 1_000_000 if now is None else now
    try:
        from spark_jobs.retention import sweep
        from spark_jobs.retention.digest_cache import DigestCache
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    kept = DigestCache(cache_directory() / "digests" if digests is None else digests)
    try:
        found = sweep.survey(open_logs(inputs))
        large = master is not None or len(found.pieces) >= SPARK_PIECES
        takes_spark = engine is EngineOrAuto.SPARK or (engine is EngineOrAuto.AUTO and large)
        with (
            _engine(takes_spark, master, memory, spark_log, debug=debug) as chosen,
            bar("planning", sweep.PASSES) as step,
        ):
            made = sweep.plan_survey(found, now_ms, chosen, kept, lambda _: step(1))
        write_plan(made, out)
    except reading_errors() as error:
        stop_reading(error)
    _print_plan(made, paid, as_json=as_json)
    if not as_json and made.rows:
        how = apply_command("retention", out, bootstrap_controller)
        typer.echo(f"Written to {out}. To apply it: {how}")


@contextmanager
def _engine(
    takes_spark: bool, master: str | None, memory: str, spark_log: Path | None, *, debug: bool
) -> Iterator[Engine]:
    from spark_jobs.readers.engines import LocalEngine, SparkEngine

    if not takes_spark:
        yield LocalEngine(helper=True)
        return
    with spark_session("retention", master, memory, spark_log, debug=debug) as session:
        yield SparkEngine(session)


@app.command(epilog=SHOW_EXAMPLE)
def show(file: PlanFile, prices: PriceFile = None, as_json: AsJson = False) -> None:
    """Print a plan: new log start offsets, freed objects, and topics that pin other objects."""
    _print_plan(_read(file), prices_of(prices), as_json=as_json)


@app.command(epilog=APPLY_EXAMPLE)
def apply(
    file: PlanFile,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    allow_large: Annotated[
        bool,
        typer.Option(
            "--allow-large",
            help="Apply a plan that removes over 25 % of all live bytes; default: such a "
            "plan is refused.",
        ),
    ] = False,
    rows_per_request: Annotated[
        int,
        typer.Option(
            min=1,
            max=ROWS_OF_REQUEST,
            metavar="N",
            help="Maximum number of partitions in one request to a coordinator; default: 100.",
        ),
    ] = ROWS_OF_REQUEST,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Apply a retention plan by partition; coordinators refuse the plan's outdated rows.

    Answers are written to a journal beside the plan: if interrupted, run the same command again.
    """
    at = target(bootstrap_controller, bootstrap_server)
    made = _read(file)
    if made.is_large and not allow_large:
        stop(f"{file} removes more than 25 % of all bytes; check it with `show`, and apply it with "
             "--allow-large if that is intended", USAGE)  # fmt: skip
    journal = Journal(file.with_name(f"{file.name}.{made.plan_id}.journal"), made)
    try:
        with bar("applying", len(made.rows)) as step:
            before = journal.read()
            outcome = run(_apply(at, made, journal, step, timeout_ms, rows_per_request))
    except KeyboardInterrupt:
        stop("interrupted; run the same command to continue", INTERRUPTED)
    except (OSError, ValueError) as error:
        stop(reason(error), ENVIRONMENT)
    if made.rows and len(before.applied) + len(before.refused) == len(made.rows) and not as_json:
        typer.echo(note_completed_plan(journal.path), err=True)
    _print_outcome(made, outcome, as_json=as_json)


async def _apply(
    at: Target, made: Plan, journal: Journal, step: Any, timeout_ms: int, rows_of_request: int
) -> Outcome:
    async with coordinators(at, timeout_ms) as coordinator:
        return await apply_plan(
            made, journal, coordinator, progress=step, rows_of_request=rows_of_request
        )


def _read(file: Path) -> Plan:
    try:
        return read_plan(file)
    except PlanError as error:
        stop(str(error), STALE)
    except OSError as error:
        stop(reason(error), ENVIRONMENT)


# --- output -------------------------------------------------------------------------------------


def _print_plan(made: Plan, prices: Prices, *, as_json: bool) -> None:
    print_result(lambda: plan_json(made, prices), lambda: plan_lines(made, prices), as_json=as_json)


def _print_outcome(made: Plan, outcome: Outcome, *, as_json: bool) -> None:
    left = len(made.rows) - len(outcome.applied) - len(outcome.refused)
    short = outcome.stopped_short(made)
    if as_json:
        refused = {str(row): code for row, code in sorted(outcome.refused.items())}
        answer = {"plan_id": made.plan_id, "applied": len(outcome.applied), "refused": refused}
        answer |= {"stopped_short": {str(row): outcome.applied[row] for row in short}}
        typer.echo(json.dumps(answer | {"left": left, "unanswered": outcome.unanswered}))
    else:
        typer.echo(f"{len(outcome.applied)} of {len(made.rows)} rows applied")
        for row in short[:SHOWN_ROWS]:
            planned, log_start = made.rows[row], outcome.applied[row]
            where = f"{planned.topic}-{planned.partition}"
            typer.echo(f"  {where} begins at {log_start}, not at {planned.new_log_start}: "
                       "retention keeps the next run (clocks differ, or the plan was made from a "
                       "copy of another cluster)")  # fmt: skip
        for row, code in sorted(outcome.refused.items())[:SHOWN_ROWS]:
            where = f"{made.rows[row].topic}-{made.rows[row].partition}"
            typer.echo(f"  {where} refused: {_why(code)}")
        if outcome.unanswered is not None:
            typer.echo(f"  {left} rows left: {outcome.unanswered}")
            typer.echo("  Run the same command to continue.")
    if outcome.is_stale():
        raise typer.Exit(STALE)
    if outcome.refused or left:
        raise typer.Exit(PARTLY)


_WHY: Final = {
    ErrorCode.POLICY_VIOLATION: "the topic's settings now keep it, or leave retention to others",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the partition was deleted",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the partition has no such offset",
    ErrorCode.INVALID_TIMESTAMP: "the plan has expired: make a new one (or clocks differ)",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the plan is another cluster's",
}


def _why(code: int) -> str:
    return _WHY.get(ErrorCode(code), f"error code {code}") if code in set(ErrorCode) else str(code)
