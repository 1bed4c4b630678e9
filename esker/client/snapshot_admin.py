"""Requests of the command line on the checkpoints of a quorum's nodes.

Checkpoints are each replica's own, so every node is asked: those that any answering controller
names, and those of the bootstrap list that it does not name (an observer, say). A node that does
not answer is no reason to say nothing of the others.

Source: KIP-630; KIP-919 (controllers as bootstrap servers).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from esker.client.quorum_admin import AdminError, ask_first, controllers
from esker.settings.values import Endpoint
from raft.net.errors import NetError
from raft.net.rpc import open_rpc
from records.rpc.base import Request, Response
from records.rpc.snapshots import (
    DescribeSnapshotsRequest,
    DescribeSnapshotsResponse,
    TakeSnapshotRequest,
    TakeSnapshotResponse,
)

R = TypeVar("R", bound=Response)

Group = DescribeSnapshotsResponse.Group
_GRACE_MS = 5_000  # how much longer than the node we wait for its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshots:
    """One node's answer on its logs and checkpoints, or the reason of its `failure`."""

    endpoint: Endpoint
    node_id: int = -1
    groups: tuple[Group, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The result of one node's request to take a checkpoint."""

    endpoint: Endpoint
    node_id: int
    answer: TakeSnapshotResponse | None = None
    failure: str | None = None


async def describe_snapshots(
    bootstrap: tuple[Endpoint, ...], group: tuple[str, int] | None, *, timeout_ms: int
) -> list[NodeSnapshots]:
    """Return every node's checkpoints by node id, and the nodes that did not answer.

    Args:    group: topic and partition; None: all.
    Raises:  AdminError if no controller of the bootstrap list answers.
    """
    topics: tuple[DescribeSnapshotsRequest.Topic, ...] = ()
    if group is not None:
        topics = (DescribeSnapshotsRequest.Topic(topic_name=group[0], partitions=(group[1],)),)
    request = DescribeSnapshotsRequest(topics=topics)

    async def one(endpoint: Endpoint) -> NodeSnapshots:
        try:
            answer = await _ask(endpoint, request, DescribeSnapshotsResponse, timeout_ms)
        except NetError as error:
            return NodeSnapshots(endpoint=endpoint, failure=str(error))
        failure = None
        if answer.error_code:
            failure = answer.error_message or f"error {answer.error_code}"
        return NodeSnapshots(
            endpoint=endpoint, node_id=answer.node_id, groups=answer.groups, failure=failure
        )

    found = await asyncio.gather(*map(one, await _everybody(bootstrap, timeout_ms)))
    by_id: dict[int, NodeSnapshots] = {}
    for said in found:  # one node may be known by two addresses
        if said.failure is None:
            by_id.setdefault(said.node_id, said)
    silent = [said for said in found if said.failure is not None]
    return [by_id[node] for node in sorted(by_id)] + silent


async def take_snapshots(
    bootstrap: tuple[Endpoint, ...],
    group: tuple[str, int],
    nodes: frozenset[int] | None,
    *,
    timeout_ms: int,
    take_timeout_ms: int,
) -> list[Taken]:
    """Make nodes take a checkpoint of a partition's log now, one node after the other.

    One after the other, for a node that writes a checkpoint is a slower voter meanwhile.

    Args:    nodes: which; None: every one that answers.
             timeout_ms: to find out who there is; take_timeout_ms: for each checkpoint.
    Raises:  AdminError if no controller answers, or none has one of `nodes`.
    """
    known = await describe_snapshots(bootstrap, group, timeout_ms=timeout_ms)
    if nodes is not None and (missing := nodes - {said.node_id for said in known}):
        names = ", ".join(str(node) for node in sorted(missing))
        raise AdminError(f"no node {names} answers: is its address among --bootstrap-controller?")
    request = TakeSnapshotRequest(
        topic_name=group[0], partition_index=group[1], timeout_ms=take_timeout_ms
    )
    taken = []
    for said in known:
        if said.failure is not None:
            if nodes is None:
                taken.append(Taken(endpoint=said.endpoint, node_id=-1, failure=said.failure))
            continue
        if nodes is not None and said.node_id not in nodes:
            continue
        try:
            answer = await _ask(
                said.endpoint, request, TakeSnapshotResponse, take_timeout_ms + _GRACE_MS
            )
        except NetError as error:
            taken.append(Taken(endpoint=said.endpoint, node_id=said.node_id, failure=str(error)))
            continue
        failure = None
        if answer.error_code:
            failure = answer.error_message or f"error {answer.error_code}"
        taken.append(
            Taken(endpoint=said.endpoint, node_id=said.node_id, answer=answer, failure=failure)
        )
    return taken


async def _everybody(bootstrap: tuple[Endpoint, ...], timeout_ms: int) -> list[Endpoint]:
    """Return the controllers of the quorum, followed by other nodes of the bootstrap list."""
    named = controllers(await ask_first(bootstrap, timeout_ms))
    return list(dict.fromkeys([*named, *bootstrap]))


async def _ask(endpoint: Endpoint, request: Request, answer: type[R], timeout_ms: int) -> R:
    async with await open_rpc(endpoint.host, endpoint.port, timeout_ms=timeout_ms) as rpc:
        return await rpc.call(request, answer)
