"""Images: immutability, identical checkpoints, and transactions."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.controller.apply import (
    BLOCK_TIMES_KEPT_MS,
    ImageEdit,
    keep_blocks,
    merge_partition,
)
from coordinator.controller.cluster_view import IN_THE_FUTURE, ImageView
from coordinator.controller.image import TOPIC, MetadataImage, Resource
from coordinator.controller.machine import ControllerMachine
from coordinator.persistent_map import Map
from records.chunks import ChunkChangeRecord, ChunkRecord, TopicPartitionToBatchCoordinatorMapping
from records.frame import METADATA_RECORDS, encode_record
from records.metadata import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.coordinator.controller.world import batches_of, load, records_of
from tests.records.strategies import messages

T1, T2 = UUID(int=1 << 80), UUID(int=2 << 80)


def partition(topic_id: UUID = T1, index: int = 0, **more: object) -> PartitionRecord:
    fields = {
        "partition_id": index,
        "topic_id": topic_id,
        "replicas": (1, 2),
        "isr": (1, 2),
        "removing_replicas": (),
        "adding_replicas": (),
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
    }
    return PartitionRecord(**(fields | more))


def broker(broker_id: int = 1, epoch: int = 5) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=1),
        broker_epoch=epoch,
        end_points=(),
        features=(),
        rack=None,
    )


def image_of(*records: MetadataRecord) -> MetadataImage:
    edit = ImageEdit(MetadataImage())
    for record in records:
        edit.apply(record)
    return edit.publish(Offset(len(records)), Epoch(1))


def applied(machine: ControllerMachine, *records: MetadataRecord) -> ControllerMachine:
    """Apply the records as one batch after the last applied offset."""
    values = [encode_record(record) for record in records]
    start = machine.applied.offset
    for batch in batches_of(values):
        header = batch.header._replace(base_offset=Offset(start))
        machine.apply([batch._replace(header=header)])
    return machine


# --- maps ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.lists(st.tuples(st.integers(-300, 300), st.none() | st.integers()), max_size=200),
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None, database=None)
def test_a_persistent_map_behaves_like_an_immutable_dictionary(
    rounds: list[list[tuple[int, int | None]]],
) -> None:
    now: Map[int, int] = Map()
    model: dict[int, int] = {}
    history = []
    for changes in rounds:
        edit = now.edit()
        for key, value in changes:
            if value is None:
                assert edit.pop(key) == model.pop(key, None)
            else:
                edit.set(key, value)
                model[key] = value
            assert edit.get(key) == model.get(key)
        now = edit.freeze()
        history.append((now, dict(model)))
    for seen, expected in history:
        assert (dict(seen), len(seen)) == (expected, len(expected))
        assert all(key in seen and seen.get(key) == expected[key] for key in expected)
    for before, old in history:
        for after, new in history:
            different = [(old.get(k), new.get(k)) for k in old | new if old.get(k) != new.get(k)]
            assert Counter(before.differences(after)) == Counter(different)


def test_an_edit_that_changes_no_key_returns_the_same_persistent_map() -> None:
    one = Map[str, int]().set("a", 1)
    assert one.edit().freeze() is one
    assert one.remove("b") is one


# --- checkpoints --------------------------------------------------------------------------------

STATE = [cls for key, cls in METADATA_RECORDS.items() if key is not None and key < 1100]


def counted_loads(image: MetadataImage) -> dict[int, int]:
    """Count the client partitions of each coordinator one by one."""
    return dict(
        Counter(
            topic.coordinator(index)
            for topic in image.topics.values()
            if not topic.is_internal
            for index in topic.partitions
        )
    )


@given(st.data())
@settings(max_examples=60, deadline=None, database=None)
def test_a_checkpoint_of_any_cluster_metadata_image_restores_an_equal_image(
    data: st.DataObject,
) -> None:
    """Whatever records a log has, apply continues, and the checkpoint is complete."""
    known = [TopicRecord(name="a", topic_id=T1), partition(), broker()]
    drawn = data.draw(
        st.lists(
            st.sampled_from(STATE).flatmap(
                lambda cls: messages(
                    cls, cls.schema().versions.last, special=(("topic_id", st.just(T1)),)
                )
            ),
            max_size=8,
        )
    )
    image = image_of(*known, *drawn)
    values = records_of(image)
    assert len(values) == image.record_count
    again = ControllerMachine()
    load(again, OffsetAndEpoch(Offset(9), Epoch(2)), values)
    assert records_of(again.image) == values
    assert again.contradictions == 0
    assert again.image.offset == 9
    assert dict(again.image.loads) == dict(image.loads) == counted_loads(image)


def test_cluster_checkpoints_keep_the_quota_and_acl_records_of_kafka() -> None:
    entity = ClientQuotaRecord.EntityData(entity_type="user", entity_name=None)
    quota = ClientQuotaRecord(entity=(entity,), key="rate", value=1.5, remove=False)
    rule = AccessControlEntryRecord(
        id=T1,
        resource_type=2,
        resource_name="x",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    image = image_of(quota, rule)
    assert set(records_of(image)) == {encode_record(quota), encode_record(rule)}
    gone = ClientQuotaRecord(entity=(entity,), key="rate", value=0.0, remove=True)
    assert records_of(image_of(quota, rule, gone)) == [encode_record(rule)]


def test_a_cluster_checkpoint_does_not_depend_on_the_order_of_log_records() -> None:
    one = [TopicRecord(name="a", topic_id=T1), partition(index=1), partition(index=0)]
    two = [TopicRecord(name="b", topic_id=T2), partition(T2)]
    assert records_of(image_of(*one, *two)) == records_of(image_of(*two, *one))


def test_later_records_do_not_change_a_frozen_copy_of_the_cluster_metadata() -> None:
    machine = applied(ControllerMachine(), TopicRecord(name="a", topic_id=T1), partition())
    frozen = machine.freeze()
    before = records_of(machine.image)
    applied(machine, RemoveTopicRecord(topic_id=T1))
    assert [bytes(value) for value in frozen.values()] == before
    assert machine.changed_records == 2


def test_the_cluster_image_counts_records_changed_since_the_last_checkpoint() -> None:
    machine = applied(ControllerMachine(), broker(1), broker(2))
    assert (machine.changed_records, machine.total_records) == (0, 2)
    applied(machine, broker(1, epoch=9))
    machine.freeze()
    taken = machine.applied
    applied(machine, broker(2, epoch=10))
    assert machine.changed_records == 2
    machine.checkpointed(taken, 2)
    assert machine.changed_records == 1


# --- transactions -------------------------------------------------------------------------------


def test_a_metadata_transaction_becomes_visible_as_a_whole_at_its_end() -> None:
    machine = applied(ControllerMachine(), FeatureLevelRecord(name="f", feature_level=1))
    seen: list[int] = []
    machine.listen(lambda image: seen.append(len(image.topics)))
    applied(machine, BeginTransactionRecord(name="x"), TopicRecord(name="a", topic_id=T1))
    applied(machine, TopicRecord(name="b", topic_id=T2))
    assert (machine.in_transaction, machine.checkpointable) == (True, False)
    assert len(machine.image.topics) == 0
    applied(machine, EndTransactionRecord())
    assert len(machine.image.topics) == 2
    assert machine.checkpointable
    assert set(seen) == {0, 2}


def test_an_aborted_metadata_transaction_does_not_change_the_cluster_image() -> None:
    machine = applied(ControllerMachine(), TopicRecord(name="a", topic_id=T1))
    before = records_of(machine.image)
    applied(
        machine,
        BeginTransactionRecord(),
        RemoveTopicRecord(topic_id=T1),
        AbortTransactionRecord(),
        TopicRecord(name="b", topic_id=T2),
    )
    assert set(records_of(machine.image)) == {
        *before,
        encode_record(TopicRecord(name="b", topic_id=T2)),
    }
    assert machine.changed_records == 0


def test_records_before_a_metadata_transaction_in_the_same_batch_are_applied() -> None:
    machine = applied(
        ControllerMachine(), TopicRecord(name="a", topic_id=T1), BeginTransactionRecord()
    )
    assert "a" in machine.image.topic_ids
    assert machine.image.offset == 1
    assert machine.applied.offset == 2


def test_a_controllers_state_machine_takes_no_checkpoint_after_an_unknown_record() -> None:
    machine = ControllerMachine()
    unknown = b"\x01\xcf\x0f\x00\x00"  # type 1999
    machine.apply(batches_of([unknown, encode_record(TopicRecord(name="a", topic_id=T1))]))
    assert "a" in machine.image.topic_ids
    assert not machine.checkpointable


# --- single records -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        partition(T2),
        PartitionChangeRecord(partition_id=7, topic_id=T1),
        RemoveTopicRecord(topic_id=T2),
        TopicRecord(name="a", topic_id=T2),
        UnregisterBrokerRecord(broker_id=1, broker_epoch=4),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=-1),
        ChunkRecord(
            partition_id=3,
            topic_id=T1,
            replicas=(),
            directories=(),
            isr=(),
            removing_replicas=(),
            adding_replicas=(),
        ),
        ChunkChangeRecord(partition_id=0, topic_id=T1, start_offset=5),
        TopicPartitionToBatchCoordinatorMapping(
            partition_index=4, topic_id=T1, batch_coordinator_partition_index=1
        ),
        ProducerIdsRecord(broker_id=1, next_producer_id=50),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_contradicts_the_cluster_image_is_counted_and_does_not_change_the_image(
    record: MetadataRecord,
) -> None:
    known = [
        TopicRecord(name="a", topic_id=T1),
        partition(),
        broker(),
        ProducerIdsRecord(broker_id=1, next_producer_id=100),
    ]
    edit = ImageEdit(image_of(*known))
    edit.apply(record)
    assert edit.contradictions == 1
    assert records_of(edit.publish(Offset(9), Epoch(1))) == records_of(image_of(*known))


def test_removing_a_topic_from_the_cluster_image_removes_the_topics_settings_and_chunks() -> None:
    image = image_of(
        TopicRecord(name="a", topic_id=T1),
        partition(),
        ConfigRecord(resource_type=TOPIC, resource_name="a", name="x", value="1"),
        RemoveTopicRecord(topic_id=T1),
        TopicRecord(name="a", topic_id=T2),
    )
    assert image.config(Resource(TOPIC, "a"), "x") is None
    assert [topic.topic_id for topic in image.iter_topics()] == [T2]


def test_a_partition_change_record_increments_the_leader_epoch_only_with_a_new_leader() -> None:
    before = partition()
    shrunk = merge_partition(before, PartitionChangeRecord(topic_id=T1, isr=(1,)))
    assert (shrunk.partition_epoch, shrunk.leader_epoch, shrunk.isr) == (1, 0, (1,))
    moved = merge_partition(shrunk, PartitionChangeRecord(topic_id=T1, leader=-1))
    assert (moved.partition_epoch, moved.leader_epoch, moved.leader) == (2, 1, -1)


def test_a_clear_elr_record_without_a_topic_clears_the_eligible_leaders_of_all_topics() -> None:
    image = image_of(
        TopicRecord(name="a", topic_id=T1),
        partition(eligible_leader_replicas=(1,)),
        ClearElrRecord(topic_name=""),
    )
    found = image.partition(T1, 0)
    assert found is not None
    assert found.eligible_leader_replicas is None


# --- producer ids -------------------------------------------------------------------------------

MINUTE = 60_000


def block(end: int, time_ms: int) -> ProducerIdsRecord:
    return ProducerIdsRecord(broker_id=1, next_producer_id=end, block_time_ms=time_ms)


def test_the_cluster_image_keeps_producer_id_blocks_as_long_as_producer_state() -> None:
    day = 24 * 60 * MINUTE
    image = image_of(*(block(1_000 * (i + 1), i * day) for i in range(10)))
    view = ImageView(lambda: image)
    assert view.producer_id_handed_out_ms(9_999) == 9 * day
    assert view.producer_id_handed_out_ms(9_000) == 9 * day
    assert view.producer_id_handed_out_ms(8_999) == 8 * day
    assert view.producer_id_handed_out_ms(10_000) == IN_THE_FUTURE
    oldest = view.producer_id_handed_out_ms(0)
    assert oldest is not None
    assert oldest <= 9 * day - BLOCK_TIMES_KEPT_MS
    assert len(image.producer_ids) == 8
    assert view.last_producer_id_before(9 * day) == 9_999
    assert view.last_producer_id_before(9 * day - 1) == 8_999
    assert view.last_producer_id_before(day) == -1  # of a time that is no longer remembered


def test_producer_id_blocks_allocated_within_one_minute_are_merged_and_keep_the_latest_time() -> (
    None
):
    kept: tuple[ProducerIdsRecord, ...] = ()
    for i in range(100):
        kept = keep_blocks(kept, block(i + 1, 5 * MINUTE + i))
    assert [(b.next_producer_id, b.block_time_ms) for b in kept] == [(100, 5 * MINUTE + 99)]


def test_a_producer_id_block_of_kafkas_controller_has_no_timestamp() -> None:
    image = image_of(ProducerIdsRecord(broker_id=1, next_producer_id=1_000))
    assert ImageView(lambda: image).producer_id_handed_out_ms(5) is None


# --- the view of batch coordinators -------------------------------------------------------------


def test_the_cluster_view_returns_the_epoch_of_the_last_committed_record() -> None:
    machine = ControllerMachine()
    view = ImageView(lambda: machine.image)
    assert view.controller_epoch() == 0
    value = encode_record(TopicRecord(name="a", topic_id=T1))
    load(machine, OffsetAndEpoch(Offset(9), Epoch(4)), [value])
    assert view.controller_epoch() == 4


def test_the_cluster_view_returns_epoch_minus_one_for_an_unregistered_broker() -> None:
    image = image_of(broker(1, epoch=7))
    assert ImageView(lambda: image).broker_epoch(1) == 7
    assert ImageView(lambda: image).broker_epoch(2) == -1
    assert ImageView(MetadataImage).broker_epoch(1) == -1
