"""Log geometry: epochs, divergence, truncation, and a start that moves; beside a list of epochs."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.core.log import EpochStart, LogState
from raft.core.messages import EpochEnd
from raft.interfaces import MAX_EPOCHS
from records.types import Epoch, Offset, OffsetAndEpoch

EPOCHS = st.lists(st.integers(1, 6), max_size=14).map(sorted)
"""Logs, each given by the epochs of its records."""


def log_of(epochs: list[int]) -> LogState:
    log = LogState()
    for offset, epoch in enumerate(epochs):
        log.append(Offset(offset), Offset(offset + 1), Epoch(epoch))
    log.flushed_end_offset = log.end_offset
    return log


def snapshot(offset: int, epoch: int) -> OffsetAndEpoch:
    return OffsetAndEpoch(Offset(offset), Epoch(epoch))


@given(EPOCHS)
def test_the_raft_log_returns_the_epoch_of_each_record(epochs: list[int]) -> None:
    log = log_of(epochs)
    assert [e.epoch for e in log.epochs] == sorted(set(epochs))
    assert all(epochs[e.start_offset] == e.epoch for e in log.epochs)
    for offset in range(len(epochs) + 1):
        assert log.epoch_before(Offset(offset)) == (epochs[offset - 1] if offset else 0)


@given(EPOCHS, st.integers(0, 8))
def test_the_raft_log_returns_the_start_of_the_next_larger_epoch_as_the_end_of_an_epoch(
    epochs: list[int], epoch: int
) -> None:
    end = log_of(epochs).end_of_epoch(Epoch(epoch))
    smaller = [e for e in epochs if e <= epoch]
    assert end == (smaller[-1] if smaller else 0, len(smaller))


@given(EPOCHS, st.data())
def test_a_truncated_raft_log_has_the_epochs_of_a_log_that_never_had_the_removed_records(
    epochs: list[int], data
) -> None:
    log = log_of(epochs)
    end_offset = data.draw(st.integers(0, len(epochs)))
    log.truncate(Offset(end_offset))
    expected = log_of(epochs[:end_offset])
    assert (log.epochs, log.last_epoch) == (expected.epochs, expected.last_epoch)
    assert log.flushed_end_offset == end_offset


@given(EPOCHS, st.lists(st.integers(1, 6), max_size=8), st.lists(st.integers(1, 6), max_size=8))
def test_repeated_fetches_find_the_offset_at_which_two_logs_diverge(
    common: list[int], leaders: list[int], followers: list[int]
) -> None:
    """A follower always ends up with exactly the records that it shares with the leader.

    In Raft no two leaders share an epoch, so where the logs part their epochs differ: the leader's
    own suffix takes the even epochs, the follower's the odd ones, both above the common ones.
    """
    top = 2 * (max(common, default=0) + 1)
    ours = [2 * e for e in common] + [top + 2 * e for e in sorted(leaders)]
    theirs = [2 * e for e in common] + [top + 2 * e + 1 for e in sorted(followers)]
    leader, follower = log_of(ours), log_of(theirs)
    rounds = 0
    while follower.end_offset:
        verdict = leader.judge_fetch(follower.end_offset, follower.last_epoch)
        if verdict is None:
            break
        assert isinstance(verdict, EpochEnd)
        point = follower.truncation_point(verdict)
        assert point < follower.end_offset
        follower.truncate(point)
        rounds += 1
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs)))  # noqa: B905
    assert follower.end_offset == shared
    assert rounds <= len(set(theirs)) + 1


def test_a_leader_offers_a_snapshot_to_a_replica_behind_its_log_start() -> None:
    log = log_of([1, 1, 2, 2, 3, 3])
    log.high_watermark = Offset(6)
    log.snapshot_id = snapshot(5, 3)
    log.move_start(Offset(4))
    assert (log.start_offset, log.start_epoch) == (4, 2)
    assert log.epochs == (EpochStart(Epoch(3), Offset(4)),)
    to_snapshot = snapshot(5, 3)
    assert log.judge_fetch(Offset(0), Epoch(0)) == to_snapshot
    assert log.judge_fetch(Offset(3), Epoch(2)) == to_snapshot
    assert log.judge_fetch(Offset(4), Epoch(1)) == to_snapshot  # at the start, another history
    assert log.judge_fetch(Offset(5), Epoch(1)) == to_snapshot  # all its epochs are gone here
    assert log.judge_fetch(Offset(4), Epoch(2)) is None
    assert log.judge_fetch(Offset(6), Epoch(3)) is None
    assert log.judge_fetch(Offset(5), Epoch(2)) == EpochEnd(Epoch(2), Offset(4))
    assert log.judge_fetch(Offset(7), Epoch(3)) == EpochEnd(Epoch(3), Offset(6))


def test_a_leader_offers_an_empty_replica_a_snapshot_instead_of_the_whole_log() -> None:
    log = log_of([1, 1, 1])
    assert log.judge_fetch(Offset(0), Epoch(0)) is None
    log.snapshot_id = snapshot(2, 1)
    assert log.judge_fetch(Offset(0), Epoch(0)) == snapshot(2, 1)
    assert log.judge_fetch(Offset(1), Epoch(1)) is None


def test_a_leader_serves_a_fetch_at_offset_0_with_an_epoch_from_its_log_not_a_snapshot() -> None:
    log = log_of([1, 1, 1])
    log.snapshot_id = snapshot(2, 1)
    assert log.judge_fetch(Offset(0), Epoch(1)) is None


def test_a_log_without_records_that_starts_at_its_end_offset_accepts_appends() -> None:
    log = log_of([1, 2])
    log.high_watermark, log.snapshot_id = Offset(2), snapshot(2, 2)
    log.move_start(Offset(2))
    assert (log.epochs, log.start_epoch, log.last_epoch) == ((), 2, 2)
    log.append(Offset(2), Offset(3), Epoch(2))
    assert log.epochs == (EpochStart(Epoch(2), Offset(2)),)
    log.reset_to(snapshot(9, 4))
    assert (log.start_offset, log.end_offset, log.last_epoch) == (9, 9, 4)


def test_moving_the_log_start_past_the_flushed_end_advances_the_flushed_end() -> None:
    """The log flushes a full segment by itself; the next flush reports it."""
    log = log_of([1, 1, 1])
    log.flushed_end_offset = Offset(1)
    log.high_watermark, log.snapshot_id = Offset(3), snapshot(2, 1)
    log.move_start(Offset(2))
    assert (log.start_offset, log.flushed_end_offset, log.end_offset) == (2, 2, 3)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda log: log.truncate(Offset(1)), "drop committed"),
        (lambda log: log.truncate(Offset(9)), "grows"),
        (lambda log: log.append(Offset(4), Offset(5), Epoch(2)), "gap"),
        (lambda log: log.append(Offset(3), Offset(3), Epoch(2)), "of nothing"),
        (lambda log: log.append(Offset(3), Offset(4), Epoch(1)), "epoch 1 appended"),
        (lambda log: log.move_start(Offset(2)), "without snapshot"),
    ],
)
def test_an_invalid_append_truncation_or_log_start_of_the_raft_log_fails_an_assertion(
    act, why: str
) -> None:
    log = log_of([1, 1, 2])
    log.high_watermark = Offset(2)
    with pytest.raises(AssertionError, match=why):
        act(log)


@pytest.mark.parametrize(
    "geometry",
    [
        {"end_offset": 3},  # records of no epoch
        {"end_offset": 3, "epochs": (EpochStart(2, 0), EpochStart(1, 2))},
        {"end_offset": 3, "epochs": (EpochStart(1, 3),)},
        {"start_offset": 2, "end_offset": 3, "epochs": (EpochStart(1, 2),)},  # no snapshot
        {"start_offset": 4, "end_offset": 3, "snapshot_id": snapshot(4, 1)},
        {"start_offset": 4, "end_offset": 4, "snapshot_id": snapshot(3, 1)},  # too old a snapshot
        {"start_offset": 4, "start_epoch": 2, "end_offset": 4, "snapshot_id": snapshot(4, 1)},
    ],
)
def test_a_raft_log_state_with_contradictory_offsets_raises_value_error(geometry: dict) -> None:
    with pytest.raises(ValueError, match=r"contradicts itself|snapshot"):
        LogState(**geometry)


def test_a_log_returns_its_newest_epochs_even_from_before_its_start() -> None:
    """A replica writes the same of them into a checkpoint, wherever its log starts."""
    pairs = [EpochStart(Epoch(n + 1), Offset(10 * n)) for n in range(400)]
    log = LogState()
    for pair in pairs:
        log.append(pair.start_offset, Offset(pair.start_offset + 10), pair.epoch)
    log.high_watermark = log.flushed_end_offset = log.end_offset
    newest, end = tuple(pairs[-MAX_EPOCHS:]), log.end_offset
    assert log.epochs_below(end) == newest
    log.note_snapshot(snapshot(3_985, 399))
    for start_offset in (15, 2_000, 3_985):
        log.move_start(Offset(start_offset))
        assert log.epochs_below(end) == newest
    restored = LogState(
        start_offset=log.start_offset,
        start_epoch=log.start_epoch,
        end_offset=end,
        epochs=log.epochs,
        snapshot_id=log.snapshot_id,
        snapshot_epochs=log.epochs_below(Offset(3_985)),
    )
    assert restored.epochs_below(end) == newest
    restored.reset_to(snapshot(5_000, 900), ((Epoch(7), Offset(3)),))
    assert restored.epochs_below(Offset(5_000)) == ((7, 3),)
