"""What code and pages cite of the documentation is there: the page, and the heading in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.test_docs import anchors

ROOT: Final = Path(__file__).parents[1]
CITED: Final = re.compile(r"\bdocs/(?:[\w-]+/)*[\w-]+\.md(?:#[\w-]+)?")
ELSEWHERE: Final = re.compile(r"\b(?:DESIGN|HOUSE|STYLE)\s(?:#:?\s+|\s)*(?:§|\()")
"""Pages that were never in this repository: nobody who reads it could look them up."""


def dead(text: str, root: Path) -> list[str]:
    """Each citation in `text` that leads nowhere, as `line: citation`."""
    found = []
    for match in [*CITED.finditer(text), *ELSEWHERE.finditer(text)]:
        name, _, anchor = match[0].partition("#")
        page = root / name
        if match.re is ELSEWHERE or not page.is_file() or (anchor and anchor not in anchors(page)):
            found.append(
                f"{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())}"
            )
    return found


def tracked() -> list[Path]:
    """Every file of the repository but this one."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    paths = (ROOT / name for name in names if name)
    return [path for path in paths if path.is_file() and path != Path(__file__)]


def test_every_page_and_heading_cited_in_code_or_docs_exists() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture, a golden file
        found += [f"{path.relative_to(ROOT)}:{line}" for line in dead(text, ROOT)]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Source: docs/page.md#a-heading.", 0),
        ("docs/page.md, docs/deeper/other.md", 0),
        ("Source: docs/page.md#another-heading.", 1),
        ("Source: docs/gone.md; docs/deeper/page.md#a-heading", 2),
        ("(DESIGN §7), and on two lines DESIGN\n    §8", 2),
        ("STYLE (event in, effects out), HOUSE §3", 2),
    ],
)
def test_the_citation_checker_finds_a_citation_of_a_missing_page(
    tmp_path: Path, text: str, count: int
) -> None:
    (tmp_path / "docs" / "deeper").mkdir(parents=True)
    (tmp_path / "docs" / "page.md").write_text("# A page\n\n## A heading\n")
    (tmp_path / "docs" / "deeper" / "other.md").write_text("# Other\n")
    assert len(dead(text, tmp_path)) == count
