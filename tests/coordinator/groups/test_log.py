"""The group log: ownership, order, expiry, removal, checkpoints."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.errors import CoordinatorError
from coordinator.groups.machine import GroupMachine
from coordinator.groups.settings import LogSettings
from coordinator.rendezvous import choose, group_broker
from records.rpc import group_log as rpc
from records.rpc.base import Request
from tests.coordinator.groups.world import GROUP, World, load, records_of

MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS


class Log(World):
    """The group log alone, called directly."""

    def tell(self, request: Request) -> Any:
        """Send a request and return its response."""
        answers: list[Any] = []
        self.groups.ask(request, answers.append)
        self.run()
        assert len(answers) == 1, answers
        return answers[0]

    def acquire(self, broker_id: int = 1, *, epoch: int = 1, create: bool = True) -> Any:
        """Request the ownership of GROUP."""
        return self.tell(
            rpc.AcquireGroupOwnershipRequest(
                group_id=GROUP, broker_id=broker_id, broker_epoch=epoch, create=create
            )
        )

    def offsets(
        self,
        owner: int,
        sequence: int,
        offset: int,
        *,
        generation: int = -1,
        member_id: str = "",
        **more: Any,
    ) -> Any:
        """Commit an offset of t-0; return the error of the request or of the commit."""
        commit = rpc.CommitGroupOffsetsRequest.Commit
        partition = commit.Topic.Partition(
            partition_index=0,
            committed_offset=offset,
            leader_epoch=-1,
            metadata=more.pop("metadata", ""),
            expire_at_ms=more.pop("expire_at_ms", -1),
        )
        topic = commit.Topic(topic_name="t", partitions=(partition,), **more)
        answer = self.tell(
            rpc.CommitGroupOffsetsRequest(
                group_id=GROUP,
                ownership_epoch=owner,
                sequence=sequence,
                commits=(commit(generation=generation, member_id=member_id, topics=(topic,)),),
            )
        )
        return answer.error_code or answer.commit_errors[0]

    def generation(self, owner: int, sequence: int, generation: int, *members: str) -> int:
        """Commit a completed rebalance; return its error."""
        return int(
            self.tell(
                rpc.CommitGroupGenerationRequest(
                    group_id=GROUP,
                    ownership_epoch=owner,
                    sequence=sequence,
                    generation=generation,
                    protocol_type="consumer",
                    protocol_name="range",
                    leader=members[0] if members else None,
                    members=tuple(member(name) for name in members),
                )
            ).error_code
        )

    @property
    def stored(self) -> int | None:
        """The committed offset of t-0."""
        group = self.image.groups.get(GROUP)
        committed = None if group is None else group.offsets.get(("t", 0))
        return None if committed is None else int(committed.offset)

    def expire_groups(self) -> int:
        """Run an expiry pass; return the number of records it wrote."""
        done: list[int] = []
        self.groups.expire_groups(done.append)
        self.run()
        return done[0]

    def wait(self, ms: int) -> None:
        """Advance the log's clock only."""
        self.wall_ms += ms


def member(name: str, assignment: bytes = b"") -> rpc.Member:
    """Build a member record of a completed rebalance."""
    return rpc.Member(
        member_id=name,
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        subscription=b"s",
        assignment=assignment,
    )


# --- ownership ------------------------------------------------------------------------------------


def test_the_group_log_refuses_commits_of_a_groups_former_owner() -> None:
    log = Log()
    one = log.acquire().ownership_epoch
    assert log.offsets(one, 1, 5) == 0
    two = log.acquire().ownership_epoch
    assert two > one
    assert log.offsets(one, 2, 6) == 16
    assert log.generation(one, 2, 1, "m") == 16
    assert log.offsets(two, 1, 7) == 0
    assert log.stored == 7


def test_the_group_log_gives_a_groups_new_owner_the_current_generation() -> None:
    log = Log()
    one = log.acquire()
    assert (one.generation, one.members) == (0, ())
    assert log.generation(one.ownership_epoch, 1, 3, "m", "n") == 0
    two = log.acquire()
    assert (two.generation, two.protocol_name, two.leader) == (3, "range", "m")
    assert [m.member_id for m in two.members] == ["m", "n"]


def test_only_the_broker_chosen_by_rendezvous_hashing_may_own_a_group() -> None:
    log = Log(brokers=(1, 2, 3))
    chosen = log.owner()
    for broker_id in (1, 2, 3):
        assert log.acquire(broker_id).error_code == (0 if broker_id == chosen else 16)


def test_the_group_log_refuses_to_assign_a_group_to_a_broker_with_a_stale_epoch() -> None:
    log = Log()
    assert log.acquire(epoch=5).error_code == 0
    assert log.acquire(epoch=4).error_code == 77
    assert log.acquire(epoch=5).error_code == 0


def test_acquiring_a_group_that_was_never_created_gets_group_id_not_found() -> None:
    log = Log()
    assert log.acquire(create=False).error_code == 69
    assert log.image.groups.get(GROUP) is None
    assert log.acquire(create=True).error_code == 0
    assert log.acquire(create=False).error_code == 0


def test_the_group_log_limits_the_length_of_group_ids_and_the_number_of_groups() -> None:
    log = Log(log_settings=LogSettings(max_groups=1))
    request = rpc.AcquireGroupOwnershipRequest(
        group_id="x" * 1025, broker_id=1, broker_epoch=1, create=True
    )
    assert log.tell(request).error_code == 24
    assert log.acquire().error_code == 0
    request = rpc.AcquireGroupOwnershipRequest(
        group_id="y", broker_id=1, broker_epoch=1, create=True
    )
    assert log.tell(request).error_code == 44


def test_the_group_log_does_not_reuse_the_ownership_epoch_of_a_removed_group() -> None:
    log = Log()
    one = log.acquire().ownership_epoch
    assert log.tell(rpc.RemoveGroupRequest(group_id=GROUP)).error_code == 0
    log.take_checkpoint()
    log.restart_log()
    assert log.acquire().ownership_epoch > one


def test_a_broker_that_joins_or_leaves_moves_only_its_own_share_of_groups() -> None:
    names = [f"g{index}" for index in range(300)]
    before = {name: group_broker(name, (1, 2, 3)) for name in names}
    after = {name: group_broker(name, (1, 2)) for name in names}
    assert all(after[name] == before[name] for name in names if before[name] != 3)
    assert min(list(before.values()).count(broker) for broker in (1, 2, 3)) > 50
    assert choose(b"x", ()) is None


# --- order ----------------------------------------------------------------------------------------


def test_the_group_log_applies_only_once_a_commit_with_a_repeated_sequence_number() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.generation(owner, 1, 1, "m") == 0
    end = log.log.end_offset
    assert log.generation(owner, 1, 1, "m") == 0
    assert log.offsets(owner, 2, 5, generation=1, member_id="m") == 0
    assert log.offsets(owner, 2, 5, generation=1, member_id="m") == 0
    assert log.log.end_offset == end + 1


def test_the_group_log_refuses_a_late_copy_of_an_offset_commit() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.offsets(owner, 1, 5) == 0
    assert log.offsets(owner, 2, 10) == 0
    assert log.offsets(owner, 1, 5) == 42
    assert log.offsets(owner, 0, 5) == 42
    assert log.stored == 10


def test_the_group_log_accepts_offset_commits_only_from_members_of_the_newest_generation() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.generation(owner, 1, 1, "m", "n") == 0
    assert log.offsets(owner, 2, 5, generation=1, member_id="m") == 0
    assert log.generation(owner, 3, 2, "m") == 0
    assert log.offsets(owner, 4, 6, generation=1, member_id="m") == 22
    assert log.offsets(owner, 5, 6, generation=2, member_id="n") == 25
    assert log.offsets(owner, 6, 6) == 25
    assert log.offsets(owner, 7, 6, generation=3, member_id="m") == 22
    assert log.stored == 5
    assert log.generation(owner, 8, 1, "m") == 22
    assert log.generation(owner, 9, 3) == 0
    assert log.offsets(owner, 10, 7) == 0


def test_the_group_log_refuses_a_commit_that_does_not_fit_in_one_record() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.offsets(owner, 1, 5, metadata="x" * 4097) == 12
    assert log.offsets(owner, 2, 5, topic_id=UUID(int=1), metadata="x" * 400_000) == 28
    request = rpc.CommitGroupGenerationRequest(
        group_id=GROUP,
        ownership_epoch=owner,
        sequence=3,
        generation=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="m",
        members=(member("m", b"x" * (1024 * 1024)),),
    )
    assert log.tell(request).error_code == 10
    assert log.generation(owner, 4, 1, "m", "m") == 42


def test_group_log_responses_wait_until_their_records_are_committed() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    log.log.auto_commit = False
    answers: list[Any] = []
    again = rpc.AcquireGroupOwnershipRequest(
        group_id=GROUP, broker_id=1, broker_epoch=1, create=True
    )
    log.groups.ask(again, answers.append)
    log.run()
    stale = rpc.CommitGroupOffsetsRequest(
        group_id=GROUP, ownership_epoch=owner, sequence=1, commits=()
    )
    log.groups.ask(stale, answers.append)  # refused, because of what may yet be lost
    log.run()
    assert answers == []
    log.change_leader(lose=True)
    assert [type(answer) for answer in answers] == [CoordinatorError, CoordinatorError]
    log.log.auto_commit = True
    assert log.offsets(owner, 1, 5) == 0, "the ownership it lost to never was"


# --- expiry ---------------------------------------------------------------------------------------


def test_committed_offsets_expire_only_once_their_group_is_empty() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.generation(owner, 1, 1, "m") == 0
    assert log.offsets(owner, 2, 5, generation=1, member_id="m") == 0
    log.wait(2 * WEEK_MS)
    assert log.expire_groups() == 0
    assert log.generation(owner, 3, 2) == 0
    log.wait(WEEK_MS - 1)
    assert log.expire_groups() == 0
    assert log.stored == 5
    log.wait(1)
    assert log.expire_groups() == 1
    assert GROUP not in log.image.groups


def test_offsets_of_a_group_without_members_expire_by_commit_time_or_requested_retention() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.offsets(owner, 1, 5) == 0
    log.wait(WEEK_MS // 2)
    assert log.offsets(owner, 2, 6) == 0
    log.wait(WEEK_MS // 2)
    assert log.expire_groups() == 0
    assert log.offsets(owner, 3, 7, expire_at_ms=log.wall_ms + 2 * WEEK_MS) == 0
    log.wait(2 * WEEK_MS - 1)
    assert log.expire_groups() == 0
    log.wait(1)
    assert log.expire_groups() == 1


def test_a_group_that_a_broker_has_just_acquired_does_not_expire() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.offsets(owner, 1, 5) == 0
    log.wait(2 * WEEK_MS)
    log.acquire()  # members are coming, which the log does not know yet
    assert log.expire_groups() == 0
    log.wait(60 * MINUTE_MS)
    assert log.expire_groups() == 1


def test_a_group_that_has_just_become_empty_does_not_expire() -> None:
    """The members may return, and expect their generation to continue."""
    log = Log()
    owner = log.acquire().ownership_epoch
    log.wait(2 * WEEK_MS)
    assert log.generation(owner, 1, 1, "m") == 0
    assert log.generation(owner, 2, 2) == 0
    assert log.expire_groups() == 0
    log.wait(60 * MINUTE_MS - 1)
    assert log.expire_groups() == 0
    log.wait(1)
    assert log.expire_groups() == 1


def test_an_expiry_pass_removes_empty_groups_without_offsets() -> None:
    log = Log()
    log.acquire()
    log.wait(60 * MINUTE_MS - 1)
    assert log.expire_groups() == 0
    log.wait(1)
    assert log.expire_groups() == 1
    assert len(log.image.groups) == 0


def test_deleting_a_topic_removes_the_offsets_that_groups_committed_for_the_topic() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.generation(owner, 1, 1, "m") == 0
    assert log.offsets(owner, 2, 5, generation=1, member_id="m", topic_id=UUID(int=7)) == 0
    log.groups.topic_deleted(UUID(int=8))
    assert log.expire_groups() == 0
    log.groups.topic_deleted(UUID(int=7))
    assert log.expire_groups() == 1
    assert log.stored is None
    assert log.expire_groups() == 0


def test_an_expiry_pass_visits_thousands_of_groups_in_slices() -> None:
    log = Log()
    for index in range(1_000):
        request = rpc.AcquireGroupOwnershipRequest(
            group_id=f"g{index}", broker_id=1, broker_epoch=1, create=True
        )
        log.groups.ask(request, lambda _: None)
    log.run()
    log.wait(60 * MINUTE_MS)
    assert log.expire_groups() == 1_000
    assert len(log.image.groups) == 0


@pytest.mark.parametrize(("members", "code"), [(("m",), 68), ((), 0)])
def test_the_group_log_refuses_to_remove_a_group_with_members(
    members: tuple[str, ...], code: int
) -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    assert log.generation(owner, 1, 1, *members) == 0
    assert log.tell(rpc.RemoveGroupRequest(group_id=GROUP)).error_code == code
    assert (GROUP in log.image.groups) is bool(code)
    assert log.tell(rpc.RemoveGroupRequest(group_id="none")).error_code == 69


# --- state ----------------------------------------------------------------------------------------


def test_a_group_checkpoint_restores_the_state_and_counts_its_records() -> None:
    log = Log()
    first = log.acquire().ownership_epoch
    assert log.generation(first, 1, 1, "m") == 0
    assert log.offsets(first, 2, 5, generation=1, member_id="m", topic_id=UUID(int=7)) == 0
    second = log.acquire().ownership_epoch  # the generation is of a former ownership
    assert log.offsets(second, 4, 6, generation=1, member_id="m", expire_at_ms=9) == 0
    values = records_of(log.machine)
    assert len(values) == log.machine.total_records == 4
    assert log.machine.changed_records == 2  # the owner, the offset
    again = GroupMachine()
    load(again, log.machine.applied, values)
    assert again.total_records == 4
    assert records_of(again) == values
    assert again.image.groups[GROUP].sequence == 4
    assert again.contradictions == 0


def test_later_records_do_not_change_a_frozen_view_of_the_group_state() -> None:
    log = Log()
    owner = log.acquire().ownership_epoch
    frozen = log.machine.freeze()
    before = records_of(log.machine)
    assert log.offsets(owner, 1, 5) == 0
    assert [bytes(value) for value in frozen.values() if value] == before
    frozen.close()
    log.machine.checkpointed(log.machine.applied, len(before))
    assert records_of(log.machine) != before
