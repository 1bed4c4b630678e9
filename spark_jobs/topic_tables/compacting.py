"""Compacts a table: many small files of one partition become few, and files of no snapshot go.

    for done in compact(catalog, ("kafka", "orders"), CompactSettings()):
        print(done)

A replacement names the files that go and the file that comes, and is committed on the snapshot that
it was planned on. If another commit came between, it is made on the new snapshot, provided that all
its files are there still and that none of their rows was deleted meanwhile: else those rows would
come back.

Rows stay the same, so that progress, which `run` finds among the snapshot's ancestors, stays true.

Source: docs/design/tables.md#compaction-of-tables.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, parquet_file_to_data_file
from pyiceberg.table import FileScanTask, Table

from spark_jobs.topic_tables.iceberg_table import ATTEMPTS, DATA, PAUSE_S, TableError, plain_type

MIB: Final = 1 << 20
OWN: Final = "esker-"
"""Begin of the names of directories in which this job, and `run`, write files."""


class CompactSettings(NamedTuple):
    """What is compacted, and when files go."""

    target_bytes: int = 128 * MIB  # of a file
    min_files: int = 5  # that become one; fewer are left alone
    remove_after_s: float = 86_400.0


class Replaced(NamedTuple):
    """Files that became one."""

    files: int
    rows: int
    bytes_before: int
    bytes_after: int


class Compaction(NamedTuple):
    """What was done to a table."""

    replaced: tuple[Replaced, ...]
    removed: int  # files that no snapshot had


def compact(catalog: Catalog, name: tuple[str, ...], settings: CompactSettings) -> Compaction:
    """Compact a table, then remove files that are in no snapshot and old enough.

    Raises:  TableError; what the catalogue raises.
    """
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        raise TableError(f"there is no table {'.'.join(name)}") from None
    directory = f"{_data(table)}/{OWN}{secrets.token_hex(8)}"
    replaced = []
    for tasks in list(plan(table, settings)):
        done = _replace(table, tasks, directory)
        if done is not None:
            replaced.append(done)
    table.refresh()
    return Compaction(tuple(replaced), _remove_unreferenced(table, settings.remove_after_s))


def plan(table: Table, settings: CompactSettings) -> Iterator[list[FileScanTask]]:
    """Yield groups of small files of one partition, each of which becomes one file."""
    by_partition: dict[Any, list[FileScanTask]] = {}
    for task in table.scan().plan_files():
        small = task.file.file_size_in_bytes < settings.target_bytes // 2
        if small and not task.delete_files and task.file.spec_id == table.spec().spec_id:
            by_partition.setdefault(tuple(task.file.partition), []).append(task)  # type: ignore[arg-type]
    for tasks in by_partition.values():
        group: list[FileScanTask] = []
        size = 0
        for task in sorted(tasks, key=lambda one: one.file.file_path):
            if group and size + task.file.file_size_in_bytes > settings.target_bytes:
                if len(group) >= settings.min_files:
                    yield group
                group, size = [], 0
            group.append(task)
            size += task.file.file_size_in_bytes
        if len(group) >= settings.min_files:
            yield group


def _replace(table: Table, tasks: Sequence[FileScanTask], directory: str) -> Replaced | None:
    """Write the rows of some files into one, and put it into their place.

    Returns None if another tool changed them meanwhile.
    """
    table.refresh()
    rows = _read(table, tasks)
    path = f"{directory}/{secrets.token_hex(8)}.parquet"
    with table.io.new_output(path).create() as stream:
        pq.write_table(rows, stream, compression="zstd", row_group_size=1 << 20)
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * attempt)
            table.refresh()
        now = _unchanged(table, tasks)
        if now is None:
            break
        made = parquet_file_to_data_file(table.io, table.metadata, path)
        if made.record_count != sum(task.file.record_count for task in tasks):
            raise TableError(
                f"{path}: {made.record_count} rows, not those of the files it replaces"
            )
        try:
            with (
                table.transaction() as transaction,
                transaction.update_snapshot().overwrite() as update,
            ):
                for one in now:
                    update.delete_data_file(one.file)
                update.append_data_file(made)
        except CommitFailedException:
            continue
        before = sum(task.file.file_size_in_bytes for task in tasks)
        return Replaced(len(tasks), made.record_count, before, made.file_size_in_bytes)
    table.io.delete(path)
    return None


def _unchanged(table: Table, tasks: Sequence[FileScanTask]) -> list[FileScanTask] | None:
    """Return files as the table has them now, or None if one is gone or has deleted rows."""
    there = {task.file.file_path: task for task in table.scan().plan_files()}
    now = [there.get(task.file.file_path) for task in tasks]
    found = [one for one in now if one is not None and not one.delete_files]
    return found if len(found) == len(now) else None


def _read(table: Table, tasks: Sequence[FileScanTask]) -> pa.Table:
    """Return the rows of files, in order, with the columns that the table has now."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table(tasks).sort_by([("partition", "ascending"), ("offset", "ascending")])
    schema = pa.schema([pa.field(one.name, plain_type(one.type)) for one in rows.schema])
    return rows.cast(schema)


def _data(table: Table) -> str:
    return f"{table.location().rstrip('/')}/{DATA}"


def _remove_unreferenced(table: Table, older_than_s: float) -> int:
    """Remove files of this job and of `run` that no snapshot has; return their number.

    The trap: the files of a batch that is written now are in no snapshot yet. Only age tells them
    from those that a driver left.
    """
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        return 0
    scheme, netloc, path = io.parse_location(_data(table))
    files = io.fs_by_scheme(scheme, netloc)
    bound = time.time() - older_than_s
    old = [
        info.path
        for info in files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        if info.type == FileType.File
        and info.mtime is not None
        and info.mtime.timestamp() < bound
        and info.path.rsplit("/", 2)[1].startswith(OWN)
    ]
    if not old:
        return 0
    table.refresh()  # after the listing: what was committed meanwhile is among its files
    used = {io.parse_location(one)[2] for one in _referenced(table)}
    unused = [one for one in old if one not in used]
    for one in unused:
        files.delete_file(one)
    return len(unused)


def _referenced(table: Table) -> Iterator[str]:
    """Yield the data files of all snapshots."""
    seen = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path
