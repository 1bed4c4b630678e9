"""Plants that each break one rule of the audit and are legal otherwise.

A plant is a change of `the_history`. Those in checkpoints stand in `test_audit_rules`, those of the
cluster's log in `test_audit_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from msgspec.structs import replace as _replace

from records.batch import HEADER_SIZE_BYTES
from records.diskless import (
    ControllerEpochRecord,
    DeleteFenceRecord,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    RewriteLeaseGrantedRecord,
    RunsReplacedRecord,
)
from records.schema import MetadataRecord
from tests.coordinator.batch.actors import OTHER_TOPIC, TOPIC
from tests.spark_jobs.audit_world import THIRD_TOPIC, Entry, a_history, a_rewritten_history

changed: Final[Any] = _replace  # of any record

Plant = Callable[[list[Entry]], list[Entry]]

PLANTS: Final[dict[str, list[Plant]]] = {}


@cache
def the_history() -> tuple[Entry, ...]:
    return tuple(a_history())


REWRITING_PLANTS: Final[dict[str, list[Plant]]] = {}
"""Those that change `the_rewritten_history`."""


@cache
def the_rewritten_history() -> tuple[Entry, ...]:
    return tuple(a_rewritten_history())


def breaks_rewriting(name: str) -> Callable[[Plant], Plant]:
    def declare(plant: Plant) -> Plant:
        REWRITING_PLANTS.setdefault(name, []).append(plant)
        return plant

    return declare


def breaks(name: str) -> Callable[[Plant], Plant]:
    def declare(plant: Plant) -> Plant:
        PLANTS.setdefault(name, []).append(plant)
        return plant

    return declare


def at(entries: Sequence[Entry], cls: type, **fields: Any) -> int:
    """Return the index of the first record of a type with these values."""
    for index, entry in enumerate(entries):
        value = entry.value
        if isinstance(value, cls) and all(getattr(value, k) == v for k, v in fields.items()):
            return index
    raise AssertionError(f"there is no {cls.__name__} with {fields}")


def edit(entries: list[Entry], index: int, **fields: Any) -> list[Entry]:
    """Return the entries with one record changed."""
    record: Any = entries[index].value
    entries[index] = replace(entries[index], value=changed(record, **fields))
    return entries


def insert(entries: list[Entry], index: int, record: MetadataRecord) -> list[Entry]:
    """Return the entries with one more record, of the epoch of the one before it."""
    return [*entries[:index], Entry(record, entries[index - 1].epoch), *entries[index:]]


def commit_of(entries: Sequence[Entry], object_id: int) -> ObjectCommitRecord:
    record = entries[at(entries, ObjectCommitRecord, object_id=object_id)].value
    assert isinstance(record, ObjectCommitRecord)
    return record


def edit_commit(entries: list[Entry], of: int, **fields: Any) -> list[Entry]:
    return edit(entries, at(entries, ObjectCommitRecord, object_id=of), **fields)


# --- the log as a log ---------------------------------------------------------------------------


@breaks("log-offsets-gapless")
def _(life: list[Entry]) -> list[Entry]:
    life[30] = replace(life[30], gap=1)
    return life


@breaks("log-epochs-rise")
def _(life: list[Entry]) -> list[Entry]:
    return [*life[:-1], replace(life[-1], epoch=1)]


@breaks("epoch-begins-with-leader")
def _(life: list[Entry]) -> list[Entry]:
    return [*life[:-1], replace(life[-1], epoch=3)]


@breaks("one-leader")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(3, 2)]


# --- commits ------------------------------------------------------------------------------------


@breaks("offsets-contiguous")
def a_commit_is_lost(life: list[Entry]) -> list[Entry]:
    life = more(life, 82, 2)
    del life[at(life, ObjectCommitRecord, object_id=80)]
    return life


@breaks("offsets-contiguous")
def an_offset_is_shifted(life: list[Entry]) -> list[Entry]:
    return edit_commit(life, 81, base_offsets=(17,))


@breaks("offsets-contiguous")
def a_partition_begins_too_late(life: list[Entry]) -> list[Entry]:
    """Start a partition's first batch at a later offset."""
    return edit_commit(life, 81, topic_ids=(THIRD_TOPIC,), base_offsets=(1,))


@breaks("batches-placed")
def _(life: list[Entry]) -> list[Entry]:
    return edit_commit(life, 81, partitions=(9,), base_offsets=(0,))


@breaks("batches-placed")
def of_a_deleted_topic(life: list[Entry]) -> list[Entry]:
    topic = (OTHER_TOPIC,)
    return edit_commit(life, 81, topic_ids=topic, partitions=(0,), base_offsets=(7,))


@breaks("released-empty")
def _(life: list[Entry]) -> list[Entry]:
    released = DisklessPartitionsReleasedRecord(topic_id=TOPIC, partitions=(1,), controller_epoch=9)
    return [*life, Entry(released, 2)]


@breaks("log-start-within")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(log_start(17, partition=1), 2)]


@breaks("outcomes-consistent")
def _(life: list[Entry]) -> list[Entry]:
    record = commit_of(life, 22)
    return edit_commit(life, 22, base_offsets=(9, *record.base_offsets[1:]))


@breaks("bytes-inside")
def _(life: list[Entry]) -> list[Entry]:
    return edit_commit(life, 81, size_bytes=99)


@breaks("bytes-disjoint")
def _(life: list[Entry]) -> list[Entry]:
    return edit_commit(life, 60, byte_offsets=(0, 99))


@breaks("lease-open")
def _(life: list[Entry]) -> list[Entry]:
    lease = LeaseClosedRecord(lease_id=4, closed_at_ms=0, end_object_id=100, reason=0)
    return insert(life, at(life, ObjectCommitRecord, object_id=81), lease)


@breaks("lease-owner")
def _(life: list[Entry]) -> list[Entry]:
    return edit_commit(life, 81, broker_epoch=0)


@breaks("lease-owner")
def leases_are_swapped(life: list[Entry]) -> list[Entry]:
    life = insert(life, at(life, ObjectCommitRecord, object_id=81), lease(broker_id=3))
    return edit_commit(life, 81, lease_id=5)


@breaks("object-ids-rise")
def _(life: list[Entry]) -> list[Entry]:
    return edit_commit(life, 81, object_id=80)


@breaks("fenced-uncommitted")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(DeleteFenceRecord(object_ids=(81,), fenced_at_ms=0), 2)]


# --- producers ----------------------------------------------------------------------------------


def more(life: list[Entry], object_id: int, sequence: int, **fields: Any) -> list[Entry]:
    """Append one more commit of producer 7, which has stored sequences 0 and 1 of epoch 1."""
    record = commit_of(life, 80)
    given: dict[str, Any] = {"base_offsets": (9,), "record_counts": (1,)}
    given |= {"object_id": object_id, "base_sequences": (sequence,)}
    return [*life, Entry(changed(record, **(given | fields)), 2)]


@breaks("stored-once")
def a_commit_is_stored_twice(life: list[Entry]) -> list[Entry]:
    return more(life, 82, 0, record_counts=(2,))


@breaks("stored-once")
def it_is_the_last_but_one(life: list[Entry]) -> list[Entry]:
    return more(more(life, 82, 2), 83, 0, record_counts=(2,), base_offsets=(10,))


@breaks("sequences-follow")
def _(life: list[Entry]) -> list[Entry]:
    return more(life, 82, 3)


@breaks("sequences-follow")
def a_new_epoch_begins_in_the_middle(life: list[Entry]) -> list[Entry]:
    return more(life, 82, 3, producer_epochs=(2,))


@breaks("producer-epochs-rise")
def _(life: list[Entry]) -> list[Entry]:
    record = commit_of(life, 22)
    assert record.error_codes == (47, 0)
    life = edit_commit(life, 22, error_codes=(), base_offsets=(10, 11))
    for object_id, base in ((3, (13,)), (60, (15, 16)), (81, (17,))):
        life = edit_commit(life, object_id, base_offsets=base)
    return life


@breaks("duplicates-answer-first")
def _(life: list[Entry]) -> list[Entry]:
    return edit_commit(life, 1, base_offsets=(2, 5))


@breaks("duplicates-answer-first")
def of_nothing_that_was_stored(life: list[Entry]) -> list[Entry]:
    record = commit_of(life, 1)
    return edit_commit(life, 1, base_sequences=(1, record.base_sequences[1]))


# --- objects ------------------------------------------------------------------------------------


def log_start(offset: int, *, partition: int = 0) -> LogStartOffsetsRecord:
    return LogStartOffsetsRecord(
        topic_ids=(TOPIC,),
        topic_indexes=(0,),
        partitions=(partition,),
        log_start_offsets=(offset,),
        reason=0,
    )


@breaks("marked-unused")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(ObjectsMarkedRecord(object_ids=(80,), marked_at_ms=1), 2)]


@breaks("marked-unused")
def marked_before_the_log_start_moved(life: list[Entry]) -> list[Entry]:
    marked = at(life, ObjectsMarkedRecord)
    life[marked - 1], life[marked] = life[marked], life[marked - 1]
    return life


@breaks("removed-unused")
def _(life: list[Entry]) -> list[Entry]:
    del life[at(life, ObjectsMarkedRecord)]
    return life


@breaks("marked-committed")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(ObjectsMarkedRecord(object_ids=(99,), marked_at_ms=1), 2)]


@breaks("orphans-deleted")
def _(life: list[Entry]) -> list[Entry]:
    index = at(life, ObjectsRemovedRecord, object_ids=(40,)) + 1
    record: Any = life[index].value
    return edit(life, index, object_ids=tuple(i for i in record.object_ids if i != 61))


@breaks("objects-leased")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(ObjectsRemovedRecord(object_ids=(1_000,)), 2)]


# --- everything but commits ---------------------------------------------------------------------


@breaks("partitions-made-once")
def _(life: list[Entry]) -> list[Entry]:
    last = life[at(life, DisklessPartitionsRecord, first_log_id=3)].value
    assert isinstance(last, DisklessPartitionsRecord)
    again = changed(last, first_partition=0, partition_count=1, first_log_id=50, controller_epoch=9)
    return [*life, Entry(again, 2)]


@breaks("log-ids-once")
def _(life: list[Entry]) -> list[Entry]:
    return edit(life, at(life, DisklessPartitionsRecord, first_log_id=3), first_log_id=2)


@breaks("partitions-known")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(log_start(0, partition=5), 2)]


@breaks("removed-when-deleted")
def _(life: list[Entry]) -> list[Entry]:
    gone = DisklessPartitionsRemovedRecord(topic_id=TOPIC, partitions=(1,))
    return [*life, Entry(gone, 2)]


@breaks("log-start-rises")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(log_start(2), 2)]


@breaks("controller-epochs-rise")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(ControllerEpochRecord(controller_epoch=2), 2)]


def lease(**fields: Any) -> LeaseGrantedRecord:
    given: dict[str, Any] = {
        "lease_id": 5, "broker_id": 1, "broker_epoch": 1, "first_object_id": 100,
        "object_count": 10, "granted_at_ms": 1, "closed_lease_ids": (),
    }  # fmt: skip
    return LeaseGrantedRecord(**(given | fields))


@breaks("lease-ids-once")
def _(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(lease(first_object_id=99), 2)]


@breaks("broker-epochs-fence")
def an_old_epoch_gets_a_lease(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(lease(broker_id=2, broker_epoch=1), 2)]


@breaks("broker-epochs-fence")
def a_new_epoch_closes_nothing(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(lease(broker_epoch=2), 2)]


@breaks("lease-closed-once")
def _(life: list[Entry]) -> list[Entry]:
    closed = LeaseClosedRecord(lease_id=2, closed_at_ms=0, end_object_id=100, reason=0)
    return [*life, Entry(closed, 2)]


# --- replaced runs ------------------------------------------------------------------------------


def replaced(life: Sequence[Entry], number: int) -> int:
    """Return the index of a record that replaces runs: 0 merges, 1 and 2 compact."""
    return [i for i, one in enumerate(life) if isinstance(one.value, RunsReplacedRecord)][number]


def ids_of(life: Sequence[Entry]) -> tuple[int, int]:
    """Return the ids of the merged and of the compacted object."""
    values: list[Any] = [life[replaced(life, number)].value for number in (0, 1)]
    return values[0].object_id, values[1].object_id


@breaks_rewriting("replaced-live")
def it_names_more_runs(life: list[Entry]) -> list[Entry]:
    return edit(life, replaced(life, 2), old_run_counts=(2,))


@breaks_rewriting("replaced-live")
def a_merge_loses_a_record(life: list[Entry]) -> list[Entry]:
    return edit(life, replaced(life, 0), record_counts=(5,))


@breaks_rewriting("replaced-live")
def a_compaction_adds_a_record(life: list[Entry]) -> list[Entry]:
    """Compact the records that a first compaction left, and have one more than it left."""
    again: Any = life[replaced(life, 1)].value
    more = changed(again, object_id=again.object_id + 1, old_run_counts=(2,), record_counts=(3, 3))
    return [*life, Entry(more)]


@breaks_rewriting("replaced-live")
def its_range_cuts_a_run(life: list[Entry]) -> list[Entry]:
    return edit(life, replaced(life, 2), first_offsets=(10,))


@breaks_rewriting("replaced-live")
def its_range_is_not_written_yet(life: list[Entry]) -> list[Entry]:
    index = replaced(life, 2)
    late: Any = life[index].value
    ends = {"first_offsets": (20,), "end_offsets": (23,), "last_offsets": (22,)}
    return edit(life, index, **ends, old_run_counts=late.old_run_counts)


@breaks_rewriting("replaced-live")
def its_runs_were_replaced_before(life: list[Entry]) -> list[Entry]:
    again: Any = life[replaced(life, 0)].value
    return [*life, Entry(again)]


@breaks_rewriting("replacement-tiles")
def the_new_runs_end_early(life: list[Entry]) -> list[Entry]:
    return edit(life, replaced(life, 2), last_offsets=(10,))


@breaks_rewriting("replacement-tiles")
def a_new_run_lies_outside(life: list[Entry]) -> list[Entry]:
    return edit(life, replaced(life, 2), byte_offsets=(999,))


@breaks_rewriting("empty-runs-deleted")
def an_empty_batch_stands_for_live_records(life: list[Entry]) -> list[Entry]:
    index = at(life, RunsReplacedRecord, first_offsets=(9,))
    return edit(life, index, byte_sizes=(HEADER_SIZE_BYTES,))


@breaks_rewriting("replacement-leased")
def the_lease_is_over(life: list[Entry]) -> list[Entry]:
    given: Any = life[at(life, RewriteLeaseGrantedRecord)].value
    closed = LeaseClosedRecord(
        lease_id=given.lease_id, closed_at_ms=0,
        end_object_id=given.first_object_id + given.object_count, reason=0,
    )  # fmt: skip
    return insert(life, replaced(life, 2), closed)


@breaks_rewriting("replacement-leased")
def the_lease_is_of_appends(life: list[Entry]) -> list[Entry]:
    granted: Any = life[at(life, LeaseGrantedRecord)].value
    last = granted.first_object_id + granted.object_count - 1
    fields = {"lease_id": granted.lease_id, "object_id": last}
    return edit(life, replaced(life, 2), **fields)


@breaks_rewriting("replacement-leased")
def the_object_is_closed(life: list[Entry]) -> list[Entry]:
    return edit(life, replaced(life, 1), closes_object=1)


@breaks_rewriting("replacement-leased")
def the_object_was_called_safe_to_delete(life: list[Entry]) -> list[Entry]:
    fence = DeleteFenceRecord(object_ids=ids_of(life)[1:], fenced_at_ms=0)
    return insert(life, replaced(life, 2), fence)


@breaks_rewriting("flags-cleaned")
def above_a_gap_in_the_round(life: list[Entry]) -> list[Entry]:
    return edit(life, replaced(life, 2), flags=(2,))


@breaks_rewriting("open-unmarked")
def an_open_object_is_marked(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(ObjectsMarkedRecord(object_ids=ids_of(life)[:1], marked_at_ms=1))]


@breaks_rewriting("marked-unused")
def a_rewritten_object_is_marked(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(ObjectsMarkedRecord(object_ids=ids_of(life)[1:], marked_at_ms=1))]
