"""Choosing the copy of a log that a restore continues from."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raft.segments.epochs import EpochStart
from records.types import Epoch, Offset
from snapshot.surviving_logs import NoCopyError, SurvivingLog, choose_log, common_end


def copy(name: str, *epochs: tuple[int, int], end: int, committed: int = 0) -> SurvivingLog:
    return SurvivingLog(
        directory=Path(name),
        epochs=tuple(EpochStart(Epoch(epoch), Offset(start)) for epoch, start in epochs),
        end=Offset(end),
        committed=Offset(committed),
    )


def test_choosing_without_a_copy_is_refused() -> None:
    with pytest.raises(NoCopyError, match="--from"):
        choose_log([])


def test_the_longest_copy_of_the_newest_epoch_is_chosen() -> None:
    broker = copy("broker", (1, 0), (3, 40), end=90, committed=80)
    voter = copy("voter", (1, 0), (3, 40), end=100, committed=70)
    choice = choose_log([broker, voter])
    assert choice.chosen is voter
    assert choice.lost == 0
    assert [(other.log, other.common_end, other.dropped) for other in choice.others] == [
        (broker, 90, 0)
    ]
    assert not choice.contradictions


def test_a_newer_epoch_wins_over_a_longer_log_of_an_older_epoch() -> None:
    stale = copy("stale", (1, 0), end=100, committed=50)
    newer = copy("newer", (1, 0), (2, 60), end=70, committed=70)
    choice = choose_log([stale, newer])
    assert choice.chosen is newer
    assert choice.others[0].common_end == 60
    assert choice.others[0].dropped == 40  # never committed: a leader of epoch 2 replaced them
    assert not choice.contradictions


def test_a_copy_with_committed_records_that_the_newest_copy_lacks_contradicts_it() -> None:
    betrayed = copy("betrayed", (1, 0), end=100, committed=61)
    newer = copy("newer", (1, 0), (2, 60), end=70, committed=70)
    assert [other.log for other in choose_log([betrayed, newer]).contradictions] == [betrayed]
    exact = copy("exact", (1, 0), end=100, committed=60)
    assert not choose_log([exact, newer]).contradictions


def test_committed_records_beyond_every_copy_are_counted_as_lost() -> None:
    torn = copy("torn", (1, 0), end=90, committed=130)  # its tail is damaged
    assert choose_log([torn, copy("other", (1, 0), end=100)]).lost == 30


def test_a_torn_copy_contradicts_only_by_records_that_it_still_has() -> None:
    torn = copy("torn", (1, 0), end=50, committed=130)
    newer = copy("newer", (1, 0), (2, 60), end=70)
    assert not choose_log([torn, newer]).contradictions


def test_an_empty_copy_is_chosen_only_if_there_is_no_other() -> None:
    empty = copy("empty", end=0)
    assert choose_log([empty]).chosen is empty
    choice = choose_log([empty, copy("other", (0, 0), end=1)])
    assert choice.chosen.end == 1
    assert choice.others[0].common_end == 0


def test_copies_whose_epochs_do_not_overlap_are_not_compared() -> None:
    old = copy("old", (1, 0), end=50, committed=50)
    cut = copy("cut", (4, 100), end=120)  # its log and checkpoint say nothing below 100
    choice = choose_log([old, cut])
    assert choice.chosen is cut
    assert choice.others[0].common_end is None
    assert choice.others[0].dropped == 0
    assert not choice.contradictions


def test_the_common_end_of_random_logs_equals_their_longest_common_prefix() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        shared = sorted(rng.choices(range(4), k=rng.randrange(6)))
        # After the fork the sides use different epochs: an epoch has one leader.
        sides = [
            shared + sorted(rng.choices(epochs, k=rng.randrange(6)))
            for epochs in ((4, 6, 8), (5, 7, 9))
        ]
        logs = []
        for records in sides:
            starts = [
                (epoch, i) for i, epoch in enumerate(records) if i == 0 or records[i - 1] != epoch
            ]
            logs.append(copy("random", *starts, end=len(records)))
        assert common_end(*logs) == common_end(*reversed(logs)) == len(shared)
