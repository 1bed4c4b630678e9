"""Writes a report's files: the page, its numbers, and the tables beside it.

    OUT/report.html          the page
    OUT/report.json          the numbers and sentences of its first screen
    OUT/tables/NAME.parquet  the tables of its figures
    OUT/history.jsonl        the main numbers of this report and of earlier ones

Each file is written under another name and renamed, so that a reader finds an old report or a new
one, never half of one. The page is written last.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from spark_jobs.report.history import NAME, history_text
from spark_jobs.report.job import Report
from spark_jobs.report.page import page
from spark_jobs.report.summary import Summary


def as_json(report: Report, summary: Summary, *, engine: str) -> dict[str, Any]:
    """Return the numbers of the report's first screen as the JSON object that `--json` prints."""
    return {
        "cluster_id": report.cluster_id,
        "as_of_ms": report.question.now_ms,
        "from_ms": report.window.start_ms,
        "to_ms": report.window.last_ms,
        "engine": engine,
        "logs": dict(report.ends),
        "prices": report.question.prices.source,
        "currency": report.question.prices.currency,
        "lead": summary.lead,
        "numbers": dict(summary.numbers),
        "findings": [
            {"about": finding.about, "text": finding.text} for finding in summary.findings
        ],
        "tables": {name: table.num_rows for name, table in report.tables.items()},
    }


def write_report(report: Report, summary: Summary, out: Path, *, engine: str) -> Path:
    """Write the report's page, JSON file and tables, and return the page's path.

    Raises:  HistoryError; OSError.
    """
    tables = out / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    for name, table in report.tables.items():
        _replace(
            tables / f"{name}.parquet",
            lambda path, table=table: pq.write_table(table, path, compression="zstd"),  # type: ignore[misc]
        )
    text = json.dumps(as_json(report, summary, engine=engine), indent=2) + "\n"
    _replace(out / "report.json", lambda path: path.write_text(text, encoding="utf-8"))
    row = report.tables["history"].to_pylist()[-1]
    history = history_text(out, report.cluster_id, row)
    _replace(out / NAME, lambda path: path.write_text(history, encoding="utf-8"))
    html = page(report, summary, engine=engine)
    _replace(out / "report.html", lambda path: path.write_text(html, encoding="utf-8"))
    return out / "report.html"


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    new = path.with_name(f".{path.name}.new")
    write(new)
    new.replace(path)
