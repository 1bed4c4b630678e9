"""Coordinators under test, with the world around them: clocks, a cluster view, restarts."""

from __future__ import annotations

from typing import Final, Protocol
from uuid import UUID

from coordinator.batch.cluster_view import TopicConfig, last_id_before
from coordinator.batch.memory import InMemoryCoordinator, InMemoryState
from coordinator.batch.settings import CoordinatorSettings
from coordinator.features import Features
from coordinator.persistent_map import Map
from records.features import ESKER_VERSION
from records.object_keys import ObjectKeys
from tests.coordinator.batch.conformance import Subject

START_MS: Final = 1_700_000_000_000
KEYS: Final = ObjectKeys(prefix="esker", cluster_id="testcluster", coordinator_partition=0)
SETTINGS: Final = CoordinatorSettings(keys=KEYS)


class MutableView:
    """A cluster view that a test writes."""

    def __init__(self) -> None:
        self.configs: dict[UUID, TopicConfig] = {}
        self.epochs: dict[int, int] = {}  # empty: there is no controller
        self.committed_controller_epoch: int | None = None
        self.handed_out: dict[int, int | None] = {}
        self.finalized = Features()  # no new formats

    def features(self) -> Features:
        return self.finalized

    def raise_level(self, level: int) -> None:
        """The cluster finalizes a level of esker.version."""
        self.finalized = Features(Map[str, int]().set(ESKER_VERSION, level))

    def topic_config(self, topic_id: UUID) -> TopicConfig | None:
        return self.configs.get(topic_id, TopicConfig(retention_ms=None))

    def broker_epoch(self, broker_id: int) -> int | None:
        return self.epochs.get(broker_id, -1 if self.epochs else None)

    def controller_epoch(self) -> int | None:
        return self.committed_controller_epoch

    def producer_id_handed_out_ms(self, producer_id: int) -> int | None:
        return self.handed_out.get(producer_id, 2**62)

    def last_producer_id_before(self, time_ms: int) -> int:
        return last_id_before(self.handed_out, time_ms)


class World(Subject, Protocol):
    """A subject with what the contract needs besides; `settings` are SETTINGS or stricter."""

    @property
    def settings(self) -> CoordinatorSettings: ...

    @property
    def view(self) -> MutableView: ...

    def now_ms(self) -> int:
        """The leader's wall clock."""

    def jump(self, ms: int) -> None:
        """The wall clock steps: forwards or, negative, back. The next leader's begins there."""

    async def checkpoint(self) -> list[bytes]:
        """The values of a checkpoint of all that is committed."""

    async def close(self) -> None: ...


class MemoryWorld:
    """The in-memory coordinator; a restart loads its checkpoint."""

    def __init__(self, settings: CoordinatorSettings = SETTINGS) -> None:
        self.settings = settings
        self.view = MutableView()
        self.elapsed_ms = 0  # what a monotonic clock has counted
        self.step_ms = 0  # how far the wall clock was stepped
        self.coordinator = self._new(InMemoryState())

    def _new(self, state: InMemoryState) -> InMemoryCoordinator:
        since_ms, elapsed_ms = self.now_ms(), self.elapsed_ms
        return InMemoryCoordinator(
            self.settings,
            self.view,
            self.now_ms,
            lambda: since_ms + self.elapsed_ms - elapsed_ms,
            state,
        )

    def now_ms(self) -> int:
        return START_MS + self.elapsed_ms + self.step_ms

    def jump(self, ms: int) -> None:
        self.step_ms += ms

    def handed_out_ms(self, producer_id: int, ago_ms: int | None) -> None:
        self.view.handed_out[producer_id] = None if ago_ms is None else self.now_ms() - ago_ms

    async def advance(self, ms: int) -> None:
        self.elapsed_ms += ms
        before = -1
        while before != self.coordinator.state.applied_offset:
            before = self.coordinator.state.applied_offset
            self.coordinator.run_maintenance()
            self.coordinator.state.check_invariants()

    async def restart(self) -> None:
        state = self.coordinator.state
        loaded = InMemoryState.load(state.checkpoint(), state.applied_offset)
        assert loaded.checkpoint() == state.checkpoint()
        assert vars(loaded) == vars(state)  # invariant 4: nothing that matters is left out
        loaded.check_invariants()
        self.coordinator = self._new(loaded)

    async def checkpoint(self) -> list[bytes]:
        return self.coordinator.state.checkpoint()

    async def close(self) -> None:
        await self.coordinator.close()
