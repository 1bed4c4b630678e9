"""Each rule finds what breaks it, and no other rule says anything: one plant for every rule.

The plants are records and batches (`audit_plants`), checkpoints (here) of a life that is otherwise
legal. Those about objects in a store are in `test_audit_store`, those about the cluster's log in
`test_audit_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from raft.segments.segment import segment_name
from records.batch import iter_batches
from records.diskless import (
    CleaningState,
    CoordinatorState,
    DisklessBrokerState,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessTopicState,
    KeptAnswerState,
    LeaseState,
    ObjectCommitRecord,
    ObjectsState,
    ProducersExpiredRecord,
    ProducersState,
    RunsState,
)
from records.frame import encode_record
from spark_jobs.audit.job import audit
from spark_jobs.audit.one_log import AuditRequest
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.logs import LogsError
from tests.coordinator.batch.actors import TOPIC
from tests.spark_jobs.audit_plants import (
    PLANTS,
    REWRITING_PLANTS,
    Plant,
    at,
    changed,
    edit_commit,
    the_history,
    the_rewritten_history,
)
from tests.spark_jobs.audit_world import (
    COORDINATOR,
    DirectoryLogs,
    Entry,
    Unknown,
    audit_directory,
    broken_rules,
    checkpoint_at,
    describe_findings,
    write_checkpoint,
    write_entries,
)


@pytest.mark.parametrize("per_segment", [None, 1, 7], ids=["in one", "one by one", "in pieces"])
@pytest.mark.parametrize(
    ("name", "plant"), [(name, plant) for name, plants in PLANTS.items() for plant in plants]
)
def test_each_fault_in_a_coordinator_log_breaks_only_its_own_audit_rule(
    name: str, plant: Plant, per_segment: int | None, tmp_path: Path
) -> None:
    """The result does not depend on how the log is cut into spans."""
    write_entries(tmp_path, plant(list(the_history())), per_segment)
    report = audit_directory(tmp_path)
    if name == "log-offsets-gapless" and per_segment == 1:
        name = "log-readable"  # a file ends where the next one does not begin
    assert set(broken_rules(report)) == {name}, describe_findings(report)
    first = report.findings.first(name)
    assert first.log == COORDINATOR
    assert first.offset is not None


def test_an_audit_of_a_coordinator_history_without_an_injected_fault_finds_no_violation(
    tmp_path: Path,
) -> None:
    end = write_entries(tmp_path, the_history())
    report = audit_directory(tmp_path)
    assert not broken_rules(report), describe_findings(report)
    assert report.logs[0].end_offset == end
    assert report.logs[0].types[1104, 0] > 10


@pytest.mark.parametrize("per_segment", [None, 1], ids=["in one", "one by one"])
@pytest.mark.parametrize(
    ("name", "plant"),
    [(name, plant) for name, plants in REWRITING_PLANTS.items() for plant in plants],
)
def test_each_fault_in_replaced_runs_breaks_only_its_own_rule(
    name: str, plant: Plant, per_segment: int | None, tmp_path: Path
) -> None:
    write_entries(tmp_path, plant(list(the_rewritten_history())), per_segment)
    report = audit_directory(tmp_path)
    assert set(broken_rules(report)) == {name}, describe_findings(report)


@pytest.mark.parametrize(
    ("name", "cls", "column_name"),
    [
        (None, None, ""),
        ("checkpoint-cleaning-replay", CleaningState, "cleaned_until"),
        ("checkpoint-runs-replay", RunsState, "record_counts"),
    ],
)
def test_the_audit_compares_replaced_runs_with_a_checkpoint(
    name: str | None, cls: type | None, column_name: str, tmp_path: Path
) -> None:
    life = the_rewritten_history()
    end = write_entries(tmp_path, life)
    records = checkpoint_at(life, end)
    if cls is not None:
        index = within(records, cls)
        values = column(getattr(records[index], column_name), 0, -1)
        records[index] = changed(records[index], **{column_name: values})
    write_checkpoint(tmp_path, end, [encode_record(record) for record in records])
    report = audit_directory(tmp_path)
    assert set(broken_rules(report)) == ({name} if name else set()), describe_findings(report)
    assert not [why for why in report.unchecked if COORDINATOR in why]


def test_the_audit_checks_a_damaged_log_up_to_the_damage(tmp_path: Path) -> None:
    """Batches before the damage are checked, the rest is not, and the report says so."""
    faulty = PLANTS["bytes-disjoint"][0]
    write_entries(tmp_path, faulty(list(the_history())))
    (rule,) = broken_rules(audit_directory(tmp_path))
    flip_in_batch(tmp_path / segment_name(0), -1)
    report = audit_directory(tmp_path)
    assert broken_rules(report) == {"log-readable": 1, rule: 1}, describe_findings(report)
    damaged_at = report.logs[0].end_offset - 1
    assert report.findings.first("log-readable").offset == damaged_at
    assert report.unchecked[COORDINATOR] == f"nothing from offset {damaged_at} on can be judged"


def test_the_audit_reports_damage_once_and_goes_on_behind_it_with_the_batches(
    tmp_path: Path,
) -> None:
    write_entries(tmp_path, the_history(), 7)
    flip_in_batch(tmp_path / segment_name(7), 3)
    report = audit_directory(tmp_path)
    assert broken_rules(report) == {"log-readable": 1}, describe_findings(report)
    assert report.findings.first("log-readable").offset == 10


def flip_in_batch(path: Path, index: int) -> None:
    """Flip a bit in the last byte of a segment's batch."""
    data = bytearray(path.read_bytes())
    batches = list(iter_batches(bytes(data)))
    batch = batches[index]
    data[batch.position + batch.header.size_bytes - 1] ^= 1
    path.write_bytes(data)


# --- checkpoints --------------------------------------------------------------------------------

IN_CHECKPOINTS: Final[dict[str, list[Callable[[list[Any]], list[Any]]]]] = {}


def in_checkpoint(name: str) -> Callable[[Any], Any]:
    def declare(plant: Any) -> Any:
        IN_CHECKPOINTS.setdefault(name, []).append(plant)
        return plant

    return declare


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


@in_checkpoint("checkpoint-leases-replay")
def dead_ids_are_left_out(records: list[Any]) -> list[Any]:
    """Leave dead ids out of a checkpoint; a late commit of one would be accepted."""
    index = within(records, LeaseState)
    lease = records[index]
    field = "skipped" if lease.skipped else "fenced" if lease.fenced else "orphans"
    value = () if getattr(lease, field) else (lease.first_object_id, lease.first_object_id + 1)
    records[index] = changed(lease, **{field: value})
    return records


@in_checkpoint("checkpoint-counters-replay")
def an_id_is_given_twice(records: list[Any]) -> list[Any]:
    index = within(records, CoordinatorState)
    records[index] = changed(records[index], next_object_id=records[index].next_object_id - 1)
    return records


@in_checkpoint("checkpoint-counters-replay")
def an_old_controller_may_call(records: list[Any]) -> list[Any]:
    index = within(records, CoordinatorState)
    records[index] = changed(records[index], controller_epoch=0)
    return records


@in_checkpoint("checkpoint-answers-replay")
def an_answer_is_not_kept(records: list[Any]) -> list[Any]:
    """Leave a kept answer out of a checkpoint; a retry would be refused as too late."""
    del records[within(records, KeptAnswerState)]
    return records


@in_checkpoint("checkpoint-answers-replay")
def an_answer_has_another_offset(records: list[Any]) -> list[Any]:
    index = within(records, KeptAnswerState)
    bases = column(records[index].base_offsets, 0, 1)
    records[index] = changed(records[index], base_offsets=bases)
    return records


@in_checkpoint("checkpoint-answers-replay")
def an_answer_has_another_log_start(records: list[Any]) -> list[Any]:
    index = within(records, KeptAnswerState)
    starts = column(records[index].log_start_offsets, 0, 1)
    records[index] = changed(records[index], log_start_offsets=starts)
    return records


@in_checkpoint("checkpoint-answers-replay")
def an_answer_is_of_another_partition(records: list[Any]) -> list[Any]:
    index = within(records, KeptAnswerState)
    partitions = column(records[index].partitions, 0, 1)
    records[index] = changed(records[index], partitions=partitions)
    return records


@in_checkpoint("checkpoint-answers-replay")
def an_old_epoch_gets_a_lease(records: list[Any]) -> list[Any]:
    index = within(records, DisklessBrokerState)
    records[index] = changed(records[index], broker_epoch=records[index].broker_epoch - 1)
    return records


@in_checkpoint("checkpoint-answers-replay")
def answers_are_forgotten_in_another_order(records: list[Any]) -> list[Any]:
    index = next(i for i, r in enumerate(records)
                 if isinstance(r, DisklessBrokerState) and len(r.answered) > 1)  # fmt: skip
    records[index] = changed(records[index], answered=records[index].answered[::-1])
    return records


@pytest.mark.parametrize(
    ("name", "plant"),
    [(name, plant) for name, plants in IN_CHECKPOINTS.items() for plant in plants],
)
@pytest.mark.parametrize("offset", [18, 42])
def test_each_fault_in_a_coordinator_checkpoint_breaks_only_its_audit_rules(
    name: str, plant: Any, offset: int, tmp_path: Path
) -> None:
    write_entries(tmp_path, the_history())
    records = plant(checkpoint_at(the_history(), offset))
    write_checkpoint(tmp_path, offset, [encode_record(record) for record in records])
    report = audit_directory(tmp_path)
    names = name.split()
    assert set(broken_rules(report)) == set(names), describe_findings(report)
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
def test_the_audit_finds_an_inconsistent_checkpoint_without_a_log_to_compare(
    name: str, cls: type, fields: dict[str, int], tmp_path: Path
) -> None:
    """The faults are found without a log before the checkpoint to compare it with."""
    records = checkpoint_at(the_history(), 42)
    index = within(records, cls)
    (field, change) = next(iter(fields.items()))
    before = getattr(records[index], field)
    after = before + change if isinstance(before, int) else column(before, 0, change)
    records[index] = changed(records[index], **{field: after})
    write_checkpoint(tmp_path, 42, [encode_record(record) for record in records])
    (tmp_path / segment_name(42)).touch()
    report = audit_directory(tmp_path)
    assert set(broken_rules(report)) == {name}, describe_findings(report)


def test_the_audit_reports_a_damaged_checkpoint_as_a_violation(tmp_path: Path) -> None:
    write_entries(tmp_path, the_history())
    write_checkpoint(tmp_path, 42, [encode_record(r) for r in checkpoint_at(the_history(), 42)])
    (path,) = tmp_path.glob("*.checkpoint")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    assert set(broken_rules(audit_directory(tmp_path))) == {"checkpoint-readable"}
    (tmp_path / segment_name(0)).rename(tmp_path / segment_name(42))
    (tmp_path / segment_name(42)).write_bytes(b"")
    report = audit_directory(tmp_path)
    assert set(broken_rules(report)) == {"log-readable", "checkpoint-readable"}, describe_findings(
        report
    )
    assert "damaged" in report.unchecked[COORDINATOR]


def test_the_audit_reports_replicas_with_different_records_as_a_violation(tmp_path: Path) -> None:
    """One record's bytes differ; the violation names the batch."""
    one, other = tmp_path / "one", tmp_path / "other"
    write_entries(one, the_history())
    life = list(the_history())
    write_entries(other, edit_commit(life, 60, max_timestamps=(5, 6)))
    logs = DirectoryLogs({COORDINATOR: other})
    report = audit_directory(
        one, audit_request=AuditRequest(replicas=(("node 2", logs),), name="node 1")
    )
    assert broken_rules(report) == {"replicas-agree": 1}, describe_findings(report)
    assert report.findings.first("replicas-agree").offset == at(
        life, ObjectCommitRecord, object_id=60
    )
    same = AuditRequest(replicas=(("node 2", DirectoryLogs({COORDINATOR: one})),))
    assert not broken_rules(audit_directory(one, audit_request=same))


def test_the_audit_of_a_log_that_is_shortened_meanwhile_asks_for_another_audit(
    tmp_path: Path,
) -> None:
    """A log that is cut while it is read is not a violation."""
    write_entries(tmp_path, the_history(), 7)
    logs = DirectoryLogs({COORDINATOR: tmp_path})

    class Cutting(LocalEngine):
        def run(self, *given: Any, **named: Any) -> Any:
            if (tmp_path / segment_name(0)).exists():
                (tmp_path / segment_name(0)).unlink()
                values = [encode_record(record) for record in checkpoint_at(the_history(), 14)]
                write_checkpoint(tmp_path, 14, values)
            return super().run(*given, **named)

    with pytest.raises(LogsError, match="audit again"):
        audit(logs, Cutting())
    report = audit(logs, LocalEngine())
    assert not broken_rules(report), describe_findings(report)
    assert report.logs[0].start_offset == 14


def test_the_audit_accepts_another_release_of_a_partition_that_a_checkpoint_has_no_more(
    tmp_path: Path,
) -> None:
    first = DisklessPartitionsRecord(
        topic_id=TOPIC, topic_name="t", first_partition=0, partition_count=2, first_log_id=0,
        controller_epoch=1,
    )  # fmt: skip
    gone = DisklessPartitionsReleasedRecord(topic_id=TOPIC, partitions=(1,), controller_epoch=1)
    life = [Entry(1), Entry(first), Entry(gone)]
    write_checkpoint(tmp_path, 3, [encode_record(record) for record in checkpoint_at(life, 3)])
    write_entries(tmp_path, [Entry(changed(gone, controller_epoch=2), gap=3)])
    report = audit_directory(tmp_path)
    assert not broken_rules(report), describe_findings(report)


def test_the_audit_reports_a_damaged_replica_as_unreadable(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        write_entries(directory, the_history())
    path = other / segment_name(0)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    for first, second in ((one, other), (other, one)):
        replicas = (("node 2", DirectoryLogs({COORDINATOR: second}, {COORDINATOR: 42})),)
        logs = DirectoryLogs({COORDINATOR: first}, {COORDINATOR: 42})
        report = audit(logs, LocalEngine(), AuditRequest(replicas=replicas))
        assert broken_rules(report) == {"log-readable": 1}, describe_findings(report)
        assert any("replicas-agree" in name for name in report.unchecked)


def test_the_audit_compares_replicas_over_their_common_offsets(tmp_path: Path) -> None:
    """One replica lags, and one begins with a checkpoint."""
    one, other = tmp_path / "one", tmp_path / "other"
    end = write_entries(one, the_history())
    write_entries(other, the_history()[:30])
    logs = DirectoryLogs({COORDINATOR: other}, {COORDINATOR: 28})
    assert not broken_rules(
        audit_directory(one, audit_request=AuditRequest(replicas=(("node 2", logs),)))
    )
    offset = 20
    whole = (one / segment_name(0)).read_bytes()
    start = next(
        batch.position for batch in iter_batches(whole) if batch.header.base_offset == offset
    )
    (one / segment_name(offset)).write_bytes(whole[start:])
    (one / segment_name(0)).unlink()
    values = [encode_record(record) for record in checkpoint_at(the_history(), offset)]
    write_checkpoint(one, offset, values)
    report = audit_directory(one, audit_request=AuditRequest(replicas=(("node 2", logs),)))
    assert not broken_rules(report), describe_findings(report)
    assert (report.logs[0].start_offset, report.logs[0].end_offset) == (offset, end)


def test_the_audit_reports_a_partition_with_batches_at_two_coordinators_as_a_violation(
    tmp_path: Path,
) -> None:
    names = [COORDINATOR, "__diskless-metadata-1"]
    for name in names:
        write_entries(tmp_path / name, the_history())
    logs = DirectoryLogs({name: tmp_path / name for name in names})
    report = audit(logs, LocalEngine())
    assert set(broken_rules(report)) == {"one-coordinator"}, describe_findings(report)


def test_the_audit_counts_and_reports_unknown_record_types(tmp_path: Path) -> None:
    """A record type of a later release is no violation, but is reported."""
    unknown = Unknown(b"\x01\xd0\x0f\x00later")  # frame 1, type 2000, version 0
    write_entries(tmp_path, [*the_history(), Entry(unknown, 2)])
    report = audit_directory(tmp_path)
    assert not broken_rules(report), describe_findings(report)
    assert report.logs[0].unknown == {(2000, 0): len(the_history())}


def test_an_audit_of_a_source_without_logs_raises_an_error() -> None:
    with pytest.raises(LogsError, match="no log to audit"):
        audit(DirectoryLogs({}), LocalEngine())


NOTHING: Final = ProducersExpiredRecord(log_ids=(), producer_ids=())


def test_the_audit_reports_a_log_that_lacks_any_record_as_a_violation(tmp_path: Path) -> None:
    """The records behind it or the last checkpoint contradict; only a fence can be left out,
    because it forbids a commit that never came.
    """
    life = list(the_history())
    values = [encode_record(record) for record in checkpoint_at(life, len(life))]
    unseen = []
    for index, entry in enumerate(life):
        directory = tmp_path / str(index)
        changed_one = [*life[:index], replace(entry, value=NOTHING), *life[index + 1 :]]
        write_entries(directory, changed_one)
        write_checkpoint(directory, len(life), values)
        if not broken_rules(audit_directory(directory)):
            unseen.append(type(entry.value).__name__)
    assert unseen == ["DeleteFenceRecord"]


def test_the_audit_reports_a_log_that_repeats_any_commit_as_a_violation(tmp_path: Path) -> None:
    life = list(the_history())
    for index, entry in enumerate(life):
        if isinstance(entry.value, ObjectCommitRecord):
            directory = tmp_path / str(index)
            write_entries(directory, [*life[: index + 1], entry, *life[index + 1 :]])
            assert "object-ids-rise" in broken_rules(audit_directory(directory))
