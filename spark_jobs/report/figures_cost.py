"""Draws the page's figures of costs and of dead bytes.

Source: docs/design/pipeline.md#the-report; reference of prices: `spark_jobs.prices`.
"""

from __future__ import annotations

import numpy as np

from spark_jobs.report.counting import AGES
from spark_jobs.report.figures import SHOWN, Figure, figure, ranking_shape, rows_of
from spark_jobs.report.job import Report
from spark_jobs.report.plots import Layers, bars, columns, two_scales
from spark_jobs.report.summary import Summary
from spark_jobs.report.words import duration, plain, share, size

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
        f"{share(most['amount'], total)} of the {prices.text(total)} a month is for "
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
