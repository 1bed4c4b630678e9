"""Tests orphan sweeps while a random history goes on between and during all their steps.

Brokers commit, late and twice, lose their leases, delete; uploads end that were given up long ago;
before each of a listing's 256 parts, between all steps of a sweep, and around each request of its
apply. After every step the model looks whether all that is referred to is there.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/pipeline.md#orphans; invariant 7
(docs/design/invariants.md).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatch
from records.rpc.objects import MarkOrphansRequest, MarkOrphansResponse
from spark_jobs.orphans import listing
from spark_jobs.orphans.apply import Journal, OrphansPlan, Progress, apply_orphans
from spark_jobs.orphans.known_objects import Ids, Kind, KnownObjects, is_in
from spark_jobs.orphans.scan import (
    GRACE_MS,
    HOUR_MS,
    OrphansError,
    Outcome,
    Rules,
    find_orphans,
    plan_orphans,
)
from tests.coordinator.batch.actors import batch, delete
from tests.coordinator.batch.subjects import SETTINGS
from tests.spark_jobs.orphans_world import (
    NAMING,
    FileSet,
    HeldUpStore,
    MemoryLogs,
    RecordedLife,
    now,
)

SWEEPS = 5
RESTING_MS = 2 * SETTINGS.answer_retention_ms


class Race(RecordedLife):
    """A random history, and sweeps that it can interrupt."""

    def __init__(self, seed: int, directory: Path, rules: Rules) -> None:
        super().__init__(seed)
        self.directory = directory
        self.rules = rules
        self.pace = Random(seed)
        self.store = FileSet(directory / "objects", self.world.now_ms)  # type: ignore[assignment]
        (directory / "listings").mkdir()
        self.objects = HeldUpStore(directory / "objects", before_listing=self.seldom)
        self.source = MemoryLogs(self.records, before_reading=self.go_on)
        self.goes_on = True

    async def run(self) -> None:
        await self.begin()
        for _ in range(SWEEPS):
            self.go_on(40)
            self.seen["planned"] += self.sweep_all().planned.objects
            await self.world.advance(self.pace.choice((0, 0, 0, 30, 50, 80)) * HOUR_MS)
        await self.finish()

    def batch(self, topic: UUID, partition: int, place: int) -> CommitBatch:  # noqa: ARG002
        """Build a batch without a producer: days pass here, and producers would expire."""
        return batch(place, self.random.randint(1, 4))

    async def clean(self, limit: int = 10_000) -> None:
        await super().clean(limit)

    async def step(self) -> None:
        actions = [self.commit] * 8 + [self.arrive_late, self.retry, self.upload_again]
        actions += [self.delete_some, self.new_epoch, self.clean, self.lead_anew, self.pass_time]
        await self.random.choice(actions)()
        if self.random.random() < 0.01:
            await self.delete_topic()
        await self.check()

    def go_on(self, steps: int = 3) -> None:
        """Let the history go on while a sweep is held up with old data."""
        for _ in range(steps if self.goes_on else 0):
            now(self.step())

    def seldom(self) -> None:
        if self.goes_on and self.pace.random() < 0.05:
            now(self.step())

    def sweep_all(self) -> Outcome:
        """Run a sweep from its listing to the last answer of its apply."""
        out = self.directory / "plan.jsonl"
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            found = listing.take_listing(self.objects, NAMING, Path(scratch), self.world.now_ms)
            self.go_on()
            try:
                outcome = plan_orphans(
                    find_orphans(found, self.source, NAMING),
                    NAMING,
                    self.objects.uri,
                    directory=self.directory / "listings",
                    out=out,
                    rules=self.rules,
                )
            except OrphansError:  # a clock went back
                self.seen["clocks"] += 1
                return Outcome()
        self.go_on()
        plan = OrphansPlan(out)
        journal = Journal(self.directory / f"{plan.plan_id}.journal", plan.plan_id)
        done: Progress = now(apply_orphans(plan, journal, lambda _: self))
        assert done.unanswered is None
        if done.whole_refusal == ErrorCode.INVALID_TIMESTAMP:  # a clock went forward
            self.seen["expired"] += 1
            return outcome
        assert done.rows_done == outcome.planned.objects
        assert set(done.refused) <= {44}
        self.go_on()
        return outcome

    async def call(self, request: MarkOrphansRequest) -> MarkOrphansResponse:
        self.go_on()
        answer: MarkOrphansResponse = await self.world.coordinator.call(request)
        self.gather()
        self.go_on()
        return answer

    async def finish(self) -> None:
        """Stop the history, and sweep until no orphan is left."""
        self.late.clear()
        self.goes_on = False
        for topic in self.topics[1:]:
            await delete(self.world, topic)
        for broker in self.brokers:
            await broker.acquire(1)
            await broker.release()
        await self.rest()
        self.store |= self.gone - self.store
        for _ in range(3):  # the first may find that a clock went back
            self.sweep_all()
            await self.world.advance(GRACE_MS)
            await self.rest()
        kept = {i for i, o in self.world.coordinator.state.objects.items() if o.marked_at_ms < 0}
        assert set(self.store) == kept, "live objects, and nothing else"
        assert kept, "something had to be left"

    async def rest(self) -> None:
        """Advance until all leases are forgotten: before that their committed objects are kept."""
        for _ in range(300):
            await self.world.advance(RESTING_MS)
            await self.clean()
            if not self.world.coordinator.state.leases and not await self.brokers[0].files():
                break
        self.gather()


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """List the parts one after the other, so that a seed gives one run."""
    monkeypatch.setattr(listing, "THREADS", 1)


def careless_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a sweep take every object that is not live for an orphan, at once."""

    def classify(self: KnownObjects, ids: Ids) -> Any:
        return np.where(is_in(self.live, ids), Kind.LIVE, Kind.ORPHAN)

    monkeypatch.setattr(KnownObjects, "classify", classify)


def careless_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a coordinator accept every key."""
    monkeypatch.setattr("coordinator.batch.decide.objects._what_keeps", lambda *_: None)


AT_ONCE = Rules(grace_ms=0)


@pytest.mark.parametrize("seed", [2, 3])
def test_concurrent_runs_of_the_orphans_job_delete_all_orphans_and_no_live_object(
    seed: int, tmp_path: Path
) -> None:
    """A run is its seed: repeat one with `-k "concurrent and 3"`."""
    race = Race(seed, tmp_path, Rules())
    now(race.run())
    assert race.seen["planned"], "the race planned nothing"


@pytest.mark.parametrize("careless", [careless_job, careless_coordinator])
def test_live_objects_stay_if_either_job_or_coordinator_checks_that_they_are_live(
    careless: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless(monkeypatch)
    now(Race(3, tmp_path, AT_ONCE).run())


def test_live_objects_are_lost_if_neither_job_nor_coordinator_checks_that_they_are_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless_job(monkeypatch)
    careless_coordinator(monkeypatch)
    with pytest.raises(AssertionError):
        now(Race(11, tmp_path, AT_ONCE).run())
