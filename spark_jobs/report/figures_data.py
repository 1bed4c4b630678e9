"""Draws the page's figures of incoming data: writers, load, sizes and latency.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from spark_jobs.report.cube import OTHERS
from spark_jobs.report.figures import SHOWN, Figure, Rows, figure, ranking_shape, rows_of
from spark_jobs.report.job import Report
from spark_jobs.report.plots import (
    SERIES,
    WIDE,
    Draw,
    Layers,
    bars,
    columns,
    curve,
    heat,
    lines_over_time,
    stacked_over_time,
)
from spark_jobs.report.summary import Summary
from spark_jobs.report.words import count, duration, list_names, plain, share, size


def _over_time(rows: Rows, key: str, value: str, starts: Sequence[int]) -> tuple[list[str], Layers]:
    """Return names and the time series of each name, the largest series first, OTHERS last."""
    place = {start: i for i, start in enumerate(starts)}
    values: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(starts))
    for row in rows:
        values[row[key]][place[row["time_ms"]]] += row[value]
    names = sorted(values, key=lambda name: (name == OTHERS, -sum(values[name]), name))
    names = _limit_names(names, values)
    colours = {name: "other" if name == OTHERS else SERIES[i % len(SERIES)]
               for i, name in enumerate(names)}  # fmt: skip
    return names, [(name, colours[name], values[name]) for name in names]


def _limit_names(names: list[str], values: dict[str, list[float]]) -> list[str]:
    """Return the names to draw in their own colours; add other names' values to OTHERS."""
    over = [name for name in names[len(SERIES) :] if name != OTHERS]
    for name in over:
        values[OTHERS] = [a + b for a, b in zip(values[OTHERS], values[name], strict=True)]
    kept = [name for name in names if name not in over and name != OTHERS]
    return [*kept, OTHERS] if OTHERS in values else kept


def _throughput(report: Report, table: str, key: str) -> tuple[list[str], Layers, Draw | None]:
    over = report.window
    names, layers = _over_time(rows_of(report, table), key, "bytes", over.starts())
    if not names:
        return names, layers, None
    seconds = over.width_ms / 1000
    rates = [(name, colour, [n / seconds for n in values]) for name, colour, values in layers]

    def rate(value: float) -> str:
        return f"{size(value)}/s"

    return names, layers, stacked_over_time(over.starts(), rates, over.width_ms, rate, "")


def topic_throughput(report: Report, summary: Summary) -> Figure:
    """Draw the bytes written to topics over time."""
    names, layers, draw = _throughput(report, "topic_throughput", "topic")
    total, n = sum(sum(values) for _, _, values in layers), summary.numbers
    title = "Nothing was written."
    if names:
        title = (
            f"{size(total / (n['window_s'] or 1))}/s on average, "
            f"{share(sum(layers[0][2]), total)} of it to {plain(names[0])}."
        )
    return figure(
        "topics",
        title,
        f"Bytes of stored batches by the time of their commit, in steps of "
        f"{duration(report.window.width_ms)}.",
        draw,
        tables=("topic_throughput", "topics"),
        why_empty="The logs hold no commit: what was written before is in a checkpoint, which "
        "keeps no times.",
        is_wide=True,
    )


def producer_throughput(report: Report, _: Summary) -> Figure:
    """Draw the bytes that producers wrote, over time."""
    names, layers, draw = _throughput(report, "producer_throughput", "producer")
    total = sum(sum(values) for _, _, values in layers)
    title = "No producer wrote."
    if names:
        who = names[0] if names[0] in (OTHERS, "not idempotent") else f"producer {names[0]}"
        title = f"The most came from {who}: {share(sum(layers[0][2]), total)} of all bytes."
    return figure(
        "producers",
        title,
        "The same by producer id. Producers without idempotence have none, and are one layer.",
        draw,
        tables=("producer_throughput",),
        why_empty="The logs hold no commit.",
        is_wide=True,
    )


def broker_uploads(report: Report, summary: Summary) -> Figure:
    """Draw the objects that brokers uploaded over time."""
    over = report.window
    rows = [
        {**row, "broker": f"broker {row['broker_id']}"} for row in rows_of(report, "broker_objects")
    ]
    names, layers = _over_time(rows, "broker", "objects", over.starts())
    draw, title = None, "No broker uploaded an object."
    if names:
        most = [f"{name} ({count(sum(values))})" for name, _, values in layers]
        per_second = count(summary.numbers["puts_per_second"] or 0)
        title = f"{per_second} objects a second, by {list_names(most)}."
        draw = stacked_over_time(over.starts(), layers, over.width_ms, count, "objects")
    return figure(
        "uploads",
        title,
        f"Committed objects in steps of {duration(over.width_ms)}, by the broker that uploaded "
        "them.",
        draw,
        tables=("broker_objects",),
        why_empty="The logs hold no commit.",
        is_wide=True,
        shape=(WIDE[0], 2.4),
    )


def _size_histogram(report: Report, what: str, title: str, caption: str) -> Figure:
    rows = [row for row in rows_of(report, "sizes") if row["what"] == what]
    found = {row["at_least"]: row["count"] for row in rows}
    draw = None
    if found:
        low, high = min(found), max(found)
        classes = [low << i for i in range((high // low).bit_length())]
        names = [_binary(one) for one in classes]
        plural = "batches" if what == "batch" else "objects"
        draw = columns(
            names, [("", "c1", [found.get(one, 0) for one in classes])], count, plural, "size"
        )
    return figure(
        f"{what}-sizes", title, caption, draw, tables=("sizes",), why_empty=f"No {what} was stored."
    )


def _binary(size_bytes: int) -> str:
    for bits, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size_bytes >= 1 << bits:
            return f"{size_bytes >> bits} {unit}"
    return f"{size_bytes} B"


def batch_sizes(report: Report, summary: Summary) -> Figure:
    """Draw a histogram of the sizes of committed batches."""
    n = summary.numbers
    mean = (n["written_bytes"] or 0) / (n["batches"] or 1)
    return _size_histogram(
        report,
        "batch",
        f"A batch has {size(mean)} on average.",
        "Stored batches by size, in classes that double. Small ones make large metadata: a run "
        "costs as much whatever it holds.",
    )


def object_sizes(report: Report, summary: Summary) -> Figure:
    """Draw a histogram of the sizes of committed objects."""
    n = summary.numbers
    return _size_histogram(
        report,
        "object",
        f"{share(n['small_objects'] or 0, n['objects_committed'] or 0)} of the objects are below "
        f"1 MiB, with {share(n['small_object_bytes'] or 0, n['objects_committed_bytes'] or 0)} of "
        "the bytes.",
        "Uploaded objects by size, in classes that double. One below "
        f"{_binary(report.question.buffer_bytes)} (diskless.append.buffer.max.bytes) was closed by "
        "time, not because it was full.",
    )


def fan_in(report: Report, _: Summary) -> Figure:
    """Draw the number of objects by the number of topics and of partitions per object."""
    rows = rows_of(report, "fan_in")
    draw, title = None, "How many partitions share an object."
    if rows:
        total = sum(row["objects"] for row in rows)
        mixed = sum(row["objects"] for row in rows if row["topics"] > 1)
        title = f"{share(mixed, total)} of the objects hold batches of several topics."
        grid: Mapping[Any, Any] = _classes(rows)
        across, up = grid["across"], grid["up"]
        draw = heat(grid["values"], across, up, ("partitions in an object", "topics in an object"))
    return figure(
        "fan-in",
        title,
        "Objects by how many topics and partitions have batches in them. The more share one, the "
        "fewer uploads, and the longer the longest retention among them keeps all.",
        draw,
        tables=("fan_in",),
        why_empty="The logs hold no commit.",
    )


def outcomes(report: Report, _: Summary) -> Figure:
    """Draw the number of batches that were uploaded but refused or duplicate, by reason."""
    rows = rows_of(report, "outcomes")
    refused = [row for row in rows if row["outcome"] != "stored"][:SHOWN]
    total, wasted = (sum(row["batches"] for row in chosen) for chosen in (rows, refused))
    draw, title = None, "Every batch that was uploaded was stored."
    if refused:
        title = f"{share(wasted, total)} of the batches were uploaded for nothing."
        layers: Layers = [("", "dead", [row["batches"] for row in refused])]
        draw = bars([_readable(row["outcome"]) for row in refused], layers, count, "batches")
    return figure(
        "outcomes",
        title,
        "Batches that the coordinator refused, or knew already: their bytes are in an object, and "
        "dead from the start.",
        draw,
        tables=("outcomes",),
        why_empty="No batch was refused, and none came twice."
        if total
        else "The logs hold no commit.",
    )


def transactions(report: Report, summary: Summary) -> Figure:
    """Draw the bytes of transactions by topic: of aborted ones, and of all others."""
    rows = [row for row in rows_of(report, "transactions") if row["bytes"]][:SHOWN]
    draw, title, n = None, "No batch was in a transaction.", summary.numbers
    if rows:
        part = share(n["aborted_bytes"] or 0, n["transactional_bytes"] or 1)
        title = f"{part} of the bytes in transactions were aborted."
        if n["open_transactions"]:
            title += f" {count(n['open_transactions'])} are open at the end of the logs."
        aborted = [float(row["aborted_bytes"]) for row in rows]
        others = [row["bytes"] - gone for row, gone in zip(rows, aborted, strict=True)]
        layers: Layers = [("committed or open", "live", others), ("aborted", "dead", aborted)]
        draw = bars([row["topic"] for row in rows], layers, size, "")
    return figure(
        "transactions",
        title,
        "Bytes of stored batches of transactions. Consumers with isolation.level=read_committed "
        "get no aborted ones, and wait at the oldest open transaction of a partition.",
        draw,
        tables=("transactions",),
        why_empty="The logs hold no batch of a transaction.",
        shape=ranking_shape(len(rows)),
    )


def _readable(outcome: str) -> str:
    return outcome.replace("_", " ").lower()


_FAN_IN: Final = (1, 2, 3, 4, 6, 9, 13, 25, 65, 257)
"""Lower ends of the classes of partitions and topics: single small numbers, then wider ranges."""


def _classes(rows: Rows) -> dict[str, Any]:
    starts = np.array(_FAN_IN)
    pairs = [
        [
            int(np.searchsorted(starts, row[key], side="right")) - 1
            for key in ("topics", "partitions")
        ]
        for row in rows
    ]
    high = [max(pair[i] for pair in pairs) for i in (0, 1)]
    values = np.zeros((high[0] + 1, high[1] + 1))
    for (topic, partition), row in zip(pairs, rows, strict=True):
        values[max(topic, 0), max(partition, 0)] += row["objects"]
    names = [
        str(low) if following == low + 1 else f"{low}–{following - 1}"
        for low, following in pairwise(_FAN_IN)
    ] + [f"≥ {_FAN_IN[-1]}"]
    return {"values": values, "across": names[: high[1] + 1], "up": names[: high[0] + 1]}


def latency(report: Report, summary: Summary) -> Figure:
    """Draw the percentiles of commit latency over time."""
    rows = [row for row in rows_of(report, "commit_latency") if row["time_ms"] is not None]
    n, draw, title = summary.numbers, None, "How long a batch waits for its commit."
    if rows and n["commit_latency_p99_ms"] is not None:
        title = (
            f"Half of the batches were committed within {duration(n['commit_latency_p50_ms'] or 0)}"
            f", 99 of 100 within {duration(n['commit_latency_p99_ms'])}."
        )
        by_time = {row["time_ms"]: row for row in rows}
        starts = report.window.starts()
        layers: Layers = [
            (
                name,
                colour,
                [max(by_time.get(start, {}).get(key) or np.nan, 0.5) for start in starts],
            )
            for name, colour, key in (
                ("99 of 100", "c4", "p99_ms"), ("9 of 10", "c2", "p90_ms"), ("half", "c1", "p50_ms")
            )
        ]  # fmt: skip
        draw = lines_over_time(starts, layers, duration, "", logarithmic=True)
    return figure(
        "latency",
        title,
        "From the newest record of a batch, by its producer's clock, to its commit. Of "
        f"{count(n['commit_latency_batches'] or 0)} batches "
        f"{count(n['commit_latency_negative'] or 0)} were committed before their own time, and "
        f"{count(n['commit_latency_backdated'] or 0)} were ten minutes old or more; they are "
        "counted, not drawn. Percentiles are exact to 1.6 %.",
        draw,
        tables=("commit_latency",),
        why_empty="No batch with a producer's time was committed in the log's time.",
        is_wide=True,
    )


def hot(report: Report, _: Summary) -> Figure:
    """Draw a bar for each of the partitions with the most written bytes."""
    rows = [row for row in rows_of(report, "partitions") if row["bytes"]]
    total = sum(row["bytes"] for row in rows)
    shown, draw, title = rows[:SHOWN], None, "No partition was written to."
    if shown:
        top = sum(row["bytes"] for row in shown)
        title = f"The first {len(shown)} of {count(len(rows))} partitions got {share(top, total)}."
        names = [f"{plain(row['topic'])}-{row['partition']}" for row in shown]
        draw = bars(names, [("", "c1", [row["bytes"] for row in shown])], size, "")
    return figure(
        "hot",
        title,
        "Bytes written to each in the log's time.",
        draw,
        tables=("partitions",),
        why_empty="The logs hold no commit.",
        shape=ranking_shape(len(shown)),
    )


def inequality(report: Report, summary: Summary) -> Figure:
    """Draw the Lorenz curve of written bytes over partitions."""
    written = np.sort(np.array([row["bytes"] for row in rows_of(report, "partitions")], np.float64))
    draw = None
    if len(written) > 1 and written.sum():
        y = np.concatenate(([0], np.cumsum(written) / written.sum()))
        x = np.linspace(0, 1, len(y))
        if len(x) > 200:  # a curve needs no more
            shown = np.unique(np.linspace(0, len(x) - 1, 200).astype(int))
            x, y = x[shown], y[shown]

        def per_cent(value: float) -> str:
            return f"{100 * value:.0f} %"

        draw = curve(
            list(x), list(y), (per_cent, per_cent), ("of the partitions, quietest first",
                                                     "of the bytes"),
        )  # fmt: skip
    return figure(
        "inequality",
        f"Gini {summary.numbers['gini_partitions']:.2f}: 0 is even load, 1 is all on one.",
        "The further the curve hangs below the dashed line, the more unequal.",
        draw,
        tables=("partitions",),
        why_empty="Fewer than two partitions were written to.",
        shape=ranking_shape(SHOWN),
    )
