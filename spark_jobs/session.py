"""One Spark session, with the settings that a small machine needs.

A default session takes twenty seconds to its second job, splits every shuffle in two hundred and
writes to the terminal. Ours starts a JVM with a serial collector and classes that are linked
already (spark_jobs/class_archive.py), listens on the loopback address alone, serves no pages, and
sends everything that the JVM says to a file.

The surprise: the JVM's own options (memory, collector) count only before it starts, and a process
has one JVM; so a second session is refused while there is one, and stopping it ends the JVM too.

On a cluster (`spark://host:7077`) the same, with the driver at the address that faces the master
and our modules sent along (spark_jobs/shipping.py).

Source: Spark's configuration page; DESIGN §10.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.class_archive import ClassArchive, archive_for
from spark_jobs.failures import Failure, SessionError, explain
from spark_jobs.java import HINT, Java, JavaError, find_java, home_for_spark
from spark_jobs.masters import Master, parse_master, parse_memory
from spark_jobs.shipping import code_zip

MEMORY: Final = "1g"
BATCH_ROWS: Final = 50_000  # of one Arrow batch on its way to Python; Spark's default is 10,000
COLLECTED: Final = "256m"  # more than this no job may bring to the driver
CLUSTER_PARTITIONS: Final = 64  # of a shuffle, before Spark joins the small ones
END_SECONDS: Final = 30.0
ARCHIVING_SECONDS: Final = 180.0  # alone on two cores it takes ten
SAID_BYTES: Final = 1 << 16  # of the log's end, when an error is looked for

JVM_OPTIONS: Final = ("-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true")

SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.maxResultSize": COLLECTED,
    "spark.log.level": "ERROR",
    "spark.master.rest.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(slots=True)
class _Running:
    """What belongs to the session of this process, and ends with it."""

    gateway: Any
    scratch: Path
    archive: ClassArchive | None  # being written


_running: _Running | None = None


def start_session(
    master: str | None = None,
    *,
    app: str,
    memory: str = MEMORY,
    settings: Mapping[str, str] | None = None,
    log_file: Path | None = None,
    jvm_options: tuple[str, ...] = (),
    cache: Path | None = None,
) -> SparkSession:
    """A session on `master`, by default two threads or more of this process's own JVM.

    `memory` is the driver's heap. What Spark and its Python workers print goes to `log_file`.
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
    scratch = _scratch()
    log = log_file or scratch / "spark.log"
    chosen = {
        **SETTINGS,
        **_placed(where),
        "spark.app.name": app,
        "spark.driver.memory": heap,
        "spark.local.dir": str(scratch),
        "spark.master": where.url,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(settings or {}),
    }
    try:
        session, _running = _start(where, chosen, jvm_options, scratch, log, cache)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return session


def stop_session(session: SparkSession) -> None:
    """Stop it and its JVM; the next one starts anew."""
    global _running
    running, _running = _running, None
    with suppress(Py4JError, OSError):  # a JVM that is dead has stopped
        session.stop()
    if running is not None:
        _end(running)


@contextmanager
def session(master: str | None = None, *, app: str, **given: Any) -> Iterator[SparkSession]:
    """A session for as long as this lasts. Arguments as of `start_session`."""
    started = start_session(master, app=app, **given)
    try:
        yield started
    finally:
        stop_session(started)


# --- starting -----------------------------------------------------------------------------------


def _start(
    where: Master,
    chosen: Mapping[str, str],
    jvm_options: tuple[str, ...],
    scratch: Path,
    log: Path,
    cache: Path | None,
) -> tuple[SparkSession, _Running]:
    try:
        java = find_java()
    except JavaError as error:
        raise SessionError(Failure(str(error), HINT)) from None
    home = _home(java, cache, scratch)
    python = _python(where)
    archive = archive_for(java, Path(pyspark.__path__[0]) / "jars", cache)
    options = (*JVM_OPTIONS, *jvm_options)
    try:
        with log.open("ab") as said:
            already = said.tell()
            reading = archive is not None and archive.exists
            more = archive.options() if archive else ()
            try:
                gateway = _launch(chosen, (*options, *more), home, python, said)
            except PySparkException:
                if archive is None or not reading:
                    raise
                archive.discard()
                archive = None
                gateway = _launch(chosen, options, home, python, said)
    except (PySparkException, OSError) as error:
        raise _not_started(error, log, already) from None
    running = _Running(gateway, scratch, None if reading else archive)
    try:
        return _connect(where, chosen, gateway), running
    except BaseException as error:
        _end(running)
        if isinstance(error, PySparkException | Py4JError | OSError):
            raise _not_started(error, log, already) from None
        raise


def _home(java: Java, cache: Path | None, scratch: Path) -> Path:
    try:
        return home_for_spark(java, cache)
    except OSError:
        return home_for_spark(java, scratch)  # nothing can be kept: for this once


def _launch(
    chosen: Mapping[str, str], options: tuple[str, ...], home: Path, python: str, said: Any
) -> Any:
    """The JVM, ready to be spoken to."""
    conf = _conf({**chosen, "spark.driver.extraJavaOptions": " ".join(options)})
    with _environment(
        JAVA_HOME=str(home),
        PYSPARK_PYTHON=python,
        SPARK_HOME=pyspark.__path__[0],  # jars of another release would not understand us
        PYSPARK_SUBMIT_ARGS=None,
    ):
        streams = {"stdout": said, "stderr": said}
        return launch_gateway(conf, streams)  # type: ignore[no-untyped-call,unused-ignore]


def _connect(where: Master, chosen: Mapping[str, str], gateway: Any) -> SparkSession:
    with _environment(PYSPARK_PYTHON=_python(where)):
        context = SparkContext(conf=_conf(chosen), gateway=gateway)
    if not where.is_local:
        context.addPyFile(str(code_zip(Path(chosen["spark.local.dir"]))))
    return SparkSession(context)


def _conf(chosen: Mapping[str, str]) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for name, value in sorted(chosen.items()):
        conf.set(name, value)
    return conf


def _placed(where: Master) -> dict[str, str]:
    """What depends on where the work is done."""
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
    """The workers' Python: here it is this one; elsewhere the path may be another."""
    return sys.executable if where.is_local else os.environ.get("PYSPARK_PYTHON", sys.executable)


def _scratch() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="esker-spark-"))
    except OSError as error:
        raise SessionError(
            Failure(f"no directory to work in: {error}", "set TMPDIR to one that can be written")
        ) from None


def _not_started(error: BaseException, log: Path, start: int) -> SessionError:
    """What the JVM said since `start` tells more than what Python saw."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - SAID_BYTES))
            said = file.read(SAID_BYTES).decode(errors="replace")
    except OSError:
        said = ""
    return SessionError(explain(error, said), log_file=log)


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """These variables, for processes that start meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# --- ending -------------------------------------------------------------------------------------


def _end(running: _Running) -> None:
    gateway = running.gateway
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    process = gateway.proc
    try:
        if process is None:  # started by spark-submit, and its to end
            return
        with suppress(OSError):
            process.stdin.close()  # the JVM ends when this does
        try:
            exit_code = process.wait(ARCHIVING_SECONDS if running.archive else END_SECONDS)
        except TimeoutExpired:
            process.kill()
            exit_code = process.wait()
        if running.archive is not None:
            running.archive.keep(exit_code)
    finally:
        shutil.rmtree(running.scratch, ignore_errors=True)
