"""Tests what a command prints about its Spark session: one sentence, exit code, log file."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
import typer
from typer.testing import CliRunner

from esker.commands.spark.session import (
    KEPT_LOGS,
    MEMORY,
    Debug,
    Master,
    Memory,
    SparkLog,
    spark_session,
)
from spark_jobs.session import java
from tests.spark_jobs.fake_java import fake_java

NO_MEMORY = "echo 'Could not reserve enough space for 1048576KB object heap'; exit 1"

app = typer.Typer()


@app.command()
def job(
    master: Master = None, memory: Memory = MEMORY, spark_log: SparkLog = None, debug: Debug = False
) -> None:
    """Run what every job runs first."""
    with spark_session("job", master, memory, spark_log, debug=debug):
        raise AssertionError("no session can be had here")


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a Java that gets no memory, and a cache of the test's own."""
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)  # of other tests
    monkeypatch.setattr(java, "bundled_runtime", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "17.0.1", NO_MEMORY)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def logs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "esker" / "logs").iterdir())


def test_a_failed_spark_command_prints_one_sentence_and_logs_the_whole_error(
    tmp_path: Path,
) -> None:
    shown = CliRunner().invoke(app)
    (log,) = logs(tmp_path)
    sentence = "the machine has less memory than the JVM requests; try --memory 512m"
    assert (shown.exit_code, shown.stderr) == (3, f"esker: {sentence} (all of it: {log})\n")
    assert "1048576KB" in log.read_text()
    assert "Traceback" in log.read_text()


def test_the_debug_option_of_a_spark_command_prints_the_traceback_of_an_error() -> None:
    shown = CliRunner().invoke(app, ["--debug"])
    assert shown.exit_code == 3
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("esker: the machine has less memory")


def test_the_spark_log_option_of_a_job_appends_to_the_named_file(tmp_path: Path) -> None:
    (tmp_path / "mine.log").write_text("before\n")
    shown = CliRunner().invoke(app, ["--spark-log", str(tmp_path / "mine.log")])
    assert f"(all of it: {tmp_path}/mine.log)" in shown.stderr
    assert (tmp_path / "mine.log").read_text().startswith("before\nCould not reserve")
    shown = CliRunner().invoke(app, ["--spark-log", str(tmp_path / "none" / "mine.log")])
    assert (shown.exit_code, "No such file or directory" in shown.stderr) == (3, True)


def test_a_spark_job_deletes_all_log_files_of_jobs_except_the_newest(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "esker" / "logs"
    directory.mkdir(parents=True)
    for number in range(KEPT_LOGS + 5):
        (directory / f"20260101-0000{number:02}-job-1.log").touch()
    CliRunner().invoke(app)
    assert len(logs(tmp_path)) == KEPT_LOGS
    assert logs(tmp_path)[0].name == "20260101-000006-job-1.log"


@pytest.mark.parametrize("options", [["--memory", "much"], ["--master", "http://a:1"]])
def test_a_spark_command_with_invalid_options_exits_with_2(options: list[str]) -> None:
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 2
    assert repr(options[1]) in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_spark_command_without_java_exits_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = CliRunner().invoke(app)
    assert shown.exit_code == 3
    assert shown.stderr.startswith("esker: Spark needs Java 17 or newer; found none; install Java")
    assert shown.stderr.count("\n") == 1


def test_a_spark_command_starts_without_a_writable_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shown = CliRunner().invoke(app)
    assert (shown.exit_code, "less memory" in shown.stderr) == (3, True), shown.stderr
