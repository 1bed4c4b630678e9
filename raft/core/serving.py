"""How a leader answers: Fetches, reads, and questions about the quorum.

A Fetch at the end of the log waits until data is appended, the high watermark moves or its time is
up; so a commit costs no polling and no linger.

**A read needs no lease.** It notes the high watermark and begins a *round*; once a majority, we
included, has sent a Fetch that followed an answer given in that round, on the same connection,
nobody else can have been leader when the read began, and the noted high watermark is current. Such
a Fetch cannot have been sent before the round began, since its sender had our answer first. Waiting
Fetches are answered at once when a round begins, so a read costs one round trip; reads that come
together share it.

Source: KIP-595, Fetch, DescribeQuorum; KIP-836; Raft dissertation, section 6.4 (reads);
docs/design/quorum.md#linearizable-reads.
"""

from __future__ import annotations

from typing import NamedTuple

from raft.core.base import NEVER, Timer
from raft.core.committing import Committing
from raft.core.effects import ReadReady, ReadRefused, RespondFetch, ServeSnapshot
from raft.core.errors import ErrorCode
from raft.core.events import Read
from raft.core.messages import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EpochEnd,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    ReplicaState,
)
from raft.core.progress import LeaderBook, ParkedFetch, ReplicaProgress, WaitingRead
from raft.core.refusals import refusal
from raft.core.voters import ReplicaKey
from records.types import Epoch, Offset, OffsetAndEpoch


class Followers(NamedTuple):
    """The other replicas as their leader sees them; times on the leader's `now_ms` clock."""

    since_ms: int  # we lead this epoch since then, and know nothing from before
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]


class Serving(Committing):
    """Leader: the replicas' side of it. The other states refuse here, naming the leader."""

    # -- who may ask ---------------------------------------------------------------------------

    def _leader_only_error(self, epoch: Epoch) -> ErrorCode:
        """Whether a replica in `epoch` may talk to us as to its leader.

        A newer epoch changes nothing here: whoever knows it will tell us by Vote or Begin.
        """
        if self.shutting_down:
            return ErrorCode.BROKER_NOT_AVAILABLE
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self._leading is None or not self._leading.opened:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _fetch_error(self, request: FetchRequest | FetchSnapshotRequest) -> ErrorCode:
        """The first thing wrong with this request, in upstream's order."""
        error = self._check_addressee(request.cluster_id, None)
        if error is not ErrorCode.NONE:
            return error
        if isinstance(request, FetchRequest):
            numbers = (request.fetch_offset, request.last_fetched_epoch, request.max_wait_ms)
        else:
            numbers = (request.snapshot_id.offset, request.snapshot_id.epoch, request.position)
        if min(*numbers, request.max_bytes) < 0 or request.replica.id in (self.node_id, -1):
            self._fault(request.replica.id, f"request contradicts itself: {request}")
            return ErrorCode.INVALID_REQUEST
        return self._leader_only_error(request.epoch)

    # -- Fetch ---------------------------------------------------------------------------------

    def _on_fetch(self, connection: int, correlation: int, request: FetchRequest) -> None:
        """Answer a Fetch, or let it wait.

        1. It is a sign of life, and perhaps the confirmation of a read round.
        2. If its log parts from ours: say where, or which snapshot to begin from.
        3. Else what it holds is acknowledged, and may commit something.
        4. Answer with records, or a high watermark it does not know; else let it wait.
        """
        error, book = self._fetch_error(request), self._leading
        if error is not ErrorCode.NONE or book is None:
            self._respond(
                connection, correlation, refusal(request, error, self.leader_id, self.epoch)
            )
            return
        replica = self._replica_of(book, request.replica)
        self._confirm_round(book, replica, connection)
        earlier = book.parked.pop(connection, None)
        if earlier is not None:
            self._answer(book, earlier)
            replica.answered_connection = -1  # two at once: what follows what is not known
        verdict = self._judge_fetch(request)
        if verdict is not None:
            replica.last_fetch_ms = self._now_ms
            if isinstance(verdict, OffsetAndEpoch):
                replica.end_offset = None  # of its log nothing is kept, whatever it had once
            self._answer_parting(book, connection, correlation, verdict)
            return
        replica.acknowledge(request.fetch_offset, self.log.end_offset, self._now_ms)
        self._advance_high_watermark(book)
        wait_ms = min(request.max_wait_ms, self.config.fetch_timeout_ms)
        fetch = ParkedFetch(
            connection,
            correlation,
            replica,
            request.fetch_offset,
            request.max_bytes,
            request.high_watermark or Offset(0),
            self._now_ms + wait_ms,
        )
        if wait_ms <= 0 or self._has_news(book, fetch):
            self._answer(book, fetch)
        else:
            book.parked[connection] = fetch
            if fetch.deadline_ms < self._deadlines.get(Timer.PARKED, NEVER):
                self._set(Timer.PARKED, fetch.deadline_ms)

    def _judge_fetch(self, request: FetchRequest) -> EpochEnd | OffsetAndEpoch | None:
        return self.log.judge_fetch(request.fetch_offset, request.last_fetched_epoch)

    def _replica_of(self, book: LeaderBook, key: ReplicaKey) -> ReplicaProgress:
        """The account of this replica; an id that votes with another disk is an observer."""
        if self.voters.is_voter(key):
            replica = book.voters[key.id]
            replica.key = key
            return replica
        observer = book.observers.get(key)
        if observer is None:
            self._forget_silent_observers(book)
            observer = book.observers[key] = ReplicaProgress(key)
        return observer

    def _forget_silent_observers(self, book: LeaderBook) -> None:
        """Observers are registered nowhere: whoever fetches is one, until it is silent too long."""
        horizon_ms = self._now_ms - self.config.observer_session_ms
        for key, observer in tuple(book.observers.items()):
            if (observer.last_fetch_ms or 0) < horizon_ms:
                del book.observers[key]
        if len(book.observers) >= self.config.max_observers:
            silent_longest = min(
                book.observers, key=lambda key: book.observers[key].last_fetch_ms or 0
            )
            del book.observers[silent_longest]

    def _has_news(self, book: LeaderBook, fetch: ParkedFetch) -> bool:
        """Is there something to tell at once: data, a high watermark, or a read in progress?"""
        if fetch.fetch_offset < self.log.end_offset:
            return True
        if book.announced and fetch.high_watermark < (self.log.high_watermark or 0):
            return True
        current = fetch.replica.answered_connection == fetch.connection
        answered = fetch.replica.answered_round if current else -1
        return bool(book.reads) and book.reads[-1].round > answered

    def _answer(self, book: LeaderBook, fetch: ParkedFetch) -> None:
        """All the log from its offset on, perhaps nothing, and the high watermark."""
        fetch.replica.answered_connection = fetch.connection
        fetch.replica.answered_round = book.read_round
        book.round_used = True
        self._out(
            RespondFetch(
                fetch.connection,
                fetch.correlation,
                self._plain_answer(book),
                fetch.fetch_offset,
                self.log.end_offset,
                fetch.max_bytes,
            )
        )

    def _plain_answer(self, book: LeaderBook) -> FetchResponse:
        """The answer that goes with records; kept as long as nothing in it changes."""
        kept, log = book.plain_answer, self.log
        high_watermark = log.high_watermark if book.announced else None
        if (
            kept is None
            or kept.high_watermark != high_watermark
            or kept.log_start_offset != log.start_offset
        ):
            kept = book.plain_answer = FetchResponse(
                leader_id=self.node_id,
                epoch=book.epoch,
                high_watermark=high_watermark,
                log_start_offset=log.start_offset,
            )
        return kept

    def _answer_parting(
        self,
        book: LeaderBook,
        connection: int,
        correlation: int,
        verdict: EpochEnd | OffsetAndEpoch,
    ) -> None:
        diverging = verdict if isinstance(verdict, EpochEnd) else None
        snapshot_id = verdict if isinstance(verdict, OffsetAndEpoch) else None
        response = FetchResponse(
            leader_id=self.node_id,
            epoch=book.epoch,
            high_watermark=self.log.high_watermark if book.announced else None,
            log_start_offset=self.log.start_offset,
            diverging=diverging,
            snapshot_id=snapshot_id,
        )
        self._respond(connection, correlation, response)

    def _answer_parked(self, *, known_below: Offset | None = None) -> None:
        book = self._leading
        assert book is not None, f"{self.role} has Fetches waiting"
        for connection, fetch in tuple(book.parked.items()):
            if known_below is None or fetch.high_watermark < known_below:
                del book.parked[connection]
                self._answer(book, fetch)

    def _on_parked_due(self) -> None:
        """Fetches that have waited long enough are answered with nothing."""
        book = self._leading
        if book is None:
            return
        next_ms = NEVER
        for connection, fetch in tuple(book.parked.items()):
            if fetch.deadline_ms <= self._now_ms:
                del book.parked[connection]
                self._answer(book, fetch)
            else:
                next_ms = min(next_ms, fetch.deadline_ms)
        if next_ms != NEVER:
            self._set(Timer.PARKED, next_ms)

    def _on_connection_closed(self, connection: int) -> None:
        if self._leading is not None:
            self._leading.parked.pop(connection, None)

    # -- reads ---------------------------------------------------------------------------------

    def _on_read(self, event: Read) -> None:
        """Begin a read; a new round only if somebody was already answered in the present one."""
        book, high_watermark = self._leading, self.log.high_watermark
        if book is None or not book.announced or high_watermark is None:
            self._effects.append(ReadRefused(event.token, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        if len(book.reads) >= self.config.max_waiting_reads:
            self._effects.append(ReadRefused(event.token, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            return
        if book.round_used:
            book.read_round += 1
            book.round_used = False
        book.reads.append(WaitingRead(event.token, book.read_round, high_watermark))
        self._answer_parked()
        self._settle_reads(book)

    def _confirm_round(self, book: LeaderBook, replica: ReplicaProgress, connection: int) -> None:
        """This Fetch followed our last answer on its connection, if there was one."""
        confirmed = self._confirmed_by(book, replica, connection)
        if confirmed > replica.confirmed_round:
            replica.confirmed_round = confirmed
            if book.reads:
                self._settle_reads(book)

    def _confirmed_by(self, book: LeaderBook, replica: ReplicaProgress, connection: int) -> int:
        """The newest round in which this Fetch's sender had been answered when it sent it; or -1.

        A waiting Fetch on the connection is unanswered, so another one cannot have followed it.
        """
        if replica.answered_connection != connection or connection in book.parked:
            return -1
        return replica.answered_round

    def _settle_reads(self, book: LeaderBook) -> None:
        """Answer the reads whose round a majority has confirmed, us included."""
        settled = self._confirmed_round(book)
        ready = [read for read in book.reads if read.round <= settled]
        if ready:
            book.reads = book.reads[len(ready) :]
            self._effects.extend(ReadReady(read.token, read.offset) for read in ready)

    def _confirmed_round(self, book: LeaderBook) -> int:
        """The newest round that a majority of voters, we included, has confirmed."""
        needed = self.voters.majority - 1
        if needed == 0:
            return book.read_round
        rounds = sorted((voter.confirmed_round for voter in book.voters.values()), reverse=True)
        return rounds[needed - 1]

    @property
    def followers(self) -> Followers | None:
        """Who fetches from us, and how far they are; None while we do not lead."""
        book = self._leading
        if book is None or not book.opened:
            return None
        return Followers(
            book.since_ms,
            tuple(replica.state() for replica in book.voters.values()),
            tuple(replica.state() for replica in book.observers.values()),
        )

    # -- snapshots and descriptions ------------------------------------------------------------

    def _on_fetch_snapshot(
        self, connection: int, correlation: int, request: FetchSnapshotRequest
    ) -> None:
        """Right as far as the quorum goes: a sign of life, and served by whoever holds the file."""
        error, book = self._fetch_error(request), self._leading
        if error is not ErrorCode.NONE or book is None:
            self._respond(
                connection, correlation, refusal(request, error, self.leader_id, self.epoch)
            )
            return
        self._replica_of(book, request.replica).last_fetch_ms = self._now_ms
        self._out(ServeSnapshot(connection, correlation, request))

    def _on_describe(
        self, connection: int, correlation: int, request: DescribeQuorumRequest
    ) -> None:
        book, now_ms = self._leading, self._now_ms
        if book is None or not book.opened:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            # Who has forgotten epochs names none: another that lost its disk might believe it.
            leader_id = None if self.recovering else self.leader_id
            epoch = Epoch(0) if self.recovering else self.epoch
            self._respond(connection, correlation, refusal(request, error, leader_id, epoch))
            return
        own = ReplicaState(self.identity, self.log.end_offset, now_ms, now_ms)
        others = [replica.state() for replica in book.voters.values()]
        horizon_ms = now_ms - self.config.observer_session_ms
        response = DescribeQuorumResponse(
            leader_id=self.node_id,
            epoch=book.epoch,
            high_watermark=self.log.high_watermark if book.announced else None,
            voters=tuple(sorted([own, *others], key=lambda state: state.key.id)),
            observers=tuple(
                observer.state()
                for observer in book.observers.values()
                if (observer.last_fetch_ms or 0) >= horizon_ms
            ),
        )
        self._respond(connection, correlation, response)
