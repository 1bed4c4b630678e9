"""What the parts of a process share: whose they are, and how to say that something happened."""

from __future__ import annotations

from collections.abc import Callable

from raft.core.events import Event
from raft.core.quorum import Quorum
from raft.segments.log import Log
from tests.simulation.checks import Checker
from tests.simulation.machine import Machine, Shared


class Part:
    """The attributes that `tests.simulation.node.Process` gives every part of itself."""

    machine: Machine
    node_id: int
    alive: bool
    shared: Shared
    checker: Checker
    quorum: Quorum
    log: Log

    def handle(self, event: Event) -> None:
        """Something happened; now, or once the process runs again."""
        raise NotImplementedError

    def guard(self, action: Callable[..., None], *args: object) -> None:
        """Carry out something that the machine may not survive."""
        raise NotImplementedError
