"""The pages: their links have targets, their commands exist, and no page is forgotten."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from packaging.version import Version

from esker.cli import app

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE: Final = re.compile(
    r"`((?:bench|coordinator|diskless|docs|esker|examples|raft|records|snapshot|spark_jobs|tests)"
    r"/[\w./*-]+)`"
)


def prose(page: Path) -> str:
    """Without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a heading is linked by, as code hosts make it."""
    heads = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    bare = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).replace("`", "") for head in heads)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in bare}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_in_the_documentation_has_an_existing_target(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        assert not target.startswith("http"), "what is said here is here"
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_named_in_the_documentation_exists(page: Path) -> None:
    for name in FILE.findall(page.read_text()):
        assert list(ROOT.glob(name)), name


def test_every_test_named_in_the_documentation_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs/testing.md").read_text())
    assert len(named) > 10
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not missing, missing


def test_the_docs_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {target.partition("#")[0] for target in LINK.findall(prose(index))}
    pages = {page.relative_to(index.parent).as_posix() for page in PAGES if page.parent != ROOT}
    assert linked == pages - {index.name}


def documented_commands(text: str) -> Iterator[list[str]]:
    """Yield the words after each `esker` that a page shows at a prompt."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.strip().startswith("$ ") or "esker" not in line:
                continue
            lexer = shlex.shlex(line.strip()[2:], posix=True, punctuation_chars="|&;<>()")
            lexer.whitespace_split = True
            command: list[str] | None = None
            for word in (*lexer, ";"):
                if set(word) <= set("|&;<>()"):
                    if command and word.startswith(">") and command[-1] == "2":
                        command.pop()  # of 2>, where standard error goes
                    if command:
                        yield [one for one in command if one != "..."]
                    command = None
                elif command is not None:
                    command.append(word)
                elif word == "esker":
                    command = []


def parse(command: Any, words: list[str]) -> None:
    """Parse the words of a command as `esker` would, without running it. Raises on a fault."""
    context = typer.Context(command, info_name="esker")
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command, words = command.get_command(context, words[0]), words[1:]
        assert command is not None, "no such command"
    try:
        command.make_context("esker", words)
    except (typer.Exit, SystemExit):  # --help, --version, --install-completion
        return


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_esker_command_at_a_prompt_in_docs_has_only_options_that_exist(page: Path) -> None:
    for words in documented_commands(page.read_text()):
        if words != ["--install-completion"]:  # would write into the shell's start file
            parse(typer.main.get_command(app), words)


def test_the_version_is_above_the_last_release_so_that_pip_installs_an_upgrade() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## (\d+\.\d+\.\d+)$", changes, flags=re.MULTILINE)[0]
    version = Version(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    if "## Unreleased" in changes:
        assert version > Version(released)
    else:
        assert version == Version(released)
