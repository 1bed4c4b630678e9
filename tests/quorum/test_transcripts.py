"""The protocol's stories, told by the core itself and compared line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quorum.transcript import play, render

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    blocks, outputs = play(path)
    if request.config.getoption("--rewrite"):
        path.write_text(render(blocks, outputs))
        return
    for block, output in zip(blocks, outputs, strict=True):
        assert output == list(block.expected), "\n".join(block.head)
