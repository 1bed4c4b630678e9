"""One member of a quorum: event in, effects out.

`Quorum` is a chain of small classes, each an idea with its own page; this one dispatches events,
asks each role what it wants to send, and checks after every step that nothing impossible is true.

    base        identity, the gate before the disk, timers, requests
    voting      Unattached, Prospective, Candidate; votes given and taken, word of mouth
    recovering  a voter whose disk was lost: ask around, catch up, be one again
    installing  Follower: a log that begins anew at a leader's snapshot
    following   Follower: fetch, diverge, truncate, lose the leader
    committing  Leader: append, count, commit
    serving     Leader: answer Fetches, reads, descriptions
    leading     Leader, Resigned: stay leader, stop

Source: KIP-595; KIP-996; docs/design/quorum.md. Where we differ from upstream, the page concerned
says why.
"""

from __future__ import annotations

from typing import assert_never

from raft.core.base import Timer
from raft.core.effects import Effect, Transition
from raft.core.events import (
    AppendDurable,
    ConnectionClosed,
    ElectionStateDurable,
    Event,
    LogStartMoved,
    PeerLost,
    PeerRefused,
    Propose,
    Read,
    Received,
    RequestFailed,
    Resign,
    ResponseReceived,
    Shutdown,
    SnapshotFailed,
    SnapshotFetched,
    SnapshotProgress,
    SnapshotTaken,
    Start,
    Tick,
    UnsupportedVersion,
)
from raft.core.leading import Leading
from raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from raft.core.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from records.types import Epoch, Offset


class Quorum(Leading):
    """A replicated partition's member on this node. See `raft.core.events` for the driver's part.

    Readable at any time: `role`, `epoch`, `leader_id`, `log` (with `high_watermark`), `voters`,
    `recovering`. Nothing but `step` changes it.
    """

    _highest_epoch = Epoch(0)
    _highest_watermark = Offset(0)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Apply one event and return what the driver must do, in order.

        A vote is promised in answer to `ElectionStateDurable`, never in answer to the request:
        promised but not yet on disk, it could be given to someone else after a crash.
        """
        assert now_ms >= self._now_ms, f"time went backwards: {self._now_ms} -> {now_ms}"
        self._now_ms = now_ms
        effects: list[Effect] = []
        self._effects = effects
        match event:
            case Propose():
                self._on_propose(event)
            case AppendDurable():
                self._on_append_durable(event)
            case Received(connection, correlation, request):
                self._on_request(connection, correlation, request)
            case ResponseReceived(request_id, response):
                self._on_response(request_id, response)
            case Read():
                self._on_read(event)
            case Tick():
                self._on_tick()
            case RequestFailed(request_id):
                self._on_request_failed(request_id)
            case ElectionStateDurable(sequence):
                self._on_election_state_durable(sequence)
            case _:
                self._on_rare_event(event)
        if self._pump_due:
            self._pump()
        if self._persist_due:
            self._emit_persist()
        self._check_invariants()
        return effects

    # -- dispatch ------------------------------------------------------------------------------

    def _on_rare_event(self, event: Event) -> None:
        match event:
            case Start():
                self._on_start()
            case UnsupportedVersion(request_id):
                self._on_unsupported_version(request_id)
            case PeerLost(peer):
                self._on_peer_lost(peer)
            case PeerRefused(peer):
                self._on_peer_refused(peer)
            case ConnectionClosed(connection):
                self._on_connection_closed(connection)
            case Resign():
                self._on_resign()
            case Shutdown():
                self._on_shutdown()
            case SnapshotTaken(snapshot_id):
                self.log.note_snapshot(snapshot_id)
            case LogStartMoved(log_start_offset):
                self.log.move_start(log_start_offset)
            case SnapshotProgress():
                self._on_snapshot_progress(event)
            case SnapshotFetched():
                self._on_snapshot_fetched(event)
            case SnapshotFailed():
                self._on_snapshot_failed(event)
            case _:
                raise AssertionError(f"not an event: {event!r}")

    def _on_request(self, connection: int, correlation: int, request: Request) -> None:
        match request:
            case FetchRequest():
                self._on_fetch(connection, correlation, request)
            case VoteRequest():
                self._on_vote_request(connection, correlation, request)
            case BeginQuorumEpochRequest():
                self._on_begin_epoch(connection, correlation, request)
            case EndQuorumEpochRequest():
                self._on_end_epoch(connection, correlation, request)
            case FetchSnapshotRequest():
                self._on_fetch_snapshot(connection, correlation, request)
            case DescribeQuorumRequest():
                self._on_describe(connection, correlation, request)
            case _:
                assert_never(request)

    def _on_response(self, request_id: int, response: Response) -> None:
        outstanding = self._settle(request_id)
        if outstanding is None:
            return  # an answer we no longer wait for
        peer, sent = outstanding.peer, outstanding.request
        self._heard_from(peer)
        match (sent, response):
            case (FetchRequest(), FetchResponse()):
                self._on_fetch_response(peer, sent, outstanding.sent_ms, response)
            case (VoteRequest(), VoteResponse()):
                self._on_vote_response(peer, sent, response)
            case (BeginQuorumEpochRequest(), BeginQuorumEpochResponse()):
                self._on_begin_response(peer, response)
            case (EndQuorumEpochRequest(), EndQuorumEpochResponse()):
                self._on_end_response(peer, response)
            case (DescribeQuorumRequest(), DescribeQuorumResponse()):
                self._on_describe_response(peer, response)
            case _:
                self._fault(peer, f"answers {sent} with {response}")
                self._back_off(peer, type(sent))

    def _on_request_failed(self, request_id: int) -> None:
        outstanding = self._settle(request_id)
        if outstanding is not None:
            kind = type(outstanding.request)
            longest_ms = self.config.pre_vote_repeat_ms if kind is VoteRequest else None
            self._back_off(outstanding.peer, kind, longest_ms)

    def _on_unsupported_version(self, request_id: int) -> None:
        outstanding = self._settle(request_id)
        if outstanding is None:
            return
        peer, sent = outstanding.peer, outstanding.request
        if isinstance(sent, VoteRequest) and sent.pre_vote:
            self._on_pre_vote_unsupported(peer)
        else:
            self._fault(peer, f"does not support {type(sent).__name__}")
            self._retry_later(peer, type(sent), self.config.retry_backoff_max_ms)

    # -- life ----------------------------------------------------------------------------------

    def _on_start(self) -> None:
        self._effects.append(Transition(None, self.role, "start"))
        self._validate_snapshot()
        self._note_election_state()
        self._entered()
        self._pump_due = True

    def _entered(self) -> None:
        match self.role:
            case Unattached():
                self._enter_unattached()
            case Prospective():
                self._enter_prospective()
            case Candidate():
                self._enter_candidate()
            case Leader():
                self._enter_leader()
            case Follower():
                self._enter_follower()
            case Resigned():
                self._enter_resigned()

    def _left(self, old: Role) -> None:
        if isinstance(old, Leader) and self._leading is not None:
            self._leave_leader(self._leading)
        elif isinstance(old, Follower):
            self._leave_follower()
        elif isinstance(old, Resigned):
            self._leave_resigned()

    def _pump(self) -> None:
        """Send what the role wants sent and may be sent now."""
        self._pump_due = False
        role = self.role
        if not self._knows_the_epoch():
            self._pump_asking_around()
            return
        match role:
            case Follower(leader_id=leader_id):
                self._pump_fetch(leader_id)
            case Leader():
                if self._leading is not None and self._leading.opened:
                    self._pump_begin(self._leading)
            case Prospective(leader_id=leader_id):
                self._pump_votes(role)
                if leader_id is not None:
                    self._pump_fetch(leader_id)
            case Candidate():
                self._pump_votes(role)
            case Unattached():
                self._pump_discovery()
            case Resigned():
                self._pump_end_epoch(role)

    # -- the disk ------------------------------------------------------------------------------

    def _on_election_state_durable(self, sequence: int) -> None:
        """The gate opens, once the newest state is on disk; what hung on it happens."""
        assert sequence <= self._sequence, f"{sequence} durable, {self._sequence} asked for"
        self._durable_sequence = max(self._durable_sequence, sequence)
        if sequence < self._sequence:
            return
        self._open_gate()
        role = self.role
        if isinstance(role, Candidate) and self.node_id not in role.granted:
            self._own_vote_durable(role)
        elif isinstance(role, Leader) and self._leading is not None and not self._leading.opened:
            self._open_epoch(role)
        elif self.recovering:
            self._recovered_durably()

    def _on_append_durable(self, event: AppendDurable) -> None:
        if self._note_flushed(event):
            if self._leading is not None:
                self._on_leader_durable(self._leading)
            else:
                self._on_follower_durable()

    # -- time ----------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        """Whatever is due, the earliest first; then arm the timer again."""
        due = sorted((at_ms, timer) for timer, at_ms in self._deadlines.items())
        for at_ms, timer in due:
            if at_ms > self._now_ms:
                break
            if self._deadlines.get(timer) == at_ms:  # not moved or cleared by one before it
                del self._deadlines[timer]
                self._on_timer(timer)
        self._rearm()

    def _on_timer(self, timer: Timer) -> None:
        match timer:
            case Timer.ELECTION:
                self._on_election_timeout()
            case Timer.FETCH:
                self._on_fetch_timeout()
            case Timer.SILENCE:
                self._on_silence()
            case Timer.FAILOVER:
                self._on_failover()
            case Timer.PRE_VOTE:
                self._on_pre_vote_repeat()
            case Timer.BEGIN:
                self._on_begin_due()
            case Timer.CHECK_QUORUM:
                self._on_check_quorum()
            case Timer.PARKED:
                self._on_parked_due()
            case Timer.REQUESTS:
                self._on_requests_due()
            case _:
                assert_never(timer)

    # -- invariants ----------------------------------------------------------------------------

    def _check_invariants(self) -> None:
        """What must be true after every step; constant work. Source: docs/design/invariants.md."""
        log, role = self.log, self.role
        end_offset, known = log.end_offset, log.high_watermark
        assert log.start_offset <= log.flushed_end_offset <= end_offset, f"log geometry: {log}"
        if known is not None:  # unknown after a restart until a leader tells us
            assert log.start_offset <= known <= end_offset, f"watermark outside the log: {log}"
            assert known >= self._highest_watermark, f"1: watermark went backwards: {log}"
            self._highest_watermark = known
        newest = log.snapshot_id.offset if log.snapshot_id is not None else 0
        assert log.start_offset <= newest <= (known or 0), f"KIP-630: snapshot and log: {log}"
        assert role.epoch >= self._highest_epoch, f"1: epoch went backwards: {role}"
        self._highest_epoch = role.epoch
        assert log.last_epoch <= role.epoch, f"log of an epoch to come: {log} in {role}"
        book = self._leading
        if book is None:
            assert type(role) is not Leader, f"leader without accounts: {role}"
            return
        assert type(role) is Leader, f"accounts of a leader in {role}"
        assert role.epoch == book.epoch, f"accounts of {book.epoch} in {role}"
        assert self.is_voter, f"observer {self.node_id} leads: {role}"
        assert not self.recovering, f"recovering {self.node_id} leads: {role}"
        assert len(role.granted) >= self.voters.majority, f"leads without a majority: {role}"
        if book.opened:
            assert not self._persisting, f"11: opened before it was durable: {role}"
        else:
            assert end_offset == book.start_offset, f"11: appended before it was durable: {log}"
