"""The quorum's driver: real processes, sockets and disks around the sans-I/O core.

The core decides; the driver keeps time, moves bytes, and tells the core what happened, by the rules
in `raft.core.events`. One page an idea:

    config      `NodeConfig`: all that a node must be told
    node        `Node`, `run_node`: groups, listener, beginning and end
    assembly    a group's parts, put together
    group       `GroupDriver`: one group's events, effects, timers; a `ReplicatedLog`
    telling     what watchers, proposers and readers are told
    asked       one unanswered request, and its answer's way out
    answering   a group's unanswered requests, and how they are answered
    disk_work   its appends, flushes (group commit), election states, truncations
    storage     one group's directory: log, election state, marks
    disk        the thread for what waits for the disk
    peers       connections to the other nodes, versions, failures
    keeping     what the driver needs of checkpoints, as the front door gives it
    serving     FetchSnapshot answered: judged by each group, read off the loop, fairly shared
    fetching    a leader's checkpoint fetched: resumed, abandoned, verified
    log_start   where a group's log may start, asked once a second
    readers     the archives that a log start waits for
    high_watermarks  how much of each group is committed, written down for readers of the disk
    describing  DescribeSnapshots and TakeSnapshot
    applying    a state machine fed without checkpoints
    service     the listener's requests: who answers which
    rooms       what stands on the groups: its requests, and what it is told of their lives
    directory   which groups there are, from the cluster log; bootstrap; NoOpRecord
    cluster_records  what is kept of the cluster log, and checkpointed
    registry    the lock, the groups this disk has, a rejoin under way
    drafts      batches before they have a place in the log
    bench_log   `esker-bench-log`: Produce, Fetch and ListOffsets for clients outside
    known_forms its Produce requests, taken without decoding
    health      a read barrier every second
    counters    what a group counts
    metrics     `/metrics` and `/health`; snapshot_metrics: KIP-630's

For a front door:

    config = NodeConfig(node_id=..., cluster_id=..., log_dir=..., voters=(...), ...)
    raft.net.run(run_node(config, stop))   # `stop`: an asyncio.Event that a signal handler sets

For a program that has the quorum inside: `Node(config)`, `await node.start()`,
`node.group(topic)` is a `raft.interfaces.ReplicatedLog`, `node.health()` tells the truth.
"""

from raft.driver.config import BENCH_LOG, CLUSTER_METADATA, INTERNAL_TOPICS, NodeConfig
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
from raft.driver.node_services import Room, RoomHost
from raft.driver.notifications import ReadTicket
from raft.driver.registry import mark_rejoin

__all__ = [
    "BENCH_LOG",
    "CLUSTER_METADATA",
    "INTERNAL_TOPICS",
    "DirectoryInUseError",
    "GroupDriver",
    "Health",
    "LostDiskError",
    "MissingSnapshotError",
    "Node",
    "NodeConfig",
    "NodeError",
    "NotFormattedError",
    "ReadTicket",
    "Room",
    "RoomHost",
    "mark_rejoin",
    "run_node",
]
