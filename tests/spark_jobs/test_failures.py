"""Usual failures become one sentence and a remedy. The texts are those of Spark and Java."""

from __future__ import annotations

import pytest

from spark_jobs.session.failures import (
    Failure,
    SessionError,
    explain,
    find_failure,
    raised_in_worker,
)

JOB_ABORTED = """An error occurred while calling o61.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (127.0.0.1 executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "pyspark/worker.py", line 3412, in main
    process()
  File "spark_jobs/tables/arrow_batches.py", line 31, in read_table
    raise LostRangeError(directory, start, end)
{raised}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(x.scala:610)
"""

MET = [
    (
        "Error occurred during initialization of VM\n"
        "Could not reserve enough space for 943718400KB object heap",
        "the machine has less memory than the JVM requests; try --memory 512m",
    ),
    (
        "OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory(0x0, 715849728, 0) failed; "
        "error='Not enough space' (errno=12)\n# There is insufficient memory for the Java Runtime "
        "Environment to continue.",
        "the machine has less memory than the JVM requests; try --memory 512m",
    ),
    (
        "java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been compiled "
        "by a more recent version of the Java Runtime (class file version 61.0)",
        "this Java is too old for Spark; install Java 17",
    ),
    (
        "java.lang.IllegalArgumentException: System memory 259522560 must be at least 471859200.",
        "Spark does not start with so little memory; try --memory 1g",
    ),
    (
        "java.net.BindException: Address already in use: Service 'sparkDriver' failed after 16 "
        "retries (on a random free port)!",
        "a port that Spark needs is in use; ",
    ),
    (
        "java.net.BindException: Cannot assign requested address: Service 'sparkDriver' failed",
        "Spark cannot listen on this machine's address; ",
    ),
    ("java.lang.OutOfMemoryError: Java heap space", "the JVM ran out of memory; give it more"),
    ("java.io.IOException: No space left on device", "a disk that Spark writes to is full; "),
    (
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in "
        "driver: 3.11, PySpark cannot run with different minor versions.",
        "the workers run another Python, 3.9; set PYSPARK_PYTHON",
    ),
    (
        'java.io.IOException: Cannot run program "/opt/python3": error=2, No such file',
        "the workers have no /opt/python3; set PYSPARK_PYTHON",
    ),
    (
        JOB_ABORTED.format(raised="ModuleNotFoundError: No module named 'pyarrow.compute'"),
        "the workers' Python lacks pyarrow.compute; on each: pip install 'esker[spark]'",
    ),
]


@pytest.mark.parametrize(("said", "sentence"), MET)
def test_esker_explains_each_spark_failure_in_its_table_of_failures_with_a_remedy(
    said: str, sentence: str
) -> None:
    assert str(find_failure(said)).startswith(sentence)
    assert "\n" not in str(find_failure(said))


def test_the_explanation_of_a_spark_failure_uses_the_esker_error_raised_in_a_worker() -> None:
    lost = Exception(
        JOB_ABORTED.format(raised="spark_jobs.readers.log_files.LostRangeError: 0 to 17 gone")
    )
    assert raised_in_worker(lost) == ("LostRangeError", "0 to 17 gone")
    assert str(explain(lost)) == "LostRangeError: 0 to 17 gone"


def test_the_explanation_of_a_spark_failure_uses_the_last_of_chained_worker_errors() -> None:
    chained = (
        "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File x\nrecords.errors.CorruptBatchError: at 9"
    )
    found = raised_in_worker(Exception(JOB_ABORTED.format(raised=chained)))
    assert found == ("CorruptBatchError", "at 9")


def test_esker_shortens_an_unknown_spark_failure_to_its_first_line() -> None:
    assert str(explain(ValueError("no\nand more"))) == "Spark failed: no"
    assert str(explain(ValueError(""))) == "Spark failed: ValueError"
    java = Exception("An error occurred while calling o1.x.\n: java.lang.Exception: why\n\tat x")
    assert str(explain(java)) == "Spark failed: java.lang.Exception: why"
    assert len(str(explain(ValueError("x" * 10_000)))) < 600


def test_esker_explains_a_spark_error_without_text_by_the_death_of_the_jvm() -> None:
    class OfTheJvm(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    assert explain(OfTheJvm()).sentence == "Spark's JVM has died"


def test_esker_explains_a_spark_failure_by_the_output_of_the_jvm() -> None:
    error = explain(RuntimeError("[JAVA_GATEWAY_EXITED]"), "Could not reserve enough space")
    assert "memory" in error.sentence


def test_the_text_of_a_spark_session_error_joins_failure_and_remedy() -> None:
    assert str(SessionError(Failure("it broke", "mend it"))) == "it broke; mend it"
    assert str(SessionError(Failure("it broke"))) == "it broke"
