"""One Spark session, with the settings that a small machine needs.

A default session takes twenty seconds to its first job, splits every shuffle in two hundred and
writes to the terminal. Ours starts a JVM with a serial collector, listens on the loopback address
alone, serves no pages, and sends everything that the JVM says to a file.

The surprise: the JVM's own options (memory, collector) count only before it starts, so a session
that is already there is never reshaped; whoever asks for a second one is refused.

Source: Spark's configuration page; DESIGN §10.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

MEMORY: Final = "1g"
LOCAL: Final = "local[2]"
BATCH_ROWS: Final = 50_000  # of one Arrow batch on its way to Python; Spark's default is 10,000

JVM_OPTIONS: Final = ("-XX:+UseSerialGC", "-Xss4m", "-Djava.net.preferIPv4Stack=true")

SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "4",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def start_session(
    master: str | None = None,
    *,
    app: str,
    memory: str = MEMORY,
    settings: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """A session on `master`, by default two threads of this process's own JVM.

    `memory` is the JVM's heap. What Spark and its Python workers print goes to `log_file`.
    """
    assert SparkContext._active_spark_context is None, "there is a session already"
    scratch = tempfile.mkdtemp(prefix="esker-spark-")
    conf = SparkConf(loadDefaults=False)
    chosen = {
        **SETTINGS,
        "spark.app.name": app,
        "spark.driver.extraJavaOptions": " ".join(JVM_OPTIONS),
        "spark.driver.memory": memory,
        "spark.local.dir": scratch,
        "spark.master": master or LOCAL,
        "spark.sql.warehouse.dir": str(Path(scratch) / "warehouse"),
        **(settings or {}),
    }
    for name, value in sorted(chosen.items()):
        conf.set(name, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log = log_file or Path(scratch) / "spark.log"
    with log.open("ab") as said:
        streams = {"stdout": said, "stderr": said}
        gateway: Any = launch_gateway(conf, streams)  # type: ignore[no-untyped-call,unused-ignore]
    context = SparkContext(conf=conf, gateway=gateway)
    return SparkSession(context)


def stop_session(session: SparkSession) -> None:
    """Stop it and its JVM; the next one starts anew."""
    gateway: Any = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    process = gateway.proc
    process.stdin.close()  # the JVM ends when this does
    process.wait(timeout=30)
