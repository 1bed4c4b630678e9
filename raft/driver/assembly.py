"""The parts of one group, put together: its core, its driver, its links, its checkpoints.

What belongs to the node (its settings, its connections' client side) is handed to each group; what
is the group's alone is made here. Nothing lives yet: a group lives from `GroupDriver.start` on.

The surprise: links, fetcher and log start come after the driver, for each of them posts its events
to it. Without a place for checkpoints (`NodeConfig.keeping`) a group has neither of the last two.
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
from raft.driver.peers import Dialling, PeerLinks
from raft.driver.snapshot_hosting import Keeping
from raft.driver.storage import Storage
from raft.wire.responses import Group
from records.types import NodeId


def assemble_group(
    group: Group,
    storage: Storage,
    disk: DiskThread,
    *,
    config: NodeConfig,
    dialling: Dialling,
    endpoints: Callable[[NodeId], Endpoint | None],
    on_fatal: Callable[[BaseException], None],
) -> GroupDriver:
    """A group that stands still until its `start`.

    Args:    storage: its directory, open; the driver owns it from now on, and `disk`.
             endpoints: where a voter listens.
             on_fatal: told what ends the node.
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
    driver.links = links = PeerLinks(group, peers, dialling, driver.post)
    if config.keeping is not None:
        driver.fetcher = _fetcher(driver, config, dialling, endpoints)
        driver.log_start = _log_start(driver, config.keeping, links)
    return driver


def _fetcher(
    driver: GroupDriver,
    config: NodeConfig,
    dialling: Dialling,
    endpoints: Callable[[NodeId], Endpoint | None],
) -> SnapshotFetcher:
    return SnapshotFetcher(
        group=driver.group,
        cluster_id=config.cluster_id,
        replica=config.identity,
        snapshots=driver.snapshots,
        dialling=dialling,
        endpoints=endpoints,
        counters=driver.counters,
        post=driver.post,
        on_fault=driver.telling.fault,
    )


def _log_start(driver: GroupDriver, keeping: Keeping, links: PeerLinks) -> LogStart:
    return LogStart(
        quorum=driver.quorum,
        storage=driver.storage,
        disk=driver.disk,
        rule=keeping.log_start,
        leader_log_start=links.log_start_offset,
        before=driver.answers.release_held,
        on_fatal=driver.fail,
    )
