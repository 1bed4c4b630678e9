"""Each rule finds what breaks it, and no other rule says anything: one plant for every rule.

The plants are records, batches, checkpoints of a life that is otherwise legal. Those about objects
in a store are in `test_audit_store`, those about the cluster's log in `test_audit_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace as _replace

from raft.segments.segment import segment_name
from records.batch import iter_batches
from records.diskless import (
    ControllerEpochRecord,
    DeleteFenceRecord,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTopicState,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeaseState,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    ObjectsState,
    ProducersExpiredRecord,
    ProducersState,
    RunsState,
)
from records.frame import encode_record
from records.schema import MetadataRecord
from spark_jobs.audit import audit
from spark_jobs.audit_one_log import Asked
from spark_jobs.engines import LocalEngine
from spark_jobs.logs import LogsError
from tests.coordinator.actors import OTHER_TOPIC, TOPIC
from tests.spark.audit_world import (
    COORDINATOR,
    THIRD_TOPIC,
    DirectoryLogs,
    Entry,
    Unknown,
    a_life,
    audited,
    checkpoint_at,
    complaints,
    told,
    write_checkpoint,
    write_entries,
)

changed: Final[Any] = _replace  # of any record

Plant = Callable[[list[Entry]], list[Entry]]

PLANTS: Final[dict[str, list[Plant]]] = {}
IN_CHECKPOINTS: Final[dict[str, list[Callable[[list[Any]], list[Any]]]]] = {}


@cache
def the_life() -> tuple[Entry, ...]:
    return tuple(a_life())


def breaks(name: str) -> Callable[[Plant], Plant]:
    def declare(plant: Plant) -> Plant:
        PLANTS.setdefault(name, []).append(plant)
        return plant

    return declare


def in_checkpoint(name: str) -> Callable[[Any], Any]:
    def declare(plant: Any) -> Any:
        IN_CHECKPOINTS.setdefault(name, []).append(plant)
        return plant

    return declare


def at(entries: Sequence[Entry], cls: type, **fields: Any) -> int:
    """The first record of a type with these values."""
    for index, entry in enumerate(entries):
        value = entry.value
        if isinstance(value, cls) and all(getattr(value, k) == v for k, v in fields.items()):
            return index
    raise AssertionError(f"there is no {cls.__name__} with {fields}")


def edit(entries: list[Entry], index: int, **fields: Any) -> list[Entry]:
    """With one record changed."""
    record: Any = entries[index].value
    entries[index] = replace(entries[index], value=changed(record, **fields))
    return entries


def insert(entries: list[Entry], index: int, record: MetadataRecord) -> list[Entry]:
    """With one more record, of the epoch of the one before it."""
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
    """What the first one of a partition is held to."""
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
    """One more commit at the end, of producer 7: it has stored sequences 0 and 1 of epoch 1."""
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


@pytest.mark.parametrize("per_segment", [None, 1, 7], ids=["in one", "one by one", "in pieces"])
@pytest.mark.parametrize(
    ("name", "plant"), [(name, plant) for name, plants in PLANTS.items() for plant in plants]
)
def test_what_breaks_a_rule_is_found_by_that_rule_alone(
    name: str, plant: Plant, per_segment: int | None, tmp_path: Path
) -> None:
    """However the log is cut into the pieces that are judged by themselves."""
    write_entries(tmp_path, plant(list(the_life())), per_segment)
    report = audited(tmp_path)
    expected = {name}
    if name == "log-offsets-gapless" and per_segment == 1:
        expected |= {"log-readable"}  # a file ends where the next one does not begin
    assert set(told(report)) == expected, complaints(report)
    first = report.findings.first(name)
    assert first.log == COORDINATOR
    assert first.offset is not None


def test_the_life_itself_is_clean(tmp_path: Path) -> None:
    end = write_entries(tmp_path, the_life())
    report = audited(tmp_path)
    assert not told(report), complaints(report)
    assert report.logs[0].end_offset == end
    assert report.logs[0].types[1104, 0] > 10


def test_a_byte_of_the_log_is_wrong(tmp_path: Path) -> None:
    """What is before it is judged, what is behind it is not, and the report says so."""
    write_entries(tmp_path, the_life())
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    report = audited(tmp_path)
    assert set(told(report)) == {"log-readable"}, complaints(report)
    assert "can be judged" in report.unchecked[COORDINATOR]


# --- checkpoints --------------------------------------------------------------------------------


def within(records: list[Any], cls: type, **fields: Any) -> int:
    return next(
        i for i, one in enumerate(records)
        if isinstance(one, cls) and all(getattr(one, k) == v for k, v in fields.items())
    )  # fmt: skip


def column(values: Sequence[int], index: int, change: int) -> tuple[int, ...]:
    found = list(values)
    found[index] += change
    return tuple(found)


@in_checkpoint("checkpoint-used-bytes")
def _(records: list[Any]) -> list[Any]:
    index = within(records, ObjectsState)
    used = column(records[index].used_bytes, 0, 1)
    records[index] = changed(records[index], used_bytes=used)
    return records


@in_checkpoint("checkpoint-objects-replay")
def _(records: list[Any]) -> list[Any]:
    index = within(records, ObjectsState)
    brokers = column(records[index].broker_ids, 0, 1)
    records[index] = changed(records[index], broker_ids=brokers)
    return records


@in_checkpoint("checkpoint-runs-replay")
def _(records: list[Any]) -> list[Any]:
    index = within(records, RunsState)
    times = column(records[index].max_timestamps, 0, 1)
    records[index] = changed(records[index], max_timestamps=times)
    return records


@in_checkpoint("checkpoint-topics-replay")
def _(records: list[Any]) -> list[Any]:
    index = within(records, DisklessTopicState)
    records[index] = changed(records[index], topic_name="another")
    return records


@in_checkpoint("checkpoint-producers-replay")
def _(records: list[Any]) -> list[Any]:
    index = within(records, ProducersState)
    times = column(records[index].appended_at_ms, 0, 1)
    records[index] = changed(records[index], appended_at_ms=times)
    return records


@in_checkpoint("checkpoint-leases-replay")
def _(records: list[Any]) -> list[Any]:
    index = within(records, LeaseState)
    last = records[index].last_committed_id + 1
    records[index] = changed(records[index], last_committed_id=last)
    return records


@pytest.mark.parametrize(
    ("name", "plant"),
    [(name, plant) for name, plants in IN_CHECKPOINTS.items() for plant in plants],
)
@pytest.mark.parametrize("offset", [18, 42])
def test_what_is_wrong_in_a_checkpoint_is_found(
    name: str, plant: Any, offset: int, tmp_path: Path
) -> None:
    write_entries(tmp_path, the_life())
    records = plant(checkpoint_at(the_life(), offset))
    write_checkpoint(tmp_path, offset, [encode_record(record) for record in records])
    report = audited(tmp_path)
    names = name.split()
    assert set(told(report)) == set(names), complaints(report)
    assert report.findings.first(names[0]).log.startswith(f"{COORDINATOR}/000000")


UNSOUND: Final[list[tuple[str, type, dict[str, int]]]] = [
    ("checkpoint-used-bytes", ObjectsState, {"used_bytes": 1}),
    ("checkpoint-runs-contiguous", DisklessTopicState, {"high_watermarks": 1}),
    ("checkpoint-runs-contiguous", RunsState, {"base_offset": 1}),
    ("checkpoint-log-starts", DisklessTopicState, {"log_start_offsets": 1_000}),
    ("checkpoint-marked-unused", ObjectsState, {"marked_at_ms": 1_000}),
    ("checkpoint-objects-known", ObjectsState, {"sizes_bytes": -950}),
]


@pytest.mark.parametrize(("name", "cls", "fields"), UNSOUND)
def test_a_checkpoint_is_sound_by_itself(
    name: str, cls: type, fields: dict[str, int], tmp_path: Path
) -> None:
    """With no log before it to compare it with, each is found all the same."""
    records = checkpoint_at(the_life(), 42)
    index = within(records, cls)
    (field, change) = next(iter(fields.items()))
    before = getattr(records[index], field)
    after = before + change if isinstance(before, int) else column(before, 0, change)
    records[index] = changed(records[index], **{field: after})
    write_checkpoint(tmp_path, 42, [encode_record(record) for record in records])
    (tmp_path / segment_name(42)).touch()
    report = audited(tmp_path)
    assert set(told(report)) == {name}, complaints(report)


def test_a_damaged_checkpoint_is_a_finding(tmp_path: Path) -> None:
    write_entries(tmp_path, the_life())
    write_checkpoint(tmp_path, 42, [encode_record(r) for r in checkpoint_at(the_life(), 42)])
    (path,) = tmp_path.glob("*.checkpoint")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    assert set(told(audited(tmp_path))) == {"checkpoint-readable"}
    (tmp_path / segment_name(0)).rename(tmp_path / segment_name(42))
    (tmp_path / segment_name(42)).write_bytes(b"")
    report = audited(tmp_path)
    assert set(told(report)) == {"log-readable", "checkpoint-readable"}, complaints(report)
    assert "damaged" in report.unchecked[COORDINATOR]


def test_replicas_that_differ_are_found(tmp_path: Path) -> None:
    """In one record's bytes; the batch is named."""
    one, other = tmp_path / "one", tmp_path / "other"
    write_entries(one, the_life())
    life = list(the_life())
    write_entries(other, edit_commit(life, 60, max_timestamps=(5, 6)))
    logs = DirectoryLogs({COORDINATOR: other})
    report = audited(one, asked=Asked(replicas=(("node 2", logs),), name="node 1"))
    assert told(report) == {"replicas-agree": 1}, complaints(report)
    assert report.findings.first("replicas-agree").offset == at(
        life, ObjectCommitRecord, object_id=60
    )
    same = Asked(replicas=(("node 2", DirectoryLogs({COORDINATOR: one})),))
    assert not told(audited(one, asked=same))


def test_a_log_whose_head_is_cut_off_meanwhile_is_audited_again(tmp_path: Path) -> None:
    """That is nobody's mistake, and no finding."""
    write_entries(tmp_path, the_life(), 7)
    logs = DirectoryLogs({COORDINATOR: tmp_path})

    class Cutting(LocalEngine):
        def run(self, *given: Any, **named: Any) -> Any:
            if (tmp_path / segment_name(0)).exists():
                (tmp_path / segment_name(0)).unlink()
                values = [encode_record(record) for record in checkpoint_at(the_life(), 14)]
                write_checkpoint(tmp_path, 14, values)
            return super().run(*given, **named)

    with pytest.raises(LogsError, match="audit again"):
        audit(logs, Cutting())
    report = audit(logs, LocalEngine())
    assert not told(report), complaints(report)
    assert report.logs[0].start_offset == 14


def test_a_damaged_replica_is_a_finding_of_its_own(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        write_entries(directory, the_life())
    path = other / segment_name(0)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    for first, second in ((one, other), (other, one)):
        replicas = (("node 2", DirectoryLogs({COORDINATOR: second}, {COORDINATOR: 42})),)
        logs = DirectoryLogs({COORDINATOR: first}, {COORDINATOR: 42})
        report = audit(logs, LocalEngine(), Asked(replicas=replicas))
        assert told(report) == {"log-readable": 1}, complaints(report)
        assert any("replicas-agree" in name for name in report.unchecked)


def test_replicas_are_compared_where_both_have_the_log(tmp_path: Path) -> None:
    """One lags, and one has lost its head to a checkpoint."""
    one, other = tmp_path / "one", tmp_path / "other"
    end = write_entries(one, the_life())
    write_entries(other, the_life()[:30])
    logs = DirectoryLogs({COORDINATOR: other}, {COORDINATOR: 28})
    assert not told(audited(one, asked=Asked(replicas=(("node 2", logs),))))
    offset = 20
    whole = (one / segment_name(0)).read_bytes()
    start = next(
        batch.position for batch in iter_batches(whole) if batch.header.base_offset == offset
    )
    (one / segment_name(offset)).write_bytes(whole[start:])
    (one / segment_name(0)).unlink()
    values = [encode_record(record) for record in checkpoint_at(the_life(), offset)]
    write_checkpoint(one, offset, values)
    report = audited(one, asked=Asked(replicas=(("node 2", logs),)))
    assert not told(report), complaints(report)
    assert (report.logs[0].start_offset, report.logs[0].end_offset) == (offset, end)


def test_one_partition_at_two_coordinators(tmp_path: Path) -> None:
    names = [COORDINATOR, "__diskless-metadata-1"]
    for name in names:
        write_entries(tmp_path / name, the_life())
    logs = DirectoryLogs({name: tmp_path / name for name in names})
    report = audit(logs, LocalEngine())
    assert set(told(report)) == {"one-coordinator"}, complaints(report)


def test_what_no_code_knows_is_counted_and_told(tmp_path: Path) -> None:
    """A record of a later version of Esker: no violation, and no silence."""
    unknown = Unknown(b"\x01\xd0\x0f\x00later")  # frame 1, type 2000, version 0
    write_entries(tmp_path, [*the_life(), Entry(unknown, 2)])
    report = audited(tmp_path)
    assert not told(report), complaints(report)
    assert report.logs[0].unknown == {(2000, 0): len(the_life())}


def test_nothing_is_not_clean() -> None:
    with pytest.raises(LogsError, match="no log to audit"):
        audit(DirectoryLogs({}), LocalEngine())


NOTHING: Final = ProducersExpiredRecord(log_ids=(), producer_ids=())


def test_no_record_can_be_left_out_unseen(tmp_path: Path) -> None:
    """Whichever it is, the records behind it or the last checkpoint contradict; but for a fence,
    which forbids what never came.
    """
    life = list(the_life())
    values = [encode_record(record) for record in checkpoint_at(life, len(life))]
    unseen = []
    for index, entry in enumerate(life):
        directory = tmp_path / str(index)
        changed_one = [*life[:index], replace(entry, value=NOTHING), *life[index + 1 :]]
        write_entries(directory, changed_one)
        write_checkpoint(directory, len(life), values)
        if not told(audited(directory)):
            unseen.append(type(entry.value).__name__)
    assert unseen == ["DeleteFenceRecord"]


def test_no_commit_can_stand_twice_unseen(tmp_path: Path) -> None:
    life = list(the_life())
    for index, entry in enumerate(life):
        if isinstance(entry.value, ObjectCommitRecord):
            directory = tmp_path / str(index)
            write_entries(directory, [*life[: index + 1], entry, *life[index + 1 :]])
            assert "object-ids-rise" in told(audited(directory))
