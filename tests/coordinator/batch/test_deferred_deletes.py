"""A log start that passes very many runs: seen at once, carried out a few at a time.

What may be seen of it is nothing; so each story compares with the coordinator in memory, which
takes everything away at once.

Source: invariants 4 and 8 (docs/design/invariants.md); `coordinator.batch.sqlite.deferred_deletes`.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from coordinator.batch.cluster_view import Enforcer, TopicConfig
from coordinator.batch.describe import describe_topics
from coordinator.batch.memory import InMemoryState
from coordinator.batch.sqlite import deferred_deletes, machine
from coordinator.batch.sqlite import store as store_module
from coordinator.batch.sqlite.deferred_deletes import DeferredDeletes
from coordinator.batch.sqlite.described import described
from coordinator.batch.sqlite.store import Store
from coordinator.batch.sqlite.tables import WholeTable
from records.batch import iter_batches, iter_records
from records.frame import decode_record
from records.rpc.objects import DescribeDisklessTopicsRequest
from records.types import Offset
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    TOPIC,
    Broker,
    batch,
    create,
    delete,
    delete_records,
    find,
    groups,
    offset_for,
)
from tests.coordinator.batch.quorum_world import QuorumWorld, Restart
from tests.coordinator.batch.test_sqlite_machine import read_all
from tests.examples import seeds

RUNS = 40


@contextmanager
def slowly(at_once: int = 3, a_slice: int = 1) -> Iterator[None]:
    """Have few runs deleted with each record."""
    with (
        patch.object(deferred_deletes, "RUNS_WITH_RECORD", at_once),
        patch.object(machine, "RUNS_WITH_SLICE", a_slice),
    ):
        yield


async def filled(directory: Path, runs: int = RUNS, **world: Any) -> tuple[QuorumWorld, Broker]:
    """`runs` runs of ten offsets at 100 ms distance, each in an object of its own; and others."""
    made = QuorumWorld(directory, **world)
    await create(made)
    broker = Broker(made)
    await broker.acquire(10 * runs)
    await broker.commit(topics=groups(batch(0, 10), partition=1))
    for number in range(runs):
        await broker.commit(batch(0, 10, time=100 * number))
    return made, broker


def oracle(world: QuorumWorld) -> InMemoryState:
    """The in-memory state of the log's committed records."""
    state = InMemoryState()
    for one in iter_batches(world.log.read(Offset(0), 1 << 26)):
        if not one.header.is_control:
            for record in iter_records(one):
                state.apply(record.offset, decode_record(record.value))
    state.check_invariants()
    return state


def rows(store: Store) -> int:
    store.flush()
    found: int = store.connection.execute("SELECT COUNT(*) FROM runs").fetchone()[0]
    return found


def check_tallies(store: Store) -> None:
    """Check that a partition's counts equal its rows, or are reported as unknown."""
    for log_id, (log_start_offset, _) in store.logs.items():
        live = list(store.runs_from(log_id, log_start_offset))
        counted = store.run_totals(log_id)
        assert counted in (None, (len(live), sum(run.byte_size for run in live))), log_id


def test_a_new_log_start_is_visible_before_the_database_rows_below_it_are_deleted(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        world, broker = await filled(tmp_path)
        before = rows(world.machine.store)
        with slowly():
            assert await delete_records(world, 10 * RUNS - 15) == (0, 10 * RUNS - 15)
            assert before - rows(world.machine.store) == 4, "three with the record, one after it"
            assert await offset_for(world, -2) == (0, 10 * RUNS - 15)
            assert (await find(world, (0, 0)))[0].error_code == 1
            assert (await find(world, (0, 10 * RUNS - 20)))[0].error_code == 1
            (found,) = await find(world, (0, 10 * RUNS - 15))
            assert [b.base_offset for b in found.batches] == [10 * RUNS - 20, 10 * RUNS - 10]
            assert await offset_for(world, 0) == (0, 10 * RUNS - 15)
            assert await offset_for(world, 100 * RUNS - 100) == (0, 10 * RUNS - 10)
            assert await offset_for(world, 100 * RUNS) == (0, -1)
            assert await offset_for(world, -3) == (0, 10 * RUNS - 10)
            assert world.values() == oracle(world).checkpoint()
            left = rows(world.machine.store)
            await broker.commit(batch(0, 10))
            assert rows(world.machine.store) == left, "one came, one went"
            await world.advance(1)
            assert len(world.machine.store.deferred_deletes) == 0
            assert rows(world.machine.store) == 4
            assert world.values() == oracle(world).checkpoint()
        await world.close()

    asyncio.run(story())


def test_deleting_all_runs_of_a_partition_leaves_an_empty_log(tmp_path: Path) -> None:
    async def story() -> None:
        world, _ = await filled(tmp_path)
        with slowly(at_once=0):
            assert await delete_records(world, -1) == (0, 10 * RUNS)
            assert await offset_for(world, -3) == (0, -1)
            assert await offset_for(world, 0) == (0, -1)
            assert (await find(world, (0, 10 * RUNS)))[0].batches == ()
            assert world.values() == oracle(world).checkpoint()
        await world.close()

    asyncio.run(story())


@pytest.mark.parametrize("how", list(Restart))
def test_a_restarted_coordinator_continues_the_deferred_deletion_of_database_rows(
    tmp_path: Path, how: Restart
) -> None:
    async def story() -> None:
        world, broker = await filled(tmp_path, restarts=(how,))
        with slowly():
            await delete_records(world, 10 * RUNS - 15)
            await world.restart()
            if how is Restart.SAME_FILE:
                assert rows(world.machine.store) > RUNS // 2, "nothing went meanwhile"
            assert world.values() == oracle(world).checkpoint()
            await world.advance(1)
            await broker.commit(batch(0, 10))
            assert rows(world.machine.store) == 4
            assert world.values() == oracle(world).checkpoint()
        await world.close()

    asyncio.run(story())


@pytest.mark.slow  # a child process writes the checkpoint
def test_a_checkpoint_leaves_out_deleted_runs_of_batches_whose_rows_remain(tmp_path: Path) -> None:
    """A child scans a copy while the rows are deleted."""

    async def story() -> None:
        world, broker = await filled(tmp_path)
        with slowly():
            await delete_records(world, 10 * RUNS - 15)
            expected = oracle(world).checkpoint()
            world.machine._in_process = False
            frozen = world.machine.freeze()
            await world.advance(1)
            await broker.commit(batch(0, 10))
            assert read_all(frozen.values()) == expected
            frozen.close()
        await world.close()

    asyncio.run(story())


def test_a_coordinators_topic_descriptions_do_not_count_deleted_batches(tmp_path: Path) -> None:
    async def story() -> None:
        world, _ = await filled(tmp_path)
        with slowly():
            await delete_records(world, 10 * RUNS - 15)
            world.machine.flush()
            asked = DescribeDisklessTopicsRequest(coordinator_partition=0)
            told = described(world.machine.path, lambda state: describe_topics(asked, state))
            assert told == describe_topics(asked, oracle(world))
            partition = told.topics[0].partitions[0]
            assert (partition.run_count, partition.stored_bytes) == (2, 200)
        await world.close()

    asyncio.run(story())


def test_an_object_is_marked_for_deletion_only_after_the_rows_of_its_runs_are_deleted(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        world, broker = await filled(tmp_path)
        with slowly():
            await delete_records(world, -1)
            store = world.machine.store
            assert len(store.unused_objects(1_000)) == 4
            await world.advance(1)
            await world.advance(world.settings.file_delete_delay_ms)
            assert len(await broker.files(limit=1_000)) == RUNS
            assert world.values() == oracle(world).checkpoint()
        await world.close()

    asyncio.run(story())


def test_a_topic_whose_deferred_row_deletions_are_not_done_can_be_deleted(tmp_path: Path) -> None:
    """Its partitions leave the tables while some of their rows remain."""

    async def story() -> None:
        world, _ = await filled(tmp_path)
        await create(world, OTHER_TOPIC)
        with slowly(at_once=2, a_slice=0):
            await delete_records(world, 10 * RUNS - 35)
            await delete(world, TOPIC)
            with patch.object(Store, "delete_dead_runs"):
                await world.advance(1)
                assert world.values() == oracle(world).checkpoint()
                assert rows(world.machine.store) > RUNS // 2
                assert all(log_id < 0 for log_id in world.machine.store.topics[TOPIC].log_ids)
            await world.restart()
            await world.advance(1)
            assert rows(world.machine.store) == 0
            assert len(world.machine.store.deferred_deletes) == 0
            assert world.values() == oracle(world).checkpoint()
        await world.close()

    asyncio.run(story())


def test_retention_by_size_plans_no_log_start_until_deferred_row_deletions_are_done(
    tmp_path: Path,
) -> None:
    """If dead rows counted as kept bytes, retention would delete too much."""

    async def story() -> None:
        world, _ = await filled(tmp_path)
        world.view.configs[TOPIC] = TopicConfig(
            retention_ms=None, retention_bytes=300, enforcer=Enforcer.COORDINATOR
        )
        with slowly(at_once=1, a_slice=0), patch.object(Store, "delete_dead_runs"):
            await delete_records(world, 10 * RUNS - 35)
            await world.advance(1)
            assert await offset_for(world, -2) == (0, 10 * RUNS - 35)
        with slowly():
            await world.advance(1)
            await world.advance(1)
            assert await offset_for(world, -2) == (0, 10 * RUNS - 30)
        await world.close()

    asyncio.run(story())


async def whatever_happens(directory: Path, seed: int) -> None:
    """Commit, delete, maintain and restart; after each the checkpoint equals the oracle's."""
    rng = random.Random(seed)
    world, broker = await filled(directory, runs=10)
    with slowly(rng.randrange(4), rng.randrange(3)):
        for _ in range(60):
            partition = rng.randrange(2)
            match rng.randrange(6):
                case 0 | 1 | 2:
                    topics = groups(batch(0, 3, time=rng.randrange(99)), partition=partition)
                    await broker.commit(topics=topics)
                case 3:
                    _, end = await offset_for(world, -1, partition=partition)
                    await delete_records(world, rng.randint(0, end), partition=partition)
                case 4:
                    await world.coordinator.run_maintenance()
                case 5:
                    await world.restart()
                    await broker.acquire(100)
            assert world.values() == oracle(world).checkpoint(), f"seed {seed}"
            check_tallies(world.machine.store)
    await world.close()


@pytest.mark.parametrize("seed", seeds(6))
def test_deferred_row_deletions_change_no_response_to_a_random_workload(
    tmp_path: Path, seed: int
) -> None:
    """Reproduce: pytest -k change_no_response on this file; the id is the seed."""
    asyncio.run(whatever_happens(tmp_path, seed))


MUTANTS: dict[str, tuple[object, str, object]] = {
    "forgets at a restart what is left": (deferred_deletes, "unpacked", lambda _: {}),
    "takes dead bytes for used ones": (
        DeferredDeletes,
        "used_objects",
        lambda *_: "SELECT * FROM objects",
    ),
    "takes away what lives": (
        DeferredDeletes,
        "enqueue",
        lambda self, _, tally, below, since, limit: self._runs.drop_below(
            tally, below + 4, since, limit
        )[0],
    ),
    "forgets what it did not take away": (
        DeferredDeletes,
        "enqueue",
        lambda self, _, tally, below, since, limit: self._runs.drop_below(
            tally, below, since, limit
        )[0],
    ),
}


PINNED_SEED = 2  # finds each of them


@pytest.mark.parametrize("name", MUTANTS)
def test_a_random_workload_finds_each_mutant_of_deferred_row_deletions(
    tmp_path: Path, name: str
) -> None:
    where, attribute, wrong = MUTANTS[name]
    with patch.object(where, attribute, wrong), pytest.raises((AssertionError, sqlite3.Error)):
        asyncio.run(whatever_happens(tmp_path, PINNED_SEED))


async def what_went_is_gone_after_a_restart_too(directory: Path) -> None:
    """Maintenance deletes rows with no record and no new log start: that is written as well."""
    world, _ = await filled(directory, restarts=(Restart.SAME_FILE,))
    with slowly(at_once=0, a_slice=0):
        await delete_records(world, 10 * RUNS - 15)
        world.machine.flush()
        (log_id, _) = world.machine.store.topics[TOPIC].log_ids
        for left in (5, 0):
            world.machine.store.delete_dead_runs(RUNS - 2 - left if left else 5)
            await world.restart()
            store = world.machine.store
            assert store.run_totals(log_id) == (None if left else (2, 200))
            assert store.tallies[log_id].row()[:2] == (2 + left, 100 * (2 + left))
            assert len(store.deferred_deletes) == (1 if left else 0)
    await world.close()


def test_database_rows_of_batches_that_were_deleted_stay_deleted_after_a_coordinator_restart(
    tmp_path: Path,
) -> None:
    asyncio.run(what_went_is_gone_after_a_restart_too(tmp_path))


class _Unmarked(WholeTable[Any, Any]):
    """A row that is set to an equal value is not written, although its tally has changed."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.get(key) != value:
            super().__setitem__(key, value)


@pytest.mark.parametrize("name", ["tallies", "graves"])
def test_the_restart_test_of_deferred_deletions_detects_a_changed_row_that_is_not_marked_dirty(
    tmp_path: Path, name: str
) -> None:
    """The cache does not know that SQLite lacks the change."""
    wrong: Any
    if name == "tallies":
        wrong = patch.object(store_module, "WholeTable", _Unmarked)
    else:
        unmarked = property(lambda _: False, lambda _, __: None)
        wrong = patch.object(DeferredDeletes, "is_changed", unmarked, create=True)
    with wrong, pytest.raises(AssertionError):
        asyncio.run(what_went_is_gone_after_a_restart_too(tmp_path))


def test_one_step_of_deferred_row_deletions_deletes_a_bounded_number_of_rows(
    tmp_path: Path,
) -> None:
    """One step writes as many rows with 400 dead runs as with 4,000."""

    async def cost(directory: Path, runs: int) -> int:
        directory.mkdir()
        world, _ = await filled(directory, runs=runs)
        with slowly(at_once=50, a_slice=0):
            await delete_records(world, -1)
            store = world.machine.store
            store.flush()
            before = store.connection.total_changes
            store.delete_dead_runs(50)
            changes = store.connection.total_changes - before
        await world.close()
        return changes

    async def story() -> None:
        few, many = await cost(tmp_path / "few", 400), await cost(tmp_path / "many", 4_000)
        assert few <= 130, "fifty runs, their objects, some spans"
        assert many <= 130

    asyncio.run(story())
