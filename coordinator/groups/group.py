"""One group on the broker that coordinates it: handles each member request in each state.

Source: the classic group protocol as upstream has it (KIP-62, KIP-345, KIP-394, KIP-814);
GroupMetadataManager and ClassicGroup.
"""

from __future__ import annotations

from typing import Any

from coordinator.groups.error_responses import MEMBERS_VERSION, error_response
from coordinator.groups.events import InboundRequest
from coordinator.groups.membership import (
    Member,
    Protocols,
    State,
    membership_from_records,
    offered_bytes,
)
from coordinator.groups.outbox import GroupOutbox, OnDone
from coordinator.groups.rebalance import SKIP_ASSIGNMENT_VERSION, Broker, Rebalance
from coordinator.groups.settings import (
    MAX_CLIENT_ID_BYTES,
    MAX_GENERATION_BYTES,
    MAX_INSTANCE_ID_BYTES,
    MAX_OFFERED_BYTES,
    MAX_PROTOCOLS,
    GroupSettings,
)
from coordinator.groups.timers import TimerKey
from records.consumer_protocol import subscribed_topics
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc.group_log import (
    AcquireGroupOwnershipResponse,
    CommitGroupOffsetsRequest,
    CommitTransactionalOffsetsRequest,
    RemoveGroupOffsetsRequest,
)

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups of consumers, whose subscriptions a broker can read."""

HANDSHAKE_VERSION = 4
"""JoinGroup: the first version in which a member gets its id before it joins (KIP-394)."""


class ClassicGroup(Rebalance):
    """A group that this broker owns: handles requests and timers, on top of its `Rebalance`."""

    def __init__(self, group_id: str, env: Broker, loaded: AcquireGroupOwnershipResponse) -> None:
        """Create a consumer group from its state in the log, with a new session per member."""
        super().__init__(group_id, env, GroupOutbox(group_id, loaded.ownership_epoch, env))
        self.generation = self.stored_generation = loaded.generation
        self.protocol_type, self.protocol_name = loaded.protocol_type, loaded.protocol_name
        if loaded.members:
            self.state = State.STABLE
            self.membership = membership_from_records(
                loaded.members, loaded.protocol_name, loaded.leader
            )
            for member in self.membership.members.values():
                self.restart_session(member)

    @property
    def is_idle(self) -> bool:
        """Return whether the group has no members, no pending member ids and no requests."""
        return self.state is State.EMPTY and not self.membership.pending and self.outbox.is_idle

    def ask(self, inbound: InboundRequest) -> None:
        """Process a JoinGroup, SyncGroup, Heartbeat or LeaveGroup request."""
        match inbound.request:
            case rpc.JoinGroupRequest():
                self._join(inbound, inbound.request)
            case rpc.SyncGroupRequest():
                self._sync(inbound, inbound.request)
            case rpc.HeartbeatRequest():
                self._heartbeat(inbound, inbound.request)
            case rpc.LeaveGroupRequest():
                self._leave(inbound, inbound.request)
            case _:
                raise TypeError(f"not a member's request: {inbound.request}")

    def _refuse(
        self, inbound: InboundRequest, code: ErrorCode, *, member_id: str | None = None
    ) -> None:
        self.env.reply(inbound, error_response(inbound, code, member_id=member_id))

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if the member exists and owns any given instance id, or else the error."""
        if instance_id is not None:
            holder = self.membership.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        known = member_id in self.membership.members
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID

    def _generation_error(self, generation: int) -> ErrorCode:
        """Return the error of a request whose generation is not the current generation.

        A higher generation can only come from a rebalance that ended when its broker failed: the
        member has lost nothing and only needs to rejoin.
        """
        if generation > self.generation:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.ILLEGAL_GENERATION

    # --- JoinGroup ----------------------------------------------------------------------------

    def _join(self, inbound: InboundRequest, request: rpc.JoinGroupRequest) -> None:
        protocols = _unique_protocols(request)
        code = self._refuse_join(request, protocols)
        if code is not ErrorCode.NONE:
            self._refuse(inbound, code)
        elif not request.member_id:
            self._join_new_member(inbound, request, protocols)
        elif request.member_id in self.membership.pending and request.group_instance_id is None:
            self._add(inbound, request, protocols, request.member_id)
        else:
            self._join_again(inbound, request, protocols)

    def _refuse_join(self, request: rpc.JoinGroupRequest, protocols: Protocols) -> ErrorCode:
        settings, membership = self.env.settings, self.membership
        code = refuse_join_in_any_state(request, settings)
        if code is not ErrorCode.NONE:
            return code
        size = offered_bytes(protocols)
        holder = membership.static.get(request.group_instance_id or "", request.member_id)
        known = membership.members.get(holder)
        offered_before = 0 if known is None else offered_bytes(known.protocols)
        if membership.size_bytes - offered_before + size > MAX_OFFERED_BYTES:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if known is None:
            newcomer = not request.member_id
            count = len(membership.members) + (len(membership.pending) if newcomer else 0)
            if count >= settings.max_size:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        if membership.members and (
            request.protocol_type != self.protocol_type
            or not membership.has_common_protocol(name for name, _ in protocols)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _join_new_member(
        self, inbound: InboundRequest, request: rpc.JoinGroupRequest, protocols: Protocols
    ) -> None:
        instance_id = request.group_instance_id
        if instance_id is not None:
            member_id = f"{instance_id}-{inbound.unique}"
            if instance_id in self.membership.static:
                self._replace(inbound, request, protocols, member_id)
            else:
                self._add(inbound, request, protocols, member_id)
            return
        member_id = f"{_truncate(inbound.client_id)}-{inbound.unique}"
        if inbound.version < HANDSHAKE_VERSION:
            self._add(inbound, request, protocols, member_id)
            return
        self.membership.pending.add(member_id)
        key = TimerKey(self.group_id, "pending", member_id)
        self.env.timers.set(key, self.env.now_ms + request.session_timeout_ms)
        self._refuse(inbound, ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)

    def _add(
        self,
        inbound: InboundRequest,
        request: rpc.JoinGroupRequest,
        protocols: Protocols,
        member_id: str,
    ) -> None:
        if not self.membership.members:
            self.protocol_type = request.protocol_type
        self.env.timers.cancel(TimerKey(self.group_id, "pending", member_id))
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=_truncate(inbound.client_id),
            client_host=inbound.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout(request),
            protocols=protocols,
            waiting_join=inbound,
        )
        self.membership.add(member)
        self._begin_session(member)
        self.on_member_added()
        self.rebalance()

    def _begin_session(self, member: Member) -> None:
        """Start a member's session, with the longer join timeout for a member that is new."""
        self.restart_session(member)
        if member.is_new:
            key = TimerKey(self.group_id, "session", member.member_id)
            self.env.timers.set(key, self.env.now_ms + self.env.settings.new_member_join_timeout_ms)

    def _join_again(
        self, inbound: InboundRequest, request: rpc.JoinGroupRequest, protocols: Protocols
    ) -> None:
        code = self._check_member(request.member_id, request.group_instance_id)
        if code is not ErrorCode.NONE:
            self._refuse(inbound, code)
            return
        member = self.membership.members[request.member_id]
        unchanged = member.protocols == protocols
        leads = member.member_id == self.membership.leader
        if self.state is State.COMPLETING and unchanged:
            # The member repeats its JoinGroup because the response was lost.
            self.restart_session(member)
            self.env.reply(inbound, self.join_response(inbound, member))
        elif self.state is State.STABLE and unchanged and not leads:
            self.restart_session(member)
            self.env.reply(inbound, self.join_response(inbound, member))
        else:
            self._update(member, inbound, request, protocols)
            self.rebalance()

    def _update(
        self,
        member: Member,
        inbound: InboundRequest,
        request: rpc.JoinGroupRequest,
        protocols: Protocols,
    ) -> None:
        """Update a member from its JoinGroup request, and keep the request waiting."""
        self.membership.set_protocols(member, protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout(request)
        member.client_id, member.client_host = _truncate(inbound.client_id), inbound.client_host
        before = self.membership.set_waiting_join(member, inbound)
        if before is not None:
            self._refuse(before, ErrorCode.REBALANCE_IN_PROGRESS)
        if not member.is_new:  # a new member's first join has a longer timeout
            self.restart_session(member)

    def _replace(
        self,
        inbound: InboundRequest,
        request: rpc.JoinGroupRequest,
        protocols: Protocols,
        member_id: str,
    ) -> None:
        """Replace a static member's id by a new member id, and fence the old id.

        If the group is stable and its protocol does not change, no other member needs to rejoin.
        Source: KIP-345.
        """
        membership = self.membership
        old_id, old_leader = (
            membership.static[request.group_instance_id or ""],
            membership.leader or "",
        )
        old = membership.members[old_id]
        self.env.timers.cancel(TimerKey(self.group_id, "session", old_id))
        joining, syncing = membership.set_waiting_join(old, None), old.waiting_sync
        old.waiting_sync = None
        for parked in (joining, syncing):
            if parked is not None:
                self._refuse(parked, ErrorCode.FENCED_INSTANCE_ID, member_id=old_id)
        was_unsynced = old_id in self._unsynced
        self._unsynced.discard(old_id)
        member = membership.rename(old_id, member_id)
        self._begin_session(member)
        if was_unsynced:
            self._unsynced.add(member_id)
        self._update(member, inbound, request, protocols)
        if self.state is not State.STABLE or membership.select_protocol() != self.protocol_name:
            self.rebalance()
            return
        membership.set_waiting_join(member, None)
        assignments = {m.member_id: m.assignment for m in membership.members.values()}
        records = membership.to_records(self.protocol_name, assignments)
        generation = self.generation

        def on_done(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self._refuse(inbound, code, member_id="")
                if not self.is_closed:
                    self.rebalance()
                return
            if self.generation != generation:
                self._refuse(inbound, ErrorCode.UNKNOWN_MEMBER_ID, member_id="")
                return
            leads = membership.leader == member_id
            skips = leads and inbound.version >= SKIP_ASSIGNMENT_VERSION
            # An older client that leads would compute a new assignment, so it is told that the old
            # member id leads.
            leader = membership.leader if skips or not leads else old_leader
            self.env.reply(
                inbound,
                self.build_join_response(
                    inbound, member_id, leader or "", with_members=skips, skip_assignment=skips
                ),
            )

        self.outbox.commit_generation(self.generation_request(records), on_done)

    # --- SyncGroup ----------------------------------------------------------------------------

    def _sync(self, inbound: InboundRequest, request: rpc.SyncGroupRequest) -> None:
        code = self._check_member(request.member_id, request.group_instance_id)
        if code is ErrorCode.NONE:
            code = self._refuse_sync(request)
        if code is not ErrorCode.NONE:
            self._refuse(inbound, code)
            return
        member = self.membership.members[request.member_id]
        self.mark_synced(member)
        if self.state is State.STABLE:
            self.restart_session(member)
            self.env.reply(inbound, self.sync_response(member))
            return
        before, member.waiting_sync = member.waiting_sync, inbound
        if before is not None:
            self._refuse(before, ErrorCode.REBALANCE_IN_PROGRESS)
        if member.member_id == self.membership.leader:
            self.assign({a.member_id: a.assignment for a in request.assignments})

    def _refuse_sync(self, request: rpc.SyncGroupRequest) -> ErrorCode:
        if request.generation_id != self.generation:
            return self._generation_error(request.generation_id)
        if request.protocol_type not in (None, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name not in (None, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # --- Heartbeat, LeaveGroup ----------------------------------------------------------------

    def _heartbeat(self, inbound: InboundRequest, request: rpc.HeartbeatRequest) -> None:
        code = self._check_member(request.member_id, request.group_instance_id)
        if code is ErrorCode.NONE and request.generation_id != self.generation:
            code = self._generation_error(request.generation_id)
        elif code is ErrorCode.NONE:
            self.restart_session(self.membership.members[request.member_id])
            if self.state is State.PREPARING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        self.env.reply(inbound, rpc.HeartbeatResponse(error_code=int(code)))

    def _leave(self, inbound: InboundRequest, request: rpc.LeaveGroupRequest) -> None:
        if inbound.version < MEMBERS_VERSION:
            code = self._remove_member(request.member_id, None)
            self.env.reply(inbound, rpc.LeaveGroupResponse(error_code=int(code)))
        else:
            member_type = rpc.LeaveGroupResponse.MemberResponse
            results = tuple(
                member_type(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=int(
                        self._remove_member(identity.member_id, identity.group_instance_id)
                    ),
                )
                for identity in request.members
            )
            self.env.reply(inbound, rpc.LeaveGroupResponse(error_code=0, members=results))
        self._after_leaving()

    def _remove_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if not member_id and instance_id is not None:  # an administrator removes it
            holder = self.membership.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = holder
        if member_id in self.membership.pending:
            self.forget_pending(member_id)
            return ErrorCode.NONE
        code = self._check_member(member_id, instance_id)
        if code is ErrorCode.NONE:
            self.drop(member_id)
            self._has_left = True
        return code

    _has_left = False

    def _after_leaving(self) -> None:
        if self._has_left:
            self._has_left = False
            self.rebalance()
        else:
            self.try_complete()

    def forget_pending(self, member_id: str) -> None:
        """Drop a member id that was assigned to a client and will not be used."""
        self.membership.pending.discard(member_id)
        self.env.timers.cancel(TimerKey(self.group_id, "pending", member_id))

    # --- offsets ------------------------------------------------------------------------------

    def refuse_commit(self, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error that forbids this member to commit offsets, or NONE.

        One difference from upstream's validateOffsetCommit: under a generation whose assignment is
        not in the log, no member commits.
        """
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = self._check_member(member_id, instance_id)
        if code is not ErrorCode.NONE:
            return code
        if generation != self.generation:
            return self._generation_error(generation)
        if self.state is State.COMPLETING or generation != self.stored_generation:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self.restart_session(self.membership.members[member_id])
        return ErrorCode.NONE

    def commit(
        self,
        generation: int,
        member_id: str,
        topics: tuple[CommitGroupOffsetsRequest.Commit.Topic, ...],
        on_done: Any,
    ) -> None:
        """Commit offsets for which `refuse_commit` has returned no error."""
        is_empty = self.state is State.EMPTY
        commit = CommitGroupOffsetsRequest.Commit(
            generation=-1 if is_empty else generation,
            member_id="" if is_empty else member_id,
            topics=topics,
        )
        self.outbox.commit_offsets(commit, on_done)

    def refuse_transactional_commit(
        self, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """Return the error that forbids this member to commit offsets in a transaction, or NONE.

        A producer that names no member may commit in any group. REBALANCE_IN_PROGRESS would end a
        Java producer, which aborts its transaction after ILLEGAL_GENERATION.
        """
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE
        code = self.refuse_commit(generation, member_id, instance_id)
        is_rebalancing = code is ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.ILLEGAL_GENERATION if is_rebalancing else code

    def commit_transactional(
        self,
        inbound: InboundRequest,
        topics: tuple[CommitGroupOffsetsRequest.Commit.Topic, ...],
        on_done: OnDone,
    ) -> None:
        """Commit offsets in a transaction for which `refuse_transactional_commit` gave no error."""
        request = inbound.request
        is_member = bool(request.member_id) and self.state is not State.EMPTY
        commit = CommitTransactionalOffsetsRequest.Commit(
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            transaction_number=inbound.transaction_number,
            generation=request.generation_id if is_member else -1,
            member_id=request.member_id if is_member else "",
            topics=topics,
        )
        self.outbox.commit_offsets(commit, on_done, is_connected=inbound.is_connected)

    def delete(self, on_done: OnDone) -> None:
        """Remove the group if it has no members, else call `on_done` with NON_EMPTY_GROUP."""
        if self.state is State.EMPTY:
            self.outbox.remove(on_done)
        else:
            on_done(ErrorCode.NON_EMPTY_GROUP)

    def delete_offsets(
        self, topics: tuple[RemoveGroupOffsetsRequest.Topic, ...], on_done: OnDone
    ) -> None:
        """Remove committed offsets of partitions that no member reads."""
        if topics:
            self.outbox.remove_offsets(topics, on_done)
        else:
            on_done(ErrorCode.NONE)

    def refuse_offset_deletion(self) -> ErrorCode:
        """Return the error that forbids to delete any offset of this group, or NONE.

        The members of a group that is not of consumers may read any topic. Source: upstream's
        ClassicGroup.validateOffsetDelete.
        """
        may = self.state is State.EMPTY or self.protocol_type == CONSUMER_PROTOCOL
        return ErrorCode.NONE if may else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic or has an unreadable subscription."""
        for member in self.membership.members.values():
            named = subscribed_topics(member.subscription(self.protocol_name))
            if named is None or topic in named:
                return True
        return False

    # --- timers -------------------------------------------------------------------------------

    def on_timer(self, key: TimerKey) -> None:
        """End the member session or rebalance phase whose timer is due, or retry a request."""
        match key.kind:
            case "session":
                self._on_session_timeout(key.member_id)
            case "pending":
                self.membership.pending.discard(key.member_id)
                self.try_complete()
            case "join":
                self.on_join_timeout()
            case "sync":
                self.on_sync_timeout()
            case "retry":
                self.outbox.retry()
            case "answer":
                self.outbox.expire_waiting()
            case _:
                raise ValueError(f"unknown timer: {key}")

    def _on_session_timeout(self, member_id: str) -> None:
        """Drop a member whose session expired, unless a request of the member is waiting."""
        member = self.membership.members.get(member_id)
        if member is None:
            return
        waits = member.waiting_join is not None or member.waiting_sync is not None
        if waits and not member.is_new:
            return
        self.drop_overdue(member_id, "silent")
        self.rebalance()

    # --- closing ------------------------------------------------------------------------------

    def close(self, code: ErrorCode) -> None:
        """Answer every waiting request with `code` and cancel all timers."""
        self.is_closed = True
        self.outbox.close(code)
        for member_id in list(self.membership.members):
            self.drop(member_id, code)
        for member_id in list(self.membership.pending):
            self.forget_pending(member_id)
        for kind in ("join", "sync"):
            self._cancel_timer(kind)

    # --- describing ---------------------------------------------------------------------------

    def describe(self) -> rpc.DescribeGroupsResponse.DescribedGroup:
        """Build the consumer group's entry in a DescribeGroups response."""
        group_type = rpc.DescribeGroupsResponse.DescribedGroup
        stable = self.state is State.STABLE
        return group_type(
            error_code=0,
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol_name or "") if stable else "",
            members=tuple(
                group_type.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.subscription(self.protocol_name) if stable else b"",
                    member_assignment=member.assignment if stable else b"",
                )
                for member in self.membership.members.values()
            ),
        )


def refuse_join_in_any_state(request: rpc.JoinGroupRequest, settings: GroupSettings) -> ErrorCode:
    """Return the error of a JoinGroup that every group state refuses, or NONE."""
    timeout_ms = request.session_timeout_ms
    if not settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len((request.group_instance_id or "").encode()) > MAX_INSTANCE_ID_BYTES:
        return ErrorCode.INVALID_REQUEST
    size = offered_bytes(_unique_protocols(request))
    if len(request.protocols) > MAX_PROTOCOLS or size > MAX_GENERATION_BYTES:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not request.protocol_type or not request.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _unique_protocols(request: rpc.JoinGroupRequest) -> Protocols:
    """Return the request's protocols, without any that repeats the name of an earlier protocol."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, bytes(protocol.metadata))
    return tuple(protocols.items())


def _rebalance_timeout(request: rpc.JoinGroupRequest) -> int:
    """Return a JoinGroup's rebalance timeout in ms; version 0 uses the session timeout."""
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms >= 0 else request.session_timeout_ms


def _truncate(client_id: str) -> str:
    return client_id[: MAX_CLIENT_ID_BYTES // 4]
