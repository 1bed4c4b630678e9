"""A leader sweeps by itself, a bounded piece at a time, while it leads; and what waits is bounded.

Source: docs/design/state-machines.md#bounded-work.
"""

from __future__ import annotations

import asyncio
import heapq
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from coordinator.batch import leader
from coordinator.batch.cluster_view import TopicConfig
from coordinator.batch.maintenance import MAX_REPEATS, REPEAT_S
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from tests.coordinator.batch.actors import Broker, batch, create, results
from tests.coordinator.batch.quorum_world import ManualClocks, QuorumWorld
from tests.coordinator.batch.subjects import SETTINGS, START_MS
from tests.waiting import DEADLINE_S


class Timers(ManualClocks):
    """Timers that fire when the test lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.delays_s: list[float] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        self.delays_s.append(delay_s)
        heapq.heappush(self._due, (self.monotonic() + delay_s, next(self._numbers), callback))
        return None

    async def run(self, seconds: float) -> None:
        end_ms = self.elapsed_ms + round(seconds * 1000)
        while self._due and self._due[0][0] * 1000 <= end_ms:
            at, _, callback = heapq.heappop(self._due)
            self.elapsed_ms = max(self.elapsed_ms, round(at * 1000))
            callback()
            for _ in range(6):  # turns of the loop: decide, commit, answer
                await asyncio.sleep(0)
        self.elapsed_ms = end_ms


async def retained(path: Path, timers: Timers, objects: int) -> tuple[QuorumWorld, Broker]:
    """A topic with `objects` runs that are all older than its retention allows."""
    settings = replace(SETTINGS, maintenance_limit=2)
    world = QuorumWorld(path, settings, clocks=timers)
    await create(world)
    broker = Broker(world)
    await broker.acquire(100)
    for _ in range(objects):
        await broker.commit(batch(0, 1))
    (topic_id,) = world.machine.store.topics
    world.view.configs[topic_id] = TopicConfig(retention_ms=1)
    return world, broker


def test_a_coordinators_leader_runs_its_maintenance_on_its_own_timer(tmp_path: Path) -> None:
    async def story() -> None:
        timers = Timers()
        world, _ = await retained(tmp_path, timers, 7)
        assert world.machine.store.run_count == 7
        await timers.run(3)
        assert world.machine.store.run_count == 0
        assert world.machine.store.unused_objects(10) == []
        marked = world.machine.store.marked_objects(0, 2**62, 10)
        assert len(marked) == 7
        assert all(START_MS <= at <= world.now_ms() for at, _ in marked)
        await world.close()

    asyncio.run(story())


def test_a_coordinator_repeats_a_maintenance_step_that_finds_work_early_a_limited_number_of_times(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        timers = Timers()
        world, _ = await retained(tmp_path, timers, 90)
        await timers.run(2)
        longest = repeats = 0
        for delay_s in timers.delays_s:
            repeats = repeats + 1 if delay_s == REPEAT_S else 0
            longest = max(longest, repeats)
        assert longest == MAX_REPEATS
        await timers.run(20)
        assert world.machine.store.run_count == 0
        await world.close()

    asyncio.run(story())


def test_a_deposed_leader_of_a_coordinator_stops_its_maintenance_timer(tmp_path: Path) -> None:
    async def story() -> None:
        timers = Timers()
        world, _ = await retained(tmp_path, timers, 3)
        world.log.depose()
        end = world.log.end_offset
        await timers.run(10)
        assert world.log.end_offset == end
        world.elect()
        await timers.run(3)
        assert world.machine.store.run_count == 0
        await world.close()

    asyncio.run(story())


def test_the_coordinator_begins_a_retention_check_at_every_interval_and_completes_each_check(
    tmp_path: Path,
) -> None:
    """Each step deletes at most two runs; a new leader waits at most 30 s for its first round."""

    async def story() -> None:
        timers = Timers()
        world, broker = await retained(tmp_path, timers, 7)
        world.log.depose()
        world.settings = replace(world.settings, retention_check_interval_ms=300_000)
        await world.restart()
        await timers.run(25)
        assert world.machine.store.run_count == 7
        await timers.run(7)
        assert world.machine.store.run_count == 0
        await broker.commit(batch(0, 1))
        await timers.run(290)
        assert world.machine.store.run_count == 1
        await timers.run(15)
        assert world.machine.store.run_count == 0
        await world.close()

    asyncio.run(story())


def test_the_coordinators_search_for_idle_producers_resumes_where_it_last_stopped(
    tmp_path: Path,
) -> None:
    """However many busy producers stand before them."""

    async def story() -> None:
        world = QuorumWorld(tmp_path)
        await create(world)
        broker = Broker(world)
        await broker.acquire(50)
        await broker.commit(*(batch(10 * k, producer=k, size=10) for k in range(20)))
        world.clocks.elapsed_ms += 1_000
        await broker.commit(*(batch(10 * k, producer=k, size=10, first=1) for k in range(12)))
        store = world.machine.store
        found: list[int] = []
        for _ in range(10):
            keys = store.idle_producers(world.now_ms(), limit=2)
            assert len(keys) <= 2
            found += [producer_id for _, producer_id in keys]
        assert set(found) == set(range(12, 20))
        assert len(found) <= 2 * 8, "all of them, before any is found a third time"
        await world.close()

    asyncio.run(story())


def test_a_coordinator_client_limits_the_number_of_batches_in_unanswered_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused commit was not decided: it may be sent again."""
    monkeypatch.setattr(leader, "MAX_WAITING_BATCHES", 5)

    async def story() -> None:
        world, broker = await retained(tmp_path, Timers(), 1)
        world.log.auto_commit = False
        three = (batch(0, 1), batch(100, 1), batch(200, 1))
        first = asyncio.ensure_future(broker.commit(*three))
        await asyncio.sleep(0)
        with pytest.raises(CoordinatorError, match="COORDINATOR_NOT_AVAILABLE"):
            await broker.commit(*three)
        for _ in range(5):
            await asyncio.sleep(0)
        world.log.commit()
        assert len(results(await first)) == 3
        world.log.auto_commit = True
        assert len(results(await broker.again())) == 3
        await world.close()

    asyncio.run(story())


def test_an_exception_in_a_coordinator_decision_fails_only_its_own_request(tmp_path: Path) -> None:
    """For example an unreadable page: nothing was decided, and other requests are answered."""

    async def story() -> None:
        world = QuorumWorld(tmp_path)
        await create(world)
        broker = Broker(world)
        proposer = world.coordinator.leader.proposer
        answers: list[object] = []

        def unreadable(_state: object, _now_ms: int) -> object:
            raise sqlite3.OperationalError("disk I/O error")

        before = asyncio.ensure_future(broker.acquire())
        await asyncio.sleep(0)
        proposer.submit(unreadable, answers.append)  # type: ignore[arg-type]
        await asyncio.wait_for(before, DEADLINE_S)
        (error,) = answers
        assert isinstance(error, CoordinatorError)
        assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert results(await broker.commit(batch(0)))[0][0] == 0
        assert proposer._waiting == 0

    asyncio.run(story())
