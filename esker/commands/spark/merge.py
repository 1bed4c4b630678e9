"""`esker spark merge`: plans merges of small objects, shows the plan, and applies it.

Brokers merge by themselves, slowly. A backlog (a cluster whose brokers had no time, or were told
not to) is merged faster by a job: on this machine, or on the executors of Spark. Planning reads
only logs. Applying reads and writes the object store, and the coordinators judge every range again.

Source: docs/design/pipeline.md#plans, docs/merging.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import AsJson, Controller, Server, Target, TimeoutMs, target
from esker.commands.spark.common import (
    ENVIRONMENT,
    INTERRUPTED,
    PARTLY,
    STALE,
    EngineOrAuto,
    Step,
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
from esker.commands.spark.merge_text import outcome_json, outcome_lines, plan_json, plan_lines
from esker.commands.spark.session import MEMORY, Debug, Master, Memory, SparkLog, spark_session
from esker.commands.spark.store import Endpoint, Region, StoreUri, store_for_command
from raft.net.runner import run

if TYPE_CHECKING:
    from spark_jobs.merge.apply import Journal, Outcome
    from spark_jobs.merge.plan import MergePlan
    from spark_jobs.readers.engines import Engine
    from spark_jobs.readers.object_store import ObjectStore

app = CommandGroup(
    "Plan and apply merges of small objects.",
    epilog="Example: esker spark merge show plan.jsonl",
)

_AT: Final = "--bootstrap-controller 127.0.0.1:9102"
_STORE: Final = "--store esker-data/objects"
PLAN_EXAMPLE = f"Example: esker spark merge plan --out plan.jsonl {_AT}"
SHOW_EXAMPLE = "Example: esker spark merge show plan.jsonl"
APPLY_EXAMPLE = f"Example: esker spark merge apply plan.jsonl {_STORE} {_AT}"

MIB: Final = 1 << 20
SPARK_BYTES: Final = 8 << 30
"""Source bytes from which `auto` takes Spark: a machine merges them in a few minutes."""

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="Path of a plan file that the plan subcommand wrote.")
]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Path of the file to write the plan to.")]
Prefix = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Key prefix of the objects (the brokers' esker.object.key.prefix); default: "
        "no prefix.",
    ),
]
ObjectMib = Annotated[
    int,
    typer.Option(
        min=1,
        max=256,
        metavar="MIB",
        help="Size of a merged object in MiB; a task holds twice as much in memory; default: 64.",
    ),
]
MaxMib = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="MIB",
        help="Largest total size of the objects that the plan reads, in MiB; default: no limit.",
    ),
]
MinAgeMs = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="MS",
        help="Age of the youngest runs of batches that are merged, in ms (the brokers' "
        "esker.compaction.min.age.ms); default: 60000.",
    ),
]
MaxWaitMs = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="MS",
        help="Age of the oldest run from which small objects are merged into one that is not "
        "full, in ms (esker.compaction.max.wait.ms); default: 600000.",
    ),
]
MinSavedRuns = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="COUNT",
        help="Number of runs that a merge into an object that is not full saves at least "
        "(esker.compaction.min.saved.runs); default: 16.",
    ),
]
EngineOption = Annotated[
    EngineOrAuto,
    typer.Option(
        help="Engine that rewrites objects: local, spark or auto (local below 8 GiB); "
        "default: auto."
    ),
]
MaxMibPerSecond = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="MIB",
        help="Rate at which each of the parallel tasks reads and writes, in MiB per second; "
        "default: 0 (no limit).",
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
    prefix: Prefix = "",
    object_mib: ObjectMib = 64,
    max_mib: MaxMib = None,
    min_age_ms: MinAgeMs = 60_000,
    max_wait_ms: MaxWaitMs = 600_000,
    min_saved_runs: MinSavedRuns = 16,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Plan merges of small objects by the brokers' own rules, the most profitable first.

    Changes nothing: the plan is a file, to be shown and applied.
    """
    require_writable_file(out)
    inputs = inputs_of(
        log_dir, bootstrap_controller, archive, timeout_ms, endpoint=endpoint, region=region
    )
    try:
        from diskless.compaction.planner import MergeSettings
        from spark_jobs.merge.plan import PlanSettings, write_plan
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    max_bytes = None if max_mib is None else max_mib * MIB
    merging = MergeSettings(min_age_ms, max_wait_ms, min_saved_runs)
    settings = PlanSettings(prefix.strip("/"), object_mib * MIB, max_bytes, merging)
    now_ms = time.time_ns() // 1_000_000
    try:
        with bar("planning", None) as step:
            write_plan(open_logs(inputs), out, settings, now_ms=now_ms, progress=step)
    except KeyboardInterrupt:
        stop("interrupted: no plan was written", INTERRUPTED)
    except reading_errors() as error:
        stop_reading(error)
    made = _read(out)
    _print_plan(made, as_json=as_json)
    if not as_json and made.merge_count:
        where = bootstrap_controller or "HOST:PORT"
        typer.echo(f"Written to {out}. To apply it: esker spark merge apply {out} --store STORE "
                   f"--bootstrap-controller {where}")  # fmt: skip


@app.command(epilog=SHOW_EXAMPLE)
def show(file: PlanFile, as_json: AsJson = False) -> None:
    """Print a plan of merges: the topics, runs and bytes, and the GETs per MiB before and after."""
    _print_plan(_read(file), as_json=as_json)


@app.command(epilog=APPLY_EXAMPLE)
def apply(
    file: PlanFile,
    store: StoreUri,
    endpoint: Endpoint = None,
    region: Region = None,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    engine: EngineOption = EngineOrAuto.AUTO,
    max_mib_per_second: MaxMibPerSecond = 0,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Merge the objects of a plan; coordinators refuse ranges that have changed meanwhile.

    Finished merges are written to a journal beside the plan: if interrupted, run the same command
    again. Nothing is deleted here: brokers delete objects that no run refers to any more.
    """
    from spark_jobs.merge.apply import Journal, WrongClusterError

    at = target(bootstrap_controller, bootstrap_server)
    made = _read(file)
    journal = Journal(file.with_name(f"{file.name}.{made.plan_id}.journal"), made.plan_id)
    large = master is not None or made.file.end["bytes"] >= SPARK_BYTES
    takes_spark = engine is EngineOrAuto.SPARK or (engine is EngineOrAuto.AUTO and large)
    if engine is EngineOrAuto.LOCAL and master is not None:
        raise typer.BadParameter("--master is for --engine spark")
    try:
        before = len(journal.read().done)
        if before == made.merge_count:
            outcome = journal.read()
        else:
            with (
                store_for_command(store, endpoint, region) as objects,
                _engine(takes_spark, master, memory, spark_log, debug=debug) as chosen,
                bar("merging", made.merge_count) as step,
            ):
                rate = max_mib_per_second * MIB
                outcome = run(_apply(at, made, journal, objects, chosen, rate, step, timeout_ms))
    except KeyboardInterrupt:
        stop("interrupted; run the same command to continue", INTERRUPTED)
    except WrongClusterError as error:
        stop(f"{file} is of another cluster, or of another --prefix: {error}", STALE)
    except (OSError, ValueError) as error:
        stop(reason(error), ENVIRONMENT)
    if before and before == made.merge_count and not as_json:
        typer.echo(note_completed_plan(journal.path), err=True)
    print_result(
        lambda: outcome_json(made, outcome), lambda: outcome_lines(made, outcome), as_json=as_json
    )
    if outcome.left or len(outcome.done) < made.merge_count:
        raise typer.Exit(PARTLY)


async def _apply(
    at: Target,
    made: MergePlan,
    journal: Journal,
    store: ObjectStore,
    engine: Engine,
    bytes_per_second: int,
    step: Step,
    timeout_ms: int,
) -> Outcome:
    from spark_jobs.merge.apply import apply_merges

    async with coordinators(at, timeout_ms) as coordinator:
        return await apply_merges(
            made, journal, coordinator, store, engine,
            bytes_per_second=bytes_per_second, progress=step,
        )  # fmt: skip


@contextmanager
def _engine(
    takes_spark: bool, master: str | None, memory: str, spark_log: Path | None, *, debug: bool
) -> Iterator[Engine]:
    from spark_jobs.readers.engines import LocalEngine, SparkEngine

    if not takes_spark:
        yield LocalEngine(helper=True)
        return
    with spark_session("merge", master, memory, spark_log, debug=debug) as session:
        yield SparkEngine(session)


def _read(file: Path) -> MergePlan:
    from spark_jobs.merge.plan import MergePlan
    from spark_jobs.plans.sealed_file import SealError

    try:
        return MergePlan(file)
    except SealError as error:
        stop(str(error), STALE)
    except OSError as error:
        stop(reason(error), ENVIRONMENT)


def _print_plan(made: MergePlan, *, as_json: bool) -> None:
    print_result(lambda: plan_json(made), lambda: plan_lines(made), as_json=as_json)
