"""Requests move the epoch within a budget; beyond it, only once the node they name confirms it.

Source: docs/design/epochs.md.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.core import effects as fx
from raft.core import events as ev
from raft.core.epoch_budget import BUDGET, CLAIM_MS, MAX_EPOCH, EpochBudget
from raft.core.messages import (
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    Request,
    VoteRequest,
    VoteResponse,
)
from raft.core.roles import ElectionState, Prospective, Resigned, Unattached
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from tests.raft.core.test_answers import (
    ME,
    THREE,
    TWO,
    Member,
    committed_leader,
    fetch,
    follower,
    leader,
    vote,
)

TWO_ID, THREE_ID = NodeId(2), NodeId(3)
FAR = Epoch(50_000)


def begin(epoch: int) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(
        cluster_id="here", voter=ME, leader_id=THREE_ID, epoch=Epoch(epoch)
    )


def end(epoch: int) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(
        cluster_id="here", leader_id=THREE_ID, epoch=Epoch(epoch), preferred_candidates=()
    )


def hostile_vote(epoch: int) -> VoteRequest:
    return vote(candidate=THREE, epoch=Epoch(epoch))


def questions(effects: list[fx.Effect]) -> list[int]:
    """Whom these effects ask for their epoch."""
    return [
        e.peer for e in effects if isinstance(e, fx.Send) and isinstance(e.request, FetchRequest)
    ]


def question_to(member: Member, peer: int) -> int:
    """The Fetch that is out to `peer`: one of its own, or the search for a leader."""
    request_id = member.quorum._requests.outstanding_id(NodeId(peer), FetchRequest)
    assert request_id is not None, f"no Fetch is out to {peer}"
    return request_id


# -- the budget, by itself ---------------------------------------------------------------------


def test_the_epoch_budget_of_a_voter_is_refilled_by_one_epoch_per_second() -> None:
    budget = EpochBudget()
    assert budget.spend(BUDGET, 0)
    assert not budget.spend(1, 999)
    assert budget.spend(1, 1000)
    later_ms = 10 * BUDGET * 1000
    assert not budget.spend(BUDGET + 1, later_ms)
    assert budget.spend(BUDGET, later_ms)


@pytest.mark.parametrize(("step", "times"), [(2**20, 2047), (BUDGET, 2_000_000), (1, 200_000)])
def test_repeated_requests_cannot_raise_a_voters_epoch_beyond_its_budget(
    step: int, times: int
) -> None:
    """A request a millisecond, for half an hour in the second case."""
    budget = EpochBudget()
    epoch = sum(step for now_ms in range(times) if budget.spend(step, now_ms))
    assert epoch <= BUDGET + times // 1000


@given(
    st.lists(st.tuples(st.integers(1, 3 * BUDGET), st.integers(0, 5_000)), min_size=1, max_size=200)
)
def test_the_epoch_of_a_voter_never_rises_faster_than_its_epoch_budget_allows(
    steps: list[tuple[int, int]],
) -> None:
    budget, epoch, now_ms = EpochBudget(), 0, 0
    for distance, pause_ms in steps:
        now_ms += pause_ms
        if budget.spend(distance, now_ms):
            epoch += distance
        assert epoch * 1000 <= BUDGET * 1000 + now_ms


def test_the_epoch_budget_keeps_one_unconfirmed_report_per_node_until_it_expires() -> None:
    budget = EpochBudget()
    new = [budget.claim(TWO_ID, Epoch(epoch), 0) for epoch in range(2_000, 4_000)]
    assert new == [True] + [False] * 1_999
    assert budget.claim(THREE_ID, Epoch(9_000), 5_000)
    assert budget.unconfirmed(Epoch(0), CLAIM_MS - 1) == (2, 3)
    assert budget.unconfirmed(Epoch(3_999), CLAIM_MS - 1) == (3,), "2 is not ahead of that"
    assert budget.unconfirmed(Epoch(0), CLAIM_MS + 5_000) == ()
    assert budget.claim(TWO_ID, Epoch(2_000), CLAIM_MS + 5_000)


# -- every request that names an epoch ---------------------------------------------------------


@pytest.mark.parametrize("request_", [hostile_vote, begin, end])
@pytest.mark.parametrize("state", [Member, lambda: follower()[0], leader, committed_leader])
@pytest.mark.parametrize("epoch", [BUDGET + 100, 2**20, MAX_EPOCH])
def test_a_voter_asks_the_claimed_node_to_confirm_an_epoch_beyond_the_voters_epoch_budget(
    request_: object, state: object, epoch: int
) -> None:
    member = state()
    before = member.quorum.role
    effects = member.do(ev.Received(7, 1, request_(epoch)))
    answer = next(e.response for e in effects if isinstance(e, fx.Respond))
    assert answer.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert answer.epoch == before.epoch
    assert member.quorum.role == before
    assert 3 in questions(effects) or question_to(member, 3)
    assert member.quorum.unconfirmed_epochs == (3,)
    assert any(isinstance(e, fx.PeerFault) and e.peer == 3 for e in effects)


@pytest.mark.parametrize("request_", [hostile_vote, begin, end])
def test_a_voter_adopts_a_newer_epoch_within_its_budget_without_confirmation(
    request_: object,
) -> None:
    member = Member()
    assert member.ask(request_(BUDGET)).error is ErrorCode.NONE
    assert member.quorum.epoch == BUDGET
    assert not member.quorum.unconfirmed_epochs


@pytest.mark.parametrize("request_", [hostile_vote, begin, end])
def test_an_observer_adopts_a_newer_epoch_only_after_confirmation(request_: object) -> None:
    """No leader would ever free it from an epoch that never began: it dials voters only."""
    member = Member(voters=(TWO, THREE))
    assert not member.quorum.is_voter
    assert member.ask(request_(3)).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert member.quorum.epoch == 2
    member.do(ev.ResponseReceived(question_to(member, 3), fenced(3)))
    assert member.quorum.epoch == 3


@pytest.mark.parametrize(
    "request_",
    [
        fetch(epoch=MAX_EPOCH),
        fetch(epoch=Epoch(3)),
        fetch(last_fetched_epoch=MAX_EPOCH),
        FetchSnapshotRequest(
            cluster_id="here",
            replica=THREE,
            epoch=MAX_EPOCH,
            snapshot_id=OffsetAndEpoch(Offset(4), MAX_EPOCH),
            position=0,
            max_bytes=100,
        ),
        DescribeQuorumRequest(),
        vote(epoch=Epoch(3), pre_vote=True),
        vote(epoch=MAX_EPOCH, pre_vote=True),
    ],
    ids=lambda request: type(request).__name__,
)
@pytest.mark.parametrize("state", [Member, leader])
def test_requests_other_than_votes_and_leadership_claims_do_not_change_a_voters_epoch(
    request_: Request, state: object
) -> None:
    member = state()
    before = member.quorum.epoch
    member.do(ev.Received(7, 1, request_))
    assert member.quorum.epoch == before
    assert not member.quorum.unconfirmed_epochs


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (hostile_vote(100), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (begin(100), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (vote(candidate=ME._replace(id=NodeId(9)), epoch=FAR), ErrorCode.INCONSISTENT_VOTER_SET),
    ],
)
def test_a_refused_request_with_a_newer_epoch_does_not_use_up_a_voters_epoch_budget(
    request_: Request, error: ErrorCode
) -> None:
    member = Member()
    if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        member.quorum._context.cluster_id = "elsewhere"
    for _ in range(2 * BUDGET):
        assert member.ask(request_).error is error
    member.quorum._context.cluster_id = "here"
    assert not member.quorum.unconfirmed_epochs
    assert member.ask(hostile_vote(BUDGET)).granted


def test_a_voter_answers_a_pre_vote_of_a_newer_epoch_in_that_epoch() -> None:
    """Kafka's voters drop an answer of an older epoch; and it names no leader of another epoch."""
    member = Member()
    answer = member.ask(vote(epoch=Epoch(9), pre_vote=True))
    assert answer == VoteResponse(leader_id=None, epoch=Epoch(9), granted=True)
    answer = leader().ask(vote(epoch=Epoch(9), pre_vote=True))
    assert answer == VoteResponse(leader_id=None, epoch=Epoch(9), granted=False)


# -- confirmation ------------------------------------------------------------------------------


def claimed(request_: object = hostile_vote) -> tuple[Member, fx.Send]:
    """Node 1 was told that node 3 is in epoch 50,000, and asks it."""
    member = Member()
    effects = member.do(ev.Received(7, 1, request_(FAR)))
    return member, member.sent(effects, FetchRequest, 3)


def fenced(epoch: int, leader_id: NodeId | None = None) -> FetchResponse:
    error = ErrorCode.FENCED_LEADER_EPOCH
    return FetchResponse(error=error, leader_id=leader_id, epoch=Epoch(epoch))


@pytest.mark.parametrize("said", [FAR - 40_000, FAR, FAR + 1, MAX_EPOCH])
def test_a_voter_adopts_the_epoch_that_the_named_node_confirms_for_a_doubtful_claim(
    said: int,
) -> None:
    member, question = claimed()
    member.do(ev.ResponseReceived(question.request_id, fenced(said)))
    assert member.quorum.epoch == said
    assert not member.quorum.unconfirmed_epochs


def test_a_voter_votes_for_a_candidate_whose_epoch_was_confirmed() -> None:
    member, question = claimed()
    member.do(ev.ResponseReceived(question.request_id, fenced(FAR)))
    assert member.ask(hostile_vote(FAR)).granted


def test_a_voter_follows_a_leader_whose_epoch_was_confirmed() -> None:
    member, question = claimed(begin)
    member.do(ev.ResponseReceived(question.request_id, fenced(FAR, leader_id=THREE_ID)))
    assert (member.quorum.epoch, member.quorum.leader_id) == (FAR, 3)


def test_a_voter_asks_a_node_that_denied_a_claimed_epoch_again_only_after_a_pause() -> None:
    member, question = claimed()
    denied = FetchResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=None, epoch=Epoch(2))
    member.do(ev.ResponseReceived(question.request_id, denied))
    assert member.quorum.epoch == 2
    assert not member.quorum.unconfirmed_epochs
    asked = 0
    for _ in range(1000):  # a flood, within a tenth of a second
        effects = member.do(ev.Received(7, 1, hostile_vote(FAR)))
        asked += questions(effects).count(3)
        for effect in effects:
            if isinstance(effect, fx.Send) and effect.peer == 3:
                member.do(ev.ResponseReceived(effect.request_id, denied))
    assert asked == 0
    assert questions(member.tick(50)).count(3) == 1


def test_a_response_from_the_claimed_leader_to_any_request_confirms_its_epoch() -> None:
    member, _ = claimed()
    effects = member.tick(3000)
    asked = member.sent(effects, VoteRequest, 3)
    answer = VoteResponse(error=ErrorCode.FENCED_LEADER_EPOCH, leader_id=None, epoch=FAR)
    member.do(ev.ResponseReceived(asked.request_id, answer))
    assert member.quorum.epoch == FAR


def test_a_voter_adopts_an_epoch_that_one_of_two_claimed_nodes_confirms() -> None:
    """Node 3 does not answer; node 2 confirms."""
    member, _ = claimed()
    member.do(ev.Received(8, 1, vote(epoch=FAR)))
    member.do(ev.ResponseReceived(question_to(member, 2), fenced(FAR)))
    assert member.quorum.epoch == FAR
    assert member.ask(vote(epoch=FAR)).granted


def test_an_election_succeeds_while_a_node_that_should_confirm_an_epoch_cannot_be_reached() -> None:
    member, question = claimed()
    member.do(ev.RequestFailed(question.request_id))
    effects = member.tick(3000)
    assert isinstance(member.quorum.role, Prospective)
    assert member.quorum.unconfirmed_epochs == (3,)
    granted = VoteResponse(leader_id=None, epoch=Epoch(2), granted=True)
    asked = member.sent(effects, VoteRequest, 2)
    effects = member.do(ev.ResponseReceived(asked.request_id, granted))
    assert member.quorum.epoch == 3
    member.tick(CLAIM_MS)
    assert not member.quorum.unconfirmed_epochs


def test_a_voters_fetch_that_confirms_a_claimed_epoch_acknowledges_only_flushed_records() -> None:
    member, sent = follower()
    log = member.quorum.log
    log.append(Offset(5), Offset(6), Epoch(3))
    member.quorum._requests.abandon(sent.request_id)
    effects = member.do(ev.Received(9, 1, hostile_vote(FAR)))
    question = member.sent(effects, FetchRequest, 3).request
    assert (question.fetch_offset, question.last_fetched_epoch) == (5, 2)


# -- after the attack --------------------------------------------------------------------------


def test_a_voter_grants_an_honest_vote_after_2048_hostile_vote_requests() -> None:
    member = Member()
    for number in range(2048):
        member.do(ev.Received(7, 1, hostile_vote(member.quorum.epoch + 1 + number % 3)))
    assert member.quorum.epoch <= BUDGET + 2
    member.now_ms += 60
    honest = Epoch(member.quorum.epoch + 1)
    assert member.ask(vote(epoch=honest)).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    member.do(ev.ResponseReceived(question_to(member, 2), fenced(honest)))
    assert member.ask(vote(epoch=honest)).granted


def test_a_voter_in_the_largest_possible_epoch_starts_no_election_and_keeps_running() -> None:
    member = Member(ElectionState(epoch=MAX_EPOCH))
    effects = member.tick(3000)
    request_id = member.sent(effects, VoteRequest, 2).request_id
    granted = VoteResponse(leader_id=None, epoch=MAX_EPOCH, granted=True)
    effects = member.do(ev.ResponseReceived(request_id, granted))
    assert any(isinstance(e, fx.PeerFault) and "last possible epoch" in e.reason for e in effects)
    for _ in range(10):
        member.tick(3000)
    assert member.quorum.epoch == MAX_EPOCH


def test_a_former_leader_of_the_largest_possible_epoch_starts_no_epoch_and_grants_no_vote() -> None:
    member = Member(ElectionState(epoch=MAX_EPOCH, leader_id=ME.id, voted=ME))
    assert isinstance(member.quorum.role, Resigned)
    member.tick(3000)
    assert member.quorum.role == Unattached(epoch=MAX_EPOCH, voted=ME)
    assert not member.ask(hostile_vote(MAX_EPOCH)).granted
