"""Draws the page's figures of the cluster: brokers, leaders, chunks, and the growth of logs.

Source: docs/design/pipeline.md#the-report; KIP-631, KIP-1114, KIP-630.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from spark_jobs.report.figures import Figure, Rows, figure, rows_of
from spark_jobs.report.job import Report
from spark_jobs.report.plots import (
    SERIES,
    WIDE,
    Bar,
    Draw,
    Layers,
    bars,
    lines_over_time,
    spans,
    stacked_over_time,
)
from spark_jobs.report.summary import Summary
from spark_jobs.report.words import count, duration, list_names, plain, size

MAX_BARS: Final = 10
MAX_ROWS: Final = 24
"""Rows of a timeline: the brokers with most changes, the partitions with most chunks."""

_STATE: Final = {"serving": "live", "leaving": "free", "fenced": "dead"}
_HEIGHT_OF_ROW: Final = 0.27


def _height(rows: int) -> tuple[float, float]:
    return WIDE[0], max(1.9, 0.95 + _HEIGHT_OF_ROW * rows)


def brokers(report: Report, summary: Summary) -> Figure:
    """Draw the times in which each broker served, was leaving, or was fenced."""
    by_broker: dict[int, Rows] = defaultdict(list)
    for row in rows_of(report, "brokers"):
        by_broker[row["broker_id"]].append(row)
    over = report.window
    end = over.bucket(over.last_ms) + over.width_ms
    restless = sorted(by_broker, key=lambda broker_id: (-len(by_broker[broker_id]), broker_id))[
        :MAX_ROWS
    ]
    shown = sorted(restless)
    drawn: list[Bar] = []
    for place, broker in enumerate(shown):
        for row in by_broker[broker]:
            to_ms = end if row["to_ms"] is None else row["to_ms"]
            drawn.append((place, row["from_ms"], to_ms - row["from_ms"], _STATE[row["state"]], ""))
    draw = None
    if shown:
        legend = [("serves", "live"), ("leaves", "free"), ("fenced", "dead")]
        names = [f"broker {broker_id}" for broker_id in shown]
        draw = spans(names, drawn, legend, times=(over.start_ms, end))
    fencings, left = int(summary.numbers["fencings"] or 0), len(by_broker) - len(shown)
    return figure(
        "brokers",
        f"{count(len(by_broker))} brokers, "
        + (f"fenced {count(fencings)} times after they had served." if fencings
           else "none of which was fenced after it had served.")
        if shown else "No broker ever registered.",
        "When each broker served. A fenced one is named to no client; that costs no partition its "
        "leader."
        + (f" {count(left)} brokers with fewer changes are not drawn." if left else ""),
        draw,
        tables=("brokers",),
        why_empty="The cluster's log names no broker.",
        is_wide=True,
        shape=_height(len(shown)),
    )  # fmt: skip


def changes(report: Report, _: Summary) -> Figure:
    """Draw the number of changes of leaders, ISRs, chunks and fences over time."""
    rows, starts = rows_of(report, "cluster_changes"), report.window.starts()
    layers = _stack(rows, "what", "count", starts)
    leaders = {row["broker_id"]: row["partitions"] for row in rows_of(report, "leaders")}
    led = list_names(
        [f"broker {broker_id} leads {count(n)}" for broker_id, n in sorted(leaders.items())]
    )
    draw: Draw | None = None
    if layers:
        draw = stacked_over_time(starts, layers, report.window.width_ms, count, "changes")
    total = sum(row["count"] for row in rows)
    return figure(
        "changes",
        f"{count(total)} changes of leaders, ISRs, chunks and fences." if total else
        "No leader, ISR, chunk or fence changed.",
        "How often the cluster's log changed each, at partitions and brokers."
        + (f" Now {led} of the partitions." if led else ""),
        draw,
        tables=("cluster_changes", "leaders"),
        why_empty="The cluster was at rest for all of the log's time.",
        is_wide=True,
        shape=(WIDE[0], 2.4),
    )  # fmt: skip


def _stack(rows: Rows, key: str, value: str, starts: Sequence[int], keep: int = 8) -> Layers:
    """Return a time series for each of the `keep` largest keys, and one for all other keys."""
    place = {start: i for i, start in enumerate(starts)}
    values: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(starts))
    for row in rows:
        values[row[key]][place[row["time_ms"]]] += row[value]
    names = sorted(values, key=lambda name: (-sum(values[name]), name))
    layers = [(name, SERIES[i], values[name]) for i, name in enumerate(names[:keep])]
    if len(names) > keep:
        rest = [sum(values[name][i] for name in names[keep:]) for i in range(len(starts))]
        layers.append((f"{len(names) - keep} others", "other", rest))
    return layers


def epochs(report: Report, summary: Summary) -> Figure:
    """Draw the leader epochs of each log over time."""
    rows, over = rows_of(report, "epochs"), report.window
    logs = sorted({row["log"] for row in rows})[:MAX_ROWS]
    drawn: list[Bar] = []
    for place, log in enumerate(logs):
        of_log = [row for row in rows if row["log"] == log]
        for number, row in enumerate(of_log):
            length = max(row["last_ms"] - row["first_ms"], over.width_ms // 20 + 1)
            wide = length > (over.last_ms - over.start_ms) / 20
            text = f"epoch {row['epoch']}" if wide else ""
            drawn.append((place, row["first_ms"], length, SERIES[number % 2 * 4], text))
    end = over.bucket(over.last_ms) + over.width_ms
    draw = spans(logs, drawn, [], times=(over.start_ms, end)) if rows else None
    elections = int(summary.numbers["elections"] or 0)
    return figure(
        "epochs",
        f"{count(elections)} elections in {count(len(logs))} logs."
        if elections else "Every log had one leader all along.",
        "From the first to the last record of each leader epoch. Where one ends and the next "
        "begins, the log had no leader, or nothing to write.",
        draw,
        tables=("epochs",),
        why_empty="The logs hold no record.",
        is_wide=True,
        shape=_height(len(logs)),
    )  # fmt: skip


def chunks(report: Report, _: Summary) -> Figure:
    """Draw the chunks of partitions by offset, coloured by the broker of the first replica."""
    by_partition: dict[tuple[str, int], Rows] = defaultdict(list)
    for row in rows_of(report, "chunks"):
        by_partition[row["topic"], row["partition"]].append(row)
    most = sorted(by_partition, key=lambda one: (-len(by_partition[one]), one))[:MAX_ROWS]
    shown = sorted(most)
    holders = sorted({row["replicas"][0] for one in shown for row in by_partition[one]
                      if row["replicas"]})  # fmt: skip
    colour = {broker: SERIES[i % len(SERIES)] for i, broker in enumerate(holders)}
    highest = max(
        (row["end_offset"] or row["start_offset"] for one in shown for row in by_partition[one]),
        default=0,
    )
    drawn: list[Bar] = []
    for place, one in enumerate(shown):
        for row in by_partition[one]:
            start = row["start_offset"]
            end = row["end_offset"]
            length = highest * 0.12 + 1 if end is None else end + 1 - start
            first = row["replicas"][0] if row["replicas"] else None
            drawn.append((place, start, length, "other" if first is None else colour[first], ""))
    draw = None
    if shown:
        names = [f"{plain(topic)}-{partition}" for topic, partition in shown]
        legend = [(f"broker {one}", colour[one]) for one in holders[: len(SERIES)]]
        draw = spans(names, drawn, legend, word=count, label="offset")
    total = sum(len(rows) for rows in by_partition.values())
    return figure(
        "chunks",
        f"{count(total)} chunks in {count(len(by_partition))} partitions."
        if shown else "No partition is cut into chunks.",
        "Offsets by the broker that is the first replica of their chunk; the last of each row "
        "still grows, and is drawn at a fixed length."
        + (f" {len(by_partition) - len(shown)} partitions are not drawn."
           if len(by_partition) > len(shown) else ""),
        draw,
        tables=("chunks",),
        why_empty="KIP-1114 chunks begin with `esker chunks create`; until then a partition is "
        "one.",
        is_wide=True,
        shape=_height(len(shown)),
    )  # fmt: skip


def log_growth(report: Report, _: Summary) -> Figure:
    """Draw the bytes of each record type in the metadata logs."""
    rows, over = rows_of(report, "log_growth"), report.window
    layers = _stack(rows, "type", "bytes", over.starts(), keep=6)
    total = sum(row["bytes"] for row in rows)
    seconds = max(1.0, (over.last_ms - over.start_ms) / 1000)
    draw = None
    if layers:
        draw = stacked_over_time(over.starts(), layers, over.width_ms, size, "")
    return figure(
        "log-growth",
        f"The metadata logs grow by {size(total / seconds * 86_400)} a day.",
        f"Bytes of metadata records by type, in steps of {duration(over.width_ms)}.",
        draw,
        tables=("log_growth",),
        why_empty="The logs hold no record.",
        is_wide=True,
    )


def objects_kept(report: Report, _: Summary) -> Figure:
    """Draw the number of objects in the coordinators' metadata over time."""
    rows = rows_of(report, "objects_kept")
    draw, title = None, "No object is in the metadata."
    if any(row["held"] or row["committed"] for row in rows):
        now = rows[-1]["held"]
        grown = now - rows[0]["held"] + rows[0]["committed"] - rows[0]["removed"]
        title = f"{count(now)} objects are held, {'+' if grown >= 0 else '−'}{count(abs(grown))} "
        title += f"in {duration(report.window.last_ms - report.window.start_ms)}."
        layers: Layers = [("objects held", "c3", [row["held"] for row in rows])]
        draw = lines_over_time([row["time_ms"] for row in rows], layers, count, "objects")
    return figure(
        "objects-kept",
        title,
        "Objects that the metadata names. A checkpoint has a row for each, and one for each run in "
        "them: this line is what snapshots, and restarts, grow with.",
        draw,
        tables=("objects_kept",),
        why_empty="Nothing was committed.",
    )


def checkpoints(report: Report, _: Summary) -> Figure:
    """Draw the sizes of the newest checkpoints, the newest last."""
    rows = rows_of(report, "checkpoints")
    rows.sort(key=lambda row: (row["end_offset"], row["log"]))
    shown, draw, title = rows[-MAX_BARS:], None, "No checkpoint was there to be read."
    if shown:
        newest = shown[-1]
        where = f"offset {newest['end_offset']:,}"
        title = f"The newest checkpoint, at {where}, has {size(newest['size_bytes'])}."
        logs = sorted({row["log"] for row in shown})
        layers = [
            (log, SERIES[i % len(SERIES)],
             [row["size_bytes"] if row["log"] == log else 0 for row in shown])
            for i, log in enumerate(logs)
        ]  # fmt: skip
        draw = bars([f"at {row['end_offset']:,}" for row in shown], layers, size, "")
    return figure(
        "checkpoints",
        title,
        "Checkpoints by the offset that they stand for: what a new replica fetches first. Nodes "
        "drop the older ones as the log start moves on.",
        draw,
        tables=("checkpoints",),
        why_empty="None was taken yet, or the logs were read from where only records are.",
    )
