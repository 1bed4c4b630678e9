"""A finding that reaches the log behind a commit of its object leaves the object alone.

The leader judges by what is applied; what is appended and not applied yet is applied before the
finding, which is then too late.

Source: docs/design/batch-coordinator.md#object-leases; invariant 7 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from records.diskless import OrphansFoundRecord
from tests.coordinator.batch.actors import Broker, create
from tests.coordinator.batch.quorum_world import QuorumWorld
from tests.coordinator.batch.subjects import MemoryWorld


@pytest.mark.parametrize("kind", ["memory", "database"])
def test_applying_an_orphan_record_that_names_a_committed_object_changes_no_state(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        world = MemoryWorld() if kind == "memory" else QuorumWorld(tmp_path)
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        await broker.commit()
        before = await world.checkpoint()
        late = OrphansFoundRecord(object_ids=(broker.first,), marked_at_ms=world.now_ms())
        if isinstance(world, QuorumWorld):
            count = world.machine.store.object_count
            world.machine.store.apply(late)
            assert world.machine.store.object_count == count
            assert world.values() == before
        else:
            world.coordinator.state.apply(world.coordinator.state.applied_offset, late)
            assert await world.checkpoint() == before
        await world.close()

    asyncio.run(story())
