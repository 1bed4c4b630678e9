"""Metrics of checkpoints: KIP-630's four, KIP-631's one, and counters of downloads and installs.

KIP-630 names its metrics for the cluster log alone; here every group has them, labelled by name.

SnapshotLag and MetadataSnapshotLag differ where there is no checkpoint: by KIP-630 everything up to
the high watermark lags, by KIP-631 nothing does.

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

from raft.driver.config import METADATA_GROUP
from raft.driver.counters import Counters, Timings
from raft.driver.group import GroupDriver
from raft.driver.snapshot_hosting import HostedMachine
from raft.wire.responses import Group

PREFIX: Final = "kafka_controller_"

_COUNTED: Final = {
    "snapshots_fetched": "Checkpoints fetched from a leader",
    "snapshots_resumed": "Checkpoint downloads that resumed an earlier one",
    "snapshots_rejected": "Checkpoint downloads rejected as damaged or not the requested one",
    "snapshots_installed": "Checkpoints installed, each time resetting the log",
    "snapshot_fetched_bytes": "Bytes of checkpoints fetched",
    "log_starts_moved": "Moves of the log start offset to a checkpoint's end",
}


class SnapshotHost(Protocol):
    """The part of a node that these metrics read."""

    groups: dict[Group, GroupDriver]

    @property
    def hosted(self) -> Mapping[Group, HostedMachine]: ...


def snapshot_families(host: SnapshotHost) -> Iterator[Metric]:
    """Return all metric families about snapshots, each with one sample per group."""
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
    starts = _gauge("esker_log_start_offset", "First offset in the log")
    log_bytes = _gauge("esker_log_size_bytes", "Size of the log's segments in bytes")
    count = _gauge("esker_snapshots", "Number of checkpoints on disk")
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
        if group == METADATA_GROUP:
            none = driver.snapshots.newest is None
            yield GaugeMetricFamily(
                PREFIX + "metadata_snapshot_lag",
                "MetadataSnapshotLag: as SnapshotLag, of the cluster log; 0 without a checkpoint",
                value=0 if none else snapshot_lag(driver),
            )
    yield from (generated, loaded, size, lag, starts, log_bytes, count, *counters.values())


def snapshot_lag(driver: GroupDriver) -> int:
    """Return the number of committed offsets that the newest local checkpoint does not cover."""
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
