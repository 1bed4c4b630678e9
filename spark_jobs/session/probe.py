"""Does Spark run our Python? One session and one small job say so.

Source: docs/design/pipeline.md#two-engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_jobs.session.failures import SessionError, explain
from spark_jobs.session.spark_session import session

MEMORY: Final = "512m"


@dataclass(frozen=True, slots=True)
class Probe:
    """What answered."""

    master: str
    spark: str
    python: str  # of a worker


def probe(master: str | None) -> Probe:
    """Raises SessionError, also if it is the job that fails."""
    with session(master, app="doctor", memory=MEMORY) as spark:
        try:
            rows = spark.range(1).mapInArrow(_versions, "python string").collect()
        except (PySparkException, Py4JError) as error:
            raise SessionError(explain(error)) from error  # while the JVM can still be asked
        return Probe(spark.conf.get("spark.master") or "", spark.version, rows[0].python)


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a worker; needs our own code there."""
    import platform

    import numpy  # noqa: F401 (jobs need it there)

    for batch in batches:
        said = [platform.python_version()] * batch.num_rows
        yield pa.RecordBatch.from_pydict({"python": pa.array(said, pa.string())})
