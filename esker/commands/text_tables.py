"""Prints the result of a command: as a table for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer


def show(result: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print the result of a command as one line of JSON, or as text; an empty text prints nothing.

    The shape of all JSON is that of docs/commands.md: one object, lists under a plural name, names
    in camelCase.
    """
    if as_json:
        typer.echo(json.dumps(result))
    elif text:
        typer.echo(text)


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
