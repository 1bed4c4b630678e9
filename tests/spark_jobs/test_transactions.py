"""Runs every job on coordinators' logs with transactions: open, committed, aborted, fenced.

Source: docs/design/transactions-batches.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from coordinator.batch.memory import InMemoryState
from raft.segments.segment import segment_name
from records.diskless import (
    AbortedState,
    ObjectCommitRecord,
    ProducersExpiredRecord,
    ProducersState,
    RunsReplacedRecord,
    RunsState,
    TransactionMarkersRecord,
)
from records.frame import encode_record
from records.transactions import TransactionPartitionsRecord, TransactionStateRecord
from records.uuids import encode_uuid
from spark_jobs.audit.job import audit
from spark_jobs.audit.one_log import AuditRequest
from spark_jobs.audit.transaction_log import TRANSACTION_LOG
from spark_jobs.orphans.known_objects import Kind, known_objects_of
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.logs import CLUSTER_METADATA
from spark_jobs.report.cube import LocalReportEngine
from spark_jobs.report.job import Question, make_report
from spark_jobs.report.page import page
from spark_jobs.report.summary import summarise
from spark_jobs.retention.digest_cache import DigestCache
from spark_jobs.retention.sweep import make_plan
from spark_jobs.tables.arrow_batches import read_table
from spark_jobs.tables.coordinator_log import CHANGE_KEYS, CoordinatorLog, fold
from spark_jobs.tables.log_state import state_at, state_of_piece
from spark_jobs.tables.topics import TopicSettings
from spark_jobs.tables.views import can_hold
from tests.coordinator.batch.actors import TOPIC
from tests.coordinator.batch.subjects import START_MS
from tests.examples import seeds
from tests.spark_jobs.audit_plants import Plant, changed, edit
from tests.spark_jobs.audit_world import (
    COORDINATOR,
    DirectoryLogs,
    Entry,
    audit_directory,
    broken_rules,
    checkpoint_at,
    describe_findings,
    write_checkpoint,
    write_entries,
)
from tests.spark_jobs.plans import Worlds, naive_effect, naive_rows
from tests.spark_jobs.test_audit_rules import column, within
from tests.spark_jobs.test_state import as_rows, expected
from tests.spark_jobs.transactions_world import (
    a_random_transactional_history,
    the_transactional_history,
)


def oracle(entries: list[Entry], offset: int) -> InMemoryState:
    """Return the coordinator's own state after the first `offset` entries."""
    state = InMemoryState()
    for at, entry in enumerate(entries[:offset]):
        if not isinstance(entry.value, int):
            state.apply(at, entry.value)
    return state


def histories(tmp_path: Path, seed: int) -> list[Entry]:
    """Return the history with every case for seed -1, and random ones for the others."""
    if seed < 0:
        return list(the_transactional_history())
    return a_random_transactional_history(tmp_path, seed)


def test_known_objects_are_read_from_commits_of_transactional_batches(tmp_path: Path) -> None:
    entries = list(the_transactional_history())
    end = write_entries(tmp_path, entries)
    known = known_objects_of(LogFiles(tmp_path).spans(end), end, coordinator=0)
    objects = oracle(entries, end).objects
    kinds = [Kind.LIVE if one.marked_at_ms < 0 else Kind.MARKED for one in objects.values()]
    assert known.classify(np.array(list(objects))).tolist() == kinds


@pytest.mark.parametrize("seed", [-1, *seeds(3)])
def test_the_state_of_a_log_with_transactions_equals_the_coordinators(
    tmp_path: Path, seed: int
) -> None:
    entries = histories(tmp_path, seed)
    end = write_entries(tmp_path, entries)
    assert as_rows(state_at(LogFiles(tmp_path))) == expected(oracle(entries, end))
    middle = end // 2
    write_checkpoint(tmp_path, middle, [encode_record(r) for r in checkpoint_at(entries, middle)])
    for path in tmp_path.glob("*.log"):
        path.unlink()
    write_entries(tmp_path, [replace(entries[middle], gap=middle), *entries[middle + 1 :]])
    assert as_rows(state_at(LogFiles(tmp_path))) == expected(oracle(entries, end))


def test_each_piece_of_a_log_with_transactions_has_its_own_runs_and_markers(tmp_path: Path) -> None:
    entries = list(the_transactional_history())
    end = write_entries(tmp_path, entries, 1)
    spans = list(LogFiles(tmp_path).spans(end))
    changes = CoordinatorLog()
    for span in spans:
        fold(span.values(), changes.handlers(CHANGE_KEYS))
    pieces = [state_of_piece(span, changes, is_first=not i) for i, span in enumerate(spans)]
    assert len(pieces) > 10
    runs = pa.concat_tables([piece.runs for piece in pieces]).sort_by("base_offset")
    assert runs.equals(state_at(LogFiles(tmp_path)).runs.combine_chunks())


def test_the_view_of_markers_has_a_row_for_each_marker(tmp_path: Path) -> None:
    end = write_entries(tmp_path, list(the_transactional_history()))
    (span,) = LogFiles(tmp_path).spans(end)
    rows = pa.Table.from_batches(read_table("markers", span)).to_pylist()
    names = ("base_offset", "producer_id", "transaction_number", "outcome", "first_offset")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (8, 7, 1, 1, 3),
        (9, 8, 1, 0, 5),
        (12, 7, 2, 0, 10),
        (13, 8, 2, 0, 11),
        (16, 9, 4, 1, -1),
        (-1, 8, 5, 1, -1),
        (17, 8, 3, 1, 14),
    ]
    assert [row["last_stable_offset"] for row in rows] == [5, 10, 11, 14, 14, 14, 18]
    assert {row["topic_id"] for row in rows} == {encode_uuid(TOPIC)}
    assert can_hold("markers", "__diskless-metadata-3")
    assert can_hold("transaction_state", "__transaction_state-0")
    assert not can_hold("transaction_state", "__cluster_metadata-0")


@pytest.mark.parametrize("seed", [-1, *seeds(3)])
def test_an_audit_of_a_sound_log_with_transactions_finds_no_violation(
    tmp_path: Path, seed: int
) -> None:
    entries = histories(tmp_path, seed)
    end = write_entries(tmp_path, entries, 7)
    for offset in (end // 2, end):
        values = [encode_record(record) for record in checkpoint_at(entries, offset)]
        write_checkpoint(tmp_path, offset, values)
    report = audit_directory(tmp_path)
    assert not broken_rules(report), describe_findings(report)
    assert not report.unchecked.get("__diskless-metadata-0")


@pytest.mark.parametrize("seed", [-1, *seeds(4)])
def test_retention_plans_of_logs_with_transactions_equal_those_of_a_naive_planner(
    tmp_path: Path, seed: int
) -> None:
    entries = histories(tmp_path, seed)
    end = write_entries(tmp_path / "log", entries)
    state = state_at(LogFiles(tmp_path / "log"))
    random = Random(seed)
    worlds = Worlds(tmp_path, [(tmp_path / "log", end)], random)
    young, old = START_MS + 1_000, START_MS + 10**9
    for keep_ms, keep_bytes, now_ms in ((-1, 300, young), (500, -1, old), (10**8, 600, young)):
        settings = {encode_uuid(TOPIC): TopicSettings("t", keep_ms, keep_bytes, "external")}
        worlds.set(settings)
        plan = make_plan(worlds, now_ms=now_ms, digest_cache=DigestCache(tmp_path / "digests"))
        expected_rows = naive_rows(state, settings, coordinator=0, now_ms=now_ms)
        assert plan.rows == expected_rows
        accepted = worlds.batch_bytes(0)
        assert plan.effects[0] == naive_effect(state, expected_rows, accepted)


@dataclass
class OneLog:
    """A coordinator's log beside an empty cluster's (`spark_jobs.readers.logs.Logs`)."""

    directory: Path
    cluster_id: str = "testcluster"

    def names(self) -> list[str]:
        return [CLUSTER_METADATA, "__diskless-metadata-0"]

    def log(self, name: str) -> LogFiles:
        return LogFiles(self.directory / name)


@pytest.mark.parametrize("per_segment", [None, 1], ids=["in one", "one by one"])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "from a checkpoint"])
def test_the_report_counts_markers_aborted_bytes_open_transactions_and_lag(
    tmp_path: Path, per_segment: int | None, cut: bool
) -> None:
    life = list(the_transactional_history())
    directory = tmp_path / "__diskless-metadata-0"
    write_entries(tmp_path / CLUSTER_METADATA, [])
    (tmp_path / CLUSTER_METADATA / segment_name(0)).touch()
    if cut:  # before the last commits, which open two transactions
        at = records(life, ObjectCommitRecord)[-2]
        directory.mkdir()
        write_checkpoint(directory, at, [encode_record(one) for one in checkpoint_at(life, at)])
        life = [replace(life[at], gap=at), *life[at + 1 :]]
    write_entries(directory, life, per_segment)
    report = make_report(OneLog(tmp_path), LocalReportEngine(), Question(now_ms=START_MS))
    (row,) = report.tables["transactions"].to_pylist()
    assert (row["open"], row["stable_lag"]) == (2, 5)
    assert row["oldest_open_ms"] == START_MS
    if not cut:
        assert (row["commits"], row["aborts"]) == (3, 3)
        assert (row["batches"], row["records"]) == (7, 12)
        assert (row["bytes"], row["aborted_bytes"]) == (700, 300)
        texts = [finding.text for finding in summarise(report).findings]
        assert any("43 % of the bytes in transactions belong to aborted" in one for one in texts)
        assert "aborted" in page(report, summarise(report), engine="local")


def test_the_report_names_a_transaction_that_is_open_for_long(tmp_path: Path) -> None:
    write_entries(tmp_path / CLUSTER_METADATA, [])
    (tmp_path / CLUSTER_METADATA / segment_name(0)).touch()
    life = list(the_transactional_history())
    write_entries(tmp_path / "__diskless-metadata-0", a_transaction_is_open_for_21_minutes(life))
    report = make_report(OneLog(tmp_path), LocalReportEngine(), Question(now_ms=START_MS))
    later = replace(report.window, last_ms=START_MS + 21 * 60_000)
    texts = [one.text for one in summarise(replace(report, window=later)).findings]
    assert any("has been open for 21 min" in one for one in texts), texts


# --- planted faults -----------------------------------------------------------------------------

PLANTS: Final[dict[str, list[Plant]]] = {}
"""Changes of the transactional history that break one rule each."""


def breaks(name: str) -> Callable[[Plant], Plant]:
    def declare(plant: Plant) -> Plant:
        PLANTS.setdefault(name, []).append(plant)
        return plant

    return declare


def records(life: list[Entry], cls: type) -> list[int]:
    """Return the indexes of all records of a type."""
    return [at for at, entry in enumerate(life) if isinstance(entry.value, cls)]


def edit_marker(life: list[Entry], number: int, row: int = 0, **fields: int) -> list[Entry]:
    """Change one row of a record of markers."""
    at = records(life, TransactionMarkersRecord)[number]
    found: Any = life[at].value
    columns = {name: list(getattr(found, name)) for name in fields}
    for name, value in fields.items():
        columns[name][row] = value
    return edit(life, at, **{name: tuple(column) for name, column in columns.items()})


def one_more(life: list[Entry], **fields: Any) -> list[Entry]:
    """Append one more commit of producer 9, whose transaction 5 is open."""
    at = records(life, ObjectCommitRecord)[-1]
    record: Any = life[at].value
    given = {"object_id": record.object_id + 1, "base_offsets": (23,), "base_sequences": (2,)}
    return [*life, Entry(changed(record, **given | fields))]


@breaks("transaction-numbers-once")
def a_number_that_has_ended_gets_a_batch(life: list[Entry]) -> list[Entry]:
    return edit(life, records(life, ObjectCommitRecord)[-3], transaction_numbers=(2,))


@breaks("transaction-numbers-once")
def another_number_gets_a_batch_while_one_is_open(life: list[Entry]) -> list[Entry]:
    return one_more(life, transaction_numbers=(6,))


@breaks("transaction-numbers-once")
def a_batch_stands_outside_of_the_open_transaction(life: list[Entry]) -> list[Entry]:
    return one_more(life, transaction_numbers=(-1,))


@breaks("transaction-epochs-rise")
def a_fenced_producer_begins_a_transaction(life: list[Entry]) -> list[Entry]:
    at = records(life, ObjectCommitRecord)[3]
    return edit(life, at, producer_epochs=(0,), base_sequences=(3,))


@breaks("markers-end-open")
def a_marker_names_another_beginning(life: list[Entry]) -> list[Entry]:
    return edit_marker(life, 0, first_offsets=4)


@breaks("markers-end-open")
def a_marker_claims_batches_and_no_transaction_is_open(life: list[Entry]) -> list[Entry]:
    return edit_marker(life, 3, first_offsets=12)


@breaks("markers-once")
def a_number_ends_again(life: list[Entry]) -> list[Entry]:
    again: Any = life[records(life, TransactionMarkersRecord)[-1]].value
    given = {"offsets": (23,), "first_offsets": (-1,), "transaction_numbers": (4,)}
    return [*life, Entry(changed(again, **given))]


@breaks("stable-offsets-rise")
def a_last_stable_offset_goes_back(life: list[Entry]) -> list[Entry]:
    return edit_marker(life, 4, last_stable_offsets=13)


@breaks("stable-offsets-below-open")
def a_last_stable_offset_is_past_an_open_transaction(life: list[Entry]) -> list[Entry]:
    return edit_marker(life, 0, last_stable_offsets=9)


@breaks("stable-offsets-below-open")
def a_last_stable_offset_is_below_the_high_watermark(life: list[Entry]) -> list[Entry]:
    return edit_marker(life, 4, last_stable_offsets=17)


@breaks("open-remembered")
def a_producer_expires_in_its_transaction(life: list[Entry]) -> list[Entry]:
    return [*life, Entry(ProducersExpiredRecord(log_ids=(0,), producer_ids=(7,)))]


@breaks("aborted-ended-behind")
def an_aborted_transaction_ends_before_its_marker_is_compacted(life: list[Entry]) -> list[Entry]:
    ended = {"ended_counts": (1,), "ended_producer_ids": (7,), "ended_first_offsets": (10,)}
    return edit(life, records(life, RunsReplacedRecord)[0], **ended)


@breaks("transactions-timely")
def a_transaction_is_open_for_21_minutes(life: list[Entry]) -> list[Entry]:
    at = records(life, ObjectCommitRecord)[-2]
    record: Any = life[at].value
    return edit(life, at, committed_at_ms=record.committed_at_ms + 21 * 60_000)


@breaks("offsets-contiguous")
def a_record_of_markers_is_lost(life: list[Entry]) -> list[Entry]:
    del life[records(life, TransactionMarkersRecord)[-1]]
    return life


@pytest.mark.parametrize("per_segment", [None, 1], ids=["in one", "one by one"])
@pytest.mark.parametrize(
    ("name", "plant"), [(name, plant) for name, plants in PLANTS.items() for plant in plants]
)
def test_each_fault_in_transactions_breaks_only_its_own_audit_rule(
    name: str, plant: Plant, per_segment: int | None, tmp_path: Path
) -> None:
    write_entries(tmp_path, plant(list(the_transactional_history())), per_segment)
    report = audit_directory(tmp_path)
    assert set(broken_rules(report)) == {name}, describe_findings(report)


def test_the_audit_takes_the_maximum_transaction_timeout_of_the_cluster(tmp_path: Path) -> None:
    write_entries(tmp_path, a_transaction_is_open_for_21_minutes(list(the_transactional_history())))
    asked = AuditRequest(max_timeout_ms=20 * 60_000)
    assert not broken_rules(audit_directory(tmp_path, audit_request=asked))


def id_state(name: str, producer: int, number: int, state: int) -> TransactionStateRecord:
    """Return a record of the transaction log, of the time at which the history begins."""
    return TransactionStateRecord(
        transactional_id=name, producer_id=producer, producer_epoch=0, last_producer_epoch=-1,
        timeout_ms=60_000, state=state, transaction_number=number, epoch_began_at_ms=START_MS,
        started_at_ms=START_MS, updated_at_ms=START_MS,
    )  # fmt: skip


ONGOING, COMPLETE_COMMIT = 1, 4


@pytest.mark.parametrize(
    ("of_seven", "minutes", "faults"),
    [
        (id_state("one", 7, 3, ONGOING), 6, 0),
        (id_state("one", 7, 3, COMPLETE_COMMIT), 6, 1),
        (id_state("one", 7, 4, ONGOING), 6, 1),
        (id_state("one", 7, 3, COMPLETE_COMMIT), 4, 0),
        (id_state("one", 77, 3, ONGOING), 6, 1),
        (id_state("one", 7, 2, COMPLETE_COMMIT), 6, 1),
        (id_state("one", 7, 2, COMPLETE_COMMIT), 4, 0),
    ],
    ids=[
        "it is ongoing",
        "it has ended",
        "a newer one began",
        "it ended just now",
        "its producer is not known",
        "its number is not known",
        "its number is new",
    ],
)
def test_the_audit_reports_a_transaction_that_is_open_only_in_a_partition(
    tmp_path: Path, of_seven: TransactionStateRecord, minutes: int, faults: int
) -> None:
    life = list(the_transactional_history())
    at = records(life, ObjectCommitRecord)[-2]
    edit(life, at, committed_at_ms=START_MS + minutes * 60_000)
    write_entries(tmp_path / COORDINATOR, life)
    state = [Entry(1), Entry(of_seven), Entry(id_state("two", 9, 4, COMPLETE_COMMIT))]
    begun = TransactionPartitionsRecord(
        transactional_id="two", transaction_number=5, topics=(), metadata_offset=0,
        added_at_ms=START_MS,
    )  # fmt: skip
    write_entries(tmp_path / TRANSACTION_LOG, [*state, Entry(begun)])
    logs = WithTransactionLog({name: tmp_path / name for name in (COORDINATOR, TRANSACTION_LOG)})
    report = audit(logs, LocalEngine())
    wanted = {"open-not-ended": faults} if faults else {}
    assert broken_rules(report) == wanted, describe_findings(report)


class WithTransactionLog(DirectoryLogs):
    """Directories of logs, of which jobs are not told the transaction log's."""

    def names(self) -> list[str]:
        return [COORDINATOR]


def test_the_audit_checks_the_batches_of_the_transaction_log_and_compares_replicas(
    tmp_path: Path,
) -> None:
    life = [Entry(1), Entry(id_state("one", 7, 3, ONGOING)), Entry(id_state("two", 9, 5, ONGOING))]
    others = [*life[:-1], Entry(id_state("two", 9, 6, ONGOING))]
    for node, entries in (("one", life), ("other", others)):
        write_entries(tmp_path / node / COORDINATOR, list(the_transactional_history()))
        write_entries(tmp_path / node / TRANSACTION_LOG, entries)
    one, other = (
        WithTransactionLog(
            {name: tmp_path / node / name for name in (COORDINATOR, TRANSACTION_LOG)}
        )
        for node in ("one", "other")
    )
    report = audit(one, LocalEngine(), AuditRequest(replicas=(("node 2", other),), name="node 1"))
    assert broken_rules(report) == {"replicas-agree": 1}, describe_findings(report)
    assert report.findings.first("replicas-agree").log == TRANSACTION_LOG
    path = tmp_path / "one" / TRANSACTION_LOG / segment_name(0)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    report = audit(one, LocalEngine())
    assert broken_rules(report) == {"log-readable": 1}, describe_findings(report)
    assert "open-not-ended" in report.unchecked


def test_the_audit_names_the_rule_that_it_skips_without_a_transaction_log(tmp_path: Path) -> None:
    write_entries(tmp_path, list(the_transactional_history()))
    assert "__transaction_state-0" in audit_directory(tmp_path).unchecked["open-not-ended"]


IN_CHECKPOINTS: Final[list[tuple[str, type, str, int]]] = [
    ("checkpoint-aborted-replay", AbortedState, "last_stable_offsets", 1),
    ("checkpoint-aborted-marked checkpoint-aborted-replay", AbortedState, "last_offsets", 1),
    ("checkpoint-producers-replay", ProducersState, "open_numbers", 1),
    ("checkpoint-open-between checkpoint-producers-replay", ProducersState, "first_offsets", 1),
    ("checkpoint-producers-replay", ProducersState, "ended_numbers", 1),
    ("checkpoint-runs-replay", RunsState, "marker_epochs", 1),
]


@pytest.mark.parametrize(("names", "cls", "column_name", "change"), IN_CHECKPOINTS)
def test_each_fault_in_a_checkpoints_transactions_breaks_only_its_audit_rules(
    names: str, cls: type, column_name: str, change: int, tmp_path: Path
) -> None:
    life = list(the_transactional_history())
    end = write_entries(tmp_path, life)
    kept = checkpoint_at(life, end)
    index = within(kept, cls)
    values = column(getattr(kept[index], column_name), -1, change)
    kept[index] = changed(kept[index], **{column_name: values})
    write_checkpoint(tmp_path, end, [encode_record(record) for record in kept])
    report = audit_directory(tmp_path)
    assert set(broken_rules(report)) == set(names.split()), describe_findings(report)
