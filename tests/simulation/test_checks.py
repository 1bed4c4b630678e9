"""What the checker takes for a fault, and what not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raft.core.effects import Transition
from raft.core.roles import Candidate, Leader
from records.batch import iter_batches
from records.batch_writer import build_value_batch
from records.types import Epoch, NodeId
from tests.simulation.checks import Checker, Ledger

VOTERS = (1, 2, 3)
MAJORITY = frozenset(map(NodeId, (1, 2)))


def committed_in(*epochs: int) -> Checker:
    """Nodes 2 and 3 hold a record of each of these epochs, and have committed it; node 1, none."""
    checker = Checker(VOTERS)
    checker.ledgers = {voter: Ledger() for voter in VOTERS}
    for offset, epoch in enumerate(epochs):
        data = build_value_batch(
            [b"%d" % offset], base_offset=offset, leader_epoch=epoch, timestamp=0
        )
        for node in (2, 3):
            checker.appending(node, data)
            checker.ledgers[node].durable_end = offset + 1
        checker.committed_to(2, offset + 1, iter_batches(data))
    return checker


def lead(checker: Checker, node: int, epoch: int) -> None:
    process: Any = SimpleNamespace(node_id=node)
    old = Candidate(epoch=Epoch(epoch), granted=MAJORITY, rejected=frozenset())
    new = Leader(epoch=Epoch(epoch), granted=MAJORITY)
    checker.transition(process, Transition(old=old, new=new, reason="majority of votes"))


def test_the_simulations_check_rejects_a_leader_that_lacks_records_of_earlier_epochs() -> None:
    lead(committed_in(1, 3), 2, 4)
    with pytest.raises(AssertionError, match="without all that is committed"):
        lead(committed_in(1, 3), 1, 4)


def test_the_simulations_check_accepts_an_old_leader_that_lacks_commits_of_later_epochs() -> None:
    """Found by simulation: nodes 2 and 3 went on to epoch 3 while node 1 stood still."""
    lead(committed_in(3, 3), 1, 2)
    with pytest.raises(AssertionError, match="without all that is committed"):
        lead(committed_in(1, 3), 1, 2)
