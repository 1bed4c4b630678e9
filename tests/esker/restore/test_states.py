"""The state of a restored cluster: one cut, one jump of all counters, one timeline more.

Source: docs/design/restore.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.controller.reconciliation import Reconciliation
from coordinator.transactions.state import State
from esker.restore.errors import RestoreError
from raft.driver.config import METADATA_GROUP
from records.diskless import (
    AbortedState,
    CoordinatorState,
    DisklessBrokerState,
    LeaseState,
    ObjectsState,
    ProducersState,
    RunsState,
)
from records.features import ESKER_VERSION
from records.groups import GroupOffsetsRecord, GroupsState, PendingGroupOffsetsRecord
from records.metadata import FeatureLevelRecord, ProducerIdsRecord, RegisterBrokerRecord
from records.schema import MetadataRecord
from records.timelines import PartitionTimelinesRecord, TimelineRecord
from records.transactions import TransactionsState, TransactionStateRecord
from tests.coordinator.batch.actors import TOPIC
from tests.esker.restore.lost import (
    CLUSTER_ID,
    COORDINATOR,
    EPOCH,
    GROUPS,
    LOGS,
    TRANSACTIONS,
    lease_of,
    lost_logs,
    open_logs,
    prepared,
    transaction_of_7,
    transaction_records,
    write_node,
)


def test_each_counter_jumps_over_all_that_the_lost_cluster_can_have_used(tmp_path: Path) -> None:
    source = write_node(tmp_path / "101", lost_logs(), election_epoch=EPOCH + 3)
    with prepared(tmp_path / "scratch", source) as (found, new):
        jump = found.restored.jump
        assert jump.leader_epoch >= EPOCH + 3 + 2**16
        assert jump.cluster_offset >= 40 + 2**20  # the broker's epoch
        for group in LOGS:
            _, snapshot_id = found.restored.checkpoints[group]
            assert snapshot_id.epoch == jump.leader_epoch
            assert snapshot_id.offset > found.choices.logs[group].choice.chosen.end
        assert found.restored.checkpoints[METADATA_GROUP][1].offset == jump.cluster_offset
        ids = [r.next_producer_id for r in new.of(METADATA_GROUP, ProducerIdsRecord)]  # type: ignore[attr-defined]
        assert max(ids) >= 4_001 + 10_000  # of a producer that only the coordinator knew
        (state,) = new.of(COORDINATOR, CoordinatorState)
        assert isinstance(state, CoordinatorState)
        assert state.next_object_id >= 100 + 2**20
        assert state.next_lease_id >= 1 + 2**20
        (owners,) = new.of(GROUPS, GroupsState)
        assert isinstance(owners, GroupsState)
        assert owners.next_ownership_epoch >= 8 + 2**20


def test_no_lease_is_open_and_no_broker_serves_in_the_restored_state(tmp_path: Path) -> None:
    source = write_node(tmp_path / "101", lost_logs())
    with prepared(tmp_path / "scratch", source) as (_, new):
        leases = [lease_of(one) for one in new.of(COORDINATOR, LeaseState)]  # type: ignore[arg-type]
        assert leases
        assert not any(lease.is_open for lease in leases)
        brokers = new.of(METADATA_GROUP, RegisterBrokerRecord)
        assert [(b.broker_id, b.fenced) for b in brokers] == [(101, True)]  # type: ignore[attr-defined]
        (known,) = new.of(COORDINATOR, DisklessBrokerState)
        assert isinstance(known, DisklessBrokerState)
        assert known.broker_epoch == 40


def test_ids_that_the_lost_cluster_may_have_committed_later_are_not_deleted(
    tmp_path: Path,
) -> None:
    source = write_node(tmp_path / "101", lost_logs())
    with prepared(tmp_path / "scratch", source) as (_, new):
        (lease,) = (lease_of(one) for one in new.of(COORDINATOR, LeaseState))  # type: ignore[arg-type]
        assert (lease.last_committed_id, lease.end_object_id, lease.orphans) == (1, 100, ())


def test_objects_of_the_lost_cluster_keep_their_keys(tmp_path: Path) -> None:
    source = write_node(tmp_path / "101", lost_logs())
    with prepared(tmp_path / "scratch", source) as (found, new):
        (timeline,) = new.of(METADATA_GROUP, TimelineRecord)
        assert isinstance(timeline, TimelineRecord)
        assert timeline.timeline == 1
        (state,) = new.of(COORDINATOR, CoordinatorState)
        ancestors = found.restored.image.ancestors
        assert isinstance(state, CoordinatorState)
        assert ancestors.find(0, state.next_object_id - 1) == CLUSTER_ID
        assert ancestors.find(0, state.next_object_id) is None
        objects = [i for r in new.of(COORDINATOR, ObjectsState) for i in r.object_ids]  # type: ignore[attr-defined]
        assert objects == [0, 1]
        assert found.restored.objects == {0: {0, 1}}


def test_a_new_timeline_begins_at_the_last_offset_that_was_known_to_be_committed(
    tmp_path: Path,
) -> None:
    source = write_node(tmp_path / "101", lost_logs(committed_offset=17), unknown={COORDINATOR: 1})
    with prepared(tmp_path / "scratch", source) as (found, new):
        assert found.restored.uncertain == [("t", 0, 10, 20)]
        (timelines,) = new.of(METADATA_GROUP, PartitionTimelinesRecord)
        assert isinstance(timelines, PartitionTimelinesRecord)
        assert (timelines.topic_id, timelines.partition_index) == (TOPIC, 0)
        assert (timelines.timelines, timelines.first_offsets) == ((0, 1), (0, 10))
        (offsets,) = new.of(GROUPS, GroupOffsetsRecord)
        assert isinstance(offsets, GroupOffsetsRecord)
        assert offsets.topics[0].partitions[0].committed_offset == 10
        (lost,) = found.restored.lost_offsets
        assert (lost.group_id, lost.committed, lost.now) == ("g", 17, 10)


def test_another_copy_that_agrees_may_know_more_to_be_committed(tmp_path: Path) -> None:
    logs = lost_logs()
    behind = write_node(tmp_path / "101", logs, unknown={COORDINATOR: 2})
    shorter = {**logs, COORDINATOR: logs[COORDINATOR][:-1]}
    other = write_node(tmp_path / "102", shorter, node_id=102)
    with prepared(tmp_path / "scratch", behind, other) as (found, _):
        log = found.choices.logs[COORDINATOR]
        assert log.choice.chosen.directory.parent == behind
        assert log.known_committed == len(logs[COORDINATOR]) - 1
        assert found.restored.uncertain == [("t", 0, 10, 20)]


def test_a_topic_that_only_a_batch_coordinator_has_is_not_taken_for_a_left_over(
    tmp_path: Path,
) -> None:
    source = write_node(tmp_path / "101", lost_logs(has_topic=False))
    with prepared(tmp_path / "scratch", source) as (found, new):
        compared = Reconciliation(found.restored.image, 0, {TOPIC: frozenset({0})})
        while compared.compare_slice():
            pass
        assert compared.left_over == []
        assert len(found.restored.adopted) == 1
        assert new.of(METADATA_GROUP, PartitionTimelinesRecord)


def test_a_partition_whose_batches_no_source_has_is_reported_as_empty(tmp_path: Path) -> None:
    logs = lost_logs()
    del logs[COORDINATOR]
    source = write_node(tmp_path / "101", logs)
    with prepared(tmp_path / "scratch", source) as (found, _):
        assert found.restored.emptied == ["t-0"]
        (lost,) = found.restored.lost_offsets
        assert lost.now == 0


def test_the_next_transaction_of_an_id_has_a_number_that_no_coordinator_has_seen(
    tmp_path: Path,
) -> None:
    records = [(EPOCH, record) for record in transaction_records()]
    source = write_node(tmp_path / "101", {**lost_logs(), TRANSACTIONS: records})
    with prepared(tmp_path / "scratch", source) as (_, new):
        states = new.of(TRANSACTIONS, TransactionStateRecord)
        numbers = {r.transactional_id: r.transaction_number for r in states}  # type: ignore[attr-defined]
        assert numbers == {"closed": 8 + 2**20, "open": 8}
        (owners,) = new.of(TRANSACTIONS, TransactionsState)
        assert isinstance(owners, TransactionsState)
        assert owners.next_ownership_epoch >= 3 + 2**20


@pytest.mark.parametrize(
    ("state", "number", "outcome"),
    [
        (State.COMPLETE_COMMIT, 8, 1),
        (State.COMPLETE_ABORT, 8, 0),
        (State.COMPLETE_COMMIT, 9, 0),  # the log has the outcome of the newest transaction only
        (State.ONGOING, 7, 0),  # the coordinator is ahead of the log
        (None, 0, 0),
    ],
)
def test_a_transaction_without_a_marker_on_its_way_is_ended_by_the_restore(
    tmp_path: Path, state: State | None, number: int, outcome: int
) -> None:
    """Number 8 is open in a batch coordinator and in a group."""
    records = [] if state is None else transaction_of_7(state, number)
    source = write_node(tmp_path / "101", open_logs(records))
    with prepared(tmp_path / "scratch", source) as (_, new):
        (row,) = new.of(COORDINATOR, ProducersState)
        assert isinstance(row, ProducersState)
        assert (row.open_numbers, row.ended_numbers) == ((-1,), (8,))
        outcomes = [one for runs in new.of(COORDINATOR, RunsState) for one in marker_outcomes(runs)]
        assert outcomes == [outcome]
        assert len(new.of(COORDINATOR, AbortedState)) == (not outcome)
        assert not new.of(GROUPS, PendingGroupOffsetsRecord)
        (offsets,) = new.of(GROUPS, GroupOffsetsRecord)
        assert isinstance(offsets, GroupOffsetsRecord)
        assert offsets.topics[0].partitions[0].committed_offset == (9 if outcome else 5)


def marker_outcomes(runs: MetadataRecord) -> tuple[int, ...]:
    """Return the outcomes of the markers of a partition."""
    assert isinstance(runs, RunsState)
    return tuple(runs.marker_outcomes)


@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_a_transaction_that_the_transaction_log_has_open_is_left_to_its_leader(
    tmp_path: Path, state: State
) -> None:
    source = write_node(tmp_path / "101", open_logs(transaction_of_7(state, 8)))
    with prepared(tmp_path / "scratch", source) as (_, new):
        (row,) = new.of(COORDINATOR, ProducersState)
        assert isinstance(row, ProducersState)
        assert row.open_numbers == (8,)
        assert new.of(GROUPS, PendingGroupOffsetsRecord)
        (found,) = new.of(TRANSACTIONS, TransactionStateRecord)
        assert isinstance(found, TransactionStateRecord)
        is_fenced = state is State.ONGOING  # its producer may have lost batches
        assert found.state == (State.PREPARE_ABORT if is_fenced else state)
        assert (found.transaction_number, found.producer_epoch) == (8, int(is_fenced))


def test_a_restored_cluster_finalizes_the_level_of_its_records(tmp_path: Path) -> None:
    source = write_node(tmp_path / "101", lost_logs())
    with prepared(tmp_path / "scratch", source) as (_, new):
        levels = {r.name: r.feature_level for r in new.of(METADATA_GROUP, FeatureLevelRecord)}  # type: ignore[attr-defined]
        assert levels[ESKER_VERSION] == 5


def test_a_counter_above_half_of_its_range_is_refused(tmp_path: Path) -> None:
    source = write_node(tmp_path / "101", lost_logs(), election_epoch=2**30 + 1)
    with (
        pytest.raises(RestoreError, match="leader epochs have reached 1073741825, more than half"),
        prepared(tmp_path / "scratch", source),
    ):
        pass
