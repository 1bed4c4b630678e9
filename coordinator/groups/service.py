"""The group log's requests on a quorum node's listener.

Reads and refusals are answered behind the read barrier: a node that was deposed and does not know
it must not answer that a group is unknown, or that a broker no longer owns it. A request that wrote
a record needs no barrier: a majority holds the record.

Source: docs/design/quorum.md#linearizable-reads, docs/design/groups.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.errors import CoordinatorError
from coordinator.groups.leader import GroupLog
from coordinator.groups.pending import CommittedOffset, TopicPartition
from coordinator.groups.settings import MAX_COMMIT_BYTES, MAX_GENERATION_BYTES
from coordinator.groups.state import Group, GroupsImage
from raft.interfaces import NotLeaderError
from raft.net.connection import Answer, ServerConnection
from raft.net.errors import BadHeaderError
from raft.net.frames import Frame, Payload
from raft.net.handlers import Serve, Served, payload
from raft.net.header import RequestHeader
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc import group_log as rpc
from records.rpc.base import Request
from records.types import ZERO_UUID

MAX_CALL_BYTES: Final = 2 * max(MAX_COMMIT_BYTES, MAX_GENERATION_BYTES)
"""The longest request that is decoded; a longer one closes its connection."""

CALLS: Final[dict[type[Request], Any]] = {
    rpc.AcquireGroupOwnershipRequest: rpc.AcquireGroupOwnershipResponse,
    rpc.CommitGroupOffsetsRequest: rpc.CommitGroupOffsetsResponse,
    rpc.CommitGroupGenerationRequest: rpc.CommitGroupGenerationResponse,
    rpc.FetchGroupStateRequest: rpc.FetchGroupStateResponse,
    rpc.RemoveGroupRequest: rpc.RemoveGroupResponse,
    rpc.RemoveGroupOffsetsRequest: rpc.RemoveGroupOffsetsResponse,
    rpc.CommitTransactionalOffsetsRequest: rpc.CommitTransactionalOffsetsResponse,
    rpc.WriteGroupMarkersRequest: rpc.WriteGroupMarkersResponse,
}
"""Every request of this service, and its response."""

_NO_OFFSET: Final = CommittedOffset(-1, -1, "", -1, -1, ZERO_UUID)

FindGroupLog = Callable[[], GroupLog | None]
"""Returns the group log on this node, or None if this node has none."""


def group_log_handlers(find: FindGroupLog) -> Mapping[int, Served]:
    """Return the handlers of the group log's requests, by api key."""
    handlers = {}
    for request_type in CALLS:
        schema = request_type.schema()
        assert schema.key is not None, f"{schema.name} is no request"
        handlers[schema.key] = Served(
            schema.versions.first, schema.versions.last, _make_handler(request_type, find)
        )
    return handlers


def _make_handler(request_type: type[Request], find: FindGroupLog) -> Serve:
    def serve(
        connection: ServerConnection,  # noqa: ARG001 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Answer:
        if len(body) > MAX_CALL_BYTES:
            name = request_type.schema().name
            raise BadHeaderError(f"{name} of {len(body)} bytes, the limit is {MAX_CALL_BYTES}")
        request = decode_message(request_type, body, header.api_version)
        return _answer(find(), header, request)

    return serve


async def _answer(groups: GroupLog | None, header: RequestHeader, request: Request) -> Payload:
    try:
        if groups is None:
            raise NotLeaderError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = await ask(groups, request)
    except CoordinatorError as error:
        response = CALLS[type(request)](error_code=int(error.code), error_message=error.message)
    except NotLeaderError as error:
        code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = CALLS[type(request)](error_code=code, error_message=str(error))
    return payload(header, response)


async def ask(groups: GroupLog, request: Request) -> Any:
    """Answer a group log request, by a decision or from the state of all committed records.

    Raises:  CoordinatorError or NotLeaderError if the outcome is unknown.
    """
    if isinstance(request, rpc.FetchGroupStateRequest):
        await _barrier(groups)
        return fetch_state(request, groups.machine.image)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(answer: Any) -> None:
        if future.done():
            return  # the connection was closed
        if isinstance(answer, CoordinatorError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    groups.ask(request, done)
    response = await future
    may_not_write = isinstance(  # there may be no offset, and no transaction
        request, rpc.RemoveGroupOffsetsRequest | rpc.WriteGroupMarkersRequest
    )
    if response.error_code or any(getattr(response, "commit_errors", ())) or may_not_write:
        await groups.log.barrier()
    return response


async def _barrier(groups: GroupLog) -> None:
    """Wait until the state has every record that a client may know to be committed."""
    offset = await groups.log.barrier()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done() -> None:
        if not future.done():
            future.set_result(None)

    groups.when_applied(offset, on_done)
    await future


def fetch_state(
    request: rpc.FetchGroupStateRequest, image: GroupsImage
) -> rpc.FetchGroupStateResponse:
    """Return a consumer group's committed state, or GROUP_ID_NOT_FOUND."""
    group = image.groups.get(request.group_id)
    if group is None:
        return rpc.FetchGroupStateResponse(error_code=int(ErrorCode.GROUP_ID_NOT_FOUND))
    generation = group.generation if request.with_members else None
    topics = _topics(request, group)
    if generation is None:
        return rpc.FetchGroupStateResponse(generation=group.generation_id, topics=topics)
    return rpc.FetchGroupStateResponse(
        generation=generation.generation,
        protocol_type=generation.protocol_type,
        protocol_name=generation.protocol_name,
        leader=generation.leader,
        members=generation.members,
        topics=topics,
    )


def _topics(
    request: rpc.FetchGroupStateRequest, group: Group
) -> tuple[rpc.FetchGroupStateResponse.Topic, ...]:
    unstable = group.pending.by_partition if request.require_stable else {}
    if request.topics is None:
        topic_partitions = sorted({*group.offsets, *unstable})
    else:
        topic_partitions = [
            (topic.topic_name, p) for topic in request.topics for p in topic.partitions
        ]
    by_topic: dict[str, list[rpc.FetchGroupStateResponse.Topic.Partition]] = {}
    for topic_partition in topic_partitions:
        committed: CommittedOffset | None = group.offsets.get(topic_partition)
        if committed is not None or topic_partition in unstable:
            by_topic.setdefault(topic_partition[0], []).append(
                _partition(
                    topic_partition,
                    committed or _NO_OFFSET,
                    is_unstable=topic_partition in unstable,
                )
            )
    return tuple(
        rpc.FetchGroupStateResponse.Topic(topic_name=name, partitions=tuple(partitions))
        for name, partitions in by_topic.items()
    )


def _partition(
    topic_partition: TopicPartition, committed: CommittedOffset, *, is_unstable: bool
) -> rpc.FetchGroupStateResponse.Topic.Partition:
    return rpc.FetchGroupStateResponse.Topic.Partition(
        partition_index=topic_partition[1],
        committed_offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        committed_at_ms=committed.committed_at_ms,
        topic_id=committed.topic_id,
        is_unstable=is_unstable,
    )
