"""The leader's answers to Fetch, FetchSnapshot and DescribeQuorum; other nodes refuse them.

Source: KIP-595, Fetch, DescribeQuorum; KIP-836; KIP-630.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raft.core import messages
from raft.core.context import Context
from raft.core.effects import ForkReported, ServeSnapshot
from raft.core.leader_log import LeaderLog
from raft.core.parked_fetches import ParkedFetches
from raft.core.progress import LeaderState, ParkedFetch, ReplicaProgress
from raft.core.reads import Reads
from raft.core.refusals import refusal
from raft.core.voters import ReplicaKey
from records.kafka_errors import ErrorCode
from records.types import Epoch, Offset, OffsetAndEpoch


class Followers(NamedTuple):
    """The other replicas as their leader knows them; times on the leader's `now_ms` clock."""

    since_ms: int  # this node leads since then, and knows nothing from before
    voters: tuple[messages.ReplicaState, ...]
    observers: tuple[messages.ReplicaState, ...]


@dataclass(slots=True, eq=False)
class FetchService:
    """Answers replicas and tracks their progress, as leader."""

    _context: Context
    _parked: ParkedFetches
    _log: LeaderLog
    _reads: Reads

    # -- who may ask ---------------------------------------------------------------------------

    def _leader_only_error(self, epoch: Epoch) -> ErrorCode:
        """Return NONE if this node leads `epoch`, or else the error that refuses the request.

        A newer epoch changes nothing here: a Vote or BeginQuorumEpoch will bring it.
        """
        context = self._context
        if context.shutting_down:
            return ErrorCode.BROKER_NOT_AVAILABLE
        if epoch < context.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > context.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if context.leader is None or not context.leader.is_open:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _fetch_error(
        self, request: messages.FetchRequest | messages.FetchSnapshotRequest
    ) -> ErrorCode:
        """Return a Fetch's or FetchSnapshot's first error, in Kafka's order of checks, or NONE."""
        context = self._context
        error = context.check_addressee(request.cluster_id, None)
        if error is not ErrorCode.NONE:
            return error
        if isinstance(request, messages.FetchRequest):
            numbers = (request.fetch_offset, request.last_fetched_epoch, request.max_wait_ms)
        else:
            numbers = (request.snapshot_id.offset, request.snapshot_id.epoch, request.position)
        if min(*numbers, request.max_bytes) < 0 or request.replica.id in (context.node_id, -1):
            context.fault(request.replica.id, f"request contradicts itself: {request}")
            return ErrorCode.INVALID_REQUEST
        return self._leader_only_error(request.epoch)

    # -- Fetch ---------------------------------------------------------------------------------

    def on_fetch(
        self, connection: int, correlation: int, request: messages.FetchRequest
    ) -> messages.Response | None:
        """Answer a Fetch with an error, diverging epoch or records, or let it wait for records.

        1. The Fetch is a sign of life, and may confirm a read round.
        2. If the logs part, answer where, or with the snapshot to begin from.
        3. Else it acknowledges all before its offset, which may commit records.
        4. Answer with records or a newer high watermark; else park it.
        """
        context = self._context
        error, leader = self._fetch_error(request), context.leader
        if error is not ErrorCode.NONE or leader is None:
            return refusal(request, error, context.leader_id, context.epoch)
        log, now_ms = context.log, context.timers.now_ms
        replica = self._replica_of(leader, request.replica)
        self._reads.note_fetch(leader, replica, connection)
        earlier = leader.parked.pop(connection, None)
        if earlier is not None:
            self._parked.answer(leader, earlier)
            replica.answered_connection = (
                -1
            )  # two Fetches at once: which answer the next one follows is unknown
        verdict = self._judge_fetch(request)
        if verdict is not None:
            replica.last_fetch_ms = now_ms
            self._look_for_fork(replica, request, verdict)
            if isinstance(verdict, OffsetAndEpoch):
                replica.end_offset = None  # none of its log remains
            return self._diverging_response(leader, verdict)
        replica.fork = None
        replica.acknowledge(request.fetch_offset, log.end_offset, now_ms)
        self._log.advance_high_watermark(leader)
        fetch = ParkedFetch(
            connection,
            correlation,
            replica,
            request.fetch_offset,
            request.max_bytes,
            request.high_watermark or Offset(0),
            now_ms + min(request.max_wait_ms, context.config.fetch_timeout_ms),
            is_observer=request.replica.id not in context.voters,
        )
        self._parked.answer_or_park(leader, fetch)
        return None

    def _judge_fetch(
        self, request: messages.FetchRequest
    ) -> messages.EpochEnd | OffsetAndEpoch | None:
        return self._context.log.judge_fetch(request.fetch_offset, request.last_fetched_epoch)

    def _look_for_fork(
        self,
        replica: ReplicaProgress,
        request: messages.FetchRequest,
        verdict: messages.EpochEnd | OffsetAndEpoch,
    ) -> None:
        """Report once that this leader's log lacks records that a replica knows to be committed.

        Where a divergence is answered, the logs agree no further than to the end that it names. A
        member in doubt asks at its floor: then any divergence lies below that. If our log begins
        later, the epochs before its start are compared, as far as they are known.
        """
        parts_at = request.fetch_offset
        if isinstance(verdict, OffsetAndEpoch):
            known = self._context.log.epochs_below(request.fetch_offset)
            if not known or known[-1].epoch == request.last_fetched_epoch:
                return
        else:
            parts_at = min(parts_at, verdict.end_offset)
        below = parts_at < request.floor or request.fetch_offset <= request.floor
        if below and request.floor and replica.fork is None:
            replica.fork = ForkReported(replica.key, request.floor, parts_at)
            self._context.gate.emit(replica.fork)

    @property
    def reported_forks(self) -> tuple[ForkReported, ...]:
        """Return the forks found in replicas while this node leads, or () on any other node."""
        leader = self._context.leader
        if leader is None:
            return ()
        # An observer is forgotten once it is silent: a stranger's claim does not last.
        horizon_ms = self._context.timers.now_ms - self._context.config.observer_session_ms
        replicas = [*leader.voters.values()]
        for observer in leader.observers.values():
            if (observer.last_fetch_ms or 0) >= horizon_ms:
                replicas.append(observer)
        return tuple(replica.fork for replica in replicas if replica.fork is not None)

    def _diverging_response(
        self, leader: LeaderState, verdict: messages.EpochEnd | OffsetAndEpoch
    ) -> messages.FetchResponse:
        """Return the response to a replica whose log has diverged from the leader's log."""
        log = self._context.log
        return messages.FetchResponse(
            leader_id=self._context.node_id,
            epoch=leader.epoch,
            high_watermark=log.high_watermark if leader.is_announced else None,
            log_start_offset=log.start_offset,
            diverging=verdict if isinstance(verdict, messages.EpochEnd) else None,
            snapshot_id=verdict if isinstance(verdict, OffsetAndEpoch) else None,
        )

    # -- the replicas --------------------------------------------------------------------------

    def _replica_of(self, leader: LeaderState, key: ReplicaKey) -> ReplicaProgress:
        """Return the progress of the voter or observer with this id and disk."""
        if self._context.voters.is_voter(key):
            replica = leader.voters[key.id]
            replica.key = key
            return replica
        observer = leader.observers.get(key)
        if observer is None:
            self._forget_silent_observers(leader)
            observer = leader.observers[key] = ReplicaProgress(key)
        return observer

    def _forget_silent_observers(self, leader: LeaderState) -> None:
        """Remove observers that stopped fetching; if too many remain, remove the longest silent."""
        config, observers = self._context.config, leader.observers
        horizon_ms = self._context.timers.now_ms - config.observer_session_ms
        for key, observer in tuple(observers.items()):
            if (observer.last_fetch_ms or 0) < horizon_ms:
                del observers[key]
        if len(observers) >= config.max_observers:
            del observers[min(observers, key=lambda key: observers[key].last_fetch_ms or 0)]

    @property
    def followers(self) -> Followers | None:
        """Return the other replicas and their progress, or None if this node does not lead."""
        leader = self._context.leader
        if leader is None or not leader.is_open:
            return None
        return Followers(
            leader.since_ms,
            tuple(replica.state() for replica in leader.voters.values()),
            tuple(replica.state() for replica in leader.observers.values()),
        )

    # -- snapshots and descriptions ------------------------------------------------------------

    def on_fetch_snapshot(
        self, connection: int, correlation: int, request: messages.FetchSnapshotRequest
    ) -> messages.Response | None:
        """Order the driver to serve a valid FetchSnapshot, or return the error response."""
        context = self._context
        error, leader = self._fetch_error(request), context.leader
        if error is not ErrorCode.NONE or leader is None:
            return refusal(request, error, context.leader_id, context.epoch)
        self._replica_of(leader, request.replica).last_fetch_ms = context.timers.now_ms
        context.gate.send(ServeSnapshot(connection, correlation, request))
        return None

    def describe(self, request: messages.DescribeQuorumRequest) -> messages.Response:
        """Return a description of the replicas if this node leads, or else an error response."""
        context, leader = self._context, self._context.leader
        log, now_ms = context.log, context.timers.now_ms
        if leader is None or not leader.is_open:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            # A node that forgot its epochs names none: another without its disk would count it.
            leader_id = None if context.recovering else context.leader_id
            epoch = Epoch(0) if context.recovering else context.epoch
            return refusal(request, error, leader_id, epoch)
        own = messages.ReplicaState(context.identity, log.end_offset, now_ms, now_ms)
        others = [replica.state() for replica in leader.voters.values()]
        horizon_ms = now_ms - context.config.observer_session_ms
        return messages.DescribeQuorumResponse(
            leader_id=context.node_id,
            epoch=leader.epoch,
            high_watermark=log.high_watermark if leader.is_announced else None,
            voters=tuple(sorted([own, *others], key=lambda state: state.key.id)),
            observers=tuple(
                observer.state()
                for observer in leader.observers.values()
                if (observer.last_fetch_ms or 0) >= horizon_ms
            ),
        )
