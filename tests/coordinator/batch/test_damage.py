"""A damaged page is met sooner or later: then the file goes, and the state comes back.

Every page of the database in turn is overwritten. A life either says what is right, since it never
read that page, or it ends and has deleted the file; and the next life has rebuilt the state from
the log and is well. No life goes on with half a state.

Source: docs/design/batch-coordinator.md#state-in-sqlite; coordinator.batch.sqlite.machine.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from coordinator.batch.sqlite.frozen import ScanFailedError
from coordinator.errors import CoordinatorError
from tests.coordinator.batch.actors import Broker, batch, create, offset_for, results
from tests.coordinator.batch.quorum_world import QuorumWorld
from tests.waiting import Deadline

PAGE: Final = 4096
OBJECTS: Final = 120
PRODUCERS: Final = 3 * OBJECTS
ALL: Final = tuple(batch(k, producer=k, size=1) for k in range(PRODUCERS))


async def filled(path: Path) -> tuple[QuorumWorld, Broker]:
    """Producers by the hundred, so that their table has several pages; nobody leads any more."""
    world = QuorumWorld(path)
    await create(world)
    broker = Broker(world)
    await broker.acquire(1_000)
    for first in range(0, PRODUCERS, 3):
        await broker.commit(*(batch(100 * k, producer=first + k, time=first) for k in range(3)))
    await end(world)
    return world, broker


def disk_full() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


async def end(world: QuorumWorld) -> None:
    world.log.depose()
    await world.coordinator.close()
    world.machine.close()


async def lives(world: QuorumWorld, broker: Broker) -> bool:
    """Whether retries, searches and maintenance work; if not, the file must be gone."""
    told: list[BaseException] = []
    try:
        world._open()
        world.machine.on_damage = told.append
        world.hosting.apply()
        world.elect()
        answer = results(await broker.commit(*ALL))
        assert all(row.is_duplicate for row in answer)
        assert await offset_for(world, -3) == (0, PRODUCERS - 3)
        await world.coordinator.run_maintenance()
        await broker.files()
        await end(world)
    except (sqlite3.Error, CoordinatorError) as error:
        told.append(error)
        world.log.depose()
        await world.coordinator.close()
        world.machine.store.close()
    if told:
        assert not world.machine.path.exists(), f"the next life meets the same: {told}"
    return not told


def test_a_restarted_coordinator_rebuilds_a_database_with_a_damaged_page(tmp_path: Path) -> None:
    async def story() -> None:
        world, broker = await filled(tmp_path)
        sound = world.machine.path.read_bytes()
        died = 0
        for page in range(PAGE, len(sound), PAGE):
            world.machine.path.write_bytes(sound[:page] + b"\xee" * PAGE + sound[page + PAGE :])
            if not await lives(world, broker):
                died += 1
                assert await lives(world, broker), f"the page at {page}"
        assert died >= 5, "tables, producers, runs: most of these pages are read"

    asyncio.run(story())


def test_a_coordinator_treats_a_database_row_that_cannot_be_decoded_as_damage(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        world, broker = await filled(tmp_path)
        connection = sqlite3.connect(world.machine.path, isolation_level=None)
        connection.execute("UPDATE producers SET row = x'c1' WHERE producer_id = 7")
        connection.close()
        assert not await lives(world, broker)
        assert await lives(world, broker)

    asyncio.run(story())


def checkpointed(world: QuorumWorld) -> bool:
    """Write a checkpoint by a child process; if that fails, the file must be gone."""
    told: list[BaseException] = []
    world._open()
    world.machine.on_damage = told.append
    world.machine._in_process = False
    frozen = world.machine.freeze()
    deadline = Deadline("the scan ends")
    failed: list[ScanFailedError] = []
    try:
        for value in frozen.values():
            if not value:
                time.sleep(deadline.pause_s())
    except ScanFailedError as error:
        failed.append(error)
    assert bool(told) == bool(failed), f"tried again for ever, and nobody hears of it: {failed}"
    assert world.machine.path.exists() != bool(failed), f"the next life meets the same: {failed}"
    frozen.close()
    world.machine.store.close()
    return not told


@pytest.mark.slow  # a child process writes the checkpoint
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE producers SET row = x'c1' WHERE producer_id = 7",
        "UPDATE producers SET row = x'01' WHERE producer_id = 7",
        "UPDATE answers SET row = x'9101'",
        "a page",
    ],
)
def test_a_node_rebuilds_its_state_after_a_checkpoint_finds_a_damaged_database(
    tmp_path: Path, damage: str
) -> None:
    """No earlier read meets that row; the node stops, and its next start recovers."""

    async def story() -> None:
        world, broker = await filled(tmp_path)
        assert checkpointed(world)
        path = world.machine.path
        connection = sqlite3.connect(path, isolation_level=None)
        if damage == "a page":
            (page,) = connection.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = 'producers'"
            ).fetchone()
            connection.close()
            sound = path.read_bytes()
            page = (page - 1) * PAGE
            path.write_bytes(sound[:page] + b"\xee" * PAGE + sound[page + PAGE :])
        else:
            connection.execute(damage)
            connection.close()
        assert not checkpointed(world)
        assert await lives(world, broker)
        assert world.machine.rebuilds == 1
        assert checkpointed(world)

    asyncio.run(story())


def test_a_coordinator_does_not_treat_a_full_disk_as_a_damaged_database(tmp_path: Path) -> None:
    """The file's content is right: it is kept, and nothing is rebuilt."""

    async def story() -> None:
        world, broker = await filled(tmp_path)
        world._open()
        world.elect()
        with patch.object(world.machine.store, "_write_tables", side_effect=disk_full()):
            world.machine.store.begin()
            with pytest.raises(sqlite3.OperationalError):
                world.machine.flush()
        world.log.depose()
        await world.coordinator.close()
        world.machine.close()
        assert await lives(world, broker)
        assert world.machine.rebuilds == 0

    asyncio.run(story())


def test_a_full_disk_during_a_database_read_stops_the_node_with_its_reason(tmp_path: Path) -> None:
    """A sweep writes what it is about to read. The state is then torn: who would go on with it?

    What is applied next has to say why it cannot be, too: those are a node's last words.
    """

    async def story() -> None:
        world, broker = await filled(tmp_path)
        world._open()
        told: list[BaseException] = []
        world.machine.on_damage = told.append
        world.hosting.apply()
        world.elect()
        world.machine.store.begin()
        with patch.object(world.machine.store, "_write_tables", side_effect=disk_full()):
            await world.coordinator.run_maintenance()
        assert {str(error) for error in told} == {"database or disk is full"}
        with pytest.raises(sqlite3.OperationalError, match="disk is full"):
            world.machine.store.begin()
        world.log.depose()
        await world.coordinator.close()
        world.machine.close()
        assert await lives(world, broker)

    asyncio.run(story())
