"""What a table of a topic has, and how far it is behind.

Source: docs/tables.md#keeping-topics-as-tables.
"""

from __future__ import annotations

from typing import NamedTuple

from pyiceberg.catalog import Catalog

from spark_jobs.readers.object_store import ObjectStore
from spark_jobs.topic_tables.directory import last_batch
from spark_jobs.topic_tables.iceberg_table import IcebergTable, TableError
from spark_jobs.topic_tables.job import (
    DEAD_LETTERS,
    JobSettings,
    lag_of,
    read_options,
    table_name,
    topic_bounds,
)
from spark_jobs.topic_tables.progress import RUN
from spark_jobs.topics.planning import open_coordinates


class DescribedTable(NamedTuple):
    """A table, as `describe` shows it."""

    topic: str
    table: str
    rows: int | None  # None: of a directory
    files: int
    bytes: int
    dead_letters: int | None
    lag_records: int
    lag_seconds: float
    offsets: dict[str, int]
    location: str

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table's line."""
        return (
            self.topic,
            self.table,
            "-" if self.rows is None else str(self.rows),
            str(self.files),
            str(self.bytes),
            "-" if self.dead_letters is None else str(self.dead_letters),
            str(self.lag_records),
            f"{self.lag_seconds:.0f}",
        )


def describe_table(catalog: Catalog, settings: JobSettings, topic: str) -> DescribedTable:
    """Describe the table of a topic.

    Raises:  TableError; ProgressError; CoordinatesError; what the catalogue raises.
    """
    name = table_name(topic)
    rows = IcebergTable(catalog, (*settings.namespace, name), RUN)
    if not rows.load():
        raise TableError(f"there is no table {rows}: was it made by `esker spark tables run`?")
    rows.check_ours()
    with open_coordinates(read_options(settings.source, topic)) as coordinates:
        lag = lag_of(rows.progress, topic_bounds(coordinates, topic))
    letters = IcebergTable(catalog, (*settings.namespace, name + DEAD_LETTERS), RUN)
    dead = _totals(letters)[0] if letters.load() else 0
    count, files, size = _totals(rows)
    offsets = {str(index): offset for index, offset in sorted(rows.progress.offsets.items())}
    return DescribedTable(
        topic, str(rows), count, files, size, dead, lag.records, round(lag.seconds, 1), offsets,
        rows.table.location(),
    )  # fmt: skip


def describe_directory(store: ObjectStore, settings: JobSettings, topic: str) -> DescribedTable:
    """Describe the directory of a topic; its rows are not counted, since no file says how many.

    Raises:  TableError; StorageError; CoordinatesError.
    """
    last = last_batch(store)
    if last is None:
        raise TableError(f"{store.uri} is no directory that `esker spark tables run` made")
    with open_coordinates(read_options(settings.source, topic)) as coordinates:
        lag = lag_of(last.progress, topic_bounds(coordinates, topic))
    files = [one for one in store.list() if not one.key.startswith("_")]
    offsets = {str(index): offset for index, offset in sorted(last.progress.offsets.items())}
    return DescribedTable(
        topic, store.uri, None, len(files), sum(one.size_bytes for one in files), None,
        lag.records, round(lag.seconds, 1), offsets, store.uri,
    )  # fmt: skip


def _totals(table: IcebergTable) -> tuple[int, int, int]:
    """Return a table's rows, files and bytes."""
    snapshot = table.table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0, 0, 0
    summary = snapshot.summary.additional_properties
    names = ("total-records", "total-data-files", "total-files-size")
    count, files, size = (int(summary.get(name, 0)) for name in names)
    return count, files, size
