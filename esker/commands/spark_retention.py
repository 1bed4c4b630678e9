"""`esker spark retention`: planned, shown and applied in three steps.

A plan is a file, and nothing is deleted that nobody has looked at. It is made from a log directory;
how much of that is committed, the quorum is asked.

Source: DESIGN §10.
"""

from __future__ import annotations

import importlib
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import typer

from coordinator.client import CoordinatorClient, CoordinatorError, ErrorCode
from esker.admin import AdminError, describe_quorum, describe_quorum_by_broker
from esker.client import ClientError, KafkaClient
from esker.commands.controlled import AsJson, Controller, Server, Target, TimeoutMs, target
from esker.commands.spark_common import ENVIRONMENT, INTERRUPTED, PARTLY, STALE, USAGE, bar, stop
from esker.commands.tables import table
from raft.net.runner import run
from records.errors import RecordError
from records.rpc.coordinator import ApplyRetentionRequest, ApplyRetentionResponse
from spark_jobs.applying import Coordinator, Journal, Outcome, apply_plan
from spark_jobs.plan_file import Plan, PlanError, PlanRow, read_plan, write_plan

app = typer.Typer(no_args_is_help=True, help="What is older or more than a topic keeps.")

_AT: Final = "--bootstrap-controller 127.0.0.1:9093"
PLAN_EXAMPLE = f"Example: esker spark retention plan --log-dir data/node1 --out plan.jsonl {_AT}"
SHOW_EXAMPLE = "Example: esker spark retention show plan.jsonl"
APPLY_EXAMPLE = f"Example: esker spark retention apply plan.jsonl {_AT}"

SHOWN_ROWS: Final = 20
REASONS: Final = {1: "retention.ms", 2: "retention.bytes"}

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan's file.")]


@app.command(epilog=PLAN_EXAMPLE)
def plan(
    log_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="A node's log directory; any node's will do.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the plan is written to.")],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    now: Annotated[
        int | None, typer.Option(metavar="MS", help="Count ages from here; default: the clock.")
    ] = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Work out what retention would remove, of topics with esker.retention.enforcer=external|both.

    Nothing is changed: the plan is a file, to be shown and applied within an hour.
    """
    at = target(bootstrap_controller, bootstrap_server)
    now_ms = time.time_ns() // 1_000_000 if now is None else now
    sweep = _sweep()
    try:
        names = sweep.logs_in(log_dir)
        committed = {name: _high_watermark(at, name, timeout_ms) for name in names}
        with bar("reading", len(names)) as step:
            logs = sweep.ReplicaLogs(log_dir, committed)
            made = sweep.make_plan(logs, now_ms=now_ms, progress=lambda _: step(1))
        write_plan(made, out)
    except (*sweep.READING_ERRORS, RecordError, AdminError, OSError) as error:
        stop(str(error), ENVIRONMENT)
    _print_plan(made, as_json=as_json)
    if not as_json:
        typer.echo(f"Written to {out}. To apply it: esker spark retention apply {out}")


@app.command(epilog=SHOW_EXAMPLE)
def show(file: PlanFile, as_json: AsJson = False) -> None:
    """Print what a plan would do."""
    _print_plan(_read(file), as_json=as_json)


@app.command(epilog=APPLY_EXAMPLE)
def apply(
    file: PlanFile,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    allow_large: Annotated[
        bool, typer.Option("--allow-large", help="Also if it removes over 25 % of all bytes.")
    ] = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Apply a plan, row by row; the coordinator refuses rows that no longer hold.

    What was answered is written beside the plan: if it is interrupted, the same command goes on.
    """
    at = target(bootstrap_controller, bootstrap_server)
    made = _read(file)
    if made.is_large and not allow_large:
        stop(f"{file} removes more than 25 % of all bytes; look at it with `show`, and if it is "
              "meant, apply it with --allow-large", USAGE)  # fmt: skip
    journal = Journal(file.with_name(file.name + ".journal"), made)
    try:
        with bar("applying", len(made.rows)) as step:
            outcome = run(_apply(at, made, journal, step, timeout_ms))
    except KeyboardInterrupt:
        stop(f"interrupted; to go on: esker spark retention apply {file}", INTERRUPTED)
    except (OSError, ValueError) as error:
        stop(str(error), ENVIRONMENT)
    _print_outcome(file, made, outcome, as_json=as_json)


async def _apply(at: Target, made: Plan, journal: Journal, step: Any, timeout_ms: int) -> Outcome:
    addresses = [(one.host, one.port) for one in at.addresses]
    clients: dict[int, CoordinatorClient] = {}

    def coordinator(number: int) -> Coordinator:
        if at.brokers:
            return _ThroughBrokers(at, timeout_ms)
        if number not in clients:
            clients[number] = CoordinatorClient(addresses, partition=number)
        return clients[number]

    try:
        return await apply_plan(made, journal, coordinator, progress=step)
    finally:
        for client in clients.values():
            await client.close()


class _ThroughBrokers:
    """The coordinators, asked by way of a broker."""

    def __init__(self, at: Target, timeout_ms: int) -> None:
        self._at = at
        self._timeout_ms = timeout_ms

    async def apply_retention(self, request: ApplyRetentionRequest) -> ApplyRetentionResponse:
        try:
            async with KafkaClient(self._at.addresses, timeout_ms=self._timeout_ms) as client:
                return await client.patiently(
                    lambda: client.ask_any(request, ApplyRetentionResponse)
                )
        except ClientError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, str(error)) from error


def _high_watermark(at: Target, log: str, timeout_ms: int) -> int:
    topic, _, partition = log.rpartition("-")
    ask = describe_quorum_by_broker if at.brokers else describe_quorum
    found = run(ask(at.addresses, topic, int(partition), timeout_ms=timeout_ms))
    return found.partition.high_watermark


def _sweep() -> ModuleType:
    """The module that reads logs, which needs Arrow: not every installation has it."""
    try:
        return importlib.import_module("spark_jobs.sweep")
    except ModuleNotFoundError as error:
        stop(f"{error.name} is not installed: pip install 'esker[spark]'", ENVIRONMENT)


def _read(file: Path) -> Plan:
    try:
        return read_plan(file)
    except PlanError as error:
        stop(str(error), STALE)
    except OSError as error:
        stop(str(error), ENVIRONMENT)


# --- what people see ----------------------------------------------------------------------------


def _print_plan(made: Plan, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_as_json(made)))
        return
    at = datetime.fromtimestamp(made.now_ms / 1000, UTC).isoformat(timespec="seconds")
    typer.echo(f"Plan {made.plan_id} of cluster {made.cluster_id}, as of {at}")
    if not made.rows:
        typer.echo("Nothing to remove.")
    else:
        rows = sorted(made.rows, key=lambda row: -row.bytes)[:SHOWN_ROWS]
        typer.echo(table(_HEADINGS, [_cells(row) for row in rows]))
        if len(made.rows) > len(rows):
            typer.echo(f"... and {len(made.rows) - len(rows)} more")
    for number, effect in sorted(made.effects.items()):
        typer.echo(
            f"Coordinator {number}: {effect.removed_bytes} of {effect.live_bytes} live bytes go; "
            f"{effect.objects_freed} objects of {effect.freed_bytes} bytes become free"
        )
        if effect.pinned_bytes:
            pinning = ", ".join(f"{topic} ({n})" for topic, n in list(effect.pinned_by.items())[:5])
            typer.echo(f"  {effect.pinned_bytes} dead bytes stay, pinned by {pinning}")


_HEADINGS: Final = (
    "Topic", "Partition", "LogStart", "NewLogStart", "Runs", "Bytes", "Because",
)  # fmt: skip


def _cells(row: PlanRow) -> tuple[str, ...]:
    numbers = (row.partition, row.old_log_start, row.new_log_start, row.runs, row.bytes)
    return (row.topic, *map(str, numbers), f"{REASONS[row.reason]}={row.limit}")


def _as_json(made: Plan) -> dict[str, Any]:
    effects = {
        str(number): {name: getattr(effect, name) for name in effect.__slots__}
        for number, effect in made.effects.items()
    }
    return {
        "plan_id": made.plan_id,
        "cluster_id": made.cluster_id,
        "now_ms": made.now_ms,
        "expires_at_ms": made.expires_at_ms,
        "logs": dict(made.logs),
        "rows": [row._asdict() for row in made.rows],
        "effects": effects,
    }


def _print_outcome(file: Path, made: Plan, outcome: Outcome, *, as_json: bool) -> None:
    left = len(made.rows) - len(outcome.applied) - len(outcome.refused)
    if as_json:
        refused = {str(row): code for row, code in sorted(outcome.refused.items())}
        told = {"plan_id": made.plan_id, "applied": len(outcome.applied), "refused": refused}
        typer.echo(json.dumps(told | {"left": left, "unanswered": outcome.unanswered}))
    else:
        typer.echo(f"{len(outcome.applied)} of {len(made.rows)} rows applied")
        for row, code in sorted(outcome.refused.items())[:SHOWN_ROWS]:
            where = f"{made.rows[row].topic}-{made.rows[row].partition}"
            typer.echo(f"  {where} refused: {_why(code)}")
        if outcome.unanswered is not None:
            typer.echo(f"  {left} rows left: {outcome.unanswered}")
            typer.echo(f"  To go on: esker spark retention apply {file}")
    if outcome.is_stale():
        raise typer.Exit(STALE)
    if outcome.refused or left:
        raise typer.Exit(PARTLY)


_WHY: Final = {
    ErrorCode.POLICY_VIOLATION: "the topic's settings keep more now, or leave it to others",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic is gone",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the partition is gone",
    ErrorCode.OFFSET_OUT_OF_RANGE: "there is no such offset",
    ErrorCode.INVALID_TIMESTAMP: "the plan has expired: make a new one",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the plan is another cluster's",
}


def _why(code: int) -> str:
    return _WHY.get(ErrorCode(code), f"error code {code}") if code in set(ErrorCode) else str(code)
