"""A damaged page is met sooner or later: then the file goes, and the state comes back.

Every page of the database in turn is overwritten. A life either says what is right, since it never
read that page, or it ends and has deleted the file; and the next life has rebuilt the state from
the log and is well. No life goes on with half a state.

Source: DESIGN §7 (a cache of the log); coordinator.sqlite.machine.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from coordinator.interface import CoordinatorError
from tests.coordinator.actors import Broker, batch, create, offset_for, results
from tests.coordinator.quorum_world import QuorumWorld

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


async def end(world: QuorumWorld) -> None:
    world.log.depose()
    await world.coordinator.close()
    world.machine.close()


async def lives(world: QuorumWorld, broker: Broker) -> bool:
    """Are retries, searches and sweeps well? False: no, this life is over and its file gone."""
    told: list[BaseException] = []
    try:
        world._open()
        world.machine.on_damage = told.append
        world.hosting.apply()
        world.elect()
        answer = results(await broker.commit(*ALL))
        assert all(row.is_duplicate for row in answer)
        assert await offset_for(world, -3) == (0, PRODUCERS - 3)
        await world.coordinator.sweep()
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


def test_whichever_page_is_damaged_the_next_life_is_well(tmp_path: Path) -> None:
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


def test_a_row_that_makes_no_sense_is_damage(tmp_path: Path) -> None:
    async def story() -> None:
        world, broker = await filled(tmp_path)
        connection = sqlite3.connect(world.machine.path, isolation_level=None)
        connection.execute("UPDATE producers SET row = x'c1' WHERE producer_id = 7")
        connection.close()
        assert not await lives(world, broker)
        assert await lives(world, broker)

    asyncio.run(story())


def test_a_full_disk_is_not_damage(tmp_path: Path) -> None:
    """What is in the file is right: it is kept, and nothing is rebuilt."""

    async def story() -> None:
        world, broker = await filled(tmp_path)
        world._open()
        world.elect()
        full = sqlite3.OperationalError("database or disk is full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL
        with patch.object(world.machine.store, "_write_tables", side_effect=full):
            world.machine.store.begin()
            with pytest.raises(sqlite3.OperationalError):
                world.machine.flush()
        world.log.depose()
        await world.coordinator.close()
        world.machine.close()
        assert await lives(world, broker)
        assert world.machine.rebuilds == 0

    asyncio.run(story())
