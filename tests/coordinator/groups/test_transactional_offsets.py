"""Offsets of transactions in the group log, beside a model that knows records and outcomes only.

The model keeps every accepted record in order. The offset of a partition is that of the latest
record that counts: a plain commit, a deletion, or an offset of a transaction whose marker committed
it. It is unstable while a later record belongs to a transaction without a marker.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from coordinator.errors import CoordinatorError
from coordinator.features import Features
from coordinator.groups import decide_transactions
from coordinator.groups.checkpoint import image_values
from coordinator.groups.service import fetch_state
from records.kafka_errors import ErrorCode
from records.rpc import group_log as rpc
from tests.coordinator.groups.test_hosted import Node
from tests.coordinator.groups.test_log import member
from tests.examples import seeds

GROUPS = ("g", "h")
PARTITIONS = (0, 1)
DAY_MS = 24 * 3600 * 1000
TOPIC_ID = UUID(int=7)
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


class Written(NamedTuple):
    """A record about one partition of one group."""

    group: str
    partition: int
    offset: int  # -1: deleted
    transaction: tuple[int, int] | None = None  # producer id and number


class Model:
    """The records in order, and the outcomes of transactions."""

    def __init__(self) -> None:
        self.records: list[Written] = []
        self.outcomes: dict[tuple[int, int], bool] = {}
        self.ended: dict[int, int] = {}

    def last(self, group: str, partition: int) -> tuple[int, int]:
        """Return the index and offset of the latest record that counts; (-1, -1): none."""
        counting = [
            (index, record.offset)
            for index, record in enumerate(self.records)
            if record[:2] == (group, partition)
            and (record.transaction is None or self.outcomes.get(record.transaction))
        ]
        return max(counting, default=(-1, -1))

    def open_at(self, group: str, partition: int) -> set[tuple[int, int]]:
        """Return the open transactions with records after the latest that counts."""
        latest, _ = self.last(group, partition)
        return {
            record.transaction
            for record in self.records[latest + 1 :]
            if record[:2] == (group, partition)
            and record.transaction is not None
            and record.transaction not in self.outcomes
        }

    def refuses(self, producer_id: int, number: int) -> bool:
        """Return whether a transaction's commit comes too late, or beside another one."""
        open_numbers = {
            open_number
            for group in GROUPS
            for partition in PARTITIONS
            for open_id, open_number in self.open_at(group, partition)
            if open_id == producer_id
        }
        return number <= self.ended.get(producer_id, -1) or bool(open_numbers - {number})

    def end(self, producer_id: int, number: int, *, is_committed: bool) -> None:
        """Note a marker: the first of a transaction decides."""
        self.outcomes.setdefault((producer_id, number), is_committed)
        self.ended[producer_id] = max(number, self.ended.get(producer_id, -1))


class Log:
    """The group log on a node, and requests of one owner for each group."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.lead()
        self.epochs = {
            group: self.node.ask(
                rpc.AcquireGroupOwnershipRequest(
                    group_id=group, broker_id=1, broker_epoch=9, create=True
                )
            ).ownership_epoch
            for group in GROUPS
        }
        self.sequence = 0

    def restart(self) -> None:
        """Restart the node from its newest checkpoint."""
        self.node.restart()
        self.node.loop.settle()
        self.node.lead()

    def fields(self, group: str) -> dict[str, Any]:
        """Return what the owner's requests have in common; each has a sequence number."""
        self.sequence += 1
        epoch = self.epochs[group]
        return {"group_id": group, "ownership_epoch": epoch, "sequence": self.sequence}

    def commit(self, group: str, partition: int, offset: int) -> int:
        """Commit an offset without a transaction; return the error."""
        commit = rpc.CommitGroupOffsetsRequest.Commit(
            generation=-1, member_id="", topics=(topic(partition, offset),)
        )
        answer = self.node.ask(
            rpc.CommitGroupOffsetsRequest(**self.fields(group), commits=(commit,))
        )
        return int(answer.error_code or answer.commit_errors[0])

    def commit_in(
        self, transaction: tuple[int, int], group: str = "g", partition: int = 0, offset: int = 1,
        **more: Any,
    ) -> int:  # fmt: skip
        """Commit an offset in a transaction; return the error."""
        given = {"generation": -1, "member_id": "", **self.fields(group), **more}
        commit = rpc.CommitTransactionalOffsetsRequest.Commit(
            producer_id=transaction[0],
            producer_epoch=0,
            transaction_number=transaction[1],
            generation=given.pop("generation"),
            member_id=given.pop("member_id"),
            topics=(topic(partition, offset),),
        )
        answer = self.node.ask(rpc.CommitTransactionalOffsetsRequest(**given, commits=(commit,)))
        return int(answer.error_code or answer.commit_errors[0])

    def delete(self, group: str, partition: int) -> None:
        """Delete a committed offset, as OffsetDelete does."""
        named = rpc.RemoveGroupOffsetsRequest.Topic(topic_name="t", partitions=(partition,))
        self.node.ask(rpc.RemoveGroupOffsetsRequest(**self.fields(group), topics=(named,)))

    def end(self, transaction: tuple[int, int], *, is_committed: bool) -> int:
        """Write a marker; return the error."""
        answer = self.node.ask(
            rpc.WriteGroupMarkersRequest(
                producer_ids=(transaction[0],),
                transaction_numbers=(transaction[1],),
                committed=(is_committed,),
            )
        )
        return int(answer.error_code)

    def fetch(self, group: str = "g", partition: int = 0, *, stable: bool = True) -> Any:
        """Return the committed offset, -1 without one; "unstable" if the log says so."""
        named = rpc.FetchGroupStateRequest.Topic(topic_name="t", partitions=(partition,))
        request = rpc.FetchGroupStateRequest(group_id=group, topics=(named,), require_stable=stable)
        answer = fetch_state(request, self.node.state.image)
        found = [p for topic in answer.topics for p in topic.partitions]
        if not found:
            return -1
        return "unstable" if found[0].is_unstable else found[0].committed_offset


def topic(partition: int, offset: int) -> rpc.CommitGroupOffsetsRequest.Commit.Topic:
    """Return a commit's topic with one offset."""
    kind = rpc.CommitGroupOffsetsRequest.Commit.Topic
    one = kind.Partition(
        partition_index=partition, committed_offset=offset, leader_epoch=0, metadata=""
    )
    return kind(topic_name="t", topic_id=TOPIC_ID, partitions=(one,))


def run_schedule(seed: int) -> None:
    """Run random commits, markers, deletions and restarts, and compare with the model."""
    chance = random.Random(seed)
    log, model = Log(), Model()
    for step in range(60):
        group, partition = chance.choice(GROUPS), chance.choice(PARTITIONS)
        producer_id = chance.randrange(3)
        number = max(0, model.ended.get(producer_id, -1) + chance.choice((-1, 0, 1, 1, 1, 1, 2)))
        transaction = (producer_id, number)
        act = chance.random()
        if act < 0.2:
            assert log.commit(group, partition, step) == 0
            model.records.append(Written(group, partition, step))
        elif act < 0.6:
            refused = model.refuses(*transaction)
            error = log.commit_in(transaction, group, partition, step)
            assert error == (NOT_AVAILABLE if refused else 0), (seed, step, transaction)
            if not refused:
                model.records.append(Written(group, partition, step, transaction))
        elif act < 0.85:
            is_committed = chance.random() < 0.6
            assert log.end(transaction, is_committed=is_committed) == 0
            model.end(*transaction, is_committed=is_committed)
        elif act < 0.92:
            log.delete(group, partition)
            model.records.append(Written(group, partition, -1))
        elif act < 0.96:
            log.node.take()
        else:
            log.restart()
        compare(log, model, (seed, step))
    image = log.node.state.image
    assert image.record_count == sum(bool(value) for value in image_values(image)), seed


def compare(log: Log, model: Model, where: tuple[int, int]) -> None:
    """Compare what readers are answered, with and without `require_stable`."""
    for group in GROUPS:
        for partition in PARTITIONS:
            offset = model.last(group, partition)[1]
            is_open = model.open_at(group, partition)
            assert log.fetch(group, partition, stable=False) == offset, where
            assert log.fetch(group, partition) == ("unstable" if is_open else offset), where


@pytest.mark.parametrize("seed", seeds(20))
def test_random_transactional_commits_match_a_model_of_records_and_outcomes(seed: int) -> None:
    run_schedule(seed)


# --- the rules, one by one ------------------------------------------------------------------------


def test_an_offset_fetch_returns_no_pending_offset_before_the_transaction_marker() -> None:
    log = Log()
    assert log.commit("g", 0, 5) == 0
    assert log.commit_in((1, 0), offset=9) == 0
    assert (log.fetch(stable=False), log.fetch()) == (5, "unstable")
    assert log.end((1, 0), is_committed=True) == 0
    assert (log.fetch(stable=False), log.fetch()) == (9, 9)


def test_an_abort_marker_drops_the_pending_offsets_of_its_transaction() -> None:
    log = Log()
    assert log.commit_in((1, 0), offset=9) == 0
    assert log.end((1, 0), is_committed=False) == 0
    assert log.fetch() == -1


def test_a_plain_offset_commit_after_a_pending_offset_survives_the_commit_marker() -> None:
    log = Log()
    assert log.commit_in((1, 0), offset=9) == 0
    assert log.commit("g", 0, 5) == 0
    assert log.end((1, 0), is_committed=True) == 0
    assert log.fetch() == 5


def test_the_offset_of_the_later_pending_record_counts_in_any_order_of_the_markers() -> None:
    for first, second in (((1, 0), (2, 0)), ((2, 0), (1, 0))):
        log = Log()
        assert log.commit_in((1, 0), offset=4) == 0
        assert log.commit_in((2, 0), offset=3) == 0
        assert log.end(first, is_committed=True) == 0
        assert log.end(second, is_committed=True) == 0
        assert log.fetch() == 3


def test_pending_offsets_survive_a_checkpoint_in_the_order_of_their_records() -> None:
    log = Log()
    assert log.commit_in((2, 0), offset=4) == 0
    assert log.commit_in((1, 0), offset=3) == 0
    log.node.take()
    log.restart()
    assert log.fetch() == "unstable"
    assert log.end((1, 0), is_committed=True) == 0
    assert log.end((2, 0), is_committed=True) == 0
    assert log.fetch() == 3


def test_a_repeated_marker_does_not_change_the_outcome_of_its_transaction() -> None:
    log = Log()
    assert log.commit_in((1, 0), offset=9) == 0
    assert log.end((1, 0), is_committed=False) == 0
    end = log.node.state.applied.offset
    assert log.end((1, 0), is_committed=True) == 0
    assert log.fetch() == -1
    assert log.node.state.applied.offset == end


def test_the_group_log_refuses_a_commit_of_an_ended_transaction_with_a_retriable_code() -> None:
    log = Log()
    assert log.end((1, 3), is_committed=True) == 0
    assert [log.commit_in((1, number)) for number in (2, 3)] == [NOT_AVAILABLE] * 2
    assert log.commit_in((1, 4)) == 0


def test_the_group_log_refuses_a_commit_of_a_transaction_other_than_the_open_transaction() -> None:
    log = Log()
    assert log.commit_in((1, 3)) == 0
    assert log.commit_in((1, 4)) == NOT_AVAILABLE
    assert log.commit_in((1, 3), "h") == 0
    assert log.commit_in((2, 4)) == 0


def test_the_group_log_limits_the_pending_offsets_of_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide_transactions, "MAX_PENDING", 2)
    log = Log()
    assert [log.commit_in((producer, 1)) for producer in (1, 2)] == [0, 0]
    assert log.commit_in((3, 1)) == ErrorCode.POLICY_VIOLATION
    assert log.commit_in((3, 1), "h") == 0
    assert log.end((1, 1), is_committed=False) == 0
    assert log.commit_in((3, 1)) == 0


def test_a_marker_ends_only_the_transaction_with_its_number() -> None:
    log = Log()
    assert log.commit_in((1, 3), offset=9) == 0
    assert log.end((1, 4), is_committed=True) == 0
    assert log.fetch() == "unstable"
    assert log.end((1, 3), is_committed=False) == 0
    assert log.fetch() == -1


def test_the_group_log_refuses_a_transactional_commit_with_a_used_sequence_number() -> None:
    log = Log()
    assert log.commit_in((1, 0), offset=9) == 0
    assert log.commit_in((1, 0), offset=8, sequence=log.sequence) == ErrorCode.INVALID_REQUEST
    assert log.commit_in((1, 0), offset=8, ownership_epoch=99) == ErrorCode.NOT_COORDINATOR
    assert log.end((1, 0), is_committed=True) == 0
    assert log.fetch() == 9


def test_the_group_log_accepts_a_transactional_commit_without_a_member_in_a_nonempty_group() -> (
    None
):
    log = Log()
    generation = rpc.CommitGroupGenerationRequest(
        **log.fields("g"), generation=2, protocol_type="consumer", protocol_name="range",
        leader="m", members=(member("m"),),
    )  # fmt: skip
    assert log.node.ask(generation).error_code == 0
    assert log.commit_in((1, 0)) == 0
    assert log.commit_in((1, 0), generation=2, member_id="m") == 0
    illegal = log.commit_in((1, 0), generation=1, member_id="m")
    assert illegal == ErrorCode.ILLEGAL_GENERATION
    unknown = log.commit_in((1, 0), generation=2, member_id="x")
    assert unknown == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_group_log_removes_no_group_with_pending_offsets_before_their_marker() -> None:
    log = Log()
    assert log.commit_in((1, 0)) == 0
    removal = rpc.RemoveGroupRequest(group_id="g")
    assert log.node.ask(removal).error_code == ErrorCode.NON_EMPTY_GROUP
    log.node.wall_ms += 30 * DAY_MS
    expire(log)
    assert set(log.node.state.image.groups) == {"g"}
    assert log.end((1, 0), is_committed=False) == 0
    assert log.node.ask(removal).error_code == 0


def test_an_expired_offset_stays_while_its_partition_has_a_pending_offset() -> None:
    log = Log()
    assert log.commit("g", 0, 5) == 0
    log.node.wall_ms += 30 * DAY_MS
    assert log.commit_in((1, 0)) == 0
    expire(log)
    assert log.fetch(stable=False) == 5


def test_numbers_of_ended_transactions_expire_only_while_their_producer_has_none_open() -> None:
    log = Log()
    assert log.end((1, 0), is_committed=True) == 0
    assert log.end((2, 0), is_committed=True) == 0
    assert log.commit_in((2, 1)) == 0
    log.node.wall_ms += DAY_MS - 1
    expire(log)
    assert set(log.node.state.image.producers) == {1, 2}
    log.node.wall_ms += 1
    expire(log)
    assert set(log.node.state.image.producers) == {2}
    assert log.node.state.image.producers[2].ended_number == 0
    assert log.commit_in((2, 0)) == NOT_AVAILABLE


def test_the_group_log_removes_pending_offsets_of_a_deleted_topic_after_their_marker() -> None:
    log = Log()
    assert log.commit_in((1, 0), offset=9) == 0
    log.node.groups.topic_deleted(TOPIC_ID)
    expire(log)
    assert log.fetch() == "unstable"
    assert log.end((1, 0), is_committed=True) == 0
    expire(log)
    assert log.fetch() == -1


def test_the_group_log_writes_no_transactional_record_below_its_feature_level() -> None:
    log = Log()
    log.node.groups._features = Features
    end = log.node.state.applied.offset
    given = rpc.CommitTransactionalOffsetsRequest(**log.fields("g"), commits=())
    refused = log.node.ask(given)
    assert isinstance(refused, CoordinatorError)
    assert refused.code == NOT_AVAILABLE
    assert log.end((1, 0), is_committed=True) == ErrorCode.UNSUPPORTED_VERSION
    assert log.node.state.applied.offset == end


def test_the_group_log_refuses_markers_with_columns_of_different_lengths() -> None:
    log = Log()
    uneven = rpc.WriteGroupMarkersRequest(
        producer_ids=(1,), transaction_numbers=(1, 2), committed=(True,)
    )
    assert log.node.ask(uneven).error_code == ErrorCode.INVALID_REQUEST
    assert log.end((1, -1), is_committed=True) == ErrorCode.INVALID_REQUEST
    many = (1,) * 10_001
    large = rpc.WriteGroupMarkersRequest(
        producer_ids=many, transaction_numbers=many, committed=(True,) * 10_001
    )
    assert log.node.ask(large).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_group_log_request_cannot_open_two_transactions_of_one_producer_id() -> None:
    log = Log()
    commits = tuple(
        rpc.CommitTransactionalOffsetsRequest.Commit(
            producer_id=1, producer_epoch=0, transaction_number=number, generation=-1,
            member_id="", topics=(topic(0, number),),
        )
        for number in (3, 4)
    )  # fmt: skip
    request = rpc.CommitTransactionalOffsetsRequest(**log.fields("g"), commits=commits)
    assert log.node.ask(request).commit_errors == (0, NOT_AVAILABLE)


def expire(log: Log) -> None:
    """Run one expiry pass."""
    passes: list[int] = []
    log.node.groups.expire_groups(passes.append)
    log.node.loop.settle()
    assert passes
