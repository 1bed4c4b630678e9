"""How a leader appends and commits.

**When is a record committed?** Voters fetch; the offset a voter asks for says what it already
holds on disk. Sort those offsets from high to low: the middle one is on a majority. The surprise: a
new leader may not use it until a record of its *own* epoch is that far along, or a later leader
could truncate what we called committed. (Raft paper, section 5.4.2 and figure 8.)

**An epoch is opened** only once our leadership is on disk: then the LeaderChange record is appended
and the voters are told. Nothing is accepted before that record is committed. The leader's own copy
counts like any voter's: once it is flushed, and it may well be the last.

Source: KIP-595, Key Concepts (high watermark), Leader Progress; docs/design/quorum.md#krafts-rules.
"""

from __future__ import annotations

from abc import abstractmethod

from raft.core.base import Timer
from raft.core.effects import (
    Accepted,
    Append,
    AppendLeaderChange,
    Committed,
    Lead,
    ReadRefused,
    Refused,
    StepDown,
)
from raft.core.errors import ErrorCode
from raft.core.events import Proposal, Propose
from raft.core.following import Following
from raft.core.messages import Batch, FetchResponse
from raft.core.progress import LeaderBook, ReplicaProgress
from raft.core.roles import Leader
from raft.core.voters import majority_offset
from records.types import Offset


class Committing(Following):
    """Leader: the log's side of it."""

    # -- entering and leaving ------------------------------------------------------------------

    def _enter_leader(self) -> None:
        book = LeaderBook(self.epoch, self.log.end_offset, self._now_ms)
        for voter in self.voters:
            if voter != self.node_id:
                book.voters[voter] = ReplicaProgress(self.voters.voter(voter).key)
        self._leading = book

    def _open_epoch(self, role: Leader) -> None:
        """Our leadership is durable: append the epoch's first record, and tell the voters."""
        book, log = self._leading, self.log
        assert book is not None, f"{role} without accounts"
        assert not book.opened, f"epoch {role.epoch} opened twice"
        assert log.end_offset == book.start_offset, f"appended before epoch {role.epoch}: {log}"
        book.opened = True
        log.append(book.start_offset, Offset(book.start_offset + 1), role.epoch)
        self._effects.append(
            AppendLeaderChange(
                base_offset=book.start_offset,
                epoch=role.epoch,
                leader_id=self.node_id,
                voters=self.voters.ids,
                granting_voters=tuple(sorted(role.granted)),
                generation=log.generation,
            )
        )
        if book.voters:
            self._set(Timer.CHECK_QUORUM, self._now_ms + self.config.check_quorum_timeout_ms)
            self._set(Timer.BEGIN, self._now_ms + self.config.fetch_timeout_ms // 2)
        self._pump_due = True

    def _leave_leader(self, book: LeaderBook) -> None:
        """Answer everybody who waits; `self.role` is already the new one."""
        self._leading = None
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for fetch in book.parked.values():
            response = FetchResponse(error=error, leader_id=self.leader_id, epoch=self.epoch)
            self._respond(fetch.connection, fetch.correlation, response)
        self._effects.extend(ReadRefused(read.token, error) for read in book.reads)
        if book.announced:
            self._effects.append(StepDown(book.epoch))

    # -- proposals -----------------------------------------------------------------------------

    def _on_propose(self, event: Propose) -> None:
        """Append what is in order, each proposal whole or not at all; nothing of it is flushed yet.

        One `Append` for all of them; Fetches that wait for data are answered behind it.
        """
        effects, log, book = self._effects, self.log, self._leading
        base_offset = end_offset = log.end_offset
        appended: list[Batch] = []
        size_bytes = 0
        for proposal in event.proposals:
            error = self._judge_proposal(proposal, book, end_offset, size_bytes)
            if error is not ErrorCode.NONE:
                effects.append(Refused(proposal.token, error))
                continue
            token, epoch, _, batches = proposal
            first_offset = end_offset
            for count, batch_bytes, data in batches:
                start_offset, end_offset = end_offset, Offset(end_offset + count)
                appended.append(Batch(start_offset, end_offset, epoch, batch_bytes, data))
                size_bytes += batch_bytes
            effects.append(Accepted(token, epoch, first_offset, end_offset))
        if appended and book is not None:
            log.append(base_offset, end_offset, book.epoch)
            book.charge(end_offset, size_bytes)
            effects.append(Append(tuple(appended), log.generation))
            if book.parked:
                self._answer_parked()

    def _judge_proposal(
        self,
        proposal: Proposal,
        book: LeaderBook | None,
        end_offset: Offset,
        size_bytes: int,
    ) -> ErrorCode:
        """Args: end_offset, size_bytes: of the log, and of this step's appends, so far."""
        _, epoch, expected, batches = proposal
        if book is None or not book.announced or epoch != book.epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not batches or (expected is not None and expected != end_offset):
            return ErrorCode.INVALID_REQUEST
        for batch in batches:
            if batch.record_count < 1:
                return ErrorCode.INVALID_REQUEST
        if book.uncommitted_bytes + size_bytes >= self.config.max_uncommitted_bytes:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    @abstractmethod
    def _answer_parked(self, *, known_below: Offset | None = None) -> None:
        """Answer all waiting Fetches, or those that know a high watermark below this."""

    # -- commit --------------------------------------------------------------------------------

    def _advance_high_watermark(self, book: LeaderBook) -> None:
        """See what a majority holds now, and tell those who wait for it."""
        held = {voter: replica.end_offset or Offset(0) for voter, replica in book.voters.items()}
        held[self.node_id] = self._own_copy()
        offset = majority_offset(held)
        known = self.log.high_watermark
        if not self._committable(book, offset) or (known is not None and offset <= known):
            return
        self.log.high_watermark = offset
        book.release(offset)
        self._effects.append(Committed(offset))
        if not book.announced:
            book.announced = True
            self._effects.append(Lead(book.epoch))
        if book.parked:
            self._answer_parked(known_below=offset)

    def _own_copy(self) -> Offset:
        """What we hold ourselves: what is flushed."""
        return self.log.flushed_end_offset

    def _committable(self, book: LeaderBook, offset: Offset) -> bool:
        """Does a majority that reaches `offset` (exclusive) hold a record of our own epoch?"""
        return book.opened and offset > book.start_offset

    def _on_leader_durable(self, book: LeaderBook) -> None:
        """Our own copy reaches further."""
        self._advance_high_watermark(book)
