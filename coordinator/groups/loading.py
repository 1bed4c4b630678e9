"""A group whose ownership is being taken: its requests wait, but not for ever.

What is then said is a matter of what clients know. COORDINATOR_LOAD_IN_PROGRESS is for who joins,
commits or asks for offsets; to a heartbeat or a SyncGroup, Kafka's broker never says it, and
aiokafka and Java's consumer give up when they hear it. So those are told COORDINATOR_NOT_AVAILABLE:
look for the coordinator again, and keep your generation.

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
from records.rpc.groups import DeleteGroupsRequest, JoinGroupRequest, OffsetCommitRequest

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
"""What the log decides about an ownership."""


class Owner(Env, Protocol):
    """What it needs of its broker."""

    def reply(self, inbound: InboundRequest, response: Response) -> None:
        """Answer a client."""

    def acquire(self, group_id: str, *, create: bool, then: Callable[[Any], None]) -> None:
        """Ask for a group's ownership."""

    def on_loaded(self, loading: Loading, response: Any) -> None:
        """It was given."""

    def forget(self, group_id: str, code: ErrorCode) -> None:
        """Act for a group no more; whoever waits is told `code`."""


class Loading:
    """See the module."""

    def __init__(self, group_id: str, env: Owner, *, creates: bool) -> None:
        self.group_id = group_id
        self.parked: list[InboundRequest] = []
        self._env = env
        self._creates = creates  # what was asked for last
        self._may_create = creates  # somebody waits who needs the group made
        self._is_closed = False
        self._backoff_ms = env.settings.retry_backoff_ms

    def begin(self) -> None:
        """Ask for the ownership."""
        patience_ms = self._env.now_ms + self._env.settings.answer_timeout_ms
        self._env.timers.set(TimerKey(self.group_id, "patience"), patience_ms)
        self._acquire()

    def park(self, inbound: InboundRequest) -> None:
        """Let a request wait."""
        if len(self.parked) >= MAX_PARKED:
            self._env.reply(inbound, error_response(inbound, _loading_code(inbound)))
            return
        self.parked.append(inbound)
        self._may_create = self._may_create or creates_group(inbound)

    def on_timer(self, key: TimerKey) -> None:
        """Ask again, or let nobody wait any longer."""
        if key.kind == "load":
            self._acquire()
        elif key.kind == "patience":
            parked, self.parked = self.parked, []
            self._env.forget(self.group_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            for inbound in parked:
                self._env.reply(inbound, error_response(inbound, _loading_code(inbound)))

    def close(self, code: ErrorCode) -> None:
        """It is not going to be ours."""
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
        elif code is ErrorCode.POLICY_VIOLATION:
            self._env.forget(self.group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif code is ErrorCode.INVALID_GROUP_ID:
            self._env.forget(self.group_id, code)
        else:
            self._env.forget(self.group_id, ErrorCode.NOT_COORDINATOR)

    def _reject_missing_group(self) -> None:
        """There is no such group, and nobody wants to make it."""
        parked, self.parked = self.parked, []
        self._env.forget(self.group_id, ErrorCode.NOT_COORDINATOR)
        for inbound in parked:
            self._env.reply(inbound, error_response(inbound, _missing_group_code(inbound)))


def _missing_group_code(inbound: InboundRequest) -> ErrorCode:
    """There is no such group: in words that its sender knows."""
    match inbound.request:
        case OffsetCommitRequest():
            return ErrorCode.ILLEGAL_GENERATION
        case DeleteGroupsRequest():
            return ErrorCode.GROUP_ID_NOT_FOUND
        case _:
            return ErrorCode.UNKNOWN_MEMBER_ID


def _loading_code(inbound: InboundRequest) -> ErrorCode:
    """Its group is still not loaded: in words that its sender knows."""
    if isinstance(inbound.request, JoinGroupRequest | OffsetCommitRequest | DeleteGroupsRequest):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def creates_group(inbound: InboundRequest) -> bool:
    """Does this request make a group, if there is none?"""
    request = inbound.request
    if isinstance(request, JoinGroupRequest):
        return not request.member_id
    if isinstance(request, OffsetCommitRequest):
        return request.generation_id_or_member_epoch < 0
    return False
