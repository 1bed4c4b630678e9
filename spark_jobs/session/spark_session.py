"""Starts one Spark session, with the settings that a small machine needs.

A default session takes twenty seconds to its second job, splits every shuffle in two hundred and
writes to the terminal. Ours starts a JVM with a serial collector and classes that are linked
already (spark_jobs/session/class_archive.py), listens on the loopback address alone, serves no
web pages, and writes all output of the JVM to a file.

The trap: the JVM's own options (memory, collector) count only before it starts, and a process
has one JVM; so a second session is refused while there is one, and stopping it ends the JVM too.

On a cluster (`spark://host:7077`) the same, with the driver at the address that faces the master
and our modules sent along (spark_jobs/session/shipping.py).

Source: Spark's configuration page; docs/design/pipeline.md#two-engines.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.session.failures import Failure, SessionError
from spark_jobs.session.jvm import (
    Jvm,
    Launch,
    environment,
    make_conf,
    size_bytes,
    start_failure,
    start_jvm,
)
from spark_jobs.session.masters import Master, parse_master, parse_memory
from spark_jobs.session.shipping import code_zip

MEMORY: Final = "1g"
BATCH_ROWS: Final = 50_000  # of one Arrow batch on its way to Python; Spark's default is 10,000
COLLECTED: Final = "256m"  # more than this no job may bring to the driver
CLUSTER_PARTITIONS: Final = 64  # of a shuffle, before Spark joins the small ones
EXECUTOR_SECONDS: Final = 60.0

SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.maxResultSize": COLLECTED,
    "spark.log.level": "ERROR",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True)
class _Running:
    """The resources of this process's session, released with it."""

    jvm: Jvm
    scratch: Path


_running: _Running | None = None


def start_session(
    master: str | None = None,
    *,
    app: str,
    memory: str = MEMORY,
    settings: Mapping[str, str] | None = None,
    log_file: Path | None = None,
    heavy: bool = False,
    cache: Path | None = None,
    keep_classes: bool = True,
) -> SparkSession:
    """Start a Spark session on `master`, by default with two or more threads of one local JVM.

    Args:    memory: the driver's heap; on a cluster each executor's as well.
             log_file: takes what Spark and its Python workers print.
             heavy: the JVM itself will compute for minutes; then it compiles better, and later.
             keep_classes: write a class archive at the end where `cache` has none.
    Raises:  SessionError.
    """
    global _running
    if SparkContext._active_spark_context is not None:
        raise SessionError(Failure("this process has a Spark session already"))
    try:
        where = parse_master(master)
        heap = parse_memory(memory)
    except ValueError as error:
        raise SessionError(Failure(str(error)), usage=True) from None
    where.check_reachable()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)
    scratch = _scratch()
    chosen = {
        **SETTINGS,
        **_settings_of_master(where),
        "spark.app.name": app,
        "spark.driver.memory": heap,
        "spark.executor.memory": heap,
        "spark.local.dir": str(scratch),
        "spark.master": where.url,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(settings or {}),
    }
    launch = Launch(
        conf=chosen,
        python=_python(where),
        scratch=scratch,
        log=log_file or scratch / "spark.log",
        heavy=heavy,
        cache=cache,
        keep_classes=keep_classes,
    )
    try:
        started, jvm = _start(where, launch)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _running = _Running(jvm, scratch)
    return started


def stop_session(session: SparkSession) -> None:
    """Stop the session and its JVM; the next session starts a new JVM."""
    global _running
    running, _running = _running, None
    if running is None:
        session.stop()
        return
    try:
        with running.jvm.kill_if_late(), suppress(Py4JError, OSError):  # a dead JVM has stopped
            session.stop()
        running.jvm.end(well=True)
    finally:
        shutil.rmtree(running.scratch, ignore_errors=True)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Return whether a log record comes from any logger but Py4J's.

    Py4J prints a trace of each Ctrl-C.
    """
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def session(master: str | None = None, *, app: str, **given: Any) -> Iterator[SparkSession]:
    """Start a Spark session for a `with` block, and stop the session afterwards.

    Args:    as of `start_session`.
    """
    started = start_session(master, app=app, **given)
    try:
        yield started
    finally:
        stop_session(started)


# --- starting -----------------------------------------------------------------------------------


def _start(where: Master, launch: Launch) -> tuple[SparkSession, Jvm]:
    already = size_bytes(launch.log)
    jvm = start_jvm(launch)
    try:
        return _connect(where, launch, jvm), jvm
    except (PySparkException, Py4JError, OSError) as error:
        failure = start_failure(error, launch.log, already)  # while the JVM still answers
        jvm.end(well=False)
        raise failure from None
    except BaseException:
        jvm.end(well=False)
        raise


def _connect(where: Master, launch: Launch, jvm: Jvm) -> SparkSession:
    with environment(PYSPARK_PYTHON=launch.python):
        context = SparkContext(conf=make_conf(launch.conf), gateway=jvm.gateway)
    try:
        if not where.is_local:
            context.addPyFile(str(code_zip(launch.scratch)))
        if where.addresses:
            _await_executor(context, launch.conf)
        return SparkSession(context)
    except BaseException:
        with suppress(Py4JError, OSError):
            context.stop()
        raise


def _await_executor(context: SparkContext, conf: Mapping[str, str]) -> None:
    """Wait until a standalone cluster has given this session an executor.

    A cluster without free cores or memory reports nothing, and jobs would wait for ever.
    """
    if conf.get("spark.dynamicAllocation.enabled") == "true":
        return  # they come with the first job
    scheduler: Any = context._jsc.sc()
    deadline = time.monotonic() + EXECUTOR_SECONDS
    while scheduler.getExecutorMemoryStatus().size() < 2:  # the driver is one
        if time.monotonic() > deadline:
            memory = conf["spark.executor.memory"]
            raise SessionError(
                Failure(
                    f"{conf['spark.master']} had no free worker in {EXECUTOR_SECONDS:.0f} s",
                    f"a worker needs a free core and {memory} of free memory (--memory)",
                )
            )
        time.sleep(0.1)


def _settings_of_master(where: Master) -> dict[str, str]:
    """Return the Spark settings that depend on the master's address."""
    address: str | None = "127.0.0.1"
    if where.is_local:
        parts = max(4, 2 * where.threads)
    else:
        parts = CLUSTER_PARTITIONS
        address = os.environ.get("SPARK_LOCAL_IP") or where.facing_address()
    shuffled = {"spark.sql.shuffle.partitions": str(parts)}
    if not address:
        return shuffled
    return shuffled | {"spark.driver.host": address, "spark.driver.bindAddress": address}


def _python(where: Master) -> str:
    """Return the path of the workers' Python, which is this process's Python on a local master."""
    return sys.executable if where.is_local else os.environ.get("PYSPARK_PYTHON", sys.executable)


def _scratch() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="esker-spark-"))
    except OSError as error:
        raise SessionError(
            Failure(f"no usable temporary directory: {error}", "set TMPDIR to a writable directory")
        ) from None
