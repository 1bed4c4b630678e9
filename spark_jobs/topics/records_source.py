"""`esker_records`: the records of topics as a Spark data source, read from the object store.

    spark.dataSource.register(EskerRecords)
    orders = (
        spark.read.format("esker_records")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092")
        .option("subscribe", "orders")
        .option("store", "s3://records")
        .load()
    )

Columns and options are those of Spark's Kafka source. The driver asks where records lie; tasks read
them from the store, and no broker sends them.

Source: PySpark's Python Data Source API; docs/tables.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.source.option_error import OptionError
from spark_jobs.topics.decoder import schema_of
from spark_jobs.topics.options import Options, parse_options
from spark_jobs.topics.planning import (
    open_coordinates,
    plan,
    resolve_ranges,
    warn_of_ignored,
)
from spark_jobs.topics.reading import read_partition
from spark_jobs.topics.records_stream import RecordsStreamReader

NAME: Final = "esker_records"


class EskerRecords(DataSource):
    """The data source `esker_records`."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark's `format(...)` finds this source."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema of the chosen columns."""
        return from_arrow_schema(schema_of(parse_options(self.options).columns))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's keyword)
        """Return a reader of the records that partitions have when the query begins."""
        options = parse_options(self.options)
        if options.max_offsets is not None:
            raise OptionError("maxOffsetsPerTrigger: a batch has no triggers")
        return RecordsReader(options)

    def streamReader(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,  # noqa: ARG002 (Spark's keyword)
    ) -> DataSourceStreamReader:
        """Return a reader of the records from an offset on, also of those that are appended later.

        Raises:  OptionError.
        """
        return RecordsStreamReader(parse_options(self.options))


class RecordsReader(DataSourceReader):
    """Reads ranges of offsets. Planned in one process, pickled, read in others."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks that read the records.

        Raises:  OptionError; CoordinatesError, of which LostOffsetsError is a kind; LogsError.
        """
        options = self._options
        warn_of_ignored(options)
        with open_coordinates(options) as coordinates:
            return plan(coordinates, options, resolve_ranges(coordinates, options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task as Arrow batches. Raises as `read_pieces`."""
        return read_partition(self._options, partition)
