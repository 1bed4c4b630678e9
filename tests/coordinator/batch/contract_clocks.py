"""The contract about the clocks by which records are deleted.

Source: docs/design/clocks.md.
"""

from __future__ import annotations

from coordinator.batch.cluster_view import TopicConfig
from records.kafka_errors import ErrorCode
from records.rpc.objects import AcceptClockRequest, AcceptClockResponse
from tests.coordinator.batch.actors import TOPIC, Broker, batch, create, find, results
from tests.coordinator.batch.contract_base import DAY_MS, HOUR_MS, Told
from tests.coordinator.batch.subjects import World

MINUTE_MS = 60_000


async def write_now(world: World, *, level: int = 2) -> None:
    """A topic that is kept for an hour, with two batches of this moment, and a stamp."""
    world.view.raise_level(level)
    world.view.configs[TOPIC] = TopicConfig(retention_ms=HOUR_MS)
    await create(world)
    broker = Broker(world)
    await broker.acquire()
    await broker.commit(batch(0, 5, time=world.now_ms()))
    await broker.commit(batch(0, 5, time=world.now_ms()))
    await world.advance(1_000)


async def log_start(world: World) -> int:
    (partition,) = await find(world, (0, 0))
    return partition.log_start_offset


async def accept_clock(world: World) -> AcceptClockResponse:
    return await world.coordinator.call(AcceptClockRequest(coordinator_partition=0))


class ClockStories(Told):
    """What every coordinator keeps, wherever its steady time lives."""

    def test_a_coordinator_whose_wall_clock_steps_ahead_deletes_no_young_records(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            world.jump(2 * HOUR_MS)
            await world.advance(12_000)
            assert await log_start(world) == 0
            await world.advance(HOUR_MS)
            assert await log_start(world) == 10

        self.tell(story)

    def test_a_coordinator_whose_wall_clock_steps_back_delays_deletion_by_time(self) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            world.jump(-2 * HOUR_MS)
            await world.advance(2 * HOUR_MS)
            assert await log_start(world) == 0

        self.tell(story)

    def test_a_coordinator_refuses_an_accept_clock_request_below_esker_version_2(self) -> None:
        async def story(world: World) -> None:
            await write_now(world, level=1)
            answer = await accept_clock(world)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert "esker features upgrade" in (answer.error_message or "")

        self.tell(story)


class StartStories(Told):
    """What a process does that starts alone: `restart` leaves none that noted a stamp."""

    def test_a_restarted_coordinator_accepts_a_wall_clock_within_an_hour_of_steady_time(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            await world.advance(50 * MINUTE_MS)
            world.jump(30 * MINUTE_MS)
            await world.restart()
            await world.advance(1_000)
            assert await log_start(world) == 10

        self.tell(story)

    def test_a_restarted_coordinator_does_not_set_steady_time_back_to_a_lagging_wall_clock(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            await world.advance(50 * MINUTE_MS)
            world.jump(-30 * MINUTE_MS)
            await world.restart()
            await world.advance(1_000)
            await world.advance(20 * MINUTE_MS)
            world.jump(30 * MINUTE_MS)
            await world.advance(1_000)
            assert await log_start(world) == 10

        self.tell(story)

    def test_a_coordinator_whose_wall_clock_is_days_ahead_deletes_by_time_only_after_accept_clock(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, 5, time=world.now_ms(), producer=7))
            world.jump(2 * DAY_MS)
            await world.restart()
            await world.advance(2 * HOUR_MS)
            assert await log_start(world) == 0
            await broker.acquire()  # leases end by the leader's monotonic clock
            (again,) = results(await broker.commit(batch(0, 5, producer=7)))
            assert again.is_duplicate
            answer = await accept_clock(world)
            assert (answer.error_code, answer.was_held) == (0, True)
            assert answer.steady_ms == world.now_ms()
            await world.advance(1_000)
            assert await log_start(world) == 15
            await world.restart()  # the record is believed by processes that start later
            assert not (await accept_clock(world)).was_held

        self.tell(story)

    def test_a_coordinator_with_a_held_clock_deletes_by_size_and_lists_no_orphans(self) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            broker = Broker(world)
            await broker.acquire(2)
            await broker.release()
            world.jump(2 * DAY_MS)
            await world.restart()
            world.view.configs[TOPIC] = TopicConfig(retention_ms=HOUR_MS, retention_bytes=100)
            await world.advance(HOUR_MS)
            await world.advance(HOUR_MS)
            assert await log_start(world) == 5
            assert await broker.files() == [0]
            await accept_clock(world)
            assert {broker.first, broker.first + 1} < set(await broker.files())

        self.tell(story)

    def test_a_coordinator_with_a_single_voter_accepts_a_wall_clock_within_a_day_of_steady_time(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            world.jump(20 * HOUR_MS)  # as after a night switched off
            await world.restart()
            await world.advance(1_000)
            assert await log_start(world) == 10

        self.tell(story)

    def test_an_accept_clock_request_can_set_a_coordinators_steady_time_back(self) -> None:
        async def story(world: World) -> None:
            await write_now(world)
            world.jump(3 * DAY_MS)
            await accept_clock(world)
            world.jump(-3 * DAY_MS)
            answer = await accept_clock(world)
            assert answer.before_ms - answer.steady_ms == 3 * DAY_MS
            world.jump(3 * DAY_MS)
            await world.advance(1_000)
            assert await log_start(world) == 0

        self.tell(story)
