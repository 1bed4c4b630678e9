"""The quorum's driver: real processes, sockets and disks around the sans-I/O core.

The core decides; the driver keeps time, moves bytes, and tells the core what happened, by the rules
in `raft.core.events`. One module an idea:

    config      `NodeConfig`: all settings of a node
    node        `Node`, `run_node`: groups, listener, start and stop
    assembly    a group's parts, put together
    group       `GroupDriver`: one group's events, effects, timers; a `ReplicatedLog`
    notifications  announces commits, leadership, proposals' and reads' outcomes
    inbound_request  one unanswered request and the means to answer it
    pending_requests  a group's unanswered requests, and how they are answered
    disk_work   its appends, flushes (group commit), election states, truncations
    storage     one group's directory: log, election state, marks
    disk_thread the thread for jobs that wait for the disk
    peers       connections to the other nodes, versions, failures
    snapshot_hosting  what the driver needs of checkpoints, as the front door gives it
    snapshot_serving  answers FetchSnapshot: checked by each group, read off the loop, fairly shared
    fetching    a leader's checkpoint fetched: resumed, abandoned, verified
    log_start   moves a log's start offset, checked once a second
    log_readers the archives that a log start waits for
    high_watermarks  how much of each group is committed, written down for readers of the disk
    snapshot_admin  DescribeSnapshots and TakeSnapshot
    applying    a state machine fed without checkpoints
    controller_listener  the listener's requests, dispatched
    node_services  the services on top of the groups: their requests and callbacks
    group_directory  the groups that the cluster log names; bootstrap; NoOpRecord
    cluster_records  what is kept of the cluster log, and checkpointed
    registry    the lock, the groups this disk has, a rejoin under way
    batch_builder  batches before they have an offset
    bench_log   `esker-bench-log`: Produce, Fetch and ListOffsets for clients outside
    request_templates  its Produce requests, taken without decoding
    health      a read barrier every second
    counters    what a group counts
    metrics     `/metrics` and `/health`; snapshot_metrics: KIP-630's

For a front door:

    config = NodeConfig(node_id=..., cluster_id=..., log_dir=..., voters=(...), ...)
    raft.net.run(run_node(config, stop))   # `stop`: an asyncio.Event that a signal handler sets

For a program that has the quorum inside: `Node(config)`, `await node.start()`,
`node.group(topic)` is a `raft.interfaces.ReplicatedLog`, `node.health()` the last probe's result.
"""

from raft.driver.config import METADATA_GROUP, QUORUM_TOPICS, NodeConfig
from raft.driver.errors import (
    DirectoryInUseError,
    LostDiskError,
    MissingSnapshotError,
    NodeError,
    NotFormattedError,
)
from raft.driver.group import GroupDriver
from raft.driver.health import Health
from raft.driver.node import Node, run_node
from raft.driver.node_services import NodeService, ServiceHost
from raft.driver.notifications import ReadTicket
from raft.driver.registry import mark_rejoin
from records.internal_topics import BENCH_LOG

__all__ = [
    "BENCH_LOG",
    "METADATA_GROUP",
    "QUORUM_TOPICS",
    "DirectoryInUseError",
    "GroupDriver",
    "Health",
    "LostDiskError",
    "MissingSnapshotError",
    "Node",
    "NodeConfig",
    "NodeError",
    "NodeService",
    "NotFormattedError",
    "ReadTicket",
    "ServiceHost",
    "mark_rejoin",
    "run_node",
]
