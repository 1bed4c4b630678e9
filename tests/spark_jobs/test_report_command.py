"""Tests `esker spark report`: files, numbers, exit codes.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from esker.commands.spark import app
from esker.commands.spark.common import EngineOrAuto
from esker.commands.spark.report import LARGE, _choose
from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import write_high_watermarks
from spark_jobs.report.schemas import TABLES
from tests.spark_jobs.report_world import World


def run(*arguments: object) -> tuple[int, str, str]:
    """Run `esker spark report`; return exit code, stdout and stderr."""
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def node(harbour: World) -> World:
    """Return a node's directory that records how much is committed."""
    marks = {
        ("__cluster_metadata", 0): harbour.cluster_end_offset,
        ("__diskless-metadata", 0): harbour.end_offset,
    }
    write_high_watermarks(RealFileSystem(), harbour.directory, marks)  # type: ignore[arg-type]
    return harbour


def test_the_report_command_writes_a_page_tables_and_a_json_file(
    node: World, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    code, told, errors = run("--log-dir", node.directory, "--out", out, "--now", node.now_ms)
    assert (code, errors) == (0, "")
    first, *rows = told.splitlines()
    assert first.startswith("Your data costs ")
    assert any(row.startswith("Dead and pinned") for row in rows)
    assert any(row.startswith("rot: ") for row in rows)
    assert str(out / "report.html") in rows[-1]
    assert (out / "report.html").stat().st_size > 100_000
    assert {path.stem for path in (out / "tables").iterdir()} == TABLES.keys()


def test_the_json_option_of_the_report_prints_the_numbers_of_its_first_screen(
    node: World, tmp_path: Path
) -> None:
    where = ("--log-dir", node.directory, "--out", tmp_path / "report", "--now", node.now_ms)
    prices = tmp_path / "prices.toml"
    prices.write_text('source = "our contract"\ncurrency = "EUR"\nput_per_1000 = 1.0\n')
    with patch("spark_jobs.report.writing.page", return_value="<!doctype html>"):
        code, told, _ = run(*where, "--json", "--prices", prices)
    found = json.loads(told)
    assert code == 0
    assert (found["prices"], found["currency"], found["engine"]) == ("our contract", "EUR", "local")
    page = found.pop("page")
    assert Path(page).read_text() == "<!doctype html>"
    assert found == json.loads((tmp_path / "report" / "report.json").read_text())


def test_each_error_of_the_report_command_is_one_sentence_with_an_exit_code(
    node: World, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "report")
    code, _, told = run("--log-dir", tmp_path / "nowhere", *out)
    assert (code, told.count("\n")) == (3, 1)
    assert "is not a node's log directory" in told
    code, _, _ = run(*out)
    assert code == 2
    prices = tmp_path / "prices.toml"
    prices.write_text("put_per_1000 = -1\n")
    code, _, told = run("--log-dir", node.directory, *out, "--prices", prices)
    assert (code, told.count("\n")) == (2, 1)
    assert "put_per_1000 = -1 is not a price" in told
    (tmp_path / "report").write_text("in the way")
    code, _, told = run("--log-dir", node.directory, *out)
    assert (code, told) == (2, f"esker: {tmp_path / 'report'} is a file: name a directory\n")


def test_the_report_command_names_a_damaged_log_and_writes_no_page(
    node: World, tmp_path: Path
) -> None:
    copy = tmp_path / "node"
    copy.mkdir()
    for path in node.directory.rglob("*"):
        if path.is_file() and "machine" not in path.parts:
            target = copy / path.relative_to(node.directory)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    segment = sorted((copy / "__diskless-metadata-0").glob("*.log"))[0]
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    code, told, errors = run("--log-dir", copy, "--out", tmp_path / "report")
    assert (code, told, errors.count("\n")) == (3, "", 1)
    assert segment.name in errors
    assert not (tmp_path / "report").exists()


def test_the_automatic_engine_of_a_report_is_spark_for_large_logs(node: World) -> None:
    assert _choose(EngineOrAuto.AUTO, None, node.logs) is EngineOrAuto.LOCAL
    assert _choose(EngineOrAuto.AUTO, "spark://here:7077", node.logs) is EngineOrAuto.SPARK
    assert _choose(EngineOrAuto.LOCAL, "spark://here:7077", node.logs) is EngineOrAuto.LOCAL
    with patch("esker.commands.spark.report.LARGE", node.end_offset):
        assert _choose(EngineOrAuto.AUTO, None, node.logs) is EngineOrAuto.SPARK
    assert node.end_offset < LARGE
