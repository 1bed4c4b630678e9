"""One session: quiet, small, and able to run our Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_spark_task_runs_a_python_function_on_arrow_batches(spark: SparkSession) -> None:
    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        for batch in batches:
            column = pc.multiply(batch.column(0), 2)
            yield type(batch).from_arrays([column], names=["id"])

    rows = spark.range(5).mapInArrow(doubled, "id long").collect()
    assert sorted(row.id for row in rows) == [0, 2, 4, 6, 8]
