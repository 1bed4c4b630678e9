"""`esker doctor` reports each requirement as met or missing, with a remedy."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from esker import doctor
from esker.cli import app
from esker.commands.compaction import Backlog
from esker.commands.doctor import merging_checks
from esker.doctor import Check, State, available_memory, examine, passed, within
from spark_jobs.session import java
from tests.spark_jobs.fake_java import fake_java


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine with this Python and no other requirement."""
    return {"PATH": "", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def checks(environment: dict[str, str]) -> dict[str, Check]:
    return {check.name: check for check in examine(environment)}


def test_doctor_reports_missing_java_with_the_package_to_install(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "bundled_runtime", lambda: None)
    found = checks(environment)["Java"]
    assert (found.state, found.found) == (State.MISSING, "found none")
    assert "openjdk-17" in found.hint
    assert "esker[spark,java]" in found.hint


def test_doctor_counts_an_old_java_as_missing_and_reports_its_version(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "bundled_runtime", lambda: None)
    environment["JAVA_HOME"] = str(fake_java(tmp_path / "old", "11.0.2"))
    found = checks(environment)["Java"]
    assert found.state is State.MISSING
    assert found.found == f"found only Java 11.0.2 (JAVA_HOME: {tmp_path}/old)"


def test_doctor_notes_an_old_java_beside_a_new_java(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment["JAVA_HOME"] = str(fake_java(tmp_path / "old", "11.0.2"))
    environment["PATH"] = str(fake_java(tmp_path / "new", "17.0.9") / "bin")
    found = checks(environment)["Java"]
    assert (found.state, found.found) == (
        State.NOTE, f"Java 17.0.9 (PATH: {tmp_path}/new)"
    )  # fmt: skip
    assert "11.0.2" in found.hint


@pytest.mark.parametrize("version", ["3.5.1", "5.0.0.dev1", None])
def test_doctor_requires_a_pyspark_version_in_the_range_of_eskers_package(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    real = metadata.version

    def fake_version(name: str) -> str:
        if name != "pyspark":
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", fake_version)
    found = checks(environment)["pyspark"]
    assert found.state is State.MISSING
    assert found.found.startswith(version or "not installed")
    assert ">=4.2" in found.found
    assert found.hint == "pip install 'esker[spark]'"


def test_doctor_finds_every_package_that_make_installs() -> None:
    found = checks(dict(os.environ))
    packages = {name: found[name].state for name in doctor.SPARK_PACKAGES}
    assert packages == dict.fromkeys(doctor.SPARK_PACKAGES, State.OK)
    assert found["Avro in Spark"].state is State.OK
    assert found["Java"].state is not State.MISSING


def test_doctor_notes_an_ignored_spark_home(
    environment: dict[str, str],
) -> None:
    assert "SPARK_HOME" not in checks(environment)
    found = checks({**environment, "SPARK_HOME": "/opt/spark-3"})["SPARK_HOME"]
    assert (found.state, found.found) == (State.NOTE, "/opt/spark-3, ignored")


def test_doctor_requires_a_usable_temporary_directory_but_only_notes_an_unusable_cache(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "gone"))
    found = checks({**environment, "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert (found["temporary files"].state, found["cache"].state) == (State.MISSING, State.NOTE)
    assert "TMPDIR" in found["temporary files"].hint
    assert "XDG_CACHE_HOME" in found["cache"].hint


def test_doctor_notes_a_cache_that_other_users_can_write_to(environment: dict[str, str]) -> None:
    cache = java.cache_directory(environment)
    cache.mkdir(parents=True)
    cache.chmod(0o770)
    found = checks(environment)["cache"]
    assert (found.state, f"chmod go-w {cache}" in found.hint) == (State.NOTE, True)


def test_doctor_reports_the_available_memory_of_machine_or_container_whichever_is_less(
    tmp_path: Path,
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 8 << 30, "no container"
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 8 << 30, "one without a limit"
    (tmp_path / "memory.max").write_text(f"{2 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 30}\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 1 << 30
    assert available_memory(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("version", "wanted", "is_within"),
    [
        ("18.0", ">=18", True),
        ("17.9.9", ">=18", False),
        ("3", ">=2.2,<3", False),
        ("2.10", ">=2.2,<3", True),
        ("1.0", "", True),
    ],
)
def test_doctor_compares_package_versions_as_numbers(
    version: str, wanted: str, is_within: bool
) -> None:
    assert within(version, wanted) is is_within


def test_doctor_exits_with_3_if_a_requirement_is_missing(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "bundled_runtime", lambda: None)
    shown = CliRunner().invoke(app, ["doctor"], env={**environment, "JAVA_HOME": ""})
    assert shown.exit_code == 3
    assert "Java             MISSING  found none\n" in shown.output
    assert "\nJava: install Java 17 or newer" in shown.output


def test_the_json_output_of_doctor_has_every_check_of_its_text_output(
    environment: dict[str, str], tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "java", "17.0.9")
    shown = CliRunner().invoke(
        app, ["doctor", "--json"], env={**environment, "JAVA_HOME": str(home)}
    )
    assert shown.exit_code == 0, shown.output
    report: dict[str, Any] = json.loads(shown.stdout)
    assert report["ok"] is True
    found = {check["name"]: check for check in report["checks"]}
    assert found["Java"]["found"] == f"Java 17.0.9 (JAVA_HOME: {home})"
    assert found["class archive"]["state"] == "note"


def backlog(partition: int, runs: int | None, merged: int | None, *, until: int = 0) -> Backlog:
    return Backlog("orders", partition, 1 << 20, runs, merged, 0.25, until, 100)


def test_doctor_notes_a_backlog_of_merging_and_names_the_worst_partition() -> None:
    merging, compaction = merging_checks(
        [backlog(0, 20, 1), backlog(1, 1_500, 3), backlog(2, None, None)]
    )
    assert merging.state is State.NOTE
    assert merging.found.startswith("1,520 runs of 2 partitions, 4 after a complete merge")
    assert "orders-1" in merging.found
    assert "esker spark merge plan" in (merging.hint or "")
    assert compaction.found == "no partition was compacted yet"


def test_doctor_reports_the_dirtiest_compacted_partition() -> None:
    merging, compaction = merging_checks([backlog(0, 20, 1, until=50)])
    assert merging.state is compaction.state is State.OK
    assert compaction.found == (
        "1 partitions were compacted; the dirtiest is orders-0 with 25 % of its offsets"
    )


def test_the_store_option_of_doctor_lists_the_object_store(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    shown = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path / "objects")])
    assert "object store" in shown.output
    assert "empty" in shown.output
    shown = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path / "none")])
    assert (shown.exit_code, "object store     MISSING" in shown.output) == (3, True), shown.output


def test_doctor_passes_with_notes_but_not_with_missing_requirements() -> None:
    ok, note = Check("a", State.OK, ""), Check("b", State.NOTE, "")
    assert passed([ok, note])
    assert not passed([ok, Check("c", State.MISSING, "")])
