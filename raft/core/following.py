"""How a replica follows: it pulls, and its next pull is its acknowledgement.

A Fetch says "I hold everything below this offset, on disk"; so none is sent while appended bytes
are unflushed. The answer is records, or where our log parts from the leader's (cut there, ask
again), or a snapshot to begin from, or, after a wait, nothing.

Surprises. Our own slow disk is no dead leader: the fetch timeout stands still while we flush. A
leader that restarted within its epoch answers that it does not lead, and one that resigned says
so; either is as good as a timeout, and so is a connection that is refused or silent for 100 ms.
What a leader says is checked like anything from outside: it cannot make us drop what is committed.

Source: KIP-595, Fetch; docs/design/quorum.md#fast-failover.
"""

from __future__ import annotations

from raft.core.base import Timer, Told
from raft.core.effects import AbandonSnapshot, Append, Committed, Reconnect, Truncate
from raft.core.errors import ErrorCode
from raft.core.events import AppendDurable
from raft.core.installing import Installing
from raft.core.messages import (
    Batch,
    DescribeQuorumRequest,
    EpochEnd,
    FetchRequest,
    FetchResponse,
)
from raft.core.progress import FollowerBook
from raft.core.roles import Follower, Prospective, Unattached
from records.types import NodeId, Offset


class Following(Installing):
    """Follower, voter or observer; and the fetching by which other states find a leader."""

    @property
    def _hears_leader(self) -> bool:
        return self._following.hears_leader

    # -- entering and leaving ------------------------------------------------------------------

    def _enter_follower(self) -> None:
        self._following = FollowerBook()
        self._set(Timer.FETCH, self._now_ms + self.config.fetch_timeout_ms)
        if isinstance(self.role, Follower):  # whatever it said before, now it leads: ask at once
            self._retry_at.pop((self.role.leader_id, FetchRequest), None)
            self._retry_at.pop((self.role.leader_id, DescribeQuorumRequest), None)

    def _leave_follower(self) -> None:
        snapshot_id = self._following.fetching_snapshot
        if snapshot_id is not None:
            self._effects.append(AbandonSnapshot(snapshot_id))
        self._following = FollowerBook()

    def _lose_leader(self, reason: str) -> None:
        """Whoever may campaign asks for pre-votes; the others ask around who leads now."""
        assert isinstance(self.role, Follower), f"{self.role} lost a leader"
        if self.may_campaign:
            self._look_for_votes(reason)
        else:
            self._following.leader_lost = True
            self._set(Timer.FETCH, self._now_ms + self.config.fetch_timeout_ms)
            self._pump_due = True

    # -- signs of the leader, and their absence ------------------------------------------------

    def _leader_is_back(self) -> None:
        """The leader we follow gave a sign: stop taking it for lost."""
        self._following.leader_lost = False
        self._clear(Timer.SILENCE, Timer.FAILOVER)
        self._set(Timer.FETCH, self._now_ms + self.config.fetch_timeout_ms)
        self._pump_due = True

    def _leader_misses_us(self) -> None:
        """It asks after voters that have not fetched for half a fetch timeout.

        A Fetch of ours that has been out for that long never arrived: send another.
        """
        self._leader_is_back()
        for request_id, outstanding in tuple(self._outstanding.items()):
            overdue = outstanding.sent_ms + self.config.fetch_timeout_ms // 2 <= self._now_ms
            if overdue and isinstance(outstanding.request, FetchRequest):
                self._give_up(request_id)

    def _on_peer_lost(self, peer: NodeId) -> None:
        """A connection ended. If it led to the leader, that is news: look at once.

        Whichever connection it was: the Fetch goes by a new one now. What was lost with it is told
        by `RequestFailed`. If this happens again before the leader has answered, the ordinary
        back-off decides when to dial.
        """
        if not isinstance(self.role, Follower) or self.role.leader_id != peer:
            return
        self._following.hears_leader = False
        if Timer.SILENCE in self._deadlines or Timer.FAILOVER in self._deadlines:
            return
        fetch_id = self._slots.get((peer, FetchRequest))
        if fetch_id is not None:
            self._give_up(fetch_id)
        self._dangling.pop(peer, None)
        self._retry_at.pop((peer, FetchRequest), None)
        self._out(Reconnect(peer))
        if self._following.fetching_snapshot is None:  # else no Fetch is out that could be answered
            self._set(Timer.SILENCE, self._now_ms + self.config.failover_silence_ms)
        self._pump_due = True

    def _on_peer_refused(self, peer: NodeId) -> None:
        if isinstance(self.role, Follower) and self.role.leader_id == peer:
            self._leader_is_gone()

    def _leader_is_gone(self) -> None:
        """Nobody leads there any more; wait a random moment, since others noticed it too.

        Two followers that asked at the same time would grant each other's pre-votes and split the
        votes. (Upstream waits for no moment after a fetch timeout.)
        """
        self._following.hears_leader = False
        self._clear(Timer.SILENCE, Timer.FETCH)
        if Timer.FAILOVER not in self._deadlines:
            self._set(Timer.FAILOVER, self._now_ms + self._failover_jitter())

    def _leader_resigned(self, turn_ms: int) -> None:
        role = self.role
        if isinstance(role, Follower):
            self._following.hears_leader = False
            self._clear(Timer.SILENCE)
            self._set(Timer.FAILOVER, self._now_ms + turn_ms)
        elif isinstance(role, Unattached) and self.may_campaign:
            self._set(Timer.ELECTION, self._now_ms + turn_ms)

    def _on_fetch_timeout(self) -> None:
        if self._following.snapshot_complete:  # we are busy; let others decide who leads
            self._following.hears_leader = False
            self._set(Timer.FETCH, self._now_ms + self.config.fetch_timeout_ms)
        elif not self._may_fetch():  # our disk is slow, not the leader
            self._set(Timer.FETCH, self._now_ms + self.config.fetch_timeout_ms)
        elif isinstance(self.role, Follower):
            self._leader_is_gone()

    def _on_silence(self) -> None:
        if not self._may_fetch():  # we have not been able to ask
            self._set(Timer.SILENCE, self._now_ms + self.config.failover_silence_ms)
        elif isinstance(self.role, Follower):
            self._leader_is_gone()

    def _on_failover(self) -> None:
        if isinstance(self.role, Follower):
            self._lose_leader("leader lost")

    # -- asking --------------------------------------------------------------------------------

    def _fetch_request(self, max_wait_ms: int) -> FetchRequest:
        return FetchRequest(
            cluster_id=self.cluster_id,
            replica=self.identity,
            epoch=self.epoch,
            fetch_offset=self.log.end_offset,
            last_fetched_epoch=self.log.last_epoch,
            high_watermark=self.log.high_watermark,
            max_wait_ms=max_wait_ms,
            max_bytes=self.config.fetch_max_bytes,
        )

    def _may_fetch(self) -> bool:
        """A Fetch acknowledges all before it, so all before it must be flushed."""
        return self.log.flushed_end_offset == self.log.end_offset

    def _pump_fetch(self, leader_id: NodeId) -> None:
        following = self._following
        if (
            self._may_send(leader_id, FetchRequest)
            and self._may_fetch()
            and following.fetching_snapshot is None
        ):
            # The first Fetch is not to wait: its answer proves that the leader leads.
            wait_ms = self.config.fetch_max_wait_ms if following.hears_leader else 0
            self._send(leader_id, self._fetch_request(wait_ms))
        if (
            self.recovering
            and following.hears_leader
            and following.catch_up_offset is None
            and self._may_send(leader_id, DescribeQuorumRequest)
        ):
            self._send(leader_id, DescribeQuorumRequest())
        if following.leader_lost:
            self._pump_discovery(besides=leader_id)

    # -- hearing -------------------------------------------------------------------------------

    def _on_fetch_response(
        self, peer: NodeId, sent: FetchRequest, sent_ms: int, response: FetchResponse
    ) -> None:
        """Take what our leader sent; from anybody else we only learn epoch and leader."""
        if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._foreign(peer, FetchRequest)
            return
        self._learn(peer, response.epoch, response.leader_id)
        role = self.role
        leader_id = role.leader_id if isinstance(role, Follower | Prospective) else None
        if leader_id != peer:  # it was a question who leads
            self._retry_later(peer, FetchRequest, self.config.pre_vote_repeat_ms)
            return
        if sent.epoch != role.epoch:
            return  # so was this, and it was the leader we asked
        if response.error is not ErrorCode.NONE:
            self._retry_later(peer, FetchRequest)
            not_leading = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.BROKER_NOT_AVAILABLE)
            if response.error in not_leading and isinstance(role, Follower):
                self._leader_is_gone()
            return
        if response.epoch != role.epoch:
            self._fault(peer, f"accepts a Fetch of epoch {role.epoch} in {response.epoch}")
            self._retry_later(peer, FetchRequest)
            return
        if isinstance(role, Prospective):  # it lives after all
            back = Follower(epoch=role.epoch, leader_id=peer, voted=role.voted)
            self._become(back, "leader answered")
        self._following.hears_leader = True
        self._leader_is_back()
        if response.high_watermark is not None:
            self._told = Told(response.high_watermark, sent_ms)
        if sent.fetch_offset == self.log.end_offset and self._may_fetch():
            self._take(peer, response)

    def _take(self, peer: NodeId, response: FetchResponse) -> None:
        if response.diverging is not None:
            self._diverge(peer, response.diverging)
        elif response.snapshot_id is not None:
            self._begin_snapshot(peer, response.snapshot_id)
        else:
            if response.batches:
                self._append_fetched(peer, response.batches)
            self._learn_high_watermark(response.high_watermark)

    def _diverge(self, peer: NodeId, diverging: EpochEnd) -> None:
        """Cut the records that the leader does not have; a Fetch from there follows at once."""
        point = self._truncation_point(diverging)
        floor = max(self.log.start_offset, self.log.high_watermark or 0)
        if not floor <= point < self.log.end_offset:
            self._fault(peer, f"wants a truncation to {point} of {self.log}: {diverging}")
            self._retry_later(peer, FetchRequest, self.config.retry_backoff_max_ms)
            return
        self.log.truncate(point)
        self.voter_history.truncate(point)
        self._note_voters()
        self._effects.append(Truncate(point, self.log.generation))

    def _truncation_point(self, diverging: EpochEnd) -> Offset:
        return self.log.truncation_point(diverging)

    def _append_fetched(self, peer: NodeId, batches: tuple[Batch, ...]) -> None:
        """Append what continues our log; from the first batch that does not, nothing is taken."""
        log = self.log
        good = 0
        for batch in batches:
            if not (
                batch.base_offset == log.end_offset < batch.end_offset
                and log.last_epoch <= batch.epoch <= self.epoch
            ):
                self._fault(peer, f"batch {batch[:3]} does not continue {log}")
                self._retry_later(peer, FetchRequest, self.config.retry_backoff_max_ms)
                break
            log.append(batch.base_offset, batch.end_offset, batch.epoch)
            good += 1
        if good:
            self._effects.append(Append(batches[:good], log.generation))

    def _learn_high_watermark(self, told: Offset | None) -> None:
        """The leader's high watermark, as far as our log reaches; never backwards."""
        if told is None:
            return
        high_watermark = min(told, self.log.end_offset)
        known = self.log.high_watermark
        if high_watermark >= self.log.start_offset and (known is None or high_watermark > known):
            self.log.high_watermark = high_watermark
            self._effects.append(Committed(high_watermark))

    # -- the disk ------------------------------------------------------------------------------

    def _on_follower_durable(self) -> None:
        """All is flushed: the next Fetch may acknowledge it."""
        if self._may_fetch():
            if Timer.FETCH in self._deadlines:  # it stood still while we flushed
                self._set(Timer.FETCH, self._now_ms + self.config.fetch_timeout_ms)
            self._pump_due = True
            self._see_if_recovered()

    def _note_flushed(self, event: AppendDurable) -> bool:
        """Move the flushed end; False if the flush began before a truncation: it counts no more."""
        log = self.log
        if event.generation != log.generation:
            assert event.generation < log.generation, f"flush from the future: {event}, {log}"
            return False
        assert event.end_offset <= log.end_offset, f"flushed past the end: {event}, {log}"
        if event.end_offset > log.flushed_end_offset:
            log.flushed_end_offset = event.end_offset
        return True
