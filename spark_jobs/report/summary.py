"""Summarises the tables: a few numbers, and sentences that say what to do about them.

    found = summarise(report)
    found.numbers["dead_bytes"], found.findings[0].text

`--json` prints the numbers, and the page's first screen has the sentences; both are computed here
once. A sentence appears only if its number is large enough to act on; if none is, the page says so.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.report.job import Report
from spark_jobs.report.outlook import MIB
from spark_jobs.report.tables import NOT_IDEMPOTENT
from spark_jobs.report.words import count, duration, list_names, plain, share, size

COST, ROT, RISK, GOOD = "cost", "rot", "risk", "good"
"""Kinds of findings: money, dead bytes, something to look into, or nothing to do."""

SMALL_OBJECT: Final = 1 << 20
"""Size below which a month of storing an object costs less than a hundredth of its upload."""

_DEAD_WORTH_TELLING: Final = 0.10
_GINI_WORTH_TELLING: Final = 0.60
_REFUSED_WORTH_TELLING: Final = 0.001
_NEGATIVE_WORTH_TELLING: Final = 0.001
_ABORTED_WORTH_TELLING: Final = 0.10
_SMALL_RUNS_WORTH_TELLING: Final = 1_000
_CHANGE_WORTH_TELLING: Final = 0.05
_MONTH_MS: Final = 30 * 86_400_000
_GROWTH_WORTH_TELLING: Final = 1.5
_OPEN_WORTH_TELLING_MS: Final = 15 * 60_000
"""The default of transaction.max.timeout.ms: no transaction should be older."""
_LONG_ENOUGH_S: Final = 86_400
"""A day and its night."""

_FEW: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding in one sentence or two; names from the log are plain, and not yet escaped."""

    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The contents of the page's first screen."""

    lead: str
    numbers: Mapping[str, float | None]
    findings: Sequence[Finding]


def summarise(report: Report) -> Summary:
    """Compute the numbers and findings of a report."""
    tables = {name: table.to_pydict() for name, table in report.tables.items()}
    numbers = _numbers(report, tables)
    found = [finding for say in _FINDERS for finding in say(report, tables, numbers)]
    if not found:
        found = [Finding(GOOD, "Nothing stands out: no pile of dead bytes, no hot partition, no "
                               "refused batch.")]  # fmt: skip
    return Summary(_lead(report, numbers), numbers, found)


def gini(values: Sequence[int] | np.ndarray[Any, Any]) -> float:
    """Return the Gini coefficient: 0 if all values are equal, near 1 if one value dominates.

    >>> gini([1, 1, 1, 1]), gini([0, 0, 0, 8]), gini([])
    (0.0, 0.75, 0.0)
    """
    ordered = np.sort(np.asarray(values, np.float64))
    if not len(ordered) or not ordered.sum():
        return 0.0
    ranks = np.arange(1, len(ordered) + 1)
    found = (2 * ranks - len(ordered) - 1) @ ordered / (len(ordered) * ordered.sum())
    return round(float(found), 12)


def _numbers(report: Report, tables: Mapping[str, dict[str, Any]]) -> dict[str, float | None]:
    costs = dict(zip(tables["costs"]["item"], tables["costs"]["amount"], strict=True))
    kept = dict(zip(tables["costs"]["item"], tables["costs"]["quantity"], strict=True))
    ages = report.tables["object_ages"]
    latency = report.tables["commit_latency"].slice(0, 1).to_pylist() or [{}]
    objects, uploaded = sum(tables["broker_objects"]["objects"]), tables["broker_objects"]["bytes"]
    seconds = max(1_000, report.window.last_ms - report.window.start_ms) / 1000
    written = np.array(tables["partitions"]["bytes"], np.int64)
    small = _small(report.tables["sizes"])
    return {
        "window_s": seconds,
        "topics": sum(not gone for gone in tables["topics"]["deleted"]),
        "partitions": len(written),
        "written_bytes": int(written.sum()),
        "written_records": sum(tables["partitions"]["records"]),
        "batches": sum(tables["partitions"]["batches"]),
        "objects_committed": objects,
        "objects_committed_bytes": sum(uploaded),
        "object_bytes_mean": sum(uploaded) / objects if objects else None,
        "small_objects": small[0],
        "small_object_bytes": small[1],
        "objects_kept": sum(ages["objects"].to_pylist()),
        "stored_bytes": sum(n for item, n in kept.items() if item != "uploads of objects"),
        "live_bytes": kept["live bytes"],
        "pinned_bytes": kept["dead bytes in objects that are kept"],
        "free_bytes": kept["objects that wait for their deletion"],
        "cost_month": sum(costs.values()),
        "cost_requests_month": costs["uploads of objects"],
        "cost_pinned_month": costs["dead bytes in objects that are kept"],
        "puts_per_second": objects / seconds,
        "commit_latency_p50_ms": latency[0].get("p50_ms"),
        "commit_latency_p99_ms": latency[0].get("p99_ms"),
        "commit_latency_batches": latency[0].get("batches", 0),
        "commit_latency_negative": latency[0].get("negative", 0),
        "commit_latency_backdated": latency[0].get("backdated", 0),
        "gini_partitions": gini(written),
        "transactional_bytes": sum(tables["transactions"]["bytes"]),
        "aborted_bytes": sum(tables["transactions"]["aborted_bytes"]),
        "open_transactions": sum(tables["transactions"]["open"]),
        **_reading(tables["reads"]),
        **_growth(tables["forecast"], tables["history"]),
        "fencings": _changes(tables, "fencings"),
        "elections": _elections(tables),
    }


def _reading(reads: Mapping[str, Any]) -> dict[str, float | None]:
    size_mib = sum(reads["bytes"]) / MIB
    return {
        "gets_per_mib": sum(reads["runs"]) / size_mib if size_mib else None,
        "merged_gets_per_mib": sum(reads["merged_runs"]) / size_mib if size_mib else None,
        "small_runs": sum(reads["small_runs"]),
        "small_run_bytes": sum(reads["small_bytes"]),
    }


def _growth(
    forecast: Mapping[str, Any], history: Mapping[str, Any]
) -> dict[str, float | None]:  # fmt: skip
    stored = np.array(forecast["live_bytes"]) + np.array(forecast["dead_bytes"])
    ahead = dict(zip(forecast["days"], stored.tolist(), strict=True))
    seen = [a + b for a, b in zip(history["live_bytes"], history["dead_bytes"], strict=True)]
    has_earlier = len(seen) > 1
    times = history["as_of_ms"]
    return {
        "stored_bytes_in_90_days": ahead[90],
        "stored_bytes_in_a_year": ahead[365],
        "earlier_reports": len(seen) - 1,
        "since_last_report_s": (times[-1] - times[-2]) / 1000 if has_earlier else None,
        "stored_change_bytes": seen[-1] - seen[-2] if has_earlier else None,
    }


def _small(sizes: pa.Table) -> tuple[int, int]:
    rows = [row for row in sizes.to_pylist() if row["what"] == "object"]
    small = [row for row in rows if row["at_least"] < SMALL_OBJECT]
    return sum(row["count"] for row in small), sum(row["bytes"] for row in small)


def _changes(tables: Mapping[str, dict[str, Any]], what: str) -> int:
    changes = tables["cluster_changes"]
    pairs = zip(changes["what"], changes["count"], strict=True)
    return sum(n for name, n in pairs if name == what)


def _elections(tables: Mapping[str, dict[str, Any]]) -> int:
    return len(tables["epochs"]["epoch"]) - len(set(tables["epochs"]["log"]))


def _lead(report: Report, n: Mapping[str, Any]) -> str:
    if report.is_empty:
        return "The logs hold no record yet: there is nothing to report on."
    if not n["stored_bytes"]:
        return "No object is stored: there is nothing to pay for, and nothing that could rot."
    prices = report.question.prices
    requests = share(n["cost_requests_month"], n["cost_month"])
    dead = n["pinned_bytes"] + n["free_bytes"]
    stored = size(n["stored_bytes"])
    rots = f"{share(dead, n['stored_bytes'])} of the {stored} in the store can no longer be read"
    return (
        f"Your data costs {prices.text(n['cost_month'])} a month, {requests} of it for uploads"
        f"{estimate_basis(n['window_s'])}; "
        f"{rots if dead else f'all of the {stored} in the store can be read'}."
    )


def estimate_basis(window_s: float) -> str:
    """Say from how short a time the uploads of a month were estimated; nothing from a day on."""
    if window_s >= _LONG_ENOUGH_S:
        return ""
    return f" if they go on as in these {duration(1000 * window_s)}"


# --- findings -----------------------------------------------------------------------------------


def _dead(report: Report, _: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    if n["pinned_bytes"] < _DEAD_WORTH_TELLING * n["stored_bytes"] or not n["pinned_bytes"]:
        return
    topics = report.tables["topics"].to_pylist()
    worst = sorted(topics, key=lambda topic: -topic["pinned_alone_bytes"])[0]
    text = (
        f"{size(n['pinned_bytes'])} are dead but pinned: their objects also hold live batches, so "
        f"they stay, for {report.question.prices.text(n['cost_pinned_month'])} a month."
    )
    if worst["pinned_alone_bytes"]:
        text += (
            f" {plain(worst['topic'])} alone keeps {size(worst['pinned_alone_bytes'])} of them "
            f"with {size(worst['live_bytes'])} of live data, {_keeps(worst['retention_ms'])}."
        )
    yield Finding(ROT, text)


def _keeps(retention_ms: int | None) -> str:
    if retention_ms is None:
        return "though it is deleted"
    return "which it keeps for ever" if retention_ms < 0 else f"kept for {duration(retention_ms)}"


def _free(_: Report, __: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    if n["free_bytes"] > _DEAD_WORTH_TELLING * n["stored_bytes"]:
        yield Finding(
            ROT,
            f"{size(n['free_bytes'])} are in unreferenced objects: they are deleted after "
            "diskless.file.delete.delay.ms, while brokers run.",
        )


def _requests(report: Report, _: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    if not n["objects_committed"] or n["cost_requests_month"] < n["cost_month"] / 2:
        return
    text = (
        f"Uploads cost more than what they store: {count(n['puts_per_second'])} a second, "
        f"{size(n['object_bytes_mean'])} each."
    )
    options = report.tables["what_if"].to_pylist()
    now = next(option for option in options if option["current"])
    later = [
        option
        for option in options
        if option["commit_interval_ms"] >= 2 * now["commit_interval_ms"]
    ]
    if later and now["amount"] and later[0]["amount"] < 0.95 * now["amount"]:
        prices = report.question.prices
        text += (
            f" A commit interval of {later[0]['commit_interval_ms']} ms instead of "
            f"{now['commit_interval_ms']} would save "
            f"{prices.text(now['amount'] - later[0]['amount'])} a month, and make every produce "
            f"wait up to {later[0]['commit_interval_ms'] - now['commit_interval_ms']} ms longer."
        )
    yield Finding(COST, text)


def _smalls(_: Report, __: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    if n["small_objects"] > n["objects_committed"] / 2:
        yield Finding(
            COST,
            f"{share(n['small_objects'], n['objects_committed'])} of the objects are below 1 MiB: "
            f"they hold {share(n['small_object_bytes'], n['objects_committed_bytes'])} of the "
            "bytes, and each costs as many requests as a large one.",
        )


def _debt(report: Report, _: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    now, merged = n["gets_per_mib"], n["merged_gets_per_mib"]
    if now is None or n["small_runs"] < _SMALL_RUNS_WORTH_TELLING or now < 2 * merged:
        return
    worst = report.tables["reads"].slice(0, 1).to_pylist()[0]
    yield Finding(
        COST,
        f"{count(n['small_runs'])} runs with {size(n['small_run_bytes'])} wait to be merged: a "
        f"consumer of everything needs {count(now)} GETs for a MiB instead of {count(merged)}; "
        f"{plain(worst['topic'])} alone needs {count(worst['runs'])} for all of it. Brokers merge "
        "with esker.compaction.enable=true, and esker spark merge does a backlog.",
    )


def _change(report: Report, _: Mapping[str, Any], __: Mapping[str, Any]) -> Iterator[Finding]:
    *earlier, now = report.tables["history"].to_pylist()
    recent = [row for row in earlier if now["as_of_ms"] - row["as_of_ms"] <= _MONTH_MS]
    # The month, too: a few per cent a day are much.
    for before in (*earlier[-1:], *recent[:1]):
        stored = before["live_bytes"] + before["dead_bytes"]
        change = now["live_bytes"] + now["dead_bytes"] - stored
        if abs(change) > _CHANGE_WORTH_TELLING * stored:
            yield Finding(COST, _change_text(report, before, now, change, stored))
            return


def _change_text(
    report: Report, before: Mapping[str, Any], now: Mapping[str, Any], change: int, stored: int
) -> str:
    text = (
        f"Since the report {duration(now['as_of_ms'] - before['as_of_ms'])} before, the store "
        f"{'grew' if change > 0 else 'shrank'} by {size(abs(change))} "
        f"({share(abs(change), stored)})"
    )
    costs, costed = (report.question.prices.text(row["amount"]) for row in (now, before))
    if before["currency"] == now["currency"] and costs != costed:
        text += f", and a month costs {costs} instead of {costed}"
    return text + "."


def _outgrows(report: Report, _: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    rows = {row["days"]: row for row in report.tables["forecast"].to_pylist()}
    now, later = rows[0], rows[90]
    stored, ahead = (row["live_bytes"] + row["dead_bytes"] for row in (now, later))
    if n["window_s"] < _LONG_ENOUGH_S or ahead <= _GROWTH_WORTH_TELLING * stored:
        return
    yield Finding(
        COST,
        f"If writing goes on as it did, {size(ahead)} are stored in 90 d instead of "
        f"{size(stored)}, for {report.question.prices.text(later['amount'])} a month.",
    )


def _hot(report: Report, __: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    partitions = report.tables["partitions"].slice(0, 1).to_pylist()
    if n["partitions"] < _FEW or n["gini_partitions"] < _GINI_WORTH_TELLING:
        return
    hottest = partitions[0]
    yield Finding(
        RISK,
        f"Partitions are loaded unequally (Gini {n['gini_partitions']:.2f}): "
        f"{plain(hottest['topic'])}-{hottest['partition']} alone got "
        f"{share(hottest['bytes'], n['written_bytes'])} of all bytes.",
    )


def _late(_: Report, __: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    batches, negative = n["commit_latency_batches"], n["commit_latency_negative"]
    if batches and negative > _NEGATIVE_WORTH_TELLING * batches:
        yield Finding(
            RISK,
            f"{share(negative, batches)} of the batches were committed before their own time: a "
            "producer's clock is ahead, and retention.ms keeps its data for longer than meant.",
        )


def _refusal_findings(
    _: Report, tables: Mapping[str, Any], n: Mapping[str, Any]
) -> Iterator[Finding]:
    rows = list(zip(tables["outcomes"]["outcome"], tables["outcomes"]["batches"], strict=True))
    refused = [(name, batches) for name, batches in rows if name != "stored"]
    wasted = sum(batches for _, batches in refused)
    if wasted > _REFUSED_WORTH_TELLING * (n["batches"] + wasted):
        names = list_names([f"{name} ({count(batches)})" for name, batches in refused])
        yield Finding(RISK, f"{count(wasted)} batches were uploaded and not stored: {names}.")


def _idempotence(_: Report, tables: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    rows = zip(
        tables["producer_throughput"]["producer"], tables["producer_throughput"]["batches"],
        strict=True,
    )  # fmt: skip
    without = sum(batches for who, batches in rows if who == NOT_IDEMPOTENT)
    if without > n["batches"] / 2:
        yield Finding(
            RISK,
            f"{share(without, n['batches'])} of the batches come from producers without "
            "idempotence: their retries may be stored twice.",
        )


def _transactions(report: Report, _: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    if n["aborted_bytes"] > _ABORTED_WORTH_TELLING * n["transactional_bytes"]:
        yield Finding(
            COST,
            f"{share(n['aborted_bytes'], n['transactional_bytes'])} of the bytes in transactions "
            f"belong to aborted ones: {size(n['aborted_bytes'])} that no read_committed consumer "
            "gets.",
        )
    rows = [row for row in report.tables["transactions"].to_pylist() if row["open"]]
    oldest = min(rows, key=lambda row: row["oldest_open_ms"], default=None)
    if oldest is None:
        return
    age_ms = report.window.last_ms - oldest["oldest_open_ms"]
    if age_ms > _OPEN_WORTH_TELLING_MS:
        yield Finding(
            RISK,
            f"A transaction in {plain(oldest['topic'])} has been open for {duration(age_ms)}: "
            f"read_committed consumers wait at it, {count(oldest['stable_lag'])} offsets behind "
            "at most. kafka-transactions find-hanging names it.",
        )


def _unrest(_: Report, tables: Mapping[str, Any], n: Mapping[str, Any]) -> Iterator[Finding]:
    fenced = {
        broker
        for broker, state, to in zip(
            tables["brokers"]["broker_id"], tables["brokers"]["state"], tables["brokers"]["to_ms"],
            strict=True,
        )
        if state == "fenced" and to is None
    }  # fmt: skip
    if fenced:
        names = list_names([str(broker_id) for broker_id in sorted(fenced)])
        yield Finding(RISK, f"Fenced at the log's end, and so not used by clients: broker {names}.")
    sentences = []
    if n["fencings"]:
        sentences.append(f"Brokers were fenced {_times(n['fencings'])} after they had served.")
    if n["elections"]:
        sentences.append(f"Logs got a new leader {_times(n['elections'])}.")
    if sentences:
        yield Finding(RISK, " ".join(sentences))


def _times(number: float) -> str:
    return "once" if number == 1 else f"{count(number)} times"


_FINDERS: Final = (
    _dead, _free, _requests, _smalls, _debt, _change, _outgrows, _hot, _late, _refusal_findings,
    _idempotence, _transactions, _unrest,
)  # fmt: skip
