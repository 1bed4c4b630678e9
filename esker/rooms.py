"""Several rooms as one: what a node runs on its groups, each part knowing nothing of the others.

NodeConfig(..., room=joined(bench_room, coordinator_room))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from raft.driver.rooms import Room, RoomHost
from raft.interfaces import ReplicatedLog
from raft.net.handlers import Served


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


def _together(rooms: Sequence[Room]) -> Mapping[int, Served]:
    handlers: dict[int, Served] = {}
    for room in rooms:
        for key, served in room.handlers.items():
            assert key not in handlers, f"two rooms serve api key {key}"
            handlers[key] = served
    return handlers


def joined(*factories: Callable[[RoomHost], Room]) -> Callable[[RoomHost], Room]:
    """One factory for a node's configuration out of several."""
    return lambda host: JoinedRooms([factory(host) for factory in factories])
