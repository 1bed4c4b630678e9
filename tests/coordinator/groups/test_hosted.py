"""The group machine under its real host, with real checkpoints on a simulated disk.

A checkpoint and the log after it give the state that the whole log gives.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from coordinator.groups.leader import GroupLog
from coordinator.groups.machine import GroupMachine
from coordinator.groups.settings import LogSettings
from records.rpc import group_log as rpc
from records.rpc.base import Request
from snapshot.generation import Pace
from tests.coordinator.groups.test_log import member
from tests.coordinator.groups.world import TRANSACTIONS
from tests.doubles.memory_log import MemoryLog
from tests.examples import seeds
from tests.snapshot.machines import Hosted

PACE = Pace(generate_records=2, chunk_bytes=400, flush_bytes=800, apply_ms=0.5)


class Node(Hosted):
    """A node of the quorum that hosts the group machine, and leads."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        super().__init__(machine=GroupMachine, log=log, pace=PACE)
        self.wall_ms = 1_700_000_000_000

    @property
    def state(self) -> GroupMachine:
        """The machine, typed."""
        assert isinstance(self.machine, GroupMachine)
        return self.machine

    def lead(self) -> None:
        """Start to lead."""
        self.groups = GroupLog(
            self.log,
            self.state,
            LogSettings(),
            call_soon=self.loop.call_soon,
            wall_ms=lambda: self.wall_ms,
            features=lambda: TRANSACTIONS,
        )
        self.log.watch(self.groups)
        if self.log.leading_epoch is None:
            self.log.elect()
        self.loop.settle()

    def ask(self, request: Request) -> Any:
        """Send a request and return its response."""
        answers: list[Any] = []
        self.groups.ask(request, answers.append)
        self.loop.settle()
        return answers[0]


def random_requests(node: Node, chance: random.Random, steps: int) -> None:
    """Run random requests: acquire, rebalance, commit to and remove groups."""
    for _ in range(steps):
        name = f"g{chance.randrange(6)}"
        group = node.state.image.groups.get(name)
        if group is None or chance.random() < 0.2:
            node.ask(
                rpc.AcquireGroupOwnershipRequest(
                    group_id=name, broker_id=chance.randrange(3), broker_epoch=9, create=True
                )
            )
            continue
        fields: dict[str, Any] = {
            "group_id": name,
            "ownership_epoch": group.ownership_epoch,
            "sequence": group.sequence + 1,
        }
        act = chance.random()
        if act < 0.3:
            members = tuple(member(f"m{index}") for index in range(chance.randrange(3)))
            request: Request = rpc.CommitGroupGenerationRequest(
                **fields,
                generation=group.generation_id + 1,
                protocol_type="consumer",
                protocol_name="range" if members else None,
                leader="m0" if members else None,
                members=members,
            )
        elif act < 0.4:
            request = rpc.WriteGroupMarkersRequest(
                producer_ids=(chance.randrange(3),),
                transaction_numbers=(chance.randrange(4),),
                committed=(chance.random() < 0.5,),
            )
        elif act < 0.9:
            commit = rpc.CommitGroupOffsetsRequest.Commit
            partition = commit.Topic.Partition(
                partition_index=chance.randrange(3),
                committed_offset=chance.randrange(100),
                leader_epoch=0,
                metadata="",
            )
            topic = commit.Topic(
                topic_name="t", topic_id=UUID(int=7), partitions=(partition, partition)
            )
            one = commit(
                generation=group.generation_id if group.member_ids else -1,
                member_id=min(group.member_ids, default=""),
                topics=(topic,),
            )
            request = rpc.CommitGroupOffsetsRequest(**fields, commits=(one,))
            if act > 0.6:
                pending = rpc.CommitTransactionalOffsetsRequest.Commit(
                    producer_id=chance.randrange(3),
                    producer_epoch=0,
                    transaction_number=chance.randrange(4),
                    generation=one.generation,
                    member_id=one.member_id,
                    topics=one.topics,
                )
                request = rpc.CommitTransactionalOffsetsRequest(**fields, commits=(pending,))
        else:
            request = rpc.RemoveGroupRequest(group_id=name)
        node.ask(request)


@pytest.mark.parametrize("seed", seeds(5))
def test_a_consumer_group_checkpoint_and_the_later_log_give_the_state_of_the_whole_log(
    seed: int,
) -> None:
    chance = random.Random(seed)
    node = Node()
    node.lead()
    random_requests(node, chance, 40)
    node.take()
    random_requests(node, chance, 30)
    assert node.state.contradictions == 0
    node.restart()
    node.loop.settle()
    assert node.host.loaded == 1
    node.lead()
    random_requests(node, chance, 10)
    newest = node.take()
    whole = MemoryLog()
    for stored in node.log._stored:
        if stored.end_offset <= newest.offset:
            whole._append(stored.data, stored.end_offset - stored.base_offset, stored.epoch)
    fresh = Node(whole)
    whole.commit()
    fresh.loop.settle()
    assert fresh.take() == newest
    assert fresh.content() == node.content(newest)
    assert fresh.machine.changed_records == 0
