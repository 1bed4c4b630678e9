"""Metrics and degradations of a node's batch coordinators: the clocks by which they delete.

Source: docs/design/clocks.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from coordinator.batch.leader import Leader
from raft.interfaces import Degradation

LABELS = ("coordinator",)


def coordinator_metrics(leaders: Mapping[int, Leader]) -> Iterator[Metric]:
    """Yield the clock metrics of the batch coordinators in `leaders`, labelled by partition."""
    held = GaugeMetricFamily(
        "esker_batch_coordinator_clock_held",
        "1 if this leader's clock is held, so that nothing is deleted by time",
        labels=LABELS,
    )
    ahead = GaugeMetricFamily(
        "esker_batch_coordinator_steady_time_ahead_ms",
        "How far steady time is ahead of this leader's wall clock, ms",
        labels=LABELS,
    )
    for partition, leader in sorted(leaders.items()):
        held.add_metric((str(partition),), float(leader.clock_hold is not None))
        if leader.steady_ahead_ms is not None:
            ahead.add_metric((str(partition),), leader.steady_ahead_ms)
    yield from (held, ahead)


def coordinator_degradations(leaders: Mapping[int, Leader]) -> Iterator[Degradation]:
    """Yield a degradation for each leader with a held clock; the node stays ready.

    Source: docs/design/clocks.md#states-of-a-processs-clock.
    """
    for leader in leaders.values():
        if leader.clock_hold is not None:
            yield Degradation("clock_held", leader.clock_hold, unready=False)
