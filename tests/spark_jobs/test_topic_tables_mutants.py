"""Mutants of the job: without one rule of its, rows are there twice, or are missing.

Each test takes a rule away and shows the damage, and that the rule prevents it. Three more mutants
stand beside what they are about: `tests.spark_jobs.test_topic_tables` (refused commits that are
repeated, a catalogue's own retries) and `tests.spark_jobs.test_topic_tables_decoded` (the verdict
on a dead letter).

Source: docs/design/tables.md.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.object_store import DirectoryStore
from spark_jobs.topic_tables import compacting
from spark_jobs.topic_tables import directory as directory_module
from spark_jobs.topic_tables import iceberg_table as iceberg_module
from spark_jobs.topic_tables.compacting import compact
from spark_jobs.topic_tables.directory import DirectoryJob
from spark_jobs.topic_tables.iceberg_table import IcebergTable, TakenOverError
from spark_jobs.topic_tables.job import JobError
from spark_jobs.topic_tables.progress import RUN, Progress, ProgressError
from tests.spark_jobs import test_topic_directories as directories
from tests.spark_jobs.test_topic_directories import started as started_directory
from tests.spark_jobs.test_topic_tables import EXPECTED, to_end
from tests.spark_jobs.test_topic_tables_compacting import NAME, SETTINGS, between, filled
from tests.spark_jobs.topic_tables_world import (
    TablesWorld,
    let_workers_write_elsewhere,
    tables_world,
)

__all__ = ["tables_world"]

Patch = pytest.MonkeyPatch


@pytest.fixture
def world(tables_world: TablesWorld) -> TablesWorld:
    """A topic of four records."""
    tables_world.topic.write(0, b"a", None, b"c")
    tables_world.topic.write(1, b"x")
    return tables_world


# --- progress -----------------------------------------------------------------------------------


def expire_all_but_the_current_snapshot(world: TablesWorld) -> None:
    """Let another tool commit, and expire the snapshots that have progress."""
    table = world.catalog.load_table(NAME)
    table.append(table.scan().to_arrow().slice(0, 0))
    table.refresh()
    current = table.current_snapshot()
    old = [one.snapshot_id for one in table.metadata.snapshots if one != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def test_with_progress_in_snapshots_alone_their_expiry_doubles_rows(
    world: TablesWorld, monkeypatch: Patch
) -> None:
    to_end(world.started())
    expire_all_but_the_current_snapshot(world)
    to_end(world.started())
    assert world.rows() == EXPECTED
    expire_all_but_the_current_snapshot(world)

    def of_snapshots(key: str, _: Any, summaries: Any) -> Progress:
        texts = [one[key] for one in summaries if one is not None and key in one]
        return Progress.from_json(texts[0]) if texts else Progress(driver="", batch=0, offsets={})

    monkeypatch.setattr(iceberg_module, "find_progress", of_snapshots)
    to_end(world.started())
    assert len(world.rows()) == 2 * len(EXPECTED)


def test_with_progress_in_the_property_alone_a_rollback_loses_rows(
    world: TablesWorld, monkeypatch: Patch
) -> None:
    job = world.started(max_records=2)
    job.step()
    table = world.catalog.load_table(NAME)
    before = table.current_snapshot()
    assert before is not None
    to_end(job)
    table.refresh()
    table.manage_snapshots().set_current_snapshot(before.snapshot_id).commit()
    with pytest.raises(ProgressError, match="was the table rolled back"):
        world.started()
    monkeypatch.setattr(
        iceberg_module,
        "find_progress",
        lambda _, texts, __: Progress.from_json(texts[RUN]),
    )
    to_end(world.started())
    assert len(world.rows()) < len(EXPECTED)


# --- files that the driver does not see ---------------------------------------------------------


def test_without_a_look_at_each_file_pyiceberg_refuses_those_that_are_not_there(
    world: TablesWorld, monkeypatch: Patch
) -> None:
    """So the rule costs no rows where it is missing: it is for the sentence."""
    job = world.started()
    with monkeypatch.context() as patched:
        let_workers_write_elsewhere(world, patched)
        patched.setattr(IcebergTable, "_check_files", lambda *_: None)
        patched.setattr(iceberg_module, "PAUSE_S", 0)
        with pytest.raises(FileNotFoundError):
            job.step()
    to_end(world.started())
    assert world.rows() == EXPECTED


# --- directories --------------------------------------------------------------------------------


def test_without_the_condition_on_batch_files_two_drivers_double_rows(
    world: TablesWorld, monkeypatch: Patch
) -> None:
    zombie, last = started_directory(world, max_records=2), started_directory(world)
    with pytest.raises(TakenOverError):
        zombie.step()

    def put(self: DirectoryJob, batch: directory_module.Batch) -> None:
        self.store.write(f"{directory_module.BATCHES}{batch.progress.batch:020d}.json",
                         batch.to_json())  # fmt: skip
        self._last = batch

    monkeypatch.setattr(DirectoryJob, "_put", put)
    directories.to_end(last)
    directories.to_end(zombie)
    assert len(directories.rows(world)) > len(EXPECTED)


class OtherDisk(LocalEngine):
    """A worker whose directory is another disk than the driver's."""

    def __init__(self, world: TablesWorld) -> None:
        super().__init__()
        path = world.home / "other-disk"
        path.mkdir(exist_ok=True)
        self.store = DirectoryStore(path)

    def run(self, task: Any, work: Any, *_: Any, **__: Any) -> Any:
        return super().run(task, [one._replace(store=self.store) for one in work])


def test_without_a_look_at_each_file_a_directory_that_workers_do_not_share_loses_rows(
    world: TablesWorld, monkeypatch: Patch
) -> None:
    job = started_directory(world, max_records=2)
    job.step()
    job.engine = OtherDisk(world)
    with pytest.raises(JobError, match="do all workers share this directory"):
        job.step()
    job = started_directory(world)
    directories.to_end(job)
    assert directories.rows(world) == EXPECTED, "this start has written what was missing"

    monkeypatch.setattr(DirectoryJob, "_check_written", lambda *_: None)
    world.topic.write(0, b"d")
    job.engine = OtherDisk(world)
    assert (job.step().rows, job.step().offsets) == (1, 0)
    assert directories.rows(world) == EXPECTED, "the row is lost, and the job says that it is there"


# --- compaction ---------------------------------------------------------------------------------


class DeleteManifest(ManifestWriterV2):
    """A manifest of delete files, which PyIceberg reads and does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class DeleteByPosition(_FastAppendFiles):
    """A commit of one delete file."""

    def __init__(self, transaction: Transaction, io: FileIO, file: DataFile) -> None:
        super().__init__(Operation.DELETE, transaction, io)
        self._file = file

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self.new_manifest_output()
        with DeleteManifest(
            metadata.spec(), metadata.schema(), output, self._snapshot_id, self._compression
        ) as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=self._file,
            )
            writer.add_entry(entry)
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_the_first_row_of_a_file(world: TablesWorld, path: str) -> None:
    """Delete a row as Spark and Trino do with merge-on-read: the data file stays."""
    table = world.catalog.load_table(NAME)
    deletes = path.replace(".parquet", "-deletes.parquet")
    content = pa.table({"file_path": [path], "pos": pa.array([0], pa.int64())})
    with table.io.new_output(deletes).create() as stream:
        pq.write_table(content, stream)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=deletes,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=len(table.io.new_input(deletes)),
        spec_id=table.metadata.default_spec_id,
    )
    file.spec_id = table.metadata.default_spec_id
    with table.transaction() as transaction:
        DeleteByPosition(transaction, table.io, file).commit()


def test_without_a_look_at_delete_files_rows_that_another_tool_deletes_come_back(
    tables_world: TablesWorld, monkeypatch: Patch
) -> None:
    """The files that compaction read are all there still: the delete is a file beside them."""
    filled(tables_world, partition_by="none")
    every = tables_world.rows()
    table = tables_world.catalog.load_table(NAME)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    with monkeypatch.context() as patched:
        between(patched, lambda: delete_the_first_row_of_a_file(tables_world, paths[0]))
        assert compact(tables_world.catalog, NAME, SETTINGS).replaced == ()
    assert len(tables_world.rows()) == len(every) - 1
    with monkeypatch.context() as patched:
        between(patched, lambda: delete_the_first_row_of_a_file(tables_world, paths[1]))
        patched.setattr(compacting, "_unchanged", lambda _, tasks: list(tasks))
        compact(tables_world.catalog, NAME, SETTINGS)
    assert len(tables_world.rows()) == len(every) - 1, "the second one came back"


def test_without_a_look_at_its_files_compaction_of_a_rewritten_file_is_refused(
    tables_world: TablesWorld, monkeypatch: Patch
) -> None:
    """A PyIceberg delete rewrites a file; a commit that replaces the old file then fails."""
    filled(tables_world, partition_by="none")
    table = tables_world.catalog.load_table(NAME)
    monkeypatch.setattr(compacting, "_unchanged", lambda _, tasks: list(tasks))
    between(monkeypatch, lambda: table.delete("partition = 0 and offset = 1"))
    with pytest.raises(ValidationException, match="Missing required files"):
        compact(tables_world.catalog, NAME, SETTINGS)
    assert (0, 1) not in [row[:2] for row in tables_world.rows()]
