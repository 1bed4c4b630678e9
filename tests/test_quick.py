"""`make quick` runs what it says, and `make` alone says what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import quick

ROOT = Path(__file__).parents[1]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_quick_run_leaves_out_modules_whose_imports_start_processes(tmp_path: Path) -> None:
    by_itself = write(tmp_path / "tests/a/test_it.py", "import subprocess\n")
    in_a_function = write(
        tmp_path / "tests/b/test_it.py", "def f():\n    from subprocess import run\n"
    )
    write(tmp_path / "tests/c/helper.py", "from multiprocessing import Process\n")
    by_a_helper = write(tmp_path / "tests/c/test_it.py", "from tests.c import helper\n")
    write(tmp_path / "tests/d/conftest.py", "from tests.c.helper import Process\n")
    by_its_conftest = write(tmp_path / "tests/d/e/test_it.py", "import json\n")
    harmless = write(tmp_path / "tests/f/test_it.py", "from raft.core import quorum\n")
    for path in (by_itself, in_a_function, by_a_helper, by_its_conftest):
        assert not quick.is_quick(path, tmp_path), path
    assert quick.is_quick(harmless, tmp_path)


def test_the_quick_run_includes_tests_of_most_test_folders() -> None:
    rooms = {path.relative_to(ROOT / "tests").parts[0] for path in quick.quick_modules()}
    assert rooms >= {"coordinator", "diskless", "esker", "raft", "records", "snapshot"}


@pytest.mark.parametrize("starts", [False, True])
def test_a_test_of_the_quick_run_that_starts_a_process_fails_with_its_name(
    tmp_path: Path, *, starts: bool
) -> None:
    command = "[sys.executable, '-c', '']"
    body = f"__import__('sub' + 'process').run({command})" if starts else "pass"
    write(tmp_path / "test_it.py", f"import sys\n\ndef test_it():\n    {body}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.quick", "-p", "no:cacheprovider",
         "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == int(starts), done.stdout + done.stderr
    assert ("test_it.py::test_it starts a process (subprocess.Popen)" in done.stdout) is starts


def test_make_without_a_target_prints_one_line_for_each_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    targets = set(phony[1].split()) - {"java"}  # which others need, and nobody asks for
    printed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = [line.split(maxsplit=1) for line in printed.splitlines() if line.startswith("  ")]
    assert {name for name, _ in listed} == targets
    assert len(listed) == len(targets)
