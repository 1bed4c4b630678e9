"""The conformance table, run against the in-memory coordinator, and printed in the docs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.coordinator.batch.conformance import TABLE, Row, run_row, run_table
from tests.coordinator.batch.conformance.printing import printed
from tests.coordinator.batch.subjects import MemoryWorld

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs" / "coordinator.md"
BEGIN = "<!-- printed by `python -m tests.coordinator.batch.conformance` -->\n"
END = "<!-- until here -->\n"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.claim.replace(" ", "-"))
def test_the_coordinator_in_memory_answers_as_the_conformance_table_says(row: Row) -> None:
    asyncio.run(run_row(row, 0, MemoryWorld()))


def test_one_in_memory_coordinator_answers_all_rows_of_the_conformance_table_in_sequence() -> None:
    assert asyncio.run(run_table(TABLE, MemoryWorld())) == []


def test_a_checkpoint_load_after_every_step_keeps_the_conformance_tables_answers() -> None:
    assert asyncio.run(run_table(TABLE, MemoryWorld(), restarts=True)) == []


def test_the_conformance_table_has_at_least_sixty_distinct_rows() -> None:
    assert len(TABLE) >= 60
    assert len({row.steps for row in TABLE}) == len(TABLE), "a row says what another says"


def test_the_docs_contain_the_conformance_table(request: pytest.FixtureRequest) -> None:
    text = DOCS.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    expected = f"{head}{BEGIN}\n{printed()}\n{END}{tail}"
    if request.config.getoption("--rewrite"):
        DOCS.write_text(expected)
    assert DOCS.read_text() == expected, "run it with --rewrite"
