"""Feeding a state machine without checkpoints: what is committed, in slices, and nothing more.

For a node that keeps its whole log. With `Keeping` the snapshot room does this, and loads and takes
checkpoints besides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from raft.driver.counters import Timings
from raft.driver.node_services import StateListener
from raft.driver.snapshot_hosting import Taken
from raft.interfaces import ReplicatedLog, StateMachine
from records.batch import iter_batches
from records.types import Epoch, Offset, OffsetAndEpoch

READ_BYTES: Final = 64 * 1024  # decoded between two looks at the clock
SLICE_S: Final = 0.005


class Applier:
    """Watches a log for one state machine. Implements `raft.driver.snapshot_hosting.Hosted`."""

    generating = False
    checkpoint_bytes = 0

    def __init__(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        on_fatal: Callable[[BaseException], None],
        listener: StateListener | None = None,
    ) -> None:
        """Begin with what is committed already."""
        self.generations = Timings()  # of nothing
        self.loads = Timings()
        self._listener = listener
        self._leading: Epoch | None = None
        self._told_lead = False
        self._log = log
        self._machine = machine
        self._on_fatal = on_fatal
        self._target = Offset(0)  # apply up to here (exclusive)
        self._applying = False  # a slice is due
        self._closed = False
        log.watch(self)

    @property
    def applied_offset(self) -> Offset:
        """Everything below is in the state."""
        return self._machine.applied.offset

    def take_now(self, done: Callable[[Taken], None]) -> None:
        """There is no place for one."""
        done(Taken(None, "this node keeps no checkpoints"))

    def close(self) -> None:
        """Apply nothing more."""
        self._closed = True

    # --- a Watcher ----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Apply what is committed now; a long log must not hold up other groups."""
        self._target = high_watermark
        if not self._applying:
            self._apply_slice()

    def _apply_slice(self) -> None:
        """A few milliseconds' worth; the rest in the next turn of the loop."""
        until = time.monotonic() + SLICE_S
        while self.applied_offset < self._target and not self._closed:
            data = self._log.read(self.applied_offset, READ_BYTES)
            if not len(data):
                break
            self._machine.apply(iter_batches(data))
            if time.monotonic() >= until:
                self._applying = True
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._applying = False
        self._tell_listener()

    def _tell_listener(self) -> None:
        if self._listener is None:
            return
        self._listener.applied(self.applied_offset)
        caught_up = self.applied_offset >= self._target
        if self._leading is not None and not self._told_lead and caught_up:
            self._told_lead = True
            self._listener.lead(self._leading)

    def _go_on(self) -> None:
        if self._closed:
            return
        try:
            self._apply_slice()
        except BaseException as error:
            self._on_fatal(error)

    def lead(self, epoch: Epoch) -> None:
        """Passed on once the state holds all that was committed before."""
        self._leading, self._told_lead = epoch, False
        if not self._applying:
            self._tell_listener()

    def step_down(self, epoch: Epoch) -> None:
        """Passed on, if the leadership was."""
        told, self._leading, self._told_lead = self._told_lead, None, False
        if told and self._listener is not None:
            self._listener.step_down(epoch)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Without a place for checkpoints none was taken in."""
        raise AssertionError(f"{self._log.name}: snapshot {snapshot_id}")
