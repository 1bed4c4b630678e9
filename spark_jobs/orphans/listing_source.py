"""The store's listing as a Spark data source: 256 parts of it, some to each task.

    spark.dataSource.register(ListingSource)
    spark.read.format("esker_listing").options(store="s3://bucket", cluster="Ck3xYz").load()

Options: `store`, `endpoint`, `region`, `prefix`, `cluster`, `tasks`. A row is one of our objects
(`kind` is `own`), without its key, which its id says. What else there is was counted where it was
listed, and is a row for each cluster, however many objects it has.

Source: PySpark's Python Data Source API; spark_jobs/orphans/listing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.orphans.listing import ROW, SPREADS, Naming, Tally, pieces
from spark_jobs.readers.object_store import StoreOptions, open_store

NAME: Final = "esker_listing"
OWN: Final = "own"
FOREIGN: Final = "foreign"  # `name` is the other cluster's id; its bytes are in the first row
STRANGE: Final = "strange"
SAMPLE: Final = "_sample"  # behind one of the two: `name` is a key

SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),  # empty of our own objects
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("spread", pa.int16(), nullable=False),  # this and the next two: -1 of others
        pa.field("coordinator", pa.int32(), nullable=False),
        pa.field("object_id", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("modified_ms", pa.int64(), nullable=False),
    ]
)


@dataclass
class ListingPartition(InputPartition):
    """One task's parts."""

    spreads: tuple[str, ...]


class ListingSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return NAME

    def schema(self) -> StructType:
        """Always the same."""
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's keyword)
        """Lists when it is read, and anew each time."""
        return ListingReader(dict(self.options))


class ListingReader(DataSourceReader):
    """Plans and lists."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def partitions(self) -> Sequence[InputPartition]:
        """One for each task."""
        tasks = int(self._options.get("tasks", "32"))
        return [ListingPartition(SPREADS[first::tasks]) for first in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Our objects, then the other ones. Raises StorageError: there is no half of a part."""
        assert isinstance(partition, ListingPartition), f"{partition}"
        asked = self._options
        naming = Naming(asked.get("prefix", ""), asked["cluster"])
        options = StoreOptions(asked.get("endpoint") or None, asked.get("region") or None)
        store = open_store(asked["store"], options)
        tally = Tally()
        try:
            for spread in partition.spreads:
                for rows in pieces(store.list(naming.listed(spread)), naming, tally):
                    yield _own(rows)
        finally:
            store.close()
        yield _others(tally)


def _own(rows: Any) -> pa.RecordBatch:
    constants = [[OWN] * len(rows), [""] * len(rows), [1] * len(rows)]
    columns = [*constants, *(rows[name] for name in ROW.names or ())]
    return _batch(columns)


def _others(tally: Tally) -> pa.RecordBatch:
    rows: list[tuple[str, str, int, int]] = []
    size_bytes = tally.foreign_bytes
    for cluster_id, count in tally.foreign.items():
        rows.append((FOREIGN, cluster_id, count, size_bytes))
        size_bytes = 0
    if tally.strange:
        rows.append((STRANGE, "", tally.strange, tally.strange_bytes))
    rows += [(FOREIGN + SAMPLE, key, 0, 0) for key in tally.foreign_sample]
    rows += [(STRANGE + SAMPLE, key, 0, 0) for key in tally.strange_sample]
    kinds, names, counts, sizes = zip(*rows, strict=True) if rows else ((), (), (), ())
    none = [-1] * len(rows)
    return _batch([kinds, names, counts, none, none, none, sizes, none])


def _batch(columns: Sequence[Any]) -> pa.RecordBatch:
    arrays = [pa.array(one, field.type) for one, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
