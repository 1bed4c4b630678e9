"""Read-only requests: OffsetFetch, DescribeGroups, ListGroups.

What is not in memory is fetched from the log, group by group; the client is answered once every
group has a result. A group whose state could not be fetched gets an error of its own beside the
others.

Any broker answers OffsetFetch, also for groups that it does not coordinate: the log has the
offsets. The trap is the error code: the log is queried again for as long as a client waits, and
then the group is *loading*. That is the only code which every client retries: after NOT_COORDINATOR
or COORDINATOR_NOT_AVAILABLE librdkafka leaves the partition without an offset until the next
rebalance, and the second ends a Java consumer's poll.

The answer that there is *no* offset does more harm: the client then starts from another position.
The log is read behind its barrier; but which topic a name or an id means comes from the broker's
image, and that may be old. So before an offset is withheld because of the image, the request waits
until the image is known to be newer than the request.

Source: KIP-40, KIP-518 and KIP-848 (ListGroups' filters), KIP-709, KIP-1043 (DescribeGroups v6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from coordinator.groups.error_responses import GROUPS_VERSION, describe_error, error_response
from coordinator.groups.errors import code_of
from coordinator.groups.events import InboundRequest, Topics
from coordinator.groups.group import ClassicGroup
from coordinator.groups.membership import State
from coordinator.groups.offsets import (
    FetchedGroup,
    exceeds_fetch_limit,
    fetch_request,
    fetch_response,
    needs_newer_image,
    requested_groups,
    resolve_names,
)
from coordinator.groups.settings import MAX_BACKOFF_MS, MAX_GROUP_ID_BYTES, GroupSettings
from coordinator.groups.state import Group
from coordinator.groups.timers import TimerKey, Timers
from records.groups import GroupGenerationRecord
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc.base import Request, Response
from records.rpc.group_log import FetchGroupStateRequest, FetchGroupStateResponse

MAX_GROUPS_ASKED: Final = 1_000
"""Groups in one OffsetFetch or DescribeGroups: each may need a call of the log."""

MAX_REMOVED: Final = 1_000
"""Removed groups that are hidden until this node's replica has removed them too."""

NOT_FOUND_VERSION: Final = 6
"""DescribeGroups: the first version in which a missing group is an error (KIP-1043)."""

CLASSIC: Final = "Classic"

READ: Final = "read"
"""The kind of timer that a read sets before it queries the log again."""

_CERTAIN: Final = frozenset({ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND})
"""The codes after which the state of a group is certain."""

Described = rpc.DescribeGroupsResponse.DescribedGroup


class Source(Protocol):
    """The parts of its broker that `Reads` uses."""

    topics: Topics
    catalog: Callable[[], Iterable[tuple[str, Group]]]
    groups: Any

    timers: Timers
    settings: GroupSettings

    @property
    def now_ms(self) -> int: ...

    def reply(self, inbound: InboundRequest, response: Response) -> None: ...

    def request(self, request: Request, then: Callable[[Any], None]) -> None: ...

    def refuse_group(self, group_id: str, *, may_be_empty: bool) -> ErrorCode: ...

    def is_ours(self, group_id: str) -> bool: ...

    def is_active(self) -> bool: ...

    def describe_loaded(self, group_id: str) -> Described | None: ...


class Reads:
    """Serves read-only requests, from memory and from the log."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._scheduled: dict[str, Callable[[], None]] = {}  # by a number in their timer's key
        self._count = 0
        self._removed: dict[str, int] = {}  # ownership epoch, by group id

    def on_timer(self, key: TimerKey) -> None:
        """Run the callback that was scheduled under this timer."""
        self._scheduled.pop(key.member_id)()

    def _query_log(self, request: Request, then: Callable[[Any], None]) -> None:
        """Query the group log until the outcome is certain or the client's waiting time is over."""
        source = self._source
        deadline_ms = source.now_ms + source.settings.answer_timeout_ms
        backoff_ms = source.settings.retry_backoff_ms

        def on_response(response: Any) -> None:
            nonlocal backoff_ms
            at_ms = source.now_ms + backoff_ms
            if code_of(response, _CERTAIN) is not None or at_ms > deadline_ms:
                then(response)
                return
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)
            self._schedule(at_ms, lambda: source.request(request, on_response))

        source.request(request, on_response)

    def _schedule(self, at_ms: int, then: Callable[[], None]) -> None:
        self._count += 1
        self._scheduled[str(self._count)] = then
        self._source.timers.set(TimerKey("", READ, str(self._count)), at_ms)

    def _is_image_current_since(self, began_ms: int) -> bool:
        """Return whether the cluster image has every record committed before `began_ms`."""
        age_ms = self._source.topics.age_ms()
        return age_ms is not None and age_ms <= self._source.now_ms - began_ms

    # --- OffsetFetch --------------------------------------------------------------------------

    def offset_fetch(self, inbound: InboundRequest, request: rpc.OffsetFetchRequest) -> None:
        """Answer an OffsetFetch request from the group log."""
        source = self._source
        groups = requested_groups(request, inbound.version, source.topics)
        if len(groups) > MAX_GROUPS_ASKED:
            source.reply(inbound, error_response(inbound, ErrorCode.INVALID_REQUEST))
            return
        found: list[FetchedGroup | None] = [None] * len(groups)
        began_ms = source.now_ms
        deadline_ms = began_ms + source.settings.answer_timeout_ms

        def put(index: int, code: ErrorCode, state: FetchGroupStateResponse | None) -> None:
            found[index] = (groups[index], code, state)
            if None not in found:
                all_found = [item for item in found if item is not None]
                source.reply(inbound, fetch_response(all_found, inbound.version, source.topics))

        def on_response(index: int, response: Any) -> None:
            code, state = _offsets_result(response)
            in_doubt = code is ErrorCode.NONE and needs_newer_image(
                groups[index], state, inbound.version, source.topics
            )
            if in_doubt and not self._is_image_current_since(began_ms):
                wait(index)
            else:
                put(index, code, state)

        def wait(index: int) -> None:
            """Wait until the cluster image is newer than the request, then query the log again."""
            if self._is_image_current_since(began_ms):
                groups[index] = resolve_names(groups[index], source.topics)
                query(index)
            elif source.now_ms >= deadline_ms:
                put(index, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
            else:
                at_ms = min(source.now_ms + source.settings.retry_backoff_ms, deadline_ms)
                self._schedule(at_ms, partial(wait, index))

        def query(index: int) -> None:
            wanted = fetch_request(groups[index])
            if not is_valid_group_id(groups[index].group_id, may_be_empty=True):
                put(index, ErrorCode.INVALID_GROUP_ID, None)
            elif exceeds_fetch_limit(wanted):
                put(index, ErrorCode.INVALID_REQUEST, None)
            else:
                self._query_log(wanted, partial(on_response, index))

        if not groups:
            source.reply(inbound, fetch_response((), GROUPS_VERSION, source.topics))
        for index in range(len(groups)):
            query(index)

    # --- DescribeGroups -----------------------------------------------------------------------

    def describe(self, inbound: InboundRequest, request: rpc.DescribeGroupsRequest) -> None:
        """Answer a DescribeGroups request, from memory for loaded groups, else from the log."""
        source = self._source
        if len(request.groups) > MAX_GROUPS_ASKED:
            source.reply(inbound, error_response(inbound, ErrorCode.INVALID_REQUEST))
            return
        found: list[Described | None] = [None] * len(request.groups)

        def put(index: int, described: Described) -> None:
            found[index] = described
            finish()

        def finish() -> None:
            if None not in found:
                groups = tuple(item for item in found if item is not None)
                source.reply(inbound, rpc.DescribeGroupsResponse(groups=groups))

        def on_response(index: int, state: Any) -> None:
            put(index, _describe_stored(request.groups[index], state, inbound.version))

        if not request.groups:
            finish()
        for index, name in enumerate(request.groups):
            code = source.refuse_group(name, may_be_empty=True)
            if code is not ErrorCode.NONE:
                put(index, describe_error(name, code))
                continue
            loaded = source.describe_loaded(name)
            if loaded is not None:
                put(index, loaded)
                continue
            state_request = FetchGroupStateRequest(group_id=name, topics=(), with_members=True)
            self._query_log(state_request, partial(on_response, index))

    # --- ListGroups ---------------------------------------------------------------------------

    def note_removal(self, group_id: str, ownership_epoch: int) -> None:
        """Hide a removed group from ListGroups until the local replica has removed the group."""
        self._removed[group_id] = ownership_epoch
        if len(self._removed) > MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    def list_groups(self, inbound: InboundRequest, request: rpc.ListGroupsRequest) -> None:
        """List the groups that this broker coordinates or would coordinate on request."""
        if not self._source.is_active():
            self._source.reply(
                inbound, error_response(inbound, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            )
            return
        types = {kind.lower() for kind in request.types_filter}
        states = {state.lower() for state in request.states_filter}
        listed = []
        if not types or CLASSIC.lower() in types:
            for group_id, protocol_type, state in self._iter_groups():
                if not states or state.value.lower() in states:
                    listed.append(
                        rpc.ListGroupsResponse.ListedGroup(
                            group_id=group_id,
                            protocol_type=protocol_type,
                            group_state=state.value,
                            group_type=CLASSIC,
                        )
                    )
        self._source.reply(inbound, rpc.ListGroupsResponse(error_code=0, groups=tuple(listed)))

    def _iter_groups(self) -> Iterable[tuple[str, str, State]]:
        source = self._source
        for group_id, slot in source.groups.items():
            if isinstance(slot, ClassicGroup):
                yield group_id, slot.protocol_type or "", slot.state
        removed, self._removed = self._removed, {}
        for group_id, group in source.catalog():
            if removed.get(group_id, -1) >= group.ownership_epoch:
                self._removed[group_id] = removed[group_id]
                continue
            if isinstance(source.groups.get(group_id), ClassicGroup):
                continue
            if source.is_ours(group_id):
                generation = group.generation
                kind = (generation.protocol_type if generation else None) or ""
                yield group_id, kind, State.STABLE if group.member_ids else State.EMPTY


def is_valid_group_id(group_id: str, *, may_be_empty: bool) -> bool:
    """Return whether a group id is short enough, and not empty unless `may_be_empty`."""
    return (bool(group_id) or may_be_empty) and len(group_id.encode()) <= MAX_GROUP_ID_BYTES


def _offsets_result(state: Any) -> tuple[ErrorCode, FetchGroupStateResponse | None]:
    code = code_of(state, _CERTAIN)
    if code is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        return ErrorCode.NONE, None  # a missing group has no offsets: not an error
    return code, state


def _describe_stored(name: str, state: Any, version: int) -> Described:
    code = code_of(state, _CERTAIN)
    if code is None:
        return describe_error(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        if version < NOT_FOUND_VERSION:
            return describe_error(name, ErrorCode.NONE, state="Dead")
        return describe_error(name, code, state="Dead", message=f"Group {name} not found.")
    return Described(
        error_code=0,
        group_id=name,
        group_state=(State.STABLE if state.members else State.EMPTY).value,
        protocol_type=state.protocol_type or "",
        protocol_data=state.protocol_name or "",
        members=tuple(_member(member) for member in state.members),
    )


def _member(member: GroupGenerationRecord.Member) -> Described.DescribedGroupMember:
    return Described.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.subscription,
        member_assignment=member.assignment,
    )
