"""One member of a quorum: event in, effects out.

`Quorum` builds the classes below around one `Context`, hands each event to the class concerned, and
checks the invariants after every step. A class refers only to those above it.

    gate, timers, requests   messages that wait for the disk; deadlines; requests under way
    context                  identity, log and role, composed with these
    discovery                every role: learn epoch and leader from other nodes
    forks                    every role: stop when committed records are contradicted
    elections                VoteGranting in every role; Unattached, Prospective, Candidate
    failure_detector         Follower: is the leader gone?
    recovery                 a voter whose disk was lost: ask for epochs, catch up
    snapshot_installation    Follower: a log that begins anew at a leader's snapshot
    fetcher                  Follower: fetch, append, truncate
    parked_fetches, reads    Leader: Fetches and reads that wait
    leader_log               Leader: append, count, commit
    fetch_service            Leader: answer Fetches and descriptions
    leadership               Leader, Resigned: announce leadership and resignation

Source: KIP-595; KIP-996; docs/design/quorum.md. The modules say where and why we differ from Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import assert_never

from raft.core import events, messages, roles
from raft.core.config import QuorumConfig
from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import Effect, ForkReported, Transition
from raft.core.elections import Elections, VoteGranting
from raft.core.epoch_budget import MAX_EPOCH
from raft.core.failure_detector import FailureDetector
from raft.core.fetch_service import FetchService, Followers
from raft.core.fetcher import Fetcher
from raft.core.forks import Forks
from raft.core.leader_log import LeaderLog
from raft.core.leadership import Leadership
from raft.core.log import LogState
from raft.core.parked_fetches import ParkedFetches
from raft.core.progress import LeaderWatermark
from raft.core.reads import Reads
from raft.core.recovery import Recovery
from raft.core.snapshot_installation import SnapshotInstallation
from raft.core.timers import Timer
from raft.core.voters import ReplicaKey, VoterSet, VoterSetHistory
from records.types import Epoch, NodeId, Offset


class Quorum:
    """This node's member of a replicated partition. Its driver follows `raft.core.events`.

    Its properties and `log` are readable at any time; nothing but `step` changes them.
    """

    def __init__(
        self,
        *,
        identity: ReplicaKey,
        cluster_id: str | None,
        voters: VoterSetHistory,
        log: LogState,
        election: roles.ElectionState,
        random: Random,
        config: QuorumConfig | None = None,
        recovering: bool = False,
        in_doubt: bool = False,
    ) -> None:
        """Restore a quorum member from its durable state; the `Start` event activates the member.

        Args:    identity: this node and its disk.
                 cluster_id: requests that name another are refused; None accepts any.
                 log, election, recovering, in_doubt: as found on disk after recovery.
                 random: its only source of randomness; not shared with other objects.
        """
        self.node_id = identity.id
        self.log = log
        config = config or QuorumConfig()
        self._context = context = Context(
            identity, cluster_id, voters, log, election, random, config, recovering
        )
        self._gate, self._timers, self._requests = context.gate, context.timers, context.requests
        context.in_doubt = in_doubt
        self._discovery = discovery = Discovery(context)
        self._forks = forks = Forks(context, discovery)
        self._granting = granting = VoteGranting(context, discovery)
        self._elections = elections = Elections(context, discovery, granting)
        self._detector = detector = FailureDetector(context, discovery, elections)
        self._recovery = recovery = Recovery(context, discovery)
        self._installation = SnapshotInstallation(context, detector, forks, recovery)
        self._forked_at_start = self._installation.found_fork() is not None
        self._fetcher = Fetcher(context, discovery, detector, forks, recovery, self._installation)
        self._parked = parked = ParkedFetches(context)
        self._reads = Reads(context, parked)
        self._leader_log = LeaderLog(context, parked)
        self._fetch_service = FetchService(context, parked, self._leader_log, self._reads)
        self._leadership = Leadership(context, discovery)
        context.on_enter = {
            roles.Unattached: elections.enter_unattached,
            roles.Prospective: elections.enter_prospective,
            roles.Candidate: elections.enter_candidate,
            roles.Leader: self._leader_log.enter,
            roles.Follower: self._fetcher.enter,
            roles.Resigned: elections.await_timeout,
        }
        context.on_leave = {
            roles.Leader: self._leader_log.leave,
            roles.Follower: self._fetcher.leave,
            roles.Resigned: self._leadership.leave_resigned,
        }
        self._on_timer: dict[Timer, Callable[[], None]] = {
            Timer.ELECTION: elections.on_timeout,
            Timer.FETCH: detector.on_fetch_timeout,
            Timer.SILENCE: detector.on_silence,
            Timer.FAILOVER: detector.on_failover,
            Timer.PRE_VOTE: elections.on_pre_vote_repeat,
            Timer.BEGIN: self._leadership.on_begin_timer,
            Timer.CHECK_QUORUM: self._leadership.check_quorum,
            Timer.PARKED: parked.on_timer,
            Timer.REQUESTS: context.requests.on_timer,
            Timer.TELL: forks.tell,
        }
        self._highest_epoch = Epoch(0)
        self._highest_watermark = Offset(0)

    @property
    def role(self) -> roles.Role:
        """Return the current Raft role of this node."""
        return self._context.role

    @property
    def epoch(self) -> Epoch:
        """Return the epoch that this node is in."""
        return self._context.role.epoch

    @property
    def leader_id(self) -> NodeId | None:
        """Return this epoch's leader; None if it is unknown, resigned or not yet serving."""
        return self._context.leader_id

    @property
    def election_state(self) -> roles.ElectionState:
        """Return the epoch, leader and vote of the present role, which must survive a crash."""
        return self._context.election_state

    @property
    def voters(self) -> VoterSet:
        """Return the voter set that this node currently uses."""
        return self._context.voters

    @property
    def is_voter(self) -> bool:
        """Return whether this node, with its present disk, is one of the voters."""
        return self._context.is_voter

    @property
    def acknowledges(self) -> bool:
        """Return whether this node's Fetch acknowledges records; see `Context.acknowledges`."""
        return self._context.acknowledges

    @property
    def recovering(self) -> bool:
        """Return whether this node is a voter that lost its disk and has not caught up yet."""
        return self._context.recovering

    @property
    def recovering_reason(self) -> str | None:
        """Return a sentence that names the condition for ending a recovery, or None."""
        return self._recovery.describe()

    @property
    def unconfirmed_epochs(self) -> tuple[NodeId, ...]:
        """Return the voters that peers report, without confirmation, to be in a newer epoch."""
        return self._discovery.claimed()

    @property
    def in_doubt(self) -> bool:
        """Return whether a fork of the log keeps this node out of its Raft group."""
        return self._context.in_doubt or self._forked_at_start

    @property
    def reported_forks(self) -> tuple[ForkReported, ...]:
        """Return the forks found in replicas while this node leads, or () on any other node."""
        return self._fetch_service.reported_forks

    @property
    def followers(self) -> Followers | None:
        """Return the other replicas and their progress, or None if this node does not lead."""
        return self._fetch_service.followers

    def leader_watermark(self) -> LeaderWatermark | None:
        """Return the newest known high watermark, and the last time it was known to be current.

        A leader's own holds since a majority last fetched: until then no other can have been
        elected. None if no leader has answered yet.
        """
        return self._leadership.watermark()

    def step(self, event: events.Event, now_ms: int) -> list[Effect]:
        """Apply one event and return what the driver must do, in order.

        A vote is granted in answer to `ElectionStateDurable`, never in answer to the request:
        granted but not yet on disk, it could be given to another candidate after a crash.
        """
        timers = self._timers
        assert now_ms >= timers.now_ms, f"time went backwards: {timers.now_ms} -> {now_ms}"
        timers.now_ms = now_ms
        effects = self._gate.begin_step()
        if self._context.in_doubt:
            self._step_in_doubt(event)
            return effects
        match event:
            case events.Propose():
                self._leader_log.on_propose(event)
            case events.AppendDurable():
                self._on_append_durable(event)
            case events.Received(connection, correlation, request):
                self._on_request(connection, correlation, request)
            case events.ResponseReceived(request_id, response):
                self._on_response(request_id, response)
            case events.Read():
                self._reads.on_read(event)
            case events.Tick():
                for timer in timers.due():
                    self._on_timer[timer]()
                timers.rearm()
            case events.RequestFailed(request_id):
                self._on_request_failed(request_id)
            case events.ElectionStateDurable(sequence):
                self._on_election_state_durable(sequence)
            case _:
                self._on_rare_event(event)
        if self._requests.send_due:
            self._send_requests()
        if self._gate.write_due:
            self._gate.request_write(self._context.election_state, self._requests.outstanding)
        self._check_invariants()
        return effects

    def _step_in_doubt(self, event: events.Event) -> None:
        """Process one event of a member stopped by a fork: refuse requests, and report the fork."""
        match event:
            case events.Start():
                self._gate.emit(Transition(None, self._context.role, "start in doubt"))
                self._forks.start()
            case events.AppendDurable():
                self._note_flushed(event)
            case events.SnapshotTaken(snapshot_id):
                self.log.note_snapshot(snapshot_id)
            case events.LogStartMoved(log_start_offset):
                self.log.move_start(log_start_offset)
            case events.Shutdown():
                self._leadership.on_shutdown()
            case events.Tick():
                for timer in self._timers.due():
                    self._on_timer[timer]()
                self._timers.rearm()
            case _:
                self._forks.refuse(event)
        if self._gate.write_due:
            self._gate.request_write(self._context.election_state, self._requests.outstanding)
        self._check_invariants()

    # -- dispatch ------------------------------------------------------------------------------

    def _on_rare_event(self, event: events.Event) -> None:
        match event:
            case events.Start():
                self._on_start()
            case events.UnsupportedVersion(request_id):
                self._on_unsupported_version(request_id)
            case events.PeerLost(peer):
                self._detector.on_peer_lost(peer)
            case events.PeerRefused(peer):
                self._detector.on_peer_refused(peer)
            case events.ConnectionClosed(connection):
                self._parked.on_connection_closed(connection)
            case events.Resign():
                self._leadership.on_resign()
            case events.Shutdown():
                self._leadership.on_shutdown()
            case events.SnapshotTaken(snapshot_id):
                self.log.note_snapshot(snapshot_id)
            case events.StateContradicts(applied, log_epoch):
                self._forks.enter_doubt(self._forks.of_state(applied, log_epoch))
            case events.LogStartMoved(log_start_offset):
                self.log.move_start(log_start_offset)
            case events.SnapshotProgress():
                self._installation.on_progress(event)
            case events.SnapshotFetched():
                self._installation.on_fetched(event)
            case events.SnapshotFailed():
                self._installation.on_failed(event)
            case _:
                raise AssertionError(f"not an event: {event!r}")

    def _on_start(self) -> None:
        context = self._context
        self._gate.emit(Transition(None, context.role, "start"))
        self._installation.validate()
        if context.in_doubt:
            return
        context.note_election_state()
        context.on_enter[type(context.role)]()
        self._requests.send_due = True

    def _on_request(self, connection: int, correlation: int, request: messages.Request) -> None:
        answer: messages.Response | None
        match request:
            case messages.FetchRequest():
                answer = self._fetch_service.on_fetch(connection, correlation, request)
            case messages.VoteRequest():
                answer = self._granting.answer(request)
            case messages.BeginQuorumEpochRequest():
                answer = self._detector.on_begin_epoch(request)
            case messages.EndQuorumEpochRequest():
                answer = self._detector.on_end_epoch(request)
            case messages.FetchSnapshotRequest():
                answer = self._fetch_service.on_fetch_snapshot(connection, correlation, request)
            case messages.DescribeQuorumRequest():
                answer = self._fetch_service.describe(request)
            case _:
                assert_never(request)
        if answer is not None:
            self._gate.respond(connection, correlation, answer)

    def _on_response(self, request_id: int, response: messages.Response) -> None:
        outstanding = self._requests.finish(request_id)
        if outstanding is None:
            return  # the request was abandoned
        peer, sent = outstanding.peer, outstanding.request
        self._requests.end_back_off(peer)
        match (sent, response):
            case (messages.FetchRequest(), messages.FetchResponse()):
                self._fetcher.on_response(peer, sent, outstanding.sent_ms, response)
            case (messages.VoteRequest(), messages.VoteResponse()):
                self._elections.on_response(peer, sent, response)
            case (messages.BeginQuorumEpochRequest(), messages.BeginQuorumEpochResponse()):
                self._leadership.on_begin_response(peer, response)
            case (messages.EndQuorumEpochRequest(), messages.EndQuorumEpochResponse()):
                self._leadership.on_end_response(peer, response)
            case (messages.DescribeQuorumRequest(), messages.DescribeQuorumResponse()):
                self._recovery.on_response(peer, response)
            case _:
                self._context.fault(peer, f"answers {sent} with {response}")
                self._requests.back_off(peer, type(sent))

    def _on_request_failed(self, request_id: int) -> None:
        outstanding = self._requests.finish(request_id)
        if outstanding is not None:
            kind, config = type(outstanding.request), self._context.config
            limit_ms = config.pre_vote_repeat_ms if kind is messages.VoteRequest else None
            self._requests.back_off(outstanding.peer, kind, limit_ms)

    def _on_unsupported_version(self, request_id: int) -> None:
        outstanding = self._requests.finish(request_id)
        if outstanding is None:
            return
        peer, sent = outstanding.peer, outstanding.request
        if isinstance(sent, messages.VoteRequest) and sent.pre_vote:
            self._elections.on_pre_vote_unsupported(peer)
        else:
            self._context.fault(peer, f"does not support {type(sent).__name__}", type(sent))

    def _send_requests(self) -> None:
        """Send the requests that the present role requires."""
        self._requests.send_due = False
        role = self._context.role
        if self._context.in_doubt:  # since this step
            return
        if not self._recovery.has_current_epoch():
            self._recovery.ask_epochs()
            return
        self._discovery.ask_claimed()
        match role:
            case roles.Follower(leader_id=leader_id):
                self._fetcher.send_requests(leader_id)
            case roles.Leader():
                self._leadership.send_begin_epochs()
            case roles.Prospective(leader_id=leader_id):
                self._elections.send_requests(role)
                if leader_id is not None:
                    self._fetcher.send_requests(leader_id)
            case roles.Candidate():
                self._elections.send_requests(role)
            case roles.Unattached():
                self._discovery.ask_voters()
            case roles.Resigned():
                self._leadership.send_end_epochs(role)

    # -- the disk ------------------------------------------------------------------------------

    def _on_election_state_durable(self, sequence: int) -> None:
        """Send held-back messages after a durable write, and continue election or recovery."""
        if not self._gate.on_durable(sequence, self._requests.outstanding):
            return
        context, role = self._context, self._context.role
        if isinstance(role, roles.Candidate) and self.node_id not in role.granted:
            self._elections.on_own_vote_durable(role)
        elif (
            isinstance(role, roles.Leader)
            and context.leader is not None
            and not context.leader.is_open
        ):
            self._leader_log.open_epoch(role)
        elif context.recovering:
            self._recovery.on_vote_durable()

    def _on_append_durable(self, event: events.AppendDurable) -> None:
        """Record the flushed log end; then a leader commits records, and a follower fetches."""
        leader = self._context.leader
        if not self._note_flushed(event):
            return
        if leader is not None:
            self._leader_log.advance_high_watermark(leader)
        else:
            self._fetcher.on_flushed()

    def _note_flushed(self, event: events.AppendDurable) -> bool:
        """Record the flushed log end; return False if the log was truncated during the flush."""
        log = self.log
        if event.generation != log.generation:
            assert event.generation < log.generation, f"flush from the future: {event}, {log}"
            return False
        assert event.end_offset <= log.end_offset, f"flushed past the end: {event}, {log}"
        if event.end_offset > log.flushed_end_offset:
            log.flushed_end_offset = event.end_offset
        return True

    # -- invariants ----------------------------------------------------------------------------

    def _check_invariants(self) -> None:
        """Assert in constant time the invariants that docs/design/invariants.md lists."""
        log, role, leader = self.log, self._context.role, self._context.leader
        end_offset, known = log.end_offset, log.high_watermark
        assert log.start_offset <= log.flushed_end_offset <= end_offset, f"log geometry: {log}"
        if known is not None:  # unknown after a restart until a leader tells us
            inside = log.start_offset <= known <= end_offset
            # In doubt, it may be that of a snapshot which contradicts the log.
            assert inside or self.in_doubt, f"watermark outside the log: {log}"
            assert known >= self._highest_watermark, f"1: watermark went backwards: {log}"
            self._highest_watermark = known
        newest = log.snapshot_id.offset if log.snapshot_id is not None else 0
        in_order = log.start_offset <= newest <= (known or 0)
        assert in_order or self.in_doubt, f"KIP-630: snapshot and log: {log}"
        assert role.epoch >= self._highest_epoch, f"1: epoch went backwards: {role}"
        assert role.epoch <= MAX_EPOCH, f"14: no message carries this epoch: {role}"
        self._highest_epoch = role.epoch
        assert log.last_epoch <= role.epoch, f"log of an epoch to come: {log} in {role}"
        if leader is None:
            assert type(role) is not roles.Leader, f"leader without a state: {role}"
            return
        assert type(role) is roles.Leader, f"state of a leader in {role}"
        assert role.epoch == leader.epoch, f"state of epoch {leader.epoch} in {role}"
        assert self.is_voter, f"observer {self.node_id} leads: {role}"
        assert not self._context.recovering, f"recovering {self.node_id} leads: {role}"
        assert not self._context.in_doubt, f"12: {self.node_id} leads in doubt: {role}"
        assert len(role.granted) >= self.voters.majority, f"leads without a majority: {role}"
        if leader.is_open:
            assert not self._gate.is_closed, f"11: opened before it was durable: {role}"
        else:
            assert end_offset == leader.start_offset, f"11: appended before it was durable: {log}"
