"""Draws the page's figures of costs and of dead bytes.

Source: docs/design/pipeline.md#the-report; reference of prices: `spark_jobs.prices`.
"""

from __future__ import annotations

import numpy as np

from spark_jobs.report.counting import AGES
from spark_jobs.report.figures import SHOWN, Figure, figure, ranking_shape, rows_of
from spark_jobs.report.job import Report
from spark_jobs.report.outlook import DAY_MS
from spark_jobs.report.plots import Layers, bars, columns, lines_over_time, two_scales
from spark_jobs.report.summary import Summary
from spark_jobs.report.words import count, duration, plain, share, size

# --- what it costs ------------------------------------------------------------------------------


def costs(report: Report, summary: Summary) -> Figure:
    """Draw the monthly cost of storage and of each kind of request."""
    rows, prices = rows_of(report, "costs"), report.question.prices
    rows.sort(key=lambda row: -row["amount"])
    total = sum(row["amount"] for row in rows)
    most = rows[0]
    draw = None
    if total:
        names = [row["item"] for row in rows]
        draw = bars(names, [("", "c1", [row["amount"] for row in rows])], prices.text, "")
    return figure(
        "costs",
        f"Of the {prices.text(total)} a month, {share(most['amount'], total)} is for "
        f"{most['item']}." if total else "Nothing to pay for.",
        f"A month at {plain(prices.source)}: storage as it is now, uploads as they came in the "
        f"{duration(1000 * (summary.numbers['window_s'] or 0))} of the log. Reads leave no trace "
        "in the log, and are not in it.",
        draw,
        tables=("costs",),
        why_empty="No object is stored and none was uploaded, or all prices are 0.",
    )  # fmt: skip


def what_if(report: Report, _: Summary) -> Figure:
    """Draw the estimated costs of uploads at various commit intervals."""
    rows, prices = rows_of(report, "what_if"), report.question.prices
    now = next(row for row in rows if row["current"])
    draw, title = None, "What another commit interval would cost."
    if now["puts_per_month"]:
        slow = rows[-1]
        title = (
            f"At {duration(slow['commit_interval_ms'])} instead of "
            f"{duration(now['commit_interval_ms'])}, uploads would cost "
            f"{prices.text(slow['amount'])} instead of {prices.text(now['amount'])} a month."
        )
        draw = two_scales(
            [row["commit_interval_ms"] for row in rows],
            (f"uploads, {prices.currency} a month", [row["amount"] for row in rows]),
            ("mean object", [row["object_bytes"] for row in rows]),
            (duration, lambda value: f"{value:.3g}", size),
            "commit interval",
            rows.index(now),
        )
    return figure(
        "what-if",
        title,
        "diskless.append.commit.interval.ms is how long a broker gathers before it uploads: longer "
        "is cheaper, and makes acknowledgements later by as much.",
        draw,
        tables=("what_if",),
        why_empty="No object was uploaded in the log's time.",
    )


def topic_costs(report: Report, _: Summary) -> Figure:
    """Draw the monthly costs of the most expensive topics."""
    rows, prices = rows_of(report, "topic_costs"), report.question.prices
    shown, draw, title = rows[:SHOWN], None, "No topic costs anything."
    if shown:
        total = sum(row["amount"] for row in rows)
        title = (
            f"{plain(shown[0]['topic'])} costs {prices.text(shown[0]['amount'])} a month, "
            f"{share(shown[0]['amount'], total)} of what topics cost."
        )
        layers: Layers = [
            ("live bytes", "live", [row["live_amount"] for row in shown]),
            ("dead bytes", "dead", [row["dead_amount"] for row in shown]),
            ("uploads", "c1", [row["upload_amount"] for row in shown]),
        ]
        draw = bars([row["topic"] for row in shown], layers, prices.text, "")
    return figure(
        "topic-costs",
        title,
        "A month of each topic's bytes in the store, and its share of the uploads by the bytes "
        "that it wrote. Footers of objects belong to no topic."
        + (f" {len(rows) - SHOWN} more topics cost less." if len(rows) > SHOWN else ""),
        draw,
        tables=("topic_costs",),
        why_empty="No object is stored and none was uploaded, or all prices are 0.",
        shape=ranking_shape(len(shown)),
    )


# --- reads, trend and forecast ------------------------------------------------------------------


def reads(report: Report, summary: Summary) -> Figure:
    """Draw the GETs that a consumer of each topic needs, now and after merging."""
    rows = rows_of(report, "reads")
    shown, draw, title = rows[:SHOWN], None, "There is nothing to read."
    if shown:
        title = (
            f"A consumer of everything needs {count(summary.numbers['gets_per_mib'] or 0)} GETs "
            f"for a MiB; merging would leave {count(summary.numbers['merged_gets_per_mib'] or 0)}."
        )
        layers: Layers = [
            ("after merging", "live", [row["merged_runs"] for row in shown]),
            ("saved by merging", "dead", [row["runs"] - row["merged_runs"] for row in shown]),
        ]
        draw = bars([row["topic"] for row in shown], layers, count, "")
    return figure(
        "reads",
        title,
        "GETs of one consumer that reads a topic from its start: one for each live run of a "
        "partition in an object. Runs below 2 MiB wait for brokers, or for esker spark merge, to "
        "merge them.",
        draw,
        tables=("reads",),
        why_empty="No live run is stored.",
        shape=ranking_shape(len(shown)),
    )


def trend(report: Report, _: Summary) -> Figure:
    """Draw the bytes that this report and earlier ones found in the store."""
    rows = rows_of(report, "history")
    draw, title = None, "This is the directory's first report."
    if len(rows) > 1:
        before, now = rows[0], rows[-1]
        title = (
            f"The store went from {size(before['live_bytes'] + before['dead_bytes'])} to "
            f"{size(now['live_bytes'] + now['dead_bytes'])} in "
            f"{duration(now['as_of_ms'] - before['as_of_ms'])}."
        )
        layers: Layers = [
            ("live", "live", [row["live_bytes"] for row in rows]),
            ("dead", "dead", [row["dead_bytes"] for row in rows]),
        ]
        draw = lines_over_time([row["as_of_ms"] for row in rows], layers, size, "")
    return figure(
        "trend",
        title,
        "Bytes in the store as each report in this directory found them.",
        draw,
        tables=("history",),
        why_empty="A trend needs an earlier report of this cluster in the same directory.",
    )


def growth(report: Report, summary: Summary) -> Figure:
    """Draw the bytes that will be stored if writing goes on as it did."""
    rows, prices = rows_of(report, "forecast"), report.question.prices
    draw, title = None, "Nothing is stored, and nothing was written."
    if any(row["live_bytes"] for row in rows):
        last = rows[-1]
        title = (
            f"In a year {size(last['live_bytes'] + last['dead_bytes'])} would be stored, for "
            f"{prices.text(last['amount'])} a month."
        )
        times = [report.question.now_ms + row["days"] * DAY_MS for row in rows]
        layers: Layers = [
            ("live", "live", [row["live_bytes"] for row in rows]),
            ("dead", "dead", [row["dead_bytes"] for row in rows]),
        ]
        draw = lines_over_time(times, layers, size, "")
    return figure(
        "growth",
        title,
        "If producers write as in the "
        f"{duration(1000 * (summary.numbers['window_s'] or 0))} of the log and settings stay: "
        "topics with a retention fill up to it, topics without one grow, and dead bytes keep "
        "their share.",
        draw,
        tables=("forecast",),
        why_empty="No live byte is stored, and none was written.",
    )


# --- dead bytes ---------------------------------------------------------------------------------


def ages(report: Report, summary: Summary) -> Figure:
    """Draw the used and unused bytes of objects by the age of the objects."""
    rows = rows_of(report, "object_ages")
    live, dead, free = (np.zeros(len(AGES)) for _ in range(3))
    for row in rows:
        place = row["age_class"]
        if row["status"] == "free":
            free[place] += row["bytes"]
        else:
            live[place] += row["live_bytes"]
            dead[place] += row["bytes"] - row["live_bytes"]
    n, draw = summary.numbers, None
    if n["stored_bytes"]:
        layers: Layers = [
            ("live", "live", list(live)),
            ("dead, but pinned", "dead", list(dead)),
            ("free, waits to go", "free", list(free)),
        ]
        draw = columns([age for age, _ in AGES], layers, size, "", "age of the object")
    return figure(
        "ages",
        f"{share((n['pinned_bytes'] or 0), n['stored_bytes'] or 0)} of what is stored is dead and "
        "pinned.",
        "Bytes in the store by the age of their object. A dead byte is below its partition's log "
        "start; it stays while any batch in the same object is live.",
        draw,
        tables=("object_ages",),
        why_empty="No object is stored.",
    )


def pins(report: Report, _: Summary) -> Figure:
    """Draw the topics whose live batches keep the most unused bytes in the store."""
    rows = [row for row in rows_of(report, "topics") if row["pinned_bytes"]]
    rows.sort(key=lambda row: (-row["pinned_bytes"], row["topic_id"]))
    shown, draw, title = rows[:SHOWN], None, "No topic pins dead bytes."
    if shown:
        first = shown[0]
        keeps = first["retention_ms"]
        kept = "for ever" if keeps == -1 else duration(keeps) if keeps is not None else "no longer"
        title = f"{plain(first['topic'])}, kept {kept}, pins {size(first['pinned_bytes'])}."
        alone = [row["pinned_alone_bytes"] for row in shown]
        others = [row["pinned_bytes"] - row["pinned_alone_bytes"] for row in shown]
        layers: Layers = [("alone", "dead", alone), ("with other topics", "other", others)]
        draw = bars([row["topic"] for row in shown], layers, size, "")
    return figure(
        "pins",
        title,
        "Dead bytes in objects where the topic still has live batches. An object that several "
        "topics keep counts for each: it goes when the last lets go. What a topic pins alone would "
        "go with it."
        + (f" {len(rows) - SHOWN} more topics pin less." if len(rows) > SHOWN else ""),
        draw,
        tables=("topics",),
        why_empty="Every object that holds live batches holds nothing else.",
        shape=ranking_shape(len(shown)),
    )
