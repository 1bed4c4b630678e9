"""Fetches that wait at the end of the leader's log.

A voter's Fetch is parked until data is appended, the high watermark moves, a read begins or its
time is up; so a commit costs no polling and no added delay.

An observer neither commits records nor confirms reads, and uses no record before it is committed.
So it is given committed records only, each in one answer with the high watermark above it, when
that moves. With all records it would be answered twice for each commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.context import Context
from raft.core.effects import RespondFetch
from raft.core.messages import FetchResponse
from raft.core.progress import LeaderState, ParkedFetch
from raft.core.timers import NEVER, Timer
from records.types import Offset


@dataclass(slots=True, eq=False)
class ParkedFetches:
    """Answers Fetches as leader, at once or when there is something to answer with."""

    _context: Context

    def answer_or_park(self, leader: LeaderState, fetch: ParkedFetch) -> None:
        """Answer a Fetch that finds new data or must not wait; keep any other Fetch waiting."""
        timers = self._context.timers
        if fetch.deadline_ms <= timers.now_ms or self._has_news(leader, fetch):
            self.answer(leader, fetch)
        else:
            leader.parked[fetch.connection] = fetch
            timers.set_earlier(Timer.PARKED, fetch.deadline_ms)

    def _has_news(self, leader: LeaderState, fetch: ParkedFetch) -> bool:
        """Return whether a parked Fetch is to be answered: records, high watermark or a read."""
        log = self._context.log
        if fetch.fetch_offset < self._end_offset(leader, fetch):
            return True
        if leader.is_announced and fetch.high_watermark < (log.high_watermark or 0):
            return True
        if fetch.is_observer:
            return False
        current = fetch.replica.answered_connection == fetch.connection
        answered = fetch.replica.answered_round if current else -1
        return bool(leader.reads) and leader.reads[-1].round > answered

    def _end_offset(self, leader: LeaderState, fetch: ParkedFetch) -> Offset:
        """Return the end of what a Fetch may be given, at least its own offset: it asks for more.

        Before a leader is announced it cannot say what is committed.
        """
        log = self._context.log
        if not fetch.is_observer:
            return log.end_offset
        committed = log.high_watermark if leader.is_announced else None
        return max(fetch.fetch_offset, committed or fetch.fetch_offset)

    def answer(self, leader: LeaderState, fetch: ParkedFetch) -> None:
        """Answer a Fetch with the records that it may be given, or without records."""
        fetch.replica.answered_connection = fetch.connection
        fetch.replica.answered_round = leader.read_round
        leader.round_used = True
        self._context.gate.send(
            RespondFetch(
                fetch.connection,
                fetch.correlation,
                self._data_response(leader),
                fetch.fetch_offset,
                self._end_offset(leader, fetch),
                fetch.max_bytes,
            )
        )

    def _data_response(self, leader: LeaderState) -> FetchResponse:
        """Return a Fetch response without records, reusing the previous response if unchanged."""
        response, log = leader.data_response, self._context.log
        high_watermark = log.high_watermark if leader.is_announced else None
        if (
            response is None
            or response.high_watermark != high_watermark
            or response.log_start_offset != log.start_offset
        ):
            response = leader.data_response = FetchResponse(
                leader_id=self._context.node_id,
                epoch=leader.epoch,
                high_watermark=high_watermark,
                log_start_offset=log.start_offset,
            )
        return response

    def answer_ready(self, leader: LeaderState) -> None:
        """Answer the waiting Fetches for which there is something new."""
        for connection, fetch in tuple(leader.parked.items()):
            if self._has_news(leader, fetch):
                del leader.parked[connection]
                self.answer(leader, fetch)

    def on_timer(self) -> None:
        """Answer the waiting Fetches whose waiting time is over."""
        leader, timers = self._context.leader, self._context.timers
        if leader is None:
            return
        next_ms = NEVER
        for connection, fetch in tuple(leader.parked.items()):
            if fetch.deadline_ms <= timers.now_ms:
                del leader.parked[connection]
                self.answer(leader, fetch)
            else:
                next_ms = min(next_ms, fetch.deadline_ms)
        if next_ms != NEVER:
            timers.set(Timer.PARKED, next_ms)

    def on_connection_closed(self, connection: int) -> None:
        """Remove the waiting Fetch that arrived over a connection that is now closed."""
        if self._context.leader is not None:
            self._context.leader.parked.pop(connection, None)
