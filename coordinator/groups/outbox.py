"""A group owner's requests to the log: sent one at a time, in order, until the outcome is certain.

The log's checks rest on that order: a completed generation is sent after the commits of the one
before and before those of its own members. So at most one request is in flight, and if its outcome
is unknown it is sent again under the same number, until the log accepts or refuses it. Requests
that wait behind it are combined: ten members' commits become one request.

The trap: a client does not wait for as long. Its commit is answered COORDINATOR_NOT_AVAILABLE after
a while, and may still happen. So may the group's removal, which is the last request of an outbox:
requests behind it are answered NOT_COORDINATOR, and their clients find a group created anew.

Offsets of transactions go the same way, with two differences: a request with them is sent once,
and a commit is dropped if its client's connection has closed before it is sent. Why: the client may
have asked again elsewhere, and ended the transaction. The next request has a higher number, so that
the log refuses a copy that it reads later.

Source: docs/design/groups.md, docs/design/transactions-groups.md; upstream's
offsets.commit.timeout.ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from coordinator.groups.decide import AnyCommit, Size, commit_size, is_too_large
from coordinator.groups.errors import GROUP_CODES, code_of
from coordinator.groups.settings import (
    MAX_BACKOFF_MS,
    MAX_COMMIT_BYTES,
    MAX_PARKED,
    GroupSettings,
)
from coordinator.groups.timers import TimerKey, Timers
from records.kafka_errors import ErrorCode
from records.rpc.base import Request
from records.rpc.group_log import (
    CommitGroupGenerationRequest,
    CommitGroupOffsetsRequest,
    CommitTransactionalOffsetsRequest,
    RemoveGroupOffsetsRequest,
    RemoveGroupRequest,
)

_MAX_QUEUED_BYTES: Final = 16 * MAX_COMMIT_BYTES

_CERTAIN: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
"""The codes with which the log decides about a whole request."""

_REMOVED: Final = frozenset({ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND})
"""Codes after which the group is removed: by this request, or by the log's expiry pass."""

OnDone = Callable[[ErrorCode], None]


class Env(Protocol):
    """The parts of its broker that a group uses: settings, time, timers, calls of the log."""

    settings: GroupSettings
    timers: Timers

    @property
    def now_ms(self) -> int: ...

    def call(self, group_id: str, request: Request) -> None:
        """Send a group's request to the group log; the group's request queue gets the response."""

    def on_ownership_lost(self, group_id: str) -> None:
        """Stop coordinating a consumer group that another broker coordinates now."""

    def on_group_removed(self, group_id: str, ownership_epoch: int) -> None:
        """Stop coordinating a consumer group that was removed from the group log."""


@dataclass(slots=True)
class _Commit:
    """The offsets that one client commits."""

    commit: AnyCommit
    size: Size
    on_done: OnDone | None  # None: it was answered that the outcome is unknown
    deadline_ms: int
    is_connected: Callable[[], bool]  # always true of a commit without a transaction

    @property
    def is_transactional(self) -> bool:
        """Return whether the offsets are committed in a transaction."""
        return isinstance(self.commit, CommitTransactionalOffsetsRequest.Commit)


@dataclass(slots=True)
class _Generation:
    """A completed rebalance; the sequence number is added when it is sent."""

    request: CommitGroupGenerationRequest
    on_done: OnDone


@dataclass(slots=True)
class _Removal:
    """A request to remove the group, or some of its offsets."""

    on_done: OnDone | None
    deadline_ms: int
    topics: tuple[RemoveGroupOffsetsRequest.Topic, ...] | None = None  # None: the group


_Entry = _Commit | _Generation | _Removal


class GroupOutbox:
    """The queue of one group's requests to the log, under one ownership."""

    def __init__(self, group_id: str, ownership_epoch: int, env: Env) -> None:
        self.group_id = group_id
        self.ownership_epoch = ownership_epoch
        self._env = env
        self._sequence = 0
        self._queue: deque[_Entry] = deque()
        self._queued_bytes = 0  # of the queued commits, approximate
        self._in_flight: list[_Entry] = []
        self._request: Request | None = None
        self._backoff_ms = env.settings.retry_backoff_ms

    @property
    def is_idle(self) -> bool:
        """Return whether the consumer group has no request to the log in flight or queued."""
        return not self._in_flight and not self._queue

    # --- queueing -----------------------------------------------------------------------------

    def commit_offsets(
        self,
        commit: AnyCommit,
        on_done: OnDone,
        *,
        is_connected: Callable[[], bool] = lambda: True,
    ) -> None:
        """Queue an offset commit; call `on_done` once with its result.

        It is dropped, and not sent, if `is_connected` returns False when its turn comes.
        """
        size = commit_size((commit,))
        if is_too_large(size):
            on_done(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            return
        if len(self._queue) >= MAX_PARKED or self._queued_bytes > _MAX_QUEUED_BYTES:
            on_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        deadline_ms = self._env.now_ms + self._env.settings.answer_timeout_ms
        self._queued_bytes += size.size_bytes
        self._append(_Commit(commit, size, on_done, deadline_ms, is_connected))

    def remove(self, on_done: OnDone) -> None:
        """Queue the consumer group's removal; call `on_done` once with its result."""
        if len(self._queue) >= MAX_PARKED:
            on_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        deadline_ms = self._env.now_ms + self._env.settings.answer_timeout_ms
        self._append(_Removal(on_done, deadline_ms))

    def remove_offsets(
        self, topics: tuple[RemoveGroupOffsetsRequest.Topic, ...], on_done: OnDone
    ) -> None:
        """Queue the removal of committed offsets; call `on_done` once with its result."""
        if len(self._queue) >= MAX_PARKED:
            on_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        deadline_ms = self._env.now_ms + self._env.settings.answer_timeout_ms
        self._append(_Removal(on_done, deadline_ms, topics))

    def _append(self, entry: _Commit | _Removal) -> None:
        self._queue.append(entry)
        if not self._env.timers.is_set(self._key("answer")):
            self._env.timers.set(self._key("answer"), entry.deadline_ms)
        self._send()

    def commit_generation(self, request: CommitGroupGenerationRequest, on_done: OnDone) -> None:
        """Queue a completed rebalance to be committed to the group log."""
        self._queue.append(_Generation(request, on_done))
        self._send()

    def close(self, code: ErrorCode) -> None:
        """End all queued requests with `code` and send no more requests."""
        waiting = [*self._in_flight, *self._queue]
        self._in_flight, self._request = [], None
        self._queue.clear()
        for kind in ("answer", "retry"):
            self._env.timers.cancel(self._key(kind))
        for entry in waiting:
            if entry.on_done is not None:
                entry.on_done(code)

    # --- responses ----------------------------------------------------------------------------

    def on_response(self, response: Any) -> None:
        """Complete the request in flight by its response; None means an unknown outcome."""
        code = code_of(response, _CERTAIN)
        if code is None or not self._is_complete(code, response):
            if self._is_sent_once(self._in_flight[0]):
                self._finish(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
                return
            self._env.timers.set(self._key("retry"), self._env.now_ms + self._backoff_ms)
            self._backoff_ms = min(2 * self._backoff_ms, MAX_BACKOFF_MS)
            return
        first = self._in_flight[0]
        if isinstance(first, _Removal) and first.topics is None and code in _REMOVED:
            self._in_flight = []
            if first.on_done is not None:
                first.on_done(ErrorCode.NONE)
            self._env.on_group_removed(self.group_id, self.ownership_epoch)
            return
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_REQUEST):
            self._env.on_ownership_lost(self.group_id)
            return
        self._backoff_ms = self._env.settings.retry_backoff_ms
        self._finish(code, response)

    def _finish(self, code: ErrorCode, response: Any) -> None:
        """Report the result of each entry of the request in flight, and send the next request."""
        done, self._in_flight, self._request = self._in_flight, [], None
        for index, entry in enumerate(done):
            if entry.on_done is None:
                continue
            if isinstance(entry, _Commit):
                entry.on_done(code or ErrorCode(response.commit_errors[index]))
            else:
                entry.on_done(code)
        self._send()

    @staticmethod
    def _is_sent_once(entry: _Entry) -> bool:
        """Return whether this entry is a transactional commit, whose request is never repeated."""
        return isinstance(entry, _Commit) and entry.is_transactional

    def _is_complete(self, code: ErrorCode, response: Any) -> bool:
        """Return whether the response has a known result for each commit of the request."""
        if code is not ErrorCode.NONE or not isinstance(self._in_flight[0], _Commit):
            return True
        return len(response.commit_errors) == len(self._in_flight) and all(
            error in GROUP_CODES for error in response.commit_errors
        )

    def retry(self) -> None:
        """Send the request in flight again; the log detects the repetition by its sequence number.

        A removal of offsets is given up once its client was answered. Why: a log leader of an older
        release does not know it and would block the queue. A late copy removes nothing, because
        the next request has a higher number.
        """
        first = next(iter(self._in_flight), None)
        if isinstance(first, _Removal) and first.topics is not None and first.on_done is None:
            self._in_flight, self._request = [], None
            self._send()
        elif self._request is not None:
            self._env.call(self.group_id, self._request)

    def expire_waiting(self) -> None:
        """Fail commits and removals whose deadlines have passed, and drop them from the queue."""
        now_ms = self._env.now_ms
        overdue = [
            entry
            for entry in (*self._in_flight, *self._queue)
            if not isinstance(entry, _Generation) and entry.deadline_ms <= now_ms
        ]
        kept = [
            entry
            for entry in self._queue
            if isinstance(entry, _Generation) or entry.deadline_ms > now_ms
        ]
        self._queue = deque(kept)
        self._queued_bytes = sum(e.size.size_bytes for e in kept if isinstance(e, _Commit))
        for entry in overdue:
            on_done, entry.on_done = entry.on_done, None
            if on_done is not None:
                on_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        deadlines = [
            entry.deadline_ms
            for entry in (*kept, *self._in_flight)
            if not isinstance(entry, _Generation) and entry.on_done is not None
        ]
        if deadlines:
            self._env.timers.set(self._key("answer"), min(deadlines))

    # --- sending ------------------------------------------------------------------------------

    def _key(self, kind: str) -> TimerKey:
        return TimerKey(self.group_id, kind)

    def _drop_disconnected(self) -> None:
        """Drop queued commits whose clients have closed their connections."""
        dropped = [e for e in self._queue if isinstance(e, _Commit) and not e.is_connected()]
        for entry in dropped:
            self._queue.remove(entry)
            self._queued_bytes -= entry.size.size_bytes
            if entry.on_done is not None:
                entry.on_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _send(self) -> None:
        if self._in_flight:
            return
        self._drop_disconnected()
        if not self._queue:
            return
        self._sequence += 1
        first = self._queue.popleft()
        if isinstance(first, _Removal):
            self._in_flight = [first]
            self._request = self._removal_request(first)
        elif isinstance(first, _Generation):
            self._in_flight = [first]
            generation = first.request
            self._request = CommitGroupGenerationRequest(
                group_id=self.group_id,
                ownership_epoch=self.ownership_epoch,
                sequence=self._sequence,
                generation=generation.generation,
                protocol_type=generation.protocol_type,
                protocol_name=generation.protocol_name,
                leader=generation.leader,
                members=generation.members,
            )
        else:
            commits = self._take_commits(first)
            self._in_flight = [*commits]
            kind: Any = (
                CommitTransactionalOffsetsRequest
                if first.is_transactional
                else CommitGroupOffsetsRequest
            )
            self._request = kind(
                group_id=self.group_id,
                ownership_epoch=self.ownership_epoch,
                sequence=self._sequence,
                commits=tuple(entry.commit for entry in commits),
            )
        self._env.call(self.group_id, self._request)

    def _removal_request(self, removal: _Removal) -> Request:
        if removal.topics is None:
            return RemoveGroupRequest(
                group_id=self.group_id,
                ownership_epoch=self.ownership_epoch,
                sequence=self._sequence,
            )
        return RemoveGroupOffsetsRequest(
            group_id=self.group_id,
            ownership_epoch=self.ownership_epoch,
            sequence=self._sequence,
            topics=removal.topics,
        )

    def _take_commits(self, first: _Commit) -> list[_Commit]:
        """Return `first` and the queued commits after it that fit into the same log record.

        It stops at the next generation, and where commits in transactions begin or end.
        """
        taken = [first]
        size = first.size
        while self._queue and isinstance(entry := self._queue[0], _Commit):
            if entry.is_transactional is not first.is_transactional:
                break
            more = entry.size
            size = Size(size.offsets + more.offsets, size.size_bytes + more.size_bytes)
            if is_too_large(size):
                break
            taken.append(entry)
            self._queue.popleft()
        self._queued_bytes -= sum(entry.size.size_bytes for entry in taken)
        return taken
