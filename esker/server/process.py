"""Runs a node's process from its settings to a clean end.

The node's logs come first and go last; a broker lives on them. Whatever is fatal to either ends the
process at once: what was promised is on a majority's disks or in the store, and a broker that comes
again has nothing to repair.

Source: docs/design/quorum.md#durability-barriers, docs/design/running.md#commands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from diskless.broker import Broker, BrokerSettings, ClientListener
from diskless.stores import ObjectStorage
from diskless.stores.opening import open_store
from esker.server.controller_quotas import throttle_clients
from esker.server.freed_memory import keep_freed_memory
from esker.server.node import NodeParts
from esker.server.own_settings import own_settings
from esker.server.security import (
    access_settings,
    listener_security,
    node_outgoing_security,
)
from esker.server.security_metrics import security_metrics
from esker.settings.addresses import BROKER
from esker.settings.config import NodeSettings
from raft.driver.node import Node, tune_interpreter
from raft.interfaces import Degradation
from raft.net.security import outgoing
from records.types import ZERO_UUID
from records.uuids import random_uuid

log = logging.getLogger("esker")

READY: Final = "ready"  # reported once clients are sent to this broker
METRICS_AT: Final = "metrics "  # reported with the port of the process's metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """What a broker has of its supervisor (`esker.server.supervisor`), if it has one."""

    sockets: Mapping[str, tuple[socket.socket, ...]]  # by listener: bootstrap ports, to accept from
    report: Callable[[str], None]  # tells the supervisor one line


ALONE: Final = Supervision(sockets={}, report=lambda _: None)
"""Of a node without a supervisor."""


async def run_until_signalled(settings: NodeSettings, supervision: Supervision = ALONE) -> None:
    """Run a node until SIGTERM or SIGINT, then hand over leadership and close.

    Raises:  ConfigError for a key or certificate; esker.server.storage.StorageError for the
    directory; NodeError, RecordError and
    OSError of the
             logs; NotStartedError of the broker; StoreSettingError for the object store; whatever
             ended it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_node(settings, stop, supervision)


async def run_node(
    settings: NodeSettings, stop: asyncio.Event, supervision: Supervision = ALONE
) -> None:
    """Run a node until `stop` is set. Raises the errors of `run_until_signalled`."""
    with outgoing(node_outgoing_security(settings)):
        await _run_node(settings, stop, supervision)


async def _run_node(settings: NodeSettings, stop: asyncio.Event, supervision: Supervision) -> None:
    store = None
    if BROKER in settings.roles:
        keep_freed_memory(os.environ)
        store = open_store(settings.values)
    parts = NodeParts(settings)
    node = Node(parts.config)
    await node.start()
    if parts.controllers is not None:
        throttle_clients(parts.controllers, node.routes, settings.values)
    tune_interpreter()
    if node.metrics_port is not None:
        supervision.report(f"{METRICS_AT}{node.metrics_port}")
    if node.listener.port:
        listeners = {settings.addresses.controller_name: node.listener, **node.further_listeners}
        parts.collectors.append(lambda: security_metrics(listeners))
    if store is not None:
        await _run_broker(settings, parts, node, store, stop, supervision)
    else:
        await _until(stop.wait(), node.failed)
    await node.stop()


async def _run_broker(
    settings: NodeSettings,
    parts: NodeParts,
    node: Node,
    store: ObjectStorage,
    stop: asyncio.Event,
    supervision: Supervision,
) -> None:
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stopping = asyncio.ensure_future(stop.wait())
    try:
        broker = make_broker(settings, parts, store, lost, node.health.faults, supervision.sockets)
        parts.collectors.append(broker.metrics)
        parts.collectors.append(lambda: security_metrics(broker.listeners))
        parts.degradations.append(broker.degradations)
        try:
            if await _until(broker.start(), node.failed, lost, stopping):
                place = ",".join(f"{at.host}:{at.port}" for at in broker.advertised_listeners())
                announce(f"Broker {settings.node_id} is ready at {place}")
                supervision.report(READY)
                await _until(stop.wait(), node.failed, lost)
        finally:
            if not _is_hopeless(node):
                await broker.stop()
    except BaseException:
        if not _is_hopeless(node):
            await node.stop()
        raise
    finally:
        stopping.cancel()
        await parts.cluster.close()


def announce(line: str) -> None:
    """Print one line on the node's standard output.

    A closed pipe, or a full disk below a file of output, does not end the node: it is logged once,
    and later output is discarded.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        log.warning("stdout=lost reason=%r said=%r", error.strerror, line)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is buffered is tried again at the end
        os.close(nowhere)


def _is_hopeless(node: Node) -> bool:
    """Return whether a failed disk, a broken invariant or a cancellation prevents a hand-over."""
    task = asyncio.current_task()
    return node.failed.done() or (task is not None and task.cancelling() > 0)


async def _until(work: Coroutine[Any, Any, Any], *ends: asyncio.Future[Any]) -> bool:
    """Wait for `work`; if a future in `ends` finishes first, cancel the work and return False.

    Raises what either raises.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait((task, *ends), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for end in ends:
            if end.done():
                end.result()
        return False
    task.result()
    return True


def make_broker(
    settings: NodeSettings,
    parts: NodeParts,
    store: ObjectStorage,
    lost: asyncio.Future[None],
    node_faults: Callable[[], Iterable[Degradation]] = tuple,
    sockets: Mapping[str, tuple[socket.socket, ...]] = ALONE.sockets,
) -> Broker:
    """Build the broker of a started node.

    Args:    store: closed by the broker. lost: gets what keeps it from being a member ever again.
             node_faults: gives the faults of the node's own disks and logs.
             sockets: by listener, sockets that listen already.
    """

    def on_lost(error: Exception) -> None:
        if not lost.done():
            lost.set_exception(error)

    return Broker(
        BrokerSettings(
            incarnation_id=random_uuid(),
            directory_id=parts.meta.directory_id or ZERO_UUID,
            listeners=tuple(
                ClientListener(
                    name=place.name,
                    bind_host=place.bind.host,
                    bind_port=place.bind.port,
                    advertised_host=place.advertised.host,
                    advertised_port=place.advertised.port,
                    protocol=place.protocol,
                    security=listener_security(settings, place.name, parts.find_credential),
                    inherited=sockets.get(place.name, ()),
                )
                for place in settings.addresses.clients
            ),
            values=settings.values,
            own=own_settings(settings.given),
            limits=parts.limits,
            access=access_settings(settings),
        ),
        parts.cluster,
        store,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        random=Random(),
        on_lost=on_lost,
        node_faults=node_faults,
        logs=parts.cluster.backup_logs,
    )
