"""How far the log is cut: every rule of ours, and of KIP-630, When to Increase the LogStartOffset.

One table: three checkpoints, of 100 bytes each, at 10, 20 and 30 of a log that starts at 0; ten
bytes for each offset; the leader's log ends at 40.

Source: docs/design/snapshots.md#where-the-log-starts.
"""

from __future__ import annotations

import itertools

import pytest

from records.types import OffsetAndEpoch
from snapshot.log_start import (
    Candidate,
    Holder,
    Kind,
    LogStartSettings,
    follower_log_start,
    leader_log_start,
)

NOW_MS = 10_000_000_000
LIVE_MS = 300_000
WEEK_MS = 7 * 24 * 3_600_000
LONG_AGO_MS = NOW_MS - 10 * LIVE_MS
IDS = [OffsetAndEpoch(offset, 2) for offset in (10, 20, 30)]
ANY_SIZE = LogStartSettings(max_retention_bytes=None)


def checkpoints(*, ages_ms: tuple[int, ...] = (0, 0, 0)) -> list[Candidate]:
    return [
        Candidate(one, 100, 10 * (40 - one.offset), age)
        for one, age in zip(IDS, ages_ms, strict=True)
    ]


def voter(offset: int | None, ago_ms: int | None = 0, name: str = "2") -> Holder:
    return Holder(name, Kind.VOTER, offset, None if ago_ms is None else NOW_MS - ago_ms)


def observer(offset: int | None, ago_ms: int = 0) -> Holder:
    return Holder("9", Kind.OBSERVER, offset, NOW_MS - ago_ms)


def reader(offset: int | None, bound: int | None, ago_ms: int = 0) -> Holder:
    return Holder("archive", Kind.READER, offset, NOW_MS - ago_ms, bound)


UNHEARD = voter(None, None, "3")


def log_start(
    holders,
    *,
    candidates=None,
    start=0,
    since_ms=LONG_AGO_MS,
    settings=ANY_SIZE,
    rule=leader_log_start,
):
    found = rule(
        checkpoints() if candidates is None else candidates,
        holders,
        log_start_offset=start,
        log_bytes=10 * (40 - start),
        now_ms=NOW_MS,
        leading_since_ms=since_ms,
        settings=settings,
    )
    return start if found is None else found.offset


REPLICAS = [
    # holders, where the log starts
    ([voter(40), voter(40)], 30),
    ([voter(40), voter(29)], 20),
    ([voter(40), voter(30)], 30),
    ([voter(40), voter(9)], 0),
    ([voter(40), voter(0)], 0),
    ([voter(40), observer(15)], 10),
    # who did not fetch for 300 s is not waited for
    ([voter(40), voter(9, LIVE_MS)], 0),
    ([voter(40), voter(9, LIVE_MS + 1)], 30),
    ([voter(40), observer(15, LIVE_MS + 1)], 30),
    # who fetches a checkpoint lives, and has nothing yet
    ([voter(40), voter(None)], 0),
    ([voter(40), observer(None)], 0),
    ([voter(40), observer(None, LIVE_MS + 1)], 30),
    # a voter that was never heard of, long after the election, is not alive
    ([voter(40), UNHEARD], 30),
    # alone
    ([], 30),
]


@pytest.mark.parametrize(("holders", "expected"), REPLICAS)
def test_a_leader_does_not_advance_its_log_start_past_the_progress_of_a_live_replica(
    holders, expected
):
    assert log_start(holders) == expected


NEW_LEADERS = [
    # holders, ms since the election, where the log starts
    ([UNHEARD, voter(None, None)], 0, 0),
    ([UNHEARD, voter(None, None)], LIVE_MS - 1, 0),
    ([UNHEARD, voter(None, None)], LIVE_MS, 30),
    ([UNHEARD, voter(40)], 0, 0),
    ([UNHEARD, observer(40)], 0, 0),
    ([voter(40), voter(40)], 0, 30),
    ([voter(40), voter(20)], 0, 20),
    ([voter(40), observer(None)], 0, 0),
]


@pytest.mark.parametrize(("holders", "since_ms", "expected"), NEW_LEADERS)
def test_a_new_leader_does_not_move_its_log_start_while_the_progress_of_a_voter_is_unknown(
    holders, since_ms, expected
):
    assert log_start(holders, since_ms=NOW_MS - since_ms) == expected


def advance_with_nobody_known_live(candidates, holders, **facts):
    """A mutant: who has not been heard of yet is not waited for."""
    facts["leading_since_ms"] = LONG_AGO_MS
    return leader_log_start(candidates, holders, **facts)


def test_a_mutant_leader_that_ignores_unknown_voters_advances_its_log_start_too_early():
    caught = [
        case
        for case in NEW_LEADERS
        if log_start(case[0], since_ms=NOW_MS - case[1], rule=advance_with_nobody_known_live)
        != case[2]
    ]
    assert caught == [case for case in NEW_LEADERS if UNHEARD in case[0] and case[1] < LIVE_MS]


@pytest.mark.parametrize(
    ("ages_ms", "expected"),
    [
        ((WEEK_MS, 0, 0), 10),
        ((WEEK_MS - 1, 0, 0), 0),
        ((2 * WEEK_MS, WEEK_MS, WEEK_MS - 1), 20),
        ((2 * WEEK_MS, WEEK_MS, WEEK_MS), 30),
    ],
)
def test_a_leaders_log_start_advances_past_lagging_replicas_after_a_week(ages_ms, expected):
    """metadata.start.offset.lag.time.max.ms. Neither a live replica nor an unheard voter helps."""
    candidates = checkpoints(ages_ms=ages_ms)
    assert log_start([voter(40), voter(0)], candidates=candidates) == expected
    assert log_start([UNHEARD], candidates=candidates, since_ms=NOW_MS) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (700, 0),  # 400 of the log, 300 of checkpoints: it fits
        (699, 10),  # 300 and 300
        (600, 10),
        (599, 20),  # 200 and 200
        (400, 20),
        (399, 30),  # 100 and 100
        (200, 30),
        (199, 30),  # it never fits: as little as can be
        (0, 30),
    ],
)
def test_a_log_above_its_retention_size_moves_its_start_past_slow_replicas(limit, expected):
    """metadata.max.retention.bytes: one slow observer must not fill every disk."""
    settings = LogStartSettings(max_retention_bytes=limit)
    assert log_start([voter(40), observer(0)], settings=settings) == expected
    assert log_start([UNHEARD], settings=settings, since_ms=NOW_MS) == expected


READERS = [
    # holders, where the log starts
    ([voter(40), reader(40, None)], 30),
    ([voter(40), reader(12, None)], 10),
    ([voter(40), reader(0, None)], 0),
    ([voter(40), reader(None, None)], 0),
    ([voter(40), reader(0, None, ago_ms=LIVE_MS)], 0),
    ([voter(40), reader(0, None, ago_ms=LIVE_MS + 1)], 30),  # it holds on while it fetches
    # its own bound: so many bytes of the log are kept for it, and what that takes
    ([voter(40), reader(0, 299)], 10),
    ([voter(40), reader(0, 300)], 0),
    ([voter(40), reader(0, 150)], 20),
    ([voter(40), reader(0, 50)], 30),
    ([voter(15), reader(0, 50)], 10),  # which is not the replicas' bound
]


@pytest.mark.parametrize(("holders", "expected"), READERS)
def test_an_archive_reader_holds_the_log_start_back_up_to_its_own_lag_limit(holders, expected):
    assert log_start(holders) == expected


def test_neither_retention_size_nor_time_moves_the_log_start_past_an_archive_reader():
    settings = LogStartSettings(max_retention_bytes=0, max_lag_ms=0)
    assert log_start([voter(40), reader(15, None)], settings=settings) == 10
    assert log_start([voter(40), reader(15, 150)], settings=settings) == 20


def test_a_leaders_log_start_never_moves_back():
    for start, slow in itertools.product((10, 20, 30), (0, 10, 25, 40)):
        assert log_start([voter(40), voter(slow)], start=start) >= start


def test_a_leader_without_a_checkpoint_does_not_advance_its_log_start():
    settings = LogStartSettings(max_retention_bytes=0)
    assert log_start([voter(40)], candidates=[], settings=settings) == 0


@pytest.mark.parametrize(
    ("leader", "start", "expected"),
    [
        (0, 0, None),
        (9, 0, None),
        (10, 0, 10),
        (29, 0, 20),
        (1_000, 0, 30),  # its own newest, where the leader's is newer
        (20, 20, None),
        (10, 20, None),
        (30, 20, 30),
    ],
)
def test_a_followers_log_starts_at_its_newest_checkpoint_up_to_the_leaders_log_start(
    leader, start, expected
):
    found = follower_log_start(IDS, leader, log_start_offset=start)
    assert (None if found is None else found.offset) == expected


def test_a_follower_without_a_checkpoint_does_not_advance_its_log_start():
    assert follower_log_start([], 1_000, log_start_offset=0) is None


@pytest.mark.parametrize(
    "field", ["live_ms", "max_lag_ms", "max_retention_bytes", "archive_max_lag_bytes"]
)
def test_creating_invalid_log_start_settings_raises_an_error_that_names_the_setting(field):
    with pytest.raises(ValueError, match=field):
        LogStartSettings(**{field: -1})
