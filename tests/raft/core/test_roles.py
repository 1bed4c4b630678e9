"""The code obeys the transition table, and docs/quorum.md shows it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import pytest

from raft.core.log import LogState
from raft.core.quorum import Quorum
from raft.core.roles import (
    NEXT,
    OBSERVER_NEXT,
    Candidate,
    ElectionState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from raft.core.transitions import transition_table
from raft.core.voters import ReplicaKey, VoterSet, VoterSetHistory
from records.types import ZERO_UUID, Epoch, NodeId

ROLES: dict[type[Role], Role] = {
    Unattached: Unattached(epoch=Epoch(5)),
    Prospective: Prospective(
        epoch=Epoch(5), voted=None, leader_id=None, granted=frozenset(), rejected=frozenset()
    ),
    Candidate: Candidate(epoch=Epoch(5), granted=frozenset(), rejected=frozenset()),
    Leader: Leader(epoch=Epoch(5), granted=frozenset({NodeId(1), NodeId(2)})),
    Follower: Follower(epoch=Epoch(5), leader_id=NodeId(2), voted=None),
    Resigned: Resigned(epoch=Epoch(5), preferred_candidates=()),
}


def member(node_id: int = 1, *, recovering: bool = False) -> Quorum:
    return Quorum(
        identity=ReplicaKey(NodeId(node_id)),
        cluster_id=None,
        voters=VoterSetHistory(VoterSet.of_ids(1, 2, 3)),
        log=LogState(),
        election=ElectionState(epoch=Epoch(5)),
        random=Random(1),
        recovering=recovering,
    )


def moves(quorum: Quorum, old: Role, new: Role) -> bool:
    context = quorum._context
    context.role = old
    if isinstance(old, Leader):
        context.on_enter[Leader]()
    try:
        context.become(new, "test")
    except AssertionError as error:
        if "illegal transition" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize(("old", "new"), list(product(ROLES, ROLES)))
def test_a_voter_changes_its_role_only_as_the_transition_table_allows(
    old: type[Role], new: type[Role]
) -> None:
    assert moves(member(), ROLES[old], ROLES[new]) == (new in NEXT[old])


@pytest.mark.parametrize(("old", "new"), list(product(ROLES, ROLES)))
@pytest.mark.parametrize("quorum", [member(4), member(recovering=True)], ids=["observer", "lost"])
def test_observers_and_recovering_voters_change_roles_only_as_their_table_allows(
    quorum: Quorum, old: type[Role], new: type[Role]
) -> None:
    allowed = new in OBSERVER_NEXT.get(old, ())
    assert moves(quorum, ROLES[old], ROLES[new]) == allowed


@pytest.mark.parametrize(
    ("old", "new"), [(old, new) for old in ROLES for new in ROLES if new in NEXT[old]]
)
def test_a_raft_role_transition_to_an_older_epoch_fails_an_assertion(
    old: type[Role], new: type[Role]
) -> None:
    context = member()._context
    context.role = ROLES[old]
    lower = {name: getattr(ROLES[new], name) for name in ROLES[new].__slots__} | {"epoch": Epoch(4)}
    with pytest.raises(AssertionError, match="epoch went backwards"):
        context.become(new(**lower), "test")


def test_every_raft_role_is_in_the_transition_table_and_reachable_from_another_role() -> None:
    assert set(NEXT) == set(ROLES)
    assert set().union(*NEXT.values()) == set(ROLES)


KEY = ReplicaKey(NodeId(1), ZERO_UUID)


@pytest.mark.parametrize(
    ("disk", "role"),
    [
        ({}, Unattached),
        ({"leader_id": NodeId(2)}, Follower),
        ({"leader_id": NodeId(2), "voted": KEY}, Follower),
        ({"leader_id": NodeId(1), "voted": KEY}, Resigned),
        ({"voted": KEY}, Unattached),  # a candidate: never again in this epoch
        ({"leader_id": NodeId(9)}, Unattached),  # a leader nobody can reach
    ],
)
def test_the_stored_election_state_of_a_voter_determines_its_role_after_a_restart(
    disk: dict, role: type[Role]
) -> None:
    election = ElectionState(epoch=Epoch(7), **disk)
    assert type(member()._context.restored_role(election)) is role


def test_the_quorum_page_shows_the_role_transition_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "quorum.md").read_text()
    assert transition_table() in text, "docs/quorum.md: paste `python -m raft.core.transitions`"
