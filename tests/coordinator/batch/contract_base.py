"""How a story of the contract is told: in a world of its own.

Source: docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from coordinator.batch.settings import CoordinatorSettings
from tests.coordinator.batch.subjects import SETTINGS, World

Story = Callable[[World], Awaitable[None]]

DELAY_MS = SETTINGS.file_delete_delay_ms
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Told:
    """The base of the stories; a subclass opens a world."""

    async def open(self, settings: CoordinatorSettings) -> World:
        """A fresh coordinator and its world, on the running loop."""
        raise NotImplementedError

    def tell(self, story: Story, settings: CoordinatorSettings = SETTINGS) -> None:
        """Run a story in a world of its own."""

        async def told() -> None:
            world = await self.open(settings)
            try:
                await story(world)
            finally:
                await world.close()

        asyncio.run(told())
