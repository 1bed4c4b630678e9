"""The embedded coordinator keeps the contract, over PySyncObj's own nodes on loopback.

Three nodes agree; beginning again closes the leader, waits for another one, and brings the first
back with an empty memory: what it answers then it has heard from the others.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest
from pysyncobj.encryptor import getEncryptor
from pysyncobj.monotonic import monotonic as library_time  # another clock than time.monotonic

from coordinator.batch.settings import CoordinatorSettings
from coordinator.embedded import EmbeddedCoordinator, EmbeddedSettings
from coordinator.errors import CoordinatorError
from tests.coordinator.batch.contract import Contract
from tests.coordinator.batch.subjects import SETTINGS, START_MS, MutableView, World
from tests.ports import free_ports
from tests.waiting import DEADLINE_S, wait_until_async

pytestmark = pytest.mark.slow

NODES = 3
NEVER_MS = 2**31 - 1

HEARTBEAT_S = 0.02
LIBRARY = {
    "autoTickPeriod": 0.005,
    "appendEntriesPeriod": HEARTBEAT_S,
    "connectionRetryTime": 0.05,
    "connectionTimeout": 120.0,
    "leaderFallbackTimeout": 120.0,  # followers may be busy with a large commit
}
"""The library's times, for nodes that share two cores with others."""

ELECT_S, KEEP_S = 0.3, 60.0
"""For how long a leader may be silent: while one is looked for, and while stories are told. An
elected one that is deposed for a stall of the machine would refuse what a story asks it."""

key_of = cache(getEncryptor)


class EmbeddedWorld:
    """Three nodes, one view, one clock."""

    def __init__(self, settings: CoordinatorSettings = SETTINGS) -> None:
        self.settings = settings
        self.view = MutableView()
        self.elapsed_ms = 0
        self.step_ms = 0
        self.leaderships = 0
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(NODES)]
        self.nodes: list[Any] = [None] * NODES
        self.asked = 0  # which node the stories talk to

    @property
    def coordinator(self) -> EmbeddedCoordinator:
        node: EmbeddedCoordinator = self.nodes[self.asked]
        return node

    async def open(self) -> EmbeddedWorld:
        self.nodes = [self._new(index, ELECT_S) for index in range(NODES)]
        await asyncio.gather(*(node.start() for node in self.nodes))
        self.asked = await self._leader()
        self._bear_silence(KEEP_S)
        await self.advance(0)
        return self

    def _bear_silence(self, silence_s: float) -> None:
        """Have followers tolerate a leader's silence for so long."""
        for node in self.nodes:
            library = node._node._SyncObj__conf
            library.raftMinTimeout, library.raftMaxTimeout = silence_s, 2 * silence_s

    def _new(self, index: int, silence_s: float) -> EmbeddedCoordinator:
        settings = EmbeddedSettings(
            self_address=self.addresses[index],
            other_addresses=tuple(a for a in self.addresses if a != self.addresses[index]),
            bind_address=self.addresses[index],
            password="secret",
            coordinator=self.settings,
            view=self.view,
            timeout_ms=int(DEADLINE_S * 1_000),
            sweep_interval_ms=NEVER_MS,
            library=LIBRARY | {"raftMinTimeout": silence_s, "raftMaxTimeout": 2 * silence_s},
        )
        return EmbeddedCoordinator(settings, self.now_ms)

    async def _leader(self) -> int:
        def leading() -> list[int]:
            return [at for at, node in enumerate(self.nodes) if node is not None and node.leads]

        return int((await wait_until_async(leading, "a node leads"))[0])

    def now_ms(self) -> int:
        return START_MS + self.elapsed_ms + self.step_ms

    def jump(self, ms: int) -> None:
        self.step_ms += ms

    def handed_out_ms(self, producer_id: int, ago_ms: int | None) -> None:
        self.view.handed_out[producer_id] = None if ago_ms is None else self.now_ms() - ago_ms

    async def advance(self, ms: int) -> None:
        """Run maintenance until it changes nothing more, as the leader does."""
        self.elapsed_ms += ms
        before: list[bytes] = []
        while before != (before := self.coordinator.checkpoint()):
            await self._sweep()

    async def _sweep(self) -> None:
        async def swept() -> bool:
            await self.coordinator.sweep(f"leader {self.leaderships}", self.elapsed_ms)
            return True

        await wait_until_async(swept, "a leader carries out a sweep", retry_on=(CoordinatorError,))

    async def restart(self) -> None:
        """Stop the leader, wait for another one, restart the first empty, and call that."""
        whole = self.coordinator.checkpoint()
        old = await self._leader()
        self._bear_silence(ELECT_S)
        others = [node._node for index, node in enumerate(self.nodes) if index != old]

        def all_heard_the_leader() -> bool:
            last = max(node._SyncObj__raftElectionDeadline for node in others)
            return bool(last <= library_time() + KEEP_S / 2)

        await wait_until_async(all_heard_the_leader, "a heartbeat has shortened every patience")
        await self.nodes[old].close()
        self.nodes[old] = None
        await self._leader()
        self.nodes[old] = self._new(old, KEEP_S)
        await self.nodes[old].start()
        self._bear_silence(KEEP_S)
        self.asked = old
        await wait_until_async(
            lambda: self.coordinator.checkpoint() == whole, "the new node has the whole state"
        )
        self.leaderships += 1
        await self._sweep()  # from here on the new leader counts

    async def checkpoint(self) -> list[bytes]:
        return self.coordinator.checkpoint()

    async def close(self) -> None:
        await asyncio.gather(*(node.close() for node in self.nodes if node is not None))


@pytest.fixture(autouse=True)
def one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes have one password: the key is made of it once, not two hundred times."""
    monkeypatch.setattr("pysyncobj.syncobj.getEncryptor", key_of)


class TestEmbedded(Contract):
    """See the contract."""

    async def open(self, settings: CoordinatorSettings) -> World:
        return await EmbeddedWorld(settings).open()
