"""What a leader does by itself: it ends, moves, dismantles, expires, marks and forgets.

Sweeps end leases, move log starts, dismantle deleted topics, expire producers, mark objects and
forget. Each is one bounded decision like any other, proposed in its turn; a step begins only when
the one before is answered, so they never pile up. What may be due is looked up in *applied* state.

Source: docs/design/state-machines.md#bounded-work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coordinator.batch import decide
from coordinator.batch.cluster_view import ClusterView, Enforcer
from coordinator.batch.decide import Context, Decision
from coordinator.batch.pending import PendingState
from coordinator.batch.retention import Place, retention_pass
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.proposer import Decide, Done

SWEEP_INTERVAL_S: Final = 1.0
"""In which every step of a sweep has its turn, if there is nothing to do."""

REPEAT_S: Final = 0.05
"""Before a step that has not done all looks for more: at most a tenth of the leader's time."""

MAX_REPEATS: Final = 20
"""Of a step before the others have their turn: retention keeps up with 20,000 new runs a second."""

RETENTION_PARTITIONS: Final = 100
"""That one step looks at: each costs a look-up, and some ms are enough."""


class Sweeps:
    """One leader's. See the module."""

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
        """
        Args:  context: of a decision at a time of the wall clock.
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
        self._found_work = False  # is there perhaps more to do where the last step stopped?
        self._repeats = 0
        self._retention_at: Place | None = None
        self._round_found = False  # did retention find anything since it began with the first?

    def begin(self) -> None:
        """This node leads."""
        self._number += 1
        self._schedule()

    def end(self) -> None:
        """It leads no more."""
        self._number += 1

    def sweep(self, done: Callable[[], None] | None = None) -> None:
        """Every step once, one after the other; `done` when the last is answered."""

        def next_step(_: Any = None, *, step: int = 0) -> None:
            if step < len(_STEPS):
                self._step(step, lambda answer: next_step(answer, step=step + 1))
            elif done is not None:
                done()

        next_step()

    def _schedule(self) -> None:
        """The next step after a while; the same one soon if it has left some work."""
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
        sweep = _STEPS[step]

        def decision(_: Any, now_ms: int) -> Decision[Any]:
            decided = sweep(self, self._context(now_ms))
            self._found_work = self._found_work or bool(decided.records)
            return decided

        self._found_work = False
        self._submit(decision, done)

    def _retention(self, context: Context) -> Decision[Any]:
        found = retention_pass(
            self._machine.store,
            self._view,
            context.now_ms,
            after=self._retention_at,
            max_partitions=RETENTION_PARTITIONS,
            max_runs=self._settings.sweep_limit,
        )
        self._retention_at = found.stopped_at
        # A pass takes a bite of each partition: whoever had one may have more, next time round.
        self._round_found = self._round_found or bool(found.rows)
        self._found_work = self._round_found or found.stopped_at is not None
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
        store.bury(self._settings.sweep_limit)
        self._found_work = bool(store.graves)
        return decide.decide_marks(store, context)

    def _old_leases(self, context: Context) -> Decision[Any]:
        return decide.decide_forgotten_leases(self._pending, context)

    def _tombstones(self, context: Context) -> Decision[Any]:
        return decide.decide_expired_tombstones(self._pending, context)


_STEPS: Final[tuple[Callable[[Sweeps, Context], Decision[Any]], ...]] = (
    Sweeps._leases,
    Sweeps._retention,
    Sweeps._deleted_topics,
    Sweeps._producers,
    Sweeps._objects,
    Sweeps._old_leases,
    Sweeps._tombstones,
)
"""The steps of a sweep, in an order in which one makes work for the next."""
