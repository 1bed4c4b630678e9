"""Whoever calls a coordinator: one connection at a time to whoever seems to lead.

Requests travel on the simulated network's connections. The surprise is what hanging up does not do:
what was sent before may still arrive, later than what is sent on the next connection.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.coordinators import Asked
from tests.simulation.network import Connection
from tests.simulation.world import MS, World

if TYPE_CHECKING:
    from tests.simulation.coordinator_cluster import Callers

ATTEMPT_US: Final = 500 * MS
"""Then a request is taken for lost, and its connection with it."""

Answered = Callable[[Any], None]
"""Told the answer; None if the connection was lost, or it took too long."""


class Caller:
    """One connection at a time to whoever seems to lead, with requests under way on it."""

    def __init__(self, callers: Callers, node_id: int, random: Random) -> None:
        self.callers = callers
        self.world: World = callers.world
        self.network = callers.network
        self.random = random
        self.node_id = node_id
        self.network.powered[node_id] = True
        self.connection: Connection | None = None
        self._waiting: dict[int, Answered] = {}
        self._correlation = 0

    def __repr__(self) -> str:
        return f"caller {self.node_id}"

    def call(self, request: Any, answered: Answered) -> None:
        """Send a request. `answered` is told once, later."""
        if self.connection is None:
            self.connection = self.network.dial(self, self.callers.choose(self.random))  # type: ignore[arg-type]
        self._correlation += 1
        self._waiting[self._correlation] = answered
        self.connection.request(self._correlation, Asked(request))
        self.world.after(ATTEMPT_US, self._expire, self._correlation)

    def _expire(self, correlation: int) -> None:
        if correlation in self._waiting:
            self.hang_up()

    def hang_up(self) -> None:
        """Use another connection from now on; what was sent may still arrive."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self._lost()

    def forget(self) -> None:
        """Whoever asked is gone: no answer reaches anybody."""
        self._waiting = {}
        self.hang_up()

    def _lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(None)

    # -- the client's end of a connection ---------------------------------------------------------

    def deliver_response(self, connection: Connection, correlation: int, payload: Any) -> None:
        """An answer arrived."""
        if connection is self.connection:
            answered = self._waiting.pop(correlation, None)
            if answered is not None:
                answered(payload)

    def dial_failed(self, connection: Connection, *, refused: bool) -> None:  # noqa: ARG002
        """Nobody listens there."""
        self.connection_lost(connection)

    def connection_lost(self, connection: Connection) -> None:
        """It was reset."""
        if connection is self.connection:
            self.connection = None
            self._lost()
