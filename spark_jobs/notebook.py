"""The log's tables in a notebook.

    tables = LogTables(spark, bootstrapController="127.0.0.1:9093")
    tables("object_commits").groupBy("topic_id").sum("byte_size").show()

    tables.create_views("topics", "object_commits")
    spark.sql("select name, sum(byte_size) from object_commits join topics using (topic_id) ...")

Nothing is cached: each use of a table reads the log's committed part again. For the same rows twice
use `endOffset`, or `tables("topics").cache()`.

Source: docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_jobs.source.log_source import NAME, EskerLog
from spark_jobs.source.sink import OffsetFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LogTables:
    """The tables and views of `spark_jobs.tables.views`, read from one input."""

    def __init__(self, spark: SparkSession, **options: Any) -> None:
        """Register Esker's data sources in a session, and keep the options for all tables.

        Args:    options: of `esker_log`, such as logDir, bootstrapController or archive.
        """
        spark.dataSource.register(EskerLog)
        spark.dataSource.register(OffsetFiles)
        self._spark = spark
        self._options = options

    def __call__(self, table: str, **options: Any) -> DataFrame:
        """Return a table as a DataFrame that reads the logs anew for each query.

        `options` override the options of all tables.
        """
        chosen = {**self._options, **options, "table": table}
        return self._spark.read.format(NAME).options(**chosen).load()

    def stream(self, table: str, **options: Any) -> DataFrame:
        """Return a table as a streaming DataFrame."""
        chosen = {**self._options, **options, "table": table}
        return self._spark.readStream.format(NAME).options(**chosen).load()

    def create_views(self, *tables: str) -> None:
        """Create a temporary Spark view of each named table, under the table's name."""
        for table in tables:
            self(table).createOrReplaceTempView(table)
