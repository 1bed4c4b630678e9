"""The core's output for each transcript is compared line by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raft.core.roles import NEXT
from tests.raft.core.transcript import play, render

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_replayed_transcript_of_the_raft_core_produces_the_recorded_effects(
    path: Path, request: pytest.FixtureRequest
) -> None:
    blocks, outputs = play(path)
    if request.config.getoption("--rewrite"):
        path.write_text(render(blocks, outputs))
        return
    for block, output in zip(blocks, outputs, strict=True):
        assert output == list(block.expected), "\n".join(block.head)


def test_the_transcripts_of_the_raft_core_cover_every_legal_role_transition() -> None:
    """The transcripts together make every move of `NEXT`."""
    text = "\n".join(path.read_text() for path in TRANSCRIPTS)
    walked = set(re.findall(r"^\d+ (\w+) > (\w+) epoch=", text, re.MULTILINE))
    legal = {
        (old.__name__.lower(), new.__name__.lower())
        for old, allowed in NEXT.items()
        for new in allowed
    }
    assert walked == legal
