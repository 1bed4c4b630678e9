"""The coordinator's database as a cache of its log: whose it is, and what a checkpoint holds."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pytest

from coordinator.batch import checkpoint
from coordinator.batch.log_records import UnreadableRecordError
from coordinator.batch.sqlite import database
from coordinator.batch.sqlite.frozen import FrozenState, ScanFailedError
from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
from coordinator.batch.sqlite.source import StoreSource, checkpoint_of
from coordinator.batch.sqlite.store import DRAIN_ROWS
from records.batch import read_batch
from records.batch_writer import build_value_batch
from records.diskless import (
    ControllerEpochRecord,
    DisklessPartitionsRecord,
    DisklessTopicTombstoneRecord,
    ObjectsState,
)
from records.frame import encode_record
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.coordinator.batch.actors import create
from tests.coordinator.batch.conformance import TABLE, run_row
from tests.coordinator.batch.quorum_world import IDENTITY, QuorumWorld, checkpoint_batches
from tests.waiting import Deadline

pytestmark = pytest.mark.slow

DELETED = DisklessTopicTombstoneRecord(topic_id=UUID(int=5), controller_epoch=8, deleted_at_ms=1)


def filled(directory: Path) -> QuorumWorld:
    """A coordinator that many rows of the conformance table have run in."""

    async def run() -> QuorumWorld:
        world = QuorumWorld(directory)
        for number, row in enumerate(TABLE[:60]):
            await run_row(row, number, world)
        return world

    return asyncio.run(run())


def read_all(values: Iterator[bytes]) -> list[bytes]:
    deadline = Deadline("the scan ends")
    read = []
    for value in values:
        if value:
            read.append(value)
        else:
            time.sleep(deadline.pause_s())
    return read


def test_a_checkpoint_read_by_a_child_process_is_the_state_at_its_offset(
    tmp_path: Path,
) -> None:
    """A child process scans a copy while commits go on; the live tables give the same."""
    world = filled(tmp_path)
    live = world.values()
    applied = world.machine.applied
    world.machine._in_process = False
    frozen = world.machine.freeze()
    asyncio.run(run_row(TABLE[61], 61, world))  # not to be seen in it
    assert world.machine.applied.offset > applied.offset
    assert read_all(frozen.values()) == live
    frozen.close()
    assert world.values() != live
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == []


def test_reading_a_checkpoint_raises_an_error_if_its_database_copy_was_lost(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.machine._in_process = False
    frozen = world.machine.freeze()
    values = frozen.values()
    while frozen._thread is not None and frozen._thread.is_alive():
        next(values)
    frozen._copy_path.write_bytes(b"no database")
    with pytest.raises(ScanFailedError):
        read_all(values)
    frozen.close()


def test_freezing_a_coordinators_state_fails_if_the_database_has_another_offset(
    tmp_path: Path,
) -> None:
    """Whatever happened to the file: a checkpoint holds the state that its name says."""
    world = filled(tmp_path)
    world.machine.flush()
    offset, epoch = world.machine.applied
    for as_of in (OffsetAndEpoch(Offset(offset + 1), epoch), OffsetAndEpoch(offset, Epoch(99))):
        frozen = FrozenState(world.machine.path, tmp_path / "copy", as_of, checkpoint_of)
        with pytest.raises(ScanFailedError, match="and not"):
            list(frozen.values())
        frozen.close()
    world.machine.close()


def test_opening_a_missing_coordinator_database_for_reading_creates_no_database(
    tmp_path: Path,
) -> None:
    """A reader that comes while the file is being replaced creates none."""
    with pytest.raises(sqlite3.OperationalError):
        database.connect(tmp_path / "coordinator.db")
    assert list(tmp_path.iterdir()) == []


def test_a_coordinator_that_loaded_a_checkpoint_writes_an_equal_checkpoint_also_after_a_restart(
    tmp_path: Path,
) -> None:
    world = filled(tmp_path)
    values, applied = world.values(), world.machine.applied
    other = tmp_path / "other"
    other.mkdir()
    machine = CoordinatorMachine(other, IDENTITY)
    for _ in machine.load(applied, checkpoint_batches(values, applied, 5)):
        pass
    assert (machine.applied, machine.last_timestamp, machine.loads) == (applied, 5, 1)
    machine.close()
    machine = CoordinatorMachine(other, IDENTITY)
    assert (machine.applied, machine.rebuilds) == (applied, 0)
    assert machine.total_records == world.machine.total_records
    assert read_all(machine.freeze().values()) == values


def test_a_checkpoint_with_rows_split_over_records_loads_unchanged(tmp_path: Path) -> None:
    """Partitions of one topic, runs, producers, objects: each in several records."""
    world = filled(tmp_path)
    asyncio.run(create(world, partitions=20))
    live, applied = world.values(), world.machine.applied
    with patch.object(checkpoint, "CHUNK_ROWS", 3):
        values = world.values()
        assert len(values) > len(live) + 20 // 3
    other = tmp_path / "other"
    other.mkdir()
    machine = CoordinatorMachine(other, IDENTITY, in_process=True)
    for _ in machine.load(applied, checkpoint_batches(values, applied, 5)):
        pass
    assert list(checkpoint.checkpoint_values(StoreSource(machine.store))) == live
    machine.close()


def test_loading_an_invalid_checkpoint_leaves_the_coordinators_state_unchanged(
    tmp_path: Path,
) -> None:
    world = filled(tmp_path)
    before, applied = world.values(), world.machine.applied
    value = encode_record(
        ObjectsState(
            object_ids=(1,),
            sizes_bytes=(1, 2),
            used_bytes=(0,),
            formats=(1,),
            broker_ids=(1,),
            committed_at_ms=(0,),
            marked_at_ms=(-1,),
            topic_ids=(),
            topic_counts=(0,),
            topic_indexes=(),
        )
    )
    snapshot_id = OffsetAndEpoch(Offset(applied.offset + 5), Epoch(9))
    with pytest.raises(ValueError, match="zip"):
        list(world.machine.load(snapshot_id, checkpoint_batches([value], snapshot_id, 0)))
    assert world.values() == before
    assert world.machine.applied == applied


@pytest.mark.parametrize(
    "identity",
    [
        Identity("another", IDENTITY.directory_id, IDENTITY.group),
        Identity(IDENTITY.cluster_id, bytes(16), IDENTITY.group),
        Identity(IDENTITY.cluster_id, IDENTITY.directory_id, "__diskless-metadata-1"),
    ],
)
def test_a_node_replaces_a_coordinator_database_copied_from_another_node_by_a_new_database(
    tmp_path: Path, identity: Identity
) -> None:
    world = filled(tmp_path)
    world.machine.close()
    machine = CoordinatorMachine(tmp_path, identity, in_process=True)
    assert machine.rebuilds == 1
    assert machine.applied == (0, 0)
    assert machine.total_records == 1


@pytest.mark.parametrize(
    "damage", ["not a database", "another schema", "a row that makes no sense"]
)
def test_a_node_replaces_an_unreadable_coordinator_database_by_a_new_database(
    tmp_path: Path, damage: str
) -> None:
    world = filled(tmp_path)
    world.machine.close()
    path = world.machine.path
    if damage == "not a database":
        path.write_bytes(b"?" * 10_000)
    else:
        connection = sqlite3.connect(path, isolation_level=None)
        if damage == "another schema":
            connection.execute("PRAGMA user_version = 77")
        else:
            connection.execute("UPDATE leases SET row = x'c1'")
        connection.close()
    machine = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    assert (machine.rebuilds, machine.applied) == (1, (0, 0))


def test_a_restarted_sqlite_coordinator_applies_the_records_after_its_last_flush_again(
    tmp_path: Path,
) -> None:
    """A transaction spans commits; a crash loses the open one, and the log brings it back."""
    world = filled(tmp_path)
    world.machine.flush()
    flushed = world.machine.applied
    asyncio.run(run_row(TABLE[61], 61, world))
    applied = world.machine.applied
    assert applied.offset > flushed.offset
    world.machine.store.connection.rollback()  # as if the process had been killed here
    world.machine.store.close()
    world._open()
    assert world.machine.applied == flushed
    world.hosting.apply()
    assert world.machine.applied == applied


def test_the_coordinator_writes_thousands_of_created_topics_to_its_database_in_steps(
    tmp_path: Path,
) -> None:
    """Ten thousand rows would stall the next flush for a quarter of a second."""
    machine = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    made = [
        encode_record(
            DisklessPartitionsRecord(
                topic_id=UUID(int=n + 1), topic_name=f"t{n}", first_partition=0,
                partition_count=10, first_log_id=10 * n, controller_epoch=1,
            )
        )
        for n in range(1_000)
    ]  # fmt: skip
    for first in range(0, len(made), 10):
        values = made[first : first + 10]
        batch = build_value_batch(values, base_offset=first, leader_epoch=1, timestamp=0)
        machine.apply([read_batch(batch)])
        assert len(machine.store.logs._dirty) < DRAIN_ROWS + 100
    assert machine.store.flushes == 0, "nor are the files flushed for it"
    machine.flush()
    machine.close()
    again = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    assert (again.rebuilds, len(again.store.topics), len(again.store.logs)) == (0, 1_000, 10_000)
    again.close()


def test_an_unknown_record_stops_the_coordinators_state_machine_with_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    machine = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    value = bytes.fromhex("01 ff7f 00")  # frame version 1, type 16383, version 0
    batch = build_value_batch([value], base_offset=0, leader_epoch=1, timestamp=0)
    with pytest.raises(UnreadableRecordError, match=r"offset 0.*16383"):
        machine.apply([read_batch(batch)])


def test_the_coordinator_commits_no_partly_applied_batch_to_its_sqlite_database(
    tmp_path: Path,
) -> None:
    """A node that stops at a record it cannot apply finds the state before its batch again."""
    machine = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    known = encode_record(ControllerEpochRecord(controller_epoch=7))
    unknown = bytes.fromhex("01 ff7f 00")
    batches = [
        read_batch(build_value_batch(values, base_offset=offset, leader_epoch=1, timestamp=0))
        for offset, values in ((0, [known]), (1, [encode_record(DELETED), unknown]))
    ]
    with pytest.raises(UnreadableRecordError, match="offset 2"):
        machine.apply(batches)
    with pytest.raises(sqlite3.Error):
        machine.freeze()
    machine.close()
    machine = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    assert machine.rebuilds == 0
    assert (machine.applied.offset, len(machine.store.topics)) == (0, 0)


def test_the_sqlite_page_caches_of_all_databases_of_a_process_share_one_limit(
    tmp_path: Path,
) -> None:
    """A node may have many coordinators, and each a cache of the size that is good for one."""
    assert database.CACHE_KIB * 1024 < database.ALL_CACHES_BYTES < 200_000_000
    connection = database.create(tmp_path / "a", flushes=False)
    assert connection.execute("PRAGMA soft_heap_limit").fetchone() == (database.ALL_CACHES_BYTES,)
    connection.close()


def test_after_a_failed_database_flush_the_coordinator_does_not_flush_again(tmp_path: Path) -> None:
    """SQLite may have rolled back the transaction: later records would be committed without it."""
    machine = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    first, second = (
        read_batch(build_value_batch([value], base_offset=offset, leader_epoch=1, timestamp=0))
        for offset, value in enumerate(
            (encode_record(ControllerEpochRecord(controller_epoch=7)), encode_record(DELETED))
        )
    )
    machine.apply([first])
    machine.store.connection.execute("ROLLBACK")  # as it does when the disk is full
    with pytest.raises(sqlite3.Error):
        machine.flush()
    with pytest.raises(sqlite3.Error):
        machine.apply([second])
    machine.close()
    machine = CoordinatorMachine(tmp_path, IDENTITY, in_process=True)
    assert (machine.applied.offset, len(machine.store.topics)) == (0, 0)


def test_after_a_checkpoint_the_changed_record_count_includes_only_changes_since_the_freeze(
    tmp_path: Path,
) -> None:
    world = filled(tmp_path)
    machine = world.machine
    world.values()
    before = machine.changed_records
    assert before > 0
    frozen = machine.freeze()
    asyncio.run(run_row(TABLE[61], 61, world))
    world.values()
    after = machine.changed_records
    assert after > before
    machine.checkpointed(machine.applied, 10)
    assert machine.changed_records == after - before
    frozen.close()
