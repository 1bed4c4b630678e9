"""When a checkpoint is taken: every rule of ours, and of KIP-630, When to Snapshot.

Source: docs/design/snapshots.md#when-a-snapshot-is-taken.
"""

from __future__ import annotations

import pytest

from snapshot.policy import Reason, Situation, SnapshotPolicy, SnapshotSettings

SETTINGS = SnapshotSettings(min_changed_ratio=0.5, max_bytes_between=1_000, max_interval_ms=60_000)
HOUR_MS = 3_600_000


def situation(**facts: int) -> Situation:
    quiet = {
        "bytes_since": 0,
        "records_since": 1,
        "ms_since": 0,
        "changed_records": 0,
        "total_records": 100,
        "checkpoint_bytes": 5_000,
    }
    return Situation(**(quiet | facts))


RULES = [
    # what is so, what follows
    ({}, None),
    # both the ratio and the bytes, neither alone
    ({"bytes_since": 1_000, "changed_records": 50}, Reason.CHANGED),
    ({"bytes_since": 999, "changed_records": 50}, None),
    ({"bytes_since": 1_000, "changed_records": 49}, None),
    ({"bytes_since": 999, "changed_records": 10_000}, None),
    # an append-only log: it has outgrown its checkpoint, and the least that matters
    ({"bytes_since": 5_001}, Reason.GROWN),
    ({"bytes_since": 5_000}, None),
    ({"bytes_since": 1_001, "checkpoint_bytes": 0}, Reason.GROWN),
    ({"bytes_since": 1_000, "checkpoint_bytes": 0}, None),
    ({"bytes_since": 1_001, "checkpoint_bytes": 10}, Reason.GROWN),
    # the interval
    ({"ms_since": 60_000}, Reason.OLD),
    ({"ms_since": 59_999}, None),
    # nothing was committed since: it would be the same checkpoint
    ({"ms_since": 10 * HOUR_MS, "records_since": 0}, None),
    # all was deleted: nothing is left that could have changed
    ({"bytes_since": 1_000, "changed_records": 1, "total_records": 0}, Reason.CHANGED),
    ({"bytes_since": 1_000, "changed_records": 0, "total_records": 0}, None),
]


@pytest.mark.parametrize(("facts", "reason"), RULES)
def test_the_checkpoint_policy_takes_a_checkpoint_exactly_when_one_of_its_rules_applies(
    facts, reason
):
    assert SnapshotPolicy(SETTINGS).should_take(situation(**facts)) is reason


def test_a_checkpoint_interval_of_0_disables_checkpoints_by_time():
    settings = SnapshotSettings(max_interval_ms=0)
    assert SnapshotPolicy(settings).should_take(situation(ms_since=1 << 60)) is None


def test_with_a_changed_record_ratio_of_0_the_checkpoint_policy_decides_by_log_bytes():
    policy = SnapshotPolicy(SnapshotSettings(min_changed_ratio=0, max_bytes_between=1_000))
    assert policy.should_take(situation(bytes_since=1_000)) is Reason.CHANGED
    assert policy.should_take(situation(bytes_since=999)) is None


def test_the_nodes_of_a_quorum_take_periodic_checkpoints_at_different_times():
    """Never for fewer bytes than configured, never later than configured."""
    policies = [SnapshotPolicy(SETTINGS, node_id) for node_id in range(8)]
    assert len({policy.bytes_between for policy in policies}) == 8
    assert len({policy.interval_ms for policy in policies}) == 8
    assert all(1_000 <= policy.bytes_between <= 1_500 for policy in policies)
    assert all(30_000 <= policy.interval_ms <= 60_000 for policy in policies)


def test_the_checkpoint_policy_has_kafkas_default_settings():
    settings = SnapshotSettings()
    assert (settings.min_changed_ratio, settings.max_bytes_between) == (0.5, 20 << 20)
    assert settings.max_interval_ms == HOUR_MS


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_changed_ratio": 1.1},
        {"min_changed_ratio": -0.1},
        {"max_bytes_between": 0},
        {"max_interval_ms": -1},
    ],
)
def test_creating_invalid_snapshot_settings_raises_an_error_that_names_the_setting(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SnapshotSettings(**wrong)
