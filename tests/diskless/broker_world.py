"""A whole broker, in this process, on a loopback port: real sockets, a cluster in memory.

    async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
        port = broker.listeners["PLAIN"].port

On an ordinary loop, since sockets wait for real time; nothing else here does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from coordinator.controller.access import AccessSettings
from diskless.broker import Broker, BrokerSettings, ClientListener
from diskless.stores import ObjectStorage
from diskless.stores.memory import MemoryStore
from esker.settings import SETTINGS
from raft.net import Limits, connect
from raft.net.header import RequestKind
from raft.net.routes import first_flexible
from raft.net.security import ListenerSecurity
from records.codec import decode_message, encode_message
from records.rpc.base import Request, Response
from tests.diskless.cluster_world import ClusterWorld
from tests.waiting import DEADLINE_S

R = TypeVar("R", bound=Response)

QUICK = {"diskless.append.commit.interval.ms": 1}


@asynccontextmanager
async def running_broker(
    world: ClusterWorld,
    broker_id: int = 1,
    *,
    limits: Limits | None = None,
    ahead_ms: int = 0,
    store: ObjectStorage | None = None,
    access: AccessSettings | None = None,
    security: ListenerSecurity | None = None,
    **values: Any,
) -> AsyncIterator[Broker]:
    """Run a broker that is unfenced and leaves the cluster at the end.

    Args:  store: other than one in memory.
           access: settings of the authorizer. security: of the listener.
           values: settings other than their defaults, with _ for dots.
    """
    known = {key: setting.default for key, setting in SETTINGS.items()} | QUICK
    named = {name.replace("_", "."): value for name, value in values.items()}
    assert set(named) <= set(known), f"no such settings: {set(named) - set(known)}"
    settings = BrokerSettings(
        incarnation_id=UUID(int=9_000 + broker_id),
        directory_id=UUID(int=9_500 + broker_id),
        listeners=(
            ClientListener(
                name="PLAIN",
                bind_host="127.0.0.1",
                bind_port=0,
                advertised_host="127.0.0.1",
                advertised_port=0,
                security=security,
            ),
        ),
        values=known | named,
        limits=limits or Limits(),
        access=access,
    )
    lost: list[Exception] = []
    broker = Broker(
        settings,
        world.cluster(broker_id),
        store or MemoryStore(world.wall_ms),
        wall_ms=lambda: world.wall_ms() + ahead_ms,
        random=Random(broker_id),
        on_lost=lost.append,
    )
    async with asyncio.timeout(DEADLINE_S):
        await broker.start()
    try:
        yield broker
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await broker.stop()
    assert not lost, lost


async def ask_at(port: int, request: Request, response: type[R], version: int, **more: Any) -> R:
    """Send one request over a new connection and return the response."""
    key = request.schema().key
    assert key is not None
    kind = RequestKind.of(key, version, first_flexible(key))
    connection = await connect("127.0.0.1", port, **more)
    try:
        answer = await connection.request(kind, encode_message(request, version), timeout_ms=60_000)
        return decode_message(response, answer, version)
    finally:
        connection.close()
