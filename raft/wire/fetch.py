"""Translates Fetch, the message that carries the log.

A Fetch names its group by topic (up to version 12) or topic id (from 13), its sender by a field
(up to 14) or a tagged structure (from 15). Record bytes are never copied here: those received stay
views into the receive buffer, those sent are handed on as they are.

Received batches are checked (length, magic, CRC) and then travel as *runs*: neighbours of one
epoch with no gap between them become one `Batch` of the core, which asks only where batches end.
A fetched megabyte of tiny batches then costs the core one append, not thousands. What follows a bad
batch is dropped; the next Fetch asks for it again.

Source: KIP-595, Fetch; KIP-516 (topic ids); KIP-903 (ReplicaState); KIP-1166 (high watermark).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from raft.core import messages as core
from raft.core.voters import ReplicaKey
from raft.wire.common import (
    BadRequestError,
    Group,
    GroupRef,
    UnexpectedAnswerError,
    checked_epoch,
    checked_offset,
    known_error,
    only,
    optional_node,
    wire_node,
)
from raft.wire.responses import Answering
from records.batch import CRC_START, HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from records.kafka_errors import ErrorCode
from records.rpc import fetch as rpc
from records.types import ZERO_UUID, Epoch, NodeId, Offset, OffsetAndEpoch

UNKNOWN_HIGH_WATERMARK: Final = -1
UNKNOWN_FLOOR: Final = -1
_DIVERGENCE_FROM: Final = 12  # and the leader's epoch, and snapshots
_TOPIC_IDS_FROM: Final = 13
_REPLICA_STATE_FROM: Final = 15
_HIGH_WATERMARK_FROM: Final = 18

_LEAST_LENGTH: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES
_unpack_fields: Final = struct.Struct(">qiiBI2xi30xi").unpack_from
"""A batch's base offset, length, epoch, magic, checksum, last offset delta, record count."""

Partition = rpc.FetchResponse.FetchableTopicResponse.PartitionData
Topic = rpc.FetchResponse.FetchableTopicResponse


# --- sent by a replica ---------------------------------------------------------------------------


def write_fetch(
    group: Group, request: core.FetchRequest, version: int, wall_clock_ms: int = -1
) -> rpc.FetchRequest:
    """Convert the Raft core's Fetch request into an RPC message of version `version`.

    Args:  wall_clock_ms: this node's, ms since 1970, or -1.
    """
    topic = rpc.FetchRequest.FetchTopic
    high_watermark = request.high_watermark
    partition = topic.FetchPartition(
        partition=group.partition,
        current_leader_epoch=request.epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=UNKNOWN_HIGH_WATERMARK if high_watermark is None else high_watermark,
        floor=request.floor or UNKNOWN_FLOOR,
    )
    with_ids = version >= _TOPIC_IDS_FROM
    with_state = version >= _REPLICA_STATE_FROM
    state = rpc.FetchRequest.ReplicaState
    return rpc.FetchRequest(
        cluster_id=request.cluster_id,
        replica_id=-1 if with_state else request.replica.id,
        replica_state=state(replica_id=request.replica.id) if with_state else state(),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=(
            topic(
                topic="" if with_ids else group.topic,
                topic_id=group.topic_id if with_ids else ZERO_UUID,
                partitions=(partition,),
            ),
        ),
        wall_clock_ms=wall_clock_ms,
    )


def read_fetch_response(message: rpc.FetchResponse) -> core.FetchResponse:
    """Convert a leader's Fetch response from RPC to a message of the Raft core.

    Raises UnexpectedAnswerError.
    """
    top = known_error(message.error_code, "Fetch")
    if top is not ErrorCode.NONE:
        return core.FetchResponse(error=top, leader_id=None, epoch=Epoch(0))
    if len(message.responses) != 1 or len(message.responses[0].partitions) != 1:
        raise UnexpectedAnswerError(0, "Fetch answer not about one group")
    partition = message.responses[0].partitions[0]
    error = known_error(partition.error_code, "Fetch")
    leader = partition.current_leader
    if leader.leader_epoch < 0:
        raise UnexpectedAnswerError(error, f"Fetch answer of epoch {leader.leader_epoch}")
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    high_watermark, log_start = partition.high_watermark, partition.log_start_offset
    return core.FetchResponse(
        error=error,
        leader_id=optional_node(leader.leader_id),
        epoch=Epoch(leader.leader_epoch),
        high_watermark=Offset(high_watermark) if high_watermark >= 0 else None,
        log_start_offset=Offset(log_start) if log_start >= 0 else None,
        diverging=(
            core.EpochEnd(Epoch(diverging.epoch), Offset(diverging.end_offset))
            if diverging.epoch >= 0 and diverging.end_offset >= 0
            else None
        ),
        snapshot_id=(
            OffsetAndEpoch(Offset(snapshot.end_offset), Epoch(snapshot.epoch))
            if snapshot.epoch >= 0 and snapshot.end_offset >= 0
            else None
        ),
        batches=read_batches(partition.records) if partition.records else (),
    )


def read_batches(records: bytes | memoryview) -> tuple[core.Batch, ...]:
    """Return the valid batches at the start of `records`, joining contiguous ones of an epoch.

    A run's `data` is the view of its bytes.
    """
    view = memoryview(records)
    runs: list[core.Batch] = []
    available = len(view)
    start = at = 0  # of the run, of the batch
    base, expected, run_epoch = -1, -1, -1  # of the run: first offset, end offset, epoch
    while available - at >= HEADER_SIZE_BYTES:
        offset, length, epoch, magic, crc, delta, count = _unpack_fields(view, at)
        end = at + LOG_OVERHEAD_BYTES + length
        if (
            magic != MAGIC
            or length < _LEAST_LENGTH
            or end > available
            or offset < 0
            or epoch < 0
            or delta < 0
            or offset + delta >= core.MAX_OFFSET
            or not 0 <= count <= delta + 1
            or crc32c(view[at + CRC_START : end]) != crc
        ):
            break  # dropped with all after it, as upstream does since KAFKA-18723
        if offset != expected or epoch != run_epoch:
            if at > start:
                runs.append(_run(base, expected, run_epoch, view[start:at]))
            start, base, run_epoch = at, offset, epoch
        expected = offset + delta + 1
        at = end
    if at > start:
        runs.append(_run(base, expected, run_epoch, view[start:at]))
    return tuple(runs)


def _run(base: int, end: int, epoch: int, view: memoryview) -> core.Batch:
    return core.Batch(Offset(base), Offset(end), Epoch(epoch), len(view), view)


# --- received by a leader ------------------------------------------------------------------------


class FetchForm(NamedTuple):
    """The form in which a Fetch named its group, so that its response uses the same form."""

    topic: str
    topic_id: UUID


def replica_of(message: rpc.FetchRequest) -> NodeId | None:
    """Return the replica that sent a Fetch, or None for a consumer."""
    state_id = message.replica_state.replica_id
    return optional_node(state_id if state_id >= 0 else message.replica_id)


def fetch_ref(message: rpc.FetchRequest, version: int) -> tuple[GroupRef, FetchForm]:
    """Return the only group that a Fetch names, and the topic name and id for its response.

    Raises BadRequestError.
    """
    topic = only(message.topics, "topics")
    partition = only(topic.partitions, "partitions")
    name = topic.topic_id if version >= _TOPIC_IDS_FROM else topic.topic
    return GroupRef(name, partition.partition), FetchForm(topic.topic, topic.topic_id)


def archived_offset_of(message: rpc.FetchRequest) -> Offset | None:
    """Return the offset up to which an archive has stored the log; None for another sender."""
    offset = message.topics[0].partitions[0].archived_offset
    return Offset(offset) if offset >= 0 else None


def read_fetch(message: rpc.FetchRequest, version: int) -> core.FetchRequest:
    """Convert a replica's Fetch request from RPC to a message of the Raft core.

    Raises BadRequestError.
    """
    partition = message.topics[0].partitions[0]
    replica = replica_of(message)
    if replica is None:
        raise BadRequestError("a consumer's Fetch")
    if version < _DIVERGENCE_FROM:
        raise BadRequestError(f"a replica's Fetch of version {version}, which cannot be told more")
    if version < _HIGH_WATERMARK_FROM:
        high_watermark: Offset | None = core.MAX_OFFSET
    elif partition.high_watermark < 0:
        high_watermark = None
    else:
        high_watermark = Offset(partition.high_watermark)
    return core.FetchRequest(
        cluster_id=message.cluster_id,
        replica=ReplicaKey(replica, partition.replica_directory_id),
        epoch=checked_epoch(partition.current_leader_epoch),
        fetch_offset=checked_offset(partition.fetch_offset),
        last_fetched_epoch=checked_epoch(partition.last_fetched_epoch),
        high_watermark=high_watermark,
        floor=Offset(max(0, partition.floor)),
        max_wait_ms=max(0, message.max_wait_ms),
        max_bytes=max(0, min(message.max_bytes, partition.partition_max_bytes)),
    )


def write_fetch_response(
    response: core.FetchResponse,
    to: Answering,
    form: FetchForm,
    records: bytes | memoryview = b"",
    *,
    error: int | None = None,
) -> rpc.FetchResponse:
    """Convert the Raft core's Fetch response into an RPC message with the batches uncopied.

    Args:    error: of the partition, if it is one that the core has no word for.
    """
    if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return rpc.FetchResponse(error_code=response.error, responses=())
    diverging, snapshot = response.diverging, response.snapshot_id
    high_watermark, log_start = response.high_watermark, response.log_start_offset
    partition = Partition(
        partition_index=to.group.partition,
        error_code=response.error if error is None else error,
        high_watermark=-1 if high_watermark is None else high_watermark,
        last_stable_offset=-1 if high_watermark is None else high_watermark,
        log_start_offset=-1 if log_start is None else log_start,
        diverging_epoch=(
            Partition.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
            if diverging
            else Partition.EpochEndOffset()
        ),
        current_leader=Partition.LeaderIdAndEpoch(
            leader_id=wire_node(response.leader_id), leader_epoch=response.epoch
        ),
        snapshot_id=(
            Partition.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch)
            if snapshot
            else Partition.SnapshotId()
        ),
        aborted_transactions=None,
        records=records,
    )
    endpoint = to.leader_endpoint
    nodes: tuple[rpc.FetchResponse.NodeEndpoint, ...] = ()
    if response.leader_id is not None and endpoint is not None:
        node = rpc.FetchResponse.NodeEndpoint
        nodes = (node(node_id=response.leader_id, host=endpoint.host, port=endpoint.port),)
    return rpc.FetchResponse(
        responses=(Topic(topic=form.topic, topic_id=form.topic_id, partitions=(partition,)),),
        node_endpoints=nodes,
    )


def refuse_fetch(ref: GroupRef, form: FetchForm, error: int | None = None) -> rpc.FetchResponse:
    """Return a Fetch response with only an error code, by default that of an unknown group."""
    if error is None:
        by_id = isinstance(ref.topic, UUID)
        error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = Partition(
        partition_index=ref.partition,
        error_code=error,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )
    return rpc.FetchResponse(
        responses=(Topic(topic=form.topic, topic_id=form.topic_id, partitions=(partition,)),)
    )
