"""Orphans and missing objects among merged objects: each planted one is found.

Source: docs/orphans.md, docs/design/compaction.md#failure-cases.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from records.rpc.rewriting import ReplaceRunsRequest
from spark_jobs.orphans.dangling import find_dangling
from spark_jobs.orphans.known_objects import Kind, known_objects_at
from spark_jobs.orphans.listing import take_listing
from tests.coordinator.batch.subjects import KEYS, SETTINGS
from tests.spark_jobs.merge_world import MergeWorld
from tests.spark_jobs.orphans_world import NAMING
from tests.spark_jobs.test_merge import PLACES, applied, fill, planned

MERGED = 1_000
"""Id of the first merged object."""


def kinds(world: MergeWorld, *object_ids: int) -> list[Kind]:
    log = world.log("__diskless-metadata-0")
    known = known_objects_at(log, log.end_offset(), coordinator=0)
    return [Kind(kind) for kind in known.classify(np.array(object_ids)).tolist()]


def test_an_object_of_a_killed_merge_plan_becomes_an_orphan_when_its_lease_ends(
    tmp_path: Path,
) -> None:
    class Killed(BaseException):
        pass

    async def story() -> None:
        world = MergeWorld(tmp_path)
        await world.begin()
        await fill(world)
        plan = planned(world)

        class Dying:
            async def call(self, request: Any) -> Any:
                if isinstance(request, ReplaceRunsRequest) or getattr(request, "releases", False):
                    raise Killed
                return await world.world.coordinator.call(request)

        with pytest.raises(Killed):
            await applied(world, plan, coordinator=lambda _: Dying())
        assert (world.directory / KEYS.key(MERGED)).exists()
        assert kinds(world, MERGED) == [Kind.LEASED]
        assert (await applied(world, plan)).old_runs == 80
        assert kinds(world, MERGED, MERGED + 1) == [Kind.LEASED, Kind.LIVE]
        await world.world.advance(SETTINGS.lease_timeout_ms + 1)
        assert kinds(world, MERGED, MERGED + 1) == [Kind.OF_LEASE, Kind.LIVE]
        await world.world.advance(SETTINGS.file_delete_delay_ms)
        files = await world.broker.files(10_000)
        assert MERGED in files
        assert MERGED + 1 not in files
        assert set(range(20)) <= set(files)  # the sources

    asyncio.run(story())


def test_the_orphans_command_reports_a_missing_merged_object_but_no_missing_source_as_lost(
    tmp_path: Path,
) -> None:
    async def story() -> MergeWorld:
        world = MergeWorld(tmp_path)
        await world.begin()
        await fill(world)
        await applied(world, planned(world))
        await world.world.advance(SETTINGS.file_delete_delay_ms)
        await world.world.advance(SETTINGS.file_delete_delay_ms)
        files = await world.broker.files()
        assert set(range(20)) <= set(files)
        for object_id in files:  # the ids that the plan did not use are in no file
            (world.directory / KEYS.key(object_id)).unlink(missing_ok=True)
        await world.broker.deleted(*files)
        await world.broker.acquire()
        await fill(world, 1)
        return world

    world = asyncio.run(story())
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def look() -> Any:
        for old in scratch.iterdir():
            old.unlink()
        listing = partial(take_listing, world.store, NAMING, scratch, lambda: 0)
        return find_dangling(world, world.store, NAMING, listing)

    assert look().lost == []
    (world.directory / KEYS.key(MERGED)).unlink()
    found = look()
    assert [item.key for item in found.lost] == [KEYS.key(MERGED)]
    assert [item.ranges for item in found.affected] == [[(0, 59)]] * len(PLACES)
