"""Fixture that runs `esker` in this process and returns its exit code and output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from esker.cli import app


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Parse standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def esker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Return a function that runs a command line in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Ran:
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run
