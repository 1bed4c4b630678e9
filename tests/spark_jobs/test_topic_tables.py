"""Topics as Iceberg tables: whatever dies, and whoever commits between, each record is there once.

Source: docs/design/tables.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from spark_jobs.topic_tables import iceberg_table as iceberg_module
from spark_jobs.topic_tables import job as job_module
from spark_jobs.topic_tables.iceberg_table import (
    NO_RETRIES,
    IcebergTable,
    TableError,
    TakenOverError,
)
from spark_jobs.topic_tables.job import JobError, TopicJob
from spark_jobs.topic_tables.progress import RUN, Progress, ProgressError
from spark_jobs.topic_tables.schemas import RawValues
from spark_jobs.topics.coordinates import LostOffsetsError
from tests.spark_jobs.topic_tables_world import (
    NOW_MS,
    TOPIC,
    TablesWorld,
    data_files,
    let_workers_write_elsewhere,
    tables_world,
)

__all__ = ["tables_world"]

EXPECTED = [(0, 0, b"a"), (0, 1, None), (0, 2, b"c"), (1, 0, b"x")]


class DiedError(BaseException):
    """Stands for SIGKILL: no handler of the job catches it."""


@pytest.fixture
def world(tables_world: TablesWorld) -> TablesWorld:
    """A topic of four records."""
    tables_world.topic.write(0, b"a", None, b"c")
    tables_world.topic.write(1, b"x")
    return tables_world


def to_end(job: TopicJob) -> None:
    """Take a table on until no record is missing."""
    while job.step().offsets:
        pass


def test_a_topic_becomes_a_table_that_pyiceberg_and_duckdb_read(world: TablesWorld) -> None:
    world.topic.write(1, b"next day", time_ms=NOW_MS + 86_400_000)
    job = world.started(max_records=2)
    to_end(job)
    assert world.rows() == [*EXPECTED, (1, 1, b"next day")]
    table = world.catalog.load_table(("kafka", TOPIC))
    assert [field.name for field in table.spec().fields] == ["day"]
    scan = table.scan(row_filter="timestamp >= '2023-11-15T12:00:00+00:00'")
    assert [file.file.record_count for file in scan.plan_files()] == [1], "other days are skipped"
    files = [file.file.file_path.removeprefix("file://") for file in table.scan().plan_files()]
    counted = duckdb.sql(f"select count(*), max(key) from read_parquet({files})").fetchall()
    assert counted == [(5, b"k")]
    connection = table.scan().to_duckdb("orders")
    assert connection.sql("select max(value) from orders").fetchall() == [(b"x",)]


def test_a_step_without_new_records_commits_nothing(world: TablesWorld) -> None:
    job = world.started()
    to_end(job)
    before = len(world.catalog.load_table(("kafka", TOPIC)).metadata.snapshots)
    assert job.step().rows == 0
    assert len(world.catalog.load_table(("kafka", TOPIC)).metadata.snapshots) == before


def test_the_lag_counts_records_that_the_table_lacks_and_the_age_of_its_newest(
    world: TablesWorld,
) -> None:
    job = world.started(max_records=1)
    assert job.lag().records == 4
    step = job.step()
    assert (step.rows, step.lag.records) == (2, 2), "one record of each partition at the least"
    assert step.lag.seconds > 86_400
    to_end(job)
    assert job.lag() == (0, 0.0)


# --- a driver dies ------------------------------------------------------------------------------


def step_and_start(world: TablesWorld, job: TopicJob) -> None:
    job.step()
    world.started()


def dies(*_: Any, **__: Any) -> None:
    raise DiedError


@pytest.mark.parametrize(
    "place",
    [
        (TopicJob, "_write"),
        (TopicJob, "_commit"),
        (IcebergTable, "_check_files"),
        (IcebergTable, "_append"),
        (IcebergTable, "_remove_uncommitted"),
    ],
    ids=lambda place: place[1],
)
def test_a_driver_that_dies_at_any_step_leaves_a_table_that_goes_on(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    first = world.started(max_records=2)
    first.step()
    with monkeypatch.context() as patched:
        patched.setattr(*place, dies)
        with pytest.raises(DiedError):
            step_and_start(world, first)
    to_end(world.started())
    assert world.rows() == EXPECTED


def test_a_driver_that_dies_after_its_commit_repeats_no_row(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = IcebergTable._append

    def commit_and_die(self: IcebergTable, *arguments: Any) -> None:
        append(self, *arguments)
        raise DiedError

    job = world.started()
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "_append", commit_and_die)
        with pytest.raises(DiedError):
            job.step()
    to_end(world.started())
    assert world.rows() == EXPECTED


def test_a_start_removes_the_files_that_the_former_driver_did_not_commit(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.started(max_records=2)
    job.step()
    committed = data_files(world)
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "commit", dies)
        with pytest.raises(DiedError):
            job.step()
    left = data_files(world)
    assert left > committed
    world.started()
    assert data_files(world) == committed


# --- two drivers --------------------------------------------------------------------------------


def test_a_driver_that_was_believed_dead_commits_nothing_more(world: TablesWorld) -> None:
    zombie = world.started()
    last = world.started()
    with pytest.raises(TakenOverError, match="another driver"):
        zombie.step()
    assert world.rows() == []
    to_end(last)
    assert world.rows() == EXPECTED


def test_without_the_rule_on_conflicts_two_drivers_double_rows(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a refused commit is repeated, as PyIceberg does by itself."""
    zombie = world.started()
    to_end(world.started())
    reload = IcebergTable._reload

    def reload_and_believe(self: IcebergTable) -> None:
        before = self.progress
        reload(self)
        self._progress = before

    monkeypatch.setattr(IcebergTable, "_reload", reload_and_believe)
    zombie.step()
    assert len(world.rows()) == 2 * len(EXPECTED)


def test_a_table_whose_commits_pyiceberg_repeats_by_itself_is_refused(world: TablesWorld) -> None:
    world.started()
    with world.catalog.load_table(("kafka", TOPIC)).transaction() as transaction:
        transaction.set_properties({NO_RETRIES: "4"})
    with pytest.raises(TableError, match=r"commit\.retry\.num-retries is 4"):
        world.started()


def test_with_a_catalogues_own_retries_two_drivers_double_rows(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the table lets PyIceberg repeat commits."""
    monkeypatch.setattr(IcebergTable, "check_ours", lambda _: None)
    zombie = world.started()
    with world.catalog.load_table(("kafka", TOPIC)).transaction() as transaction:
        transaction.set_properties({NO_RETRIES: "4", "commit.retry.min-wait-ms": "1"})
    zombie.rows.load()
    to_end(world.started())
    zombie.step()
    assert len(world.rows()) == 2 * len(EXPECTED)


def test_two_starts_at_once_leave_one_driver(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.job()
    append = IcebergTable._append
    other: list[TopicJob] = []

    def interrupted(self: IcebergTable, *arguments: Any) -> None:
        if not other:
            other.append(world.job())
            other[0].start()
        append(self, *arguments)

    monkeypatch.setattr(IcebergTable, "_append", interrupted)
    first.start()
    with pytest.raises(TakenOverError):
        other[0].step()
    to_end(first)
    assert world.rows() == EXPECTED


# --- the catalogue ------------------------------------------------------------------------------


def test_a_commit_of_another_tool_between_is_built_upon(world: TablesWorld) -> None:
    job = world.started(max_records=2, partition_by="none")
    job.step()
    world.catalog.load_table(("kafka", TOPIC)).delete("offset = 0 and partition = 1")
    to_end(job)
    assert world.rows() == EXPECTED[:-1]


@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_whose_answer_is_lost_lands_once(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    append = IcebergTable._append
    lost = []

    def lose_answer(self: IcebergTable, *arguments: Any) -> None:
        if lost or lands:
            append(self, *arguments)
        if not lost:
            lost.append(True)
            raise CommitStateUnknownException("504")

    job = world.started()
    monkeypatch.setattr(IcebergTable, "_append", lose_answer)
    to_end(job)
    assert world.rows() == EXPECTED


def test_a_catalogue_that_refuses_every_commit_is_told_and_nothing_is_lost(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise CommitFailedException("no")

    job = world.started()
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "_append", refuse)
        patched.setattr(iceberg_module, "PAUSE_S", 0)
        with pytest.raises(CommitFailedException):
            job.step()
    job.start()
    to_end(job)
    assert world.rows() == EXPECTED


def edit(world: TablesWorld, change: Callable[[Any], None]) -> None:
    with world.catalog.load_table(("kafka", TOPIC)).transaction() as transaction:
        change(transaction)


def test_expired_snapshots_do_not_make_a_start_write_rows_again(world: TablesWorld) -> None:
    to_end(world.started(partition_by="none"))
    table = world.catalog.load_table(("kafka", TOPIC))
    table.delete("offset = 2")
    table.refresh()
    current = table.current_snapshot()
    assert current is not None
    old = [one.snapshot_id for one in table.metadata.snapshots if one != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    to_end(world.started())
    assert world.rows() == [row for row in EXPECTED if row[1] != 2]


def test_many_commits_leave_few_snapshots_and_all_rows(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits copy the metadata of all snapshots that there are."""
    monkeypatch.setattr(iceberg_module, "EXPIRED_AT_ONCE", 2)
    job = world.started(max_records=1)
    edit(world, lambda one: one.set_properties({iceberg_module.KEEP_SNAPSHOTS: "1"}))
    to_end(job)
    world.topic.write(0, b"more")
    to_end(job)
    assert len(world.catalog.load_table(("kafka", TOPIC)).metadata.snapshots) <= 2
    assert job.rows.progress.batch == 4
    to_end(world.started())
    assert world.rows() == [*EXPECTED[:3], (0, 3, b"more"), EXPECTED[3]]


def test_a_table_that_lost_its_progress_is_refused(world: TablesWorld) -> None:
    to_end(world.started())
    edit(world, lambda transaction: transaction.remove_properties(RUN))
    with pytest.raises(ProgressError, match=r"is gone\. Its newest snapshot says"):
        world.started()


def test_a_table_that_another_tool_made_is_refused(world: TablesWorld) -> None:
    world.started()
    table = world.catalog.load_table(("kafka", TOPIC))
    schema = table.schema()
    world.catalog.drop_table(("kafka", TOPIC))
    world.catalog.create_table(("kafka", TOPIC), schema, properties={NO_RETRIES: "0"})
    with pytest.raises(TableError, match="was not made by this job"):
        world.started()


def test_a_table_that_was_rolled_back_is_refused(world: TablesWorld) -> None:
    job = world.started(max_records=2)
    job.step()
    table = world.catalog.load_table(("kafka", TOPIC))
    before = table.current_snapshot()
    assert before is not None
    to_end(job)
    table.refresh()
    table.manage_snapshots().set_current_snapshot(before.snapshot_id).commit()
    with pytest.raises(ProgressError, match="was the table rolled back"):
        world.started()


def test_a_batch_without_rows_takes_the_table_on_by_a_conditional_commit(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of aborted transactions have no rows. A zombie must not set offsets back either."""
    zombie = world.started()
    to_end(world.started())
    monkeypatch.setattr(job_module, "plan", lambda *_: [])
    with pytest.raises(TakenOverError):
        zombie.step()
    world.topic.write(0, b"aborted")
    job = world.started()
    assert job.step().offsets == 1
    assert job.rows.progress.offsets[0] == 4
    assert world.rows() == EXPECTED


# --- the files and the topic --------------------------------------------------------------------


def test_files_that_the_driver_does_not_see_are_not_committed(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker wrote into a directory of its own that has the same name."""
    job = world.started()
    with monkeypatch.context() as patched:
        let_workers_write_elsewhere(world, patched)
        with pytest.raises(TableError, match="do all workers share this directory"):
            job.step()
    to_end(job)
    assert world.rows() == EXPECTED


def test_deleted_records_stop_the_table_unless_it_may_skip_them(world: TablesWorld) -> None:
    job = world.started()
    world.topic.log_starts[0] = 2
    with pytest.raises(LostOffsetsError):
        job.step()
    source = {**job.settings.source, "failOnDataLoss": "false"}
    job = world.job()
    job = TopicJob(
        job_module.JobSettings(source=source, namespace=("kafka",)),
        TOPIC,
        world.catalog,
        job.engine,
        RawValues(),
    )
    job.start()
    to_end(job)
    assert world.rows() == EXPECTED[2:]


def test_a_topic_that_was_created_again_stops_its_table(world: TablesWorld) -> None:
    to_end(world.started())
    world.topic.runs = [[], []]
    with pytest.raises(JobError, match="was it deleted and created again"):
        world.started().step()


def test_two_topics_whose_tables_would_have_one_name_are_told_apart(world: TablesWorld) -> None:
    world.started()
    edit(world, lambda transaction: transaction.set_properties({job_module.TOPIC: "or.ders"}))
    with pytest.raises(JobError, match=r"records of topic or\.ders"):
        world.started()


def test_a_table_that_begins_at_the_latest_offset_has_later_records_only(
    world: TablesWorld,
) -> None:
    job = world.started(starting="latest")
    world.topic.write(0, b"later")
    to_end(job)
    assert world.rows() == [(0, 3, b"later")]


def test_a_partition_that_was_added_is_read_from_its_begin(world: TablesWorld) -> None:
    job = world.started()
    to_end(job)
    world.topic.runs.append([])
    world.topic.log_starts.append(0)
    world.topic.write(2, b"new")
    to_end(job)
    assert world.rows() == [*EXPECTED, (2, 0, b"new")]


def test_a_namespace_of_several_levels_is_made(world: TablesWorld) -> None:
    table = IcebergTable(world.catalog, ("a", "t"), RUN)
    start = Progress(driver="", batch=0, offsets={})
    table.create(("key", "timestamp"), partition_by="hour", start=start)
    assert (table.partition_by, table.progress) == ("hour", start)
