"""Runs the leader's background tasks: lease expiry, retention, topic deletion, unused objects.

The steps close expired leases, move log starts, dismantle deleted topics, expire producers, mark
objects that nothing refers to, forget old leases and tombstones, and stamp steady time. Each step
is one bounded decision like any other, proposed in its turn; a step begins only when the one before
is answered, so they never pile up. Rows that may be due are looked up in *applied* state.

Source: docs/design/state-machines.md#bounded-work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coordinator.batch import decide
from coordinator.batch.cluster_view import ClusterView, Enforcer
from coordinator.batch.decide import Context, Decision
from coordinator.batch.pending import PendingState
from coordinator.batch.retention import TopicPartition, retention_pass
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.proposer import Decide, Done

MAINTENANCE_INTERVAL_S: Final = 1.0
"""The time in which every step has its turn, if there is nothing to do."""

REPEAT_S: Final = 0.05
"""The pause before a step that left some work is repeated: at most a tenth of the leader's time."""

MAX_REPEATS: Final = 20
"""Repetitions of a step before the others' turn: retention keeps up with 20,000 runs a second."""

FIRST_RETENTION_MS: Final = 30_000
"""The longest that a new leader waits before its first round. Source: upstream's LogManager."""

RETENTION_PARTITIONS: Final = 100
"""Partitions that one retention step looks at: each costs a look-up."""


class Maintenance:
    """Runs one leader's maintenance steps. See the module."""

    def __init__(
        self,
        machine: CoordinatorMachine,
        pending: PendingState,
        settings: CoordinatorSettings,
        view: ClusterView,
        *,
        context: Callable[[int], Context],
        submit: Callable[[Decide, Done], None],
        call_later: Callable[[float, Callable[[], None]], object],
        interval_s: float,
    ) -> None:
        """Create a leader's periodic maintenance; `begin` starts its timer.

        Args:  context: makes a decision's context at a time of the wall clock.
               submit: a `Proposer`'s.
        """
        self._machine = machine
        self._pending = pending
        self._settings = settings
        self._view = view
        self._context = context
        self._submit = submit
        self._call_later = call_later
        self._interval_s = interval_s
        self._number = 0  # of this leadership's timer: an older one finds another number
        self._next_step = 0
        self._found_work = False  # whether the last step may have left work
        self._repeats = 0
        self._retention_at: TopicPartition | None = None
        self._more_retention = False  # whether another round may find more to delete
        self._next_round_ms: int | None = None  # on the leader's steady clock
        self._round_found = False  # whether retention found anything since the first partition

    def begin(self) -> None:
        """Start the maintenance timer when this node becomes the leader."""
        self._number += 1
        self._next_round_ms = None
        self._schedule()

    def end(self) -> None:
        """Stop the maintenance timer when this node is no longer the leader."""
        self._number += 1

    def run_maintenance(self, done: Callable[[], None] | None = None) -> None:
        """Run every maintenance step once, one after the other; call `done` after the last.

        Retention runs whether or not its interval is over.
        """
        self._more_retention = True

        def next_step(_: Any = None, *, step: int = 0) -> None:
            if step < len(_STEPS):
                self._step(step, lambda answer: next_step(answer, step=step + 1))
            elif done is not None:
                done()

        next_step()

    def _schedule(self) -> None:
        """Set the timer: for the next maintenance step, or for the same step if it found work."""
        number = self._number
        if self._found_work and self._repeats < MAX_REPEATS:
            self._repeats += 1
            delay_s = REPEAT_S
        else:
            self._repeats = 0
            self._next_step = (self._next_step + 1) % len(_STEPS)
            delay_s = self._interval_s / len(_STEPS)
        self._call_later(delay_s, lambda: self._due(number))

    def _due(self, number: int) -> None:
        if number == self._number:
            self._step(self._next_step, lambda _: self._stepped(number))

    def _stepped(self, number: int) -> None:
        if number == self._number:
            self._schedule()

    def _step(self, step: int, done: Done) -> None:
        decide_step = _STEPS[step]

        def decision(_: Any, now_ms: int) -> Decision[Any]:
            decided = decide_step(self, self._context(now_ms))
            self._found_work = self._found_work or bool(decided.records)
            return decided

        self._found_work = False
        self._submit(decision, done)

    def _scheduled_retention(self, context: Context) -> Decision[Any]:
        """Continue the current retention check, or begin the next check if it is due."""
        interval_ms = self._settings.retention_check_interval_ms
        if self._next_round_ms is None:
            self._next_round_ms = context.steady_ms + min(FIRST_RETENTION_MS, interval_ms)
        if not self._more_retention:
            if context.steady_ms < self._next_round_ms:
                return Decision((), None)
            self._next_round_ms = context.steady_ms + interval_ms
        return self._retention(context)

    def _retention(self, context: Context) -> Decision[Any]:
        found = retention_pass(
            self._machine.store,
            self._view,
            context.deletion_ms,
            after=self._retention_at,
            max_partitions=RETENTION_PARTITIONS,
            max_runs=self._settings.maintenance_limit,
        )
        self._retention_at = found.stopped_at
        # A pass takes a part of each partition, which may have more in the next round.
        self._round_found = self._round_found or bool(found.rows)
        self._found_work = self._round_found or found.stopped_at is not None
        self._more_retention = self._found_work
        self._round_found = self._round_found and found.stopped_at is not None
        return decide.decide_retention(found.rows, self._pending, context, Enforcer.COORDINATOR)

    def _leases(self, context: Context) -> Decision[Any]:
        return decide.decide_expired_leases(self._pending, context)

    def _deleted_topics(self, context: Context) -> Decision[Any]:
        return decide.decide_dismantling(self._pending, self._machine.store, context)

    def _producers(self, context: Context) -> Decision[Any]:
        return decide.decide_expired_producers(self._pending, self._machine.store, context)

    def _objects(self, context: Context) -> Decision[Any]:
        store = self._machine.store
        store.delete_dead_runs(self._settings.maintenance_limit)
        self._found_work = bool(store.deferred_deletes)
        return decide.decide_marks(store, context)

    def _old_leases(self, context: Context) -> Decision[Any]:
        return decide.decide_forgotten_leases(self._pending, context)

    def _tombstones(self, context: Context) -> Decision[Any]:
        return decide.decide_expired_tombstones(self._pending, context)

    def _stamp(self, context: Context) -> Decision[Any]:
        return decide.decide_stamp(self._pending, context)


_STEPS: Final[tuple[Callable[[Maintenance, Context], Decision[Any]], ...]] = (
    Maintenance._leases,
    Maintenance._stamp,  # a new leader's timer begins here
    Maintenance._scheduled_retention,
    Maintenance._deleted_topics,
    Maintenance._producers,
    Maintenance._objects,
    Maintenance._old_leases,
    Maintenance._tombstones,
)
"""The steps, in an order in which one makes work for the next."""
