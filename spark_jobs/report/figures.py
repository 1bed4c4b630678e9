"""Defines a figure of the page.

A figure is drawn from tables alone. Its title states its finding; an empty figure says why it is
empty. The figures are in `figures_cost`, `figures_data` and `figures_cluster`.

Source: docs/design/pipeline.md#the-report; `spark_jobs.report.schemas` (the tables).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from spark_jobs.report.job import Report
from spark_jobs.report.plots import HALF, WIDE, Draw, svg

Rows = list[dict[str, Any]]

SHOWN: Final = 10
"""Largest number of bars in a ranking."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the page. Its texts are plain, and not yet escaped."""

    key: str
    title: str  # what it shows, as a sentence
    caption: str  # how to read it
    drawing: str | None  # SVG; None: nothing to draw
    why_empty: str
    tables: tuple[str, ...]  # that it is drawn from
    is_wide: bool = False


def figure(
    key: str,
    title: str,
    caption: str,
    draw: Draw | None,
    *,
    tables: tuple[str, ...],
    why_empty: str,
    is_wide: bool = False,
    shape: tuple[float, float] | None = None,
) -> Figure:
    """Build a figure of the page from its drawing function, or with the reason why it has no data.

    The title is also the drawing's text alternative.
    """
    drawing = None
    if draw is not None:
        drawing = svg(draw, shape or (WIDE if is_wide else HALF), f"{title} {caption}")
    return Figure(key, title, caption, drawing, why_empty, tables, is_wide)


def rows_of(report: Report, table: str) -> Rows:
    """Return the rows of a report's table as dictionaries."""
    rows: Rows = report.tables[table].to_pylist()
    return rows


def ranking_shape(bars_shown: int) -> tuple[float, float]:
    """Return the width and height, in inches, of a bar chart with this number of bars."""
    return HALF[0], max(HALF[1], 0.9 + 0.27 * bars_shown)
