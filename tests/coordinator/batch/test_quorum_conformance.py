"""The conformance table, run against the quorum's coordinator.

Source: docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.coordinator.batch.conformance import TABLE, run_table
from tests.coordinator.batch.quorum_world import QuorumWorld

pytestmark = pytest.mark.slow


def test_the_coordinator_on_a_raft_quorum_answers_as_the_conformance_table_says(
    tmp_path: Path,
) -> None:
    async def run() -> list[str]:
        world = QuorumWorld(tmp_path)
        failures = [str(failure) for failure in await run_table(TABLE, world)]
        await world.close()
        return failures

    assert asyncio.run(run()) == []


def test_the_coordinator_on_a_raft_quorum_answers_as_the_conformance_table_says_across_restarts(
    tmp_path: Path,
) -> None:
    """Restarts on the same database, on an empty one, and from a checkpoint, in turn."""

    async def run() -> list[str]:
        failures = []
        for number, row in enumerate(TABLE):
            directory = tmp_path / str(number)
            directory.mkdir()
            world = QuorumWorld(directory)
            failures += [str(found) for found in await run_table([row], world, restarts=True)]
            await world.close()
        return failures

    assert asyncio.run(run()) == []
