"""The in-memory coordinator keeps the contract at the other end of a socket: service and client."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.batch.settings import CoordinatorSettings
from tests.coordinator.batch.contract import Contract
from tests.coordinator.batch.contract_rewriting import RewritingStories
from tests.coordinator.batch.contract_transactions import TransactionStories
from tests.coordinator.batch.served import Node
from tests.coordinator.batch.subjects import MemoryWorld, World

pytestmark = pytest.mark.slow


class SocketWorld(MemoryWorld):
    """A world whose calls go through a client; time and checkpoints stay with the server."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        super().__init__(settings)
        self.behind: Any = self.coordinator

    async def open(self) -> SocketWorld:
        """Serve the coordinator, and put a client in its place."""
        self.node = await Node(self.behind).start()
        self.client = CoordinatorClient(
            [self.node.address],
            settings=ClientSettings(timeout_ms=60_000, retry_ms=1, retry_max_ms=5),
        )
        self.coordinator: Any = self.client
        return self

    async def _leave(self) -> None:
        await self.client.close()
        await self.node.stop()

    async def advance(self, ms: int) -> None:
        self.coordinator = self.behind
        await super().advance(ms)
        self.coordinator = self.client

    async def restart(self) -> None:
        await self._leave()
        self.coordinator = self.behind
        await super().restart()
        self.behind = self.coordinator
        await self.open()

    async def checkpoint(self) -> list[bytes]:
        values: list[bytes] = self.behind.state.checkpoint()
        return values

    async def close(self) -> None:
        await self._leave()
        await self.behind.close()


class TestBySocket(Contract, RewritingStories, TransactionStories):
    """See the contract."""

    async def open(self, settings: CoordinatorSettings) -> World:
        return await SocketWorld(settings).open()
