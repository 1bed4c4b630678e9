"""A node of the quorum: its groups, its listener, its start and its stop.

Start: lock the log directory, check that it is this node's, open every group that it lists (a
listed group without directory is a lost disk, and the node refuses to start), listen, and start the
groups. Groups that the cluster log names later are started when their records are committed.

Stop: every group hands its leadership over, flushes and closes; then the listener is closed and the
lock released.

A fatal error (a failed flush, a full disk, a broken invariant) ends the node at once, without
handing over: its promises are on disk already, and nothing else may be written.

Source: docs/design/quorum.md#groups-come-from-the-cluster-log, docs/design/quorum.md#lost-disks,
docs/design/running.md#nodes-and-settings.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from raft.core.voters import Endpoint
from raft.driver.applying import Applier
from raft.driver.assembly import assemble_group
from raft.driver.bench_log import BenchLog
from raft.driver.config import METADATA_GROUP, NodeConfig
from raft.driver.controller_listener import ControllerService
from raft.driver.directory_watch import DirectoryWatch
from raft.driver.disk_thread import DiskThread
from raft.driver.errors import NotFormattedError
from raft.driver.group import GroupDriver
from raft.driver.group_directory import ClusterLogLeader, Directory
from raft.driver.health import HealthMonitor
from raft.driver.high_watermarks import HighWatermarks
from raft.driver.lost_records import LostRecords
from raft.driver.metrics import MetricsServer
from raft.driver.node_services import ClusterEvents, ClusterState, NodeService, StateListener
from raft.driver.peers import DialSettings
from raft.driver.registry import DirectoryLock, Registry
from raft.driver.snapshot_admin import SnapshotAdmin
from raft.driver.snapshot_hosting import HostedMachine
from raft.driver.storage import Storage
from raft.interfaces import ReplicatedLog, StateMachine
from raft.net import Arena, Listener
from raft.net.authentication import announced
from raft.net.routes import Routes
from raft.segments.files import FileSystem, RealFileSystem
from raft.segments.properties import read_meta_properties
from raft.wire.responses import Group, GroupRef
from records.features import ESKER_VERSION
from records.internal_topics import BENCH_LOG
from records.types import NodeId, Offset

log = logging.getLogger("raft.driver")

SWITCH_INTERVAL_S = 0.0005
"""The longest that a finished disk thread waits for the interpreter (Python's default: 5 ms)."""

FLOORS_LEVEL = 2
"""The level of `esker.version` from which on files may have what Esker 0.1 cannot read."""

GC_THRESHOLDS = (5_000, 10, 400)
"""New containers before a collection, and collections before a deeper one (default: 700, 10, 10).
Survivors are traversed once more at 50,000: 3 ms of the loop, where 400,000 took 35."""


class Node:
    """One process of the quorum. Made on a running loop; `start`, then `stop`."""

    def __init__(self, config: NodeConfig, files: FileSystem | None = None) -> None:
        self.config = config
        self.cluster_id = config.cluster_id
        self.node_id = config.node_id
        self.directory_id = config.directory_id
        self.voters = config.voter_set
        self.groups: dict[Group, GroupDriver] = {}
        self.hosted: dict[Group, HostedMachine] = {}  # state machines, by group
        self.directory: ClusterState | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._files = files or RealFileSystem()
        self._opening: set[Group] = set()
        self._removed_below: Offset | None = None  # once applied, see which groups were removed
        self._by_ref: dict[GroupRef, GroupDriver] = {}
        self._lock: DirectoryLock | None = None
        self._registry: Registry | None = None
        self._bench: BenchLog | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._rejoin_until: Offset | None = None
        self._floors_allowed = False  # in recovery points that Esker 0.1 has made
        self._service = ControllerService(
            self, serves_produce=config.bench_log, refuse=config.refuse
        )
        self.listener = Listener(
            self._service.handle,
            name="controller",
            limits=config.limits,
            on_close=self._service.closed,
            security=config.security,
        )
        self.further_listeners = {
            further.name: Listener(
                self._service.handle,
                name=further.name,
                limits=config.limits,
                on_close=self._service.closed,
                security=further.security,
            )
            for further in config.further_listeners
        }
        if any(listener.gate is not None for listener in self.listeners):
            self._service.serve_also(announced(), large=False)
        self._dial_settings = DialSettings(
            client_id=f"raft-client-{config.node_id}",
            arena=Arena(),
            own_endpoints=(config.advertised,) if config.advertised is not None else (),
            on_bad_answer=self._on_bad_answer,
        )
        self.health = HealthMonitor(self)
        self._high_watermarks = HighWatermarks(self._files, config.log_dir)
        self._node_service: NodeService | None = (
            config.node_service(self) if config.node_service is not None else None
        )
        self._service.serve_also(SnapshotAdmin(self).handlers, large=False)
        lost_records = LostRecords(self)
        self._service.serve_also(lost_records.handlers, large=False)
        self.health.watches.append(lost_records.degradations)
        if self._node_service is not None:
            self._service.serve_also(self._node_service.handlers, large=True)
        self._metrics: MetricsServer | None = None
        self._directory_watch: DirectoryWatch | None = None

    @property
    def routes(self) -> Routes:
        """Return the table of the controller listeners' requests."""
        return self._service.routes

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Return all controller listeners of this node, the first one first."""
        return self.listener, *self.further_listeners.values()

    # --- start and stop -----------------------------------------------------------------------

    async def start(self) -> None:
        """Open all groups listed on the disk, listen for connections, and start the groups.

        Raises:  NodeError (lost disk, not formatted, directory in use); CorruptLogError and
                 CorruptFileError of `raft.segments`; OSError (the port, the disk).
        """
        config = self.config
        self._check_formatted()
        self._lock = DirectoryLock(config.log_dir)
        try:
            self._registry = Registry(self._files, config.log_dir)
            self._directory_watch = DirectoryWatch(
                config.log_dir, self._group_directories, self.fail
            )
            listed = (METADATA_GROUP, *self._registry.groups.values())
            self._opening = {group for group in listed if self._is_served(group)}
            for group in listed:
                if group in self._opening:
                    await self._open(group)
            if config.bind_host is not None:
                await self.listener.start(config.bind_host, config.bind_port)
            for further in config.further_listeners:
                await self.further_listeners[further.name].start(further.host, further.port)
            if config.metrics_host is not None:
                self._metrics = MetricsServer(self, config.metrics)
                await self._metrics.start(config.metrics_host, config.metrics_port)
        except BaseException:
            for driver in self.groups.values():
                await driver.disk.close()
            await self._close_all()
            raise
        log.info(
            "node=%d listening=%s log_dir=%s groups=%d",
            self.node_id, self._bound_address(), config.log_dir, len(self.groups),
        )  # fmt: skip
        for driver in self.groups.values():
            driver.start()
        if self.directory is not None:
            self._on_applied(self.directory.applied_offset)
        self.health.start()
        self._directory_watch.start()
        self._high_watermarks.start(self.groups.values())

    @property
    def metrics_port(self) -> int | None:
        """Return the port that serves the metrics and health of this node, or None."""
        return None if self._metrics is None else self._metrics.port

    def _bound_address(self) -> str:
        host = self.config.bind_host
        return "no" if host is None else f"{host}:{self.listener.port}"

    async def stop(self) -> None:
        """Hand over the leadership of all groups, flush and close their logs."""
        if self._stopping:
            return
        self._stopping = True
        self.health.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*(self._stop_group(driver) for driver in self.groups.values()))
        await self._high_watermarks.close()
        if self._directory_watch is not None:
            await self._directory_watch.close()
        await self._close_all()
        log.info("node=%d stopped=clean", self.node_id)

    async def _stop_group(self, driver: GroupDriver) -> None:
        """Hand over leadership, end the group's services, then close its log."""
        await driver.hand_over(self.config.shutdown_timeout_ms)
        if self._node_service is not None:
            await self._node_service.end(driver.group.topic, driver.group.partition)
        hosted = self.hosted.pop(driver.group, None)
        if hosted is not None:
            hosted.close()
        await driver.close()

    async def _close_all(self) -> None:
        if self._metrics is not None:
            await self._metrics.close()
        for listener in self.listeners:
            await listener.close(drain_ms=200)
        self._service.snapshots.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def fail(self, error: BaseException) -> None:
        """Report a fatal error to `failed`, which ends `run_node`."""
        log.critical("node=%d fatal=%s error=%s", self.node_id, type(error).__name__, error)
        if not self.failed.done():
            self.failed.set_exception(error)

    def _check_formatted(self) -> None:
        config = self.config
        try:
            found = read_meta_properties(self._files, config.log_dir)
        except FileNotFoundError:
            raise NotFormattedError(
                f"{config.log_dir} is not formatted: run `esker storage format` first"
            ) from None
        if found.cluster_id != config.cluster_id or found.node_id != config.node_id:
            raise NotFormattedError(
                f"{config.log_dir} belongs to node {found.node_id} of cluster {found.cluster_id}, "
                f"not to node {config.node_id} of cluster {config.cluster_id}"
            )

    def _group_directories(self) -> list[Path]:
        return [driver.storage.directory for driver in self.groups.values()]

    # --- groups -------------------------------------------------------------------------------

    def _is_served(self, group: Group) -> bool:
        return group.topic != BENCH_LOG or self.config.bench_log

    async def _open(self, group: Group) -> GroupDriver:
        """Open a group, and create its directory first if this node does not list the group yet.

        The group is in `_opening` meanwhile, so that it is not opened twice.
        """
        config = self.config
        disk = DiskThread(group.name, asyncio.get_running_loop(), self.fail)
        try:
            storage = await asyncio.to_thread(self._open_storage, group, config.voter_set.ids)
        except BaseException:
            await disk.close()
            raise
        driver = assemble_group(
            group,
            storage,
            disk,
            config=config,
            dial_settings=self._dial_settings,
            endpoints=self.endpoint,
            on_fatal=self.fail,
        )
        if self._floors_allowed:
            storage.log.allow_floor()
        self.groups[group] = driver
        self._opening.discard(group)
        self._by_ref[GroupRef(group.topic, group.partition)] = driver
        self._by_ref[GroupRef(group.topic_id, group.partition)] = driver
        if group == METADATA_GROUP:
            self._watch_cluster_log(driver)
        elif group.topic == BENCH_LOG:
            self._bench = BenchLog(driver, self.endpoint)
        if self._node_service is not None:
            self._node_service.begin(driver, group.topic, group.partition, storage.directory)
        return driver

    def _open_storage(self, group: Group, voters: tuple[NodeId, ...]) -> Storage:
        """Open a group's storage in a thread, because recovery reads the log."""
        config, files, registry = self.config, self._files, self._registry
        assert registry is not None, "the node has not started"
        if group.name not in registry.groups:
            if not Storage.has_batches(files, config.log_dir, group):
                Storage.create(
                    files, config.log_dir, group, config.log, recovering=registry.rejoining
                )
            registry.add(group)
        store = config.snapshot_hosting.store if config.snapshot_hosting is not None else None
        return Storage.open(files, config.log_dir, group, config.log, voters, store)

    def _watch_cluster_log(self, driver: GroupDriver) -> None:
        log = driver.quorum.log
        self._removed_below = max(log.end_offset, log.high_watermark or Offset(0))
        self.directory = self._host_cluster_log(driver)
        registry = self._registry
        assert registry is not None, "the node has not started"
        if registry.rejoining:
            driver.disk.recovering_cleared = self._on_caught_up
            if not driver.quorum.recovering:
                self._rejoin_until = driver.quorum.log.end_offset

    def _host_cluster_log(self, driver: GroupDriver) -> ClusterState:
        """Host the state machine of the cluster log, which names the groups that this node runs."""
        config = self.config
        events = ClusterEvents(
            on_start=self._on_group_named,
            on_stop=self._on_group_removed,
            on_applied=self._on_applied,
        )
        if config.cluster is not None:
            return config.cluster(self, driver, events)
        bench_topic = BENCH_LOG if config.bench_log else None
        directory = Directory(driver, bench_topic=bench_topic, events=events)
        leader = ClusterLogLeader(
            driver,
            directory,
            bootstrap=config.bootstrap,
            max_idle_interval_ms=config.max_idle_interval_ms,
        )
        self.directory = directory  # before `host`: hosting reads it already
        self.host(driver, directory, leader)
        return directory

    def _on_group_named(self, group: Group) -> None:
        if group not in self.groups and group not in self._opening and not self._stopping:
            self._opening.add(group)
            self._start_task(self._begin(group))

    async def _begin(self, group: Group) -> None:
        try:
            driver = await self._open(group)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.fail(error)
            return
        log.info("node=%d group=%s action=begin", self.node_id, group.name)
        driver.start()

    def _on_group_removed(self, group: Group) -> None:
        driver = self.groups.pop(group, None)
        if driver is None or self._stopping:
            return
        self._by_ref.pop(GroupRef(group.topic, group.partition), None)
        self._by_ref.pop(GroupRef(group.topic_id, group.partition), None)
        if self._bench is not None and self._bench.group is driver:
            self._bench = None
        self._start_task(self._end(driver))

    def _end_removed_groups(self) -> None:
        """Stop the listed groups that the cluster log no longer names.

        A checkpoint names the existing groups, not those removed before it. A listed group had its
        record in this node's log; if it is not named once that log is applied, it was removed.
        """
        if self._opening or self.directory is None:
            return  # called again when all listed groups are open
        self._removed_below = None
        for group in tuple(self.groups):
            if group != METADATA_GROUP and group not in self.directory.groups:
                self._on_group_removed(group)

    async def _end(self, driver: GroupDriver) -> None:
        """Stop a removed group and remove it from the list of groups; its directory remains."""
        await self._stop_group(driver)
        assert self._registry is not None, "the node has not started"
        self._registry.remove(driver.group)
        log.info("node=%d group=%s action=end", self.node_id, driver.name)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- a lost disk --------------------------------------------------------------------------

    def _on_caught_up(self) -> None:
        """End the rejoin once all records that the cluster log now holds are applied."""
        self._rejoin_until = self.groups[METADATA_GROUP].quorum.log.end_offset
        if self.directory is not None:
            self._on_applied(self.directory.applied_offset)

    def _allow_floors(self) -> None:
        """Let logs record floors once the cluster has finalized a level that 0.1 cannot read.

        Why not at once: a node of a cluster that is not upgraded yet may go back to Esker 0.1.
        """
        directory = self.directory
        if directory is None or directory.features.get(ESKER_VERSION, 1) < FLOORS_LEVEL:
            return
        self._floors_allowed = True
        for driver in self.groups.values():
            driver.storage.log.allow_floor()

    def _on_applied(self, applied_offset: Offset) -> None:
        if not self._floors_allowed:
            self._allow_floors()
        if self._removed_below is not None and applied_offset >= self._removed_below:
            self._end_removed_groups()
        if self._rejoin_until is not None and applied_offset >= self._rejoin_until:
            self._rejoin_until = None
            self._start_task(self._end_rejoin())

    async def _end_rejoin(self) -> None:
        """Remove the file that marks this node's disk as replaced, once every group has started."""
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others)
        if not self.failed.done() and self._registry is not None:
            self._registry.rejoined()
            log.info("node=%d action=rejoined", self.node_id)

    # --- for the listener, services and metrics -----------------------------------------------

    def find(self, ref: GroupRef) -> GroupDriver | None:
        """Return the group that a request names, or None if it has not started on this node."""
        return self._by_ref.get(ref)

    def group(self, topic: str | UUID, partition: int = 0) -> GroupDriver | None:
        """Return the started group with this topic name or id and partition, or None."""
        return self._by_ref.get(GroupRef(topic, partition))

    def log(self, topic: str, partition: int) -> ReplicatedLog | None:
        """Return the log of a group by topic name, or None if the group has not started."""
        return self._by_ref.get(GroupRef(topic, partition))

    def host(
        self, log: ReplicatedLog, machine: StateMachine, listener: StateListener | None = None
    ) -> None:
        """Host the state machine of a group: load its state, apply records, take checkpoints."""
        driver = next(driver for driver in self.groups.values() if driver is log)
        assert driver.group not in self.hosted, f"{driver.name} has a state machine already"
        snapshot_hosting = self.config.snapshot_hosting
        if snapshot_hosting is None:
            self.hosted[driver.group] = Applier(log, machine, driver.fail, listener)
        else:
            self.hosted[driver.group] = snapshot_hosting.host(log, machine, self, listener)

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        """Call `callback` in the next turn of the event loop."""
        return asyncio.get_running_loop().call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` after `delay_s` seconds; return a handle that can cancel the call."""
        return asyncio.get_running_loop().call_later(delay_s, callback)

    def bench_log(self) -> BenchLog | None:
        """Return the bench log, or None if it is not enabled or has not started."""
        return self._bench

    def endpoint(self, node_id: NodeId) -> Endpoint | None:
        """Return the endpoint of a voter, or None if it is unknown."""
        if node_id == self.node_id:
            return self.config.advertised
        if node_id not in self.voters:
            return None
        endpoints = self.voters.voter(node_id).endpoints
        return endpoints[0] if endpoints else None

    def controllers(self) -> Mapping[NodeId, Endpoint]:
        """Return controllers' endpoints: those registered, and those of other configured voters.

        For this node itself, its own setting takes precedence.
        """
        configured = {voter: self.endpoint(voter) for voter in self.voters}
        found = {voter: endpoint for voter, endpoint in configured.items() if endpoint is not None}
        registered = {} if self.directory is None else self.directory.controllers
        own = found.get(self.node_id)
        return {**found, **registered} | ({} if own is None else {self.node_id: own})

    def features(self) -> tuple[Mapping[str, int], Offset]:
        """Return the levels of the finalized features, and the log offset as of which they hold.

        The offset is -1 if nothing has been applied yet.
        """
        if self.directory is None or not self.directory.applied_offset:
            return {}, Offset(-1)
        return self.directory.features, Offset(self.directory.applied_offset - 1)

    def _on_bad_answer(self, peer: NodeId, reason: str) -> None:
        log.warning("node=%d peer=%d bad_answer=%r", self.node_id, peer, reason[:500])


def tune_interpreter() -> None:
    """Tune Python's interpreter and garbage collector for a process that only runs a node.

    Objects made at start are never freed, so the collector need not traverse them again; and
    thousands of requests are made and freed in a turn, none of them in a cycle.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def run_node(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a node until `stop` is set, then hand over leadership and close.

    Raises:  the errors of `Node.start`; the fatal error that ended the node.
    """
    node = Node(config)
    await node.start()
    tune_interpreter()
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait((waiting, node.failed), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if node.failed.done():
        node.failed.result()
    await node.stop()
