"""The brokers' sessions, which only the active controller knows and which are not stored.

A broker's session runs on the leader's monotonic clock, from its last heartbeat or from the
leader's own election, whichever is later. So no broker is fenced because a new leader has not
received its heartbeat yet, and setting a wall clock, in either direction, fences none.

A session ends early if the connection of the last heartbeat is closed, as a killed process closes
it, and no heartbeat comes on another one: members of consumer groups give up a coordinator after
their own session, which may be shorter than a broker's.

The trap is a leader that was paused itself (stopped, paged out, suspended). Its clock advanced and
every session seems to be over, while the heartbeats wait in its sockets. A late tick reveals the
pause, and every session begins anew.

Source: KIP-631, Broker Leases; docs/design/controller.md#sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from records.types import Offset

ABSENCE_FRACTION: Final = 4
"""A gap of a quarter of the session reveals a pause. A shorter one ends no session: brokers send
several heartbeats in one."""

LEAST_ABSENCE_MS: Final = 500
"""A merely busy node's tick is never so late; without this limit short sessions would not end."""

LEAST_RECONNECT_MS: Final = 1_000
MISSED_HEARTBEATS: Final = 2
"""A broker whose connection was closed may miss this many heartbeats, and has a second at least."""


class Connection(Protocol):
    """A connection on which a broker sends heartbeats."""

    @property
    def closed(self) -> bool:
        """Return whether either side has closed the connection."""


@dataclass(slots=True)
class Session:
    """A broker's last heartbeat."""

    broker_epoch: int
    last_heartbeat_ms: int  # on the monotonic clock
    metadata_offset: Offset  # the last one that it has read (inclusive)
    shutting_down_at: Offset | None = None  # of the record of its controlled shutdown
    interval_ms: int = 0  # between the last two heartbeats
    connection: Connection | None = None  # of the last heartbeat, if known
    lost_ms: int | None = None  # when that connection was found closed


class BrokerSessions:
    """The sessions of one leadership. Times are ms of a monotonic clock."""

    def __init__(self, *, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._sessions: dict[int, Session] = {}
        self._since_ms = 0  # elected, or resumed after a pause
        self._ticked_ms = 0
        self._now_ms = 0

    def begin(self, now_ms: int) -> None:
        """Restart every broker's session at the start of a leadership."""
        self._sessions.clear()
        self._since_ms = self._ticked_ms = self._now_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Advance the clock; frequent calls let the sessions notice a pause of this process."""
        self.update_clock(now_ms)
        self._ticked_ms = self._now_ms
        for session in self._sessions.values():
            if session.lost_ms is None and session.connection and session.connection.closed:
                session.lost_ms = self._now_ms

    def update_clock(self, now_ms: int) -> None:
        """Advance the clock; restart every session after a pause of this process."""
        self._now_ms = max(self._now_ms, now_ms)
        absence_ms = max(LEAST_ABSENCE_MS, self.timeout_ms // ABSENCE_FRACTION)
        if self._now_ms - self._ticked_ms > absence_ms:
            self._since_ms = self._now_ms

    def record_heartbeat(
        self, broker_id: int, broker_epoch: int, metadata_offset: Offset
    ) -> Session:
        """Record a heartbeat of a registered broker and return its session."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = Session(broker_epoch, self._now_ms, metadata_offset)
            self._sessions[broker_id] = session
        session.interval_ms = self._now_ms - session.last_heartbeat_ms
        session.last_heartbeat_ms = self._now_ms
        session.connection = session.lost_ms = None
        session.metadata_offset = metadata_offset
        return session

    def note_connection(self, broker_id: int, broker_epoch: int, connection: Connection) -> None:
        """Watch the connection of a broker's last heartbeat, if the broker has a session."""
        session = self.get(broker_id, broker_epoch)
        if session is not None:
            session.connection = connection

    def record_registration(self, broker_id: int, broker_epoch: int) -> None:
        """Start a session for a broker that has just registered."""
        self.record_heartbeat(broker_id, broker_epoch, Offset(-1))

    def forget(self, broker_id: int) -> None:
        """Drop the session of a broker that is no longer registered."""
        self._sessions.pop(broker_id, None)

    def get(self, broker_id: int, broker_epoch: int) -> Session | None:
        """Return a broker's session under this epoch, or None if the broker has no session."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def is_alive(self, broker_id: int, broker_epoch: int, *, fenced: bool) -> bool:
        """Return whether a broker's session is still valid.

        A fenced broker needs a heartbeat first.
        """
        session = self.get(broker_id, broker_epoch)
        if session is None:
            return not fenced and self._now_ms < self._since_ms + self.timeout_ms
        ends_ms = max(session.last_heartbeat_ms, self._since_ms) + self.timeout_ms
        if session.lost_ms is not None:
            reconnect_ms = max(LEAST_RECONNECT_MS, MISSED_HEARTBEATS * session.interval_ms)
            ends_ms = min(ends_ms, max(session.lost_ms, self._since_ms) + reconnect_ms)
        return self._now_ms < ends_ms

    def all_have_read(self, offset: Offset, brokers: Iterable[tuple[int, int]]) -> bool:
        """Return whether each broker, given as (id, epoch), has read the record at `offset`."""
        for broker_id, epoch in brokers:
            session = self.get(broker_id, epoch)
            if session is None or session.metadata_offset < offset:
                return False
        return True
