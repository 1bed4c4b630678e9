"""Answers FetchSnapshot: each group checks its partition, then a thread reads the bytes of all.

A request is complete once every group it names has refused or granted its part. Then a separate
thread reads the files: one that is not in the page cache must not hold up a heartbeat.

Memory of unsent answers is bounded. The next chunk for a connection is read only when the one
before was handed to the socket and the peer keeps reading; and no answer is larger than
`MAX_ANSWER_BYTES`, because sending a chunk is one copy on the loop, which delays commits.

Source: KIP-630, FetchSnapshot (Request Handling); docs/design/snapshots.md#fetching-a-snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from raft.interfaces import SnapshotChunk, Snapshots
from raft.net import Reply, RequestHeader, ServerConnection
from raft.net.handlers import payload
from raft.wire.common import NAMES_NODES_FROM
from raft.wire.snapshots import (
    Leader,
    Partition,
    RequestedChunk,
    failed_fetch_snapshot,
    refused_partition,
    served_partition,
    share_fairly,
    write_fetch_snapshot_response,
)
from records.kafka_errors import ErrorCode
from records.rpc import fetch as rpc
from records.rpc.base import Response
from records.types import Epoch, Offset, OffsetAndEpoch

log = logging.getLogger("raft.driver")

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""The leader's replica.fetch.response.max.bytes of KIP-630."""

RETRY_S: Final = 0.002  # for a connection whose last answer is not sent yet


class _GrantedPartition(NamedTuple):
    """A partition whose request the group's core has accepted."""

    snapshots: Snapshots
    snapshot_id: OffsetAndEpoch
    position: int
    leader: Leader


class SnapshotQuery:
    """One FetchSnapshot request with the state of its partitions."""

    def __init__(
        self,
        server: SnapshotServer,
        header: RequestHeader,
        reply: Reply,
        message: rpc.FetchSnapshotRequest,
        requested: list[RequestedChunk],
    ) -> None:
        """Prepare to answer a FetchSnapshot request, with no partition accepted or refused yet."""
        self.reply = reply
        self.message = message
        self.requested = requested
        self.answers: list[Partition | _GrantedPartition | None] = [None] * len(requested)
        self.leaders: list[Leader] = []
        self._server = server
        self._header = header
        self._open = len(requested)

    def refuse(self, index: int, error: int, leader: Leader | None = None) -> None:
        """Refuse one partition of the request with an error code."""
        if error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.answer(failed_fetch_snapshot(error))
            return
        if leader is not None:
            self.leaders.append(leader)
        self._settle(index, refused_partition(self.requested[index], error, leader))

    def grant(self, index: int, snapshots: Snapshots, leader: Leader) -> None:
        """Accept one partition of the request, to be read from these checkpoints."""
        self.leaders.append(leader)
        partition = self.requested[index].partition
        snapshot_id = OffsetAndEpoch(
            Offset(partition.snapshot_id.end_offset), Epoch(partition.snapshot_id.epoch)
        )
        self._settle(index, _GrantedPartition(snapshots, snapshot_id, partition.position, leader))

    def _settle(self, index: int, answer: Partition | _GrantedPartition) -> None:
        if self.answers[index] is not None:
            return
        self.answers[index] = answer
        self._open -= 1
        if not self._open:
            self._server.complete(self)

    @property
    def closed(self) -> bool:
        """Return whether the request is answered or its connection is closed."""
        return self._open < 0 or self.reply.connection.closed

    def answer(self, message: Response) -> None:
        """Send the response, unless a response was sent already."""
        if self._open >= 0:
            self._open = -1
            self.reply.send(payload(self._header, message))

    def read(self) -> Response:
        """Read the checkpoint chunks of the accepted partitions, and build the response.

        The bytes of one answer are shared fairly between its partitions.
        """
        available_bytes = [self._available_bytes(index) for index in range(len(self.requested))]
        shares = share_fairly(available_bytes, min(self.message.max_bytes, MAX_ANSWER_BYTES))
        partitions = [self._read_one(index, share) for index, share in enumerate(shares)]
        named = self._header.api_version >= NAMES_NODES_FROM[self._header.api_key]
        leaders = self.leaders if named else ()
        return write_fetch_snapshot_response(self.message, partitions, leaders)

    def _available_bytes(self, index: int) -> int:
        """Return a checkpoint's number of bytes past the requested position; 0 if refused."""
        granted = self.answers[index]
        if not isinstance(granted, _GrantedPartition):
            return 0
        chunk = self._read_chunk(index, granted, 0)
        return chunk.size_bytes - granted.position if chunk is not None else 0

    def _read_one(self, index: int, share: int) -> Partition:
        granted = self.answers[index]
        if isinstance(granted, _GrantedPartition):
            chunk = self._read_chunk(index, granted, share)
            if chunk is not None:
                return served_partition(self.requested[index], chunk, granted.leader)
        refused = self.answers[index]
        assert isinstance(refused, Partition), (
            f"neither served nor refused: {self.requested[index]}"
        )
        return refused

    def _read_chunk(
        self, index: int, granted: _GrantedPartition, max_bytes: int
    ) -> SnapshotChunk | None:
        """Return bytes of a checkpoint file; if they cannot be read, set an error, return None."""
        try:
            chunk = granted.snapshots.read(granted.snapshot_id, granted.position, max_bytes)
            if chunk is not None:
                return chunk
            error: int = ErrorCode.SNAPSHOT_NOT_FOUND
        except ValueError:
            error = ErrorCode.POSITION_OUT_OF_RANGE
        except OSError as failure:
            log.error("snapshot=%s action=serve error=%r", granted.snapshot_id, str(failure))
            error = ErrorCode.KAFKA_STORAGE_ERROR
        self.answers[index] = refused_partition(self.requested[index], error, granted.leader)
        return None


class SnapshotServer:
    """Answers the queries of all connections of one node; files are read in a thread."""

    def __init__(self) -> None:
        """Create a server of FetchSnapshot requests, with an empty queue of requests."""
        self._waiting: dict[ServerConnection, deque[SnapshotQuery]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        self._reading: set[ServerConnection] = set()

    def close(self) -> None:
        """Stop answering FetchSnapshot requests, and end the threads that read checkpoints."""
        for timer in self._timers:
            timer.cancel()
        self._waiting.clear()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def complete(self, query: SnapshotQuery) -> None:
        """Queue a FetchSnapshot request that all its groups have accepted or refused."""
        connection = query.reply.connection
        self._waiting.setdefault(connection, deque()).append(query)
        # Not at once: the connection orders a reply only when the handler has returned it.
        asyncio.get_running_loop().call_soon(self._next, connection)

    def _next(self, connection: ServerConnection) -> None:
        """Read chunks for a connection's next FetchSnapshot; retry later if it is not writable."""
        queries = self._waiting.get(connection)
        while queries and queries[0].closed:
            queries.popleft()
        if not queries:
            self._waiting.pop(connection, None)
            return
        if connection in self._reading:
            return
        if not (connection.writable and queries[0].reply.is_next):
            self._retry_later(connection)
            return
        query = queries.popleft()
        self._reading.add(connection)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, query.read)
        future.add_done_callback(lambda done: self._read(connection, query, done))

    def _read(
        self, connection: ServerConnection, query: SnapshotQuery, done: asyncio.Future[Response]
    ) -> None:
        self._reading.discard(connection)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            query.reply.fail(error)
        else:
            query.answer(done.result())
        self._next(connection)

    def _retry_later(self, connection: ServerConnection) -> None:
        """Check after `RETRY_S` seconds again whether a connection is ready for a response."""
        self._reading.add(connection)

        def retry() -> None:
            self._timers.discard(timer)
            self._reading.discard(connection)
            self._next(connection)

        timer = asyncio.get_running_loop().call_later(RETRY_S, retry)
        self._timers.add(timer)


class PartitionSlot(NamedTuple):
    """The position of one partition in a FetchSnapshot query."""

    query: SnapshotQuery
    position: int
