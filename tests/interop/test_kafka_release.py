"""The set-up itself: fetched once, whole or not at all; and when a failure may be a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop import kafka_release
from tests.interop.kafka_release import KafkaMissingError, KafkaSetupError, fetch

JAVA_17 = "echo 'openjdk version \"17.0.1\"' >&2\n"
MVN = """
echo called >> "$CALLS"
for argument; do case "$argument" in -DoutputDirectory=*) out="${argument#*=}";; esac; done
echo jar > "$out/some.jar"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory as the whole PATH (but for the shell's own), and an empty cache."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("ESKER_KAFKA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return directory


def _install(tools: Path, name: str, script: str) -> None:
    tool = tools / name
    tool.write_text(f"#!/bin/sh\n{script}")
    tool.chmod(0o755)


def test_the_setup_of_the_kafka_tests_reports_a_missing_java(tools: Path) -> None:
    assert tools.is_dir()
    with pytest.raises(KafkaMissingError, match="`java` is not on the PATH"):
        fetch()


def test_the_setup_of_the_kafka_tests_reports_a_java_that_is_too_old_as_missing(
    tools: Path,
) -> None:
    _install(tools, "java", "echo 'openjdk version \"11.0.2\"' >&2\n")
    with pytest.raises(KafkaMissingError, match=r"Java 17 or newer is needed.*11\.0\.2"):
        fetch()


def test_the_setup_of_the_kafka_tests_reports_a_missing_mvn(tools: Path) -> None:
    _install(tools, "java", JAVA_17)
    with pytest.raises(KafkaMissingError, match="`mvn` is not on the PATH"):
        fetch()


def test_the_setup_of_the_kafka_tests_reports_jars_that_cannot_be_downloaded(tools: Path) -> None:
    _install(tools, "java", JAVA_17)
    _install(tools, "mvn", "echo '[ERROR] Could not transfer artifact x: Unknown host'; exit 1\n")
    with pytest.raises(KafkaMissingError, match="out of mvn's reach"):
        fetch()


def test_a_failing_mvn_fails_the_setup_of_the_kafka_tests_and_leaves_no_files(tools: Path) -> None:
    _install(tools, "java", JAVA_17)
    _install(tools, "mvn", f"{MVN}echo '[ERROR] No space left on device'; exit 1\n")
    with pytest.raises(KafkaSetupError, match="No space left"):
        fetch()
    left = {path.name for path in kafka_release.cache_directory().parent.iterdir()}
    assert left == {f"kafka-{kafka_release.VERSION}.lock"}


def test_downloaded_kafka_jars_are_reused_until_the_pom_file_changes(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tools, "java", JAVA_17)
    _install(tools, "mvn", MVN)
    calls = Path(os.environ["CALLS"])
    jars = fetch()
    assert fetch() == jars
    assert (jars / "some.jar").exists()
    assert calls.read_text() == "called\n"

    pom = tmp_path / "pom.xml"
    pom.write_text(kafka_release.POM.read_text() + "<!-- another release -->")
    monkeypatch.setattr(kafka_release, "POM", pom)
    (jars / "some.jar").unlink()
    assert (fetch() / "some.jar").exists()
    assert calls.read_text() == "called\n" * 2


def test_two_concurrent_setups_of_the_kafka_tests_download_the_jars_once(tools: Path) -> None:
    _install(tools, "java", JAVA_17)
    _install(tools, "mvn", MVN)
    command = [sys.executable, kafka_release.__file__]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate()[0].split(" (")[0] for process in both)
    assert first == second == str(kafka_release.cache_directory())
    assert Path(os.environ["CALLS"]).read_text() == "called\n"


@pytest.mark.parametrize(
    ("ci", "required", "missing_fails", "setup_fails"),
    [
        ("", "", False, False),
        ("true", "", False, True),
        ("", "1", True, True),
        ("true", "1", True, True),
    ],
)
def test_in_ci_a_missing_required_tool_fails_the_kafka_tests_instead_of_a_skip(
    monkeypatch: pytest.MonkeyPatch, ci: str, required: str, missing_fails: bool, setup_fails: bool
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("ESKER_REQUIRE_KAFKA", required)
    fails = kafka_release.setup_failure_is_a_failure
    assert fails(KafkaMissingError("no Java")) is missing_fails
    assert fails(KafkaSetupError("disk full")) is setup_fails
