"""Forks: a member whose committed records are contradicted stops, and tells the others.

A disk that came back as an older copy of itself can give a majority to a leader without records
that were committed. A replica that still has them must not cut them in silence. It knows them by
its *floor*: all below was committed and flushed here. Once another history contradicts that, this
member is *in doubt*: it follows, votes, campaigns and serves no more, and asks each voter once a
second by a Fetch at its floor, by which a leader learns that its log parts from ours.

The trap: "committed" is a claim about a majority's disks, and one of them has broken its promise.
So neither side can be known to be right, and no node decides it: an operator does.

Source: docs/design/forks.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raft.core import events, messages
from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import InDoubt, ReadRefused, Refused
from raft.core.fork import Fork, Witness
from raft.core.log import EpochStart, epoch_before
from raft.core.refusals import refusal
from raft.core.roles import Unattached
from raft.core.timers import Timer
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


@dataclass(slots=True, eq=False)
class Forks:
    """Enters doubt, and acts for a member that is in it."""

    _context: Context
    _discovery: Discovery

    # -- what is known to be committed ---------------------------------------------------------

    def least_end_offset(self) -> Offset:
        """Return the offset below which no record of this log may be removed."""
        return self._context.log.held_floor

    def _committed_end(self) -> OffsetAndEpoch:
        """Return the end offset and last epoch of this log's records known to be committed."""
        end = self._context.log.held_floor
        return OffsetAndEpoch(end, self._context.log.epoch_before(end))

    def of_leader(self, peer: NodeId, point: Offset, diverging: messages.EpochEnd) -> Fork:
        """Describe a fork from a leader whose log requires truncation below committed records."""
        other = OffsetAndEpoch(diverging.end_offset, diverging.epoch)
        epoch = self._context.epoch
        return Fork(Witness.LEADER, self._committed_end(), other, point, peer, epoch)

    def of_snapshot(
        self, peer: NodeId | None, snapshot_id: OffsetAndEpoch, epochs: Sequence[EpochStart] = ()
    ) -> Fork | None:
        """Return a fork if a snapshot contradicts this log's committed records, or else None.

        Compared is the last such record that both cover: by the epochs that the snapshot names, if
        it ends later. If it names none, or begins to after that record, its own epoch tells whether
        it is too old; more cannot be known.

        Args:  peer: the leader that offers it; None if it was found at start.
        """
        log, committed = self._context.log, self._committed_end()
        end = min(committed.offset, snapshot_id.offset)
        if end <= 0 or end < log.start_offset:
            return None
        ours = log.epoch_before(end)
        if snapshot_id.offset == end:
            theirs = snapshot_id.epoch
        else:
            named = epoch_before(epochs, end)
            theirs = min(ours, snapshot_id.epoch) if named is None else named
        if theirs == ours:
            return None
        epoch = self._context.epoch
        return Fork(Witness.SNAPSHOT, OffsetAndEpoch(end, ours), snapshot_id, end, peer, epoch)

    def of_state(self, applied: OffsetAndEpoch, log_epoch: Epoch) -> Fork:
        """Describe a fork from a state machine whose last record has another epoch in the log."""
        other = OffsetAndEpoch(applied.offset, log_epoch)
        return Fork(Witness.STATE, applied, other, applied.offset)

    # -- in doubt ------------------------------------------------------------------------------

    def enter_doubt(self, fork: Fork) -> None:
        """Become Unattached because of a fork, and report the fork to the driver."""
        self._context.in_doubt = True
        self._discovery.join(self._context.epoch, None, "in doubt")
        self._context.gate.emit(InDoubt(fork))
        self.tell()

    def start(self) -> None:
        """Become Unattached and send Fetches that reveal the fork found before the restart."""
        if not isinstance(self._context.role, Unattached):
            self._discovery.join(self._context.epoch, None, "in doubt")
        self.tell()

    def tell(self) -> None:
        """Send each voter a Fetch from the end of this log's committed records, to reveal the fork.

        What such a Fetch acknowledges is true: all below the floor is flushed here.
        """
        context, committed = self._context, self._committed_end()
        question = replace(
            self._discovery.fetch_request(max_wait_ms=0),
            fetch_offset=committed.offset,
            last_fetched_epoch=committed.epoch,
        )
        if committed.offset:
            for peer in context.voters:
                if peer != context.node_id:
                    context.requests.offer(peer, question)
        context.timers.set_in(Timer.TELL, context.config.tell_fork_ms)

    def refuse(self, event: events.Event) -> None:
        """Refuse a request, proposal or read after a fork, and process only responses."""
        context, error = self._context, ErrorCode.NOT_LEADER_OR_FOLLOWER
        match event:
            case events.Received(connection, correlation, request):
                if isinstance(request, messages.VoteRequest):
                    error = ErrorCode.NONE  # a vote that is not granted, as any other
                response = refusal(request, error, None, context.epoch)
                context.gate.respond(connection, correlation, response)
            case events.Propose(proposals):
                for proposal in proposals:
                    context.gate.emit(Refused(proposal.token, error))
            case events.Read(token):
                context.gate.emit(ReadRefused(token, error))
            case events.ResponseReceived(request_id, response):
                self._on_response(request_id, response)
            case events.RequestFailed(request_id) | events.UnsupportedVersion(request_id):
                context.requests.finish(request_id)
            case events.ElectionStateDurable(sequence):
                context.gate.on_durable(sequence, context.requests.outstanding)
            case _:
                pass

    def _on_response(self, request_id: int, response: messages.Response) -> None:
        """Adopt a response's newer epoch, and soon repeat the Fetches that reveal the fork.

        Source: docs/design/epochs.md#which-words-move-the-epoch.
        """
        context = self._context
        outstanding = context.requests.finish(request_id)
        if outstanding is not None and response.epoch > context.epoch:
            self._discovery.learn(outstanding.peer, response.epoch, None)
            context.timers.set_in(Timer.TELL, context.config.retry_backoff_ms)
