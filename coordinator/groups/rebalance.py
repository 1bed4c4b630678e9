"""A group's way to its next generation: members join, one assigns, the log commits.

`Rebalance` is the part of a group that moves between its states; requests and timers call it.

A generation counts once the log has it. Before that no member receives an assignment, and none can
commit under its number. So the next broker to coordinate the group finds the generation whose
members may be active, and continues with it: no member has to rejoin.

Source: KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-394; upstream's
GroupMetadataManager, whose rules these are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from coordinator.groups.decide import generation_size
from coordinator.groups.error_responses import NULL_PROTOCOL_VERSION, error_response
from coordinator.groups.events import InboundRequest
from coordinator.groups.membership import NEXT, Member, Membership, State
from coordinator.groups.outbox import Env, GroupOutbox
from coordinator.groups.settings import MAX_GENERATION, MAX_GENERATION_BYTES
from coordinator.groups.timers import TimerKey
from records.kafka_errors import ErrorCode
from records.rpc.base import Response
from records.rpc.group_log import CommitGroupGenerationRequest
from records.rpc.groups import JoinGroupResponse, SyncGroupResponse

log = logging.getLogger("coordinator.groups")

SKIP_ASSIGNMENT_VERSION = 9
"""JoinGroup: the first version that lets a returning leader skip the assignment (KIP-814)."""


class Broker(Env, Protocol):
    """The parts of its broker that a group uses besides `Env`."""

    def reply(self, inbound: InboundRequest, response: Response) -> None:
        """Send the response to a client's request."""


class Rebalance:
    """The state of a group's rebalance, its generation and its members."""

    def __init__(self, group_id: str, env: Broker, outbox: GroupOutbox) -> None:
        self.group_id = group_id
        self.env = env
        self.outbox = outbox
        self.state = State.EMPTY
        self.generation = 0
        self.stored_generation = 0  # the last one that is known to be in the log
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.membership = Membership()
        self.is_closed = False
        self._storing: int | None = None  # the generation that is being committed
        self._unsynced: set[str] = set()  # members that have not sent a SyncGroup yet
        self._is_initial = False  # the group was empty: it waits a while for others
        self._remaining_ms = 0  # by which that may be extended
        self._has_new_members = False  # meanwhile

    # --- states -------------------------------------------------------------------------------

    def _become(self, state: State) -> None:
        assert state in NEXT[self.state], f"illegal: {self.state} -> {state} in {self.group_id}"
        self.state = state

    def rebalance(self) -> None:
        """Start a rebalance, or complete the current rebalance if every member has joined."""
        if self.state is State.PREPARING:
            self.try_complete()
        else:
            self._prepare()

    def _prepare(self) -> None:
        if self.state is State.COMPLETING:
            self.fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._cancel_timer("sync")
        self._is_initial = self.state is State.EMPTY
        self._become(State.PREPARING)
        if not self._is_initial:
            self.try_complete()
            if self.state is State.PREPARING:
                self._set_timer("join", self.membership.rebalance_timeout_ms)
            return
        delay_ms = self.env.settings.initial_rebalance_delay_ms
        self._remaining_ms = max(self.membership.rebalance_timeout_ms - delay_ms, 0)
        self._has_new_members = False
        if delay_ms:
            self._set_timer("join", delay_ms)
        else:
            self._complete_join()

    def on_member_added(self) -> None:
        """Record that a member was added, which may extend an initial rebalance's delay."""
        if self.state is State.PREPARING and self._is_initial:
            self._has_new_members = True

    def on_join_timeout(self) -> None:
        """Complete the join phase without the members that have not joined."""
        if self.state is not State.PREPARING:
            return
        if self._is_initial and self._has_new_members and self._remaining_ms:
            self._has_new_members = False
            delay_ms = min(self.env.settings.initial_rebalance_delay_ms, self._remaining_ms)
            self._remaining_ms -= delay_ms
            self._set_timer("join", delay_ms)
        else:
            self._complete_join()

    def try_complete(self) -> None:
        """Complete the join phase if every member has joined."""
        membership = self.membership
        all_joined = membership.waiting_joins == len(membership.members) and not membership.pending
        if self.state is State.PREPARING and not self._is_initial and all_joined:
            self._complete_join()

    def _complete_join(self) -> None:
        membership = self.membership
        for member in [m for m in membership.members.values() if m.waiting_join is None]:
            if member.instance_id is None:
                self.drop_overdue(member.member_id, "not_joined")
        if membership.members and not membership.elect_joined_leader():
            # Only static members are left, and none of them is back yet.
            self._set_timer("join", membership.rebalance_timeout_ms)
            return
        self._cancel_timer("join")
        self._is_initial = False
        self.generation = self.generation % MAX_GENERATION + 1
        self._storing = None
        if not membership.members:
            self.protocol_name = None
            self._become(State.EMPTY)
            self._store_generation(())
            return
        self.protocol_name = membership.select_protocol()
        self._become(State.COMPLETING)
        log.info(
            "group=%s generation=%d members=%d",
            self.group_id,
            self.generation,
            len(membership.members),
        )
        # A static member that did not join is not expected to sync either: its session decides.
        joined = [
            member for member in membership.members.values() if member.waiting_join is not None
        ]
        self._unsynced = {member.member_id for member in joined}
        self._set_timer("sync", membership.rebalance_timeout_ms)
        for member in joined:
            member.is_new = False
            self.restart_session(member)
            inbound = membership.set_waiting_join(member, None)
            assert inbound is not None, f"joined without a JoinGroup: {member}"
            self.env.reply(inbound, self.join_response(inbound, member))

    # --- responses ----------------------------------------------------------------------------

    def join_response(self, inbound: InboundRequest, member: Member) -> JoinGroupResponse:
        """Build a member's JoinGroup response; the leader's response lists all members."""
        leads = member.member_id == self.membership.leader
        return self.build_join_response(
            inbound, member.member_id, self.membership.leader or "", with_members=leads
        )

    def build_join_response(
        self,
        inbound: InboundRequest,
        member_id: str,
        leader: str,
        *,
        with_members: bool,
        skip_assignment: bool = False,
    ) -> JoinGroupResponse:
        """Build a JoinGroup response for a member that has joined successfully."""
        member_type = JoinGroupResponse.JoinGroupResponseMember
        name = self.protocol_name
        return JoinGroupResponse(
            error_code=0,
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=name if inbound.version >= NULL_PROTOCOL_VERSION else name or "",
            leader=leader,
            skip_assignment=skip_assignment,
            member_id=member_id,
            members=tuple(
                member_type(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.subscription(name),
                )
                for member in (self.membership.members.values() if with_members else ())
            ),
        )

    # --- assigning ----------------------------------------------------------------------------

    def mark_synced(self, member: Member) -> None:
        """Record that a member has sent its SyncGroup."""
        self._unsynced.discard(member.member_id)

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Commit the leader's assignments to the group log; answer the members afterwards."""
        if self._storing == self.generation:
            return  # the leader repeats its SyncGroup; the first assignment stands
        records = self.membership.to_records(self.protocol_name, assignments)
        if generation_size(records) > MAX_GENERATION_BYTES:
            self._assigned(self.generation, assignments, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._storing = self.generation
        generation = self.generation
        self.outbox.commit_generation(
            self.generation_request(records),
            lambda code: self._assigned(generation, assignments, code),
        )

    def _assigned(self, generation: int, assignments: dict[str, bytes], code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self.stored_generation = generation
        if self.is_closed or self.state is not State.COMPLETING or self.generation != generation:
            return  # another rebalance has begun meanwhile
        self._storing = None
        if code is not ErrorCode.NONE:
            self.fail_syncs(ErrorCode.UNKNOWN_SERVER_ERROR)
            self.rebalance()
            return
        self._become(State.STABLE)
        for member in self.membership.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            inbound, member.waiting_sync = member.waiting_sync, None
            if inbound is not None:
                self.restart_session(member)
                self.env.reply(inbound, self.sync_response(member))

    def sync_response(self, member: Member) -> SyncGroupResponse:
        """Build a SyncGroup response with the member's assignment."""
        return SyncGroupResponse(
            error_code=0,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def on_sync_timeout(self) -> None:
        """Drop the members that have not sent a SyncGroup in time."""
        if self.state not in (State.COMPLETING, State.STABLE) or not self._unsynced:
            return
        gone = [member_id for member_id in self._unsynced if member_id in self.membership.members]
        for member_id in sorted(gone):
            self.drop_overdue(member_id, "not_synced")
        if gone:
            self.rebalance()

    def fail_syncs(self, code: ErrorCode) -> None:
        """Answer the waiting SyncGroup requests with an error."""
        for member in self.membership.members.values():
            inbound, member.waiting_sync = member.waiting_sync, None
            member.assignment = b""
            if inbound is not None:
                self.restart_session(member)  # it may have expired during the wait
                self.env.reply(inbound, error_response(inbound, code))

    def generation_request(self, records: Iterable[object]) -> CommitGroupGenerationRequest:
        """Build the request that commits the current generation to the group log."""
        return CommitGroupGenerationRequest(
            group_id=self.group_id,
            ownership_epoch=self.outbox.ownership_epoch,
            sequence=0,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.membership.leader,
            members=tuple(records),  # type: ignore[arg-type]
        )

    def _store_generation(self, records: Iterable[object]) -> None:
        """Commit the current generation to the group log without a waiting client."""
        generation = self.generation

        def on_done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.stored_generation = generation

        self.outbox.commit_generation(self.generation_request(records), on_done)

    # --- removing members ---------------------------------------------------------------------

    def drop_overdue(self, member_id: str, reason: str) -> None:
        """Drop a member that missed a deadline, and log the reason."""
        log.info("group=%s action=member_dropped member=%s reason=%s",
                 self.group_id, member_id, reason)  # fmt: skip
        self.drop(member_id)

    def drop(self, member_id: str, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Remove a member and answer its waiting requests with `code`."""
        self.env.timers.cancel(TimerKey(self.group_id, "session", member_id))
        self._unsynced.discard(member_id)
        member = self.membership.remove(member_id)
        for inbound in (member.waiting_join, member.waiting_sync):
            if inbound is not None:
                self.env.reply(inbound, error_response(inbound, code, member_id=member_id))

    def restart_session(self, member: Member) -> None:
        """Restart a member's session from now."""
        key = TimerKey(self.group_id, "session", member.member_id)
        self.env.timers.set(key, self.env.now_ms + member.session_timeout_ms)

    def _set_timer(self, kind: str, delay_ms: int) -> None:
        self.env.timers.set(TimerKey(self.group_id, kind), self.env.now_ms + delay_ms)

    def _cancel_timer(self, kind: str) -> None:
        self.env.timers.cancel(TimerKey(self.group_id, kind))
