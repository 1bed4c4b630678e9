"""Who writes and checks an archive's files, piece by piece: this process, or Spark.

Not `spark_jobs.readers.engines`: these pieces write files, and what is done is told wave after
wave.

    engine = SparkArchiveEngine(spark)
    for manifest in engine.run(partial(write_range, store), tasks): ...

A piece goes out pickled in a row and its result comes back in one; the data itself never passes
through the JVM. A lost executor's pieces are done again by another, so they must not mind being
done twice.

The surprise is how errors travel. Raised in a worker, an error would come back as text in an
exception of Spark's, after three more attempts; but a piece that found its input gone is a result
like others. So errors come back in the row too, and are raised here, in the order of the pieces.

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
"""Pieces of one Spark job: what is done is told after each."""

_RESULT: Final = "number int, error boolean, result binary"
_SCHEMA: Final = pa.schema(
    [pa.field("number", pa.int32()), pa.field("error", pa.bool_()), pa.field("result", pa.binary())]
)


class ArchiveEngine(Protocol):
    """What does the work: here, or on a cluster."""

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """What `work` makes of each, in their order. All three are pickled on their way.

        Raises:  what `work` raises, when it is that item's turn.
        """
        ...


class LocalArchiveEngine:
    """Does it here, one after the other."""

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """As `ArchiveEngine.run`."""
        return map(work, items)


class SparkArchiveEngine:
    """An engine on a session's executors."""

    def __init__(self, spark: SparkSession, *, wave: int = WAVE) -> None:
        self._spark = spark
        self._wave = wave

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """As `ArchiveEngine.run`."""
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
    """In a worker: do each piece, and say what came of it."""
    for batch in batches:
        for number, piece in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            work, item = pickle.loads(piece)
            error, result = _outcome(work, item)
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int32()), pa.array([error]), pa.array([result])],
                schema=_SCHEMA,
            )


def _outcome(work: Callable[[Any], Any], item: Any) -> tuple[bool, bytes]:
    """Whether it failed, and its result or error, pickled."""
    try:
        return False, pickle.dumps(work(item))
    except Exception as error:
        return True, pickled(error)
