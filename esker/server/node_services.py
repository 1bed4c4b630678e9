"""Several rooms as one: what a node runs on its groups, each part knowing nothing of the others.

NodeConfig(..., room=lambda host: JoinedRooms([BenchState(host, "kv"), CoordinatorRoom(host)]))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from raft.driver.config import BENCH_LOG
from raft.driver.node_services import Room, RoomHost
from raft.interfaces import ReplicatedLog
from raft.net.handlers import Served
from snapshot.kv import KeyValueMachine


class JoinedRooms:
    """Tells every room of everything, in the order given; ends them the other way round."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self._rooms = rooms
        self.handlers: Mapping[int, Served] = _together(rooms)

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """A group was opened."""
        for room in self._rooms:
            room.begin(log, topic, partition, directory)

    async def end(self, topic: str, partition: int) -> None:
        """A group has ended; a room that fails does not keep the others from letting go."""
        failures = []
        for room in reversed(self._rooms):
            try:
                await room.end(topic, partition)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


class BenchState:
    """The state of `esker-bench-log`, where a setting asks for one: a room with one machine."""

    def __init__(self, host: RoomHost, state: str) -> None:
        """`state` is `none` or `kv`."""
        self.handlers: Mapping[int, Served] = {}
        self._host = host
        self._state = state

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:  # noqa: ARG002
        """Build a state from this topic alone."""
        if topic == BENCH_LOG and self._state == "kv":
            self._host.host(log, KeyValueMachine())

    async def end(self, topic: str, partition: int) -> None:
        """The node itself stops the machine."""


def _together(rooms: Sequence[Room]) -> Mapping[int, Served]:
    handlers: dict[int, Served] = {}
    for room in rooms:
        for key, served in room.handlers.items():
            assert key not in handlers, f"two rooms serve api key {key}"
            handlers[key] = served
    return handlers
