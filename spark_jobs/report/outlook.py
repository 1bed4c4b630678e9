"""Computes what owners ask next: costs by topic, GETs of readers, and growth.

    topic_costs(topics, upload_amount, prices)
    forecast(topics, seconds, upload_amount, prices)

A forecast takes the window's rate of writing and the topics' limits as they are. A topic with
retention.ms moves in that time to its rate times its retention; one without limits grows by its
rate. Dead bytes keep their ratio to live ones.

Source: docs/report.md#the-figures; docs/design/compaction.md (small runs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from records.final_batches import MAX_RUN_BYTES
from spark_jobs.prices import Prices

Rows = list[dict[str, Any]]

DAY_MS: Final = 86_400_000
DAYS: Final = (0, 7, 30, 90, 180, 365)
"""Days ahead of a forecast."""

MIB: Final = 1 << 20


def topic_costs(topics: Sequence[Mapping[str, Any]], upload_amount: float, prices: Prices) -> Rows:
    """Return the costs of a month of each topic that has any, the most expensive first.

    Args:    topics: rows of the table of topics.
             upload_amount: cost of all uploads of a month; an object is shared, so topics share it
                 by the bytes that they wrote.
    """
    written = sum(topic["bytes"] for topic in topics)
    rows = []
    for topic in topics:
        live, dead = prices.month(topic["live_bytes"]), prices.month(topic["dead_bytes"])
        uploads = upload_amount * topic["bytes"] / written if written else 0.0
        if amount := live + dead + uploads:
            rows.append(
                {
                    "topic": topic["topic"],
                    "live_amount": live,
                    "dead_amount": dead,
                    "upload_amount": uploads,
                    "amount": amount,
                }
            )
    return sorted(rows, key=lambda row: (-row["amount"], row["topic"]))


def reads(runs: Iterable[Mapping[str, Any]], prices: Prices) -> Rows:
    """Return what a consumer of each topic needs to read it once, most GETs first.

    Args:    runs: topic; its live runs and bytes; the small ones among them, and their bytes.
    """
    rows = []
    for one in runs:
        merged = one["runs"] - one["small_runs"] + -(-one["small_bytes"] // MAX_RUN_BYTES)
        rows.append(
            {
                **one,
                "merged_runs": merged,
                "gets_per_mib": one["runs"] * MIB / one["bytes"] if one["bytes"] else 0.0,
                "amount": one["runs"] / 1000 * prices.get_per_1000,
            }
        )
    return sorted(rows, key=lambda row: (-row["runs"], row["topic"]))


def forecast(
    topics: Sequence[Mapping[str, Any]], seconds: float, upload_amount: float, prices: Prices
) -> Rows:
    """Return the bytes and costs after some days, if writing goes on as it did.

    Args:    topics: rows of the table of topics.
             seconds: length of the window in which they wrote their bytes.
    """
    live_now = sum(topic["live_bytes"] for topic in topics)
    dead_now = sum(topic["dead_bytes"] for topic in topics)
    rows = []
    for days in DAYS:
        live = sum(_live_after(topic, seconds, days * DAY_MS) for topic in topics)
        dead = round(dead_now * live / live_now) if live_now else dead_now
        rows.append(
            {
                "days": days,
                "live_bytes": live,
                "dead_bytes": dead,
                "amount": prices.month(live + dead) + upload_amount,
            }
        )
    return rows


def _live_after(topic: Mapping[str, Any], seconds: float, ms: int) -> int:
    """Return a topic's live bytes after `ms` more milliseconds.

    >>> topic = {"live_bytes": 50, "bytes": 10, "partitions": 1, "deleted": False,
    ...          "retention_ms": 10_000, "retention_bytes": -1}
    >>> [_live_after(topic, 1, ms) for ms in (0, 5_000, 10_000, 60_000)]
    [50, 75, 100, 100]
    >>> _live_after(topic | {"retention_bytes": 80}, 1, 60_000)
    80
    >>> _live_after(topic | {"retention_ms": -1}, 1, 60_000)
    650
    """
    live: float = topic["live_bytes"]
    if topic["deleted"] or topic["retention_ms"] is None:
        return round(live)
    per_ms: float = topic["bytes"] / seconds / 1000
    retention_ms, most = topic["retention_ms"], topic["retention_bytes"]
    if retention_ms < 0:
        live += per_ms * ms
    else:
        part = min(1.0, ms / retention_ms) if retention_ms else 1.0
        live += (per_ms * retention_ms - live) * part
    if most is not None and most >= 0:
        live = min(live, most * topic["partitions"])
    return round(live)
