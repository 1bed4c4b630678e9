"""Builds one group: its core, its driver, its links and its checkpoints.

What belongs to the node (its settings, how it dials) is handed to each group; what is the group's
alone is made here. A group does nothing until `GroupDriver.start`.

Why in this order: links, fetcher and log start post their events to the driver, so they are made
after it. Without `NodeConfig.snapshot_hosting` a group has neither of the last two.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from raft.core.quorum import Quorum
from raft.core.voters import Endpoint, VoterSetHistory
from raft.driver.config import NodeConfig
from raft.driver.disk_thread import DiskThread
from raft.driver.fetching import SnapshotFetcher
from raft.driver.group import GroupDriver
from raft.driver.log_start import LogStart
from raft.driver.peers import DialSettings, PeerLinks
from raft.driver.snapshot_hosting import SnapshotHosting
from raft.driver.storage import Storage
from raft.wire.responses import Group
from records.types import NodeId


def assemble_group(
    group: Group,
    storage: Storage,
    disk: DiskThread,
    *,
    config: NodeConfig,
    dial_settings: DialSettings,
    endpoints: Callable[[NodeId], Endpoint | None],
    on_fatal: Callable[[BaseException], None],
) -> GroupDriver:
    """Build a group's driver from its storage and disk thread, without starting the driver.

    Args:    storage: its directory, open; the driver owns it from now on, and `disk`.
             endpoints: where a voter listens.
             on_fatal: called with an error that ends the node.
    Raises:  CorruptLogError, MissingSnapshotError: what the directory holds contradicts itself.
    """
    quorum = Quorum(
        identity=config.identity,
        cluster_id=config.cluster_id,
        voters=VoterSetHistory(config.voter_set),
        log=storage.log_state(),
        election=storage.election_state(),
        random=Random(),
        config=config.quorum,
        recovering=storage.recovering,
        in_doubt=storage.doubt is not None,
    )
    driver = GroupDriver(
        node_id=config.node_id,
        group=group,
        quorum=quorum,
        storage=storage,
        disk=disk,
        endpoints=endpoints,
        on_fatal=on_fatal,
    )
    peers = {
        voter.key.id: voter.endpoints[0]
        for voter in config.voters
        if voter.key.id != config.node_id
    }
    driver.links = links = PeerLinks(group, peers, dial_settings, driver.post)
    if config.snapshot_hosting is not None:
        driver.fetcher = _fetcher(driver, config, dial_settings, endpoints)
        driver.log_start = _log_start(driver, config.snapshot_hosting, links)
    return driver


def _fetcher(
    driver: GroupDriver,
    config: NodeConfig,
    dial_settings: DialSettings,
    endpoints: Callable[[NodeId], Endpoint | None],
) -> SnapshotFetcher:
    return SnapshotFetcher(
        group=driver.group,
        cluster_id=config.cluster_id,
        replica=config.identity,
        snapshots=driver.snapshots,
        dial_settings=dial_settings,
        endpoints=endpoints,
        counters=driver.counters,
        post=driver.post,
        on_fault=driver.notifications.fault,
    )


def _log_start(driver: GroupDriver, hosting: SnapshotHosting, links: PeerLinks) -> LogStart:
    return LogStart(
        quorum=driver.quorum,
        storage=driver.storage,
        disk=driver.disk,
        rule=hosting.log_start,
        leader_log_start=links.log_start_offset,
        before=driver.pending_requests.release_held,
        on_fatal=driver.fail,
    )
