"""Runs the report's counting in Spark.

Pieces are planned here, then read, counted and merged by Spark's tasks, and only then fetched: the
result is as large as the page, not as the log.

Why a frame of pieces: a piece is a few hundred bytes that know how to be read, so the frame that
Spark starts from has a row for each piece, not for each record. Records never cross into the JVM,
only counts do.

Source: docs/design/pipeline.md#the-report; PySpark's `DataFrame.mapInArrow`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce as reduce_pairs
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.report.cube import CUBE, HOW, KEYS, OTHERS, Reduce, Work, merge_rows


def count_in_spark(pieces: DataFrame, reduce: Reduce) -> DataFrame:
    """Count the records of pickled spans on Spark's executors; return unmerged rows."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("work"):
                yield from reduce(pickle.loads(value.as_py())).to_batches()

    return pieces.mapInArrow(read, from_arrow_schema(CUBE))


def merge_frame(frame: DataFrame) -> DataFrame:
    """Merge rows with equal keys into one row for each key, in no order."""
    how = {"sum": F.sum, "min": F.min, "max": F.max}
    values = [how[name](value).alias(value) for value, name in HOW]
    return frame.groupBy(*KEYS).agg(*values)


def largest_of(frame: DataFrame, keys: Mapping[str, str], limit: int) -> DataFrame:
    """Return the `limit` rows with the most bytes of each value of column `measure`, unsorted.

    Columns: `measure`, `name`, `number` and `bytes`.
    """
    parts = []
    for measure, key in keys.items():
        totals = frame.filter(F.col("measure") == measure).groupBy("measure", "name", "number")
        summed = totals.agg(F.sum("bytes").alias("bytes"))
        parts.append(summed.orderBy(F.desc("bytes"), key).limit(limit))
    return reduce_pairs(DataFrame.unionAll, parts)


def fold_frame(frame: DataFrame, keep: Mapping[str, tuple[str, Sequence[Any]]]) -> DataFrame:
    """Sum the rows whose key is not in `keep` into one row with the label OTHERS."""
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
    return merge_frame(frame)


class SparkCube:
    """A cube whose rows Spark holds."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def largest(self, keys: Mapping[str, str], limit: int) -> dict[str, list[Any]]:
        """Return, for each measure, the `limit` keys with the most bytes, by one Spark job."""
        self._frame = self._frame.persist()  # it is looked at again
        rows = largest_of(self._frame, keys, limit).toArrow().to_pylist()
        found: dict[str, list[Any]] = {}
        for measure, key in keys.items():
            of_measure = [row for row in rows if row["measure"] == measure]
            of_measure.sort(key=lambda row, key=key: (-row["bytes"], row[key]))  # type: ignore[misc]
            found[measure] = [row[key] for row in of_measure]
        return found

    def fold(self, keep: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
        """Return all rows, but merge rows with keys that `keep` lacks under the label OTHERS."""
        frame = fold_frame(self._frame, keep) if keep else self._frame
        return merge_rows([frame.toArrow().select(CUBE.names).cast(CUBE)])

    def close(self) -> None:
        """Release the rows that Spark keeps for this cube."""
        self._frame.unpersist()


class SparkReportEngine:
    """Counts on a session's executors."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def count(self, work: Sequence[Work], reduce: Reduce) -> SparkCube:
        """Count the records of each span in its own Spark task, and merge the rows into a cube."""
        rows = [(pickle.dumps(piece),) for piece in work]
        pieces = self._spark.createDataFrame(rows, "work binary")
        if len(rows) > 1:
            pieces = pieces.repartition(len(rows))
        return SparkCube(merge_frame(count_in_spark(pieces, reduce)))
