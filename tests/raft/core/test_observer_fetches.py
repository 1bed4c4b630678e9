"""A leader sends observers committed records only, each in one Fetch response."""

from __future__ import annotations

from uuid import UUID

import pytest

from raft.core import effects as fx
from raft.core import events as ev
from raft.core.parked_fetches import ParkedFetches
from raft.core.voters import ReplicaKey, Voter, VoterSet, VoterSetHistory
from records.types import Epoch, NodeId, Offset
from tests.raft.core.test_answers import ME, THREE, TWO, Member, committed_leader, fetch

FOUR = ReplicaKey(NodeId(4), UUID(int=44))
AT_END = {"fetch_offset": Offset(6), "last_fetched_epoch": Epoch(3), "high_watermark": Offset(6)}


def answers(effects: list[fx.Effect]) -> list[tuple[int, int, int]]:
    """Return the connection, the end of the records and the high watermark of each answer."""
    return [
        (effect.connection, effect.end_offset, effect.response.high_watermark or 0)
        for effect in effects
        if isinstance(effect, fx.RespondFetch)
    ]


def waiting() -> Member:
    """Make a leader with a voter's Fetch on connection 2 and an observer's on connection 4."""
    member = committed_leader()
    for connection, replica in ((2, TWO), (4, FOUR)):
        assert (
            answers(member.do(ev.Received(connection, 1, fetch(replica=replica, **AT_END)))) == []
        )
    return member


def proposed(member: Member) -> list[fx.Effect]:
    """Append one record, at 6."""
    return member.do(ev.Propose((ev.Proposal("p", Epoch(3), None, (ev.NewBatch(1, 100, b""),)),)))


def committed(member: Member) -> list[fx.Effect]:
    """Let voter 3 acknowledge that record, which commits it."""
    at_7 = {"fetch_offset": Offset(7), "last_fetched_epoch": Epoch(3), "high_watermark": Offset(6)}
    return member.do(ev.Received(3, 1, fetch(replica=THREE, **at_7)))


def test_an_observer_gets_a_record_once_with_the_high_watermark_above_it() -> None:
    member = waiting()
    assert answers(proposed(member)) == [(2, 7, 6)]  # the voter's, which is to store it
    assert (4, 7, 7) in answers(committed(member))


def test_a_fetch_of_an_observer_never_returns_uncommitted_records() -> None:
    member = committed_leader()
    proposed(member)
    behind = fetch(replica=FOUR, fetch_offset=Offset(5), last_fetched_epoch=Epoch(2))
    assert answers(member.do(ev.Received(4, 1, behind))) == [(4, 6, 6)]
    now = fetch(replica=FOUR, **{**AT_END, "max_wait_ms": 0})
    assert answers(member.do(ev.Received(4, 2, now))) == [(4, 6, 6)]


def test_an_observer_that_holds_uncommitted_records_waits_until_they_are_committed() -> None:
    """An older leader may have given them."""
    member = committed_leader()
    proposed(member)
    ahead = {"fetch_offset": Offset(7), "last_fetched_epoch": Epoch(3), "high_watermark": Offset(6)}
    assert answers(member.do(ev.Received(4, 1, fetch(replica=FOUR, **ahead)))) == []
    assert (4, 7, 7) in answers(committed(member))


def test_a_read_round_answers_the_fetches_of_voters_only() -> None:
    assert [connection for connection, _, _ in answers(waiting().do(ev.Read("r")))] == [2]


def test_a_voter_that_lost_its_disk_gets_uncommitted_records() -> None:
    """Without them it could not catch up where its acknowledgement is what commits them."""
    member = waiting()
    disks = (ME, ReplicaKey(NodeId(2)), ReplicaKey(NodeId(3), UUID(int=33)))
    member.context.voter_history = VoterSetHistory(VoterSet(Voter(key=key) for key in disks))
    member.context.note_voters()
    new_disk = fetch(replica=ReplicaKey(NodeId(3), UUID(int=99)), **AT_END)
    member.do(ev.Received(3, 1, new_disk))
    assert sorted(answers(proposed(member))) == [(2, 7, 6), (3, 7, 6)]


def test_a_voter_that_lost_its_disk_still_flushes_before_it_fetches() -> None:
    """A voter set with its new disk may come at any time, and its Fetches count from then on."""
    member = committed_leader()
    assert member.quorum.acknowledges
    disks = (ReplicaKey(ME.id, UUID(int=99)), TWO, THREE)
    member.context.voter_history = VoterSetHistory(VoterSet(Voter(key=key) for key in disks))
    member.context.note_voters()
    assert not member.quorum.is_voter
    assert member.quorum.acknowledges
    others = VoterSet(Voter(key=key) for key in (TWO, THREE, FOUR))
    member.context.voter_history = VoterSetHistory(others)
    member.context.note_voters()
    assert not member.quorum.acknowledges


def test_giving_observers_uncommitted_records_answers_them_twice_for_a_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule left out: the first test would fail."""
    monkeypatch.setattr(ParkedFetches, "_end_offset", lambda self, *_: self._context.log.end_offset)
    assert (4, 7, 6) in answers(proposed(waiting()))
