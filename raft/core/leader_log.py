"""The leader's log: appending and committing.

**When is a record committed?** Voters fetch; the offset a voter asks for says what it already
holds on disk. Sort those offsets from high to low: the middle one is on a majority. The trap: a new
leader may not use it until a record of its *own* epoch is that far along, or a later leader could
truncate records that were called committed. (Raft paper, section 5.4.2 and figure 8.)

**An epoch is opened** only once the leadership is on disk: then the LeaderChange record is appended
and announced to the voters. No proposal is accepted before that record is committed. The leader's
own copy counts like any voter's: once it is flushed, and it may well be the last.

Source: KIP-595, Key Concepts (high watermark), Leader Progress; docs/design/quorum.md#krafts-rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core import effects
from raft.core.context import Context
from raft.core.events import Proposal, Propose
from raft.core.messages import Batch, FetchResponse
from raft.core.parked_fetches import ParkedFetches
from raft.core.progress import LeaderState, ReplicaProgress
from raft.core.roles import Leader
from raft.core.timers import Timer
from raft.core.voters import majority_offset
from records.kafka_errors import ErrorCode
from records.types import Offset


@dataclass(slots=True, eq=False)
class LeaderLog:
    """Opens the leader's epoch, appends proposals, advances the high watermark."""

    _context: Context
    _parked: ParkedFetches

    # -- entering and leaving ------------------------------------------------------------------

    def enter(self) -> None:
        """Start to track the progress of the other voters when this node becomes leader."""
        context = self._context
        leader = LeaderState(context.epoch, context.log.end_offset, context.timers.now_ms)
        for voter in context.voters:
            if voter != context.node_id:
                leader.voters[voter] = ReplicaProgress(context.voters.voter(voter).key)
        context.leader = leader

    def open_epoch(self, role: Leader) -> None:
        """Append the epoch's first record and announce this leader, whose election is durable."""
        context, leader, log = self._context, self._context.leader, self._context.log
        assert leader is not None, f"{role} without a state"
        assert not leader.is_open, f"epoch {role.epoch} opened twice"
        assert log.end_offset == leader.start_offset, f"appended before epoch {role.epoch}: {log}"
        leader.is_open = True
        log.append(leader.start_offset, Offset(leader.start_offset + 1), role.epoch)
        context.gate.emit(
            effects.AppendLeaderChange(
                base_offset=leader.start_offset,
                epoch=role.epoch,
                leader_id=context.node_id,
                voters=context.voters.ids,
                granting_voters=tuple(sorted(role.granted)),
                generation=log.generation,
            )
        )
        if leader.voters:
            context.timers.set_in(Timer.CHECK_QUORUM, context.config.check_quorum_timeout_ms)
            context.timers.set_in(Timer.BEGIN, context.config.fetch_timeout_ms // 2)
        context.requests.send_due = True

    def leave(self) -> None:
        """Refuse the waiting Fetches and the waiting reads when this node stops leading."""
        context, leader = self._context, self._context.leader
        assert leader is not None, "not a leader"
        context.leader = None
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for fetch in leader.parked.values():
            response = FetchResponse(error=error, leader_id=context.leader_id, epoch=context.epoch)
            context.gate.respond(fetch.connection, fetch.correlation, response)
        for read in leader.reads:
            context.gate.emit(effects.ReadRefused(read.token, error))
        if leader.is_announced:
            context.gate.emit(effects.StepDown(leader.epoch))

    # -- proposals -----------------------------------------------------------------------------

    def on_propose(self, event: Propose) -> None:
        """Append each valid proposal as a whole, and refuse the invalid proposals.

        One `Append` covers all of them, unflushed; parked Fetches are answered after it.
        """
        emit, log, leader = self._context.gate.emit, self._context.log, self._context.leader
        base_offset = end_offset = log.end_offset
        appended: list[Batch] = []
        size_bytes = 0
        for proposal in event.proposals:
            error = self._judge_proposal(proposal, leader, end_offset, size_bytes)
            if error is not ErrorCode.NONE:
                emit(effects.Refused(proposal.token, error))
                continue
            token, epoch, _, batches = proposal
            first_offset = end_offset
            for count, batch_bytes, data in batches:
                start_offset, end_offset = end_offset, Offset(end_offset + count)
                appended.append(Batch(start_offset, end_offset, epoch, batch_bytes, data))
                size_bytes += batch_bytes
            emit(effects.Accepted(token, epoch, first_offset, end_offset))
        if appended and leader is not None:
            log.append(base_offset, end_offset, leader.epoch)
            leader.charge(end_offset, size_bytes)
            emit(effects.Append(tuple(appended), log.generation))
            if leader.parked:
                self._parked.answer_ready(leader)

    def _judge_proposal(
        self,
        proposal: Proposal,
        leader: LeaderState | None,
        end_offset: Offset,
        size_bytes: int,
    ) -> ErrorCode:
        """Return the error with which to refuse a proposal, or NONE to accept the proposal.

        Args:  end_offset: of the log, with the batches accepted in this step.
               size_bytes: of those batches.
        """
        _, epoch, expected, batches = proposal
        if leader is None or not leader.is_announced or epoch != leader.epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not batches or (expected is not None and expected != end_offset):
            return ErrorCode.INVALID_REQUEST
        for batch in batches:
            if batch.record_count < 1:
                return ErrorCode.INVALID_REQUEST
        if leader.uncommitted_bytes + size_bytes >= self._context.config.max_uncommitted_bytes:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    # -- commit --------------------------------------------------------------------------------

    def advance_high_watermark(self, leader: LeaderState) -> None:
        """Raise the high watermark to a majority's end offset, and answer waiting Fetches."""
        context, log = self._context, self._context.log
        held = {voter: replica.end_offset or Offset(0) for voter, replica in leader.voters.items()}
        held[context.node_id] = self._own_end_offset()
        offset = majority_offset(held)
        known = log.high_watermark
        if not self._is_committable(leader, offset) or (known is not None and offset <= known):
            return
        log.high_watermark = offset
        leader.release(offset)
        context.gate.emit(effects.Committed(offset))
        if not leader.is_announced:
            leader.is_announced = True
            context.gate.emit(effects.Lead(leader.epoch))
        if leader.parked:
            self._parked.answer_ready(leader)

    def _own_end_offset(self) -> Offset:
        """Return the end offset of the flushed log, which is this leader's own acknowledgement."""
        return self._context.log.flushed_end_offset

    def _is_committable(self, leader: LeaderState, offset: Offset) -> bool:
        """Return whether the records below `offset` include a record of this leader's epoch."""
        return leader.is_open and offset > leader.start_offset
