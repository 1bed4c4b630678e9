"""Running a benchmark as people do: a process of its own, from the checkout, and what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent


def printed(name: str, *words: str, cwd: Path = ROOT, timeout_s: int = 280) -> str:
    """What `python -m bench.NAME WORDS` prints; it must end well, or its last words are shown."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *words],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            # Some import modules of tests, and Hypothesis would write its tables to `cwd`.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"bench.{name} {' '.join(words)}: {done.stderr[-4_000:]}"
    return done.stdout
