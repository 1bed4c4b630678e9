"""The tail: which objects are in it, which of their batches come back, at which offsets.

Source: docs/design/restore.md#the-tail.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from coordinator.batch.id_ranges import contains
from coordinator.batch.state import Lease
from diskless.stores import StorageError
from diskless.stores.directory import DirectoryStorage
from esker.restore import appending, directories, state_checkpoints, states
from esker.restore import run as restoring
from esker.restore import tail as finding
from esker.restore.appending import Appended
from esker.restore.errors import RestoreError
from esker.restore.run import Prepared, prepare, prepare_tail
from raft.driver.config import METADATA_GROUP
from raft.segments.files import RealFileSystem
from records.diskless import DisklessTopicState, LeaseState, ObjectsState, RunsState
from records.metadata import ConfigRecord, ProducerIdsRecord
from records.schema import MetadataRecord
from records.timelines import PartitionTimelinesRecord
from records.wal import FINAL
from snapshot.reader import CheckpointReader
from tests.esker.restore.lost import COORDINATOR, EPOCH, Logs, lost_logs, write_node
from tests.esker.restore.tail_objects import Sent, logs_of_leases, upload
from tests.esker.restore.test_command import esker, write_properties
from tests.esker.restore.test_directories import (
    KilledError,
    contents,
    make_home,
    restore,
    settings,
)

Patch = Callable[[pytest.MonkeyPatch], None]
OTHER: Final = UUID(int=99)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path)


def plan(home: Path, logs: Logs | None = None) -> tuple[Prepared, dict[type, list[Any]]]:
    """Prepare a restore with the tail; return it and the new checkpoints' records by type."""
    if logs is not None:
        shutil.rmtree(home / "101")
        write_node(home / "101", logs)
    shutil.rmtree(home / "scratch", ignore_errors=True)
    found: dict[type, list[Any]] = {}
    with prepare([home / "101"], home / "scratch") as prepared:
        prepared = asyncio.run(prepare_tail(prepared, settings(home, 101)))
        for path, _ in prepared.restored.checkpoints.values():
            with CheckpointReader(RealFileSystem(), path) as reader:
                for _, record in reader.records():
                    found.setdefault(type(record), []).append(record)
    return prepared, found


def runs(found: dict[type, list[Any]]) -> list[tuple[int, int]]:
    """Object id and last offset of each run of the topic's partition."""
    return [
        run
        for one in found[RunsState]
        for run in zip(one.object_ids, one.last_offsets, strict=True)
    ]


def left_out(appended: Appended) -> list[tuple[int, int, str]]:
    return [(one.object_id, one.records, one.reason) for one in appended.left_out]


def test_plain_and_idempotent_batches_follow_the_exact_end_in_the_order_of_ids(home: Path) -> None:
    upload(home, 150, Sent(3, producer=4_000, first=25), broker=102, epoch=41)
    upload(home, 4, Sent(5, producer=4_000, first=20))
    upload(home, 120, Sent(2), Sent(1))
    prepared, found = plan(home)
    assert runs(found) == [(0, 9), (1, 19), (4, 24), (120, 27), (150, 30)]
    (topic,) = found[DisklessTopicState]
    assert topic.high_watermarks[0] == 31
    appended = prepared.restored.appended
    assert (appended.objects, appended.records, appended.duplicates) == (3, 11, 0)
    assert appended.partitions == {("t", 0): (20, 31)}
    assert not appended.left_out
    (timelines,) = found[PartitionTimelinesRecord]
    assert (timelines.timelines, timelines.first_offsets) == ((0, 1), (0, 20))
    assert not prepared.restored.uncertain
    (objects,) = found[ObjectsState]
    assert objects.object_ids == (0, 1, 4, 120, 150)
    assert prepared.restored.objects == {0: {0, 1, 4, 120, 150}}


def test_the_tail_follows_records_that_were_not_known_to_be_committed(home: Path) -> None:
    shutil.rmtree(home / "101")
    write_node(home / "101", lost_logs(), unknown={COORDINATOR: 1})
    upload(home, 2)
    prepared, found = plan(home)
    assert runs(found) == [(0, 9), (1, 19), (2, 24)]
    assert prepared.restored.uncertain == [("t", 0, 10, 20)]
    (timelines,) = found[PartitionTimelinesRecord]
    assert timelines.first_offsets == (0, 10)


def test_no_id_of_a_closed_lease_and_none_that_was_given_up_is_in_the_tail(home: Path) -> None:
    for object_id in (2, 50, 101, 105, 199, 200, 5_000):
        upload(home, object_id)
    prepared, found = plan(home, logs_of_leases())
    new = [object_id for object_id, last in runs(found) if last >= 40]
    assert new == [101, 199, 200, 5_000]
    assert prepared.restored.appended.objects == 4
    assert not prepared.restored.appended.left_out


def test_an_object_of_a_rewriter_is_not_appended_a_second_time(home: Path) -> None:
    upload(home, 2, object_format=FINAL)
    upload(home, 3)
    prepared, found = plan(home)
    assert runs(found) == [(0, 9), (1, 19), (3, 24)]
    assert prepared.tail is not None
    assert prepared.tail.rewritten == 1


def test_transactional_batches_and_those_of_unknown_topics_are_listed(home: Path) -> None:
    upload(home, 2, Sent(4, producer=7, is_transactional=True), Sent(2))
    upload(home, 3, Sent(6, topic=OTHER))
    upload(home, 4, Sent(1, partition=9))
    prepared, found = plan(home)
    assert runs(found) == [(0, 9), (1, 19), (2, 21)]
    assert left_out(prepared.restored.appended) == [
        (2, 4, "transactional"),
        (3, 6, "unknown topic"),
        (4, 1, "refused: UNKNOWN_TOPIC_OR_PARTITION"),
    ]


def compacted_logs() -> Logs:
    record = ConfigRecord(
        resource_type=2, resource_name="t", name="cleanup.policy", value="compact,delete"
    )
    logs = lost_logs()
    return {**logs, METADATA_GROUP: [*logs[METADATA_GROUP], (EPOCH, record)]}


def test_a_tombstone_of_a_compacted_topic_is_not_overtaken_by_the_tail(home: Path) -> None:
    """The object has an older value of the key whose tombstone is in the copy."""
    upload(home, 2)
    prepared, found = plan(home, compacted_logs())
    assert runs(found) == [(0, 9), (1, 19)]
    assert left_out(prepared.restored.appended) == [(2, 5, "compacted topic")]


def test_a_topic_that_brokers_compact_by_default_is_compacted(home: Path) -> None:
    upload(home, 2)
    scratch = home / "scratch2"
    broker = settings(home, 101)
    broker.topic_defaults["log.cleanup.policy"] = "compact"  # type: ignore[index]
    with prepare([home / "101"], scratch) as prepared:
        prepared = asyncio.run(prepare_tail(prepared, broker))
        assert left_out(prepared.restored.appended) == [(2, 5, "compacted topic")]


def test_a_batch_that_is_there_already_adds_nothing_and_one_behind_a_gap_is_refused(
    home: Path,
) -> None:
    upload(home, 2, Sent(10, producer=4_000, first=10))  # as object 1
    upload(home, 3, Sent(5, producer=4_000, first=20))
    upload(home, 4, Sent(5, producer=4_000, first=20))  # sent again through another object
    upload(home, 5, Sent(5, producer=4_000, first=30))
    prepared, found = plan(home)
    assert runs(found) == [(0, 9), (1, 19), (3, 24)]
    appended = prepared.restored.appended
    assert (appended.records, appended.duplicates) == (5, 15)
    assert left_out(appended) == [(5, 5, "refused: OUT_OF_ORDER_SEQUENCE_NUMBER")]


def test_counters_jump_over_the_numbers_of_the_tail(home: Path) -> None:
    upload(home, 300, Sent(1, producer=900_000, is_transactional=True), epoch=5_000_000)
    upload(home, 301, Sent(1), epoch=5_000_000)
    prepared, found = plan(home)
    (ids,) = found[ProducerIdsRecord]
    assert ids.next_producer_id > 900_000
    assert prepared.restored.jump.cluster_offset > 5_000_000
    (ancestor,) = prepared.restored.image.ancestors.clusters
    assert ancestor.object_ids_below[0] > 301


def test_the_objects_of_listed_batches_are_not_marked_as_orphans(home: Path) -> None:
    upload(home, 3, Sent(1, producer=7, is_transactional=True))
    upload(home, 5)
    upload(home, 203, Sent(1, producer=7, is_transactional=True))
    upload(home, 202)
    upload(home, 206)
    _, found = plan(home)
    assert all(lease.closed_at_ms >= 0 for lease in found[LeaseState])
    assert [lease.orphans for lease in found[LeaseState]] == [(), ()]


def test_damaged_and_foreign_objects_are_named(home: Path) -> None:
    path = upload(home, 2)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    upload(home, 3, named_id=2)
    upload(home, 4, cluster_id="another")
    upload(home, 6, epoch=1 << 62 | 1)
    upload(home, 7).write_bytes(b"half")
    prepared, found = plan(home)
    assert runs(found) == [(0, 9), (1, 19)]
    assert prepared.tail is not None
    assert [text.rpartition("/")[2].partition(":")[0] for text in prepared.tail.damaged] == [
        "2", "3", "4", "6", "7",
    ]  # fmt: skip


def test_an_unreadable_store_ends_a_plan_with_the_tail(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise StorageError("esker", "unreachable")

    monkeypatch.setattr(DirectoryStorage, "list_objects", fails)
    with pytest.raises(StorageError, match="unreachable"):
        plan(home)


# --- apply -------------------------------------------------------------------------------------


def written_ends(home: Path) -> set[int]:
    """The high watermarks of the topic's first partition in the voters' new directories."""
    ends = set()
    for node in (1, 2, 3):
        (path,) = (home / "new" / str(node) / COORDINATOR.name).glob("*.checkpoint")
        with CheckpointReader(RealFileSystem(), path) as reader:
            records: list[MetadataRecord] = [record for _, record in reader.records()]
        ends |= {one.high_watermarks[0] for one in records if isinstance(one, DisklessTopicState)}
    return ends


@pytest.mark.parametrize("step", ["find_tail", "restore_states", "first", "third"])
def test_a_restore_with_the_tail_that_was_killed_is_completed_by_the_next_run(
    home: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(home, 2)
    killed_at = {"first": 1, "third": 3}.get(step, 0)
    calls: list[int] = []

    async def die(*_: Any) -> Any:
        raise KilledError

    def restore_once(*words: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KilledError
        return states.restore_states(*words)

    def write_some(files: Any, node: Any, *rest: Any) -> None:
        calls.append(node.node_id)
        if len(calls) == killed_at:
            raise KilledError
        directories.write_directory(files, node, *rest)

    if killed_at:
        monkeypatch.setattr(restoring, "write_directory", write_some)
    elif step == "restore_states":
        monkeypatch.setattr(restoring, step, restore_once)
    else:
        monkeypatch.setattr(restoring, step, die)
    with pytest.raises(KilledError):
        restore(home, home / "101", adds_tail=True)
    monkeypatch.undo()
    done = restore(home, home / "101", adds_tail=True)
    assert done.prepared.restored.appended.records == 5
    assert written_ends(home) == {25}
    again = contents(home)
    shutil.rmtree(home / "new")
    (home / "new").mkdir()
    restore(home, home / "101", adds_tail=True)
    assert contents(home) == again


def test_the_tail_is_looked_for_after_the_old_cluster_has_stopped(home: Path) -> None:
    async def sleep(_: float) -> None:
        upload(home, 2)

    done = restore(home, home / "101", adds_tail=True, sleep=sleep)
    assert done.prepared.restored.appended.records == 5


def test_a_run_that_has_the_tail_does_not_complete_one_without_it(home: Path) -> None:
    upload(home, 2)
    restore(home, home / "101")
    assert written_ends(home) == {20}
    with pytest.raises(RestoreError, match=r"--at and --tail as in the first run"):
        restore(home, home / "101", adds_tail=True)


def test_a_partition_whose_first_objects_are_missing_still_gets_its_tail(home: Path) -> None:
    for path in (home / "store").rglob("0"):
        if path.is_file():
            path.unlink()
    upload(home, 2)
    restore(home, home / "101", adds_tail=True, accepts_missing_objects=True)
    assert written_ends(home) == {25}


def test_plan_prints_what_the_tail_adds_and_leaves_out(home: Path) -> None:
    upload(home, 2, Sent(5), Sent(3, producer=7, is_transactional=True))
    words = write_properties(home)
    ran = esker("plan", "--from", home / "101", "--tail", "--config", words[-1])
    assert "The tail adds 5 records of 1 objects; 0 records of it are there already." in ran.stdout
    assert "t-0: offsets 20 to 24" in ran.stdout
    assert "t-0: 3 records of object 2 of coordinator 0: transactional" in ran.stdout
    assert f"--from {home / '101'} --tail --config FILE" in ran.stdout
    words = ["--from", home / "101", "--tail", "--config", words[-1], "--json"]
    found = json.loads(esker("plan", *words).stdout)["tail"]
    assert found["partitions"] == [
        {"topic": "t", "partition": 0, "firstOffset": 20, "endOffset": 25}
    ]
    assert found["leftOut"][0]["records"] == 3


def test_a_plan_with_the_tail_needs_a_store(home: Path) -> None:
    ran = esker("plan", "--from", home / "101", "--tail", code=2)
    assert "--config" in ran.stderr


# --- mutants -----------------------------------------------------------------------------------


def takes_ids_of_closed_leases(patch: pytest.MonkeyPatch) -> None:
    """A producer was told that they are not committed."""
    patch.setattr(finding.UncommittedIds, "contains", lambda _, object_id: object_id > 3)


def takes_fenced_ids(patch: pytest.MonkeyPatch) -> None:
    """They were called safe to delete."""
    patch.setattr(finding, "without", lambda ids, _: ids)


def looks_no_further_than_the_open_leases(patch: pytest.MonkeyPatch) -> None:
    """All leases that were granted after the newest record are lost."""
    patch.setattr(
        finding.UncommittedIds, "contains", lambda ids, object_id: contains(ids.leased, object_id)
    )


def appends_rewritten_objects(patch: pytest.MonkeyPatch) -> None:
    """Records are there twice."""
    patch.setattr(finding, "APPENDED", FINAL)


def appends_transactional_batches(patch: pytest.MonkeyPatch) -> None:
    """An aborted transaction's records are shown."""
    patch.setattr(appending._Appending, "_why_not", lambda *_: None)


def appends_to_compacted_topics(patch: pytest.MonkeyPatch) -> None:
    """A deleted key is back."""
    patch.setattr(appending, "COMPACT", "never")


def goes_by_arrival(patch: pytest.MonkeyPatch) -> None:
    """A producer's second batch comes before its first, and is refused."""
    patch.setattr(finding, "sorted", _rising_only_by_key, raising=False)


def _rising_only_by_key(found: Iterable[Any], **key: Any) -> list[Any]:
    return sorted(found, reverse=not key, **key)


def hides_the_change(patch: pytest.MonkeyPatch) -> None:
    """The new timeline begins behind the tail, so no client notices."""
    load = states._load_coordinator

    def load_all(*words: Any) -> Any:
        found = load(*words)
        found.known_ends = dict.fromkeys(found.known_ends, 1 << 60)
        return found

    patch.setattr(states, "_load_coordinator", load_all)


def jumps_over_the_copy_alone(patch: pytest.MonkeyPatch) -> None:
    """A producer id or broker epoch of the tail is handed out again."""
    patch.setattr(finding.Tail, "highest_producer_id", -1)
    patch.setattr(finding.Tail, "highest_broker_epoch", -1)


def deletes_what_it_lists(patch: pytest.MonkeyPatch) -> None:
    """The batches that were left out are lost."""

    def keep(lease: Lease, _skipped: Any) -> Lease:
        return lease

    patch.setattr(state_checkpoints, "_without_orphans", keep)


def believes_footers(patch: pytest.MonkeyPatch) -> None:
    """Damaged bytes are shown to consumers."""
    patch.setattr(finding, "verify_partition", lambda *_: None)


@pytest.mark.parametrize(
    ("mutant", "story"),
    [
        (
            takes_ids_of_closed_leases,
            test_no_id_of_a_closed_lease_and_none_that_was_given_up_is_in_the_tail,
        ),
        (takes_fenced_ids, test_no_id_of_a_closed_lease_and_none_that_was_given_up_is_in_the_tail),
        (
            looks_no_further_than_the_open_leases,
            test_no_id_of_a_closed_lease_and_none_that_was_given_up_is_in_the_tail,
        ),
        (appends_rewritten_objects, test_an_object_of_a_rewriter_is_not_appended_a_second_time),
        (
            appends_transactional_batches,
            test_transactional_batches_and_those_of_unknown_topics_are_listed,
        ),
        (
            appends_to_compacted_topics,
            test_a_tombstone_of_a_compacted_topic_is_not_overtaken_by_the_tail,
        ),
        (
            goes_by_arrival,
            test_plain_and_idempotent_batches_follow_the_exact_end_in_the_order_of_ids,
        ),
        (
            hides_the_change,
            test_plain_and_idempotent_batches_follow_the_exact_end_in_the_order_of_ids,
        ),
        (jumps_over_the_copy_alone, test_counters_jump_over_the_numbers_of_the_tail),
        (deletes_what_it_lists, test_the_objects_of_listed_batches_are_not_marked_as_orphans),
        (believes_footers, test_damaged_and_foreign_objects_are_named),
    ],
)
def test_a_tail_that_breaks_a_rule_is_caught(
    mutant: Patch,
    story: Callable[[Path], None],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, KeyError)):
        story(home)
