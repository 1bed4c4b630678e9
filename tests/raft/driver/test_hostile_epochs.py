"""A stranger names epochs: living nodes neither stop nor run out of them, and start again.

Source: docs/design/epochs.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from raft.core.epoch_budget import BUDGET, MAX_EPOCH
from raft.segments.files import RealFileSystem
from raft.segments.properties import read_quorum_state
from records.rpc import quorum
from tests.raft.driver.cluster import CLUSTER_ID, Cluster
from tests.raft.driver.test_cluster import QUICK
from tests.waiting import wait_until

GROUPS = ("__cluster_metadata", "esker-bench-log")
UNKNOWN_LEADER_EPOCH = 75
PLENTY = 3 * BUDGET + 500
"""Three voters' budgets, what is refilled meanwhile, and the elections of a test."""


def vote(group: str, named: int, epoch: int) -> quorum.VoteRequest:
    topic = quorum.VoteRequest.TopicData
    partition = topic.PartitionData(
        partition_index=0,
        replica_epoch=epoch,
        replica_id=named,
        last_offset_epoch=epoch - 1,
        last_offset=1 << 40,
    )
    topics = (topic(topic_name=group, partitions=(partition,)),)
    return quorum.VoteRequest(cluster_id=CLUSTER_ID, voter_id=-1, topics=topics)


def attack(cluster: Cluster, node: int, group: str, steps: Iterable[int]) -> set[int]:
    """Vote after vote, each so far ahead of what the node is in by then; the answers' errors."""
    named = next(voter for voter in cluster.voters if voter != node)
    errors, epoch = set(), 0
    with cluster.client(node) as client:
        for step in steps:
            request = vote(group, named, min(epoch + step, MAX_EPOCH))
            answer = client.ask(request, quorum.VoteResponse, 2).topics[0].partitions[0]
            errors.add(answer.error_code)
            epoch = answer.leader_epoch
    return errors


def epochs_on_disk(cluster: Cluster) -> dict[int, int]:
    """The highest epoch that each voter has written."""
    files = RealFileSystem()
    return {
        node: max(
            state.epoch
            for group in GROUPS
            if (state := read_quorum_state(files, cluster.log_dir(node) / f"{group}-0"))
        )
        for node in cluster.voters
    }


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([MAX_EPOCH] * 3, UNKNOWN_LEADER_EPOCH),
        ([1 << 20] * 2048, UNKNOWN_LEADER_EPOCH),
        ([BUDGET // 2] * 8 + [1] * 2040, UNKNOWN_LEADER_EPOCH),
    ],
    ids=["the last epoch", "large steps", "small steps"],
)
def test_after_hostile_vote_requests_an_election_succeeds_and_a_new_node_follows(
    tmp_path: Path, steps: list[int], error: int
) -> None:
    with Cluster(tmp_path, size=4, voters=3, quorum=QUICK) as cluster:
        cluster.start(1, 2, 3)
        leader = cluster.wait_for_leader()
        for node in (leader, leader % 3 + 1):  # two of three, one of them the leader
            for group in GROUPS:
                assert error in attack(cluster, node, group, steps)
        leader = cluster.wait_for_leader()
        cluster.kill(leader)
        survivor = cluster.wait_for_leader()
        with cluster.client(survivor) as client:
            client.produce([b"after the attack"])
        cluster.start(leader)
        assert all(process.poll() is None for process in cluster.processes.values())
        assert max(epochs_on_disk(cluster).values()) <= PLENTY

        cluster.kill()
        cluster.start()  # with node 4, which knows no epoch at all
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            offset = client.produce([b"to a fresh node"])

            def joined() -> bool:
                observers = client.describe("esker-bench-log").observers
                return any(one.replica_id == 4 and one.log_end_offset > offset for one in observers)

            wait_until(joined, "node 4 holds what was committed")
        assert max(epochs_on_disk(cluster).values()) <= PLENTY
