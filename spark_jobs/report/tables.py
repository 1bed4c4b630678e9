"""Computes the report's tables from merged counts: arithmetic on a few thousand rows.

    tables = tables_of(Facts(...))
    tables["topics"].num_rows

Both engines return their counts as the same Arrow tables; so shares, percentiles and amounts of
money are computed in one place.

Source: docs/design/pipeline.md#the-report; `spark_jobs.report.schemas` says what each column means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from records.kafka_errors import ErrorCode
from spark_jobs.prices import Prices
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA
from spark_jobs.report.cluster import ClusterHistory
from spark_jobs.report.counting import AGES, DUPLICATE, FREE, LIVE, PINNED
from spark_jobs.report.cube import OTHERS, percentiles
from spark_jobs.report.first_pass import GONE
from spark_jobs.report.outlook import DAY_MS, forecast, reads, topic_costs
from spark_jobs.report.schemas import TABLES, schema
from spark_jobs.report.window import Window
from spark_jobs.tables.topics import TopicSettings

Rows = list[dict[str, Any]]

MONTH_MS: Final = 730 * 3_600_000
"""A twelfth of a year."""

BACKDATED_MS: Final = 600_000
"""A batch this much older than its commit was not late: its producer set an old timestamp. Clients
give a record up after delivery.timeout.ms, by default 2 minutes."""

INTERVALS: Final = (0.2, 0.4, 1, 2, 4, 8, 20)
"""Commit intervals of the estimate, in multiples of the one in force."""

NOT_IDEMPOTENT: Final = "not idempotent"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that could be read."""

    log: str
    end_offset: int
    epoch: int
    size_bytes: int
    time_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the tables are computed from."""

    window: Window
    first: pa.Table  # of the first pass
    counts: pa.Table  # of the second
    history: ClusterHistory
    topics: Mapping[str, TopicSettings]
    names: Mapping[str, str]  # topics by id, also deleted ones
    checkpoints: Sequence[Checkpoint]
    prices: Prices
    commit_interval_ms: int
    buffer_bytes: int  # at which a broker uploads at once
    now_ms: int = 0
    earlier: Sequence[Mapping[str, Any]] = ()  # rows of the table `history`

    def name(self, topic_id: str) -> str:
        """Return a topic's name, or its id if the name is unknown."""
        settings = self.topics.get(topic_id)
        return settings.name if settings is not None else self.names.get(topic_id) or topic_id

    @property
    def months(self) -> float:
        """Return the window's length in months; a window under one second counts as one second."""
        return max(1_000, self.window.last_ms - self.window.start_ms) / MONTH_MS


def log_name(number: int) -> str:
    """Return the log name of the coordinator with this number; -1 stands for the cluster's log."""
    return CLUSTER_METADATA if number < 0 else f"{DISKLESS_METADATA}{number}"


def tables_of(facts: Facts) -> dict[str, pa.Table]:
    """Compute every table of the report; a table may be empty."""
    return {name: _arrow(name, build(facts)) for name, build in _BUILD.items()}


def _arrow(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema(name))


def _of(table: pa.Table, measure: str) -> Rows:
    rows: Rows = table.filter(pc.equal(table["measure"], measure)).to_pylist()
    return rows


def _columns(table: pa.Table, measure: str, *names: str) -> list[Any]:
    found = table.filter(pc.equal(table["measure"], measure))
    return [found[name].to_numpy().astype(np.int64) for name in names]


def _written_objects(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("batches", "records", "bytes")}


# --- what was written ---------------------------------------------------------------------------


def _topics(facts: Facts) -> Rows:
    found: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(int))
    places: dict[str, set[int]] = defaultdict(set)
    for row in _of(facts.counts, "partition"):
        for name, value in _written_objects(row).items():
            found[row["name"]][name] += value
        places[row["name"]].add(row["number"])
    for row in _of(facts.counts, "held"):
        found[row["name"]]["live_bytes"] += row["part_bytes"]
        found[row["name"]]["dead_bytes"] += row["bytes"] - row["part_bytes"]
        if row["name"]:
            places[row["name"]].add(row["number"])
    for row in _of(facts.counts, "pin"):
        one = found[row["name"]]
        one["pinned_objects"] += row["objects"]
        one["pinned_bytes"] += row["bytes"]
        one["pinned_alone_bytes"] += row["part_bytes"]
    for row in _of(facts.first, "log_start"):
        if row["highest"] != GONE:
            found[row["name"]]["bytes"] += 0
            places[row["name"]].add(row["number"])
    numbers = [one.name for one in TABLES["topics"].columns if one.kind == "number"]
    rows = []
    for topic_id, values in found.items():
        settings = facts.topics.get(topic_id)
        row = {name: values[name] for name in numbers} | {
            "topic_id": topic_id,
            "topic": facts.name(topic_id) if topic_id else "before the checkpoint",
            "deleted": settings is None and bool(topic_id),
            "partitions": len(places[topic_id]),
            "retention_ms": None if settings is None else settings.retention_ms,
            "retention_bytes": None if settings is None else settings.retention_bytes,
        }
        rows.append(row)
    return sorted(rows, key=lambda row: (-row["live_bytes"], -row["bytes"], row["topic_id"]))


def _topic_throughput(facts: Facts) -> Rows:
    return [
        {
            "topic": OTHERS if row["label"] == OTHERS else facts.name(row["name"]),
            "time_ms": row["time_ms"],
            **_written_objects(row),
        }
        for row in _of(facts.counts, "topic")
    ]


def _producer_throughput(facts: Facts) -> Rows:
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in _of(facts.counts, "producer"):
        who = str(row["number"]) if row["number"] >= 0 else NOT_IDEMPOTENT
        who = OTHERS if row["label"] == OTHERS else who
        total = rows.setdefault((who, row["time_ms"]), {"producer": who, "time_ms": row["time_ms"]})
        for name, value in _written_objects(row).items():
            total[name] = total.get(name, 0) + value
    return list(rows.values())


def _partitions(facts: Facts) -> Rows:
    rows: dict[tuple[str, int], dict[str, Any]] = {}

    def row_of(row: Mapping[str, Any]) -> dict[str, Any]:
        empty = {"topic": facts.name(row["name"]), "partition": row["number"]}
        empty |= dict.fromkeys(("batches", "records", "bytes", "live_bytes"), 0)
        return rows.setdefault((row["name"], row["number"]), empty)

    for row in _of(facts.first, "log_start"):
        if row["highest"] != GONE:
            row_of(row)
    for row in _of(facts.counts, "partition"):
        times = {"first_ms": row["lowest"], "last_ms": row["highest"]}
        row_of(row).update(_written_objects(row) | times)
    for row in _of(facts.counts, "held"):
        if row["name"]:
            row_of(row)["live_bytes"] += row["part_bytes"]
    return [row for _, row in sorted(rows.items(), key=lambda item: (-item[1]["bytes"], item[0]))]


def _transactions(facts: Facts) -> Rows:
    found: dict[str, dict[str, Any]] = {}

    def row_of(topic_id: str) -> dict[str, Any]:
        numbers = [one.name for one in TABLES["transactions"].columns if one.kind == "number"]
        empty = {"topic": facts.name(topic_id), "oldest_open_ms": None}
        return found.setdefault(topic_id, empty | dict.fromkeys(numbers, 0))

    for row in _of(facts.first, "marker"):
        row_of(row["name"])["commits" if row["number"] else "aborts"] += row["batches"]
    for row in _of(facts.counts, "transactional"):
        row_of(row["name"]).update(_written_objects(row) | {"aborted_bytes": row["part_bytes"]})
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for row in (*_of(facts.first, "end"), *_of(facts.counts, "end")):
        place = row["name"], row["number"]
        ends[place] = max(ends[place], row["highest"])
    began = {_key(row): row["lowest"] for row in _of(facts.counts, "begun_at")}
    for row in _open_transactions(facts):
        topic = row_of(row["name"])
        topic["open"] += 1
        lag = ends[row["name"], row["number"]] - row["lowest"]
        topic["stable_lag"] = max(topic["stable_lag"], lag)
        since, oldest = began[_key(row)], topic["oldest_open_ms"]
        topic["oldest_open_ms"] = since if oldest is None else min(since, oldest)
    return [row for _, row in sorted(found.items(), key=lambda item: (-item[1]["bytes"], item[0]))]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("name", "number", "level", "time_ms"))


def _open_transactions(facts: Facts) -> Rows:
    """Return the last transaction of each producer in each partition that no marker has ended."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in _of(facts.counts, "begun"):
        key = _key(row)[:3]
        if key not in last or row["time_ms"] > last[key]["time_ms"]:
            last[key] = row
    ended = {_key(row)[:3]: row["highest"] for row in _of(facts.first, "ended")}
    starts = {(row["name"], row["number"]): row["highest"]
              for row in _of(facts.first, "log_start")}  # fmt: skip
    return [
        row for key, row in last.items()
        if row["time_ms"] > ended.get(key, -1) and starts.get(key[:2], 0) != GONE
    ]  # fmt: skip


def _broker_objects(facts: Facts) -> Rows:
    return [
        {"broker_id": row["number"], **{k: row[k] for k in ("time_ms", "objects", "bytes")}}
        for row in _of(facts.counts, "broker")
    ]


def _sizes(facts: Facts) -> Rows:
    rows = []
    for what, count in (("batch", "batches"), ("object", "objects")):
        level, counts, sizes = _columns(facts.counts, f"{what}_size", "level", count, "bytes")
        exponent = np.frexp(np.maximum(level, 1).astype(np.float64))[1] - 1
        for power in np.unique(exponent).tolist():
            here = exponent == power
            rows.append(
                {
                    "what": what,
                    "at_least": 1 << power,
                    "count": int(counts[here].sum()),
                    "bytes": int(sizes[here].sum()),
                }
            )
    return rows


def _fan_in(facts: Facts) -> Rows:
    return [
        {"topics": row["number"], "partitions": row["level"], "objects": row["objects"]}
        for row in _of(facts.counts, "fan_in")
    ]


def commit_latency(facts: Facts) -> Rows:
    """Return percentiles of commit latency: a row of the whole window, then one of each bucket."""
    time, level, counts = _columns(facts.counts, "latency", "time_ms", "level", "batches")

    def row(time_ms: int | None, here: Any) -> dict[str, Any]:
        good = here & (level >= 0) & (level < BACKDATED_MS)
        found = percentiles(level[good], counts[good], (50, 90, 99, 99.9))
        names = ("p50_ms", "p90_ms", "p99_ms", "p999_ms")
        numbers = {
            "batches": int(counts[here].sum()),
            "negative": int(counts[here & (level < 0)].sum()),
            "backdated": int(counts[here & (level >= BACKDATED_MS)].sum()),
        }
        return {"time_ms": time_ms, **numbers, **dict(zip(names, found, strict=True))}

    if not len(time):
        return []
    buckets = [row(int(one), time == one) for one in np.unique(time)]
    return [row(None, np.ones(len(time), np.bool_)), *buckets]


def _outcomes(facts: Facts) -> Rows:
    def name(code: int) -> str:
        if code in (0, DUPLICATE):
            return "duplicate" if code else "stored"
        return ErrorCode(code).name if code in set(ErrorCode) else f"error {code}"

    rows = _of(facts.counts, "outcome")
    return [
        {"outcome": name(row["number"]), "batches": row["batches"], "bytes": row["bytes"]}
        for row in sorted(rows, key=lambda row: (row["number"] != 0, -row["batches"]))
    ]


# --- live and dead bytes ------------------------------------------------------------------------


def _object_ages(facts: Facts) -> Rows:
    counted = {(row["level"], row["label"]): row for row in _of(facts.counts, "rot")}
    rows = []
    for number, (age, _) in enumerate(AGES):
        for status in (LIVE, PINNED, FREE):
            row = counted.get((number, status), {})
            rows.append(
                {
                    "age": age,
                    "age_class": number,
                    "status": status,
                    "objects": row.get("objects", 0),
                    "bytes": row.get("bytes", 0),
                    "live_bytes": row.get("part_bytes", 0),
                }
            )
    return rows


def _costs(facts: Facts) -> Rows:
    rot = _of(facts.counts, "rot")
    live = sum(row["part_bytes"] for row in rot)
    pinned = sum(row["bytes"] - row["part_bytes"] for row in rot if row["label"] == PINNED)
    free = sum(row["bytes"] for row in rot if row["label"] == FREE)
    framing = sum(row["bytes"] for row in _of(facts.counts, "framing"))
    prices = facts.prices
    kept = {
        "live bytes": live,
        "dead bytes in objects that are kept": pinned,
        "objects that wait for their deletion": free,
        "footers of objects": framing,
    }
    rows: Rows = [
        {"item": item, "quantity": float(n), "unit": "bytes", "amount": prices.month(n)}
        for item, n in kept.items()
    ]
    puts = sum(row["objects"] for row in _of(facts.counts, "broker")) / facts.months
    rows.append(
        {
            "item": "uploads of objects",
            "quantity": puts,
            "unit": "requests",
            "amount": puts / 1000 * prices.put_per_1000,
        }
    )
    return rows


def puts_at(facts: Facts, interval_ms: int) -> float:
    """Estimate the number of uploads in the window at a commit interval of `interval_ms`.

    A broker's object closes an interval after its first batch came; what lies between that and the
    next first batch stays as it was. Where objects came faster than the interval, several
    coordinators or full buffers closed them: there the number goes with the interval. Full buffers
    are the bound below, or what there was if that was less.
    """
    number, time, objects, sizes = _columns(
        facts.counts, "broker", "number", "time_ms", "objects", "bytes"
    )
    width = np.minimum(facts.window.width_ms, facts.window.last_ms + 1 - time)
    width = np.maximum(width, 1)
    apart = width / np.maximum(objects, 1)
    now = facts.commit_interval_ms
    idle = apart - now
    slow = width / (interval_ms + np.maximum(idle, 0))
    fewer = np.where(idle >= 0, slow, objects * now / interval_ms)
    full = np.minimum(objects, sizes / facts.buffer_bytes)
    return float(np.maximum(fewer, full).sum()) if len(number) else 0.0


def _what_if(facts: Facts) -> Rows:
    sizes = sum(row["bytes"] for row in _of(facts.counts, "broker"))
    rows = []
    for interval in sorted(
        {max(1, round(facts.commit_interval_ms * factor)) for factor in INTERVALS}
    ):
        objects = puts_at(facts, interval)
        a_month = objects / facts.months
        rows.append(
            {
                "commit_interval_ms": interval,
                "current": interval == facts.commit_interval_ms,
                "puts_per_month": a_month,
                "amount": a_month / 1000 * facts.prices.put_per_1000,
                "object_bytes": sizes / objects if objects else 0.0,
            }
        )
    return rows


def _upload_amount(facts: Facts) -> float:
    amount: float = _costs(facts)[-1]["amount"]
    return amount


def _topic_costs(facts: Facts) -> Rows:
    return topic_costs(_topics(facts), _upload_amount(facts), facts.prices)


def _reads(facts: Facts) -> Rows:
    totals: dict[str, dict[str, Any]] = {}
    for row in _of(facts.counts, "run"):
        empty = dict.fromkeys(("runs", "bytes", "small_runs", "small_bytes"), 0)
        one = totals.setdefault(row["name"], {"topic": facts.name(row["name"]), **empty})
        one["runs"] += row["batches"]
        one["bytes"] += row["bytes"]
        one["small_runs"] += row["objects"]
        one["small_bytes"] += row["part_bytes"]
    return reads([one for one in totals.values() if one["runs"]], facts.prices)


def _forecast(facts: Facts) -> Rows:
    seconds = facts.months * MONTH_MS / 1000
    return forecast(_topics(facts), seconds, _upload_amount(facts), facts.prices)


def _history(facts: Facts) -> Rows:
    rot = _of(facts.counts, "rot")
    live = sum(row["part_bytes"] for row in rot)
    days = facts.months * MONTH_MS / DAY_MS
    now = {
        "as_of_ms": facts.now_ms,
        "live_bytes": live,
        "dead_bytes": sum(row["bytes"] for row in rot) - live,
        "objects": sum(row["objects"] for row in rot),
        "runs": sum(row["batches"] for row in _of(facts.counts, "run")),
        "written_per_day": sum(row["bytes"] for row in _of(facts.counts, "partition")) / days,
        "amount": sum(row["amount"] for row in _costs(facts)),
        "currency": facts.prices.currency,
    }
    return [*map(dict, facts.earlier), now]


# --- the cluster, and the logs themselves -------------------------------------------------------


def _brokers(facts: Facts) -> Rows:
    start = facts.window.start_ms
    return [
        {
            "broker_id": episode.broker_id,
            "state": episode.state,
            "from_ms": max(episode.from_ms, start),  # a checkpoint has no times of its own
            "to_ms": episode.to_ms if episode.to_ms is None else max(episode.to_ms, start),
        }
        for episode in facts.history.all_episodes()
    ]


def _leaders(facts: Facts) -> Rows:
    leaders = facts.history.leaders()
    return [
        {"broker_id": broker_id, "partitions": leaders[broker_id]} for broker_id in sorted(leaders)
    ]


def _cluster_changes(facts: Facts) -> Rows:
    return [
        {"time_ms": time_ms, "what": what, "count": count}
        for (time_ms, what), count in sorted(facts.history.changes.items())
    ]


def _epochs(facts: Facts) -> Rows:
    return [
        {
            "log": log_name(row["number"]),
            "epoch": row["level"],
            "records": row["records"],
            "first_ms": row["lowest"],
            "last_ms": row["highest"],
        }
        for row in _of(facts.first, "epoch")
    ]


def _chunks(facts: Facts) -> Rows:
    names = ("topic", "partition", "start_offset", "end_offset")
    return [
        {name: getattr(chunk, name) for name in names} | {"replicas": list(chunk.replicas)}
        for chunk in facts.history.chunks()
    ]


def _log_growth(facts: Facts) -> Rows:
    return [
        {
            "log": log_name(row["number"]),
            "time_ms": row["time_ms"],
            "type": row["name"],
            "records": row["records"],
            "bytes": row["bytes"],
        }
        for row in _of(facts.first, "log")
        if row["label"] == "log"
    ]


def _objects_kept(facts: Facts) -> Rows:
    committed: dict[int, int] = defaultdict(int)
    for row in _of(facts.counts, "broker"):
        committed[row["time_ms"]] += row["objects"]
    removed = {row["time_ms"]: row["objects"] for row in _of(facts.counts, "removed_in")}
    held = sum(row["objects"] for row in _of(facts.counts, "framing"))
    rows = []
    for time_ms in reversed(facts.window.starts()):
        came, went = committed.get(time_ms, 0), removed.get(time_ms, 0)
        rows.append({"time_ms": time_ms, "committed": came, "removed": went, "held": held})
        held -= came - went
    return rows[::-1]


def _checkpoints(facts: Facts) -> Rows:
    names = ("log", "end_offset", "epoch", "size_bytes", "time_ms")
    return [{name: getattr(checkpoint, name) for name in names} for checkpoint in facts.checkpoints]


_BUILD: Final[Mapping[str, Callable[[Facts], Rows]]] = {
    "topics": _topics,
    "topic_throughput": _topic_throughput,
    "producer_throughput": _producer_throughput,
    "partitions": _partitions,
    "transactions": _transactions,
    "broker_objects": _broker_objects,
    "sizes": _sizes,
    "fan_in": _fan_in,
    "commit_latency": commit_latency,
    "outcomes": _outcomes,
    "object_ages": _object_ages,
    "costs": _costs,
    "topic_costs": _topic_costs,
    "what_if": _what_if,
    "reads": _reads,
    "forecast": _forecast,
    "history": _history,
    "brokers": _brokers,
    "leaders": _leaders,
    "cluster_changes": _cluster_changes,
    "epochs": _epochs,
    "chunks": _chunks,
    "log_growth": _log_growth,
    "objects_kept": _objects_kept,
    "checkpoints": _checkpoints,
}
assert _BUILD.keys() == TABLES.keys(), "every table has a builder"
