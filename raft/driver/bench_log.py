"""Serves `esker-bench-log`, a group that ordinary clients may write and read; off by default.

It has no state machine. Produce (acks=all) appends whole record batches as they are: they are
checked, given their offsets, replicated, and answered once committed, without being decoded or
encoded again. Fetch by a consumer, and ListOffsets, are linearizable: both wait behind the read
barrier, and return nothing above the high watermark.

The requests of one turn of the loop become one proposal. A client's requests differ from each other
in little but their records, and their answers in two numbers: both are handled by templates
(`raft.driver.request_templates`), at a fraction of the cost of decoding and encoding.

Source: the protocol guide, Produce, Fetch, ListOffsets; docs/design/quorum.md#linearizable-reads.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from raft.core.messages import FetchResponse
from raft.core.voters import Endpoint
from raft.driver.group import GroupDriver
from raft.driver.request_templates import RequestTemplates, Success, success_of
from raft.interfaces import Draft, NotLeaderError
from raft.net import (
    Frame,
    NetError,
    Payload,
    Reason,
    Reply,
    RequestHeader,
    ServerConnection,
    parse_request_header,
)
from raft.net.handlers import payload
from raft.wire.fetch import FetchForm, write_fetch_response
from raft.wire.responses import Answering
from records.batch import HEADER_SIZE_BYTES, BatchHeader, iter_batches
from records.codec import decode_message, encode_message
from records.compression import Buffer
from records.errors import CorruptBatchError, IncompleteBatchError, RecordError
from records.kafka_errors import ErrorCode
from records.rpc import fetch as fetch_rpc
from records.rpc import produce as rpc
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

ACKS_ALL: Final = -1
TICKET_BYTES: Final = 4 * 1024 * 1024  # a turn's batches are proposed in parts of about this size
MAX_WAIT_MS: Final = 30_000  # the longest a consumer's Fetch is held

_MARK: Final = 0x0102_0304_0506_0708  # stands for the base offset in an answer's frame
_put: Final = struct.Struct(">q").pack
FIRST_FLEXIBLE: Final[dict[int, int | None]] = {0: 9}


_Waiting: TypeAlias = tuple[Reply, int, Success, int, RequestHeader | None, Frame]
"""A Produce request whose batches are proposed and not yet committed: its reply, its correlation
id, the form of its answer, the offset of its first record relative to the ticket's base offset, its
header, and its body. Without a header, the body is the whole frame.

A plain tuple, because it is made, and taken apart, for every request: a named one takes twice the
time for either."""


class _Ticket:
    """The batches of one turn of the loop, proposed together."""

    __slots__ = (
        "base_offset",
        "counts",
        "end_offset",
        "log",
        "parts",
        "records",
        "size",
        "waiting",
    )

    def __init__(self, log: BenchLog) -> None:
        self.log = log
        self.parts: list[Buffer] = []
        self.counts: list[int] = []
        self.waiting: list[_Waiting] = []
        self.records = 0
        self.size = 0
        self.base_offset = Offset(0)
        self.end_offset = Offset(0)

    def add(self, batch: Buffer, count: int) -> None:
        self.parts.append(batch)
        self.counts.append(count)
        self.records += count
        self.size += len(batch)

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:  # noqa: ARG002
        self.base_offset, self.end_offset = base_offset, end_offset
        self.parts = []
        self.log.uncommitted.append(self)

    def refused(self, error: int) -> None:
        self.parts = []
        self.log.refuse(self, error)


class BenchLog:
    """Serves one group to clients, and watches it for commits."""

    def __init__(self, group: GroupDriver, endpoints: Callable[[NodeId], Endpoint | None]) -> None:
        self.group = group
        self.uncommitted: deque[_Ticket] = deque()
        self._endpoints = endpoints
        self._ticket: _Ticket | None = None  # of this turn
        self._full: list[_Ticket] = []  # of this turn, too
        self._successes: dict[tuple[int, str, object], Success] = {}
        self._templates = RequestTemplates()
        self._commit_waiters: set[asyncio.Future[None]] = set()  # of consumers' Fetches
        group.on_turn.append(self._propose_turn)
        group.watch(self)

    # --- Produce ------------------------------------------------------------------------------

    def produce(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Payload | Reply | None:
        """Check a Produce request's batches, and propose them with other requests' batches.

        Raises:  RecordError if the request cannot be decoded; NetError for acks=0 that fails.
        """
        request = decode_message(rpc.ProduceRequest, body, header.api_version)
        if request.acks != ACKS_ALL:
            if request.acks == 0:
                raise NetError(Reason.MALFORMED, "acks=0 is not served: nothing would be promised")
            return self._refusal(header, request, ErrorCode.INVALID_REQUIRED_ACKS)
        topic = request.topic_data[0] if len(request.topic_data) == 1 else None
        if topic is None or len(topic.partition_data) != 1:
            return self._refusal(header, request, ErrorCode.INVALID_REQUEST)
        if not self._is_ours(header, topic.name, topic.topic_id, topic.partition_data[0].index):
            return self._refusal(header, request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self.group.leading_epoch is None:
            return self._refusal(header, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        records = topic.partition_data[0].records
        error, counts = _check(records)
        if error is not None or records is None:
            return self._refusal(header, request, error or ErrorCode.INVALID_RECORD)
        success = self._success(header, topic)
        self._templates.learn(header, request, body, success)
        reply = Reply(connection)
        ticket = self._ticket or self._ticket_of_turn()
        ticket.waiting.append((reply, header.correlation_id, success, ticket.records, header, body))
        for part, count in counts:
            ticket.add(part, count)
        if ticket.size >= TICKET_BYTES:
            self._close_ticket(ticket)
        return reply

    def produce_from_template(self, connection: ServerConnection, frame: Frame) -> Reply | None:
        """Propose the batch of a frame that matches an earlier Produce, else return None."""
        found = self._templates.match(frame)
        if found is None or self.group.leading_epoch is None:
            return None
        correlation_id, batch, count, success = found
        reply = Reply(connection)
        ticket = self._ticket or self._ticket_of_turn()
        ticket.waiting.append((reply, correlation_id, success, ticket.records, None, frame))
        ticket.add(batch, count)
        if ticket.size >= TICKET_BYTES:
            self._close_ticket(ticket)
        return reply

    def _ticket_of_turn(self) -> _Ticket:
        ticket = self._ticket = _Ticket(self)
        self.group.wake()
        return ticket

    def _close_ticket(self, ticket: _Ticket) -> None:
        """Close a full ticket (requests proposed together), so that a new ticket begins."""
        self._full.append(ticket)
        self._ticket = None

    def _is_ours(self, header: RequestHeader, name: str, topic_id: object, index: int) -> bool:
        group = self.group.group
        by_id = header.api_version >= 13
        return index == group.partition and (
            topic_id == group.topic_id if by_id else name == group.topic
        )

    def _propose_turn(self) -> None:
        if self._ticket is not None:
            self._close_ticket(self._ticket)
        if not self._full:
            return
        tickets, self._full = self._full, []
        epoch = self.group.leading_epoch
        for ticket in tickets:
            if epoch is None:
                self.refuse(ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                self.group.propose(ticket, epoch, Draft(ticket.parts, ticket.counts))

    def refuse(self, ticket: _Ticket, error: int) -> None:
        """Answer with `error` each Produce request whose batches were proposed under one ticket."""
        for reply, _, _, _, header, body in ticket.waiting:
            if header is None:
                header = parse_request_header(body, FIRST_FLEXIBLE)
                body = body[header.body_at :]
            request = decode_message(rpc.ProduceRequest, body, header.api_version)
            reply.send(self._refusal(header, request, error))

    @staticmethod
    def unknown(header: RequestHeader, body: Frame) -> Payload:
        """Return the error response for a Produce to a group that is not started on this node.

        Raises RecordError.
        """
        request = decode_message(rpc.ProduceRequest, body, header.api_version)
        return payload(
            header, _refusal(header, request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, None)
        )

    def _refusal(self, header: RequestHeader, request: rpc.ProduceRequest, error: int) -> Payload:
        leader, endpoint = None, None
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.group.leader_id is not None:
            leader = (self.group.leader_id, self.group.quorum.epoch)
            endpoint = self._endpoints(self.group.leader_id)
        return payload(header, _refusal(header, request, error, leader, endpoint))

    def _success(
        self, header: RequestHeader, topic: rpc.ProduceRequest.TopicProduceData
    ) -> Success:
        """Return the encoded success response to a Produce, split in two at its base offset."""
        key = (header.api_version, topic.name, topic.topic_id)
        success = self._successes.get(key)
        if success is None:
            answer = rpc.ProduceResponse.TopicProduceResponse
            partition = answer.PartitionProduceResponse(
                index=self.group.group.partition,
                base_offset=_MARK,
                log_start_offset=self.group.start_offset,
            )
            message = rpc.ProduceResponse(
                responses=(
                    answer(
                        name=topic.name, topic_id=topic.topic_id, partition_responses=(partition,)
                    ),
                )
            )
            body = encode_message(message, header.api_version)
            before, after = body.split(_put(_MARK))
            success = success_of((b"\x00" if header.flexible else b"") + before, after)
            self._successes[key] = success
        return success

    # --- watching -----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Answer the Produce requests whose batches are committed, oldest first."""
        uncommitted = self.uncommitted
        while uncommitted and uncommitted[0].end_offset <= high_watermark:
            ticket = uncommitted.popleft()
            base_offset = int(ticket.base_offset)
            Reply.send_all(
                [
                    (reply, pack(correlation_id, before, base_offset + first, after))
                    for reply, correlation_id, (before, after, pack), first, _, _ in ticket.waiting
                ]
            )
        if self._commit_waiters:
            for future in self._commit_waiters:
                if not future.done():
                    future.set_result(None)
            self._commit_waiters.clear()

    def lead(self, epoch: Epoch) -> None:
        """Do nothing, because `leading_epoch` already shows that this node accepts Produces."""

    def step_down(self, epoch: Epoch) -> None:  # noqa: ARG002 (a Watcher's)
        """Refuse all Produce requests that are not committed, because their outcome is unknown."""
        uncommitted, self.uncommitted = self.uncommitted, deque()
        for ticket in uncommitted:
            self.refuse(ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Do nothing, because the benchmark log has no state to load from a snapshot."""

    # --- a consumer's Fetch -------------------------------------------------------------------

    async def fetch(
        self, header: RequestHeader, request: fetch_rpc.FetchRequest, form: FetchForm
    ) -> Payload:
        """Return records below the high watermark after a linearizable read has confirmed it.

        Without new records, wait for a commit, at most the request's `max_wait_ms`.
        """
        partition = request.topics[0].partitions[0]
        offset, group = partition.fetch_offset, self.group
        max_bytes = max(0, min(request.max_bytes, partition.partition_max_bytes))
        try:
            high_watermark = await group.barrier()
            if offset == high_watermark and request.max_wait_ms > 0:
                await self._commit_or(min(request.max_wait_ms, MAX_WAIT_MS))
                high_watermark = group.high_watermark or high_watermark
        except NotLeaderError as error:
            return self._fetch_payload(header, form, error.error, None, b"")
        log_start = group.storage.log.log_start_offset
        if not log_start <= offset <= high_watermark:
            return self._fetch_payload(
                header, form, ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark, b""
            )
        data = group.storage.read_bytes(Offset(offset), high_watermark, max_bytes)
        return self._fetch_payload(header, form, ErrorCode.NONE, high_watermark, data)

    async def _commit_or(self, wait_ms: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commit_waiters.add(future)
        try:
            await asyncio.wait((future,), timeout=wait_ms / 1_000)
        finally:
            self._commit_waiters.discard(future)

    def _fetch_payload(
        self,
        header: RequestHeader,
        form: FetchForm,
        error: int,
        high_watermark: Offset | None,
        data: Buffer,
    ) -> Payload:
        group, version = self.group, header.api_version
        leader_id = group.leader_id if version >= 12 else None  # no room for it before
        endpoint = None if leader_id is None else self._endpoints(leader_id)
        message = write_fetch_response(
            FetchResponse(
                leader_id=leader_id,
                epoch=group.quorum.epoch if version >= 12 else Epoch(-1),
                high_watermark=high_watermark,
                log_start_offset=group.storage.log.log_start_offset,
            ),
            Answering(group.group, endpoint if version >= 16 else None),
            form,
            memoryview(data),
            error=error,
        )
        return payload(header, message)


def _refusal(
    header: RequestHeader,
    request: rpc.ProduceRequest,
    error: int,
    leader: tuple[NodeId, Epoch] | None,
    endpoint: Endpoint | None,
) -> rpc.ProduceResponse:
    """Return a Produce response with one error for every partition of the request."""
    topic_type = rpc.ProduceResponse.TopicProduceResponse
    partition_type = topic_type.PartitionProduceResponse
    current = partition_type.LeaderIdAndEpoch()
    nodes: tuple[rpc.ProduceResponse.NodeEndpoint, ...] = ()
    if leader is not None and header.api_version >= 10:
        current = partition_type.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        if endpoint is not None:
            node = rpc.ProduceResponse.NodeEndpoint
            nodes = (node(node_id=leader[0], host=endpoint.host, port=endpoint.port),)
    responses = tuple(
        topic_type(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=tuple(
                partition_type(
                    index=partition.index, error_code=error, base_offset=-1, current_leader=current
                )
                for partition in topic.partition_data
            ),
        )
        for topic in request.topic_data
    )
    return rpc.ProduceResponse(responses=responses, node_endpoints=nodes)


def _check(
    records: Buffer | None,
) -> tuple[int | None, list[tuple[memoryview, int]]]:
    """Return each batch with its number of offsets, or the error code that rejects the batches."""
    if not records:
        return ErrorCode.INVALID_RECORD, []
    found: list[tuple[memoryview, int]] = []
    try:
        for _, batch, view in iter_batches(records):
            if not _acceptable(batch):
                return ErrorCode.INVALID_RECORD, []
            found.append((view, batch.record_count))
    except (CorruptBatchError, IncompleteBatchError):
        return ErrorCode.CORRUPT_MESSAGE, []
    except RecordError:
        return ErrorCode.INVALID_RECORD, []
    return None, found


def _acceptable(batch: BatchHeader) -> bool:
    """Return whether a batch has dense offsets and is no control or transactional batch."""
    return (
        batch.record_count > 0
        and batch.is_dense
        and not batch.is_control
        and not batch.is_transactional
        and batch.size_bytes > HEADER_SIZE_BYTES
    )
