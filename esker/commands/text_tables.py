"""Formats rows as a text table."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows as left-aligned columns, each as wide as its widest cell.

    >>> table(("A", "B"), [("1", "2"), ("333", "4")])
    'A    B\\n1    2\\n333  4'
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headings, *rows)
    )
