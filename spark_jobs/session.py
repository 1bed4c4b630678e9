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

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
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
EXECUTOR_SECONDS: Final = 60.0
ARCHIVING_SECONDS: Final = 180.0  # alone on two cores it takes ten
SAID_BYTES: Final = 1 << 16  # of the log's end, when an error is looked for

JVM_OPTIONS: Final = ("-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true")
QUICK: Final = ("-XX:TieredStopAtLevel=1",)
"""The fast compiler alone. On two cores the other one takes a core from the first half minute; only
what aggregates for longer than that, in the JVM, gets its time back."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What was asked for, checked."""

    where: Master
    conf: Mapping[str, str]
    jvm_options: tuple[str, ...]
    scratch: Path
    log: Path
    cache: Path | None
    keep_classes: bool


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
    heavy: bool = False,
    cache: Path | None = None,
    keep_classes: bool = True,
) -> SparkSession:
    """A session on `master`, by default two threads or more of this process's own JVM.

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
    logging.getLogger().addFilter(_is_not_py4j)
    scratch = _scratch()
    chosen = {
        **SETTINGS,
        **_placed(where),
        "spark.app.name": app,
        "spark.driver.memory": heap,
        "spark.executor.memory": heap,
        "spark.local.dir": str(scratch),
        "spark.master": where.url,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(settings or {}),
    }
    wanted = _Wanted(
        where=where,
        conf=chosen,
        jvm_options=JVM_OPTIONS if heavy else (*JVM_OPTIONS, *QUICK),
        scratch=scratch,
        log=log_file or scratch / "spark.log",
        cache=cache,
        keep_classes=keep_classes,
    )
    try:
        started, _running = _start(wanted)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return started


def stop_session(session: SparkSession) -> None:
    """Stop it and its JVM; the next one starts anew."""
    global _running
    running, _running = _running, None
    process = running.gateway.proc if running else None
    late = threading.Timer(END_SECONDS, process.kill) if process else None
    if late:
        late.start()
    try:
        session.stop()
    except (Py4JError, OSError):
        pass  # a JVM that is dead has stopped
    finally:
        if late:
            late.cancel()
    if running is not None:
        _end(running)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Py4J prints a trace of each Ctrl-C, past its own logger."""
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def session(master: str | None = None, *, app: str, **given: Any) -> Iterator[SparkSession]:
    """A session for as long as this lasts. Arguments as of `start_session`."""
    started = start_session(master, app=app, **given)
    try:
        yield started
    finally:
        stop_session(started)


# --- starting -----------------------------------------------------------------------------------


def _start(wanted: _Wanted) -> tuple[SparkSession, _Running]:
    try:
        java = find_java()
    except JavaError as error:
        raise SessionError(Failure(str(error), HINT)) from None
    archive = archive_for(java, Path(pyspark.__path__[0]) / "jars", wanted.cache)
    already = _size(wanted.log)
    try:
        with _interrupts_held() as held:
            gateway, writing = _launched(wanted, java, archive)
    except (PySparkException, OSError) as error:
        raise _not_started(error, wanted.log, already) from None
    running = _Running(gateway, wanted.scratch, writing)
    try:
        if held:
            raise KeyboardInterrupt
        return _connect(wanted, gateway), running
    except BaseException as error:
        running.archive = None
        _end(running)
        if isinstance(error, PySparkException | Py4JError | OSError):
            raise _not_started(error, wanted.log, already) from None
        raise


@contextmanager
def _interrupts_held() -> Iterator[list[int]]:
    """Gives the Ctrl-Cs of this time, of which nobody else hears: a JVM that is left while it
    starts never ends."""
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held  # Ctrl-C is the main thread's
        return
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


def _launched(
    wanted: _Wanted, java: Java, archive: ClassArchive | None
) -> tuple[Any, ClassArchive | None]:
    """The JVM, and the archive that it will write. One that does not start from an archive gets
    a second chance without."""
    if archive is not None and archive.is_whole():
        try:
            return _launch(wanted, java, archive.reading()), None
        except PySparkException:
            archive.discard()
    elif archive is not None and wanted.keep_classes:
        return _launch(wanted, java, archive.writing_options()), archive
    return _launch(wanted, java, ()), None


def _launch(wanted: _Wanted, java: Java, options: tuple[str, ...]) -> Any:
    """A JVM, ready to be spoken to."""
    options = (*wanted.jvm_options, *options)
    options += (
        f"-XX:ErrorFile={wanted.scratch}/hs_err.log",
    )  # else it lies in the user's directory
    conf = _conf({**wanted.conf, "spark.driver.extraJavaOptions": " ".join(options)})
    try:
        home = home_for_spark(java, wanted.cache)
    except OSError:
        home = home_for_spark(java, wanted.scratch)  # nothing can be kept: for this once
    with (
        wanted.log.open("ab") as said,
        _environment(
            JAVA_HOME=str(home),
            PYSPARK_PYTHON=_python(wanted.where),
            PYSPARK_SUBMIT_ARGS=None,
            SPARK_HOME=pyspark.__path__[0],  # jars of another release would not understand us
            SPARK_LAUNCHER_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        ),
    ):
        streams = {"stdout": said, "stderr": said}
        return launch_gateway(conf, streams)  # type: ignore[no-untyped-call,unused-ignore]


def _connect(wanted: _Wanted, gateway: Any) -> SparkSession:
    with _environment(PYSPARK_PYTHON=_python(wanted.where)):
        context = SparkContext(conf=_conf(wanted.conf), gateway=gateway)
    if not wanted.where.is_local:
        context.addPyFile(str(code_zip(wanted.scratch)))
    if wanted.where.doors:
        _await_executor(context, wanted)
    return SparkSession(context)


def _await_executor(context: SparkContext, wanted: _Wanted) -> None:
    """A standalone cluster that has nothing free for us says so to nobody: jobs would wait for
    ever."""
    if wanted.conf.get("spark.dynamicAllocation.enabled") == "true":
        return  # they come with the first job
    scheduler: Any = context._jsc.sc()
    deadline = time.monotonic() + EXECUTOR_SECONDS
    while scheduler.getExecutorMemoryStatus().size() < 2:  # the driver is one
        if time.monotonic() > deadline:
            context.stop()
            asked = wanted.conf["spark.executor.memory"]
            raise SessionError(
                Failure(
                    f"{wanted.where.url} has had no worker for us in {EXECUTOR_SECONDS:.0f} s",
                    f"one needs a free core and {asked} of free memory (--memory)",
                )
            )
        time.sleep(0.1)


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


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


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
