"""The example runs as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_example_of_the_quorum_as_a_library_runs_without_errors() -> None:
    result = subprocess.run(
        [sys.executable, "examples/replicated_log.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "written through one leader, read behind the barrier: a ridge of sediment",
        "another leads now: True",
        "the copies agree: True ['esker', 'moraine']",
    ]
