"""The coordinator's own retention: which log starts should move, a bounded look at a time.

A pass looks at the oldest runs of some partitions and lets the planner compute; whether the result
still holds is judged by `decide.decide_retention`, like anybody's plan. It runs between commits,
never inside one.

Source: DESIGN §7, Retention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol
from uuid import UUID

import numpy as np

from coordinator.decide.base import Context
from coordinator.decide.log_start import BY_TIME, NewLogStart
from coordinator.planner import NOTHING, UNLIMITED, plan_retention
from coordinator.planner import Runs as Columns
from coordinator.reads import Runs, find_log_id
from coordinator.state import LogId, Tables
from coordinator.view import Enforcer, TopicConfig


class Sized(Runs, Protocol):
    """Runs whose bytes are known in total."""

    def run_totals(self, log_id: LogId) -> tuple[int, int]:
        """How many live runs a partition has, and their bytes."""


def plan_pass(
    partitions: Iterable[tuple[UUID, int]], tables: Tables, runs: Sized, context: Context
) -> list[NewLogStart]:
    """New log starts of these partitions, from at most `sweep_limit` runs in all.

    Args:  tables, runs: applied state.
    """
    left = context.settings.sweep_limit
    looked_at: list[tuple[UUID, int, TopicConfig, int]] = []
    rows: list[tuple[int, int, int]] = []
    bounds, totals = [0], []
    for topic_id, partition in partitions:
        config = context.view.topic_config(topic_id)
        log_id = find_log_id(tables, topic_id, partition)
        log = tables.logs.get(log_id)
        if config is None or log is None or not _limited(config) or left <= 0 or log[0] == log[1]:
            continue
        oldest = [
            (run.last_offset, run.max_timestamp, run.byte_size)
            for run in islice(runs.runs_from(log_id, log[0]), left)
        ]
        left -= len(oldest)
        rows += oldest
        bounds.append(len(rows))
        totals.append(runs.run_totals(log_id)[1])
        looked_at.append((topic_id, partition, config, log[0]))
    if not looked_at:
        return []
    lasts, times, sizes = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    plan = plan_retention(
        Columns(lasts, times, sizes),
        bounds,
        log_start_offsets=[log_start for _, _, _, log_start in looked_at],
        total_bytes=totals,
        retention_ms=_limits(config.retention_ms for _, _, config, _ in looked_at),
        retention_bytes=_limits(config.retention_bytes for _, _, config, _ in looked_at),
        now_ms=context.now_ms,
    )
    found = []
    for asked, offset, reason in zip(
        looked_at, plan.log_start_offsets.tolist(), plan.reasons.tolist(), strict=True
    ):
        topic_id, partition, config, _ = asked
        limit = config.retention_ms if reason == BY_TIME else config.retention_bytes
        if reason != NOTHING and limit is not None:
            found.append(NewLogStart(topic_id, partition, offset, reason, limit))
    return found


def _limited(config: TopicConfig) -> bool:
    if config.enforcer is Enforcer.EXTERNAL:
        return False
    return config.retention_ms is not None or config.retention_bytes is not None


def _limits(values: Iterable[int | None]) -> Sequence[int]:
    return [UNLIMITED if value is None else value for value in values]
