"""What a scraper is told of checkpoints: KIP-630's four, KIP-631's one, and what happened to them.

KIP-630 names its metrics for the cluster log alone; here every group has them, by its name.

SnapshotLag and MetadataSnapshotLag differ where there is no checkpoint: to KIP-630 everything up to
the high watermark lags, to KIP-631 nothing does.

Source: KIP-630, Metrics; KIP-631, Monitoring; spelled as the usual JMX exporter spells them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from raft.driver.config import CLUSTER_METADATA
from raft.driver.counters import Counters, Timings
from raft.driver.group import GroupDriver
from raft.driver.snapshot_hosting import Hosted
from raft.wire.responses import Group

PREFIX: Final = "kafka_controller_"

_COUNTED: Final = {
    "snapshots_fetched": "Checkpoints fetched from a leader",
    "snapshots_resumed": "Downloads that went on where an earlier one had ended",
    "snapshots_rejected": "Downloads that were no checkpoint, or not the one asked for",
    "snapshots_installed": "Times that the log was begun anew at a checkpoint",
    "snapshot_fetched_bytes": "Bytes of checkpoints fetched",
    "log_starts_moved": "Times that the log was cut to a checkpoint",
}


class Host(Protocol):
    """What is asked of the node."""

    groups: dict[Group, GroupDriver]

    @property
    def hosted(self) -> Mapping[Group, Hosted]: ...


def snapshot_families(host: Host) -> Iterator[Metric]:
    """All families."""
    drivers = sorted((group.name, group, driver) for group, driver in host.groups.items())
    generated = HistogramMetricFamily(
        PREFIX + "gen_snapshot_latency_ms",
        "GenSnapshotLatencyMs: how long generating a checkpoint took",
        labels=("group",),
    )
    loaded = HistogramMetricFamily(
        PREFIX + "load_snapshot_latency_ms",
        "LoadSnapshotLatencyMs: how long loading a checkpoint took",
        labels=("group",),
    )
    size = _gauge(PREFIX + "snapshot_size_bytes", "SnapshotSizeBytes: of the newest checkpoint")
    lag = _gauge(
        PREFIX + "snapshot_lag",
        "SnapshotLag: offsets between the newest checkpoint's end and the high watermark",
    )
    starts = _gauge("esker_log_start_offset", "The first offset in the log")
    log_bytes = _gauge("esker_log_size_bytes", "Size of the log's segments")
    count = _gauge("esker_snapshots", "Checkpoints there are")
    counters = {
        name: CounterMetricFamily(f"esker_{name}", text, labels=("group",))
        for name, text in _COUNTED.items()
    }
    for name, group, driver in drivers:
        hosted = host.hosted.get(group)
        if hosted is not None:
            _add(generated, name, hosted.generations)
            _add(loaded, name, hosted.loads)
            size.add_metric((name,), hosted.checkpoint_bytes)
        lag.add_metric((name,), snapshot_lag(driver))
        starts.add_metric((name,), driver.start_offset)
        log_bytes.add_metric((name,), driver.storage.log.size_bytes)
        count.add_metric((name,), len(driver.snapshots.ids))
        _count(counters, name, driver.counters)
        if group == CLUSTER_METADATA:
            none = driver.snapshots.newest is None
            yield GaugeMetricFamily(
                PREFIX + "metadata_snapshot_lag",
                "MetadataSnapshotLag: as SnapshotLag, of the cluster log; 0 without a checkpoint",
                value=0 if none else snapshot_lag(driver),
            )
    yield from (generated, loaded, size, lag, starts, log_bytes, count, *counters.values())


def snapshot_lag(driver: GroupDriver) -> int:
    """Offsets that are committed and in no checkpoint of ours."""
    newest = driver.snapshots.newest
    covered = 0 if newest is None else newest.offset
    return max(0, (driver.high_watermark or 0) - covered)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=("group",))


def _count(families: Mapping[str, CounterMetricFamily], name: str, counters: Counters) -> None:
    for field, family in families.items():
        family.add_metric((name,), getattr(counters, field))


def _add(family: HistogramMetricFamily, name: str, timings: Timings) -> None:
    family.add_metric((name,), timings.cumulative(), sum_value=timings.sum_ms)
