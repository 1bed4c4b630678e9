"""Rates cover the time since the last scrape; the first scrape has none."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from raft.driver import metrics
from raft.driver.config import METADATA_GROUP
from raft.driver.counters import Counters


class FakeGroup:
    """The part of a group that metrics read, restarted with a long log."""

    name = METADATA_GROUP.name

    def __init__(self) -> None:
        log = SimpleNamespace(high_watermark=None, end_offset=1_000_000, last_epoch=7, floor=0)
        self.quorum = SimpleNamespace(
            log=log, leader_id=1, epoch=7, voters=(1, 2, 3), is_voter=True, role=None,
            election_state=SimpleNamespace(voted=None), unconfirmed_epochs=(),
            in_doubt=False, reported_forks=(),
        )  # fmt: skip
        self.counters = Counters(appended_records=10, busy_s=3.0)


def test_node_metrics_report_the_mean_and_the_maximum_election_latency() -> None:
    group = FakeGroup()
    for latency_ms in (30.0, 90.0, 60.0):
        group.counters.elected(latency_ms)
    values = metrics.QuorumCollector(SimpleNamespace())._of_group(group)
    assert (values["election_latency_avg"], values["election_latency_max"]) == (60.0, 90.0)


def test_the_commit_rate_metric_of_a_node_does_not_jump_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
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
