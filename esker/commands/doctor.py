"""`esker doctor`: check this machine for what the Spark jobs need, and a cluster for its backlog.

Source: docs/design/pipeline.md#exit-codes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from esker.commands.cluster_access import AsJson, target
from esker.commands.compaction import Backlog, find_backlogs
from esker.commands.spark.common import ENVIRONMENT, INTERRUPTED, stop
from esker.commands.spark.session import Master
from esker.commands.spark.store import Endpoint, Region
from esker.commands.text_tables import table
from esker.doctor import Check, State, examine, passed

app = typer.Typer(add_completion=False)

EXAMPLE: Final = "Example: esker doctor --start"
CLUSTER_TIMEOUT_MS: Final = 30_000
LEAST_SAVED_RUNS: Final = 1_000  # fewer are the last minutes', which are not merged yet
NAMES: Final = {State.OK: "ok", State.NOTE: "note", State.MISSING: "MISSING"}


@app.command(epilog=EXAMPLE)
def doctor(
    start: Annotated[
        bool,
        typer.Option(
            "--start",
            help="Also start Spark and run a small job; default: Spark is started only with "
            "--master.",
        ),
    ] = False,
    master: Master = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|s3://BUCKET",
            help="Directory or s3://BUCKET of an object store to check by listing it; default: "
            "no object store is checked.",
        ),
    ] = None,
    endpoint: Endpoint = None,
    region: Region = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,...]",
            help="Brokers of a cluster whose merging and compaction are to be checked; default: no "
            "cluster is checked.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine can run the jobs of `esker spark`.

    With --bootstrap-server, also check how far the cluster's topics are merged and compacted.

    Exit code 3 if a requirement is missing.
    """
    checks = list(examine())
    try:
        if store is not None:
            checks += _store(store, endpoint, region)
        if bootstrap_server is not None:
            backlogs = find_backlogs(target(None, bootstrap_server), (), CLUSTER_TIMEOUT_MS)
            checks += merging_checks(backlogs)
        if start or master is not None:
            checks += _start(master)
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)
    if as_json:
        results = [_as_json(check) for check in checks]
        typer.echo(json.dumps({"ok": passed(checks), "checks": results}))
    else:
        cells = [(check.name, NAMES[check.state], check.found) for check in checks]
        typer.echo(table(("Check", "State", "Found"), cells))
        for check in checks:
            if check.hint:
                typer.echo(f"{check.name}: {check.hint}")
    if not passed(checks):
        raise typer.Exit(ENVIRONMENT)


def _as_json(check: Check) -> dict[str, Any]:
    fields = {"name": check.name, "state": check.state.value, "found": check.found}
    return fields | ({"hint": check.hint} if check.hint else {})


def merging_checks(backlogs: Sequence[Backlog]) -> Iterator[Check]:
    """Check that the runs of partitions are merged, and report which partitions are compacted.

    Partitions whose runs are not known until deletion has gone on are left out.
    """
    known = [one for one in backlogs if one.runs is not None and one.merged_runs is not None]
    runs = sum(one.runs or 0 for one in known)
    merged = sum(one.merged_runs or 0 for one in known)
    found = f"{runs:,} runs of {len(known):,} partitions, {merged:,} after a complete merge"
    if runs - merged < LEAST_SAVED_RUNS:
        yield Check("merging", State.OK, found)
    else:
        worst = max(known, key=lambda one: (one.runs or 0) - (one.merged_runs or 0))
        yield Check(
            "merging",
            State.NOTE,
            f"{found}; most of them in {worst.topic}-{worst.partition}",
            "consumers that catch up send a GET for each run. Is esker.compaction.enable on, and "
            "esker.version at 3 or more (`esker features describe`)? A large backlog is merged by "
            "`esker spark merge plan`",
        )
    compacted = [one for one in backlogs if one.cleaned_until]
    if not compacted:
        yield Check("compaction", State.OK, "no partition was compacted yet")
        return
    dirtiest = max(compacted, key=lambda one: one.dirty_ratio)
    yield Check(
        "compaction",
        State.OK,
        f"{len(compacted):,} partitions were compacted; the dirtiest is {dirtiest.topic}-"
        f"{dirtiest.partition} with {100 * dirtiest.dirty_ratio:.0f} % of its offsets",
    )


def _store(uri: str, endpoint: str | None, region: str | None) -> Iterator[Check]:
    """Check that the object store can be listed, by reading its first key."""
    from diskless.stores.interface import StorageError
    from spark_jobs.readers.object_store import StoreOptions, describe_failure, open_store

    try:
        objects = open_store(uri, StoreOptions(endpoint, region))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        first = next(iter(objects.list()), None)
    except StorageError as error:
        hint = "see --endpoint and --region, and the credentials above"
        yield Check("object store", State.MISSING, describe_failure(objects.uri, error), hint)
    else:
        yield Check("object store", State.OK, f"{uri}, {'empty' if first is None else 'listed'}")
    finally:
        objects.close()


def _start(master: str | None) -> Iterator[Check]:
    """Check that a Spark session starts and runs a job with one Python task."""
    from esker.doctor import INSTALL

    try:
        from spark_jobs.session import probe as probing
        from spark_jobs.session.failures import SessionError
    except ModuleNotFoundError as error:
        yield Check("a job", State.MISSING, f"no {error.name}", INSTALL)
        return
    before = time.monotonic()
    try:
        found = probing.probe(master)
    except SessionError as error:
        failure = error.failure
        yield Check("a job", State.MISSING, failure.sentence, failure.hint)
    else:
        took = time.monotonic() - before
        same = found.python == sys.version.split()[0]
        yield Check(
            "a job",
            State.OK,
            f"on {found.master} in {took:.1f} s: Spark {found.spark}, Python {found.python}"
            + ("" if same else f", while this machine runs {sys.version.split()[0]}"),
        )
