"""Small files of a table become few, while other commits come between; files of no snapshot go.

Source: docs/design/tables.md#compaction-of-tables.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from pyiceberg.table import Table

from spark_jobs.topic_tables import compacting
from spark_jobs.topic_tables.compacting import CompactSettings, compact
from spark_jobs.topic_tables.iceberg_table import TableError
from tests.spark_jobs.test_topic_tables import to_end
from tests.spark_jobs.test_topic_tables_decoded import schema
from tests.spark_jobs.topic_tables_world import NOW_MS, TOPIC, TablesWorld, data_files, tables_world

__all__ = ["tables_world"]

NAME = ("kafka", TOPIC)
DAY_MS = 86_400_000
SETTINGS = CompactSettings(min_files=2, remove_after_s=3_600)


def filled(world: TablesWorld, **settings: Any) -> None:
    """Write six files: five of one day, with two schemas, and one of the next."""
    job = world.started(schema(a="integer"), **settings)
    for number in range(3):
        world.topic.write(0, b'{"a": %d}' % number)
        job.step()
    job = world.started(schema(a="integer", b="string"), **settings)
    for number in range(2):
        world.topic.write(1, b'{"a": %d, "b": "x"}' % number)
        job.step()
    world.topic.write(1, b'{"a": 9}', time_ms=NOW_MS + DAY_MS)
    job.step()


def files(world: TablesWorld) -> list[int]:
    """Return the rows of each file."""
    scan = world.catalog.load_table(NAME).scan()
    return sorted(task.file.record_count for task in scan.plan_files())


def test_small_files_of_one_day_become_one_and_rows_stay(tables_world: TablesWorld) -> None:
    filled(tables_world)
    before = tables_world.rows()
    assert files(tables_world) == [1] * 6
    done = compact(tables_world.catalog, NAME, SETTINGS)
    assert [(one.files, one.rows) for one in done.replaced] == [(5, 5)]
    assert files(tables_world) == [1, 5]
    assert tables_world.rows() == before
    assert compact(tables_world.catalog, NAME, SETTINGS).replaced == ()
    tables_world.topic.write(0, b'{"a": 10}')
    to_end(tables_world.started(schema(a="integer", b="string")))
    assert len(tables_world.rows()) == len(before) + 1


def test_few_files_and_large_ones_are_left_alone(tables_world: TablesWorld) -> None:
    filled(tables_world)
    assert not compact(tables_world.catalog, NAME, SETTINGS._replace(min_files=6)).replaced
    assert not compact(tables_world.catalog, NAME, SETTINGS._replace(target_bytes=100)).replaced
    size = max(path.stat().st_size for path in data_files(tables_world))
    done = compact(tables_world.catalog, NAME, SETTINGS._replace(target_bytes=2 * size + 2))
    assert [one.files for one in done.replaced] == [2, 2], "a group is no larger than one file"
    with pytest.raises(TableError, match=r"no table kafka\.none"):
        compact(tables_world.catalog, ("kafka", "none"), SETTINGS)


def between(monkeypatch: pytest.MonkeyPatch, other_commit: Any) -> None:
    """Let another commit come between the reading and the commit of a compaction."""
    read = compacting._read
    pending = [other_commit]

    def read_and_wait(table: Table, tasks: Any) -> Any:
        rows = read(table, tasks)
        if pending:
            pending.pop()()
        return rows

    monkeypatch.setattr(compacting, "_read", read_and_wait)


def test_a_batch_that_is_committed_between_stays(
    tables_world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tables_world)
    tables_world.topic.write(0, b'{"a": 10}')
    job = tables_world.started(schema(a="integer", b="string"))
    refresh = Table.refresh
    between(monkeypatch, job.step)
    # The first attempt commits on the snapshot that was read, and is refused.
    calls: list[int] = []

    def refresh_late(self: Table) -> Table:
        calls.append(1)
        return refresh(self)

    monkeypatch.setattr(Table, "refresh", refresh_late)
    done = compact(tables_world.catalog, NAME, SETTINGS)
    assert len(calls) >= 3, "refused, then committed on the snapshot of the batch"
    assert [one.rows for one in done.replaced] == [5]
    assert len(tables_world.rows()) == 7


def test_rows_that_are_deleted_between_do_not_come_back(
    tables_world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tables_world, partition_by="none")
    table = tables_world.catalog.load_table(NAME)
    between(monkeypatch, lambda: table.delete("partition = 0 and offset = 1"))
    assert compact(tables_world.catalog, NAME, SETTINGS).replaced == ()
    assert (0, 1) not in [row[:2] for row in tables_world.rows()]
    assert len(tables_world.rows()) == 5


def test_files_of_no_snapshot_go_once_they_are_old(tables_world: TablesWorld) -> None:
    filled(tables_world)
    some = next(iter(data_files(tables_world)))
    young, old = some.with_name("00000099-a.parquet"), some.with_name("00000099-b.parquet")
    strangers = some.parents[1] / "theirs.parquet"
    for path in (young, old, strangers):
        path.write_bytes(b"x")
    assert compact(tables_world.catalog, NAME, SETTINGS).removed == 0
    for path in data_files(tables_world) - {young}:
        os.utime(path, (time.time() - 7_200,) * 2)
    assert compact(tables_world.catalog, NAME, SETTINGS).removed == 1
    left = data_files(tables_world)
    assert (young in left, strangers in left, old in left) == (True, True, False)
    table = tables_world.catalog.load_table(NAME)
    current = table.current_snapshot()
    others = [one.snapshot_id for one in table.metadata.snapshots if one != current]
    table.maintenance.expire_snapshots().by_ids(others).commit()
    assert compact(tables_world.catalog, NAME, SETTINGS).removed == 5, "the compacted ones"
    assert len(tables_world.rows()) == 6
