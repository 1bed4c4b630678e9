"""One released Apache Kafka, fetched once: the yardstick of the interop tests.

`pom.xml` beside this file pins the release; `mvn` copies its jars, and what they need at run time,
into `.cache/kafka-<version>/` of the project (or below `$ESKER_KAFKA_CACHE`). The directory appears
by one rename, so it is there whole or not at all, and a lock keeps two test processes from fetching
twice. It keeps a copy of the pom: after a change of the pom it is fetched again.

Where Java 17 or `mvn` is missing, or `mvn` cannot reach what it fetches from, there is nothing to
compare with, and the tests say so and are skipped. `CI=true` turns every other failure into a
failure of the tests, and `ESKER_REQUIRE_KAFKA=1` turns all of them into one.

    python tests/interop/kafka_release.py     # fetch, and print the directory
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).with_name("pom.xml")
PROJECT: Final = Path(__file__).parents[2]
OLDEST_JAVA: Final = 17
FETCH_TIMEOUT_S: Final = 600

_version = re.search(r"<kafka.version>([^<]+)<", POM.read_text())
assert _version, f"{POM} pins no kafka.version"
VERSION: Final = _version[1]

_UNREACHABLE: Final = re.compile(
    r"Unknown host|UnknownHostException|Could not transfer|Connection (refused|reset|timed out)"
    r"|Connect timed out|Network is unreachable|No route to host|in offline mode",
    re.IGNORECASE,
)


class KafkaMissingError(Exception):
    """This machine has no Java, no mvn or no way to Kafka's jars: nothing to compare with."""


class KafkaSetupError(Exception):
    """All that is needed is there, and yet the release could not be set up."""


def require_kafka() -> bool:
    """Whether even a missing Java is a failure: `ESKER_REQUIRE_KAFKA=1`."""
    return os.environ.get("ESKER_REQUIRE_KAFKA") == "1"


def setup_failure_is_a_failure(error: Exception) -> bool:
    """Whether the tests must fail for this error rather than be skipped."""
    if require_kafka():
        return True
    return isinstance(error, KafkaSetupError) and os.environ.get("CI") == "true"


def cache_directory(name: str = "kafka") -> Path:
    """Where the release's jars are, or will be."""
    base = os.environ.get("ESKER_KAFKA_CACHE")
    return (Path(base) if base else PROJECT / ".cache") / f"{name}-{VERSION}"


def fetch(name: str = "kafka", pom: Path | None = None, *options: str) -> Path:
    """The directory with the release's jars, fetched if it is not there yet.

    Args:    name: of the directory, before the version. pom: names the jars; default: `POM`.
             options: of mvn's copy, besides.
    Raises:  KafkaMissingError, KafkaSetupError.
    """
    _check_java()
    pom = pom or POM
    target = cache_directory(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(target.name + ".lock")):
        if not _is_current(target, pom):
            _fetch_into(target, pom, options)
    return target


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time holds `path`; the system lets go of it if that process dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_java() -> None:
    java = shutil.which("java")
    if java is None:
        raise KafkaMissingError("`java` is not on the PATH")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or int(found[1]) < OLDEST_JAVA:
        said = (done.stderr.splitlines() or ["nothing"])[0]
        raise KafkaMissingError(f"Java {OLDEST_JAVA} or newer is needed, `java -version`: {said}")


def _is_current(target: Path, pom: Path) -> bool:
    copy = target / pom.name
    return copy.exists() and copy.read_bytes() == pom.read_bytes()


def _fetch_into(target: Path, pom: Path, options: Sequence[str]) -> None:
    if shutil.which("mvn") is None:
        raise KafkaMissingError("`mvn` is not on the PATH")
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{target.name}.partial-"))
    try:
        _copy_dependencies(partial, pom, options)
        shutil.copyfile(pom, partial / pom.name)
        if target.exists():  # of an older pom; nobody reads it, since all wait for our lock
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_dependencies(directory: Path, pom: Path, options: Sequence[str]) -> None:
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom)]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={directory}", f"-Dkafka.version={VERSION}", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise KafkaMissingError(f"mvn did not finish within {FETCH_TIMEOUT_S} s") from error
    if done.returncode == 0:
        return
    said = (done.stdout + done.stderr).strip()
    if _UNREACHABLE.search(said):
        raise KafkaMissingError(f"Kafka's jars are out of mvn's reach: {said[-500:]}")
    raise KafkaSetupError(f"mvn failed with exit code {done.returncode}: {said[-2000:]}")


if __name__ == "__main__":
    started = time.monotonic()
    print(fetch(), f"({time.monotonic() - started:.1f} s)")
