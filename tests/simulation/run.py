"""Running schedules: one, many, and what to say when one fails."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from tests.simulation.cluster import Cluster, Production, Result
from tests.simulation.plan import Plan, draw, draw_calm
from tests.simulation.shrink import shrink
from tests.simulation.world import Trace

RARE: Final = (
    "leader changes",
    "divergent truncations",
    "crashes that lost unflushed bytes",
    "recovering voters",
    "voters recovered",
    "failed flushes",
    "pre-vote losses",
    "check-quorum resignations",
    "read rounds refused",
    "snapshots installed",
    "states loaded",
    "downloads resumed",
    "downloads restarted",
    "votes decided by a snapshot",
    "log starts moved",
)
"""What must have happened at least once in any run worth its name."""

SHRINK_SECONDS: Final = 30


class ScheduleFailed(AssertionError):
    """A schedule ended in an exception, its cause; the message says how to see it again."""


@dataclass(slots=True)
class Tally:
    """What many schedules came to."""

    schedules: int = 0
    events: int = 0
    simulated_us: int = 0
    committed: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    rare: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.schedules += 1
        self.events += result.events
        self.simulated_us += result.simulated_us
        self.committed += result.committed
        self.acknowledged += result.acknowledged
        self.rare += result.rare

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        lines = [
            f"{self.schedules} schedules, {self.events} events, {self.simulated_us / 60e6:.0f}"
            f" simulated minutes, {self.acknowledged} appends acknowledged",
            f"{self.schedules / seconds:.1f} seeds/s, {self.events / seconds:.0f} events/s",
        ]
        rest = sorted(set(self.rare) - set(RARE))
        lines += [f"{self.rare[name]:8} {name}" for name in (*RARE, *rest)]
        return "\n".join(lines)


def run_many(seeds: Iterable[int], command: str) -> Tally:
    """Run the calm schedules of these seeds. Raises ScheduleFailed with `command` and the seed."""
    tally = Tally()
    began = time.process_time()
    with quiet():
        for seed in seeds:
            with uncollected():
                tally.add(run_calm(seed, command))
    tally.seconds = time.process_time() - began
    return tally


def run_one(seed: int, command: str) -> Result:
    """One schedule. Raises ScheduleFailed."""
    return _run(draw(seed), command)


def run_calm(seed: int, command: str) -> Result:
    """One schedule as `make test` runs it. Raises ScheduleFailed."""
    return _run(draw_calm(seed), command)


def _run(plan: Plan, command: str) -> Result:
    try:
        return Cluster(plan).run()
    except Exception as error:
        raise ScheduleFailed(
            f"{error}\nreproduce: {command} --seed {plan.seed:#x}\n{explain(plan, error)}"
        ) from error


def explain(plan: Plan, error: Exception, production: Production | None = None) -> str:
    """The smallest plan found that fails in the same way, as text."""
    kind, began = _kind(error), time.monotonic()

    def fails(candidate: Plan) -> bool:
        if time.monotonic() - began > SHRINK_SECONDS:
            return False
        try:
            Cluster(candidate, production).run()
        except Exception as other:
            return _kind(other) == kind
        return False

    small = shrink(plan, fails)
    faults = "\n".join(f"    {fault}" for fault in small.faults)
    return (
        f"shrunk from {len(plan.faults)} faults to {len(small.faults)}:\n{faults}\n  {_bare(small)}"
    )


def digest(plan: Plan) -> str:
    """The hash of everything that happens in a schedule, failing or not."""
    trace = Trace()
    with quiet():
        try:
            Cluster(plan, trace=trace).run()
        except AssertionError as error:
            trace.note(str(error))
    return trace.digest


def _kind(error: Exception) -> str:
    """Failures are the same if their words are, numbers aside."""
    words = "".join(c for c in str(error) if not c.isdigit())
    return f"{type(error).__name__} {words[:40]}"


def _bare(plan: Plan) -> Plan:
    return replace(plan, faults=())


class quiet:  # noqa: N801 (a context manager that reads like a word)
    """Production code logs what goes wrong, and here everything does."""

    def __enter__(self) -> None:
        self._before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(self._before)


class uncollected:  # noqa: N801
    """A schedule's objects live as long as it does: looking for cycles among them is in vain.

    A tenth of its time. They are collected behind it.
    """

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            gc.enable()
