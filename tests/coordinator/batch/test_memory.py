"""The in-memory coordinator keeps the contract, and its state survives a checkpoint."""

from __future__ import annotations

from coordinator.batch.settings import CoordinatorSettings
from tests.coordinator.batch.contract import Contract
from tests.coordinator.batch.contract_clocks import StartStories
from tests.coordinator.batch.contract_commits import LevelStories
from tests.coordinator.batch.contract_rewriting import RewritingStories
from tests.coordinator.batch.contract_transactions import TransactionStories
from tests.coordinator.batch.subjects import MemoryWorld, World


class TestMemory(Contract, RewritingStories, TransactionStories, StartStories, LevelStories):
    """See the contract."""

    async def open(self, settings: CoordinatorSettings) -> World:
        return MemoryWorld(settings)
