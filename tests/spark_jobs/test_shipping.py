"""Shipped code arrives whole, or does not run."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from spark_jobs.session.shipping import PACKAGES, code_zip
from tests.test_layers import MAY_IMPORT

IMPORT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "import spark_jobs.tables.schemas as t; print(t.__file__)"
)


def run(archive: Path) -> subprocess.CompletedProcess[str]:
    """Import from the zip file outside the checkout, as on a worker."""
    command = [sys.executable, "-c", IMPORT, str(archive)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=archive.parent,
        env=dict(os.environ),
        check=False,
    )


def test_a_worker_imports_the_shipped_code_instead_of_the_installed_code(tmp_path: Path) -> None:
    archive = code_zip(tmp_path)
    done = run(archive)
    assert done.stdout.strip() == f"{archive}/spark_jobs/tables/schemas.py", done.stderr


def test_equal_code_is_shipped_to_spark_workers_under_the_same_file_name(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert code_zip(tmp_path).name == code_zip(tmp_path / "again").name


def test_every_package_that_jobs_may_import_is_shipped_to_spark_workers(tmp_path: Path) -> None:
    for room in ("spark_jobs", *MAY_IMPORT["spark_jobs"], *MAY_IMPORT["spark_jobs.merge"]):
        assert any(f"{room}.".startswith(f"{package}.") for package in PACKAGES), room
    names = zipfile.ZipFile(code_zip(tmp_path)).namelist()
    assert {name.partition("/")[0] for name in names} == {p.partition(".")[0] for p in PACKAGES}
    assert all(name.endswith(".py") for name in names)


def test_of_the_brokers_packages_only_stores_and_the_rewriter_are_shipped_to_spark_workers(
    tmp_path: Path,
) -> None:
    names = zipfile.ZipFile(code_zip(tmp_path)).namelist()
    sent = [name for name in names if name.startswith("diskless/")]
    assert sent.count("diskless/__init__.py") == 1
    folders = {name.split("/")[1] for name in sent} - {"__init__.py"}
    assert folders == {"compaction", "fetch", "stores"}


def test_a_spark_worker_refuses_to_import_shipped_code_that_is_damaged(tmp_path: Path) -> None:
    archive = code_zip(tmp_path)
    with zipfile.ZipFile(archive, "a") as changed:
        changed.writestr("spark_jobs/added.py", "")
    done = run(archive)
    assert done.returncode == 1
    assert f"ImportError: {archive} is damaged" in done.stderr
