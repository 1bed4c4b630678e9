"""Which brokers live: what only the active controller knows, and nobody writes down.

A broker's session runs on the leader's monotonic clock, from its last heartbeat or from the
leader's own election, whichever is later. So nobody is fenced for a new leader's ignorance, and no
clock that is set, in either direction, fences anybody.

The surprise is the leader that was away itself (stopped, paged out, suspended). Its clock ran on
and every session seems to be over, while the heartbeats wait in its sockets. A tick that is late
says so, and every session begins anew.

Source: KIP-631, Broker Leases; docs/design/controller.md#sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from records.types import Offset

ABSENCE_FRACTION: Final = 4
"""A gap of a quarter of the session says that we were away. A shorter one costs nobody a session:
brokers beat several times in one."""

LEAST_ABSENCE_MS: Final = 500
"""No tick is so late on a node that is merely busy: else short sessions would never end."""


@dataclass(slots=True)
class Session:
    """What a broker last said."""

    broker_epoch: int
    heard_ms: int  # on the monotonic clock
    metadata_offset: Offset  # it has read everything up to here
    shutting_down_at: Offset | None = None  # of the record that said so


class BrokerSessions:
    """The sessions of one leadership. Times are ms of a monotonic clock."""

    def __init__(self, *, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._sessions: dict[int, Session] = {}
        self._since_ms = 0  # elected, or back from an absence
        self._ticked_ms = 0
        self._now_ms = 0

    def begin(self, now_ms: int) -> None:
        """Elected: nothing was heard of anybody, and nobody is late."""
        self._sessions.clear()
        self._since_ms = self._ticked_ms = self._now_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Call it several times a second."""
        self.see(now_ms)
        self._ticked_ms = self._now_ms

    def see(self, now_ms: int) -> None:
        """Look at the clock. Whoever comes first after an absence of ours notices it."""
        self._now_ms = max(self._now_ms, now_ms)
        absence_ms = max(LEAST_ABSENCE_MS, self.timeout_ms // ABSENCE_FRACTION)
        if self._now_ms - self._ticked_ms > absence_ms:
            self._since_ms = self._now_ms

    def heard(self, broker_id: int, broker_epoch: int, metadata_offset: Offset) -> Session:
        """A heartbeat of a registered broker."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = Session(broker_epoch, self._now_ms, metadata_offset)
            self._sessions[broker_id] = session
        session.heard_ms = self._now_ms
        session.metadata_offset = metadata_offset
        return session

    def registered(self, broker_id: int, broker_epoch: int) -> None:
        """It has just registered: as good as a heartbeat."""
        self.heard(broker_id, broker_epoch, Offset(-1))

    def forget(self, broker_id: int) -> None:
        """It is no member any more."""
        self._sessions.pop(broker_id, None)

    def get(self, broker_id: int, broker_epoch: int) -> Session | None:
        """What was heard of this very incarnation of a broker."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def is_alive(self, broker_id: int, broker_epoch: int, *, fenced: bool) -> bool:
        """Its session is not over. A fenced broker that we never heard of has none."""
        session = self.get(broker_id, broker_epoch)
        if session is None:
            return not fenced and self._now_ms < self._since_ms + self.timeout_ms
        return self._now_ms < max(session.heard_ms, self._since_ms) + self.timeout_ms

    def all_have_read(self, offset: Offset, brokers: Iterable[tuple[int, int]]) -> bool:
        """Whether each of these (id, epoch) has told that it read the record at `offset`."""
        for broker_id, epoch in brokers:
            session = self.get(broker_id, epoch)
            if session is None or session.metadata_offset < offset:
                return False
        return True
