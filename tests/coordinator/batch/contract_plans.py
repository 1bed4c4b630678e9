"""The contract about retention plans that somebody outside made.

A plan is made from what somebody read, and that may be old, or of a cluster that was restored from
a copy since and has other data at the same offsets. So no row removes what the coordinator's own
enforcement would keep now, whatever the row says.

Source: docs/design/batch-coordinator.md#retention,
docs/design/batch-coordinator.md#plans-are-judged-by-the-runs-there-are.
"""

from __future__ import annotations

import random
from dataclasses import replace

from coordinator.batch.cluster_view import Enforcer, TopicConfig
from coordinator.batch.settings import MAX_RETENTION_ROWS
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    TOPIC,
    Broker,
    apply_plan,
    batch,
    create,
    delete_records,
    groups,
    offset_for,
)
from tests.coordinator.batch.contract_base import HOUR_MS, Told
from tests.coordinator.batch.subjects import SETTINGS, World

EXTERNAL = TopicConfig(retention_ms=HOUR_MS, enforcer=Enforcer.EXTERNAL)
FOREVER = replace(EXTERNAL, retention_ms=None)

Answers = list[tuple[int, int]]


async def stored(world: World, *ages_ms: int | None, sizes: tuple[int, ...] = ()) -> None:
    """A topic with a run of ten offsets for each age; None: its records have no time."""
    await create(world)
    broker = Broker(world)
    await broker.acquire()
    for i, age_ms in enumerate(ages_ms):
        time = -1 if age_ms is None else world.now_ms() - age_ms
        await broker.commit(batch(0, 10, time=time, size=sizes[i] if sizes else 100))


class PlanStories(Told):
    """The results of a plan's rows, and how far each may go."""

    def test_the_coordinator_answers_each_row_of_an_external_retention_plan_with_its_own_result(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await stored(world, *(9 * HOUR_MS,) * 3)
            world.view.configs[TOPIC] = replace(EXTERNAL, retention_ms=5)
            rows = [(0, 10, 1, 5), (0, 20, 1, 4), (0, 31, 1, 5), (7, 1, 1, 5), (0, 20, 2, 5)]
            expected = [(0, 10), (44, -1), (1, -1), (3, -1), (44, -1)]
            assert await apply_plan(world, *rows) == expected
            assert await offset_for(world, -2) == (0, 10)
            assert await apply_plan(world, (0, 10, 1, 5), (0, 3, 1, 5)) == [(0, 10), (0, 10)]
            assert await apply_plan(world, (0, 1, 1, 5), topic=OTHER_TOPIC) == [(100, -1)]
            world.view.configs[TOPIC] = None  # type: ignore[assignment]  # the cluster removed it
            assert await apply_plan(world, (0, 20, 1, 5)) == [(100, -1)]

        self.tell(story)

    def test_the_coordinator_refuses_a_retention_plan_that_has_expired_or_is_of_another_cluster(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await stored(world, 9 * HOUR_MS)
            world.view.configs[TOPIC] = replace(EXTERNAL, retention_ms=5)
            before = await world.checkpoint()
            row = (0, 10, 1, 5)
            assert await apply_plan(world, row, cluster_id="another") == [(104, -1)]
            assert await apply_plan(world, row, expires_in_ms=0) == [(32, -1)]
            ahead_ms = 2 * HOUR_MS  # of a clock that is an hour ahead: what is old there is not
            assert await apply_plan(world, row, expires_in_ms=ahead_ms) == [(32, -1)]
            many = [row] * (MAX_RETENTION_ROWS + 1)
            assert set(await apply_plan(world, *many)) == {(42, -1)}
            world.view.configs[TOPIC] = TopicConfig(retention_ms=5)
            assert await apply_plan(world, row) == [(44, -1)]
            assert await world.checkpoint() == before

        self.tell(story)

    def test_a_retention_plan_by_time_stops_at_the_first_young_run_of_batches(self) -> None:
        async def story(world: World) -> None:
            old = 2 * HOUR_MS
            await stored(world, old, old, HOUR_MS // 2, old, old)
            world.view.configs[TOPIC] = EXTERNAL
            assert await apply_plan(world, (0, 50, 1, HOUR_MS)) == [(0, 20)]
            assert await apply_plan(world, (0, 50, 1, HOUR_MS)) == [(44, -1)]
            await world.advance(HOUR_MS)
            assert await apply_plan(world, (0, 50, 1, HOUR_MS)) == [(0, 50)]

        self.tell(story)

    def test_retention_of_records_without_a_timestamp_counts_from_their_commit(self) -> None:
        async def story(world: World) -> None:
            await stored(world, None, None)
            world.view.configs[TOPIC] = EXTERNAL
            assert await apply_plan(world, (0, 20, 1, HOUR_MS)) == [(44, -1)]
            await world.advance(HOUR_MS)  # as old as is kept, and no older
            assert await apply_plan(world, (0, 20, 1, HOUR_MS)) == [(44, -1)]
            await world.advance(1)
            assert await apply_plan(world, (0, 20, 1, HOUR_MS)) == [(0, 20)]

        self.tell(story)

    def test_a_retention_plan_by_size_keeps_at_least_retention_bytes(self) -> None:
        async def story(world: World) -> None:
            await stored(world, 0, 0, 0, sizes=(100, 100, 10))
            world.view.configs[TOPIC] = replace(FOREVER, retention_bytes=110)
            assert await apply_plan(world, (0, 20, 2, 110)) == [(44, -1)]  # 10 bytes would be left
            assert await apply_plan(world, (0, 10, 2, 110)) == [(0, 10)]

        self.tell(story)

    def test_a_retention_plan_deletes_whole_runs_of_batches_only(self) -> None:
        async def story(world: World) -> None:
            await stored(world, *(2 * HOUR_MS,) * 3)
            world.view.configs[TOPIC] = EXTERNAL
            assert await apply_plan(world, (0, 15, 1, HOUR_MS)) == [(0, 10)]
            assert await apply_plan(world, (0, 15, 1, HOUR_MS)) == [(44, -1)]
            await delete_records(world, 17)
            assert await apply_plan(world, (0, 19, 1, HOUR_MS)) == [(44, -1)]
            assert await apply_plan(world, (0, 20, 1, HOUR_MS)) == [(0, 20)]

        self.tell(story)

    def test_a_large_retention_plan_by_size_is_completed_by_repeated_requests(self) -> None:
        """Runs are added up one by one, so a request looks at a bounded number of them."""

        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            for partition in (0, 1):
                for _ in range(8):
                    await broker.commit(topics=groups(batch(0, 10), partition=partition))
            world.view.configs[TOPIC] = replace(FOREVER, retention_bytes=0)

            async def again(world: World, *rows: tuple[int, int, int, int]) -> Answers:
                await world.advance(0)  # dead runs are taken away meanwhile
                return await apply_plan(world, *rows)

            rows = [(0, 80, 2, 0), (1, 70, 2, 0)]
            assert await apply_plan(world, *rows) == [(0, 50), (15, -1)]
            answers = [await again(world, *rows) for _ in range(2)]
            assert answers == [[(0, 80), (0, 20)], [(0, 80), (0, 70)]]

        self.tell(story, replace(SETTINGS, maintenance_limit=5))

    def test_an_external_retention_plan_deletes_no_batch_that_the_topics_retention_settings_keep(
        self,
    ) -> None:
        """Any rows, those of another history too, beside a judge that looks at every run."""

        async def story(world: World) -> None:
            drawn = random.Random(0x5EED)
            await create(world)
            broker = Broker(world)
            await broker.acquire(1_000)
            keep = replace(EXTERNAL, retention_bytes=150)
            world.view.configs[TOPIC] = keep
            seen = set()
            for turn in range(40):
                await delete_records(world, -1)
                _, begin = await offset_for(world, -2)
                runs = [
                    (drawn.choice([0, 2 * HOUR_MS]), drawn.choice([10, 100]))
                    for _ in range(drawn.randint(1, 6))
                ]
                for age_ms, size in runs:
                    await broker.commit(batch(0, 10, time=world.now_ms() - age_ms, size=size))
                expected = 0
                for _ in range(3):
                    reason, ahead = drawn.choice([1, 2]), drawn.randint(0, 10 * len(runs))
                    limit = HOUR_MS if reason == 1 else 150
                    code, start = (await apply_plan(world, (0, begin + ahead, reason, limit)))[0]
                    expected = max(expected, begin + 10 * _goes(runs, ahead // 10, reason))
                    seen.add((reason, code, start == begin + ahead))
                found = await offset_for(world, -2)
                assert found == (0, expected), f"turn {turn}: {runs}"
            assert seen >= {(r, c, e) for r in (1, 2) for c, e in ((0, True), (44, False))}, seen
            assert (1, 0, False) in seen  # as far as time allows, and no further

        self.tell(story)


def _goes(runs: list[tuple[int, int]], asked: int, reason: int) -> int:
    """Count the runs, by age and size, that a row may remove of those that it requests."""
    if reason == 2:
        return asked if sum(size for _, size in runs[asked:]) >= 150 else 0
    old = 0
    while old < asked and runs[old][0] > HOUR_MS:
        old += 1
    return old
