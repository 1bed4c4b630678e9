"""A node that cannot start releases its directory and port, and reports why."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from raft.core.config import QuorumConfig
from raft.core.voters import Endpoint, ReplicaKey, Voter
from raft.driver import BENCH_LOG, Node, NodeConfig, NotFormattedError
from raft.interfaces import draft_values
from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import read_high_watermarks
from raft.segments.properties import MetaProperties, write_meta_properties
from records.batch import iter_batches, iter_records
from records.types import NodeId, Offset
from tests.doubles.memory_log import SilentTicket
from tests.raft.driver.cluster import CLUSTER_ID, free_ports
from tests.raft.driver.node_main import bootstrap
from tests.waiting import DEADLINE_S, wait_until_async

DIRECTORY_ID = uuid4()


def config_of(log_dir: Path, port: int, *, node: int = 1) -> NodeConfig:
    """A quorum of one."""
    endpoint = Endpoint("CONTROLLER", "127.0.0.1", port)
    return NodeConfig(
        node_id=NodeId(node),
        cluster_id=CLUSTER_ID,
        directory_id=DIRECTORY_ID,
        log_dir=log_dir,
        voters=(Voter(key=ReplicaKey(NodeId(node)), endpoints=(endpoint,)),),
        bind_host="127.0.0.1",
        bind_port=port,
        advertised=endpoint,
        quorum=QuorumConfig(election_timeout_ms=50),
        bootstrap=bootstrap([BENCH_LOG], [node]),
        bench_log=True,
    )


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    meta = MetaProperties(cluster_id=CLUSTER_ID, node_id=NodeId(1), directory_id=DIRECTORY_ID)
    write_meta_properties(RealFileSystem(), tmp_path, meta)
    return tmp_path


async def leading_log(node: Node):
    def leading():
        log = node.group(BENCH_LOG)
        return log if log is not None and log.leading_epoch is not None else None

    return await wait_until_async(leading, "the node leads its group")


def test_a_quorum_of_one_keeps_its_records_across_a_restart(log_dir: Path) -> None:
    async def story() -> None:
        (port,) = free_ports(1)
        node = Node(config_of(log_dir, port))
        await node.start()
        log = await leading_log(node)
        log.propose(SilentTicket(), log.leading_epoch, draft_values([b"kept"], timestamp_ms=0))

        async def both_committed() -> bool:
            return await log.barrier() >= 2  # LeaderChange, and ours

        await wait_until_async(both_committed)
        await node.stop()
        committed = read_high_watermarks(RealFileSystem(), log_dir)
        assert committed[BENCH_LOG, 0] == log.high_watermark == 2
        assert ("__cluster_metadata", 0) in committed

        node = Node(config_of(log_dir, port))
        await node.start()
        log = await leading_log(node)
        values = [
            bytes(record.value or b"")
            for batch in iter_batches(log.read(Offset(0), 10_000))
            if not batch.header.is_control
            for record in iter_records(batch)
        ]
        assert values == [b"kept"]
        with pytest.raises(ValueError, match="outside"):
            log.read(Offset(10_000), 1)
        await node.stop()

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


def test_a_leader_reads_the_wall_clocks_of_voters_from_their_fetch_requests(tmp_path: Path) -> None:
    async def story() -> None:
        ports = free_ports(2)
        voters = tuple(
            Voter(key=ReplicaKey(NodeId(n)), endpoints=(Endpoint("CONTROLLER", "127.0.0.1", port),))
            for n, port in enumerate(ports, 1)
        )
        nodes = []
        for n, port in enumerate(ports, 1):
            directory = tmp_path / str(n)
            directory.mkdir()
            meta = MetaProperties(
                cluster_id=CLUSTER_ID, node_id=NodeId(n), directory_id=DIRECTORY_ID
            )
            write_meta_properties(RealFileSystem(), directory, meta)
            config = config_of(directory, port, node=n)
            nodes.append(Node(replace(config, voters=voters, bootstrap=bootstrap([], [1, 2]))))
            await nodes[-1].start()
        metadata = [node.group("__cluster_metadata") for node in nodes]
        heard = await wait_until_async(
            lambda: [group.voter_clocks for group in metadata if group.voter_clocks.ahead_ms]
        )
        assert heard[0].voters == 2
        (ahead_ms,) = heard[0].ahead_ms
        assert abs(ahead_ms) < DEADLINE_S * 1000
        for node in nodes:
            await node.stop()

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


def test_a_node_whose_port_is_in_use_fails_to_start_and_unlocks_its_directory(
    log_dir: Path,
) -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            node = Node(config_of(log_dir, taken.getsockname()[1]))
            with pytest.raises(OSError, match="address already in use"):
                await node.start()
        (port,) = free_ports(1)
        node = Node(config_of(log_dir, port))
        await node.start()
        await leading_log(node)
        await node.stop()

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


def test_a_node_refuses_a_log_directory_that_is_unformatted_or_of_another_node(
    tmp_path: Path, log_dir: Path
) -> None:
    async def story() -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(NotFormattedError, match="storage format"):
            await Node(config_of(empty, 0)).start()
        with pytest.raises(NotFormattedError, match="node 1"):
            await Node(config_of(log_dir, 0, node=2)).start()

    asyncio.run(story())


def test_a_node_refuses_invalid_settings_with_an_error_that_names_the_setting(
    tmp_path: Path,
) -> None:
    good = config_of(tmp_path, 1)
    with pytest.raises(ValueError, match="max_idle_interval_ms"):
        NodeConfig(
            node_id=NodeId(1), cluster_id=CLUSTER_ID, log_dir=tmp_path, voters=good.voters,
            bind_host="h", bind_port=1, advertised=good.advertised, max_idle_interval_ms=-1,
        )  # fmt: skip
    with pytest.raises(ValueError, match="bind_host: voter 1"):
        replace(good, bind_host=None)
    with pytest.raises(ValueError, match="node 2 has no endpoint"):
        NodeConfig(
            node_id=NodeId(1), cluster_id=CLUSTER_ID, log_dir=tmp_path, bind_host="h", bind_port=1,
            advertised=good.advertised,
            voters=(*good.voters, Voter(key=ReplicaKey(NodeId(2), UUID(int=1)))),
        )  # fmt: skip


def test_an_observer_without_a_listener_follows_the_high_watermark(tmp_path: Path) -> None:
    """An idle log does not age; one whose leader is gone does.

    Source: docs/design/broker.md#staleness-is-bounded.
    """

    async def story() -> None:
        (port,) = free_ports(1)
        directories = [tmp_path / name for name in ("voter", "observer")]
        for node_id, directory in enumerate(directories, start=1):
            directory.mkdir()
            meta = MetaProperties(
                cluster_id=CLUSTER_ID, node_id=NodeId(node_id), directory_id=DIRECTORY_ID
            )
            write_meta_properties(RealFileSystem(), directory, meta)
        config = config_of(directories[0], port)
        leader = Node(config)
        await leader.start()
        log = await leading_log(leader)
        observer = Node(
            replace(
                config, node_id=NodeId(2), log_dir=directories[1], bind_host=None, advertised=None
            )
        )
        await observer.start()
        observed = await wait_until_async(lambda: observer.group(BENCH_LOG), "the group runs")
        first = await wait_until_async(lambda: observed.committed_as_of)
        # Nothing is appended: only time moves on.
        await wait_until_async(lambda: observed.committed_as_of != first)
        idle = observed.committed_as_of
        assert first is not None
        assert first.at_s < idle.at_s <= asyncio.get_running_loop().time()
        assert idle.high_watermark == first.high_watermark == log.high_watermark
        assert log.committed_as_of.high_watermark == log.high_watermark, "a leader's own word"

        await leader.stop()
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(0.1)
        last = observed.committed_as_of
        assert last is not None
        assert last.at_s <= before, "nobody told it anything since"
        await observer.stop()

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))
