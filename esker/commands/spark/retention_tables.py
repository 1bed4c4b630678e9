"""Formats a retention plan: removed runs, freed objects, pinned bytes, and their costs.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from esker.commands.text_tables import table
from spark_jobs.plans.retention_plan import Effect, Plan, PlanRow
from spark_jobs.prices import Prices

SHOWN_ROWS: Final = 20
SHOWN_TOPICS: Final = 5
REASONS: Final = {1: "retention.ms", 2: "retention.bytes"}

_ROWS: Final = (
    "Topic", "Partition", "LogStart", "NewLogStart", "Runs", "BytesBefore", "BytesAfter", "Because",
)  # fmt: skip


def plan_lines(made: Plan, prices: Prices) -> Iterator[str]:
    """Yield the lines and tables of text that describe a retention plan."""
    made_at = datetime.fromtimestamp(made.now_ms / 1000, UTC).isoformat(timespec="seconds")
    yield f"Plan {made.plan_id} of cluster {made.cluster_id}, as of {made_at}"
    if not made.rows:
        yield "Nothing to remove."
    else:
        rows = sorted(made.rows, key=lambda row: -row.bytes)[:SHOWN_ROWS]
        yield table(_ROWS, [_cells(row) for row in rows])
        if len(made.rows) > len(rows):
            yield f"... and {len(made.rows) - len(rows)} more"
    for number, effect in sorted(made.effects.items()):
        yield from _effect_lines(number, effect, prices)
    yield f"Prices: {prices.source}, {prices.gb_month:g} {prices.currency} per GB and month"


def _cells(row: PlanRow) -> tuple[str, ...]:
    return (
        row.topic, str(row.partition), str(row.old_log_start), str(row.new_log_start),
        f"{row.runs} of {row.runs_before}", str(row.bytes_before),
        str(row.bytes_before - row.bytes), f"{REASONS[row.reason]}={row.limit}",
    )  # fmt: skip


def _effect_lines(number: int, effect: Effect, prices: Prices) -> Iterator[str]:
    share = effect.removed_bytes / effect.live_bytes if effect.live_bytes else 0
    yield (
        f"Coordinator {number}: {effect.removed_bytes} of {effect.live_bytes} live bytes go "
        f"({share:.2%}); {effect.objects_freed} objects of {effect.freed_bytes} bytes become free, "
        f"{prices.text(prices.month(effect.freed_bytes))} a month"
    )
    if not effect.pinned_bytes:
        return
    yield (
        f"  {effect.pinned_bytes} dead bytes stay, {prices.text(prices.month(effect.pinned_bytes))}"
        " a month; they are pinned by"
    )
    most = list(effect.pinned_by.items())[:SHOWN_TOPICS]
    cells = [(name, str(size), prices.text(prices.month(size))) for name, size in most]
    for line in table(("Topic", "DeadBytes", "PerMonth"), cells).splitlines():
        yield f"  {line}"
    if len(effect.pinned_by) > len(most):
        yield f"  ... and {len(effect.pinned_by) - len(most)} more topics"


def plan_json(made: Plan, prices: Prices) -> Mapping[str, Any]:
    """Return a retention plan as a JSON document."""
    return {
        "plan_id": made.plan_id,
        "cluster_id": made.cluster_id,
        "now_ms": made.now_ms,
        "expires_at_ms": made.expires_at_ms,
        "logs": dict(made.logs),
        "rows": [row._asdict() for row in made.rows],
        "effects": {str(number): asdict(effect) for number, effect in made.effects.items()},
        "per_month": {
            str(number): {
                "freed": prices.month(effect.freed_bytes),
                "pinned": prices.month(effect.pinned_bytes),
            }
            for number, effect in made.effects.items()
        },
        "prices": asdict(prices),
    }
