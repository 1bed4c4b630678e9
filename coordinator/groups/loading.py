"""A group whose ownership is being acquired: its requests wait, for a limited time.

Which error a request gets when that time is over depends on what clients understand.
COORDINATOR_LOAD_IN_PROGRESS answers joins, commits and offset fetches; Kafka's broker never answers
a Heartbeat or a SyncGroup with it, and aiokafka and Java's consumer fail when they receive it. So
those get COORDINATOR_NOT_AVAILABLE, after which a client looks for the coordinator again and keeps
its generation.

Source: docs/design/groups.md; upstream's GroupCoordinatorService (heartbeat, syncGroup while
loading).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from coordinator.groups.error_responses import error_response
from coordinator.groups.errors import code_of
from coordinator.groups.events import InboundRequest
from coordinator.groups.outbox import Env
from coordinator.groups.settings import MAX_PARKED
from coordinator.groups.timers import TimerKey
from records.kafka_errors import ErrorCode
from records.rpc.base import Response
from records.rpc.groups import (
    DeleteGroupsRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    TxnOffsetCommitRequest,
)

_CERTAIN: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
"""The codes with which the log decides about an ownership."""


_REPEATED_WHILE_LOADING: Final = (
    JoinGroupRequest,
    OffsetCommitRequest,
    DeleteGroupsRequest,
    OffsetDeleteRequest,
    TxnOffsetCommitRequest,
)
"""The requests that clients repeat after COORDINATOR_LOAD_IN_PROGRESS."""


class Owner(Env, Protocol):
    """The methods of its broker that `Loading` calls."""

    def reply(self, inbound: InboundRequest, response: Response) -> None:
        """Send the response to a client's request."""

    def acquire(self, group_id: str, *, create: bool, then: Callable[[Any], None]) -> None:
        """Request a consumer group's ownership from the group log."""

    def on_loaded(self, loading: Loading, response: Any) -> None:
        """Take over a consumer group whose ownership was granted."""

    def forget(self, group_id: str, code: ErrorCode) -> None:
        """Stop coordinating a consumer group; answer its waiting requests with `code`."""


class Loading:
    """Acquires one group's ownership, and parks requests for the group meanwhile."""

    def __init__(self, group_id: str, env: Owner, *, creates: bool) -> None:
        self.group_id = group_id
        self.parked: list[InboundRequest] = []
        self._env = env
        self._creates = creates  # whether the last request creates the group
        self._may_create = creates  # a parked request creates the group
        self._is_closed = False
        self._backoff_ms = env.settings.retry_backoff_ms

    def begin(self) -> None:
        """Request the group's ownership, and set a deadline for the clients' waiting requests."""
        patience_ms = self._env.now_ms + self._env.settings.answer_timeout_ms
        self._env.timers.set(TimerKey(self.group_id, "patience"), patience_ms)
        self._acquire()

    def park(self, inbound: InboundRequest) -> None:
        """Let a client's request wait for the ownership, unless too many requests wait."""
        if len(self.parked) >= MAX_PARKED:
            self._env.reply(inbound, error_response(inbound, _loading_code(inbound)))
            return
        self.parked.append(inbound)
        self._may_create = self._may_create or creates_group(inbound)

    def on_timer(self, key: TimerKey) -> None:
        """Request the group's ownership again, or refuse its waiting requests at the deadline."""
        if key.kind == "load":
            self._acquire()
        elif key.kind == "patience":
            parked, self.parked = self.parked, []
            self._env.forget(self.group_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            for inbound in parked:
                self._env.reply(inbound, error_response(inbound, _loading_code(inbound)))

    def close(self, code: ErrorCode) -> None:
        """Answer the waiting requests with `code`, because this broker will not own the group."""
        self._is_closed = True
        parked, self.parked = self.parked, []
        for inbound in parked:
            self._env.reply(inbound, error_response(inbound, code))

    def _acquire(self) -> None:
        self._env.acquire(self.group_id, create=self._creates, then=self._on_response)

    def _on_response(self, response: Any) -> None:
        if self._is_closed:
            return
        code = code_of(response, _CERTAIN)
        if code is ErrorCode.NONE:
            self._env.on_loaded(self, response)
        elif code is None:
            key = TimerKey(self.group_id, "load")
            self._env.timers.set(key, self._env.now_ms + self._backoff_ms)
            self._backoff_ms *= 2
        elif code is ErrorCode.GROUP_ID_NOT_FOUND and self._may_create and not self._creates:
            self._creates = True
            self._acquire()
        elif code is ErrorCode.GROUP_ID_NOT_FOUND:
            self._reject_missing_group()
        elif code in (ErrorCode.INVALID_GROUP_ID, ErrorCode.POLICY_VIOLATION):
            self._env.forget(self.group_id, code)
        else:
            self._env.forget(self.group_id, ErrorCode.NOT_COORDINATOR)

    def _reject_missing_group(self) -> None:
        """Refuse the waiting requests, because the consumer group does not exist.

        No waiting request creates it.
        """
        parked, self.parked = self.parked, []
        self._env.forget(self.group_id, ErrorCode.NOT_COORDINATOR)
        for inbound in parked:
            self._env.reply(inbound, error_response(inbound, _missing_group_code(inbound)))


def _missing_group_code(inbound: InboundRequest) -> ErrorCode:
    """Return the error code that answers this request if the consumer group does not exist."""
    match inbound.request:
        case OffsetCommitRequest() | TxnOffsetCommitRequest():
            return ErrorCode.ILLEGAL_GENERATION
        case DeleteGroupsRequest() | OffsetDeleteRequest():
            return ErrorCode.GROUP_ID_NOT_FOUND
        case _:
            return ErrorCode.UNKNOWN_MEMBER_ID


def _loading_code(inbound: InboundRequest) -> ErrorCode:
    """Return the error code that answers this request while the consumer group is being loaded."""
    if isinstance(inbound.request, _REPEATED_WHILE_LOADING):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def creates_group(inbound: InboundRequest) -> bool:
    """Return whether this request creates the consumer group if it does not exist."""
    request = inbound.request
    if isinstance(request, JoinGroupRequest):
        return not request.member_id
    if isinstance(request, OffsetCommitRequest):
        return request.generation_id_or_member_epoch < 0
    if isinstance(request, TxnOffsetCommitRequest):
        return request.generation_id < 0
    return False
