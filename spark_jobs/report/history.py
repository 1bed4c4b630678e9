"""Keeps the main numbers of each report, so that the next one in the directory can show a trend.

    earlier = read_history(out, cluster_id, before_ms=now)
    add_to_history(out, cluster_id, row)

OUT/history.jsonl has a line for each report: a JSON object with the cluster's id and the columns of
the table `history`. A report as of the same time replaces its line.

Source: docs/report.md#the-trend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spark_jobs.report.schemas import TABLES

NAME: Final = "history.jsonl"
MOST: Final = 5_000
"""Lines that are kept: an hourly report of half a year, or a daily one of a decade."""

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "text": (str,),
    "number": (int,),
    "real": (int, float),
}


class HistoryError(Exception):
    """A line is no report. The message names file, line and remedy."""


def read_history(out: Path, cluster_id: str, *, before_ms: int) -> tuple[dict[str, Any], ...]:
    """Return the rows of a cluster's earlier reports, oldest first; none without a file.

    Args:    before_ms: of the reports to return, exclusive.
    Raises:  HistoryError; OSError.
    """
    found = [row for row in _read(out / NAME) if row.pop("cluster_id") == cluster_id]
    found = [row for row in found if row["as_of_ms"] < before_ms]
    return tuple(sorted(found, key=lambda row: row["as_of_ms"]))


def history_text(out: Path, cluster_id: str, row: Mapping[str, Any]) -> str:
    """Return the file's new text, with one more report.

    Raises:  HistoryError; OSError.
    """
    key = cluster_id, row["as_of_ms"]
    rows = [one for one in _read(out / NAME) if (one["cluster_id"], one["as_of_ms"]) != key]
    rows.append({"cluster_id": cluster_id, **row})
    return "".join(json.dumps(one) + "\n" for one in rows[-MOST:])


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [_row(path, number, line) for number, line in enumerate(lines, 1)]


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    columns = {one.name: _TYPES[one.kind] for one in TABLES["history"].columns}
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    types = {"cluster_id": (str,), **columns}
    if not isinstance(row, dict) or not all(
        type(row.get(name)) in types[name] for name in types
    ):  # fmt: skip
        raise HistoryError(f"{path}, line {number}: not a report's numbers; remove the line")
    return {name: row[name] for name in types}
