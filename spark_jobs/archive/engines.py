"""Runs the tasks that write and verify an archive's files: in this process, or in Spark.

Not `spark_jobs.readers.engines`: these tasks write files, and results arrive wave after wave.

    engine = SparkArchiveEngine(spark)
    for manifest in engine.run(partial(write_range, store), tasks): ...

A task travels pickled in a row and its result returns in one; the data itself never passes through
the JVM. Another executor repeats a lost executor's tasks, so a task must be repeatable.

The trap is how errors travel. Raised in a worker, an error would return as text in an exception of
Spark's, after three more attempts; but a task that found its input gone has a result like others.
So errors return in the row too, and are raised here, in the order of the tasks.

Source: PySpark, `DataFrame.mapInArrow`; docs/design/pipeline.md#the-archive.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa

from spark_jobs.readers.engines import pickled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

WAVE: Final = 64
"""Tasks of one Spark job; results are reported after each job."""

_RESULT: Final = "number int, error boolean, result binary"
_SCHEMA: Final = pa.schema(
    [pa.field("number", pa.int32()), pa.field("error", pa.bool_()), pa.field("result", pa.binary())]
)


class ArchiveEngine(Protocol):
    """Runs tasks in this process or on a cluster."""

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the result of `work` for each item, in the order of the items.

        The function, the items and the results must be picklable.

        Raises:  what `work` raises, when that item's result is due.
        """
        ...


class LocalArchiveEngine:
    """Runs tasks in this process, one after the other."""

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Run `work` on one item after the other in this process, and yield the results."""
        return map(work, items)


class SparkArchiveEngine:
    """Runs tasks on a session's executors."""

    def __init__(self, spark: SparkSession, *, wave: int = WAVE) -> None:
        self._spark = spark
        self._wave = wave

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Run `work` on Spark's executors, and yield the results in the order of the items."""
        for start in range(0, len(items), self._wave):
            wave = items[start : start + self._wave]
            rows = [(number, pickle.dumps((work, item))) for number, item in enumerate(wave)]
            pieces = self._spark.createDataFrame(rows, "number int, piece binary")
            done = pieces.repartition(len(rows)).mapInArrow(do_pieces, _RESULT).collect()
            for row in sorted(done, key=lambda row: row.number):
                result = pickle.loads(bytes(row.result))
                if row.error:
                    raise result
                yield result


def do_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run pickled tasks in a worker, and yield each task's result or error."""
    for batch in batches:
        for number, piece in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            work, item = pickle.loads(piece)
            error, result = _outcome(work, item)
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int32()), pa.array([error]), pa.array([result])],
                schema=_SCHEMA,
            )


def _outcome(work: Callable[[Any], Any], item: Any) -> tuple[bool, bytes]:
    """Run a task; return whether it failed, and its pickled result or error."""
    try:
        return False, pickle.dumps(work(item))
    except Exception as error:
        return True, pickled(error)
