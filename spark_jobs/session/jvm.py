"""Starts and ends the JVM of a session.

PySpark starts it by a script of Spark's, which starts a small JVM to learn the command of the big
one; this module sets the Java and the output file of both. The JVM ends when its standard input
does.

The trap: PySpark forgets a JVM whose start is interrupted, and that one never ends. So Ctrl-C
is held until there is something to end.

Source: PySpark's java_gateway.py; Spark's bin/spark-class.
"""

from __future__ import annotations

import os
import signal
import threading
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

from spark_jobs.session.class_archive import ClassArchive, archive_for
from spark_jobs.session.failures import Failure, SessionError, explain
from spark_jobs.session.java import HINT, Java, JavaError, find_java, home_for_spark

END_SECONDS: Final = 30.0
ARCHIVING_SECONDS: Final = 180.0  # alone on two cores it takes ten
SAID_BYTES: Final = 1 << 16  # of the log's end, when an error is looked for

OPTIONS: Final = ("-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true")
QUICK: Final = ("-XX:TieredStopAtLevel=1",)
"""The fast compiler alone. On two cores the other one takes a core from the first half minute; only
what aggregates for longer than that, in the JVM, gets its time back."""
LAUNCHER_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The JVM to start: its settings, directories and log."""

    conf: Mapping[str, str]
    python: str  # of the workers
    scratch: Path  # exists
    log: Path  # takes what is printed
    heavy: bool  # compile better, and later
    cache: Path | None
    keep_classes: bool


class Jvm:
    """A JVM with a connection to it. Made by `start_jvm`."""

    def __init__(self, gateway: Any, archive: ClassArchive | None) -> None:
        self.gateway = gateway
        self._archive = archive  # that it writes when it ends
        self._process = gateway.proc  # None: started by spark-submit, and its to end

    @contextmanager
    def kill_if_late(self) -> Iterator[None]:
        """Kill the JVM if the `with` block takes longer than END_SECONDS."""
        late = threading.Timer(END_SECONDS, self._kill)
        late.start()
        try:
            yield
        finally:
            late.cancel()

    def end(self, *, well: bool) -> None:
        """End the JVM; if `well` is true, let it write the class archive and store the archive."""
        with suppress(Py4JError, OSError):
            self.gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        if self._process is None:
            return
        archive = self._archive if well else None
        if self._archive is not None and archive is None:
            self._kill()  # it would write for ten seconds
        with suppress(OSError):
            self._process.stdin.close()  # it ends when this does
        try:
            exit_code = self._process.wait(ARCHIVING_SECONDS if archive else END_SECONDS)
        except TimeoutExpired:
            self._kill()
            exit_code = self._process.wait()
        if archive is not None:
            archive.keep(exit_code)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def start_jvm(launch: Launch) -> Jvm:
    """Start a JVM for Spark, from a class archive if a usable archive exists.

    Raises:  SessionError; KeyboardInterrupt, once the JVM has ended.
    """
    try:
        java = find_java()
    except JavaError as error:
        raise SessionError(Failure(str(error), HINT)) from None
    archive = archive_for(java, Path(pyspark.__path__[0]) / "jars", launch.cache)
    already = size_bytes(launch.log)
    try:
        with hold_interrupts() as held:
            jvm = _start_with_archive(launch, java, archive)
    except (PySparkException, OSError) as error:
        raise start_failure(error, launch.log, already) from None
    if held:
        jvm.end(well=False)
        raise KeyboardInterrupt
    return jvm


def _start_with_archive(launch: Launch, java: Java, archive: ClassArchive | None) -> Jvm:
    """Start a JVM from the class archive, or start a JVM that writes the archive on exit.

    A JVM that fails to start from the archive is started again without it.
    """
    if archive is not None and archive.is_whole():
        try:
            return Jvm(_gateway(launch, java, archive.reading_options()), None)
        except PySparkException:
            archive.discard()
    elif archive is not None and launch.keep_classes:
        return Jvm(_gateway(launch, java, archive.writing_options()), archive)
    return Jvm(_gateway(launch, java, ()), None)


def _gateway(launch: Launch, java: Java, more: tuple[str, ...]) -> Any:
    errors = f"-XX:ErrorFile={launch.scratch}/hs_err.log"  # else in the user's directory
    options = (*OPTIONS, *(() if launch.heavy else QUICK), errors, *more)
    conf = make_conf({**launch.conf, "spark.driver.extraJavaOptions": " ".join(options)})
    try:
        home = home_for_spark(java, launch.cache)
    except OSError:
        home = home_for_spark(java, launch.scratch)  # nothing can be kept: for this once
    with (
        launch.log.open("ab") as output,
        environment(
            JAVA_HOME=str(home),
            PYSPARK_PYTHON=launch.python,
            PYSPARK_SUBMIT_ARGS=None,
            SPARK_HOME=pyspark.__path__[0],  # jars of another release would not understand us
            SPARK_LAUNCHER_OPTS=LAUNCHER_OPTIONS,
        ),
    ):
        streams = {"stdout": output, "stderr": output}
        return launch_gateway(conf, streams)  # type: ignore[no-untyped-call,unused-ignore]


# --- also of use to the session -----------------------------------------------------------------


def make_conf(settings: Mapping[str, str]) -> SparkConf:
    """Convert a mapping of Spark settings to a SparkConf."""
    conf = SparkConf(loadDefaults=False)
    for name, value in sorted(settings.items()):
        conf.set(name, value)
    return conf


def size_bytes(log: Path) -> int:
    """Return a log file's size in bytes, or 0 if the file does not exist."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def start_failure(error: BaseException, log: Path, start: int) -> SessionError:
    """Build the error for a JVM that did not start, from its output in the log from `start` on."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - SAID_BYTES))
            output = file.read(SAID_BYTES).decode(errors="replace")
    except OSError:
        output = ""
    return SessionError(explain(error, output), log_file=log)


@contextmanager
def hold_interrupts() -> Iterator[list[int]]:
    """Yield a list that collects interrupts (Ctrl-C), which the block does not raise."""
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held  # Ctrl-C is the main thread's
        return
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set environment variables for processes that start within the block."""
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
