"""Requests to other nodes: outstanding, expired, repeated after a back-off.

Requests are derived from state: after each step that may have changed something, the role offers
each peer the requests that its state calls for; those outstanding or backing off are not sent
again. So a lost request or answer is always repeated. At most one request of a kind is outstanding
to a peer.
"""

from __future__ import annotations

from typing import NamedTuple

from raft.core.config import QuorumConfig
from raft.core.effects import Reconnect, Send
from raft.core.gate import Gate
from raft.core.messages import FetchRequest, Request
from raft.core.timers import NEVER, Timer, Timers
from records.types import NodeId


class Outstanding(NamedTuple):
    """A request that was sent and not answered."""

    peer: NodeId
    request: Request
    sent_ms: int
    expires_ms: int


class Requests:
    """Outstanding requests and back-off, by peer and kind of request."""

    def __init__(self, config: QuorumConfig, gate: Gate, timers: Timers) -> None:
        self.send_due = False  # the step ends with the role sending its requests
        self.outstanding: dict[int, Outstanding] = {}  # by request id
        self.retry_at: dict[tuple[NodeId, type[Request]], int] = {}
        self._config = config
        self._gate = gate
        self._timers = timers
        self._last_id = 0
        self._ids: dict[tuple[NodeId, type[Request]], int] = {}  # of the outstanding ones
        self._failures: dict[NodeId, int] = {}  # in a row
        self._unanswered_fetches: dict[NodeId, int] = {}  # abandoned, but maybe still answered

    def outstanding_id(self, peer: NodeId, kind: type[Request]) -> int | None:
        """Return the id of the outstanding request of this kind to the peer, or None."""
        return self._ids.get((peer, kind))

    def can_send(self, peer: NodeId, kind: type[Request]) -> bool:
        """Return whether no request of this kind to the peer is outstanding or delayed."""
        slot = (peer, kind)
        return slot not in self._ids and self.retry_at.get(slot, 0) <= self._timers.now_ms

    def offer(self, peer: NodeId, request: Request) -> None:
        """Send a request, unless a request of its kind to the peer is outstanding or delayed."""
        if self.can_send(peer, type(request)):
            self.send(peer, request)

    def send(self, peer: NodeId, request: Request) -> None:
        """Send a request to a peer for which `can_send` is true."""
        slot = (peer, type(request))
        assert slot not in self._ids, f"two {slot} at once"
        if type(request) is FetchRequest and self.forget_fetch(peer):
            # An unanswered Fetch is still out on that connection: the leader could take this one
            # for a confirmation of its answer. See `raft.core.events`, rule 7.
            self._gate.send(Reconnect(peer))
        self._last_id += 1
        self._ids[slot] = self._last_id
        self.retry_at.pop(slot, None)
        now_ms = self._timers.now_ms
        expires_ms = now_ms + self._config.request_timeout_ms
        self.outstanding[self._last_id] = Outstanding(peer, request, now_ms, expires_ms)
        self._timers.set_earlier(Timer.REQUESTS, expires_ms)
        self._gate.send(Send(peer, self._last_id, request))

    def finish(self, request_id: int) -> Outstanding | None:
        """Remove and return an answered or failed request; return None if it was abandoned."""
        outstanding = self.outstanding.pop(request_id, None)
        if outstanding is None:
            for peer, fetch_id in self._unanswered_fetches.items():
                if fetch_id == request_id:
                    del self._unanswered_fetches[peer]
                    break
            return None
        del self._ids[outstanding.peer, type(outstanding.request)]
        self.send_due = True
        return outstanding

    def abandon(self, request_id: int) -> None:
        """Stop waiting for the response to a request."""
        outstanding = self.outstanding.pop(request_id)
        del self._ids[outstanding.peer, type(outstanding.request)]
        if type(outstanding.request) is FetchRequest:
            self._unanswered_fetches[outstanding.peer] = request_id

    def abandon_all(self) -> None:
        """Stop waiting for all responses, without ending any peer's back-off."""
        for request_id in tuple(self.outstanding):
            self.abandon(request_id)

    def forget_fetch(self, peer: NodeId) -> bool:
        """Forget an abandoned Fetch to a peer; return False if no Fetch to the peer was abandoned.

        The connection of that Fetch is about to close.
        """
        return self._unanswered_fetches.pop(peer, None) is not None

    def reset(self, peer: NodeId, kind: type[Request]) -> None:
        """Abandon a request of this kind to a peer and end its back-off, to allow a retry now."""
        request_id = self._ids.get((peer, kind))
        if request_id is not None:
            self.abandon(request_id)
        self.retry_at.pop((peer, kind), None)

    def back_off(self, peer: NodeId, kind: type[Request], limit_ms: int | None = None) -> None:
        """Delay the next request to a peer after a failure, twice as long with each failure."""
        failures = self._failures.get(peer, 0)
        self._failures[peer] = min(failures + 1, 20)
        limit_ms = limit_ms or self._config.retry_backoff_max_ms
        self.retry_later(peer, kind, min(self._config.retry_backoff_ms << failures, limit_ms))

    def retry_later(self, peer: NodeId, kind: type[Request], wait_ms: int | None = None) -> None:
        """Repeat a request after a short pause, because the peer's response was not usable."""
        wait_ms = self._config.retry_backoff_ms if wait_ms is None else wait_ms
        at_ms = self._timers.now_ms + wait_ms
        self.retry_at[peer, kind] = at_ms
        self._timers.set_earlier(Timer.REQUESTS, at_ms)

    def end_back_off(self, peer: NodeId) -> None:
        """End the back-off of a peer that responded, for all kinds of requests."""
        if self._failures.pop(peer, None) is not None:
            for slot in [slot for slot in self.retry_at if slot[0] == peer]:
                del self.retry_at[slot]
            self.send_due = True

    def on_timer(self) -> None:
        """Abandon expired requests, and set the timer for the next expiry or retry."""
        now_ms = self._timers.now_ms
        for request_id, outstanding in tuple(self.outstanding.items()):
            if outstanding.expires_ms <= now_ms:
                self.abandon(request_id)
                self.back_off(outstanding.peer, type(outstanding.request))
        expiries = [outstanding.expires_ms for outstanding in self.outstanding.values()]
        retries = [at_ms for at_ms in self.retry_at.values() if at_ms > now_ms]
        next_ms = min(expiries + retries, default=NEVER)
        if next_ms != NEVER:
            self._timers.set(Timer.REQUESTS, next_ms)
        self.send_due = True
