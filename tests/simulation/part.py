"""What the parts of a process share: whose they are, and how to say that something happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raft.core.events import Event
from raft.core.quorum import Quorum
from raft.segments.log import Log
from snapshot.store import SnapshotStore
from tests.simulation.checks import Checker
from tests.simulation.machine import Machine, Shared


class Job(NamedTuple):
    """Something to do on the process's own thread, in its turn, that is no event of the core's."""

    action: Callable[..., Any]
    args: tuple[object, ...]


class Part:
    """The attributes that `tests.simulation.node.Process` gives every part of itself."""

    machine: Machine
    node_id: int
    alive: bool
    shared: Shared
    checker: Checker
    quorum: Quorum
    log: Log
    store: SnapshotStore

    def handle(self, event: Event | Job) -> None:
        """Something happened; now, or once the process runs again."""
        raise NotImplementedError

    def job(self, action: Callable[..., Any], *args: object) -> None:
        """Do this in its turn."""
        self.handle(Job(action, args))

    def guard(self, action: Callable[..., None], *args: object) -> None:
        """Carry out something that the machine may not survive."""
        raise NotImplementedError

    def dare(self, one_in: int = 6) -> None:
        """Several changes of the disk follow: a good moment for the power to fail between two."""
        machine = self.machine
        if self.shared.daring and not self.shared.over() and machine.random.random() * one_in < 1:
            machine.disk.power_loss_at = machine.disk.steps + machine.random.randrange(12)
