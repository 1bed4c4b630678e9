"""The quorum's coordinator keeps the contract."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from coordinator.batch.settings import CoordinatorSettings
from tests.coordinator.batch.contract import Contract
from tests.coordinator.batch.contract_clocks import StartStories
from tests.coordinator.batch.contract_commits import LevelStories
from tests.coordinator.batch.contract_rewriting import RewritingStories
from tests.coordinator.batch.contract_transactions import TransactionStories
from tests.coordinator.batch.quorum_world import QuorumWorld
from tests.coordinator.batch.subjects import World

pytestmark = pytest.mark.slow


class TestQuorum(Contract, RewritingStories, TransactionStories, StartStories, LevelStories):
    """See the contract. Restarts are of every kind in turn."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    async def open(self, settings: CoordinatorSettings) -> World:
        return QuorumWorld(Path(tempfile.mkdtemp(dir=self.directory)), settings)
