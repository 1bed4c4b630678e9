"""The pages: what they link to is there, and no page is forgotten."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

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


def test_the_docs_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {target.partition("#")[0] for target in LINK.findall(prose(index))}
    pages = {page.relative_to(index.parent).as_posix() for page in PAGES if page.parent != ROOT}
    assert linked == pages - {index.name}
