"""Checks that Spark runs our Python, with one session and one small job.

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
    """The versions that a cluster's driver and workers reported."""

    master: str
    spark: str
    python: str  # of a worker


def probe(master: str | None) -> Probe:
    """Run a small job on a master, and return the versions of its driver and workers.

    Raises:  SessionError, also if the job fails.
    """
    with session(master, app="doctor", memory=MEMORY) as spark:
        try:
            rows = spark.range(1).mapInArrow(_versions, "python string").collect()
        except (PySparkException, Py4JError) as error:
            raise SessionError(explain(error)) from error  # while the JVM can still be asked
        return Probe(spark.conf.get("spark.master") or "", spark.version, rows[0].python)


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the Python version of the worker that runs this task.

    It also imports our code, which must have been shipped.
    """
    import platform

    import numpy  # noqa: F401 (jobs need it there)

    for batch in batches:
        versions = [platform.python_version()] * batch.num_rows
        yield pa.RecordBatch.from_pydict({"python": pa.array(versions, pa.string())})
