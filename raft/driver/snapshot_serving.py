"""Answering FetchSnapshot: each partition judged by its group, the bytes of all read off the loop.

A question is complete once every group it names has refused or granted its part. Then a thread of
its own reads the files: one that is not in the page cache must not hold up a heartbeat.

What waits to be sent is bounded. A connection gets its next piece read only when the one before has
left for the socket and the peer keeps reading; and no answer is larger than `MAX_ANSWER_BYTES`,
because sending a piece is one copy on the loop, of which commits feel every millisecond.

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
"""What KIP-630 calls the leader's replica.fetch.response.max.bytes."""

LOOK_AGAIN_S: Final = 0.002  # at a connection whose last answer has not left


class _Granted(NamedTuple):
    """A partition that its group's core has nothing against."""

    snapshots: Snapshots
    snapshot_id: OffsetAndEpoch
    position: int
    leader: Leader


class Question:
    """One FetchSnapshot request on its way to its answer."""

    def __init__(
        self,
        server: SnapshotServer,
        header: RequestHeader,
        reply: Reply,
        message: rpc.FetchSnapshotRequest,
        asked: list[RequestedChunk],
    ) -> None:
        """Every partition of it is open."""
        self.reply = reply
        self.message = message
        self.asked = asked
        self.answers: list[Partition | _Granted | None] = [None] * len(asked)
        self.leaders: list[Leader] = []
        self._server = server
        self._header = header
        self._open = len(asked)

    def refuse(self, index: int, error: int, leader: Leader | None = None) -> None:
        """A partition is not served."""
        if error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.answer(failed_fetch_snapshot(error))
            return
        if leader is not None:
            self.leaders.append(leader)
        self._settle(index, refused_partition(self.asked[index], error, leader))

    def grant(self, index: int, snapshots: Snapshots, leader: Leader) -> None:
        """A partition may be served from these checkpoints, if they have what it asks for."""
        self.leaders.append(leader)
        asked = self.asked[index].partition
        snapshot_id = OffsetAndEpoch(
            Offset(asked.snapshot_id.end_offset), Epoch(asked.snapshot_id.epoch)
        )
        self._settle(index, _Granted(snapshots, snapshot_id, asked.position, leader))

    def _settle(self, index: int, answer: Partition | _Granted) -> None:
        if self.answers[index] is not None:
            return
        self.answers[index] = answer
        self._open -= 1
        if not self._open:
            self._server.complete(self)

    @property
    def closed(self) -> bool:
        """Is it answered, or nobody there to be answered any more?"""
        return self._open < 0 or self.reply.connection.closed

    def answer(self, message: Response) -> None:
        """Send the answer; once."""
        if self._open >= 0:
            self._open = -1
            self.reply.send(payload(self._header, message))

    def read(self) -> Response:
        """In a thread: read what was granted, fairly shared out."""
        bytes_left = [self._left_bytes(index) for index in range(len(self.asked))]
        shares = share_fairly(bytes_left, min(self.message.max_bytes, MAX_ANSWER_BYTES))
        partitions = [self._read_one(index, share) for index, share in enumerate(shares)]
        named = self._header.api_version >= NAMES_NODES_FROM[self._header.api_key]
        leaders = self.leaders if named else ()
        return write_fetch_snapshot_response(self.message, partitions, leaders)

    def _left_bytes(self, index: int) -> int:
        """What a granted file has past the position asked for; refusals are found here."""
        granted = self.answers[index]
        if not isinstance(granted, _Granted):
            return 0
        piece = self._piece(index, granted, 0)
        return piece.size_bytes - granted.position if piece is not None else 0

    def _read_one(self, index: int, share: int) -> Partition:
        granted = self.answers[index]
        if isinstance(granted, _Granted):
            piece = self._piece(index, granted, share)
            if piece is not None:
                return served_partition(self.asked[index], piece, granted.leader)
        refused = self.answers[index]
        assert isinstance(refused, Partition), f"neither served nor refused: {self.asked[index]}"
        return refused

    def _piece(self, index: int, granted: _Granted, max_bytes: int) -> SnapshotChunk | None:
        """Bytes of a file; None, and the partition is refused, if there are none to be had."""
        try:
            piece = granted.snapshots.read(granted.snapshot_id, granted.position, max_bytes)
            if piece is not None:
                return piece
            error: int = ErrorCode.SNAPSHOT_NOT_FOUND
        except ValueError:
            error = ErrorCode.POSITION_OUT_OF_RANGE
        except OSError as failure:
            log.error("snapshot=%s action=serve error=%r", granted.snapshot_id, str(failure))
            error = ErrorCode.KAFKA_STORAGE_ERROR
        self.answers[index] = refused_partition(self.asked[index], error, granted.leader)
        return None


class SnapshotServer:
    """The questions of all connections of one node; the loop's, except for the reading."""

    def __init__(self) -> None:
        """Nothing asked yet."""
        self._waiting: dict[ServerConnection, deque[Question]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        self._reading: set[ServerConnection] = set()

    def close(self) -> None:
        """Answer nothing more."""
        for timer in self._timers:
            timer.cancel()
        self._waiting.clear()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def complete(self, question: Question) -> None:
        """All its groups have judged: its turn comes when the answers before it have left."""
        connection = question.reply.connection
        self._waiting.setdefault(connection, deque()).append(question)
        # Not at once: a reply has its place in the order only when the handler has returned it.
        asyncio.get_running_loop().call_soon(self._next, connection)

    def _next(self, connection: ServerConnection) -> None:
        """Begin to read for this connection, if it may be sent more now."""
        questions = self._waiting.get(connection)
        while questions and questions[0].closed:
            questions.popleft()
        if not questions:
            self._waiting.pop(connection, None)
            return
        if connection in self._reading:
            return
        if not (connection.writable and questions[0].reply.is_next):
            self._look_again(connection)
            return
        question = questions.popleft()
        self._reading.add(connection)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, question.read)
        future.add_done_callback(lambda done: self._read(connection, question, done))

    def _read(
        self, connection: ServerConnection, question: Question, done: asyncio.Future[Response]
    ) -> None:
        self._reading.discard(connection)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            question.reply.fail(error)
        else:
            question.answer(done.result())
        self._next(connection)

    def _look_again(self, connection: ServerConnection) -> None:
        """Later; questions of one connection share one look."""
        self._reading.add(connection)

        def look() -> None:
            self._timers.discard(timer)
            self._reading.discard(connection)
            self._next(connection)

        timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, look)
        self._timers.add(timer)


class Slot(NamedTuple):
    """One partition of a question, as its group keeps it."""

    question: Question
    at: int
