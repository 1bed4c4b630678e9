"""A leader's steady time: from which stamps, when it is held, and when that is told.

Source: docs/design/clocks.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coordinator.batch.steady_clock import NO_STAMP, STAMP_INTERVAL_MS, SteadyClock
from esker.server.coordinator_metrics import coordinator_degradations, coordinator_metrics
from raft.interfaces import VoterClocks
from tests.coordinator.batch.contract_base import DAY_MS, HOUR_MS
from tests.coordinator.batch.contract_clocks import accept_clock, log_start, write_now
from tests.coordinator.batch.quorum_world import QuorumWorld, Restart


def tell(path: Path, story: Callable[[QuorumWorld], Awaitable[None]]) -> None:
    async def told() -> None:
        world = QuorumWorld(path)
        world.log.voter_clocks = VoterClocks(3, ())
        try:
            await story(world)
        finally:
            await world.close()

    asyncio.run(told())


def test_a_new_coordinator_leader_continues_the_steady_time_that_it_read_as_a_follower(
    tmp_path: Path,
) -> None:
    """All three voters are two hours ahead, and another one leads."""

    async def story(world: QuorumWorld) -> None:
        await write_now(world)
        world.log.depose()
        world.jump(2 * HOUR_MS)
        world.elect()
        await world.advance(12_000)
        assert await log_start(world) == 0
        assert world.coordinator.leader.steady_ahead_ms == -2 * HOUR_MS
        await world.advance(HOUR_MS)
        assert await log_start(world) == 10

    tell(tmp_path, story)


def test_a_restarted_follower_elected_without_a_newer_steady_time_record_holds_its_clock(
    tmp_path: Path,
) -> None:
    async def story(world: QuorumWorld) -> None:
        await write_now(world)
        world.log.depose()
        world.jump(2 * HOUR_MS)
        await world.come_back(Restart.NO_FILE)
        world.elect()
        await world.advance(12_000)
        assert world.coordinator.leader.clock_hold is not None
        assert await log_start(world) == 0
        await accept_clock(world)
        assert (await accept_clock(world)).was_held is False

    tell(tmp_path, story)


@pytest.mark.parametrize(
    ("ahead_ms", "voters", "is_held"),
    [
        ((59_000,), 3, False),
        ((-59_000, 5 * HOUR_MS), 3, False),
        ((61_000, -61_000), 3, True),
        ((), 3, True),
        ((0,), 4, True),
        ((0, 0), 4, False),
        ((0,), 5, True),
    ],
)
def test_a_held_coordinator_clock_is_released_once_a_majority_of_all_voters_agrees(
    ahead_ms: tuple[int, ...], voters: int, is_held: bool, tmp_path: Path
) -> None:
    async def story(world: QuorumWorld) -> None:
        await write_now(world)
        world.jump(5 * HOUR_MS)
        await world.restart()
        await world.advance(1_000)
        assert await log_start(world) == 0
        world.log.voter_clocks = VoterClocks(voters, ahead_ms)
        await world.advance(1_000)
        assert (world.coordinator.leader.clock_hold is not None) is is_held
        assert await log_start(world) == (0 if is_held else 10)

    tell(tmp_path, story)


def test_a_majority_of_voters_cannot_confirm_a_clock_more_than_a_day_ahead_of_steady_time(
    tmp_path: Path,
) -> None:
    async def story(world: QuorumWorld) -> None:
        await write_now(world)
        world.jump(DAY_MS + HOUR_MS)
        await world.restart()
        world.log.voter_clocks = VoterClocks(3, (0, 0))
        await world.advance(1_000)
        assert await log_start(world) == 0

    tell(tmp_path, story)


def test_a_coordinator_records_that_a_majority_of_voters_set_its_steady_time_back(
    tmp_path: Path,
) -> None:
    async def story(world: QuorumWorld) -> None:
        await write_now(world)
        world.jump(-5 * HOUR_MS)
        await world.restart()
        world.log.voter_clocks = VoterClocks(3, (0, 0))
        await world.advance(1_000)
        counters = world.machine.store.counters
        assert (counters.steady_ms, counters.clock_resets) == (world.now_ms(), 1)

    tell(tmp_path, story)


def test_a_coordinator_logs_its_held_clock_at_once_and_every_hour_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: QuorumWorld) -> None:
        await write_now(world)
        world.jump(3 * DAY_MS)
        await world.restart()
        with caplog.at_level(logging.WARNING):
            for _ in range(100):
                await world.advance(60_000)
            assert caplog.text.count("clock=held") == 2
            assert "72.0 hours ahead" in caplog.text
            assert "esker quorum accept-clock" in caplog.text
            await accept_clock(world)
            await world.advance(60_000)
            assert caplog.text.count("clock=set") == 1

    tell(tmp_path, story)


def test_a_ready_node_shows_a_held_coordinator_clock_as_a_metric_and_a_degradation(
    tmp_path: Path,
) -> None:
    def shown(world: QuorumWorld) -> dict[str, list[float]]:
        families = coordinator_metrics({0: world.coordinator.leader})
        return {family.name: [sample.value for sample in family.samples] for family in families}

    async def story(world: QuorumWorld) -> None:
        held, ahead = (
            "esker_batch_coordinator_clock_held",
            "esker_batch_coordinator_steady_time_ahead_ms",
        )
        await write_now(world)
        assert shown(world) == {held: [0.0], ahead: [0.0]}
        world.jump(3 * DAY_MS)
        await world.restart()
        await world.advance(1_000)
        assert shown(world) == {held: [1.0], ahead: []}
        (degradation,) = coordinator_degradations({0: world.coordinator.leader})
        assert degradation.name == "clock_held"
        assert not degradation.unready
        await accept_clock(world)
        await world.advance(1_000)
        assert not list(coordinator_degradations({0: world.coordinator.leader}))

    tell(tmp_path, story)


def test_a_coordinator_writes_a_steady_time_record_every_half_minute_from_esker_version_2_on(
    tmp_path: Path,
) -> None:
    async def story(world: QuorumWorld) -> None:
        await write_now(world, level=1)
        assert world.machine.store.counters.steady_ms == NO_STAMP
        world.view.raise_level(2)
        stamps = set()
        for _ in range(100):
            await world.advance(1_000)
            stamps.add(world.machine.store.counters.steady_ms)
        assert len(stamps) == 1 + 99_000 // STAMP_INTERVAL_MS

    tell(tmp_path, story)


def test_a_steady_time_record_that_is_read_late_does_not_set_steady_time_back() -> None:
    boot = [0]
    clock = SteadyClock(lambda: boot[0])
    clock.note(1_000_000, replaces=False)
    boot[0] = 90_000
    clock.note(1_030_000, replaces=False)  # written a minute ago
    assert clock.read(1_030_000, 0, lambda: False) == 1_090_000
    clock.note(500_000, replaces=True)
    assert clock.read(500_000, 0, lambda: False) == 500_000
