"""`make demo` claims only what it checked, and README shows what it and the commands really say."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from esker.cli import app
from examples import demo
from examples.demo_clients import real_lines, same_lines
from tests.interop import recording

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md", "docs/tuning.md", "docs/operations.md")


@pytest.mark.spark
def test_the_demo_ends_well_and_readme_shows_what_it_prints() -> None:
    """With fewer lines. README is shortened, so a line may be left out of it; numbers and ids are
    those of another run."""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--lines", "4000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, process_group=0,
    ) as demonstrating:  # fmt: skip
        try:
            out, err = demonstrating.communicate(timeout=280)
        finally:
            with contextlib.suppress(ProcessLookupError):  # and its `esker dev`, were it to hang
                os.killpg(demonstrating.pid, signal.SIGKILL)
    assert demonstrating.returncode == 0, out + err
    assert (err, "\x1b" in out, "✗" in out) == ("", False, False)
    claims = [line for line in out.splitlines() if line.startswith("  ✓")]
    assert len(claims) == 15
    assert max(map(len, claims)) <= 100

    printed = iter([shape(line) for line in out.splitlines() if line])
    block = console_blocks("README.md")[0]
    assert block[0].startswith("$ make demo")
    for line in block[1:]:
        assert any(shape(line) == other for other in printed), f"not printed, or not there: {line}"


def shape(line: str) -> str:
    line = re.sub(r"[A-Za-z0-9_-]{22}", "ID", line)
    line = re.sub(r"\b[0-9a-f]{2}/ID", "HH/ID", line)
    return re.sub(r" *\d[\d,.]*", " 0", line)


@pytest.mark.parametrize("position", [200, -40])
def test_the_demo_fails_on_a_log_that_is_not_what_it_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    target = tmp_path / recording.DYNAMIC / recording.METADATA
    target.mkdir(parents=True)
    for path in (recording.DIRECTORY / recording.DYNAMIC / recording.METADATA).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    log = target / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)
    monkeypatch.setattr(demo, "DIRECTORY", tmp_path)
    with pytest.raises((demo.DemoFailedError, demo.RecordError)):
        demo.kafka_log()


def test_a_line_that_is_missing_twice_or_elsewhere_is_no_success() -> None:
    lines = real_lines(500)
    found = [(name, line) for name, some in lines.items() for line in some]
    assert same_lines(lines, found)
    assert not same_lines(lines, found[:-1])
    assert not same_lines(lines, [*found, found[-1]])
    swapped = [found[1], found[0], *found[2:]]
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
    assert not same_lines(lines, swapped)


# --- commands in the documentation --------------------------------------------------------------


def console_blocks(page: str) -> list[list[str]]:
    text = (ROOT / page).read_text()
    return [block.splitlines() for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]


def commands() -> list[tuple[str, str]]:
    """Every `esker` command of a page, as typed after a prompt or within backquotes."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        typed = re.findall(r"^\$ (.*)$", text, re.MULTILINE) + re.findall(r"`(esker [^`]+)`", text)
        for line in typed:
            for part in re.split(r"[|;&]", line.replace("\\\n", " ")):
                words = part.split("#")[0].split()
                if words[:1] == ["esker"] and len(words) > 1 and "FILE" not in words[1]:
                    found.append((page, " ".join(words)))
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_of_the_documentation_is_one(page: str, line: str) -> None:
    """It parses: the command is there, and so is each of its options."""
    words = [word for word in shlex.split(line)[1:] if not re.match(r"[0-9]?[<>]", word)]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(None, name)
        assert found is not None, f"{page}: {line}: no command {name}"
        command = found
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {"--help"}
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{page}: {line}: no option {word}"


def test_the_documentation_names_commands() -> None:
    assert len(commands()) > 15


def test_every_page_that_readme_links_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert missing == []
