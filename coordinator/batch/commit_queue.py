"""Commits on their way to a coordinator: many in flight, one order, also across leaders.

A broker commits its objects in the order it closed them, and ids of one lease commit in increasing
order: a lower id that comes after a higher one is dead. So commits are not retried one by one.
After any loss or refusal nothing new is sent until what was sent is answered or given up; then
everything unanswered is sent again, oldest first. Committing again is safe: a coordinator answers a
committed object with the answer that it gave first.

For the same reason a new connection has one commit in flight until one is answered. A leader begins
to decide a moment after it answers that it leads, perhaps between two of our requests.

The trap: "not the leader" is no proof that nothing happened. The leader may have lost its
leadership after the decision and before its commit.

Source: docs/design/batch-coordinator.md#commits-are-idempotent-by-object-id,
docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from coordinator.batch.calls import read_refusal
from coordinator.errors import CoordinatorError, OutcomeUnknownError
from coordinator.leader_client import LeaderClient, Patience
from raft.net.errors import ConnectionLostError, NetError
from raft.net.frames import Buffer, Frame
from raft.net.rpc import Rpc, request_kind
from records.codec import decode_message, encode_parts
from records.errors import RecordError
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatchesRequest, CommitBatchesResponse

VERSION: Final = 0
_KIND: Final = request_kind(CommitBatchesRequest, VERSION)


class _Commit:
    """The commit of one object until it is answered."""

    __slots__ = ("answer", "body", "deadline", "in_doubt", "in_flight", "object_id")

    def __init__(
        self, request: CommitBatchesRequest, answer: asyncio.Future[CommitBatchesResponse],
        deadline: float,
    ) -> None:  # fmt: skip
        self.object_id = request.object_id
        self.body: tuple[Buffer, ...] = tuple(encode_parts(request, VERSION))
        self.answer = answer
        self.deadline = deadline  # loop time
        self.in_flight = False
        self.in_doubt = False  # an attempt that is over may have been decided

    def give_up(self, reason: str) -> None:
        if self.answer.done():
            return
        message = f"object {self.object_id}: {reason}"
        error = CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        if self.in_doubt or self.in_flight:
            error = OutcomeUnknownError(ErrorCode.REQUEST_TIMED_OUT, message)
        self.answer.set_exception(error)
        self.answer.exception()  # retrieved: asyncio would log it if no caller waits


class OrderedCommits:
    """The commits of one client, oldest first."""

    def __init__(
        self,
        leader: LeaderClient,
        patience: Patience,
        *,
        attempt_timeout_ms: int,
        max_in_flight: int,
    ) -> None:
        self._leader = leader
        self._patience = patience
        self._pauses = patience.pauses()
        self._attempt_timeout_ms = attempt_timeout_ms
        self._max_in_flight = max_in_flight
        self._unanswered: deque[_Commit] = deque()
        self._sent = 0  # of the unanswered, those sent on this connection; from the left
        self._in_flight = 0  # sent, neither answered nor lost; expired ones included
        self._rpc: Rpc | None = None  # where new commits may be sent at once
        self._decides = False  # has it answered a commit?
        self._failed = False  # nothing is sent until nothing is in flight
        self._recovering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._why = "not sent yet"
        self._closed = False

    def submit(self, request: CommitBatchesRequest) -> asyncio.Future[CommitBatchesResponse]:
        """Add a commit to the end of the queue and return the future of its response.

        The future raises OutcomeUnknownError, or CoordinatorError if surely nothing was decided.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[CommitBatchesResponse] = loop.create_future()
        commit = _Commit(request, answer, loop.time() + self._patience.timeout_s)
        if self._closed:
            commit.give_up("the client is closed")
            return answer
        self._unanswered.append(commit)
        if self._timer is None:
            self._timer = loop.call_at(commit.deadline, self._expire)
        self._send()
        return answer

    def close(self) -> None:
        """Fail all commits that have no response yet, and send no more commits."""
        self._closed = True
        if self._recovering is not None:
            self._recovering.cancel()
        if self._timer is not None:
            self._timer.cancel()
        while self._unanswered:
            self._unanswered.popleft().give_up("the client was closed")

    # --- sending

    def _send(self) -> None:
        """Send queued commits up to the in-flight limit, or find the leader if not connected."""
        if self._failed or self._sent == len(self._unanswered) or self._closed:
            return
        rpc = self._rpc
        if rpc is None or rpc.connection.closed:
            self._recover(pause=rpc is not None)
            return
        limit = self._max_in_flight if self._decides else 1
        while self._sent < len(self._unanswered) and self._in_flight < limit:
            commit = self._unanswered[self._sent]
            commit.in_flight = True
            self._sent += 1
            self._in_flight += 1

            def on_answer(answer: Frame | ConnectionLostError, commit: _Commit = commit) -> None:
                self._answered(rpc, commit, answer)

            rpc.connection.send(_KIND, commit.body, on_answer, timeout_ms=self._attempt_timeout_ms)

    def _answered(self, rpc: Rpc, commit: _Commit, answer: Frame | ConnectionLostError) -> None:
        self._in_flight -= 1
        commit.in_flight = False
        error = self._read(commit, answer)
        if error is None:
            self._pauses = self._patience.pauses()
            self._decides = True
        else:
            if getattr(error, "code", None) != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                commit.in_doubt = True
            self._why = str(error)
            self._failed = True
            if isinstance(error, RecordError):  # what else may be wrong there
                rpc.connection.close()
            self._leader.release(rpc)
        if self._failed and not self._in_flight:
            self._failed = False
            self._sent = 0
            self._rpc = None
            if error is None:  # refused before, and answered in the end: go on at once
                self._send()
            else:
                self._recover(pause=True)
        else:
            self._send()

    def _read(
        self, commit: _Commit, answer: Frame | ConnectionLostError
    ) -> NetError | RecordError | CoordinatorError | None:
        """Complete a commit with its response and return None, or return the attempt's error."""
        if isinstance(answer, ConnectionLostError):
            return answer
        try:
            response = decode_message(CommitBatchesResponse, answer, VERSION)
        except RecordError as error:
            return error
        refusal = read_refusal(response)
        if refusal is not None:
            return refusal
        if not commit.answer.done():
            commit.answer.set_result(response)
        if commit in self._unanswered:  # nearly always the first
            self._unanswered.remove(commit)
            self._sent -= 1
        return None

    # --- without a connection

    def _recover(self, *, pause: bool = False) -> None:
        if self._recovering is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._recovering = loop.create_task(self._find_leader(pause=pause))

    async def _find_leader(self, *, pause: bool) -> None:
        try:
            while self._unanswered and not self._closed:
                if pause:
                    await asyncio.sleep(next(self._pauses))
                pause = True
                try:
                    rpc = await self._leader.leader()
                    rpc.version_for(CommitBatchesRequest)
                except (CoordinatorError, NetError) as error:
                    self._why = str(error)
                    continue
                self._rpc, self._decides = rpc, False
                return
        finally:
            self._recovering = None
            self._send()

    def _expire(self) -> None:
        """Fail the queued commits whose deadlines have passed, the oldest first."""
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._unanswered and self._unanswered[0].deadline <= now:
            self._unanswered.popleft().give_up(f"no answer in time ({self._why})")
            self._sent = max(0, self._sent - 1)
        if self._unanswered:
            self._timer = loop.call_at(self._unanswered[0].deadline, self._expire)
