"""Checks this machine for everything that Esker's Spark jobs need.

Each check examines one requirement. Its state is OK, NOTE (worth knowing, jobs still run) or
MISSING (jobs fail); its hint says what would help.

The trap: a successful import proves little. PySpark imports without Java, an old Java starts and
then fails on PySpark's class files, and a `SPARK_HOME` of another release has other jars. So the
checks compare versions with the ranges that our own package declares, and try everything else in
the way that a job uses it.

Source: docs/design/pipeline.md#exit-codes; pyproject.toml (the ranges).
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Final

from spark_jobs.session.class_archive import KEPT, SPACE_BYTES
from spark_jobs.session.java import (
    HINT,
    JavaError,
    cache_directory,
    find_java,
    find_javas,
    home_for_spark,
)
from spark_jobs.session.own_directory import make_private

GIB: Final = 1 << 30
LEAST_MEMORY: Final = 2 * GIB  # one JVM of 1 GB, two Python workers, a command
OPEN_FILES: Final = 1024
SPARK_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy", "fastavro", "matplotlib", "boto3")
INSTALL: Final = "pip install 'esker[spark]'"
AVRO_CLASS: Final = "org/apache/spark/sql/avro/AvroFileFormat.class"


class State(Enum):
    """The state of one requirement: met, worth a note, or missing."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking one requirement, with a remedy (`hint`) where it is not met."""

    name: str
    state: State
    found: str
    hint: str = ""


def examine(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Run the checks of `esker doctor` that start no JVM and use no network."""
    yield _python()
    yield _java(environment)
    for name in SPARK_PACKAGES:
        yield _package(name)
    yield from _spark_home(environment)
    yield _avro()
    yield _temporary()
    yield _cache(cache_directory(environment))
    yield _classes(environment)
    yield _memory()
    yield _open_files()
    yield _credentials(environment)


def passed(checks: list[Check]) -> bool:
    """Return whether all checked requirements of Spark jobs are met."""
    return all(check.state is not State.MISSING for check in checks)


# --- the checks ---------------------------------------------------------------------------------


def _python() -> Check:
    """Report the Python version and path, which Spark's local workers use too."""
    return Check("Python", State.OK, f"{sys.version.split()[0]} ({sys.executable})")


def _java(environment: Mapping[str, str]) -> Check:
    try:
        java = find_java(environment)
    except JavaError as error:
        return Check("Java", State.MISSING, str(error).rpartition("; ")[2], HINT)
    passed_over = [str(found) for found in find_javas(environment) if not found.suffices]
    if passed_over:
        return Check("Java", State.NOTE, str(java), f"too old, not used: {', '.join(passed_over)}")
    wrapped = _wrapper_note(home_for_spark, java)
    return Check("Java", State.OK, f"{java}{wrapped}")


def _wrapper_note(home: Callable[..., Path], java: object) -> str:
    """Return a note if Spark's JAVA_HOME is not the home of `java`, else empty text."""
    try:
        given = home(java)
    except OSError:
        return ", its wrapper cannot be written"
    return "" if given == getattr(java, "home", None) else f"; for Spark JAVA_HOME={given}"


def _package(name: str) -> Check:
    wanted = _wanted_versions().get(name, "")
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, State.MISSING, f"not installed; needed: {wanted or 'any'}", INSTALL)
    if not within(version, wanted):
        return Check(name, State.MISSING, f"{version}, needed: {wanted}", INSTALL)
    return Check(name, State.OK, version)


def _wanted_versions() -> dict[str, str]:
    """Return the version range that Esker requires of each package, optional packages included."""
    ranges: dict[str, str] = {}
    for line in metadata.requires("esker") or ():
        named = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)", line)
        if named and named[2].strip():
            ranges[named[1].lower()] = named[2].strip()
    return ranges


def within(version: str, wanted: str) -> bool:
    """Return whether a version is in a range, comparing only the first three numbers.

    >>> within("4.3.0", "<5,>=4.2"), within("5.0.dev1", "<5,>=4.2"), within("4.1.9", "<5,>=4.2")
    (True, False, False)
    """
    there = _numbers(version)
    for bound in filter(None, (part.strip() for part in wanted.split(","))):
        limit = _numbers(bound.lstrip("<>=!~ "))
        if bound.startswith(">=") and there < limit:
            return False
        if bound.startswith("<") and not bound.startswith("<=") and there >= limit:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    return (*numbers, *[0] * (3 - len(numbers)))


def _spark_home(environment: Mapping[str, str]) -> Iterator[Check]:
    named = environment.get("SPARK_HOME")
    if named:
        hint = "PySpark's own jars are used: another release's would not understand them"
        yield Check("SPARK_HOME", State.NOTE, f"{named}, ignored", hint)


def _avro() -> Check:
    """Check whether Spark's undocumented native Avro reader is in the installed jars."""
    try:
        jars = metadata.distribution("pyspark").locate_file("pyspark/jars")
        found = [
            jar
            for jar in Path(str(jars)).glob("spark-sql_*.jar")
            if AVRO_CLASS in zipfile.ZipFile(jar).namelist()
        ]
    except (metadata.PackageNotFoundError, OSError, zipfile.BadZipFile):
        found = []
    if found:
        return Check("Avro in Spark", State.OK, f"native, in {found[0].name}")
    return Check(
        "Avro in Spark",
        State.NOTE,
        "no native reader",
        "archives are read by fastavro, which is about ten times slower",
    )


def _temporary() -> Check:
    """Check that the directory of temporary files is writable, as every Spark session requires."""
    try:
        return _writable("temporary files", Path(tempfile.gettempdir()))
    except OSError as error:  # no usable temporary directory, or this one is not writable
        hint = "set TMPDIR to a directory that can be written"
        return Check("temporary files", State.MISSING, str(error), hint)


def _cache(directory: Path) -> Check:
    """Check the optional cache directory, which holds Spark logs and the JVM's class archive."""
    try:
        if make_private(directory):
            return _writable("cache", directory)
        hint = (
            f"jobs start slowly; chmod go-w {directory}, or set XDG_CACHE_HOME to one of your own"
        )
        return Check("cache", State.NOTE, f"{directory} is not this user's alone", hint)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a directory that can be written, or jobs start slowly"
        return Check("cache", State.NOTE, str(error), hint)


def _writable(name: str, directory: Path) -> Check:
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(b"?")
    free = shutil.disk_usage(directory).free
    found = f"{directory}, {_gib(free)} free"
    if free < SPACE_BYTES:
        return Check(name, State.NOTE, found, f"less than {_gib(SPACE_BYTES)}: jobs may need more")
    return Check(name, State.OK, found)


def _classes(environment: Mapping[str, str]) -> Check:
    kept = sorted((cache_directory(environment) / "classes").glob("*.jsa"))
    if not kept:
        return Check(
            "class archive",
            State.NOTE,
            "none yet",
            "the first job's end takes ten seconds longer and makes one; then jobs start faster",
        )
    size = sum(path.stat().st_size for path in kept)
    return Check("class archive", State.OK, f"{len(kept)} of at most {KEPT}, {size >> 20} MiB")


def _memory() -> Check:
    available = available_memory()
    if available is None:
        return Check("memory", State.NOTE, "unknown")
    if available < LEAST_MEMORY:
        return Check(
            "memory",
            State.NOTE,
            f"{_gib(available)} available",
            f"jobs want {_gib(LEAST_MEMORY)}; with less: --memory 512m --master 'local[1]'",
        )
    return Check("memory", State.OK, f"{_gib(available)} available")


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the free memory in bytes of the machine or the container, whichever is less."""
    found = []
    try:
        available = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if available:
            found.append(int(available[1]) << 10)
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no container, or not Linux
    return max(0, min(found)) if found else None


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} of at most {hard}"
    if soft < OPEN_FILES:
        return Check("open files", State.NOTE, found, f"ulimit -n {OPEN_FILES} before a job")
    return Check("open files", State.OK, found)


def _credentials(environment: Mapping[str, str]) -> Check:
    """Check that S3 credentials exist in the environment or a file, without using them."""
    shared = Path(
        environment.get("AWS_SHARED_CREDENTIALS_FILE") or _home(environment, "credentials")
    )
    named = [name for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE") if environment.get(name)]
    if shared.is_file():
        named.append(str(shared))
    if named:
        return Check("S3 credentials", State.OK, f"from {', '.join(named)}")
    hint = "needed for s3://, unless the machine's own role grants them; try: --store s3://BUCKET"
    return Check("S3 credentials", State.NOTE, "none named", hint)


def _home(environment: Mapping[str, str], name: str) -> str:
    return str(Path(environment.get("HOME", "/")) / ".aws" / name)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
