"""The group coordinator of a broker: clients' requests in, answers and calls of the log out.

Which groups it acts for is a pure function of the unfenced brokers; that it *may* is its ownership,
which it takes when the first request for a group arrives. With the ownership comes what the log has
of the group. So a move costs the members one request that is answered NOT_COORDINATOR, and then
they find their generation where they left it.

Surprises. Nothing here is durable, and nothing needs to be: what must not be lost is in the log
before anybody is told. And offsets are not kept here at all: who asks for them is answered from the
log, behind its read barrier, because somebody else may act for the group by now.

Members may all have died with the broker that acted for them. So groups with members are taken also
if nobody asks for them: their sessions end here, and then their offsets can expire.

No clock, no randomness, no socket: `step` is given the time, and each request a UUID of its own.

Source: docs/design/groups.md; upstream's GroupCoordinatorService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from coordinator.groups.deleting import Part, begin_deletion
from coordinator.groups.error_responses import commit_answer, described_error, refuse
from coordinator.groups.events import (
    Answered,
    Asked,
    BrokersChanged,
    Call,
    Effect,
    Event,
    Reply,
    Tick,
    Topics,
)
from coordinator.groups.group import ClassicGroup
from coordinator.groups.loading import Loading, makes_group
from coordinator.groups.offsets import is_too_much, to_commit
from coordinator.groups.reads import READ, Reads, may_be_a_group
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
"""All groups of the log, as a replica at hand has them."""

ADOPT_AT_ONCE: Final = 200
"""Groups of the catalog that are looked at in one step: well below a millisecond."""

_ADOPT: Final = TimerKey("", "adopt")


class GroupBroker:
    """See the module. `step` it with events; look at `deadline_ms` afterwards."""

    def __init__(
        self,
        broker_id: int,
        settings: GroupSettings,
        topics: Topics,
        *,
        wall_ms: Callable[[], int],
        catalog: Catalog = lambda: (),
    ) -> None:
        """
        Args:  wall_ms: ms since 1970, for what old clients say of their offsets' retention.
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
        self._unseen: Iterator[tuple[str, Group]] | None = None  # of a look under way

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event in; what follows from it.

        Args:  now_ms: on a clock that never goes back.
        """
        assert now_ms >= self._now_ms, f"time went back: {self._now_ms} -> {now_ms}"
        self._now_ms = now_ms
        match event:
            case Asked():
                self._asked(event)
            case Answered(call_id, response):
                self._calls.pop(call_id, _ignore)(response)
            case BrokersChanged(broker_ids, broker_epoch):
                self._brokers_changed(broker_ids, broker_epoch)
            case Tick():
                pass
        while (key := self.timers.pop_due(now_ms)) is not None:
            self._due(key)
        effects, self._effects = self._effects, []
        return effects

    @property
    def deadline_ms(self) -> int | None:
        """`Tick` is to come then, unless something else does before; None: never."""
        return self.timers.next_ms

    # --- what the parts use ---------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """As of this step."""
        return self._now_ms

    def reply(self, asked: Asked, response: Response) -> None:
        """Answer a client, or the part of a request that asks for one."""
        if isinstance(asked.ticket, Part):
            asked.ticket.answered(response)
            return
        self._effects.append(Reply(asked.ticket, response))

    def request(self, request: Request, then: Callable[[Any], None]) -> None:
        """Ask the log; `then` hears the response, or None."""
        self._next_call += 1
        self._calls[self._next_call] = then
        self._effects.append(Call(self._next_call, request))

    def call(self, group_id: str, request: Request) -> None:
        """Ask the log on behalf of a group, whose line is told the answer."""
        group = self.groups.get(group_id)
        assert isinstance(group, ClassicGroup), f"{group_id} calls, and is not loaded"

        def then(response: Any) -> None:
            if self.groups.get(group_id) is group:
                group.line.answered(response)

        self.request(request, then)

    def lost(self, group_id: str) -> None:
        """Another broker acts for this group."""
        self.forget(group_id, ErrorCode.NOT_COORDINATOR)

    def removed(self, group_id: str, ownership_epoch: int) -> None:
        """The group is gone, as it was under this ownership; nobody acts for it."""
        self._reads.removed(group_id, ownership_epoch)
        self.lost(group_id)

    def forget(self, group_id: str, code: ErrorCode) -> None:
        """Act for a group no more; whoever waits is told `code`."""
        slot = self.groups.pop(group_id)
        if isinstance(slot, ClassicGroup) and not slot.is_idle:
            log.info("group=%s action=given_up reason=%s", group_id, code.name)
        for kind in ("idle", "load", "patience"):
            self.timers.cancel(TimerKey(group_id, kind))
        slot.close(code)

    def is_ours(self, group_id: str) -> bool:
        """Are we the one to act for this group?"""
        return group_broker(group_id, self._broker_ids) == self.broker_id

    def is_active(self) -> bool:
        """Do we act for groups at all? Not while we are fenced, or no member."""
        return bool(self._broker_ids)

    # --- requests -----------------------------------------------------------------------------

    def _asked(self, asked: Asked) -> None:
        match asked.request:
            case rpc.OffsetFetchRequest():
                self._reads.offset_fetch(asked, asked.request)
            case rpc.DescribeGroupsRequest():
                self._reads.describe(asked, asked.request)
            case rpc.ListGroupsRequest():
                self._reads.list_groups(asked, asked.request)
            case rpc.DeleteGroupsRequest():
                begin_deletion(asked, asked.request, ask=self._asked_of_group, reply=self.reply)
            case _:
                self._asked_of_group(asked.request.group_id, asked)

    def refuse_group(self, group_id: str, *, may_be_empty: bool) -> ErrorCode:
        """Is this a group's id, and are we the ones to ask?"""
        if not may_be_a_group(group_id, may_be_empty=may_be_empty):
            return ErrorCode.INVALID_GROUP_ID
        if group_id not in self.groups and not self.is_ours(group_id):
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def _asked_of_group(self, group_id: str, asked: Asked) -> None:
        of_nobody = isinstance(asked.request, rpc.OffsetCommitRequest | rpc.DeleteGroupsRequest)
        code = self.refuse_group(group_id, may_be_empty=of_nobody)
        if code is not ErrorCode.NONE:
            self.reply(asked, refuse(asked, code))
            return
        slot = self.groups.get(group_id)
        if isinstance(slot, ClassicGroup):
            self.dispatch(slot, asked)
            return
        if slot is None:
            slot = self.groups[group_id] = Loading(group_id, self, creates=makes_group(asked))
            slot.begin()
        slot.park(asked)

    def dispatch(self, group: ClassicGroup, asked: Asked) -> None:
        """A request of a group that is loaded."""
        if isinstance(asked.request, rpc.OffsetCommitRequest):
            self._commit(group, asked, asked.request)
        elif isinstance(asked.request, rpc.DeleteGroupsRequest):
            group.delete(lambda code: self.reply(asked, refuse(asked, code)))
        else:
            group.ask(asked)
        if self.groups.get(group.group_id) is group:
            self._restart_idle(group.group_id)

    def _commit(self, group: ClassicGroup, asked: Asked, request: rpc.OffsetCommitRequest) -> None:
        if is_too_much(request):
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            self.reply(asked, commit_answer(request, {}, code))
            return
        topics, errors = to_commit(
            request,
            asked.version,
            self.topics,
            max_metadata=self.settings.offset_metadata_max_bytes,
            wall_ms=self._wall_ms(),
        )
        generation = request.generation_id_or_member_epoch
        code = group.refuse_commit(generation, request.member_id, request.group_instance_id)
        if code is not ErrorCode.NONE or not topics:
            self.reply(asked, commit_answer(request, errors, code))
            return

        def told(code: ErrorCode) -> None:
            self.reply(asked, commit_answer(request, errors, code))

        group.commit(generation, request.member_id, topics, told)

    # --- owning -------------------------------------------------------------------------------

    def acquire(self, group_id: str, *, create: bool, then: Callable[[Any], None]) -> None:
        """Ask for a group's ownership."""
        request = AcquireGroupOwnershipRequest(
            group_id=group_id,
            broker_id=self.broker_id,
            broker_epoch=self._broker_epoch,
            create=create,
        )
        self.request(request, then)

    def loaded(self, loading: Loading, response: Any) -> None:
        """We own it: whoever waited is served, in order."""
        group = ClassicGroup(loading.group_id, self, response)
        self.groups[loading.group_id] = group
        log.info(
            "group=%s action=taken ownership_epoch=%d generation=%d members=%d",
            loading.group_id, response.ownership_epoch, response.generation, len(response.members),
        )  # fmt: skip
        for kind in ("load", "patience"):
            self.timers.cancel(TimerKey(loading.group_id, kind))
        self._restart_idle(loading.group_id)
        for asked in loading.parked:
            if self.groups.get(loading.group_id) is group:
                self.dispatch(group, asked)
            else:
                self.reply(asked, refuse(asked, ErrorCode.NOT_COORDINATOR))

    def _restart_idle(self, group_id: str) -> None:
        self.timers.set(TimerKey(group_id, "idle"), self._now_ms + self.settings.idle_ms)

    def _brokers_changed(self, broker_ids: frozenset[int], broker_epoch: int) -> None:
        self._broker_ids, self._broker_epoch = broker_ids, broker_epoch
        for group_id in [name for name in self.groups if not self.is_ours(name)]:
            self.forget(group_id, ErrorCode.NOT_COORDINATOR)
        self._adopt_later(self.settings.adopt_delay_ms)

    def _adopt_later(self, delay_ms: int) -> None:
        self._unseen = None
        self.timers.set(_ADOPT, self._now_ms + delay_ms)

    def _adopt(self) -> None:
        """Take groups with members that nobody asks for; a piece of the catalog in each step."""
        if not self._broker_ids:
            return
        if self._unseen is None:
            self._unseen = iter(self.catalog())
        piece = list(islice(self._unseen, ADOPT_AT_ONCE))
        for group_id, group in piece:
            if group.member_ids and group_id not in self.groups and self.is_ours(group_id):
                self.groups[group_id] = loading = Loading(group_id, self, creates=False)
                loading.begin()
        if len(piece) < ADOPT_AT_ONCE:
            self._adopt_later(self.settings.adopt_interval_ms)
        else:
            self.timers.set(_ADOPT, self._now_ms + self.settings.adopt_pause_ms)

    # --- timers -------------------------------------------------------------------------------

    def _due(self, key: TimerKey) -> None:
        if key == _ADOPT:
            self._adopt()
            return
        if key.kind == READ:
            self._reads.again(key)
            return
        slot = self.groups.get(key.group_id)
        if isinstance(slot, Loading):
            slot.due(key)
        elif slot is not None and key.kind == "idle":
            if slot.is_idle:
                self.forget(key.group_id, ErrorCode.NOT_COORDINATOR)
            else:
                self._restart_idle(key.group_id)
        elif slot is not None:
            slot.due(key)

    def describe_loaded(self, group_id: str) -> rpc.DescribeGroupsResponse.DescribedGroup | None:
        """What is known of a group here; None if it is not loaded."""
        slot = self.groups.get(group_id)
        if isinstance(slot, ClassicGroup):
            return slot.described()
        return (
            None
            if slot is None
            else described_error(group_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        )


def _ignore(response: Any) -> None:
    """An answer that nobody waits for any more."""
