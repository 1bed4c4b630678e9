"""The group coordinator of a broker: requests in, replies and calls of the group log out.

Which groups it coordinates is a pure function of the unfenced brokers; that it *may* is its
ownership, which it acquires when the first request for a group arrives. The response to that
carries the group's state in the log. So a move costs the members one request that is answered
NOT_COORDINATOR, and then they find their generation where they left it.

Two traps. Nothing here is durable, and nothing needs to be: what must not be lost is in the log
before any client is answered. And offsets are not kept here at all: an OffsetFetch is answered from
the log, behind its read barrier, because another broker may coordinate the group by now.

All members may have died with the broker that coordinated them. So groups with members are also
acquired if no request names them: their sessions expire here, and then their offsets can expire.

No clock, no randomness, no socket: `step` is given the time, and each request a UUID of its own.

Source: docs/design/groups.md; upstream's GroupCoordinatorService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from coordinator.groups.deletion import GroupTicket, begin_deletion
from coordinator.groups.error_responses import (
    commit_response,
    describe_error,
    error_response,
    transactional_response,
)
from coordinator.groups.events import (
    BrokersChanged,
    Call,
    Effect,
    Event,
    InboundRequest,
    LogResponse,
    Reply,
    Tick,
    Topics,
)
from coordinator.groups.group import ClassicGroup, refuse_join_in_any_state
from coordinator.groups.loading import Loading, creates_group
from coordinator.groups.offsets import (
    IDS_VERSION,
    CommitTopic,
    Errors,
    deletion_response,
    has_too_many_offsets,
    validate_commit,
    validate_deletion,
    without_transaction,
)
from coordinator.groups.reads import READ, Reads, is_valid_group_id
from coordinator.groups.settings import GroupSettings
from coordinator.groups.state import Group
from coordinator.groups.timers import TimerKey, Timers
from coordinator.rendezvous import group_broker
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc.base import Request, Response
from records.rpc.group_log import AcquireGroupOwnershipRequest

log = logging.getLogger("coordinator.groups")

Catalog = Callable[[], Iterable[tuple[str, Group]]]
"""Returns all groups of the log, as this node's replica has them."""

ADOPT_SLICE_GROUPS: Final = 200
"""Groups of the catalog that one step scans: well below a millisecond."""

_ADOPT: Final = TimerKey("", "adopt")


class GroupBroker:
    """The state of one broker's group coordinator.

    Call `step` with each event, carry out the effects, and send a `Tick` at `deadline_ms`.
    """

    def __init__(
        self,
        broker_id: int,
        settings: GroupSettings,
        topics: Topics,
        *,
        wall_ms: Callable[[], int],
        catalog: Catalog = lambda: (),
    ) -> None:
        """Create a fenced broker that coordinates no groups.

        Args:  wall_ms: ms since 1970, to compute when the offsets of old clients expire.
               catalog: the groups in the log, as this node's replica has them.
        """
        self.broker_id = broker_id
        self.settings = settings
        self.timers = Timers()
        self.groups: dict[str, ClassicGroup | Loading] = {}
        self.topics = topics
        self.catalog = catalog
        self._wall_ms = wall_ms
        self._now_ms = 0
        self._broker_ids: frozenset[int] = frozenset()
        self._broker_epoch = -1
        self._effects: list[Effect] = []
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._next_call = 0
        self._reads = Reads(self)
        self._unscanned: Iterator[tuple[str, Group]] | None = None  # None: no scan

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Process one event and all due timers; return the responses and requests to send.

        Args:  now_ms: on a clock that never goes back.
        """
        assert now_ms >= self._now_ms, f"time went back: {self._now_ms} -> {now_ms}"
        self._now_ms = now_ms
        match event:
            case InboundRequest():
                self._on_request(event)
            case LogResponse(call_id, response):
                self._calls.pop(call_id, _ignore)(response)
            case BrokersChanged(broker_ids, broker_epoch):
                self._on_brokers_changed(broker_ids, broker_epoch)
            case Tick():
                pass
        while (key := self.timers.pop_due(now_ms)) is not None:
            self._on_timer(key)
        effects, self._effects = self._effects, []
        return effects

    @property
    def deadline_ms(self) -> int | None:
        """Return when the next timer is due, in ms on the clock of `step`; None without timers."""
        return self.timers.next_ms

    # --- used by groups and reads ---------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Return the time of the current step in ms."""
        return self._now_ms

    def reply(self, inbound: InboundRequest, response: Response) -> None:
        """Send a response, or add it to the response of the DeleteGroups request that caused it."""
        if isinstance(inbound.ticket, GroupTicket):
            inbound.ticket.on_response(response)
            return
        self._effects.append(Reply(inbound.ticket, response))

    def request(self, request: Request, then: Callable[[Any], None]) -> None:
        """Send a request to the group log; call `then` with its response, or None if none came."""
        self._next_call += 1
        self._calls[self._next_call] = then
        self._effects.append(Call(self._next_call, request))

    def call(self, group_id: str, request: Request) -> None:
        """Send a group's request to the group log; the group's request queue gets the response."""
        group = self.groups.get(group_id)
        assert isinstance(group, ClassicGroup), f"{group_id} calls, and is not loaded"

        def then(response: Any) -> None:
            if self.groups.get(group_id) is group:
                group.outbox.on_response(response)

        self.request(request, then)

    def on_ownership_lost(self, group_id: str) -> None:
        """Stop coordinating a consumer group that another broker coordinates now."""
        self.forget(group_id, ErrorCode.NOT_COORDINATOR)

    def on_group_removed(self, group_id: str, ownership_epoch: int) -> None:
        """Stop coordinating a consumer group that was removed from the group log."""
        self._reads.note_removal(group_id, ownership_epoch)
        self.on_ownership_lost(group_id)

    def forget(self, group_id: str, code: ErrorCode) -> None:
        """Stop coordinating a consumer group; answer its waiting requests with `code`."""
        slot = self.groups.pop(group_id)
        if isinstance(slot, ClassicGroup) and not slot.is_idle:
            log.info("group=%s action=given_up reason=%s", group_id, code.name)
        for kind in ("idle", "load", "patience"):
            self.timers.cancel(TimerKey(group_id, kind))
        slot.close(code)

    def is_ours(self, group_id: str) -> bool:
        """Return whether rendezvous hashing chooses this broker to coordinate the group."""
        return group_broker(group_id, self._broker_ids) == self.broker_id

    def is_active(self) -> bool:
        """Return whether this broker is registered and unfenced, and so coordinates groups."""
        return bool(self._broker_ids)

    # --- requests -----------------------------------------------------------------------------

    def _on_request(self, inbound: InboundRequest) -> None:
        match inbound.request:
            case rpc.OffsetFetchRequest():
                self._reads.offset_fetch(inbound, inbound.request)
            case rpc.DescribeGroupsRequest():
                self._reads.describe(inbound, inbound.request)
            case rpc.ListGroupsRequest():
                self._reads.list_groups(inbound, inbound.request)
            case rpc.DeleteGroupsRequest():
                begin_deletion(
                    inbound, inbound.request, ask=self._on_group_request, reply=self.reply
                )
            case _:
                self._on_group_request(inbound.request.group_id, inbound)

    def refuse_group(self, group_id: str, *, may_be_empty: bool) -> ErrorCode:
        """Return INVALID_GROUP_ID, NOT_COORDINATOR, or NONE if this broker serves the group."""
        if not is_valid_group_id(group_id, may_be_empty=may_be_empty):
            return ErrorCode.INVALID_GROUP_ID
        if group_id not in self.groups and not self.is_ours(group_id):
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def _on_group_request(self, group_id: str, inbound: InboundRequest) -> None:
        allows_empty_id = isinstance(
            inbound.request, rpc.OffsetCommitRequest | rpc.DeleteGroupsRequest
        )
        code = self.refuse_group(group_id, may_be_empty=allows_empty_id)
        if code is not ErrorCode.NONE:
            self.reply(inbound, error_response(inbound, code))
            return
        slot = self.groups.get(group_id)
        if isinstance(slot, ClassicGroup):
            self.dispatch(slot, inbound)
            return
        refusal = self._refuse_in_any_state(inbound)
        if refusal is not None:  # acquiring the group for it would write a record
            self.reply(inbound, refusal)
            return
        if slot is None:
            slot = self.groups[group_id] = Loading(group_id, self, creates=creates_group(inbound))
            slot.begin()
        slot.park(inbound)

    def _refuse_in_any_state(self, inbound: InboundRequest) -> Response | None:
        """Return the error response to a request that every group state refuses, else None."""
        match inbound.request:
            case rpc.OffsetCommitRequest() as request:
                code, topics, errors = self._validate_commit(inbound.version, request)
                return None if topics else commit_response(request, errors, code)
            case rpc.TxnOffsetCommitRequest() as request:
                code, topics, errors = self._validate_transactional(request)
                return None if topics else transactional_response(request, errors, code)
            case rpc.JoinGroupRequest() as request:
                code = refuse_join_in_any_state(request, self.settings)
                return None if code is ErrorCode.NONE else error_response(inbound, code)
            case rpc.OffsetDeleteRequest() as request if has_too_many_offsets(request):
                return error_response(inbound, ErrorCode.INVALID_REQUEST)
            case _:
                return None

    def _validate_commit(
        self, version: int, request: rpc.OffsetCommitRequest
    ) -> tuple[ErrorCode, tuple[CommitTopic, ...], Errors]:
        """Return an OffsetCommit's overall error, its valid topics, and its partitions' errors."""
        if has_too_many_offsets(request):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE, (), {}
        topics, errors = validate_commit(
            request,
            version,
            self.topics,
            max_metadata=self.settings.offset_metadata_max_bytes,
            wall_ms=self._wall_ms(),
        )
        return ErrorCode.NONE, topics, errors

    def _validate_transactional(
        self, request: rpc.TxnOffsetCommitRequest
    ) -> tuple[ErrorCode, tuple[CommitTopic, ...], Errors]:
        """Return a TxnOffsetCommit's whole error, its valid topics, and its partitions' errors."""
        return self._validate_commit(IDS_VERSION - 1, without_transaction(request))

    def dispatch(self, group: ClassicGroup, inbound: InboundRequest) -> None:
        """Process a client's request for a consumer group that this broker has loaded."""
        if isinstance(inbound.request, rpc.OffsetCommitRequest):
            self._commit_offsets(group, inbound, inbound.request)
        elif isinstance(inbound.request, rpc.TxnOffsetCommitRequest):
            self._commit_transactional(group, inbound, inbound.request)
        elif isinstance(inbound.request, rpc.OffsetDeleteRequest):
            self._delete_offsets(group, inbound, inbound.request)
        elif isinstance(inbound.request, rpc.DeleteGroupsRequest):
            group.delete(lambda code: self.reply(inbound, error_response(inbound, code)))
        else:
            group.ask(inbound)
        if self.groups.get(group.group_id) is group:
            self._restart_idle(group.group_id)

    def _commit_offsets(
        self, group: ClassicGroup, inbound: InboundRequest, request: rpc.OffsetCommitRequest
    ) -> None:
        code, topics, errors = self._validate_commit(inbound.version, request)
        if code is not ErrorCode.NONE:
            self.reply(inbound, commit_response(request, errors, code))
            return
        generation = request.generation_id_or_member_epoch
        code = group.refuse_commit(generation, request.member_id, request.group_instance_id)
        if code is not ErrorCode.NONE or not topics:
            self.reply(inbound, commit_response(request, errors, code))
            return

        def on_done(code: ErrorCode) -> None:
            self.reply(inbound, commit_response(request, errors, code))

        group.commit(generation, request.member_id, topics, on_done)

    def _commit_transactional(
        self, group: ClassicGroup, inbound: InboundRequest, request: rpc.TxnOffsetCommitRequest
    ) -> None:
        code, topics, errors = self._validate_transactional(request)
        if code is ErrorCode.NONE:
            code = group.refuse_transactional_commit(
                request.generation_id, request.member_id, request.group_instance_id
            )
        if code is not ErrorCode.NONE or not topics:
            self.reply(inbound, transactional_response(request, errors, code))
            return

        def on_done(code: ErrorCode) -> None:
            self.reply(inbound, transactional_response(request, errors, code))

        group.commit_transactional(inbound, topics, on_done)

    def _delete_offsets(
        self, group: ClassicGroup, inbound: InboundRequest, request: rpc.OffsetDeleteRequest
    ) -> None:
        code = group.refuse_offset_deletion()
        if has_too_many_offsets(request):
            code = ErrorCode.INVALID_REQUEST
        if code is not ErrorCode.NONE:
            self.reply(inbound, error_response(inbound, code))
            return
        topics, errors = validate_deletion(request, self.topics, group.is_subscribed)

        def on_done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.reply(inbound, deletion_response(request, errors))
            else:
                self.reply(inbound, error_response(inbound, code))

        group.delete_offsets(topics, on_done)

    # --- ownership ----------------------------------------------------------------------------

    def acquire(self, group_id: str, *, create: bool, then: Callable[[Any], None]) -> None:
        """Request a group's ownership from the group log; call `then` with the response."""
        request = AcquireGroupOwnershipRequest(
            group_id=group_id,
            broker_id=self.broker_id,
            broker_epoch=self._broker_epoch,
            create=create,
        )
        self.request(request, then)

    def on_loaded(self, loading: Loading, response: Any) -> None:
        """Take over a group whose ownership was granted; serve its waiting requests in order."""
        group = ClassicGroup(loading.group_id, self, response)
        self.groups[loading.group_id] = group
        log.info(
            "group=%s action=taken ownership_epoch=%d generation=%d members=%d",
            loading.group_id, response.ownership_epoch, response.generation, len(response.members),
        )  # fmt: skip
        for kind in ("load", "patience"):
            self.timers.cancel(TimerKey(loading.group_id, kind))
        self._restart_idle(loading.group_id)
        for inbound in loading.parked:
            if self.groups.get(loading.group_id) is group:
                self.dispatch(group, inbound)
            else:
                self.reply(inbound, error_response(inbound, ErrorCode.NOT_COORDINATOR))

    def _restart_idle(self, group_id: str) -> None:
        self.timers.set(TimerKey(group_id, "idle"), self._now_ms + self.settings.idle_ms)

    def _on_brokers_changed(self, broker_ids: frozenset[int], broker_epoch: int) -> None:
        self._broker_ids, self._broker_epoch = broker_ids, broker_epoch
        for group_id in [name for name in self.groups if not self.is_ours(name)]:
            self.forget(group_id, ErrorCode.NOT_COORDINATOR)
        self._schedule_adoption(self.settings.adopt_delay_ms)

    def _schedule_adoption(self, delay_ms: int) -> None:
        self._unscanned = None
        self.timers.set(_ADOPT, self._now_ms + delay_ms)

    def _adopt(self) -> None:
        """Acquire each group with members in the next slice that this broker should coordinate.

        No request names these groups.
        """
        if not self._broker_ids:
            return
        if self._unscanned is None:
            self._unscanned = iter(self.catalog())
        scanned = list(islice(self._unscanned, ADOPT_SLICE_GROUPS))
        for group_id, group in scanned:
            if group.member_ids and group_id not in self.groups and self.is_ours(group_id):
                self.groups[group_id] = loading = Loading(group_id, self, creates=False)
                loading.begin()
        if len(scanned) < ADOPT_SLICE_GROUPS:
            self._schedule_adoption(self.settings.adopt_interval_ms)
        else:
            self.timers.set(_ADOPT, self._now_ms + self.settings.adopt_pause_ms)

    # --- timers -------------------------------------------------------------------------------

    def _on_timer(self, key: TimerKey) -> None:
        if key == _ADOPT:
            self._adopt()
            return
        if key.kind == READ:
            self._reads.on_timer(key)
            return
        slot = self.groups.get(key.group_id)
        if isinstance(slot, Loading):
            slot.on_timer(key)
        elif slot is not None and key.kind == "idle":
            if slot.is_idle:
                self.forget(key.group_id, ErrorCode.NOT_COORDINATOR)
            else:
                self._restart_idle(key.group_id)
        elif slot is not None:
            slot.on_timer(key)

    def describe_loaded(self, group_id: str) -> rpc.DescribeGroupsResponse.DescribedGroup | None:
        """Describe a group that this broker has loaded or is loading; None for other groups."""
        slot = self.groups.get(group_id)
        if isinstance(slot, ClassicGroup):
            return slot.describe()
        return (
            None
            if slot is None
            else describe_error(group_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        )


def _ignore(response: Any) -> None:
    """Ignore a response of the group log that requires no action by this broker."""
