"""Linearizable reads, without leases.

A read notes the high watermark and begins a *round*. A replica confirms the round by a Fetch that
follows, on the same connection, an answer given in that round: it cannot have been sent before the
round began, since its sender had the answer first. Once a majority, the leader included, has
confirmed, no other node can have led when the read began, and the noted high watermark is current.
Parked Fetches of voters are answered at once when a round begins, so a read costs one round trip;
reads that come together share it.

Source: Raft dissertation, section 6.4; docs/design/quorum.md#linearizable-reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.context import Context
from raft.core.effects import ReadReady, ReadRefused
from raft.core.events import Read
from raft.core.parked_fetches import ParkedFetches
from raft.core.progress import LeaderState, ReplicaProgress, WaitingRead
from records.kafka_errors import ErrorCode


@dataclass(slots=True, eq=False)
class Reads:
    """Begins read rounds as leader, and answers the reads that a majority has confirmed."""

    _context: Context
    _parked: ParkedFetches

    def on_read(self, event: Read) -> None:
        """Begin a linearizable read, or refuse the read if not leading or too many reads wait."""
        context, leader = self._context, self._context.leader
        high_watermark = context.log.high_watermark
        if leader is None or not leader.is_announced or high_watermark is None:
            context.gate.emit(ReadRefused(event.token, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        if len(leader.reads) >= context.config.max_waiting_reads:
            context.gate.emit(ReadRefused(event.token, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            return
        if leader.round_used:
            leader.read_round += 1
            leader.round_used = False
        leader.reads.append(WaitingRead(event.token, leader.read_round, high_watermark))
        self._parked.answer_ready(leader)
        self._settle(leader)

    def note_fetch(self, leader: LeaderState, replica: ReplicaProgress, connection: int) -> None:
        """Record the reads that a Fetch confirms, and answer those that a majority confirmed."""
        confirmed = self._confirmed_by(leader, replica, connection)
        if confirmed > replica.confirmed_round:
            replica.confirmed_round = confirmed
            if leader.reads:
                self._settle(leader)

    def _confirmed_by(self, leader: LeaderState, replica: ReplicaProgress, connection: int) -> int:
        """Return the number of the newest round of reads that a Fetch confirms, or -1 if none.

        A Fetch that overtakes a parked one on its connection follows no answer.
        """
        if replica.answered_connection != connection or connection in leader.parked:
            return -1
        return replica.answered_round

    def _settle(self, leader: LeaderState) -> None:
        """Answer the linearizable reads that a majority of voters has confirmed."""
        settled = self._confirmed_round(leader)
        ready = [read for read in leader.reads if read.round <= settled]
        if ready:
            leader.reads = leader.reads[len(ready) :]
            for read in ready:
                self._context.gate.emit(ReadReady(read.token, read.offset))

    def _confirmed_round(self, leader: LeaderState) -> int:
        """Return the number of the newest round of reads that a majority has confirmed."""
        needed = self._context.voters.majority - 1
        if needed == 0:
            return leader.read_round
        rounds = sorted((voter.confirmed_round for voter in leader.voters.values()), reverse=True)
        return rounds[needed - 1]
