"""A member's answers, request by request, with Kafka's error codes, and the input it ignores."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from raft.core import effects as fx
from raft.core import events as ev
from raft.core.config import QuorumConfig
from raft.core.gate import MAX_HELD, Gate
from raft.core.log import EpochStart, LogState
from raft.core.messages import (
    MAX_OFFSET,
    Batch,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    EpochEnd,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    Request,
    VoteRequest,
    VoteResponse,
)
from raft.core.quorum import Quorum
from raft.core.roles import Candidate, ElectionState, Follower, Leader, Prospective, Unattached
from raft.core.timers import Timer, Timers
from raft.core.voters import ReplicaKey, Voter, VoterSet, VoterSetHistory
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

DISK = UUID(int=11)
ME = ReplicaKey(NodeId(1), DISK)
TWO, THREE = ReplicaKey(NodeId(2)), ReplicaKey(NodeId(3))
CONFIG = QuorumConfig(max_uncommitted_bytes=1000, max_observers=2, max_waiting_reads=3)


class Member:
    """Node 1 of three, epochs 1 and 2 in its log, driven step by step, with an instant disk."""

    def __init__(
        self,
        election: ElectionState | None = None,
        *,
        empty: bool = False,
        voters: tuple[ReplicaKey, ...] = (ME, TWO, THREE),
        log: LogState | None = None,
    ) -> None:
        epochs = (EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(2), Offset(3)))
        if log is None:
            log = LogState() if empty else LogState(end_offset=Offset(5), epochs=epochs)
        self.now_ms = 0
        self.effects: list[fx.Effect] = []
        self.quorum = Quorum(
            identity=ME,
            cluster_id="here",
            voters=VoterSetHistory(VoterSet(Voter(key=key) for key in voters)),
            log=log,
            election=election or ElectionState(epoch=Epoch(2)),
            random=Random(7),
            config=CONFIG,
        )
        self.context = self.quorum._context
        self.do(ev.Start())

    def do(self, event: ev.Event) -> list[fx.Effect]:
        """Step, and report at once that the disk has finished."""
        effects = self.quorum.step(event, self.now_ms)
        for effect in list(effects):
            if isinstance(effect, fx.PersistElectionState):
                effects += self.do(ev.ElectionStateDurable(effect.sequence))
            elif isinstance(effect, fx.Append | fx.AppendLeaderChange):
                end_offset = self.quorum.log.end_offset
                effects += self.do(ev.AppendDurable(end_offset, effect.generation))
        return effects

    def ask(self, request: Request, connection: int = 7) -> Any:
        """Return the response to a request that is answered at once."""
        effects = self.do(ev.Received(connection, 1, request))
        answers = [e for e in effects if isinstance(e, fx.Respond | fx.RespondFetch)]
        assert len(answers) == 1, effects
        return answers[0].response

    def sent(self, effects: list[fx.Effect], kind: type, peer: int) -> fx.Send:
        return next(
            e
            for e in effects
            if isinstance(e, fx.Send) and e.peer == peer and isinstance(e.request, kind)
        )

    def request_id(self, kind: type[Request], peer: int) -> int:
        """Return the id of the outstanding request of this kind."""
        request_id = self.context.requests.outstanding_id(NodeId(peer), kind)
        assert request_id is not None, f"no {kind.__name__} to {peer}"
        return request_id

    def tick(self, after_ms: int) -> list[fx.Effect]:
        self.now_ms += after_ms
        return self.do(ev.Tick())


def vote(**changes: object) -> VoteRequest:
    request = VoteRequest(
        cluster_id="here",
        voter=ME,
        candidate=TWO,
        epoch=Epoch(3),
        last_epoch=Epoch(2),
        end_offset=Offset(5),
    )
    return replace(request, **changes)


def fetch(**changes: object) -> FetchRequest:
    request = FetchRequest(
        cluster_id="here",
        replica=TWO,
        epoch=Epoch(3),
        fetch_offset=Offset(5),
        last_fetched_epoch=Epoch(2),
        max_wait_ms=500,
    )
    return replace(request, **changes)


def leader() -> Member:
    """Make node 1 leader of epoch 3, with its LeaderChange at 5, not committed."""
    member = Member()
    effects = member.tick(3000)
    granted = VoteResponse(leader_id=None, epoch=Epoch(2), granted=True)
    request_id = member.sent(effects, VoteRequest, 2).request_id
    effects = member.do(ev.ResponseReceived(request_id, granted))
    request_id = member.sent(effects, VoteRequest, 2).request_id
    member.do(ev.ResponseReceived(request_id, replace(granted, epoch=Epoch(3))))
    assert member.quorum.role.epoch == 3
    return member


def committed_leader() -> Member:
    member = leader()
    member.ask(fetch(fetch_offset=Offset(6), last_fetched_epoch=Epoch(3), max_wait_ms=0))
    assert member.quorum.log.high_watermark == 6
    return member


def follower() -> tuple[Member, fx.Send]:
    """Make node 1 a follower of node 2 in epoch 3, with its Fetch outstanding."""
    member = Member()
    begin = BeginQuorumEpochRequest(
        cluster_id="here", voter=ME, leader_id=NodeId(2), epoch=Epoch(3)
    )
    effects = member.do(ev.Received(7, 1, begin))
    return member, member.sent(effects, FetchRequest, 2)


# -- votes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (vote(cluster_id="elsewhere"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (vote(voter=ReplicaKey(NodeId(2))), ErrorCode.INVALID_VOTER_KEY),
        (vote(voter=ReplicaKey(NodeId(1), UUID(int=12))), ErrorCode.INVALID_VOTER_KEY),
        (vote(candidate=ME), ErrorCode.INVALID_REQUEST),
        (vote(candidate=ReplicaKey(NodeId(9))), ErrorCode.INCONSISTENT_VOTER_SET),
        (vote(last_epoch=Epoch(3)), ErrorCode.INVALID_REQUEST),
        (vote(end_offset=Offset(-1)), ErrorCode.INVALID_REQUEST),
        (vote(epoch=Epoch(1), last_epoch=Epoch(0)), ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_voter_refuses_an_invalid_vote_request_with_the_error_code_of_its_defect(
    request_: VoteRequest, error: ErrorCode
) -> None:
    member = Member()
    answer = member.ask(request_)
    assert answer == VoteResponse(error=error, leader_id=None, epoch=Epoch(2), granted=False)


@pytest.mark.parametrize(
    ("request_", "granted"),
    [
        (vote(), True),
        (vote(voter=None, cluster_id=None), True),  # version 0 knew neither
        (vote(voter=ReplicaKey(NodeId(1))), True),  # a disk that is not known matches any
        (vote(end_offset=Offset(4)), False),  # same last epoch, shorter
        (vote(last_epoch=Epoch(1), end_offset=Offset(99)), False),  # longer, older
        (vote(epoch=Epoch(4), last_epoch=Epoch(3), end_offset=Offset(1)), True),  # shorter, newer
        (vote(epoch=Epoch(2), last_epoch=Epoch(2), pre_vote=True), True),  # its epoch is not raised
    ],
)
def test_a_voter_grants_no_vote_to_a_candidate_whose_log_is_less_complete_than_the_voters_log(
    request_: VoteRequest, granted: bool
) -> None:
    answer = Member().ask(request_)
    assert answer == VoteResponse(leader_id=None, epoch=request_.epoch, granted=granted)


def test_a_voter_grants_only_one_candidate_its_vote_in_an_epoch() -> None:
    member = Member()
    assert member.ask(vote()).granted
    assert member.ask(vote()).granted  # the answer may have been lost
    assert not member.ask(vote(candidate=THREE)).granted
    again = Member(ElectionState(epoch=Epoch(3), voted=TWO))
    assert not again.ask(vote(candidate=THREE)).granted
    assert again.ask(vote()).granted
    assert again.ask(vote(candidate=THREE, epoch=Epoch(4))).granted


def test_a_pre_vote_does_not_change_the_voters_election_state() -> None:
    member = Member()
    before = member.context.election_state
    for candidate in (TWO, THREE):
        assert member.ask(vote(epoch=Epoch(2), candidate=candidate, pre_vote=True)).granted
    assert member.context.election_state == before


def test_a_follower_in_contact_with_its_leader_grants_no_pre_vote() -> None:
    member, sent = follower()
    request = vote(candidate=THREE, pre_vote=True)
    assert member.ask(request).granted  # it has not heard it yet
    response = FetchResponse(leader_id=NodeId(2), epoch=Epoch(3))
    member.do(ev.ResponseReceived(sent.request_id, response))
    answer = member.ask(request)
    assert (answer.granted, answer.leader_id) == (False, 2)
    member.do(ev.PeerLost(NodeId(2)))
    assert member.ask(request).granted
    assert not member.ask(replace(request, pre_vote=False)).granted  # but nothing that binds


def test_leaders_and_candidates_grant_no_vote_to_another_candidate_in_their_own_epoch() -> None:
    assert not leader().ask(vote()).granted
    assert not leader().ask(vote(pre_vote=True)).granted
    member = Member()
    effects = member.tick(3000)
    granted = VoteResponse(leader_id=None, epoch=Epoch(2), granted=True)
    member.do(ev.ResponseReceived(member.sent(effects, VoteRequest, 2).request_id, granted))
    assert isinstance(member.quorum.role, Candidate)
    assert not member.ask(vote()).granted
    assert member.ask(vote(pre_vote=True)).granted


def test_a_candidate_counts_a_voter_without_pre_vote_support_as_granting_its_pre_vote() -> None:
    member = Member()
    effects = member.tick(3000)
    member.do(ev.UnsupportedVersion(member.sent(effects, VoteRequest, 3).request_id))
    assert isinstance(member.quorum.role, Candidate)


def test_a_voters_stored_vote_does_not_change_when_another_node_announces_its_leadership() -> None:
    member = Member()
    member.ask(vote())
    begin = BeginQuorumEpochRequest(cluster_id="here", voter=ME, leader_id=THREE.id, epoch=Epoch(3))
    member.ask(begin)
    election = ElectionState(epoch=Epoch(3), leader_id=THREE.id, voted=TWO)
    assert member.quorum.election_state == election


def test_a_candidate_counts_a_repeated_vote_once() -> None:
    voters = VoterSetHistory(VoterSet.of_ids(1, 2, 3, 4, 5))
    member = Member()
    member.context.voter_history = voters
    member.context.note_voters()
    effects = member.tick(3000)
    granted = VoteResponse(leader_id=None, epoch=Epoch(2), granted=True)
    for _ in range(3):
        request_id = member.sent(effects, VoteRequest, 2).request_id
        member.do(ev.ResponseReceived(request_id, granted))
        member.do(ev.ResponseReceived(request_id, granted))  # duplicated on the way
    assert isinstance(member.quorum.role, Prospective)
    assert member.quorum.role.granted == {1, 2}


# -- leadership claims -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BeginQuorumEpochRequest, EndQuorumEpochRequest])
@pytest.mark.parametrize(
    ("claim", "error"),
    [
        ({"cluster_id": "elsewhere"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"epoch": Epoch(1)}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_id": NodeId(1)}, ErrorCode.INVALID_REQUEST),
        ({"leader_id": NodeId(9)}, ErrorCode.INCONSISTENT_VOTER_SET),
        ({"leader_id": NodeId(3), "epoch": Epoch(3)}, ErrorCode.INVALID_REQUEST),  # 2 leads it
    ],
)
def test_a_voter_refuses_a_false_claim_of_leadership(
    kind: type, claim: dict, error: ErrorCode
) -> None:
    member, _ = follower()
    extra = {"voter": ME} if kind is BeginQuorumEpochRequest else {"preferred_candidates": ()}
    whole = {"cluster_id": "here", "leader_id": NodeId(2), "epoch": Epoch(4)} | claim | extra
    answer = member.ask(kind(**whole))
    assert (answer.error, answer.leader_id, answer.epoch) == (error, 2, 3)


@pytest.mark.parametrize(
    ("names", "turn_ms"),
    [
        ((1, 3), 0),
        ((3, 1), 500),
        ((3, 4, 1), 500),
        ((3, 4, 5, 1), 500),
        ((3, 2, 4, 1), 500),
        ((3, 1, 2, 4), 125),
        ((3,), 1000),
    ],
)
def test_a_later_named_preferred_successor_waits_longer_before_its_election(
    names: tuple[int, ...], turn_ms: int
) -> None:
    member, _ = follower()
    keys = tuple(ReplicaKey(NodeId(name)) for name in names)
    assert member.quorum._detector.turn_ms(keys) == turn_ms


# -- what leaders are asked --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (fetch(cluster_id="elsewhere"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (fetch(epoch=Epoch(2)), ErrorCode.FENCED_LEADER_EPOCH),
        (fetch(epoch=Epoch(4)), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch(replica=ME), ErrorCode.INVALID_REQUEST),
        (fetch(replica=ReplicaKey(NodeId(-1))), ErrorCode.INVALID_REQUEST),
        (fetch(fetch_offset=Offset(-1)), ErrorCode.INVALID_REQUEST),
        (fetch(max_bytes=-5), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_leader_refuses_an_invalid_fetch_with_the_error_code_of_its_defect(
    request_: FetchRequest, error: ErrorCode
) -> None:
    member = leader()
    answer = member.ask(request_)
    assert (answer.error, answer.leader_id, answer.epoch) == (error, 1, 3)
    assert member.quorum.role.epoch == 3  # a newer epoch in a Fetch changes nothing


def test_a_leader_forgets_the_acknowledged_offset_of_a_replica_that_must_fetch_a_snapshot() -> None:
    """Its disk was replaced: the offset acknowledged before must not let the log be cut."""
    member = committed_leader()
    member.do(ev.SnapshotTaken(OffsetAndEpoch(Offset(5), Epoch(2))))
    member.do(ev.LogStartMoved(Offset(5)))

    def held() -> Offset | None:
        followers = member.quorum.followers
        assert followers is not None, "it leads"
        return next(voter.log_end_offset for voter in followers.voters if voter.key.id == TWO.id)

    assert held() == 6
    empty = fetch(fetch_offset=Offset(0), last_fetched_epoch=Epoch(0))
    answer = member.ask(empty, connection=8)
    assert answer.snapshot_id == (5, 2)
    assert held() is None
    assert member.quorum.log.high_watermark == 6
    member.ask(fetch(max_wait_ms=0), connection=8)
    assert held() == 5


def test_a_follower_refuses_requests_for_the_leader_and_names_the_leader() -> None:
    member, _ = follower()
    snapshot = FetchSnapshotRequest(
        cluster_id="here",
        replica=THREE,
        epoch=Epoch(3),
        snapshot_id=OffsetAndEpoch(Offset(4), Epoch(2)),
        position=0,
        max_bytes=100,
    )
    for request in (fetch(replica=THREE), snapshot, DescribeQuorumRequest()):
        answer = member.ask(request)
        assert (answer.error, answer.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


def test_a_node_that_shuts_down_refuses_a_fetch() -> None:
    member = leader()
    member.do(ev.Shutdown())
    assert member.ask(fetch()).error is ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fetch_offset": 5, "last_fetched_epoch": 1}, EpochEnd(1, 3)),
        ({"fetch_offset": 9, "last_fetched_epoch": 2}, EpochEnd(2, 5)),
        ({"fetch_offset": 2, "last_fetched_epoch": 0}, EpochEnd(0, 0)),
        ({"fetch_offset": 3, "last_fetched_epoch": 3}, None),  # nobody's, but nothing is wrong yet
        ({"fetch_offset": 2**62, "last_fetched_epoch": 3}, EpochEnd(3, 6)),
    ],
)
def test_a_leader_answers_a_diverging_fetch_with_the_last_common_epoch_and_its_end(
    changes: dict, expected: EpochEnd | None
) -> None:
    assert leader().ask(fetch(**changes)).diverging == expected


def test_a_leader_delays_a_fetch_response_until_its_deadline_or_a_change_of_the_log() -> None:
    member = committed_leader()
    at_the_end = fetch(
        fetch_offset=Offset(6), last_fetched_epoch=Epoch(3), high_watermark=Offset(6)
    )
    assert not [
        e for e in member.do(ev.Received(8, 2, at_the_end)) if isinstance(e, fx.RespondFetch)
    ]
    effects = member.tick(500)
    assert [e.connection for e in effects if isinstance(e, fx.RespondFetch)] == [8]
    for known in (None, Offset(5)):  # a high watermark it does not know is news
        assert member.ask(replace(at_the_end, high_watermark=known)).high_watermark == 6
    old = replace(at_the_end, high_watermark=MAX_OFFSET)  # version 17 has no such field
    assert not [e for e in member.do(ev.Received(9, 2, old)) if isinstance(e, fx.RespondFetch)]
    effects = member.do(ev.ConnectionClosed(9)) + member.tick(500)
    assert not [e for e in effects if isinstance(e, fx.RespondFetch)]


def test_a_second_fetch_on_a_connection_ends_the_wait_of_the_first_fetch() -> None:
    member = committed_leader()
    waiting = fetch(fetch_offset=Offset(6), last_fetched_epoch=Epoch(3), high_watermark=Offset(6))
    member.do(ev.Received(8, 1, waiting))
    effects = member.do(ev.Received(8, 2, waiting))
    assert [e.correlation for e in effects if isinstance(e, fx.RespondFetch)] == [1]
    member.do(ev.Read("r"))  # answers the second
    effects = member.do(ev.Received(8, 3, waiting))
    assert [e.token for e in effects if isinstance(e, fx.ReadReady)] == ["r"]


def test_a_leader_with_too_many_observers_forgets_the_longest_silent_observer() -> None:
    member = committed_leader()
    for node in (10, 11, 12):
        member.now_ms += 1
        member.ask(fetch(replica=ReplicaKey(NodeId(node)), max_wait_ms=0))
    answer = member.ask(DescribeQuorumRequest())
    assert isinstance(answer, DescribeQuorumResponse)
    assert [int(state.key.id) for state in answer.observers] == [11, 12]
    assert [int(state.key.id) for state in answer.voters] == [1, 2, 3]
    assert answer.voters[2].log_end_offset is None


def test_a_replica_with_a_voters_id_and_another_disk_is_an_observer() -> None:
    member = leader()
    two = replace(VoterSet([Voter(key=ME)]).voter(NodeId(1)), key=ReplicaKey(NodeId(2), DISK))
    member.context.voter_history = VoterSetHistory(VoterSet([Voter(key=ME), two]))
    member.context.note_voters()
    other_disk = ReplicaKey(NodeId(2), UUID(int=99))
    member.ask(fetch(replica=other_disk, fetch_offset=6, last_fetched_epoch=3, max_wait_ms=0))
    assert member.quorum.log.high_watermark is None


def test_a_leader_refuses_proposals_while_too_many_bytes_are_uncommitted() -> None:
    member = committed_leader()
    big = ev.Proposal("big", Epoch(3), None, (ev.NewBatch(1, 1000, b""),))
    effects = member.do(ev.Propose((big, big._replace(token="more"))))
    verdicts = [e for e in effects if isinstance(e, fx.Accepted | fx.Refused)]
    assert [(type(e), e.token) for e in verdicts] == [(fx.Accepted, "big"), (fx.Refused, "more")]
    assert verdicts[1].error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    member.ask(fetch(fetch_offset=Offset(7), last_fetched_epoch=Epoch(3), max_wait_ms=0))
    effects = member.do(ev.Propose((big._replace(token="again"),)))
    assert any(isinstance(e, fx.Accepted) for e in effects)


def test_a_leader_refuses_proposals_until_its_first_record_is_committed() -> None:
    member = leader()
    proposal = ev.Proposal("early", Epoch(3), None, (ev.NewBatch(1, 10, b""),))
    effects = member.do(ev.Propose((proposal,)))
    assert effects == [fx.Refused("early", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_a_flush_that_began_before_a_truncation_does_not_advance_the_flushed_end() -> None:
    member, _ = follower()
    log = member.quorum.log
    log.truncate(Offset(4))
    log.append(Offset(4), Offset(6), Epoch(3))
    member.quorum.step(ev.AppendDurable(Offset(5), log.generation - 1), member.now_ms)
    assert log.flushed_end_offset == 4
    member.quorum.step(ev.AppendDurable(Offset(6), log.generation), member.now_ms)
    assert log.flushed_end_offset == 6


def test_a_follower_with_a_slow_disk_does_not_treat_its_leader_as_failed() -> None:
    member, _ = follower()
    member.quorum.log.append(Offset(5), Offset(6), Epoch(3))  # and not flushed
    member.tick(CONFIG.fetch_timeout_ms)
    deadlines = member.context.timers.deadlines
    assert Timer.FAILOVER not in deadlines
    assert deadlines[Timer.FETCH] == member.now_ms + CONFIG.fetch_timeout_ms


def test_the_raft_core_does_not_fire_a_timer_that_an_earlier_timer_postponed() -> None:
    timers = Timers(Gate(ElectionState(epoch=Epoch(0))))
    timers.set(Timer.FETCH, 10)
    timers.set(Timer.FAILOVER, 20)
    timers.now_ms = 30
    fired = []
    for timer in timers.due():
        fired.append(timer)
        timers.set(Timer.FAILOVER, 40)
    assert fired == [Timer.FETCH]


def test_a_leader_limits_the_number_of_waiting_reads() -> None:
    member = committed_leader()
    effects = [effect for token in range(4) for effect in member.do(ev.Read(token))]
    refused = [e for e in effects if isinstance(e, fx.ReadRefused)]
    assert refused == [fx.ReadRefused(3, ErrorCode.THROTTLING_QUOTA_EXCEEDED)]


def test_a_raft_member_limits_the_number_of_responses_that_wait_for_a_stuck_disk() -> None:
    member = Member()
    member.quorum.step(ev.Received(7, 1, vote()), 0)  # the vote never gets durable
    for correlation in range(2 * MAX_HELD):
        request = ev.Received(8, correlation, fetch())
        assert not member.quorum.step(request, 0)
    assert len(member.context.gate.held) == MAX_HELD


@pytest.mark.parametrize("batches", [(), (ev.NewBatch(0, 10, b""),)])
def test_a_leader_refuses_a_proposal_without_records(batches: tuple[ev.NewBatch, ...]) -> None:
    effects = committed_leader().do(ev.Propose((ev.Proposal("x", Epoch(3), None, batches),)))
    assert [e for e in effects if isinstance(e, fx.Refused)] == [
        fx.Refused("x", ErrorCode.INVALID_REQUEST)
    ]


# -- peers that break the protocol ---------------------------------------------------------------

RECORD = Batch(Offset(5), Offset(6), Epoch(3), 100, b"")


@pytest.mark.parametrize(
    "response",
    [
        FetchResponse(
            leader_id=NodeId(2), epoch=Epoch(3), batches=(RECORD._replace(base_offset=6),)
        ),
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), batches=(RECORD._replace(epoch=4),)),
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), batches=(RECORD._replace(epoch=1),)),
        FetchResponse(
            leader_id=NodeId(2), epoch=Epoch(3), batches=(RECORD._replace(end_offset=5),)
        ),
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), diverging=EpochEnd(2, 9)),  # nothing
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), diverging=EpochEnd(-7, -7)),
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), snapshot_id=OffsetAndEpoch(2, 1)),
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), snapshot_id=OffsetAndEpoch(4, 2)),
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), snapshot_id=OffsetAndEpoch(9, 4)),
        FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), snapshot_id=OffsetAndEpoch(-1, -1)),
        FetchResponse(leader_id=NodeId(3), epoch=Epoch(3)),  # another leader of the same epoch
        FetchResponse(leader_id=NodeId(1), epoch=Epoch(3)),  # we ourselves
        FetchResponse(leader_id=NodeId(9), epoch=Epoch(3)),  # a stranger
        VoteResponse(leader_id=NodeId(2), epoch=Epoch(3), granted=True),  # to a Fetch
    ],
)
def test_a_follower_reports_an_invalid_fetch_response_as_a_fault_and_appends_no_record(
    response: object,
) -> None:
    member, sent = follower()
    member.quorum.log.high_watermark = Offset(4)
    effects = member.do(ev.ResponseReceived(sent.request_id, response))
    assert any(isinstance(effect, fx.PeerFault) for effect in effects)
    kinds = (fx.Append, fx.Truncate, fx.FetchSnapshot)
    assert not [effect for effect in effects if isinstance(effect, kinds)]
    assert member.quorum.role.epoch == 3
    assert member.quorum.log.end_offset == 5


@pytest.mark.parametrize(
    ("snapshot_id", "why"),
    [(OffsetAndEpoch(5, 2), "not committed"), (OffsetAndEpoch(3, 2), "another history")],
)
def test_installing_a_snapshot_that_contradicts_the_committed_raft_log_fails_an_assertion(
    snapshot_id: OffsetAndEpoch, why: str
) -> None:
    member, _ = follower()
    member.quorum.log.high_watermark = Offset(4)
    with pytest.raises(AssertionError, match=why):
        member.do(ev.SnapshotTaken(snapshot_id))


def test_a_leader_reports_and_ignores_a_snapshot_that_contradicts_its_log() -> None:
    member = leader()
    effects = member.do(ev.SnapshotFetched(OffsetAndEpoch(Offset(9), Epoch(2))))
    assert [type(effect) for effect in effects] == [fx.PeerFault]
    effects = member.do(ev.SnapshotFetched(OffsetAndEpoch(Offset(5), Epoch(2))))
    assert effects == [fx.Committed(Offset(5))]  # an old download of what we hold


def test_a_follower_appends_the_valid_batches_before_an_invalid_batch() -> None:
    member, sent = follower()
    batches = (RECORD, RECORD._replace(base_offset=Offset(9), end_offset=Offset(10)))
    response = FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), batches=batches)
    effects = member.do(ev.ResponseReceived(sent.request_id, response))
    assert [effect.batches for effect in effects if isinstance(effect, fx.Append)] == [(RECORD,)]


def test_a_raft_member_ignores_responses_to_requests_that_it_abandoned() -> None:
    member, sent = follower()
    response = FetchResponse(leader_id=NodeId(3), epoch=Epoch(9))
    assert member.do(ev.ResponseReceived(12345, response)) == []
    member.do(ev.RequestFailed(sent.request_id))
    assert member.do(ev.ResponseReceived(sent.request_id, response)) == []


def test_a_follower_limits_a_fetched_high_watermark_to_its_own_log_end_offset() -> None:
    member, sent = follower()
    beyond = FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), high_watermark=Offset(2**40))
    effects = member.do(ev.ResponseReceived(sent.request_id, beyond))
    assert fx.Committed(Offset(5)) in effects
    lower = replace(beyond, high_watermark=Offset(2))
    again = member.sent(effects, FetchRequest, 2)
    effects = member.do(ev.ResponseReceived(again.request_id, lower))
    assert member.quorum.log.high_watermark == 5


# -- requests that get lost --------------------------------------------------------------------


def test_a_follower_repeats_an_unanswered_fetch_on_a_new_connection() -> None:
    member, _ = follower()
    member.context.timers.deadlines.clear()
    member.context.timers.set(Timer.REQUESTS, 2000)  # the request's own time, not the follower's
    effects = member.tick(2000)
    effects += member.tick(20)
    kinds = [type(e) for e in effects if isinstance(e, fx.Reconnect | fx.Send)]
    assert kinds == [fx.Reconnect, fx.Send]


def test_the_pause_between_failed_requests_to_another_voter_doubles_up_to_a_limit() -> None:
    member = leader()
    waits = []
    for _ in range(7):
        request_id = member.request_id(BeginQuorumEpochRequest, 3)
        member.do(ev.RequestFailed(request_id))
        waits.append(
            member.context.requests.retry_at[NodeId(3), BeginQuorumEpochRequest] - member.now_ms
        )
        member.tick(waits[-1])
    assert waits == [20, 40, 80, 160, 320, 500, 500]


def test_a_raft_member_accepts_an_early_tick_and_fails_an_assertion_if_time_goes_backwards() -> (
    None
):
    member = Member()
    member.now_ms = 100
    effects = member.do(ev.Tick())
    assert [type(effect) for effect in effects] == [fx.SetTimer]
    member.now_ms = 99
    with pytest.raises(AssertionError, match="time went backwards"):
        member.do(ev.Tick())


def test_a_leader_that_shuts_down_waits_until_the_voters_acknowledge_its_resignation() -> None:
    member = leader()
    effects = member.do(ev.Shutdown())
    assert not any(isinstance(effect, fx.ShutdownReady) for effect in effects)
    for peer in (2, 3):
        request_id = member.request_id(EndQuorumEpochRequest, peer)
        response = EndQuorumEpochResponse(leader_id=None, epoch=Epoch(3))
        effects = member.do(ev.ResponseReceived(request_id, response))
    assert any(isinstance(effect, fx.ShutdownReady) for effect in effects)
    followers_exit, _ = follower()
    assert fx.ShutdownReady() in followers_exit.do(ev.Shutdown())


def test_the_test_helpers_leader_and_follower_build_members_with_these_roles() -> None:
    assert isinstance(leader().quorum.role, Leader)
    assert isinstance(follower()[0].quorum.role, Follower)
    assert isinstance(Member().quorum.role, Unattached)


@pytest.mark.parametrize(
    "setting", [{"election_timeout_ms": 0}, {"fetch_max_wait_ms": 2000}, {"fetch_max_bytes": -1}]
)
def test_the_raft_core_refuses_an_invalid_quorum_setting_with_an_error_that_names_it(
    setting: dict,
) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        QuorumConfig(**setting)


def test_a_response_from_another_cluster_changes_neither_the_epoch_nor_the_leader_of_a_voter() -> (
    None
):
    """A node was formatted with the wrong cluster id; the fault names ours on either side."""
    member = Member()
    effects = member.tick(10_000)
    asked = member.sent(effects, VoteRequest, peer=2)
    refused = VoteResponse(
        error=ErrorCode.INCONSISTENT_CLUSTER_ID,
        leader_id=NodeId(2),
        epoch=Epoch(9),
        granted=False,
    )
    effects = member.do(ev.ResponseReceived(asked.request_id, refused))
    reasons = [effect.reason for effect in effects if isinstance(effect, fx.PeerFault)]
    assert reasons == ["is of another cluster: ours is here"]
    assert member.quorum.epoch == 2


def fetched(high_watermark: int) -> FetchResponse:
    return FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), high_watermark=Offset(high_watermark))


def test_a_followers_copy_of_the_high_watermark_dates_from_the_time_of_its_fetch() -> None:
    """An answer may lie unread for as long as a process stands still.

    Source: docs/design/broker.md#staleness-is-bounded.
    """
    member, asked = follower()
    assert member.quorum.leader_watermark() is None
    asked_ms = member.now_ms
    member.now_ms += 60_000  # stopped, and gone on before any timer
    effects = member.do(ev.ResponseReceived(asked.request_id, fetched(5)))
    assert member.quorum.leader_watermark() == (5, asked_ms)
    again = member.sent(effects, FetchRequest, peer=2)
    member.now_ms += 400  # nothing was appended meanwhile: the same word, as of later
    member.do(ev.ResponseReceived(again.request_id, fetched(5)))
    assert member.quorum.leader_watermark() == (5, asked_ms + 60_000)


def test_a_leader_confirms_its_high_watermark_at_the_time_of_a_majoritys_last_fetches() -> None:
    """Until then no other leader can have been elected."""
    member = leader()
    assert member.quorum.leader_watermark() is None, "nothing of its epoch is committed"
    member = committed_leader()
    heard_ms = member.now_ms
    member.now_ms += 1_000
    assert member.quorum.leader_watermark() == (6, heard_ms)
    member.ask(fetch(replica=THREE, fetch_offset=Offset(6), last_fetched_epoch=Epoch(3)))
    assert member.quorum.leader_watermark() == (6, heard_ms + 1_000)


def in_doubt() -> tuple[Member, list[fx.Effect]]:
    """A follower that knew four of its five records as committed, asked to cut the last three."""
    member, sent = follower()
    member.quorum.log.high_watermark = Offset(4)
    diverging = FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), diverging=EpochEnd(1, 2))
    return member, member.do(ev.ResponseReceived(sent.request_id, diverging))


def test_a_follower_that_would_truncate_committed_records_reports_a_fork_and_no_peer_fault() -> (
    None
):
    member, effects = in_doubt()
    (doubt,) = (effect for effect in effects if isinstance(effect, fx.InDoubt))
    assert doubt.fork.committed == (4, 2)
    assert (doubt.fork.parts_at, doubt.fork.leader_id, doubt.fork.leader_epoch) == (2, 2, 3)
    assert member.quorum.log.end_offset == 5, "nothing is cut"
    assert not any(isinstance(effect, fx.PeerFault) for effect in effects)
    questions = [e.request for e in effects if isinstance(e, fx.Send)]
    assert {(q.fetch_offset, q.last_fetched_epoch, q.floor) for q in questions} == {(4, 2, 4)}


def test_a_member_stopped_by_a_fork_refuses_requests_and_starts_no_election() -> None:
    member, _ = in_doubt()
    assert not member.ask(vote(epoch=Epoch(9), end_offset=Offset(99))).granted
    begin = BeginQuorumEpochRequest(
        cluster_id="here", voter=ME, leader_id=NodeId(3), epoch=Epoch(9)
    )
    for request in (fetch(), begin, DescribeQuorumRequest()):
        assert member.ask(request).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fx.ReadRefused("read", ErrorCode.NOT_LEADER_OR_FOLLOWER) in member.do(ev.Read("read"))
    proposal = ev.Proposal("proposal", Epoch(3), None, (ev.NewBatch(1, 1, b"x"),))
    refused = fx.Refused("proposal", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert refused in member.do(ev.Propose((proposal,)))
    for _ in range(20):
        effects = member.tick(1_000)
        assert not any(isinstance(e, fx.Send) and type(e.request) is VoteRequest for e in effects)
    assert (member.quorum.epoch, member.quorum.leader_id) == (3, None)
    assert fx.ShutdownReady() in member.do(ev.Shutdown())


def test_a_leader_reports_each_forked_replica_once_until_the_logs_agree() -> None:
    member = leader()
    parted = fetch(fetch_offset=Offset(5), last_fetched_epoch=Epoch(1), floor=Offset(4))
    member.ask(replace(parted, floor=Offset(3)))
    assert member.quorum.reported_forks == (), "the logs part at 3: nothing below the floor"
    for connection in (7, 8):
        effects = member.do(ev.Received(connection, 1, parted))
        reports = [effect for effect in effects if isinstance(effect, fx.ForkReported)]
        assert reports == ([fx.ForkReported(TWO, Offset(4), Offset(3))] if connection == 7 else [])
        assert member.quorum.reported_forks == (fx.ForkReported(TWO, Offset(4), Offset(3)),)
    member.do(ev.Received(9, 1, fetch()))
    assert member.quorum.reported_forks == ()


def test_a_leader_forgets_the_fork_report_of_an_observer_that_becomes_silent() -> None:
    member = leader()
    stranger = ReplicaKey(NodeId(77))
    parted = fetch(replica=stranger, last_fetched_epoch=Epoch(1), floor=Offset(4))
    member.ask(parted)
    assert [report.replica for report in member.quorum.reported_forks] == [stranger]
    for _ in range(CONFIG.observer_session_ms // 1_000 + 1):
        member.tick(1_000)
        for connection, replica in ((8, TWO), (9, THREE)):
            member.do(ev.Received(connection, 1, fetch(replica=replica)))
    assert member.quorum.leader_id == 1
    assert member.quorum.reported_forks == ()


@pytest.mark.parametrize(
    ("snapshot_id", "epochs"),
    [
        ((4, 1), ()),  # it ends where our record is of epoch 2
        ((9, 1), ()),  # epochs never fall
        ((9, 3), ((1, 0), (3, 3))),  # past our end: the epochs that it names
    ],
)
def test_a_follower_reports_a_snapshot_that_contradicts_its_committed_records_as_a_fork(
    snapshot_id: tuple[int, int], epochs: tuple[tuple[int, int], ...]
) -> None:
    member, sent = follower()
    member.quorum.log.high_watermark = Offset(4)
    offered = OffsetAndEpoch(Offset(snapshot_id[0]), Epoch(snapshot_id[1]))
    answer = FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), snapshot_id=offered)
    effects = member.do(ev.ResponseReceived(sent.request_id, answer))
    if epochs:
        assert not member.quorum.in_doubt, "its name alone says nothing"
        pairs = tuple((Epoch(epoch), Offset(offset)) for epoch, offset in epochs)
        effects = member.do(ev.SnapshotFetched(offered, pairs))
    (doubt,) = (effect for effect in effects if isinstance(effect, fx.InDoubt))
    assert doubt.fork.committed == (4, 2)
    assert not any(isinstance(effect, fx.InstallSnapshot) for effect in effects)
    assert (member.quorum.log.start_offset, member.quorum.log.end_offset) == (0, 5)


@pytest.mark.parametrize("epochs", [(), ((3, 8),), ((1, 0), (2, 3), (3, 4))])
def test_a_follower_installs_a_snapshot_that_agrees_with_its_committed_records(
    epochs: tuple[tuple[int, int], ...],
) -> None:
    """Also if it names no epochs, or only some that began later: no more can be known."""
    member, sent = follower()
    member.quorum.log.high_watermark = Offset(4)
    offered = OffsetAndEpoch(Offset(9), Epoch(3))
    answer = FetchResponse(leader_id=NodeId(2), epoch=Epoch(3), snapshot_id=offered)
    member.do(ev.ResponseReceived(sent.request_id, answer))
    pairs = tuple((Epoch(epoch), Offset(offset)) for epoch, offset in epochs)
    effects = member.do(ev.SnapshotFetched(offered, pairs))
    assert any(isinstance(effect, fx.InstallSnapshot) for effect in effects)
    assert member.quorum.log.epochs_below(Offset(9)) == pairs


def test_a_follower_installs_a_snapshot_below_committed_records_only_without_these_records() -> (
    None
):
    epochs = (EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(2), Offset(3)))
    for end_offset, doubts in ((5, False), (8, True)):
        log = LogState(
            end_offset=Offset(end_offset),
            epochs=epochs,
            floor=Offset(8),
            snapshot_id=OffsetAndEpoch(Offset(6), Epoch(1)) if doubts else None,
            snapshot_epochs=((Epoch(1), Offset(0)),),
        )
        member = Member(log=log)
        if not doubts:
            member.do(ev.SnapshotFetched(OffsetAndEpoch(Offset(7), Epoch(2))))
            assert member.quorum.log.start_offset == 7
        assert member.quorum.in_doubt == doubts
