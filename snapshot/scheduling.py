"""Decides when a state machine's checkpoint is taken, and notifies the log and the callers.

The policy asks for one, or somebody (`take_now`). Then the state is frozen, and encoded and written
beside its further life (`snapshot.generation`). Once the file is there, durably, the store, the log
and the machine are told; until then nothing has changed.

The surprise: a checkpoint that fails breaks nothing, so it is tried again after a while, then less
and less often. What it would have freed, the log keeps.

Source: KIP-630, When to Snapshot; docs/design/snapshots.md#when-a-snapshot-is-taken.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from raft.interfaces import ReplicatedLog, StateMachine
from records.types import OffsetAndEpoch
from snapshot.generation import Generation, Loop, Pace
from snapshot.policy import Situation, SnapshotPolicy
from snapshot.store import SnapshotStore

log: Final = logging.getLogger("snapshot")

_RETRY_MS: Final = 10_000.0  # after a checkpoint failed; doubled each time, up to an hour
_MAX_RETRY_MS: Final = 3_600_000.0

Taken = Callable[[OffsetAndEpoch | Exception], None]
"""Called with a checkpoint's id, or with the error that prevented it."""


class NotHostedError(Exception):
    """The log has no hosted state, or no committed record, to take a checkpoint of."""


class SnapshotScheduler(ABC):
    """The part of a `snapshot.host.MachineHost` that takes checkpoints of its state machine."""

    def __init__(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        store: SnapshotStore,
        *,
        policy: SnapshotPolicy,
        loop: Loop,
        unique: Callable[[], int],
        pace: Pace,
    ) -> None:
        """Create a scheduler of a state machine's checkpoints, with no checkpoint requested."""
        self.log = log
        self.machine = machine
        self.store = store
        self.policy = policy
        self.generation: Generation | None = None
        self.generated = self.failed = 0  # numbers of checkpoints
        self.last_generation_ms: float | None = None
        self.on_generated: Callable[[float], None] | None = None  # called with the duration in ms
        self.checkpoint_bytes = 0  # of the newest
        self._loop = loop
        self._unique = unique
        self._pace = pace
        self._stopped = False
        self._loading: OffsetAndEpoch | None = None
        self._bytes_since = 0  # of the log, from the newest checkpoint to where it is read
        self._checkpoint_ms = loop.now_ms()
        self._requests: list[Taken] = []
        self._waiting: list[Taken] = []  # for the generation under way
        self._frozen_ms = 0.0
        self._frozen_bytes = 0
        self._retry_ms = _RETRY_MS
        self._retry_at_ms = 0.0

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Return whether the state may be read and frozen."""

    @abstractmethod
    def _wake(self, delay_s: float = 0.0) -> None:
        """Schedule a turn of the scheduler after `delay_s` seconds."""

    def take_now(self, done: Taken) -> None:
        """Take a checkpoint of all applied records; `done` receives its id or an error."""
        if self._stopped:
            done(NotHostedError(f"{self.log.name} ends here"))
            return
        self._requests.append(done)
        self._wake()

    @property
    def situation(self) -> Situation:
        """Return the log bytes, records and time since the newest checkpoint, for the policy."""
        newest = self.store.newest
        newest_offset = 0 if newest is None else newest.offset
        return Situation(
            bytes_since=self._bytes_since,
            records_since=max(0, self.machine.applied.offset - newest_offset),
            ms_since=int(self._loop.now_ms() - self._checkpoint_ms),
            changed_records=self.machine.changed_records,
            total_records=self.machine.total_records,
            checkpoint_bytes=self.checkpoint_bytes,
        )

    def _consider_a_checkpoint(self) -> None:
        if self.generation is not None or not self.ready:
            return
        newest, applied = self.store.newest, self.machine.applied
        if applied.offset <= (0 if newest is None else newest.offset):
            if self._requests:
                empty = NotHostedError(f"nothing was committed in {self.log.name} yet")
                self._answer_requests(newest or empty)
            return
        if not self.machine.checkpointable:
            return
        if not self._requests:
            if self._loop.now_ms() < self._retry_at_ms:
                return
            if self.policy.should_take(self.situation) is None:
                return
        self._freeze()

    def _freeze(self) -> None:
        self._waiting, self._requests = self._requests, []
        self._frozen_ms = self._loop.now_ms()
        self._frozen_bytes = self._bytes_since
        frozen = self.machine.freeze()
        self.generation = Generation(
            self.store,
            self.machine.applied,
            frozen,
            last_timestamp=self.machine.last_timestamp,
            epochs=self.log.epochs_below(self.machine.applied.offset),
            unique=self._unique(),
            loop=self._loop,
            pace=self._pace,
            done=self._on_generated,
        )
        self.generation.start()

    def _on_generated(self, generation: Generation, error: Exception | None) -> None:
        self.generation = None
        waiting, self._waiting = self._waiting, []
        if error is None:
            self._publish(generation)
        else:
            self.failed += 1
            if not isinstance(error, NotHostedError):
                log.warning(
                    "log=%s checkpoint=failed end_offset=%d error=%s: "
                    "tried again in %d s, and the log is kept until then",
                    self.log.name, generation.snapshot_id.offset, error, self._retry_ms // 1000,
                )  # fmt: skip
            self._retry_at_ms = self._loop.now_ms() + self._retry_ms
            self._retry_ms = min(2 * self._retry_ms, _MAX_RETRY_MS)
        for done in waiting:
            done(generation.snapshot_id if error is None else error)
        self._wake()

    def _publish(self, generation: Generation) -> None:
        """Register a durable checkpoint with its store, and with the log if it is the newest."""
        snapshot_id = generation.snapshot_id
        self.store.added(snapshot_id)
        if self._stopped or self._loading is not None or self.store.newest != snapshot_id:
            return
        self.generated += 1
        self._retry_ms = _RETRY_MS
        self.last_generation_ms = self._loop.now_ms() - self._frozen_ms
        if self.on_generated is not None:
            self.on_generated(self.last_generation_ms)
        self._checkpoint_ms = self._frozen_ms
        self._bytes_since -= self._frozen_bytes
        self.checkpoint_bytes = generation.size_bytes
        self.machine.checkpointed(snapshot_id, generation.encoder.state_record_count)
        self.log.snapshot_taken(snapshot_id)

    def _answer_requests(self, answer: OffsetAndEpoch | Exception) -> None:
        asked, self._requests = self._requests, []
        for done in asked:
            done(answer)
