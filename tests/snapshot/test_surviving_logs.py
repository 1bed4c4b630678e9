"""Choosing the copy of a log that a restore continues from."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
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
    assert not choice.forks


def test_a_newer_epoch_wins_over_a_longer_log_of_an_older_epoch() -> None:
    stale = copy("stale", (1, 0), end=100, committed=50)
    newer = copy("newer", (1, 0), (2, 60), end=70, committed=70)
    choice = choose_log([stale, newer])
    assert choice.chosen is newer
    assert choice.others[0].common_end == 60
    assert choice.others[0].dropped == 40
    assert choice.others[0].doubtful == 0  # `newer` knew another record at 60 to be committed
    assert not choice.forks


def test_a_newer_epoch_wins_over_a_longer_log_that_no_copy_disproves() -> None:
    stale = copy("stale", (1, 0), end=100, committed=50)
    newer = copy("newer", (1, 0), (2, 60), end=70, committed=60)
    choice = choose_log([stale, newer])
    assert choice.chosen is newer
    assert (choice.others[0].dropped, choice.others[0].doubtful) == (40, 40)


def test_copies_that_knew_different_records_as_committed_prove_a_fork() -> None:
    betrayed = copy("betrayed", (1, 0), end=100, committed=61)
    newer = copy("newer", (1, 0), (2, 60), end=70, committed=70)
    assert choose_log([betrayed, newer]).forks == ((betrayed, newer),)
    assert not choose_log([copy("exact", (1, 0), end=100, committed=60), newer]).forks


def test_a_copy_is_left_out_where_an_older_one_knew_other_records_as_committed() -> None:
    """A leader of epoch 7, now gone, committed the record of epoch 3 by one of its own."""
    never = copy("never", (1, 0), (5, 1), end=2, committed=1)
    broker = copy("broker", (1, 0), (3, 1), end=2, committed=2)
    choice = choose_log([never, broker])
    assert choice.chosen is broker
    assert not choice.forks
    assert (choice.others[0].dropped, choice.others[0].doubtful) == (1, 0)


def test_dropped_records_that_no_copy_disproves_may_have_been_acknowledged() -> None:
    newer = copy("newer", (1, 0), (5, 1), end=2, committed=1)
    broker = copy("broker", (1, 0), (3, 1), end=2, committed=1)
    choice = choose_log([newer, broker])
    assert choice.chosen is newer
    assert (choice.others[0].dropped, choice.others[0].doubtful) == (1, 1)
    assert not choice.others[0].is_undecided


def test_a_damaged_copy_with_records_of_its_own_may_have_been_the_newer_one() -> None:
    newer = copy("newer", (1, 0), (5, 1), end=2, committed=1)
    cut = replace(copy("cut", (1, 0), (3, 1), end=2, committed=1), damaged=True)
    assert choose_log([newer, cut]).others[0].is_undecided
    part = replace(copy("part", (1, 0), end=1, committed=1), damaged=True)
    assert not choose_log([newer, part]).others[0].is_undecided


def test_committed_records_beyond_every_copy_are_counted_as_lost() -> None:
    torn = copy("torn", (1, 0), end=90, committed=130)  # its tail is damaged
    assert choose_log([torn, copy("other", (1, 0), end=100)]).lost == 30


def test_a_torn_copy_proves_a_fork_only_by_records_that_it_still_has() -> None:
    torn = copy("torn", (1, 0), end=50, committed=130)
    newer = copy("newer", (1, 0), (2, 60), end=70, committed=70)
    assert not choose_log([torn, newer]).forks


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
    assert not choice.forks


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


@dataclass
class Node:
    """A voter or an observer of the model: epochs of its records, and its high watermark."""

    log: list[int] = field(default_factory=list)
    committed: int = 0


@dataclass
class Quorum:
    """Raft as the model needs it: elections, fetches of any length, the commit rule."""

    rng: random.Random
    voters: list[Node] = field(default_factory=lambda: [Node() for _ in range(3)])
    observer: Node = field(default_factory=Node)
    leader: Node | None = None
    epoch: int = 0
    truth: list[int] = field(default_factory=list)  # epochs of all committed records
    acknowledged: dict[int, int] = field(default_factory=dict)  # by node, in the leader's epoch

    def step(self) -> None:
        kind = self.rng.randrange(6)
        if self.leader is None or kind == 0:
            self._elect(self.rng.choice(self.voters))
        elif kind == 1:
            self.leader.log.append(self.epoch)
        else:
            self._fetch(self.leader, self.rng.choice([*self.voters, self.observer]))

    def _elect(self, candidate: Node) -> None:
        newest = (candidate.log[-1:], len(candidate.log))
        granted = [one for one in self.voters if (one.log[-1:], len(one.log)) <= newest]
        voters = self.rng.sample(granted, min(len(granted), 2))
        if candidate not in voters:
            voters = [candidate, *voters[:1]]
        if len({id(one) for one in voters}) < 2:
            return
        self.epoch += 1
        self.leader, self.acknowledged = candidate, {}
        candidate.log.append(self.epoch)

    def _fetch(self, leader: Node, follower: Node) -> None:
        if follower is leader:
            return
        shared = 0
        while shared < min(len(leader.log), len(follower.log)) and (
            leader.log[shared] == follower.log[shared]
        ):
            shared += 1
        assert shared >= follower.committed, "a committed record was truncated"
        follower.log[shared:] = leader.log[shared : shared + self.rng.randrange(3)]
        if follower is not self.observer:
            self.acknowledged[id(follower)] = len(follower.log)
            end = max(self.acknowledged.values())
            if leader.log[end - 1 : end] == [self.epoch] and end > leader.committed:
                assert leader.log[: len(self.truth)] == self.truth, "a committed record is gone"
                self.truth = leader.log[:end]
                leader.committed = end
        follower.committed = max(follower.committed, min(leader.committed, len(follower.log)))


def survivor(name: str, node: Node) -> SurvivingLog:
    starts = [
        (epoch, at) for at, epoch in enumerate(node.log) if at == 0 or node.log[at - 1] != epoch
    ]
    return copy(name, *starts, end=len(node.log), committed=node.committed)


def test_survivors_of_random_quorums_never_lose_known_or_hide_possible_commits() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(1_000):
        quorum = Quorum(rng)
        for _ in range(rng.randrange(5, 40)):
            quorum.step()
        nodes = {f"voter {at}": node for at, node in enumerate(quorum.voters)}
        nodes["observer"] = quorum.observer
        names = rng.sample(sorted(nodes), rng.randrange(1, 5))
        copies = [survivor(name, nodes[name]) for name in names]
        choice = choose_log(copies)
        assert not choice.forks
        chosen, truth = nodes[str(choice.chosen.directory)].log, quorum.truth
        for one in copies:
            log = nodes[str(one.directory)].log
            assert chosen[: one.held] == log[: one.held], "a record known as committed is lost"
        for other in choice.others:
            log = nodes[str(other.log.directory)].log
            assert other.common_end is not None
            lost = [
                at for at in range(other.common_end, len(log)) if log[: at + 1] == truth[: at + 1]
            ]
            assert len(lost) <= other.doubtful, "a dropped record that was committed is not told"
        if sum(name != "observer" for name in names) >= 2:
            assert chosen[: len(truth)] == truth, "a majority survives, and a record is lost"
