"""A session starts with and without a class archive, whole or damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from spark_jobs.session import class_archive
from spark_jobs.session.class_archive import KEPT, LEAST_BYTES, ClassArchive, archive_for
from spark_jobs.session.java import Java, find_java

MAIN: Final = "org.apache.spark.launcher.Main"  # small, and in the jars that we use


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    directory = tmp_path / "esker" / "classes"
    directory.parent.mkdir(mode=0o700)
    return ClassArchive(directory / "java-1.jsa", directory / f"java-1.{os.getpid()}.new")


def write(path: Path, size: int = LEAST_BYTES) -> None:
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with path.open("wb") as file:
        file.truncate(size)


def test_the_first_jvm_writes_a_class_archive_that_later_jvms_use(
    archive: ClassArchive,
) -> None:
    assert not archive.is_whole()
    assert archive.writing_options() == (f"-XX:ArchiveClassesAtExit={archive.writing}",)
    write(archive.writing)
    archive.keep(0)
    assert archive.is_whole()
    assert archive.reading_options()[0] == f"-XX:SharedArchiveFile={archive.file}"
    assert not archive.writing.exists()


@pytest.mark.parametrize("change", [b"", b"short", b"\0" * (LEAST_BYTES + 1), b"x" * LEAST_BYTES])
def test_esker_deletes_a_changed_class_archive_and_does_not_use_it(
    archive: ClassArchive, change: bytes
) -> None:
    write(archive.writing)
    archive.keep(0)
    archive.file.write_bytes(change)
    assert not archive.is_whole()
    assert list(archive.file.parent.iterdir()) == []


def test_esker_does_not_use_a_class_archive_without_its_checksum_file(
    archive: ClassArchive,
) -> None:
    """The machine stopped after writing the archive and before its mark."""
    write(archive.file)
    assert not archive.is_whole()
    write(archive.writing)
    archive.keep(0)
    write(archive.file, LEAST_BYTES + 1)
    assert not archive.is_whole()


@pytest.mark.parametrize(("size", "exit_code"), [(LEAST_BYTES, 1), (LEAST_BYTES - 1, 0)])
def test_esker_deletes_a_class_archive_that_a_jvm_wrote_incompletely(
    archive: ClassArchive, size: int, exit_code: int
) -> None:
    write(archive.writing, size)
    archive.keep(exit_code)
    assert list(archive.file.parent.iterdir()) == []


def test_two_jvms_that_write_a_class_archive_at_the_same_time_leave_one_valid_archive(
    archive: ClassArchive,
) -> None:
    other = ClassArchive(archive.file, archive.file.with_name("java-1.1.new"))
    write(archive.writing)
    write(other.writing, LEAST_BYTES + 1)
    archive.keep(0)
    other.keep(0)
    names = sorted(path.name for path in archive.file.parent.iterdir())
    assert names == ["java-1.jsa", "java-1.jsa.crc32c"]
    assert archive.file.stat().st_size == LEAST_BYTES + 1
    assert archive.is_whole()


def test_a_jvm_that_ends_without_writing_its_class_archive_causes_no_error(
    archive: ClassArchive,
) -> None:
    archive.keep(0)
    archive.discard()
    assert not archive.is_whole()


def test_esker_writes_no_class_archive_to_a_full_disk(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int = class_archive.SPACE_BYTES - 1

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage())
    assert archive.writing_options() == ()


def test_esker_uses_no_class_archive_in_an_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "classes"
    assert ClassArchive(nowhere / "a.jsa", nowhere / "a.1.new").writing_options() == ()


@pytest.mark.parametrize("which", ["classes", "cache"])
@pytest.mark.parametrize("taken", ["group", "others", "linked", "another user's"])
def test_esker_uses_no_class_archive_in_a_directory_that_other_users_can_write_to(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch, which: str, taken: str
) -> None:
    """It is code, and a user who can write it can write its checksum."""
    write(archive.writing)
    archive.keep(0)
    assert archive.is_whole()
    directory = archive.file.parent if which == "classes" else archive.file.parent.parent
    if taken == "linked":
        directory.rename(directory.with_name("elsewhere"))
        directory.symlink_to(directory.with_name("elsewhere"))
    elif taken == "another user's":
        real = Path.lstat
        theirs = os.stat_result((0o40755, 0, 0, 2, os.getuid() + 1, 0, 0, 0, 0, 0))
        monkeypatch.setattr(Path, "lstat", lambda it: theirs if it == directory else real(it))
    else:
        directory.chmod(0o720 if taken == "group" else 0o702)
    assert not archive.is_whole()
    assert archive.writing_options() == ()
    assert archive.file.exists()  # nor is anything removed there


def test_esker_deletes_old_class_archives_and_temporary_files(archive: ClassArchive) -> None:
    directory = archive.file.parent
    for number in range(KEPT + 2):
        write(directory / f"java-0.{number}.jsa")
        os.utime(directory / f"java-0.{number}.jsa", (number, number))
    write(directory / "java-1.999999999.new")  # of a process that is gone
    write(directory / "java-1.1.new")  # of one that lives
    write(archive.writing)
    archive.keep(0)
    names = sorted(path.name for path in directory.iterdir() if path.suffix != ".crc32c")
    assert names == ["java-0.3.jsa", "java-0.4.jsa", "java-1.1.new", "java-1.jsa"]


def test_each_java_installation_and_set_of_jars_has_its_own_class_archive(tmp_path: Path) -> None:
    def named(java: str, jar: str) -> str:
        home, jars = tmp_path / java, tmp_path / f"jars-{jar}"
        (home / "lib" / "server").mkdir(parents=True, exist_ok=True)
        (home / "lib" / "server" / "classes.jsa").touch()
        if not (home / "lib" / "server" / "libjvm.so").exists():
            (home / "lib" / "server" / "libjvm.so").write_text(java)
        jars.mkdir(exist_ok=True)
        (jars / jar).touch()
        java_there = Java(home=home, version="17", source="PATH")
        found = archive_for(java_there, jars, tmp_path / "cache")
        assert found is not None
        return found.file.name

    assert named("a", "x-1.jar") == named("a", "x-1.jar")
    assert len({named("a", "x-1.jar"), named("ab", "x-1.jar"), named("a", "x-2.jar")}) == 3


@pytest.mark.spark
def test_java_starts_from_the_class_archive_that_it_wrote(tmp_path: Path) -> None:
    import pyspark

    java = find_java()
    jars = Path(pyspark.__path__[0]) / "jars"
    archive = archive_for(java, jars, tmp_path)
    assert archive is not None
    launcher = next(jars.glob("spark-launcher_*.jar"))

    def run(*options: str) -> str:
        command = [str(java.home / "bin" / "java"), *options, "-cp", str(launcher), MAIN]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "Not enough arguments" in done.stderr) == (1, True), done
        return done.stdout

    run(*archive.writing_options())
    archive.keep(0)
    assert archive.is_whole()
    loaded = run(*archive.reading_options(), "-Xlog:class+load")
    assert f"{MAIN} source: shared objects file (top)" in loaded
