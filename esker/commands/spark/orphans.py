"""`esker spark orphans`: finds unreferenced objects, and references to missing objects.

    esker spark orphans plan | show | apply      objects in the store that no log can refer to
    esker spark orphans dangling                 objects in the logs that the store does not have

Orphans cost money, and are planned, shown and applied in three steps. Dangling references are data
loss, and are only reported.

Source: docs/design/pipeline.md#orphans; docs/orphans.md.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import AsJson, Controller, Server, Target, TimeoutMs, target
from esker.commands.spark.common import (
    DATA_LOSS,
    ENVIRONMENT,
    INTERRUPTED,
    PARTLY,
    STALE,
    USAGE,
    EngineName,
    Step,
    apply_command,
    bar,
    note_completed_plan,
    print_result,
    reason,
    require_directory,
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
    may_be_behind,
    open_logs,
    reading_errors,
    stop_reading,
)
from esker.commands.spark.orphans_text import (
    dangling_json,
    dangling_lines,
    outcome_json,
    outcome_lines,
    plan_json,
    plan_lines,
)
from esker.commands.spark.session import MEMORY, Debug, Master, Memory, SparkLog, spark_session
from esker.commands.spark.store import Endpoint, Region, StoreUri, store_for_command
from raft.net.runner import run

if TYPE_CHECKING:
    from spark_jobs.orphans.apply import OrphansPlan, Progress
    from spark_jobs.orphans.listing import Naming
    from spark_jobs.orphans.scan import Rules
    from spark_jobs.orphans.spark_listing import AnyListing
    from spark_jobs.readers.inputs import Inputs
    from spark_jobs.readers.object_store import ObjectStore, StoreOptions

app = CommandGroup(
    "Find unreferenced objects, and references to missing objects.",
    epilog="Example: esker spark orphans show plan.jsonl",
)

_STORE: Final = "--store esker-data/objects"
_AT: Final = "--bootstrap-controller 127.0.0.1:9102"
PLAN_EXAMPLE = (
    f"Example: esker spark orphans plan {_STORE} --listings sweeps --out plan.jsonl {_AT}"
)
SHOW_EXAMPLE = "Example: esker spark orphans show plan.jsonl"
APPLY_EXAMPLE = f"Example: esker spark orphans apply plan.jsonl {_AT}"
DANGLING_EXAMPLE = f"Example: esker spark orphans dangling {_STORE} {_AT}"

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}
_DURATION: Final = re.compile(r"([0-9]{1,6})([smhd])")


PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="Path of a plan file that the plan subcommand wrote.")
]
Prefix = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Key prefix of the objects (the brokers' esker.object.key.prefix); default: "
        "no prefix.",
    ),
]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="Engine that lists the store: this process (local) or Spark (spark); default: local."
    ),
]


Listings = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        help="Directory in which all runs of this command record their listings of the object "
        "store.",
    ),
]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Path of the file to write the plan to.")]
Grace = Annotated[
    str,
    typer.Option(
        metavar="72h",
        help="Minimum time between two listings of an orphan, as a number and s, m, h or d; "
        "default: 72h.",
    ),
]
DangerouslyShortGrace = Annotated[
    bool,
    typer.Option(
        "--dangerously-short-grace",
        help="Allow a --grace shorter than 24 hours; default: such a value is refused.",
    ),
]
Listing = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Path of an inventory of the object store: S3's manifest.json, or CSV with the "
        "columns key,size_bytes,modified_ms; default: the object store is listed.",
    ),
]
TakenAt = Annotated[
    int | None,
    typer.Option(
        metavar="MS",
        help="Time at which a CSV inventory was taken, in ms since 1970 UTC; default: the time "
        "in manifest.json.",
    ),
]


@app.command(epilog=PLAN_EXAMPLE)
def plan(
    store: StoreUri,
    listings: Listings,
    out: Out,
    log_dir: LogDir = None,
    bootstrap_controller: FromQuorum = None,
    archive: Archive = None,
    endpoint: Endpoint = None,
    region: Region = None,
    prefix: Prefix = "",
    grace: Grace = "72h",
    dangerously_short_grace: DangerouslyShortGrace = False,
    listing: Listing = None,
    taken_at: TakenAt = None,
    engine: Engine = EngineName.LOCAL,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Plan to remove the objects that two listings of the store have and that no log refers to.

    Changes nothing: the plan is a file, to be shown and applied within an hour.
    """
    from spark_jobs.orphans.scan import OrphansError, Rules
    from spark_jobs.plans.sealed_file import SealError
    from spark_jobs.readers.object_store import StoreOptions

    require_writable_file(out)
    require_directory(listings)
    rules = Rules(grace_ms=_grace(grace, dangerously_short_grace))
    if listing is not None and engine is EngineName.SPARK:
        raise typer.BadParameter("--listing works only with --engine local")
    inputs = inputs_of(
        log_dir, bootstrap_controller, archive, timeout_ms, endpoint=endpoint, region=region
    )
    spark = _Spark(engine, master, memory, spark_log, debug)
    try:
        listings.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".listing-", dir=listings) as scratch,
            store_for_command(store, endpoint, region) as objects,
            spark.lister(objects, Path(scratch), StoreOptions(endpoint, region)) as lister,
        ):
            naming = _naming(inputs, prefix)
            if listing is None:
                taken = lister(naming)
            else:
                taken = _inventory(listing, taken_at, naming, objects.uri, Path(scratch))
            _compare(taken, inputs, naming, objects.uri, listings, out, rules)
    except KeyboardInterrupt:
        stop("interrupted: no plan was written, and this listing does not count", INTERRUPTED)
    except (OrphansError, SealError) as error:
        stop(str(error), STALE)
    except reading_errors() as error:
        stop_reading(error)
    made = _read(out)
    _print_plan(made, as_json=as_json)
    if not as_json and made.file.count:
        how = apply_command("orphans", out, bootstrap_controller)
        typer.echo(f"Written to {out}. To apply it: {how}")


@app.command(epilog=SHOW_EXAMPLE)
def show(file: PlanFile, as_json: AsJson = False) -> None:
    """Print a plan to remove orphaned objects, and the object counts of its listing."""
    _print_plan(_read(file), as_json=as_json)


@app.command(epilog=APPLY_EXAMPLE)
def apply(
    file: PlanFile,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    allow_large: Annotated[
        bool,
        typer.Option(
            "--allow-large",
            help="Apply a plan that deletes over 25 % of the listed bytes; default: such a "
            "plan is refused.",
        ),
    ] = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Hand a plan's objects to their coordinators; brokers delete these objects after a delay.

    Answers are written to a journal beside the plan: if interrupted, run the same command again.
    """
    from spark_jobs.orphans.apply import Journal

    where = target(bootstrap_controller, bootstrap_server)
    made = _read(file)
    if made.is_large and not allow_large:
        stop(f"{file} is for more than 25 % of all listed bytes; check it with `show`, and apply "
             "it with --allow-large if that is intended", USAGE)  # fmt: skip
    journal = Journal(file.with_name(f"{file.name}.{made.plan_id}.journal"), made.plan_id)
    try:
        with bar("applying", made.file.count) as step:
            before = journal.read().rows_done
            done = run(_apply(where, made, journal, step, timeout_ms))
    except KeyboardInterrupt:
        stop("interrupted; run the same command to continue", INTERRUPTED)
    except (OSError, ValueError) as error:
        stop(reason(error), ENVIRONMENT)
    if before and before == made.file.count and not as_json:
        typer.echo(note_completed_plan(journal.path), err=True)
    _print_outcome(made, done, as_json=as_json)


@app.command(epilog=DANGLING_EXAMPLE)
def dangling(
    store: StoreUri,
    log_dir: LogDir = None,
    bootstrap_controller: FromQuorum = None,
    archive: Archive = None,
    endpoint: Endpoint = None,
    region: Region = None,
    prefix: Prefix = "",
    engine: Engine = EngineName.LOCAL,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Check that every object that the logs refer to is in the store; exit with 6 if not.

    Changes and repairs nothing: a lost object can only be restored from the store's own versions
    or from a copy.
    """
    try:
        from spark_jobs.orphans.dangling import find_dangling
        from spark_jobs.orphans.scan import OrphansError
        from spark_jobs.readers.object_store import StoreOptions
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    inputs = inputs_of(
        log_dir, bootstrap_controller, archive, timeout_ms, endpoint=endpoint, region=region
    )
    spark = _Spark(engine, master, memory, spark_log, debug)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="esker-listing-") as scratch,
            store_for_command(store, endpoint, region) as objects,
            spark.lister(objects, Path(scratch), StoreOptions(endpoint, region)) as lister,
        ):
            logs = open_logs(inputs)
            naming = _naming(inputs, prefix)
            found = find_dangling(logs, objects, naming, lambda: lister(naming))
    except KeyboardInterrupt:
        stop("interrupted before the comparison was complete", INTERRUPTED)
    except OrphansError as error:
        stop(reason(error), ENVIRONMENT)
    except reading_errors() as error:
        stop_reading(error)
    print_result(lambda: dangling_json(found), lambda: dangling_lines(found), as_json=as_json)
    if found.lost and bootstrap_controller is None and not as_json:
        typer.echo(may_be_behind(log_dir or archive))
    if found.lost:
        raise typer.Exit(DATA_LOSS)


def _compare(
    taken: AnyListing,
    inputs: Inputs,
    naming: Naming,
    uri: str,
    listings: Path,
    out: Path,
    rules: Rules,
) -> None:
    """Compare a listing of the store with the logs; write the orphans and a removal plan."""
    from spark_jobs.orphans.scan import find_orphans, plan_orphans

    with bar("reading logs", None) as step:
        found = find_orphans(taken, open_logs(inputs), naming, progress=lambda _: step(1))
        plan_orphans(
            found, naming, uri, directory=listings, out=out, rules=rules, made_ms=_now_ms()
        )


# --- listing --------------------------------------------------------------------------------------

Lister = Callable[["Naming"], "AnyListing"]


class _Spark:
    """Makes listings with the chosen engine; a Spark session lives only while it is needed."""

    def __init__(
        self,
        engine: EngineName,
        master: str | None,
        memory: str,
        spark_log: Path | None,
        debug: bool,
    ) -> None:
        if engine is EngineName.LOCAL and master is not None:
            raise typer.BadParameter("--master is for --engine spark")
        self._engine = engine
        self._session = (master, memory, spark_log)
        self._debug = debug

    @contextmanager
    def lister(
        self, store: ObjectStore, directory: Path, options: StoreOptions
    ) -> Iterator[Lister]:
        """Yield a function that lists the store, in Spark or locally with files in `directory`."""
        if self._engine is EngineName.SPARK:
            from spark_jobs.orphans.spark_listing import list_in_spark

            with spark_session("orphans", *self._session, debug=self._debug) as spark:
                yield lambda naming: list_in_spark(spark, store.uri, options, naming, _now_ms)
            return
        from spark_jobs.orphans.listing import take_listing

        def local(naming: Naming) -> AnyListing:
            with bar("listing", 256) as step:
                return take_listing(store, naming, directory, _now_ms, progress=step)

        yield local


def _inventory(
    file: Path, taken_at: int | None, naming: Naming, uri: str, directory: Path
) -> AnyListing:
    from spark_jobs.orphans.inventory import InventoryError, read_inventory
    from spark_jobs.orphans.listing import keep_listing

    try:
        inventory = read_inventory(file, uri, taken_at)
        if inventory.taken_ms > _now_ms():  # the grace would be over at once
            stop(f"{file} has the time {inventory.taken_ms} ms, which is in the future", STALE)
        return keep_listing(inventory.found, naming, directory, inventory.taken_ms)
    except InventoryError as error:
        stop(reason(error), ENVIRONMENT)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _naming(inputs: Inputs, prefix: str) -> Naming:
    """Return the key prefix and cluster id with which the keys of these logs' objects begin."""
    from spark_jobs.orphans.listing import Naming
    from spark_jobs.tables.ancestors import ancestors_of

    logs = open_logs(inputs)
    return Naming(prefix.strip("/"), logs.cluster_id, ancestors_of(logs).clusters)


def _grace(text: str, dangerously_short: bool) -> int:
    from spark_jobs.orphans.scan import SHORTEST_GRACE_MS

    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration like 72h or 4d", param_hint="--grace")
    grace_ms = int(found[1]) * _UNITS_MS[found[2]]
    if grace_ms < SHORTEST_GRACE_MS and not dangerously_short:
        raise typer.BadParameter(
            f"{text} is less than 24h: a broker may still be uploading such an object; if you know "
            "that none is, add --dangerously-short-grace",
            param_hint="--grace",
        )
    return grace_ms


# --- applying -------------------------------------------------------------------------------------


async def _apply(
    at: Target, made: OrphansPlan, journal: Any, step: Step, timeout_ms: int
) -> Progress:
    from spark_jobs.orphans.apply import apply_orphans

    async with coordinators(at, timeout_ms) as coordinator:
        return await apply_orphans(made, journal, coordinator, progress=step)


# --- output ---------------------------------------------------------------------------------------


def _read(file: Path) -> OrphansPlan:
    from spark_jobs.orphans.apply import OrphansPlan
    from spark_jobs.plans.sealed_file import SealError

    try:
        return OrphansPlan(file)
    except SealError as error:
        stop(str(error), STALE)
    except OSError as error:
        stop(reason(error), ENVIRONMENT)


def _print_plan(made: OrphansPlan, *, as_json: bool) -> None:
    print_result(lambda: plan_json(made), lambda: plan_lines(made), as_json=as_json)


def _print_outcome(made: OrphansPlan, done: Progress, *, as_json: bool) -> None:
    print_result(
        lambda: outcome_json(made, done), lambda: outcome_lines(made, done), as_json=as_json
    )
    if done.whole_refusal:
        raise typer.Exit(STALE)
    if done.refused or done.rows_done < made.file.count:
        raise typer.Exit(PARTLY)
