"""How a leader stays leader, and how it stops.

It tells voters that do not fetch that it leads (BeginQuorumEpoch); voters that fetch know. If a
majority has not fetched for 1.5 fetch timeouts it resigns, since somebody else may be elected by
now and nothing can be committed anyway (check-quorum). A resigning leader names its successors, the
most complete log first.

Source: KIP-595, BeginQuorumEpoch, EndQuorumEpoch; KAFKA-15489 (check-quorum); KAFKA-16926.
"""

from __future__ import annotations

from raft.core.base import Timer, Told
from raft.core.effects import ShutdownReady
from raft.core.errors import ErrorCode
from raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)
from raft.core.progress import LeaderBook, ReplicaProgress
from raft.core.roles import Leader, Resigned
from raft.core.serving import Serving
from records.types import NodeId


class Leading(Serving):
    """Leader: its authority; and what remains of it in Resigned."""

    _shutdown_ready = False

    # -- telling the voters --------------------------------------------------------------------

    def _pump_begin(self, book: LeaderBook) -> None:
        for peer, replica in book.voters.items():
            if self._needs_begin(replica) and self._may_send(peer, BeginQuorumEpochRequest):
                self._send(
                    peer,
                    BeginQuorumEpochRequest(
                        cluster_id=self.cluster_id,
                        voter=self.voters.voter(peer).key,
                        leader_id=self.node_id,
                        epoch=book.epoch,
                    ),
                )

    def _needs_begin(self, replica: ReplicaProgress) -> bool:
        """Neither fetched nor acknowledged a BeginQuorumEpoch within half a fetch timeout."""
        heard_ms = replica.last_heard_ms
        return heard_ms is None or heard_ms + self.config.fetch_timeout_ms // 2 <= self._now_ms

    def _on_begin_due(self) -> None:
        """Look again when the first of the voters will have been silent for so long."""
        if self._leading is not None:
            patience_ms = self.config.fetch_timeout_ms // 2
            heard = (replica.last_heard_ms for replica in self._leading.voters.values())
            silent_ms = [at_ms + patience_ms for at_ms in heard if at_ms is not None]
            later = [at_ms for at_ms in silent_ms if at_ms > self._now_ms]
            self._set(Timer.BEGIN, min(later, default=self._now_ms + patience_ms))
            self._pump_due = True

    def _on_begin_response(self, peer: NodeId, response: BeginQuorumEpochResponse) -> None:
        self._learn(peer, response.epoch, response.leader_id)
        book = self._leading
        if book is None or peer not in book.voters:
            return
        if response.error is ErrorCode.NONE:
            book.voters[peer].begin_acked_ms = self._now_ms
        else:
            self._retry_later(peer, BeginQuorumEpochRequest, self.config.retry_backoff_max_ms)

    # -- check-quorum --------------------------------------------------------------------------

    def _on_check_quorum(self) -> None:
        """Resign if no majority, we included, has been heard of lately; else look again later."""
        book = self._leading
        if book is None:
            return
        deadline_ms = self._majority_heard_ms(book) + self.config.check_quorum_timeout_ms
        if deadline_ms <= self._now_ms:
            self._resign("no majority fetches")
        else:
            self._set(Timer.CHECK_QUORUM, deadline_ms)

    def _majority_heard_ms(self, book: LeaderBook) -> int:
        """Since when at the latest a majority, we included, has not been heard of."""
        if not book.voters:
            return self._now_ms
        heard_ms = sorted(
            (
                book.since_ms if replica.last_fetch_ms is None else replica.last_fetch_ms
                for replica in book.voters.values()
            ),
            reverse=True,
        )
        return heard_ms[self.voters.majority - 2]

    def told(self) -> Told | None:
        """The newest word of a leader on how far the log is committed; our own, if we lead.

        A leader speaks as of when a majority last fetched from it: until then nobody else can have
        been elected.
        """
        book, high_watermark = self._leading, self.log.high_watermark
        if book is None or not book.announced or high_watermark is None:
            return self._told
        return Told(high_watermark, self._majority_heard_ms(book))

    # -- stopping ------------------------------------------------------------------------------

    def _resign(self, reason: str) -> None:
        """Lead no more, in favour of whoever holds most of the log."""
        book = self._leading
        assert book is not None, f"{self.role} resigns"
        by_log = sorted(
            book.voters.values(), key=lambda replica: (-(replica.end_offset or 0), replica.key.id)
        )
        candidates = tuple(replica.key for replica in by_log)
        self._become(Resigned(epoch=self.epoch, preferred_candidates=candidates), reason)

    def _on_resign(self) -> None:
        if isinstance(self.role, Leader):
            self._resign("asked to resign")

    def _on_shutdown(self) -> None:
        """Hand leadership over if we have it; the others notice a follower's absence in time."""
        self.shutting_down = True
        if isinstance(self.role, Leader):
            self._resign("shutdown")
        if not (isinstance(self.role, Resigned) and len(self.voters) > 1):
            self._say_ready()

    def _say_ready(self) -> None:
        if self.shutting_down and not self._shutdown_ready:
            self._shutdown_ready = True
            self._effects.append(ShutdownReady())

    def _leave_resigned(self) -> None:
        self._ended_at = frozenset()
        self._say_ready()

    def _pump_end_epoch(self, role: Resigned) -> None:
        for peer in self.voters:
            untold = peer != self.node_id and peer not in self._ended_at
            if untold and self._may_send(peer, EndQuorumEpochRequest):
                self._send(
                    peer,
                    EndQuorumEpochRequest(
                        cluster_id=self.cluster_id,
                        leader_id=self.node_id,
                        epoch=role.epoch,
                        preferred_candidates=role.preferred_candidates,
                    ),
                )

    def _on_end_response(self, peer: NodeId, response: EndQuorumEpochResponse) -> None:
        self._learn(peer, response.epoch, response.leader_id)
        if isinstance(self.role, Resigned):
            self._ended_at |= {peer}  # an error is an answer too: it knows of another epoch
            told = all(voter in self._ended_at or voter == self.node_id for voter in self.voters)
            if told:
                self._say_ready()
