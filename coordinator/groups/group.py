"""One group on the broker that acts for it: what each request means, in each state.

Source: the classic group protocol as upstream has it (KIP-62, KIP-345, KIP-394, KIP-814);
GroupMetadataManager and ClassicGroup.
"""

from __future__ import annotations

from typing import Any

from coordinator.groups.error_responses import MEMBERS_VERSION, refuse
from coordinator.groups.events import Asked
from coordinator.groups.membership import Member, Protocols, State, from_records, offered_bytes
from coordinator.groups.outbox import Line, Told
from coordinator.groups.rebalance import SKIP_ASSIGNMENT_VERSION, Broker, Rebalance
from coordinator.groups.settings import (
    MAX_CLIENT_ID_BYTES,
    MAX_GENERATION_BYTES,
    MAX_INSTANCE_ID_BYTES,
    MAX_OFFERED_BYTES,
    MAX_PROTOCOLS,
)
from coordinator.groups.timers import TimerKey
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc.group_log import AcquireGroupOwnershipResponse, CommitGroupOffsetsRequest

HANDSHAKE_VERSION = 4
"""Of JoinGroup: from here on a member gets its id before it joins (KIP-394)."""


class ClassicGroup(Rebalance):
    """See the module. The rebalance it inherits has no requests in it."""

    def __init__(self, group_id: str, env: Broker, loaded: AcquireGroupOwnershipResponse) -> None:
        """As the log has it: its members are at work, and have their whole session to be heard."""
        super().__init__(group_id, env, Line(group_id, loaded.ownership_epoch, env))
        self.generation = self.stored_generation = loaded.generation
        self.protocol_type, self.protocol_name = loaded.protocol_type, loaded.protocol_name
        if loaded.members:
            self.state = State.STABLE
            self.roster = from_records(loaded.members, loaded.protocol_name, loaded.leader)
            for member in self.roster.members.values():
                self.restart_session(member)

    @property
    def is_idle(self) -> bool:
        """Nobody is in it, and nothing is under way."""
        return self.state is State.EMPTY and not self.roster.pending and self.line.is_idle

    def ask(self, asked: Asked) -> None:
        """JoinGroup, SyncGroup, Heartbeat or LeaveGroup."""
        match asked.request:
            case rpc.JoinGroupRequest():
                self._join(asked, asked.request)
            case rpc.SyncGroupRequest():
                self._sync(asked, asked.request)
            case rpc.HeartbeatRequest():
                self._heartbeat(asked, asked.request)
            case rpc.LeaveGroupRequest():
                self._leave(asked, asked.request)
            case _:
                raise TypeError(f"no request of a member: {asked.request}")

    def _refuse(self, asked: Asked, code: ErrorCode, *, member_id: str | None = None) -> None:
        self.env.reply(asked, refuse(asked, code, member_id=member_id))

    def _check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Is this a member, and under its instance id still the one?"""
        if instance_id is not None:
            holder = self.roster.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        known = member_id in self.roster.members
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID

    def _other_generation(self, generation: int) -> ErrorCode:
        """What to tell a member that names a generation which is not ours.

        One that we never had can only be of a rebalance that ended with its broker: the member has
        lost nothing, it is to join again.
        """
        if generation > self.generation:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.ILLEGAL_GENERATION

    # --- JoinGroup ----------------------------------------------------------------------------

    def _join(self, asked: Asked, request: rpc.JoinGroupRequest) -> None:
        protocols = _protocols(request)
        code = self._refuse_join(request, protocols)
        if code is not ErrorCode.NONE:
            self._refuse(asked, code)
        elif not request.member_id:
            self._join_newcomer(asked, request, protocols)
        elif request.member_id in self.roster.pending and request.group_instance_id is None:
            self._add(asked, request, protocols, request.member_id)
        else:
            self._join_again(asked, request, protocols)

    def _refuse_join(self, request: rpc.JoinGroupRequest, protocols: Protocols) -> ErrorCode:
        settings, roster = self.env.settings, self.roster
        timeout_ms = request.session_timeout_ms
        if not settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len((request.group_instance_id or "").encode()) > MAX_INSTANCE_ID_BYTES:
            return ErrorCode.INVALID_REQUEST
        size = offered_bytes(protocols)
        if len(request.protocols) > MAX_PROTOCOLS or size > MAX_GENERATION_BYTES:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        holder = roster.static.get(request.group_instance_id or "", request.member_id)
        known = roster.members.get(holder)
        said = 0 if known is None else offered_bytes(known.protocols)
        if roster.size_bytes - said + size > MAX_OFFERED_BYTES:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if known is None:
            newcomer = not request.member_id
            count = len(roster.members) + (len(roster.pending) if newcomer else 0)
            if count >= settings.max_size:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not request.protocol_type or not protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if roster.members and (
            request.protocol_type != self.protocol_type
            or not roster.agrees(name for name, _ in protocols)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _join_newcomer(
        self, asked: Asked, request: rpc.JoinGroupRequest, protocols: Protocols
    ) -> None:
        instance_id = request.group_instance_id
        if instance_id is not None:
            member_id = f"{instance_id}-{asked.unique}"
            if instance_id in self.roster.static:
                self._replace(asked, request, protocols, member_id)
            else:
                self._add(asked, request, protocols, member_id)
            return
        member_id = f"{_cut(asked.client_id)}-{asked.unique}"
        if asked.version < HANDSHAKE_VERSION:
            self._add(asked, request, protocols, member_id)
            return
        self.roster.pending.add(member_id)
        key = TimerKey(self.group_id, "pending", member_id)
        self.env.timers.set(key, self.env.now_ms + request.session_timeout_ms)
        self._refuse(asked, ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)

    def _add(
        self, asked: Asked, request: rpc.JoinGroupRequest, protocols: Protocols, member_id: str
    ) -> None:
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        self.env.timers.cancel(TimerKey(self.group_id, "pending", member_id))
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=_cut(asked.client_id),
            client_host=asked.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout(request),
            protocols=protocols,
            joining=asked,
        )
        self.roster.add(member)
        self._begin_session(member)
        self.came()
        self.rebalance()

    def _begin_session(self, member: Member) -> None:
        """A new member's first JoinGroup may wait for longer than its session."""
        self.restart_session(member)
        if member.is_new:
            key = TimerKey(self.group_id, "session", member.member_id)
            self.env.timers.set(key, self.env.now_ms + self.env.settings.new_member_join_timeout_ms)

    def _join_again(
        self, asked: Asked, request: rpc.JoinGroupRequest, protocols: Protocols
    ) -> None:
        code = self._check(request.member_id, request.group_instance_id)
        if code is not ErrorCode.NONE:
            self._refuse(asked, code)
            return
        member = self.roster.members[request.member_id]
        unchanged = member.protocols == protocols
        leads = member.member_id == self.roster.leader
        if self.state is State.COMPLETING and unchanged:
            # Its answer was lost: here it is again.
            self.restart_session(member)
            self.env.reply(asked, self.join_answer(asked, member))
        elif self.state is State.STABLE and unchanged and not leads:
            self.restart_session(member)
            self.env.reply(asked, self.join_answer(asked, member))
        else:
            self._update(member, asked, request, protocols)
            self.rebalance()

    def _update(
        self, member: Member, asked: Asked, request: rpc.JoinGroupRequest, protocols: Protocols
    ) -> None:
        """A member joins with what it says now."""
        self.roster.offer(member, protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout(request)
        member.client_id, member.client_host = _cut(asked.client_id), asked.client_host
        before = self.roster.park_join(member, asked)
        if before is not None:
            self._refuse(before, ErrorCode.REBALANCE_IN_PROGRESS)
        if not member.is_new:  # a new one has longer for its first join
            self.restart_session(member)

    def _replace(
        self, asked: Asked, request: rpc.JoinGroupRequest, protocols: Protocols, member_id: str
    ) -> None:
        """A static member is back, as another member: who still uses the old id is fenced.

        If the group is at rest and its protocol stays, nobody else needs to notice.
        Source: KIP-345.
        """
        roster = self.roster
        old_id, old_leader = roster.static[request.group_instance_id or ""], roster.leader or ""
        old = roster.members[old_id]
        self.env.timers.cancel(TimerKey(self.group_id, "session", old_id))
        joining, syncing = roster.park_join(old, None), old.syncing
        old.syncing = None
        for parked in (joining, syncing):
            if parked is not None:
                self._refuse(parked, ErrorCode.FENCED_INSTANCE_ID, member_id=old_id)
        was_unsynced = old_id in self._unsynced
        self._unsynced.discard(old_id)
        member = roster.rename(old_id, member_id)
        self._begin_session(member)
        if was_unsynced:
            self._unsynced.add(member_id)
        self._update(member, asked, request, protocols)
        if self.state is not State.STABLE or roster.select() != self.protocol_name:
            self.rebalance()
            return
        roster.park_join(member, None)
        assignments = {m.member_id: m.assignment for m in roster.members.values()}
        records = roster.as_records(self.protocol_name, assignments)
        generation = self.generation

        def told(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self._refuse(asked, code, member_id="")
                if not self.is_closed:
                    self.rebalance()
                return
            if self.generation != generation:
                self._refuse(asked, ErrorCode.UNKNOWN_MEMBER_ID, member_id="")
                return
            leads = roster.leader == member_id
            skips = leads and asked.version >= SKIP_ASSIGNMENT_VERSION
            # An older leader would assign anew; told that its former self leads, it follows.
            leader = roster.leader if skips or not leads else old_leader
            self.env.reply(
                asked,
                self.joined(
                    asked, member_id, leader or "", with_members=skips, skip_assignment=skips
                ),
            )

        self.line.commit_generation(self.as_request(records), told)

    # --- SyncGroup ----------------------------------------------------------------------------

    def _sync(self, asked: Asked, request: rpc.SyncGroupRequest) -> None:
        code = self._check(request.member_id, request.group_instance_id)
        if code is ErrorCode.NONE:
            code = self._refuse_sync(request)
        if code is not ErrorCode.NONE:
            self._refuse(asked, code)
            return
        member = self.roster.members[request.member_id]
        self.synced(member)
        if self.state is State.STABLE:
            self.restart_session(member)
            self.env.reply(asked, self.sync_answer(member))
            return
        before, member.syncing = member.syncing, asked
        if before is not None:
            self._refuse(before, ErrorCode.REBALANCE_IN_PROGRESS)
        if member.member_id == self.roster.leader:
            self.assign({a.member_id: a.assignment for a in request.assignments})

    def _refuse_sync(self, request: rpc.SyncGroupRequest) -> ErrorCode:
        if request.generation_id != self.generation:
            return self._other_generation(request.generation_id)
        if request.protocol_type not in (None, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name not in (None, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # --- Heartbeat, LeaveGroup ----------------------------------------------------------------

    def _heartbeat(self, asked: Asked, request: rpc.HeartbeatRequest) -> None:
        code = self._check(request.member_id, request.group_instance_id)
        if code is ErrorCode.NONE and request.generation_id != self.generation:
            code = self._other_generation(request.generation_id)
        elif code is ErrorCode.NONE:
            self.restart_session(self.roster.members[request.member_id])
            if self.state is State.PREPARING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        self.env.reply(asked, rpc.HeartbeatResponse(error_code=int(code)))

    def _leave(self, asked: Asked, request: rpc.LeaveGroupRequest) -> None:
        if asked.version < MEMBERS_VERSION:
            code = self._leave_one(request.member_id, None)
            self.env.reply(asked, rpc.LeaveGroupResponse(error_code=int(code)))
        else:
            member_type = rpc.LeaveGroupResponse.MemberResponse
            results = tuple(
                member_type(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=int(self._leave_one(identity.member_id, identity.group_instance_id)),
                )
                for identity in request.members
            )
            self.env.reply(asked, rpc.LeaveGroupResponse(error_code=0, members=results))
        self._after_leaving()

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if not member_id and instance_id is not None:  # somebody else sends it away
            holder = self.roster.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = holder
        if member_id in self.roster.pending:
            self.forget_pending(member_id)
            return ErrorCode.NONE
        code = self._check(member_id, instance_id)
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
        """An id that was given out is not going to be used."""
        self.roster.pending.discard(member_id)
        self.env.timers.cancel(TimerKey(self.group_id, "pending", member_id))

    # --- offsets ------------------------------------------------------------------------------

    def refuse_commit(self, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """May offsets be committed by this member? Source: upstream's validateOffsetCommit.

        One difference: under a generation whose assignment the log never got, nobody commits.
        """
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = self._check(member_id, instance_id)
        if code is not ErrorCode.NONE:
            return code
        if generation != self.generation:
            return self._other_generation(generation)
        if self.state is State.COMPLETING or generation != self.stored_generation:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self.restart_session(self.roster.members[member_id])
        return ErrorCode.NONE

    def commit(
        self,
        generation: int,
        member_id: str,
        topics: tuple[CommitGroupOffsetsRequest.Commit.Topic, ...],
        told: Any,
    ) -> None:
        """Commit what was not refused."""
        nobody = self.state is State.EMPTY
        commit = CommitGroupOffsetsRequest.Commit(
            generation=-1 if nobody else generation,
            member_id="" if nobody else member_id,
            topics=topics,
        )
        self.line.commit_offsets(commit, told)

    def delete(self, told: Told) -> None:
        """Remove the group, unless somebody is in it; then nobody acts for it any more."""
        if self.state is State.EMPTY:
            self.line.remove(told)
        else:
            told(ErrorCode.NON_EMPTY_GROUP)

    # --- timers -------------------------------------------------------------------------------

    def due(self, key: TimerKey) -> None:
        """A deadline has passed."""
        match key.kind:
            case "session":
                self._session_due(key.member_id)
            case "pending":
                self.roster.pending.discard(key.member_id)
                self.try_complete()
            case "join":
                self.join_due()
            case "sync":
                self.sync_due()
            case "retry":
                self.line.retry()
            case "answer":
                self.line.answer_due()
            case _:
                raise ValueError(f"no such timer: {key}")

    def _session_due(self, member_id: str) -> None:
        """Silent for too long; but whoever waits for us is not silent."""
        member = self.roster.members.get(member_id)
        if member is None:
            return
        waits = member.joining is not None or member.syncing is not None
        if waits and not member.is_new:
            return
        self.give_up(member_id, "silent")
        self.rebalance()

    # --- the end ------------------------------------------------------------------------------

    def close(self, code: ErrorCode) -> None:
        """Another broker acts for the group, or nobody: whoever waits is told."""
        self.is_closed = True
        self.line.close(code)
        for member_id in list(self.roster.members):
            self.drop(member_id, code)
        for member_id in list(self.roster.pending):
            self.forget_pending(member_id)
        for kind in ("join", "sync"):
            self._cancel(kind)

    # --- looking ------------------------------------------------------------------------------

    def described(self) -> rpc.DescribeGroupsResponse.DescribedGroup:
        """What DescribeGroups says of it."""
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
                for member in self.roster.members.values()
            ),
        )


def _protocols(request: rpc.JoinGroupRequest) -> Protocols:
    """Each protocol once."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, bytes(protocol.metadata))
    return tuple(protocols.items())


def _rebalance_timeout(request: rpc.JoinGroupRequest) -> int:
    """The first version has none: there it is the session's."""
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms >= 0 else request.session_timeout_ms


def _cut(client_id: str) -> str:
    return client_id[: MAX_CLIENT_ID_BYTES // 4]
