"""Topics as directories of Parquet files: each record once, whatever dies.

Source: docs/design/tables.md#parquet-directories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.object_store import DirectoryStore
from spark_jobs.topic_tables import directory as module
from spark_jobs.topic_tables.directory import LETTERS, DirectoryJob
from spark_jobs.topic_tables.iceberg_table import TakenOverError
from spark_jobs.topic_tables.job import JobError
from spark_jobs.topic_tables.schemas import InferredValues, RawValues, Values
from tests.spark_jobs.test_topic_tables import EXPECTED, DiedError
from tests.spark_jobs.test_topic_tables_decoded import schema
from tests.spark_jobs.topic_tables_world import TOPIC, TablesWorld, tables_world

__all__ = ["tables_world"]


@pytest.fixture
def world(tables_world: TablesWorld) -> TablesWorld:
    """A topic of four records."""
    tables_world.topic.write(0, b"a", None, b"c")
    tables_world.topic.write(1, b"x")
    return tables_world


def started(world: TablesWorld, values: Values | None = None, **settings: Any) -> DirectoryJob:
    directory = world.home / "files"
    directory.mkdir(exist_ok=True)
    made = world.job(**settings)
    job = DirectoryJob(
        made.settings, TOPIC, DirectoryStore(directory), LocalEngine(), values or RawValues()
    )
    job.start()
    return job


def rows(world: TablesWorld, below: str = "") -> list[tuple[int, int, Any]]:
    """Return partition, offset and value of the rows of a directory's files."""
    found = []
    for path in (world.home / "files" / below).glob("*.parquet"):
        names = ("partition", "offset", "value")
        found += [tuple(row.get(name) for name in names) for row in pq.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: row[:2])


def to_end(job: DirectoryJob) -> None:
    while job.step().offsets:
        pass


def test_a_topic_becomes_files_that_duckdb_reads(world: TablesWorld) -> None:
    job = started(world, max_records=2)
    step = job.step()
    assert (step.rows, step.lag.records) == (2, 2)
    to_end(job)
    assert rows(world) == EXPECTED
    count = duckdb.sql(f"select count(*) from '{world.home}/files/*.parquet'").fetchall()
    assert count == [(4,)]
    assert job.step().offsets == 0
    again = started(world)
    assert again.step().offsets == 0
    assert again.lag() == (0, 0.0)


def dying(place: str, calls: int) -> Callable[..., None]:
    """Return a replacement of a method of stores that dies in its nth call."""
    real = getattr(DirectoryStore, place)
    left = [calls]

    def die(self: DirectoryStore, key: str, data: bytes) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise DiedError
        return real(self, key, data)

    return die


@pytest.mark.parametrize("calls", range(6))
def test_a_driver_that_dies_at_any_write_leaves_a_directory_that_goes_on(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    job = started(world, max_records=2)
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStore, "write_new", dying("write_new", calls))
        with pytest.raises(DiedError):
            step_again_and_again(world, job)
    to_end(started(world))
    assert rows(world) == EXPECTED


def step_again_and_again(world: TablesWorld, job: DirectoryJob) -> None:
    to_end(job)
    started(world)
    started(world)
    started(world)


def test_a_driver_that_was_believed_dead_begins_no_batch(world: TablesWorld) -> None:
    zombie = started(world)
    last = started(world)
    with pytest.raises(TakenOverError, match="another driver"):
        zombie.step()
    to_end(last)
    assert rows(world) == EXPECTED


def test_a_zombie_that_still_writes_its_batch_changes_nothing(
    tables_world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict on records counts where its file was first, also for the dead letters."""
    world = tables_world
    world.topic.write(0, b'{"a": 1}', b'{"a": 2, "more": "x"}', b"no")
    zombie = started(world, schema(a="integer"))
    write = module._write
    held: list[Any] = []

    def hold(task: Any) -> Any:
        held.append(task)
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(module, "_write", hold)
        with pytest.raises(DiedError):
            zombie.step()
    last = started(world, schema(a="integer", more="string"))
    assert write(held[0]).rows == 2, "what the last driver's file has"
    to_end(last)
    assert [row[1] for row in rows(world)] == [0, 1]
    assert [row[1] for row in rows(world, LETTERS)] == [2]


@pytest.mark.parametrize("place", ["write_new", "write"])
def test_each_record_is_in_the_files_or_in_the_dead_letters(
    tables_world: TablesWorld, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Killed between a file and its dead letters, the verdict of the file counts."""
    world = tables_world
    world.topic.write(0, b'{"a": 1}', b'{"a": 2, "more": "x"}', b"no", None)
    job = started(world, schema(a="integer"))
    with monkeypatch.context() as patched:
        calls = 1 if place == "write_new" else 0
        patched.setattr(DirectoryStore, place, dying(place, calls))
        with pytest.raises(DiedError):
            job.step()
    to_end(started(world, schema(a="integer", more="string")))
    dead = [1, 2] if place == "write" else [2]
    assert [row[1] for row in rows(world)] == [one for one in range(4) if one not in dead]
    assert [row[1] for row in rows(world, LETTERS)] == dead


def test_inferred_columns_are_known_to_the_next_start(tables_world: TablesWorld) -> None:
    world = tables_world
    world.topic.write(0, b'{"a": 1}')
    to_end(started(world, InferredValues()))
    world.topic.write(0, b'{"a": 2}', b'{"b": 2}')
    to_end(started(world, InferredValues()))
    assert rows(world) == [(0, 0, {"a": 1}), (0, 1, {"a": 2})]
    assert [row[1] for row in rows(world, LETTERS)] == [2]
    world.topic.write(0, b"[]")
    failing = started(world, InferredValues(), on_bad_record="fail")
    with pytest.raises(JobError, match="a bad record at partition 0, offset 3"):
        failing.step()
    to_end(started(world, InferredValues(), on_bad_record="skip"))
    with pytest.raises(JobError, match="its values are decoded"):
        started(world)
