"""What a group counts, for its metrics."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """What metrics ask for; only ever grows, except for the latencies, which are taken away."""

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
    snapshots_rejected: int = 0  # what came was no checkpoint, or not the one asked for
    snapshots_installed: int = 0
    snapshot_fetched_bytes: int = 0
    log_starts_moved: int = 0

    def elected(self, latency_ms: float) -> None:
        """A leader is known, so long after this node began to campaign."""
        self.elections += 1
        self.election_latency_ms += latency_ms
        self.election_latency_max_ms = max(self.election_latency_max_ms, latency_ms)
