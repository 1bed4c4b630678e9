"""The gate: no message leaves before the election state it depends on is on disk.

While the election state of the present role is being written, messages wait in order; they leave
once it is durable. So no vote, epoch or leader that a crash could take back is ever known to others
(invariants 1 and 11, docs/design/invariants.md), and the classes that decide need not consider it.
Actions that must not even *happen* before (a candidate counting its own vote, a leader's first
append) follow `ElectionStateDurable` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from raft.core.effects import Effect, Message, PersistElectionState, Respond, Send
from raft.core.messages import Response
from raft.core.roles import ElectionState

MAX_HELD: Final = 1000
"""Messages held for the disk; later ones are dropped as if the network had lost them."""


class Gate:
    """Collects the effects of a step, and holds messages until the election state is on disk."""

    emit: Callable[[Effect], None]
    """Adds an effect to those of the present step, whether the gate is closed or not."""

    def __init__(self, election: ElectionState) -> None:
        self.is_closed = False
        self.write_due = False  # the step is to end with `request_write`
        self.held: list[Message] = []
        self.election = election  # as last asked to be written
        self._sequence = 0
        self._durable_sequence = 0
        self.begin_step()

    def begin_step(self) -> list[Effect]:
        """Start and return a new list of effects for one step of the Raft core."""
        effects: list[Effect] = []
        self.emit = effects.append
        return effects

    def send(self, effect: Message) -> None:
        """Send a message to another node as soon as the election state is durable."""
        if not self.is_closed:
            self.emit(effect)
        elif len(self.held) < MAX_HELD:
            self.held.append(effect)

    def respond(self, connection: int, correlation: int, response: Response) -> None:
        """Send the response to a request as soon as the election state is durable."""
        self.send(Respond(connection, correlation, response))

    def close(self) -> None:
        """Begin to hold back messages, because the election state is about to change."""
        self.write_due = True
        self.is_closed = True

    def request_write(self, election: ElectionState, outstanding: Container[int]) -> None:
        """Request a changed election state's write; if no write is pending, release messages.

        Args:  outstanding: as in `on_durable`.
        """
        self.write_due = False
        if election != self.election:
            self.election = election
            self._sequence += 1
            self.emit(PersistElectionState(self._sequence, election))
        elif self._durable_sequence == self._sequence:  # the step returned to the durable state
            self._open(outstanding)

    def on_durable(self, sequence: int, outstanding: Container[int]) -> bool:
        """Release held-back messages if the newest election state is durable; return whether it is.

        Args:  outstanding: ids of the requests still wanted; other held requests are dropped.
        """
        assert sequence <= self._sequence, f"{sequence} durable, {self._sequence} asked for"
        self._durable_sequence = max(self._durable_sequence, sequence)
        if sequence < self._sequence:
            return False
        self._open(outstanding)
        return True

    def _open(self, outstanding: Container[int]) -> None:
        self.is_closed = False
        held, self.held = self.held, []
        for effect in held:
            if not isinstance(effect, Send) or effect.request_id in outstanding:
                self.emit(effect)
