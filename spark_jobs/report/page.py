"""Renders the page: one HTML file that needs no other file and no script.

    page(report, summarise(report), engine="local")  # a string of HTML

The first screen says what the data costs and how much of it is dead, in numbers and sentences;
below it are the figures, each with a sentence for a title and the rows that it was drawn from.

Every text from a log is made plain and escaped here and nowhere else.

Source: docs/design/pipeline.md#the-report; HTML's `details` for tables, so that nothing has to be
scripted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

import pyarrow as pa

from spark_jobs.report import figures_cluster as cluster
from spark_jobs.report import figures_cost as cost
from spark_jobs.report import figures_data as data
from spark_jobs.report.figures import Figure
from spark_jobs.report.job import Report
from spark_jobs.report.schemas import TABLES
from spark_jobs.report.style import CSS
from spark_jobs.report.summary import Summary
from spark_jobs.report.words import count, duration, instant, plain, share, size

SHOWN_ROWS: Final = 40
"""Rows of a table that the page shows; the Parquet file beside it has all."""

SECTIONS: Final = (
    ("cost", "What it costs", (cost.costs, cost.what_if, cost.topic_costs)),
    ("outlook", "Trend and forecast", (cost.trend, cost.growth)),
    ("rot", "Dead bytes", (cost.ages, cost.pins)),
    ("reads", "Reads", (cost.reads,)),
    ("throughput", "Throughput",
     (data.topic_throughput, data.producer_throughput, data.broker_uploads)),
    ("load", "Load of partitions", (data.hot, data.inequality)),
    ("shape", "Batches and objects",
     (data.batch_sizes, data.object_sizes, data.fan_in, data.outcomes)),
    ("transactions", "Transactions", (data.transactions,)),
    ("latency", "Commit latency", (data.latency,)),
    ("cluster", "Brokers and leaders",
     (cluster.brokers, cluster.changes, cluster.epochs)),
    ("chunks", "Chunks", (cluster.chunks,)),
    ("snapshots", "Logs and checkpoints",
     (cluster.log_growth, cluster.objects_kept, cluster.checkpoints)),
)  # fmt: skip


_UNITS: Final = r"(?:(?:[kMGTP]?B|MiB|ms|s|min|h|d|y|[A-Z]{3})\b|%)"
_BEFORE_UNIT: Final = re.compile(rf"(?<=\d) (?={_UNITS})")


def page(report: Report, summary: Summary, *, engine: str) -> str:
    """Render the HTML page of a report.

    Args:    engine: the engine that counted, `local` or `spark`.
    """
    sections = [
        _section(report, key, title, [draw(report, summary) for draw in draws])
        for key, title, draws in SECTIONS
    ]
    title = f"Esker report: {plain(report.cluster_id)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n"
        f"{_header(report, summary)}\n<main>\n{''.join(sections)}</main>\n"
        f"{_footer(report, engine)}\n</body>\n</html>\n"
    )


def _header(report: Report, summary: Summary) -> str:
    over = report.window
    about = (
        f"{instant(over.start_ms)} to {instant(over.last_ms)} "
        f"({duration(over.last_ms - over.start_ms)}), as of {instant(report.question.now_ms)}."
    )
    cards = "".join(
        f"<div class=card><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small>"
        "</dd></div>"
        for name, value, more in _cards(report, summary)
    )
    found = "".join(
        f'<li class="{finding.about}"><b>{finding.about}</b>{_whole(finding.text)}</li>'
        for finding in summary.findings
    )
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in SECTIONS)
    return (
        f"<header>\n<h1>Esker report of cluster <b>{escape(plain(report.cluster_id))}</b></h1>\n"
        f'<p class="lead">{_whole(summary.lead)}</p>\n<p class="about">{escape(about)}</p>\n'
        f'<dl class="cards">{cards}</dl>\n<ul class="findings">{found}</ul>\n'
        f'<nav aria-label="Sections">{links}</nav>\n</header>'
    )


def _whole(text: str) -> str:
    """Escape a text for HTML, with no line break between a number and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", escape(text))


def _cards(report: Report, summary: Summary) -> Iterable[tuple[str, str, str]]:
    """Yield the name, value and remark of each card on the first screen."""
    n, prices = summary.numbers, report.question.prices
    stored = n["stored_bytes"] or 0
    dead = (n["pinned_bytes"] or 0) + (n["free_bytes"] or 0)
    yield "Costs", prices.text(n["cost_month"] or 0), "a month, reads not counted"
    yield "Stored", size(stored), f"in {count(n['objects_kept'] or 0)} objects"
    yield "Dead", share(dead, stored), f"{size(dead)} can no longer be read"
    yield (
        "Written", f"{size((n['written_bytes'] or 0) / (n['window_s'] or 1))}/s",
        f"{count((n['written_records'] or 0) / (n['window_s'] or 1))} records/s",
    )  # fmt: skip
    yield (
        "Uploads",
        f"{count(n['puts_per_second'] or 0)}/s",
        (f"{size(n['object_bytes_mean'] or 0)} each"),
    )
    p99 = n["commit_latency_p99_ms"]
    yield "Committed", "–" if p99 is None else duration(p99), "after the record, 99 of 100 batches"


def _section(report: Report, key: str, title: str, drawn: Sequence[Figure]) -> str:
    inner = "".join(_figure(report, figure) for figure in drawn)
    return (
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">'
        f'{escape(title)}</h2>\n<div class="grid">{inner}</div></section>\n'
    )


def _figure(report: Report, figure: Figure) -> str:
    shown = f'<p class="empty">{escape(figure.why_empty)}</p>'
    if figure.drawing is not None:
        shown = f'<div class="plot">{figure.drawing}</div>'
    rows = "".join(_table(name, report.tables[name]) for name in figure.tables)
    kind = "wide" if figure.is_wide else "half"
    return (
        f'<figure id="figure-{figure.key}" class="{kind}"><h3>{_whole(figure.title)}</h3>\n{shown}'
        f"<figcaption>{_whole(figure.caption)}</figcaption>"
        f"<details><summary>The numbers</summary>{rows}</details></figure>\n"
    )


def _table(name: str, table: pa.Table) -> str:
    columns = TABLES[name].columns
    heads = "".join(
        f'<th scope="col" class="{_align(column.kind)}" title="{escape(column.meaning)}">'
        f"{escape(column.name)}</th>"
        for column in columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{_align(column.kind)}">{escape(_cell(column.name, row[column.name]))}</td>'
            for column in columns
        )
        + "</tr>"
        for row in table.slice(0, SHOWN_ROWS).to_pylist()
    )
    left = table.num_rows - SHOWN_ROWS
    more = f" The first {SHOWN_ROWS} of {table.num_rows:,} rows." if left > 0 else ""
    return (
        f'<div class="rows" tabindex="0" role="region" aria-label="{escape(name)}"><table>'
        f"<caption><code>tables/{escape(name)}.parquet</code>: {escape(TABLES[name].about + more)}"
        f"</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _align(kind: str) -> str:
    return "n" if kind.rstrip("?") in ("number", "real") else "t"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if name in ("time_ms", "from_ms", "to_ms", "first_ms", "last_ms", "as_of_ms"):
        return instant(value).removesuffix(" UTC")
    return plain(value) if isinstance(value, str) else str(value)


def _footer(report: Report, engine: str) -> str:
    question, prices = report.question, report.question.prices
    logs = "".join(
        f"<tr><td><code>{escape(plain(name))}</code></td><td class=n>{end:,}</td></tr>"
        for name, end in report.ends.items()
    )
    per = (
        ("1,000 uploads (PUT)", prices.put_per_1000), ("1,000 reads (GET)", prices.get_per_1000),
        ("1,000 listings", prices.list_per_1000), ("1 GB for a month", prices.gb_month),
    )  # fmt: skip
    paid = "".join(
        f"<tr><td>{escape(what)}</td><td class=n>{price:g} {escape(plain(prices.currency))}</td>"
        "</tr>"
        for what, price in per
    )
    return (
        "<footer>\n<p>Read from the metadata logs up to these offsets (exclusive), counted by the "
        f"{escape(engine)} engine:</p><table>{logs}</table>\n"
        f"<p>Prices: {escape(plain(prices.source))}. Another price file: "
        f"<code>--prices FILE</code>.</p><table>{paid}</table>\n"
        f"<p>Commit interval {duration(question.commit_interval_ms)}, objects of at most "
        f"{size(question.buffer_bytes)}: <code>--commit-interval-ms</code>, "
        "<code>--buffer-bytes</code>. 1 GB is 10<sup>9</sup> bytes. Every table stands beside this "
        "page as Parquet, in <code>tables/</code>.</p>\n</footer>"
    )
