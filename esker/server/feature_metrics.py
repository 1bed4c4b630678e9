"""Prometheus metrics of feature levels, by Kafka's names: of every node, whatever its roles.

Source: KIP-1180 (FinalizedLevel, maximum-supported-level, minimum-supported-level);
docs/design/features.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from coordinator.features import Features
from records.features import SUPPORTED

LABELS = ("feature_name",)


def feature_metrics(features: Features) -> Iterator[Metric]:
    """Yield metrics of the finalized and the supported level of each feature."""
    finalized = GaugeMetricFamily(
        "kafka_server_metadata_loader_finalized_level",
        "FinalizedLevel: the feature's level in this node's copy of the cluster log",
        labels=LABELS,
    )
    for name in sorted({*SUPPORTED, *features.finalized}):
        finalized.add_metric((name,), features.level(name))
    highest = GaugeMetricFamily(
        "kafka_server_node_metrics_maximum_supported_level",
        "maximum-supported-level: the highest level that this node supports",
        labels=LABELS,
    )
    lowest = GaugeMetricFamily(
        "kafka_server_node_metrics_minimum_supported_level",
        "minimum-supported-level: the lowest level that this node supports",
        labels=LABELS,
    )
    for name, levels in SUPPORTED.items():
        highest.add_metric((name,), levels.highest)
        lowest.add_metric((name,), levels.lowest)
    yield from (finalized, highest, lowest)
