"""Every mutant changes the output of a transcript, or fails an assertion."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft.core.quorum import Quorum
from tests.raft.core.mutants import MUTANTS
from tests.raft.core.transcript import play

TRANSCRIPTS = Path(__file__).parent / "transcripts"


@pytest.mark.parametrize(
    ("mutant", "story"), MUTANTS.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_each_mutant_of_the_raft_core_changes_a_transcript_or_fails_an_assertion(
    mutant: type[Quorum], story: str
) -> None:
    path = TRANSCRIPTS / f"{story}.txt"
    blocks, outputs = play(path)
    assert [list(block.expected) for block in blocks] == outputs, "the story itself is stale"
    try:
        _, mutated = play(path, mutant)
    except AssertionError:
        return  # found out by an invariant
    assert mutated != outputs, f"{mutant.__name__} goes unnoticed in {story}"
