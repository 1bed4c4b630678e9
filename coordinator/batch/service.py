"""A batch coordinator behind the controller listener: requests in, responses out.

A node may stand in several groups of `__diskless-metadata`, so a request names its coordinator and
`find` knows it. What the coordinator raises becomes a response with Kafka's code. Requests of one
connection reach it in the order in which they were sent, also while earlier ones wait for the
quorum: commits of a broker are decided in the order of its objects.

The trap: a request's cost is bounded by its length, before anything is decoded. A row of a commit
has 56 bytes, so a longer request than 10,000 of them in partitions of their own cannot be one that
would be accepted, and is answered MESSAGE_TOO_LARGE unread.

Source: docs/design/numbers.md#seed-numbers-plus-1000, docs/design/state-machines.md#bounded-work;
KIP-1164, Protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.batch.calls import CALLS, Call, refuse
from coordinator.batch.interface import BatchCoordinator
from coordinator.batch.settings import MAX_BATCHES
from coordinator.errors import CoordinatorError
from raft.net.connection import Answer, ServerConnection
from raft.net.errors import BadHeaderError
from raft.net.frames import Frame, Payload
from raft.net.handlers import Serve, Served, payload
from raft.net.header import RequestHeader
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest
from records.rpc.batch_coordinator import CommitBatchesRequest, CommitBatchesResponse

_ROW_BYTES: Final = 56  # of a batch, with its empty tagged fields
_PARTITION_BYTES: Final = 4 + 3 + 1  # index, count, tagged fields
_TOPIC_BYTES: Final = 16 + 3 + 1

MAX_COMMIT_BYTES: Final = 1024 + MAX_BATCHES * (_ROW_BYTES + _PARTITION_BYTES + _TOPIC_BYTES)
"""The longest CommitBatches that is looked at: 10,000 batches, each of a topic of its own."""

MAX_CALL_BYTES: Final = 1024 * 1024
"""The longest of the others. What is longer closes its connection."""

Find = Callable[[int], BatchCoordinator | None]
"""The coordinator of a partition of `__diskless-metadata` on this node, if there is one."""


def coordinator_handlers(find: Find) -> Mapping[int, Served]:
    """Return the request handlers of a node's batch coordinators, by api key."""
    handlers = {}
    for call in CALLS:
        schema = call.request.schema()
        assert schema.key is not None, f"{schema.name} is no request"
        handlers[schema.key] = Served(
            schema.versions.first, schema.versions.last, _server(call, find)
        )
    return handlers


def _server(call: Call[Any], find: Find) -> Serve:
    commits = call.request is CommitBatchesRequest

    def serve(
        connection: ServerConnection,  # noqa: ARG001 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Answer:
        if commits and len(body) > MAX_COMMIT_BYTES:
            return payload(header, _too_large(len(body)))
        if not commits and len(body) > MAX_CALL_BYTES:
            raise BadHeaderError(
                f"{call.request.schema().name} of {len(body)} bytes, the limit is {MAX_CALL_BYTES}"
            )
        return _answer(find, header, decode_message(call.request, body, header.api_version))

    return serve


async def _answer(find: Find, header: RequestHeader, request: CoordinatorRequest[Any]) -> Payload:
    coordinator = find(request.coordinator_partition)
    if coordinator is None:
        message = f"this node has no coordinator for partition {request.coordinator_partition}"
        return payload(header, refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, message))
    try:
        response = await coordinator.call(request)
    except CoordinatorError as error:
        response = refuse(request, error.code, error.message)
    return payload(header, response)


def _too_large(size: int) -> CommitBatchesResponse:
    return CommitBatchesResponse(
        error_code=ErrorCode.MESSAGE_TOO_LARGE,
        error_message=f"{size} bytes; an object has at most {MAX_BATCHES} batches",
    )
