"""The conformance table as Markdown, as docs/coordinator.md has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.coordinator.batch.conformance import idempotence, offsets
from tests.coordinator.batch.conformance.steps import Row, describe


def printed() -> str:
    """Print both tables."""
    return "\n".join(
        [
            "### Idempotence",
            "",
            *_table(idempotence.ROWS),
            "",
            "### Offsets",
            "",
            *_table(offsets.ROWS),
            "",
        ]
    )


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| claim | as in | how it shows |"
    yield "| --- | --- | --- |"
    for row in rows:
        steps = "; ".join(describe(step) for step in row.steps)
        yield f"| {row.claim} | {row.source} | {steps} |"
