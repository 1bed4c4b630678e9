"""A retention sweep: what would go, what that frees, and what stands in the way.

The arithmetic is the coordinator's own (`coordinator.planner`), so a plan made here says what the
coordinator would have done. A plan is only for topics whose `esker.retention.enforcer` leaves the
work to somebody outside; and it is a proposal: the coordinator judges every row again when it is
applied.

What operators need most is not in the rows. An object holds batches of many partitions, and goes
only when the last of them does: one topic that keeps its data for a year pins the dead bytes of all
its neighbours. So a plan comes with what it frees, and with who pins how much.

Source: DESIGN §7 (Retention, Deletion), §10; KIP-1163 (objects are shared).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from coordinator.planner import NOTHING, RETENTION_MS, Runs, plan_retention
from spark_jobs.plan_file import Effect, PlanRow
from spark_jobs.state import LogState
from spark_jobs.topics import BOTH, EXTERNAL, TopicSettings

Numbers = npt.NDArray[np.int64]


def plan_rows(
    state: LogState, topics: Mapping[str, TopicSettings], *, coordinator: int, now_ms: int
) -> list[PlanRow]:
    """What retention removes of one coordinator's partitions, by topic id and partition.

    Topics that the cluster log does not know are left alone: they are being deleted, or are newer
    than what was read of it.

    Args:    now_ms: ms since 1970, that ages are counted from.
    """
    partitions = state.partitions.to_pylist()
    counts = np.diff(state.run_bounds)
    mine = np.array(
        [
            row["deleted_at_ms"] is None
            and row["topic_id"] in topics
            and topics[row["topic_id"]].enforcer in (EXTERNAL, BOTH)
            for row in partitions
        ],
        np.bool_,
    )
    kept = np.repeat(mine, counts)
    rows = [row for row, is_mine in zip(partitions, mine, strict=True) if is_mine]
    settings = [topics[row["topic_id"]] for row in rows]
    sizes = _column(state, "byte_size")[kept]
    times = _column(state, "max_timestamp")[kept]
    appended = _column(state, "appended_at_ms")[kept]
    bounds = np.concatenate(([0], np.cumsum(counts[mine]))).astype(np.int64)
    summed = np.concatenate(([0], np.cumsum(sizes)))
    plan = plan_retention(
        Runs(_column(state, "last_offset")[kept], np.where(times < 0, appended, times), sizes),
        bounds,
        log_start_offsets=[row["log_start_offset"] for row in rows],
        total_bytes=summed[bounds[1:]] - summed[bounds[:-1]],
        retention_ms=[one.retention_ms for one in settings],
        retention_bytes=[one.retention_bytes for one in settings],
        now_ms=now_ms,
    )
    found = []
    for i in np.flatnonzero(plan.reasons != NOTHING).tolist():
        row, reason = rows[i], int(plan.reasons[i])
        one = settings[i]
        found.append(
            PlanRow(
                coordinator,
                row["topic_id"],
                row["topic"],
                row["partition"],
                row["log_start_offset"],
                int(plan.log_start_offsets[i]),
                reason,
                one.retention_ms if reason == RETENTION_MS else one.retention_bytes,
                int(plan.removed_runs[i]),
                int(plan.removed_bytes[i]),
            )
        )
    return found


def effect_of(state: LogState, rows: list[PlanRow]) -> Effect:
    """What the rows of this coordinator would do to its objects, if all of them were applied."""
    starts = {(row.topic_id, row.partition): row.new_log_start for row in rows}
    partitions = state.partitions.to_pylist()
    new_starts = np.array(
        [starts.get((one["topic_id"], one["partition"]), 0) for one in partitions], np.int64
    )
    partition = np.repeat(np.arange(len(partitions)), np.diff(state.run_bounds))
    sizes, objects = _column(state, "byte_size"), _column(state, "object_id")
    stays = _column(state, "last_offset") >= new_starts[partition]
    ids = state.objects.column("object_id").to_numpy()
    stored = state.objects.column("size_bytes").to_numpy()
    used_before = state.objects.column("used_bytes").to_numpy()
    used = np.zeros(len(ids), np.int64)
    np.add.at(used, np.searchsorted(ids, objects[stays]), sizes[stays])
    freed = (used_before > 0) & (used == 0)
    dead = np.where(used > 0, stored - used, 0)
    return Effect(
        live_bytes=int(sizes.sum()),
        removed_bytes=int(sizes[~stays].sum()),
        objects_freed=int(freed.sum()),
        freed_bytes=int(stored[freed].sum()),
        pinned_bytes=int(dead.sum()),
        pinned_by=_pinned_by(
            [one["topic"] for one in partitions],
            partition[stays],
            np.searchsorted(ids, objects[stays]),
            dead,
        ),
    )


def _pinned_by(
    topics: list[str], partition: Numbers, place: Numbers, dead: Numbers
) -> dict[str, int]:
    """Topic: the dead bytes of all objects in which it has live runs; most first.

    An object that several topics pin counts for each of them: it goes when the last lets go.
    """
    names = sorted(set(topics))
    code = np.array([names.index(name) for name in topics], np.int64)
    if not len(partition):
        return {}
    pairs = np.unique(np.stack((code[partition], place)), axis=1)
    total = np.bincount(pairs[0], weights=dead[pairs[1]], minlength=len(names)).astype(np.int64)
    found = {name: int(n) for name, n in zip(names, total.tolist(), strict=True) if n}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _column(state: LogState, name: str) -> Numbers:
    values: Numbers = state.runs.column(name).to_numpy()
    return values
