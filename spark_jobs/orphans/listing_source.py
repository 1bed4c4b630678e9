"""Offers the store's listing to Spark as a data source: 256 parts, several for each task.

    spark.dataSource.register(ListingSource)
    spark.read.format("esker_listing").options(store="s3://bucket", cluster="Ck3xYz").load()

Options: `store`, `endpoint`, `region`, `prefix`, `cluster`, `tasks`. A row is one of our objects
(`kind` is `own`), without its key, which follows from its id. Other objects are counted in the task
that lists them, and become one row for each cluster, however many there are.

Source: PySpark's Python Data Source API; spark_jobs/orphans/listing.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from records.object_keys import Ancestor
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
    """The parts that one task lists."""

    spreads: tuple[str, ...]


class ListingSource(DataSource):
    """The data source `esker_listing`."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark's `format(...)` finds this source."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema of a listing's rows, which no option changes."""
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's keyword)
        """Return a reader that lists the object store anew for each read."""
        return ListingReader(dict(self.options))


class ListingReader(DataSourceReader):
    """Splits the listing into tasks, and lists."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def partitions(self) -> Sequence[InputPartition]:
        """Return one Spark partition for each task that lists a part of the object store."""
        tasks = int(self._options.get("tasks", "32"))
        return [ListingPartition(SPREADS[first::tasks]) for first in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """List the keys of a task; yield this cluster's objects, then counts of all other objects.

        Raises:  StorageError if any part fails.
        """
        assert isinstance(partition, ListingPartition), f"{partition}"
        given = self._options
        ancestors = [Ancestor(one, tuple(below)) for one, below in json.loads(given["ancestors"])]
        naming = Naming(given.get("prefix", ""), given["cluster"], tuple(ancestors))
        options = StoreOptions(given.get("endpoint") or None, given.get("region") or None)
        store = open_store(given["store"], options)
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
