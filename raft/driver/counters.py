"""Counters and histograms of one group, for its metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Final

BOUNDS_MS: Final = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
"""Upper bounds of a histogram's buckets, inclusive."""


@dataclass(slots=True)
class Counters:
    """Counters of one group; they only grow, but for the latencies, cleared at every scrape."""

    appended_records: int = 0
    fetched_records: int = 0
    commit_latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    elections: int = 0
    election_latency_ms: float = 0.0  # of all elections together
    election_latency_max_ms: float = 0.0
    peer_faults: int = 0
    busy_s: float = 0.0
    snapshots_fetched: int = 0
    snapshots_resumed: int = 0  # downloads that went on where an earlier one had ended
    snapshots_rejected: int = 0  # the bytes were no checkpoint, or not the requested one
    snapshots_installed: int = 0
    snapshot_fetched_bytes: int = 0
    log_starts_moved: int = 0

    def elected(self, latency_ms: float) -> None:
        """Count an election and its latency, from this node's campaign until a leader was known."""
        self.elections += 1
        self.election_latency_ms += latency_ms
        self.election_latency_max_ms = max(self.election_latency_max_ms, latency_ms)


class Timings:
    """A histogram of durations in milliseconds.

    >>> timings = Timings()
    >>> timings.add(2.0); timings.add(400_000.0)
    >>> timings.cumulative()[:2], timings.cumulative()[-1]
    ([('1', 0), ('3', 1)], ('+Inf', 2))
    """

    def __init__(self) -> None:
        """Create a histogram of durations with empty buckets."""
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0
        self.last_ms = 0.0

    def add(self, took_ms: float) -> None:
        """Count one duration in its histogram bucket."""
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        self.sum_ms += took_ms
        self.last_ms = took_ms

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the cumulative buckets for Prometheus: upper bound and number of durations."""
        total, found = 0.0, []
        for bound, count in zip((*BOUNDS_MS, "+Inf"), self.counts, strict=True):
            total += count
            found.append((str(bound), total))
        return [(bound, int(count)) for bound, count in found]
