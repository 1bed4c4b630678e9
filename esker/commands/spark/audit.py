"""`esker spark audit`: compares logs, checkpoints, replicas and objects with each other.

A violation names the rule, the invariant of the design that it is about, the log, the offset, the
record and the object. The output also names what was not looked at: a clean audit is clean only of
what it checked.

Source: docs/design/pipeline.md#exit-codes, docs/design/invariants.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from diskless.stores.interface import StorageError
from esker.commands.cluster_access import AsJson, TimeoutMs
from esker.commands.spark.common import (
    DATA_LOSS,
    ENVIRONMENT,
    FINDINGS,
    INTERRUPTED,
    EngineOrAuto,
    bar,
    require_writable_file,
    stop,
    stop_for_missing_package,
)
from esker.commands.spark.inputs import (
    Archive,
    FromQuorum,
    inputs_of,
    may_be_behind,
    open_logs,
    reading_errors,
    stop_reading,
)
from esker.commands.spark.session import MEMORY, Debug, Master, Memory, SparkLog, spark_session
from esker.commands.spark.store import Endpoint, Region
from esker.commands.text_tables import table
from spark_jobs.readers.object_store import ObjectStore, StoreOptions, open_store

if TYPE_CHECKING:
    from spark_jobs.audit.one_log import LogReport, Report
    from spark_jobs.readers.engines import Engine
    from spark_jobs.readers.inputs import Inputs
    from spark_jobs.readers.logs import Logs

EXAMPLE: Final = (
    "Example: esker spark audit --log-dir esker-data/quorum-1 --log-dir esker-data/quorum-2 "
    "--store esker-data/objects --bytes sample"
)

MISSING: Final = "object-exists"
LOCAL_OFFSETS: Final = 200_000
"""Offsets of all logs together that this process audits before a JVM would have started."""


class Bytes(StrEnum):
    """Amount of object bytes to read.

    The same values as `spark_jobs.audit.store.Depth`, which would import NumPy.
    """

    NONE = "none"
    SAMPLE = "sample"
    FULL = "full"


LogDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--log-dir",
        metavar="DIR",
        help="Log directory (log.dirs) of a node; may be repeated to compare the logs of "
        "several nodes.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR|s3://BUCKET",
        help="Directory or s3://BUCKET of the brokers' object store; default: objects are not "
        "checked.",
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Key prefix of the objects (the brokers' esker.object.key.prefix); default: "
        "no prefix.",
    ),
]
Depth = Annotated[
    Bytes,
    typer.Option(
        "--bytes",
        help="Objects to read whole: none, one in sixteen (sample) or all (full); default: sample.",
    ),
]
Chosen = Annotated[
    EngineOrAuto,
    typer.Option(
        "--engine",
        help="Engine that runs the checks: local, spark or auto (local up to 200000 offsets); "
        "default: auto.",
    ),
]
MaxTimeoutMs = Annotated[
    int,
    typer.Option(
        "--transaction-max-timeout-ms",
        min=1,
        metavar="MS",
        help="The brokers' transaction.max.timeout.ms, in ms: an older open transaction is a "
        "violation, after five minutes more; default: 900000.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Path of the file to write violations to, one JSON object per line; default: no file.",
    ),
]


def audit(
    log_dir: LogDirs = None,
    bootstrap_controller: FromQuorum = None,
    archive: Archive = None,
    store: Store = None,
    endpoint: Endpoint = None,
    region: Region = None,
    prefix: Prefix = "",
    depth: Depth = Bytes.SAMPLE,
    engine: Chosen = EngineOrAuto.AUTO,
    transaction_max_timeout_ms: MaxTimeoutMs = 900_000,
    out: Out = None,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Check logs, checkpoints, replicas and objects against every invariant that they can show.

    Exits with 0 if all hold, 1 if one does not, 6 if data is lost. Changes nothing.
    """
    if out is not None:
        require_writable_file(out)
    directories = log_dir or []
    first, others = (directories[0] if directories else None), directories[1:]
    inputs = inputs_of(
        first, bootstrap_controller, archive, timeout_ms, endpoint=endpoint, region=region
    )
    more = [inputs_of(one, bootstrap_controller, None, timeout_ms) for one in others]
    objects = _open_objects(store, endpoint, region)
    try:
        from spark_jobs.audit.job import audit as job
        from spark_jobs.audit.one_log import AuditRequest
        from spark_jobs.audit.store import Depth as StoreDepth
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    try:
        logs = open_logs(inputs)
        audit_request = AuditRequest(
            objects,
            prefix,
            StoreDepth(depth.value),
            tuple(_replicas(logs, first, more)),
            str(first),
            max_timeout_ms=transaction_max_timeout_ms,
        )
        chosen = _choose_engine(engine, logs, master)
        with (
            _engine(chosen, master, memory, spark_log, debug=debug) as works,
            bar("auditing", None) as step,
        ):
            report = job(logs, works, audit_request, step)
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)
    except StorageError as error:
        stop(f"the object store: {error}", ENVIRONMENT)
    except reading_errors() as error:
        stop_reading(error)
    finally:
        if objects is not None:
            objects.close()
    if out is not None:
        _write(report, out)
    if as_json:
        typer.echo(json.dumps(_as_json(report, chosen)))
    else:
        _print(report, chosen, out)
        if (lost := report.findings.counts.get(MISSING, 0)) and objects is not None:
            if lost == sum(one.objects for one in report.logs):
                typer.echo(f"{objects.uri} has none of them: is this the cluster's store, and "
                           "--prefix its brokers' esker.object.key.prefix?")  # fmt: skip
            if bootstrap_controller is None:
                typer.echo(may_be_behind(first or archive))
    if report.findings.counts:
        raise typer.Exit(DATA_LOSS if report.findings.loses_data else FINDINGS)


def _replicas(logs: Logs, first: Path | None, more: list[Inputs]) -> Iterator[tuple[str, Logs]]:
    """Yield each further node's log directory and logs; exit if a node is of another cluster."""
    for replica in more:
        other = open_logs(replica)
        if other.cluster_id != logs.cluster_id:
            stop(f"{replica.log_dir} is of cluster {other.cluster_id}, {first} of "
                 f"{logs.cluster_id}: only nodes of one cluster can be compared",
                 ENVIRONMENT)  # fmt: skip
        yield str(replica.log_dir), other


def _open_objects(uri: str | None, endpoint: str | None, region: str | None) -> ObjectStore | None:
    if uri is None:
        return None
    try:
        return open_store(uri, StoreOptions(endpoint, region))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--store") from None


def _choose_engine(engine: EngineOrAuto, logs: Logs, master: str | None) -> EngineOrAuto:
    if engine is not EngineOrAuto.AUTO:
        return engine
    if master is not None:
        return EngineOrAuto.SPARK
    offsets = 0
    for name in logs.names():
        log = logs.log(name)
        end = log.end_offset()
        spans = log.spans(end)
        begins = spans[0] if spans else None
        if begins is not None:
            offsets += end - (begins.end_offset if begins.is_checkpoint else begins.start_offset)
    return EngineOrAuto.LOCAL if offsets <= LOCAL_OFFSETS else EngineOrAuto.SPARK


@contextmanager
def _engine(
    chosen: EngineOrAuto, master: str | None, memory: str, spark_log: Path | None, *, debug: bool
) -> Iterator[Engine]:
    from spark_jobs.readers.engines import LocalEngine, SparkEngine

    if chosen is EngineOrAuto.LOCAL:
        yield LocalEngine()
        return
    with spark_session("audit", master, memory, spark_log, debug=debug) as spark:
        yield SparkEngine(spark)


# --- output -------------------------------------------------------------------------------------

_LOGS: Final = (
    "Log", "From", "To", "Records", "Commits", "Checkpoints", "Objects", "Read", "LiveBytes",
)  # fmt: skip
_RULES: Final = ("Rule", "Invariant", "Violations", "What must be true")


def _print(report: Report, engine: str, out: Path | None) -> None:
    from spark_jobs.audit.rules import RULES, by_name

    typer.echo(f"Audit of cluster {report.cluster_id}, engine {engine}")
    typer.echo(table(_LOGS, [_log_cells(log) for log in report.logs]))
    for log in report.logs:
        for (kind, version), offset in sorted(log.unknown.items()):
            what = f"type {kind} version {version} is unknown to this release"
            typer.echo(f"{log.name}: {what}, first at offset {offset}: not checked")
    for rules, why in report.unchecked.items():
        typer.echo(f"Not looked at: {rules} ({why})")
    broken = by_name(report.findings.counts)
    if not broken:
        typer.echo(f"Clean: {len(RULES)} rules, no violation.")
        return
    rows = [(rule.name, rule.invariant, str(count), rule.sentence) for rule, count in broken]
    typer.echo(table(_RULES, rows))
    for rule, count in broken:
        first = report.findings.first(rule.name)
        places = [first.log]
        if first.offset is not None:
            places.append(f"offset {first.offset}")
        if first.record:
            places.append(first.record)
        if first.object_id is not None:
            places.append(f"object {first.object_id}")
        more = f" (the first of {count})" if count > 1 else ""
        typer.echo(f"{rule.name}: {', '.join(places)}: {first.what}{more}")
    if out is not None:
        typer.echo(f"Violations are in {out}")


def _log_cells(log: LogReport) -> tuple[str, ...]:
    numbers = (
        log.start_offset, log.end_offset, sum(log.types.values()), log.commits,
        len(log.checkpoints), log.objects, log.objects_read, log.live_bytes,
    )  # fmt: skip
    return (log.name, *map(str, numbers))


def _as_json(report: Report, engine: str) -> dict[str, Any]:
    from spark_jobs.audit.rules import RULES, by_name

    return {
        "cluster_id": report.cluster_id,
        "engine": str(engine),
        "rules": len(RULES),
        "logs": [_log_json(one) for one in report.logs],
        "unchecked": report.unchecked,
        "data_loss": report.findings.loses_data,
        "violations": [
            {
                "rule": rule.name,
                "invariant": rule.invariant,
                "sentence": rule.sentence,
                "count": count,
                "first": report.findings.first(rule.name)._asdict(),
            }
            for rule, count in by_name(report.findings.counts)
        ],
    }


def _log_json(log: LogReport) -> dict[str, Any]:
    return {
        "name": log.name,
        "start_offset": log.start_offset,
        "end_offset": log.end_offset,
        "types": {f"{kind}.{version}": n for (kind, version), n in sorted(log.types.items())},
        "control": {str(kind): n for kind, n in sorted(log.control.items())},
        "unknown": {f"{kind}.{version}": offset for (kind, version), offset in log.unknown.items()},
        "checkpoints": log.checkpoints,
        "objects": log.objects,
        "objects_read": log.objects_read,
        "live_bytes": log.live_bytes,
    }


def _write(report: Report, out: Path) -> None:
    try:
        with out.open("w") as file:
            for kept in report.findings.kept.values():
                for violation in kept:
                    file.write(json.dumps(violation._asdict()) + "\n")
    except OSError as error:
        stop(f"{out}: {error.strerror}", ENVIRONMENT)
