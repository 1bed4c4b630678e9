"""Rates say what happened since the last look, and nothing about the time before the first."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from raft.driver import metrics
from raft.driver.config import CLUSTER_METADATA


class FakeGroup:
    """A group that restarted with a long log, as far as metrics look."""

    name = CLUSTER_METADATA.name

    def __init__(self) -> None:
        log = SimpleNamespace(high_watermark=None, end_offset=1_000_000, last_epoch=7)
        self.quorum = SimpleNamespace(
            log=log, leader_id=1, epoch=7, voters=(1, 2, 3), is_voter=True, role=None,
            election_state=SimpleNamespace(voted=None),
        )  # fmt: skip
        self.counters = SimpleNamespace(
            appended_records=10, fetched_records=0, commit_latencies_ms=[], elections=0,
            election_latency_ms=0.0, peer_faults=0, busy_s=3.0,
        )  # fmt: skip


def test_a_restart_is_no_burst_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    group = FakeGroup()
    collector = metrics.QuorumCollector(SimpleNamespace())

    first = collector._of_group(group)
    assert first["append_records_rate"] == 0
    assert first["poll_idle_ratio_avg"] == 1

    now, group.quorum.log.high_watermark = 110.0, 1_000_000
    assert collector._of_group(group)["commit_rate"] == 0

    now, group.quorum.log.high_watermark = 120.0, 1_000_050
    group.counters.appended_records += 100
    third = collector._of_group(group)
    assert third["commit_rate"] == 5
    assert third["append_records_rate"] == 10
