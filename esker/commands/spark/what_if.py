"""`esker spark what-if`: predicts from a log what other settings would do to requests and costs.

Source: docs/what-if.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from esker.commands.cluster_access import AsJson, TimeoutMs
from esker.commands.spark.common import INTERRUPTED, USAGE, bar, stop, stop_for_missing_package
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
from esker.commands.spark.store import Endpoint, Region
from esker.commands.text_tables import show, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.prices import Prices
    from spark_jobs.readers.inputs import Inputs
    from spark_jobs.what_if.history import History
    from spark_jobs.what_if.model import Prediction

EXAMPLE = (
    "Example: esker spark what-if --log-dir esker-data/quorum-1 --interval-ms 1000 --brokers 4"
)
MIB: Final = 1024 * 1024
HOUR_MS: Final = 3_600_000

Hours = Annotated[
    float | None,
    typer.Option(
        min=0.001, help="Time before the newest commit that is read, in hours; default: all."
    ),
]


def _then(names: str, help_text: str) -> Any:
    return typer.Option(names, min=0, help=f"{help_text}; default: as it is now.")


def _now(name: str, help_text: str) -> Any:
    return typer.Option(name, min=0, help=f"Of the log's time: {help_text}.")


IntervalMs = Annotated[
    int | None, _then("--interval-ms", "diskless.append.commit.interval.ms, in ms")
]
BufferBytes = Annotated[
    int | None, _then("--buffer-bytes", "diskless.append.buffer.max.bytes, in bytes")
]
QuietMs = Annotated[
    int | None, _then("--quiet-ms", "esker.append.quiet.ms, in ms; 0: no early objects")
]
ObjectsPerSecond = Annotated[
    int | None,
    _then("--objects-per-second", "esker.append.objects.per.second, of each broker"),
]
Brokers = Annotated[int | None, _then("--brokers", "Number of broker processes")]
Zones = Annotated[int | None, _then("--zones", "Number of zones (racks)")]
Coordinators = Annotated[int | None, _then("--coordinators", "Number of batch coordinators")]
Consumers = Annotated[
    int | None,
    _then("--consumers", "Number of connections in each zone that share the partitions"),
]
Load = Annotated[float, typer.Option(min=0.01, max=100, help="Factor of what is sent; default: 1.")]
NowIntervalMs = Annotated[
    int, _now("--now-interval-ms", "diskless.append.commit.interval.ms, in ms; default: 250")
]
NowBufferBytes = Annotated[
    int,
    _now("--now-buffer-bytes", "diskless.append.buffer.max.bytes, in bytes; default: 8388608"),
]
NowQuietMs = Annotated[int, _now("--now-quiet-ms", "esker.append.quiet.ms, in ms; default: 5")]
NowObjectsPerSecond = Annotated[
    int,
    _now(
        "--now-objects-per-second",
        "esker.append.objects.per.second; default: 8, that of S3 (a directory's is 64)",
    ),
]
NowConsumers = Annotated[
    int,
    _now("--now-consumers", "connections in each zone that share the partitions; default: 1"),
]


def what_if(
    log_dir: LogDir = None,
    bootstrap_controller: FromQuorum = None,
    archive: Archive = None,
    hours: Hours = None,
    interval_ms: IntervalMs = None,
    buffer_bytes: BufferBytes = None,
    quiet_ms: QuietMs = None,
    objects_per_second: ObjectsPerSecond = None,
    brokers: Brokers = None,
    zones: Zones = None,
    coordinators: Coordinators = None,
    consumers: Consumers = None,
    load: Load = 1.0,
    now_interval_ms: NowIntervalMs = 250,
    now_buffer_bytes: NowBufferBytes = 8 * MIB,
    now_quiet_ms: NowQuietMs = 5,
    now_objects_per_second: NowObjectsPerSecond = 8,
    now_consumers: NowConsumers = 1,
    prices: PriceFile = None,
    endpoint: Endpoint = None,
    region: Region = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Predict objects, GETs and costs under other settings, from what producers sent before.

    Reads only the metadata logs, no objects, and changes nothing.
    """
    inputs = inputs_of(
        log_dir, bootstrap_controller, archive, timeout_ms, endpoint=endpoint, region=region
    )
    now = {
        "interval_ms": now_interval_ms, "buffer_bytes": now_buffer_bytes, "quiet_ms": now_quiet_ms,
        "objects_per_second": now_objects_per_second, "consumers": now_consumers,
    }  # fmt: skip
    then = {
        "brokers": brokers, "zones": zones, "coordinators": coordinators,
        "interval_ms": interval_ms, "buffer_bytes": buffer_bytes, "quiet_ms": quiet_ms,
        "objects_per_second": objects_per_second, "consumers": consumers, "load": load,
    }  # fmt: skip
    paid = prices_of(prices)
    history, before, after = _predict(inputs, hours, now, then, paid)
    document = {
        "history": {
            "objects": history.objects, "batches": len(history.times),
            "durationMs": history.duration_ms,
        },
        "now": _fields(before),
        "then": _fields(after),
        "currency": paid.currency,
        "prices": paid.source,
    }  # fmt: skip
    show(document, _text(history, before, after, paid), as_json=as_json)


def _predict(
    inputs: Inputs,
    hours: float | None,
    now: Mapping[str, int],
    then: Mapping[str, float | None],
    paid: Prices,
) -> tuple[History, Prediction, Prediction]:
    """Return what was sent, and what that makes now and then; end the command on errors.

    Args:    now: settings of the log's time that the log does not tell.
             then: the settings to predict for; None: as they are now.
    """
    try:
        from spark_jobs.what_if.history import EmptyHistoryError, read_history
        from spark_jobs.what_if.model import Settings, SettingsError, predict
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    try:
        last_ms = None if hours is None else round(hours * HOUR_MS)
        with bar("reading the logs", None) as step:
            history = read_history(open_logs(inputs), last_ms=last_ms, progress=lambda _: step(1))
        old = Settings(
            brokers=history.broker_count,
            zones=history.zone_count,
            coordinators=history.coordinator_count,
            **now,
        )
        changed: dict[str, Any] = {k: v for k, v in then.items() if v is not None}
        new = old._replace(**changed)
        return (
            history,
            predict(history, old, old, prices=paid),
            predict(history, old, new, prices=paid),
        )
    except (SettingsError, EmptyHistoryError) as error:
        stop(str(error), USAGE)
    except reading_errors() as error:
        stop_reading(error)
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)


_NAMES: Final = {
    "brokers": "brokers",
    "zones": "zones",
    "coordinators": "coordinators",
    "interval_ms": "intervalMs",
    "buffer_bytes": "bufferBytes",
    "quiet_ms": "quietMs",
    "objects_per_second": "objectsPerSecond",
    "consumers": "consumers",
    "load": "load",
}


def _fields(made: Prediction) -> dict[str, Any]:
    settings = {_NAMES[name]: value for name, value in made.settings._asdict().items()}
    return {
        "settings": settings,
        "objectsPerSecond": made.rate(made.objects),
        "runsPerSecond": made.rate(made.runs),
        "getsPerSecond": made.rate(made.gets),
        "objectBytes": made.object_bytes,
        "waitP50Ms": made.wait_p50_ms,
        "waitP99Ms": made.wait_p99_ms,
        "putAmountMonth": made.put_amount,
        "getAmountMonth": made.get_amount,
    }


def _text(history: History, now: Prediction, then: Prediction, prices: Any) -> str:
    """Return the table for people: now, then, and their ratio."""

    def row(name: str, before: float, after: float, form: str) -> tuple[str, str, str, str]:
        ratio = f"{after / before:.2f}x" if before else ""
        return name, format(before, form), format(after, form), ratio

    rows = [
        row("PUTs and commits a second", now.rate(now.objects), then.rate(then.objects), ".2f"),
        row("Partitions in objects a second", now.rate(now.runs), then.rate(then.runs), ".1f"),
        row("GETs a second", now.rate(now.gets), then.rate(then.gets), ".2f"),
        row("Mean object, KiB", now.object_bytes / 1024, then.object_bytes / 1024, ".1f"),
        row("Wait for the upload p50, ms", now.wait_p50_ms, then.wait_p50_ms, ".0f"),
        row("Wait for the upload p99, ms", now.wait_p99_ms, then.wait_p99_ms, ".0f"),
        row(f"PUTs, {prices.currency} a month", now.put_amount, then.put_amount, ".2f"),
        row(f"GETs, {prices.currency} a month", now.get_amount, then.get_amount, ".2f"),
    ]
    changed = [
        f"{_NAMES[name]} {before} -> {after}"
        for (name, before), after in zip(now.settings._asdict().items(), then.settings, strict=True)
        if before != after
    ]
    return "\n".join(
        [
            f"{history.objects} objects of {len(history.times)} batches in "
            f"{history.duration_ms / 1_000:.0f} s, {prices.source}",
            ", ".join(changed) or "No setting is changed: give one, as --interval-ms 1000.",
            table(("What", "Now", "Then", ""), rows),
        ]
    )
