"""The log of a process: lines of text, or of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import logging, sys
from raft.net.logs import begin_logging
begin_logging(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
log = logging.getLogger("raft.node")
log.debug("not at the level INFO")
log.info("state=%s epoch=%d", "leader", 3)
try:
    raise ValueError("two\\nlines")
except ValueError:
    log.exception("failed")
"""


def logged(shape: str, level: str, *process: str) -> list[str]:
    """Return the lines that a process logged."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, shape, level, *process],
        capture_output=True,
        check=True,
        text=True,
    )
    assert ran.stdout == ""
    return ran.stderr.splitlines()


def test_a_log_in_json_has_an_object_in_each_line_and_the_traceback_in_it() -> None:
    told, failed = (json.loads(line) for line in logged("json", "INFO"))
    time = told.pop("time")
    assert told == {"level": "INFO", "logger": "raft.node", "message": "state=leader epoch=3"}
    assert len(time) == len("2026-11-28T10:19:39.512Z")
    assert time.endswith("Z")
    assert failed["level"] == "ERROR"
    assert failed["exception"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize(("level", "lines"), [("DEBUG", 3), ("INFO", 2), ("ERROR", 1)])
def test_a_log_as_text_has_lines_from_its_level_up(level: str, lines: int) -> None:
    found: list[Any] = [
        line for line in logged("text", level) if " raft" in line or "20" in line[:2]
    ]
    assert len(found) == lines, found


def test_one_of_several_processes_adds_its_id_to_each_line() -> None:
    assert " INFO process=102 state=leader epoch=3" in logged("text", "INFO", "102")[0]
    assert json.loads(logged("json", "INFO", "102")[0])["process"] == 102
