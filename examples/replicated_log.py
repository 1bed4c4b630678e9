"""The quorum as a library: a replicated dictionary in three nodes, without any broker.

    python examples/replicated_log.py

Three nodes run in this one process (in earnest they would be three processes), each with its own
directory, socket and state machine. The state machine *applies* what is committed, everywhere and
in the same order, and *decides* only on the leader. The script writes through the leader, stops
it, writes through its successor, and reads the same dictionary on every node that is left.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import time
from pathlib import Path
from uuid import UUID, uuid4

from raft.core.config import QuorumConfig
from raft.core.voters import Endpoint, ReplicaKey, Voter
from raft.driver import BENCH_LOG, Node, NodeConfig
from raft.interfaces import ReplicatedLog, draft_values
from raft.net import run
from raft.segments.files import RealFileSystem
from raft.segments.properties import MetaProperties, write_meta_properties
from records.batch import iter_batches, iter_records
from records.metadata import FeatureLevelRecord, PartitionRecord, TopicRecord
from records.schema import MetadataRecord
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

CLUSTER_ID = "xBIbbGYlSzqHPEyzl9QSWw"
TOPIC_ID = UUID(int=7)
NODE_IDS = (1, 2, 3)


class Table:
    """A dictionary that every node has a copy of. `apply` is the only method that changes it."""

    def __init__(self, log: ReplicatedLog) -> None:
        self.values: dict[str, str] = {}
        self.applied = log.start_offset  # exclusive: everything below is in `values`
        self._log = log
        self._waiting: list[
            tuple[Offset, asyncio.Future[None]]
        ] = []  # by the end of what they wait for
        log.watch(self)

    # What the log tells us (raft.interfaces.Watcher):

    def committed(self, high_watermark: Offset) -> None:
        while self.applied < high_watermark:
            for batch in iter_batches(self._log.read(self.applied, 1024 * 1024)):
                if not batch.header.is_control:
                    for record in iter_records(batch):
                        key, value = json.loads(bytes(record.value or b"null"))
                        self.values[key] = value
                self.applied = batch.header.end_offset
        for end_offset, future in self._waiting:
            if end_offset <= high_watermark and not future.done():
                future.set_result(None)

    def lead(self, epoch: Epoch) -> None:
        """Do nothing when this node becomes leader: all earlier records are applied already."""

    def step_down(self, epoch: Epoch) -> None:
        """Fail all waiting `put` calls, whose outcome is unknown, because leadership ended."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionError(f"no longer leader of epoch {epoch}"))

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        raise NotImplementedError("this table keeps its whole log")

    # What users ask:

    async def put(self, key: str, value: str) -> None:
        """Set a key's value on the leader, and return once the change is committed."""
        epoch = self._log.leading_epoch
        if epoch is None:
            raise ConnectionError(f"ask node {self._log.leader_id}")
        record = json.dumps([key, value]).encode()
        ticket = _Put(self._waiting)
        self._log.propose(ticket, epoch, draft_values([record], timestamp_ms=_now_ms()))
        await ticket.committed

    async def get(self, key: str) -> str | None:
        """Return a key's value on the leader, as of this call or later."""
        offset = await self._log.barrier()
        assert self.applied >= offset, (
            "the barrier waits for what is committed, and we apply at once"
        )
        return self.values.get(key)


class _Put:
    """A proposal that waits for its commit (raft.interfaces.Ticket)."""

    def __init__(self, waiting: list[tuple[Offset, asyncio.Future[None]]]) -> None:
        self.committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = waiting

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:  # noqa: ARG002
        self._waiting[:] = [one for one in self._waiting if not one[1].done()]
        self._waiting.append((end_offset, self.committed))

    def refused(self, error: int) -> None:
        self.committed.set_exception(ConnectionError(f"refused: error code {error}"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def bootstrap() -> tuple[MetadataRecord, ...]:
    """Return the first records of the cluster log: feature level, topic and one partition."""
    return (
        FeatureLevelRecord(name="metadata.version", feature_level=27),
        TopicRecord(name=BENCH_LOG, topic_id=TOPIC_ID),
        PartitionRecord(
            partition_id=0,
            topic_id=TOPIC_ID,
            replicas=NODE_IDS,
            isr=NODE_IDS,
            removing_replicas=(),
            adding_replicas=(),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        ),
    )


def configurations(root: Path) -> list[NodeConfig]:
    """Return the configurations of three nodes on free ports, and format their directories."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in NODE_IDS]
    ports = dict(zip(NODE_IDS, (one.getsockname()[1] for one in sockets), strict=True))
    for one in sockets:
        one.close()
    voters = tuple(
        Voter(
            key=ReplicaKey(NodeId(node)),
            endpoints=(Endpoint("CONTROLLER", "127.0.0.1", ports[node]),),
        )
        for node in NODE_IDS
    )
    configs = []
    for node in NODE_IDS:
        log_dir = root / str(node)
        log_dir.mkdir()
        directory_id = uuid4()
        write_meta_properties(
            RealFileSystem(),
            log_dir,
            MetaProperties(cluster_id=CLUSTER_ID, node_id=NodeId(node), directory_id=directory_id),
        )
        configs.append(
            NodeConfig(
                node_id=NodeId(node),
                cluster_id=CLUSTER_ID,
                directory_id=directory_id,
                log_dir=log_dir,
                voters=voters,
                bind_host="127.0.0.1",
                bind_port=ports[node],
                advertised=Endpoint("CONTROLLER", "127.0.0.1", ports[node]),
                quorum=QuorumConfig(election_timeout_ms=300),
                bootstrap=bootstrap(),
                bench_log=True,
            )
        )
    return configs


async def table_of(node: Node) -> Table:
    """Wait until the node runs the table's Raft group, and return the node's table."""
    while (log := node.group(BENCH_LOG)) is None:
        await asyncio.sleep(0.01)
    return Table(log)


async def leader_of(nodes: dict[NodeId, Node]) -> NodeId:
    """Wait until a node leads the table's log, and return that node's id."""
    while True:
        for node_id, node in nodes.items():
            log = node.group(BENCH_LOG)
            if log is not None and log.leading_epoch is not None:
                return node_id
        await asyncio.sleep(0.01)


async def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        nodes = {config.node_id: Node(config) for config in configurations(Path(root))}
        for node in nodes.values():
            await node.start()
        tables = {node_id: await table_of(node) for node_id, node in nodes.items()}

        leader = await leader_of(nodes)
        await tables[leader].put("esker", "a ridge of sediment")
        print(
            "written through one leader, read behind the barrier:",
            await tables[leader].get("esker"),
        )

        await nodes.pop(leader).stop()  # hands leadership over
        successor = await leader_of(nodes)
        await tables[successor].put("moraine", "debris at the edge")
        print("another leads now:", successor != leader)

        for node_id in nodes:
            while len(tables[node_id].values) < 2:  # followers hear of a commit a moment later
                await asyncio.sleep(0.01)
        copies = [tables[node_id].values for node_id in nodes]
        print("the copies agree:", copies[0] == copies[1], sorted(copies[0]))
        for node in nodes.values():
            await node.stop()


if __name__ == "__main__":
    run(main())
