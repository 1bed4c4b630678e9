"""From a node's settings and its formatted directory to a running node of the quorum."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from coordinator.controller.decide import Limits as DecisionLimits
from coordinator.controller.leader import ControllerConfig as Deciding
from coordinator.groups.settings import LogSettings
from esker.config import ControllerConfig
from esker.config import Endpoint as Address
from esker.controllers import ControllerParts, ControllerSettings
from esker.coordinators import CoordinatorRoom
from esker.groups import GroupRoom
from esker.keeping import SnapshotKeeping
from esker.rooms import BenchState, joined
from esker.storage import open_storage
from raft.core.config import QuorumConfig
from raft.core.voters import Endpoint, ReplicaKey, Voter
from raft.driver.config import NodeConfig
from raft.driver.node import run_node
from raft.net import Limits
from raft.segments.log import LogConfig
from records.schema import MetadataRecord
from records.types import ZERO_UUID

TICK_MS: Final = 100
"""How often the active controller looks at its sessions and at an idle log."""


def node_config(config: ControllerConfig) -> NodeConfig:
    """What the driver must be told, from the settings and from the log directory.

    The directory ids of other voters stay unknown: kraft.version 0 has static voters by id.

    Raises:  as `esker.storage.open_storage`.
    """
    meta, bootstrap = open_storage(config)
    directory_id = meta.directory_id or ZERO_UUID

    controllers = ControllerParts(controller_settings(config, meta.cluster_id, bootstrap))

    def endpoint(address: Address) -> Endpoint:
        return Endpoint(config.listener_name, address.host, address.port)

    return NodeConfig(
        node_id=config.node_id,
        cluster_id=meta.cluster_id,
        directory_id=directory_id,
        log_dir=config.log_dir,
        voters=tuple(
            Voter(
                key=ReplicaKey(node, directory_id if node == config.node_id else ZERO_UUID),
                endpoints=(endpoint(address),),
            )
            for node, address in sorted(config.voters.items())
        ),
        bind_host=config.bind.host,
        bind_port=config.bind.port,
        advertised=endpoint(config.advertised),
        quorum=QuorumConfig(
            election_timeout_ms=config.election_timeout_ms,
            fetch_timeout_ms=config.fetch_timeout_ms,
            election_backoff_max_ms=config.election_backoff_max_ms,
            request_timeout_ms=config.request_timeout_ms,
            retry_backoff_ms=config.retry_backoff_ms,
        ),
        log=LogConfig(segment_bytes=config.segment_bytes, segment_ms=config.segment_ms),
        limits=Limits(
            max_frame_bytes=config.request_max_bytes, idle_ms=config.connections_max_idle_ms
        ),
        bootstrap=bootstrap,
        keeping=SnapshotKeeping(
            node_id=config.node_id, snapshots=config.snapshots, log_starts=config.log_start
        ),
        room=joined(
            lambda host: BenchState(host, config.bench_log_state),
            lambda host: CoordinatorRoom(
                host, config.coordinators, controllers.view, voters=len(config.voters)
            ),
            controllers.room,
            lambda host: GroupRoom(host, LogSettings.of(config.values), controllers.listen),
        ),
        cluster=controllers.cluster,
        metrics=controllers.metrics,
        bench_log=config.bench_log,
        max_idle_interval_ms=config.max_idle_interval_ms,
        metrics_host=config.metrics.host if config.metrics else None,
        metrics_port=config.metrics.port if config.metrics else 0,
    )


def controller_settings(
    config: ControllerConfig, cluster_id: str, bootstrap: tuple[MetadataRecord, ...]
) -> ControllerSettings:
    """What the node's controller must be told."""
    endpoints = {int(node): (place.host, place.port) for node, place in config.voters.items()}
    return ControllerSettings(
        controller=Deciding(
            cluster_id=cluster_id,
            session_timeout_ms=config.session_timeout_ms,
            max_idle_interval_ms=config.max_idle_interval_ms,
            tick_interval_ms=TICK_MS,
            bootstrap=bootstrap,
            limits=DecisionLimits(
                default_partitions=config.default_partitions,
                default_replication_factor=config.default_replication_factor,
            ),
        ),
        endpoints=endpoints,
        listener_name=config.listener_name,
        bench_log=config.bench_log,
    )


async def run_until_signalled(config: NodeConfig) -> None:
    """Run the node until SIGTERM or SIGINT, then hand over and close. Raises what ended it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_node(config, stop)
