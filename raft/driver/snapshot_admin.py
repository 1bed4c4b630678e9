"""Serves DescribeSnapshots and TakeSnapshot: list a node's checkpoints, and take one now.

Each node answers for itself, leader or not, since every replica keeps checkpoints of its own.

Source: `records.rpc.snapshots`; KIP-630.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from raft.driver.group import GroupDriver
from raft.driver.snapshot_hosting import HostedMachine, SnapshotOutcome
from raft.net import Frame, Payload, RequestHeader, ServerConnection
from raft.net.handlers import Served, payload
from raft.wire.responses import Group, GroupRef, wire_node
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc.snapshots import (
    DescribeSnapshotsRequest,
    DescribeSnapshotsResponse,
    TakeSnapshotRequest,
    TakeSnapshotResponse,
)
from records.types import NodeId, OffsetAndEpoch

MAX_PARTITIONS: Final = 1_000  # in one request
MAX_TIMEOUT_MS: Final = 3_600_000

_Described = DescribeSnapshotsResponse.Group


class SnapshotHost(Protocol):
    """The part of a node that snapshot administration uses."""

    cluster_id: str
    node_id: NodeId
    groups: dict[Group, GroupDriver]
    hosted: dict[Group, HostedMachine]

    def find(self, ref: GroupRef) -> GroupDriver | None: ...


class SnapshotAdmin:
    """Serves DescribeSnapshots and TakeSnapshot."""

    def __init__(self, host: SnapshotHost) -> None:
        self._host = host

    @property
    def handlers(self) -> Mapping[int, Served]:
        """Return the handlers of DescribeSnapshots and TakeSnapshot requests by api key."""
        return {1110: Served(0, 0, self._describe), 1111: Served(0, 0, self._take)}

    async def _describe(
        self,
        connection: ServerConnection,  # noqa: ARG002 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Payload:
        """Describe the snapshots of the requested groups, or of all groups if none is named."""
        message = decode_message(DescribeSnapshotsRequest, body, header.api_version)
        asked = [
            GroupRef(topic.topic_name, index)
            for topic in message.topics
            for index in topic.partitions
        ]
        host, response = self._host, DescribeSnapshotsResponse
        if len(asked) > MAX_PARTITIONS:
            return payload(
                header,
                response(
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message=f"{len(asked)} partitions, at most {MAX_PARTITIONS}",
                ),
            )
        found: Iterable[tuple[GroupRef, GroupDriver | None]] = (
            [(ref, host.find(ref)) for ref in asked]
            if message.topics
            else [(GroupRef(g.topic, g.partition), one) for g, one in sorted(host.groups.items())]
        )
        groups = [await self._describe_group(ref, driver) for ref, driver in found]
        return payload(
            header,
            response(cluster_id=host.cluster_id, node_id=host.node_id, groups=tuple(groups)),
        )

    async def _describe_group(self, ref: GroupRef, driver: GroupDriver | None) -> _Described:
        if driver is None or driver.stopped:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return _Described(
                topic_name=str(ref.topic), partition_index=ref.partition, error_code=error
            )
        ids = tuple(driver.snapshots.ids)
        sizes = await asyncio.to_thread(_sizes, driver, ids)
        hosted = self._host.hosted.get(driver.group)
        high_watermark = driver.high_watermark
        return _Described(
            topic_name=driver.group.topic,
            partition_index=driver.group.partition,
            leader_id=wire_node(driver.leader_id),
            leader_epoch=driver.quorum.epoch,
            log_start_offset=driver.start_offset,
            log_end_offset=driver.end_offset,
            high_watermark=-1 if high_watermark is None else high_watermark,
            log_size=driver.storage.log.size_bytes,
            applied_offset=-1 if hosted is None else hosted.applied_offset,
            generating=hosted is not None and hosted.generating,
            receiving=driver.fetcher is not None and driver.fetcher.receiving is not None,
            snapshots=tuple(
                _Described.Snapshot(end_offset=one.offset, epoch=one.epoch, size=size)
                for one, size in zip(ids, sizes, strict=True)
                if size is not None
            ),
            floor=driver.quorum.log.floor,
            doubt=driver.doubt or "",
        )

    async def _take(
        self,
        connection: ServerConnection,  # noqa: ARG002 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Payload:
        """Make the requested group take a checkpoint, and return a response with the outcome."""
        message = decode_message(TakeSnapshotRequest, body, header.api_version)
        return payload(header, await self._take_response(message))

    async def _take_response(self, message: TakeSnapshotRequest) -> TakeSnapshotResponse:
        refused = TakeSnapshotResponse
        driver = self._host.find(GroupRef(message.topic_name, message.partition_index))
        if driver is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return refused(error_code=unknown, error_message="this node has no such group")
        hosted = self._host.hosted.get(driver.group)
        if hosted is None:
            return refused(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"{driver.name} has no state machine on this node",
            )
        if not 0 <= message.timeout_ms <= MAX_TIMEOUT_MS:
            return refused(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"timeout_ms={message.timeout_ms}: 0 to {MAX_TIMEOUT_MS}",
            )
        future: asyncio.Future[SnapshotOutcome] = asyncio.get_running_loop().create_future()

        def done(taken: SnapshotOutcome) -> None:
            if not future.done():
                future.set_result(taken)

        hosted.take_now(done)
        try:
            async with asyncio.timeout(message.timeout_ms / 1_000):
                taken = await future
        except TimeoutError:
            late = ErrorCode.REQUEST_TIMED_OUT
            why = "it is still being written"
            if not hosted.generating:
                why = (
                    "the state allows none now: a transaction is open, it is being loaded, or it "
                    "met a record of a later version (the node's log says which)"
                )
            return refused(error_code=late, error_message=why)
        snapshot_id = taken.snapshot_id
        if taken.error is not None or snapshot_id is None:
            error = ErrorCode.KAFKA_STORAGE_ERROR if taken.broken else ErrorCode.INVALID_REQUEST
            return refused(error_code=error, error_message=taken.error or "there is no state yet")
        (size,) = await asyncio.to_thread(_sizes, driver, (snapshot_id,))
        return TakeSnapshotResponse(
            end_offset=snapshot_id.offset, epoch=snapshot_id.epoch, size=size or -1
        )


def _sizes(driver: GroupDriver, ids: Sequence[OffsetAndEpoch]) -> list[int | None]:
    """Return the sizes of checkpoint files in bytes, with None for deleted files."""
    sizes: list[int | None] = []
    for snapshot_id in ids:
        try:
            sizes.append(driver.snapshots.size_bytes(snapshot_id))
        except OSError:
            sizes.append(None)
    return sizes
