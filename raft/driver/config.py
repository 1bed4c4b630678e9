"""Settings of a quorum node; the front door fills them from a properties file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from prometheus_client.metrics_core import Metric

from raft.core.config import QuorumConfig
from raft.core.voters import Endpoint, ReplicaKey, Voter, VoterSet
from raft.driver.node_services import MakeClusterState, NodeService, ServiceHost
from raft.driver.snapshot_hosting import SnapshotHosting
from raft.interfaces import Degradation
from raft.net import Limits
from raft.net.routes import Refuse
from raft.net.security import ListenerSecurity
from raft.segments.log import LogConfig
from raft.wire.responses import Group
from records.internal_topics import (
    CLUSTER_METADATA,
    CONSUMER_OFFSETS,
    DISKLESS_METADATA,
    TRANSACTION_STATE,
)
from records.schema import MetadataRecord
from records.types import METADATA_TOPIC_ID, ZERO_UUID, NodeId

METADATA_GROUP: Final = Group(CLUSTER_METADATA, 0, METADATA_TOPIC_ID)
"""The group whose log names all others; the only one a node opens without being told of it."""

QUORUM_TOPICS: Final = frozenset({DISKLESS_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE})
"""Topics of the cluster log whose partitions are groups of this quorum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherListener:
    """A controller listener besides the first, for nodes that still use another protocol."""

    name: str
    host: str
    port: int
    security: ListenerSecurity | None = None  # None: PLAINTEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Settings of one node of the quorum. Times in milliseconds.

    Raises:  ValueError naming the field, if one is impossible.
    """

    node_id: NodeId
    cluster_id: str
    directory_id: UUID = ZERO_UUID  # of `log_dir`, from its meta.properties
    log_dir: Path
    voters: tuple[Voter, ...]  # ids and endpoints, the same on every node
    bind_host: str | None  # None: it serves no requests, as an observer may
    bind_port: int  # 0: any free port, for tests
    advertised: Endpoint | None  # the address that other nodes connect to
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    log: LogConfig = field(default_factory=LogConfig)
    limits: Limits = field(default_factory=Limits)
    security: ListenerSecurity | None = None  # of the listener; None: PLAINTEXT
    further_listeners: tuple[FurtherListener, ...] = ()  # the same requests at more addresses
    bootstrap: tuple[MetadataRecord, ...] = ()  # the first records of an empty cluster log
    snapshot_hosting: SnapshotHosting | None = None  # None: no checkpoints, logs begin at 0
    node_service: Callable[[ServiceHost], NodeService] | None = None  # builds what runs on groups
    refuse: Refuse | None = None  # refuses requests that their peers may not send
    cluster: MakeClusterState | None = None  # a controller's; None: the quorum's own directory
    bench_log: bool = False  # serve Produce, Fetch and ListOffsets of `esker-bench-log`
    max_idle_interval_ms: int = 500  # metadata.max.idle.interval.ms; 0: no NoOpRecord
    metrics_host: str | None = None  # serves /metrics and /health; None: they are not served
    metrics_port: int = 0
    metrics: Callable[[], Iterable[Metric]] | None = None  # of the services on top of the groups
    degradations: Callable[[], Iterable[Degradation]] = tuple  # of those services
    ends_on_lost_records: bool = False  # peers prove who they are: see raft.driver.lost_records
    health_window_ms: int = 5_000  # healthy: a read barrier succeeded within it
    shutdown_timeout_ms: int = 5_000  # the longest that handing over leadership may take

    def __post_init__(self) -> None:
        if self.node_id < 0:
            raise ValueError(f"node_id={self.node_id} is negative")
        if self.max_idle_interval_ms < 0:
            raise ValueError(f"max_idle_interval_ms={self.max_idle_interval_ms} is negative")
        if self.bind_host is None and self.node_id in self.voter_set.ids:
            raise ValueError(f"bind_host: voter {self.node_id} must be reached by the others")
        for voter in self.voters:
            if voter.key.id != self.node_id and not voter.endpoints:
                raise ValueError(f"voters: node {voter.key.id} has no endpoint")

    @property
    def identity(self) -> ReplicaKey:
        """Return the replica key of this node: its id and its disk's directory id."""
        return ReplicaKey(self.node_id, self.directory_id)

    @property
    def voter_set(self) -> VoterSet:
        """Return the configured voters as a `VoterSet`."""
        return VoterSet(self.voters)
