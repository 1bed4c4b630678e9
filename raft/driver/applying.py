"""Applies committed batches to a state machine in slices, without taking or loading checkpoints.

For a node that keeps its whole log. With `SnapshotHosting` the package `snapshot` does this, and
loads and takes checkpoints besides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from raft.driver.counters import Timings
from raft.driver.node_services import StateListener
from raft.driver.snapshot_hosting import SnapshotOutcome
from raft.interfaces import ReplicatedLog, StateMachine
from records.batch import iter_batches
from records.types import Epoch, Offset, OffsetAndEpoch

READ_BYTES: Final = 64 * 1024  # decoded between two looks at the clock
SLICE_S: Final = 0.005


class Applier:
    """Feeds one state machine from a log; implements `snapshot_hosting.HostedMachine`."""

    generating = False
    checkpoint_bytes = 0

    def __init__(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        on_fatal: Callable[[BaseException], None],
        listener: StateListener | None = None,
    ) -> None:
        """Watch the log from now on, and first apply the records that are already committed."""
        self.generations = Timings()  # of nothing
        self.loads = Timings()
        self._listener = listener
        self._leading: Epoch | None = None
        self._announced_lead = False
        self._log = log
        self._machine = machine
        self._on_fatal = on_fatal
        self._target = Offset(0)  # apply up to here (exclusive)
        self._applying = False  # a slice is due
        self._closed = False
        log.watch(self)

    @property
    def applied_offset(self) -> Offset:
        """Return the first log offset that the state machine has not applied yet."""
        return self._machine.applied.offset

    def take_now(self, done: Callable[[SnapshotOutcome], None]) -> None:
        """Report to `done` that no checkpoint was taken, because this node keeps no checkpoints."""
        done(SnapshotOutcome(None, "this node keeps no checkpoints"))

    def close(self) -> None:
        """Stop applying committed records to the state machine."""
        self._closed = True

    # --- a Watcher ----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Apply records up to the new high watermark, in slices that let other groups run."""
        self._target = high_watermark
        if not self._applying:
            self._apply_slice()

    def _apply_slice(self) -> None:
        """Apply committed records for up to `SLICE_S` seconds, then schedule the next slice."""
        until = time.monotonic() + SLICE_S
        while self.applied_offset < self._target and not self._closed:
            data = self._log.read(self.applied_offset, READ_BYTES)
            if not len(data):
                break
            self._machine.apply(iter_batches(data))
            if time.monotonic() >= until:
                self._applying = True
                asyncio.get_running_loop().call_soon(self._apply_next_slice)
                return
        self._applying = False
        self._notify_listener()

    def _notify_listener(self) -> None:
        if self._listener is None:
            return
        self._listener.applied(self.applied_offset)
        caught_up = self.applied_offset >= self._target
        if self._leading is not None and not self._announced_lead and caught_up:
            self._announced_lead = True
            self._listener.lead(self._leading)

    def _apply_next_slice(self) -> None:
        if self._closed:
            return
        try:
            self._apply_slice()
        except BaseException as error:
            self._on_fatal(error)

    def lead(self, epoch: Epoch) -> None:
        """Notify the listener of this node's leadership once all earlier epochs are applied."""
        self._leading, self._announced_lead = epoch, False
        if not self._applying:
            self._notify_listener()

    def step_down(self, epoch: Epoch) -> None:
        """Announce that this node stopped leading, if its leadership was announced."""
        announced, self._leading, self._announced_lead = self._announced_lead, None, False
        if announced and self._listener is not None:
            self._listener.step_down(epoch)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Fail, because a node without checkpoints cannot have installed a snapshot."""
        raise AssertionError(f"{self._log.name}: snapshot {snapshot_id}")
