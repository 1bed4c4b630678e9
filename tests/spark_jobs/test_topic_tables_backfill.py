"""What was before a table's begin is added, also while `run` takes the table on.

Source: docs/design/tables.md#backfill.
"""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.topic_tables.iceberg_table import IcebergTable, TakenOverError
from spark_jobs.topic_tables.job import JobError, TopicJob
from spark_jobs.topic_tables.schemas import RawValues, Values
from tests.spark_jobs.test_topic_tables import EXPECTED, DiedError, to_end
from tests.spark_jobs.test_topic_tables_decoded import LETTERS, die_before_rows, schema
from tests.spark_jobs.topic_tables_world import TOPIC, TablesWorld, tables_world

__all__ = ["tables_world"]


@pytest.fixture
def world(tables_world: TablesWorld) -> TablesWorld:
    """A topic of four records, whose table will begin behind them."""
    tables_world.topic.write(0, b"a", None, b"c")
    tables_world.topic.write(1, b"x")
    return tables_world


def backfilling(world: TablesWorld, values: Values | None = None, **settings: Any) -> TopicJob:
    made = world.job(**settings)
    job = TopicJob(
        made.settings, TOPIC, world.catalog, made.engine, values or RawValues(), backwards=True
    )
    job.start()
    return job


def test_a_table_that_began_late_gains_what_was_before_beside_its_run(world: TablesWorld) -> None:
    run = world.started(starting="latest")
    world.topic.write(0, b"later")
    back = backfilling(world, max_records=2)
    assert back.lag().records == 4
    assert (back.step().rows, world.rows()) == (2, [(0, 2, b"c"), (1, 0, b"x")])
    assert run.step().rows == 1, "another role's commit is built upon"
    assert back.step().lag.records == 0
    world.topic.write(1, b"last")
    to_end(run)
    assert back.step().offsets == 0
    expected = [*EXPECTED[:3], (0, 3, b"later"), EXPECTED[3], (1, 1, b"last")]
    assert world.rows() == expected
    to_end(backfilling(world))
    to_end(world.started())
    assert world.rows() == expected


def test_a_backfill_that_dies_goes_on_and_a_second_one_takes_over(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.started(starting="latest")
    first = backfilling(world, max_records=2)
    first.step()
    append = IcebergTable._append

    def commit_and_die(self: IcebergTable, *arguments: Any) -> None:
        append(self, *arguments)
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "_append", commit_and_die)
        with pytest.raises(DiedError):
            first.step()
    to_end(backfilling(world))
    assert world.rows() == EXPECTED
    world.topic.log_starts[0] = 0
    with pytest.raises(TakenOverError):
        first._commit([], {0: 0})


def test_a_table_that_began_at_the_first_offset_has_nothing_before(world: TablesWorld) -> None:
    with pytest.raises(JobError, match="make it with"):
        backfilling(world)
    to_end(world.started())
    assert backfilling(world).step().offsets == 0
    assert world.rows() == EXPECTED


def test_deleted_records_are_not_looked_for(world: TablesWorld) -> None:
    world.started(starting="latest")
    world.topic.log_starts[0] = 2
    to_end(backfilling(world))
    assert world.rows() == EXPECTED[2:]


def test_a_backfill_that_dies_between_its_two_commits_repeats_no_dead_letter(
    tables_world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = tables_world
    world.topic.write(0, b'{"a": 1}', b"no", b'{"a": 3}', b'{"a": 4, "more": ""}')
    world.started(schema(a="integer"), starting="latest")
    job = backfilling(world, schema(a="integer"), max_records=2)
    job.step()
    with monkeypatch.context() as patched:
        die_before_rows(patched)
        with pytest.raises(DiedError):
            job.step()
    again = backfilling(world, schema(a="integer", more="string"))
    assert again.skip == {(0, 1)}
    to_end(again)
    assert again.skip == frozenset()
    assert [row[:2] for row in world.rows()] == [(0, 0), (0, 2)]
    assert [row[:2] for row in world.rows(LETTERS)] == [(0, 1), (0, 3)]
