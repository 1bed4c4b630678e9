"""The report's counting, done by Spark.

Pieces are planned here, read and counted where Spark sends them, merged there, and only then
fetched: what reaches this process is as large as the page, not as the log.

The surprise is what travels. A piece is a few hundred bytes that know how to be read, so the frame
that Spark starts from has a row for each piece, not for each record; records never cross into the
JVM, only counts do.

Source: DESIGN §10; PySpark's `DataFrame.mapInArrow`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.report.cube import CUBE, HOW, KEYS, OTHERS, Reduce, Work, merged


def counted(pieces: DataFrame, reduce: Reduce) -> DataFrame:
    """Pieces (a column `work`, pickled) to rows of the cube, not merged."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("work"):
                yield from reduce(pickle.loads(value.as_py())).to_batches()

    return pieces.mapInArrow(read, from_arrow_schema(CUBE))


def merged_frame(frame: DataFrame) -> DataFrame:
    """As `cube.merged`, in no order."""
    how = {"sum": F.sum, "min": F.min, "max": F.max}
    values = [how[name](value).alias(value) for value, name in HOW]
    return frame.groupBy(*KEYS).agg(*values)


def largest_of(frame: DataFrame, measure: str, key: str, limit: int) -> DataFrame:
    """As `Cube.largest`."""
    totals = frame.filter(F.col("measure") == measure).groupBy(key)
    return totals.agg(F.sum("bytes").alias("bytes")).orderBy(F.desc("bytes"), key).limit(limit)


def folded(frame: DataFrame, keep: Mapping[str, tuple[str, Sequence[Any]]]) -> DataFrame:
    """As `Cube.fold`, in no order."""
    for measure, (key, values) in keep.items():
        empty = F.lit("") if CUBE.field(key).type == pa.string() else F.lit(0).cast("bigint")
        known = F.col(key).isin(list(values)) if values else F.lit(False)
        other = (F.col("measure") == measure) & ~known
        frame = frame.withColumns(
            {
                key: F.when(other, empty).otherwise(F.col(key)),
                "label": F.when(other, F.lit(OTHERS)).otherwise(F.col("label")),
            }
        )
    return merged_frame(frame)


class SparkCube:
    """A cube that Spark holds."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame.persist()

    def largest(self, measure: str, key: str, limit: int) -> list[Any]:
        """As `Cube.largest`."""
        found: list[Any] = largest_of(self._frame, measure, key, limit).toArrow()[key].to_pylist()
        return found

    def fold(self, keep: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
        """As `Cube.fold`."""
        return merged([folded(self._frame, keep).toArrow().select(CUBE.names).cast(CUBE)])

    def close(self) -> None:
        """As `Cube.close`."""
        self._frame.unpersist()


class SparkEngine:
    """Counts by a session's executors."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def count(self, work: Sequence[Work], reduce: Reduce) -> SparkCube:
        """As `Engine.count`."""
        rows = [(pickle.dumps(one),) for one in work]
        pieces = self._spark.createDataFrame(rows, "work binary")
        if len(rows) > 1:
            pieces = pieces.repartition(len(rows))
        return SparkCube(merged_frame(counted(pieces, reduce)))
