"""The same retention plan by others, from Parquet files of runs: DuckDB, pandas, NumPy.

Each gives the new log start of every partition, 0 where nothing goes. The rule is ours: the oldest
prefix of runs that are all too old, or the oldest prefix whose removal leaves what is to be kept,
whichever is longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from bench.retention_log import NOW_MS, PARTITIONS_OF_TOPIC, World
from coordinator.batch.retention_planner import NOTHING, Runs, plan_retention

THREADS: Final = 2

Starts = npt.NDArray[np.int64]


class Limits:
    """What each partition keeps; -1: everything."""

    def __init__(self, world: World) -> None:
        self.keep_ms = np.repeat(world.retention_ms, PARTITIONS_OF_TOPIC)
        self.keep_bytes = np.repeat(world.retention_bytes, PARTITIONS_OF_TOPIC)

    def table(self) -> pa.Table:
        """Return the limits by partition as an Arrow table, where null means no limit."""
        cutoff = [None if keep < 0 else NOW_MS - keep for keep in self.keep_ms.tolist()]
        keep = [None if keep < 0 else keep for keep in self.keep_bytes.tolist()]
        return pa.table(
            {
                "partition": pa.array(range(len(keep)), pa.int32()),
                "cutoff": pa.array(cutoff, pa.int64()),
                "keep": pa.array(keep, pa.int64()),
            }
        )


WINDOWS: Final = """
with seen as (
    select r.partition, r.last_offset, l.cutoff, l.keep,
        max(r.timestamp) over before as youngest,
        sum(r.byte_size) over before as gone,
        sum(r.byte_size) over (partition by r.partition) as total
    from read_parquet('{runs}') r join limits l using (partition)
    where l.cutoff is not null or l.keep is not null
    window before as (partition by r.partition order by r.last_offset)
)
select partition, max(last_offset) + 1 as log_start from seen
where youngest < cutoff or total - gone >= keep
group by partition
"""

DIGESTS: Final = """
with digests as materialized (
    select partition, filename as piece, sum(byte_size) as size, max(timestamp) as youngest,
        max(last_offset) as last_offset
    from read_parquet('{runs}', filename = true)
    group by partition, filename
), seen as (
    select d.*, l.cutoff, l.keep, max(d.youngest) over before as young,
        sum(d.size) over before as gone, sum(d.size) over (partition by d.partition) as total
    from digests d join limits l using (partition)
    window before as (partition by d.partition order by d.piece)
), crossed as (
    select partition, any_value(cutoff) as cutoff, any_value(keep) as keep,
        any_value(total) as total,
        coalesce(min(piece) filter (not coalesce(young < cutoff, false)), '~') as by_time,
        coalesce(min(piece) filter (not coalesce(total - gone >= keep, false)), '~') as by_size,
        max(last_offset) filter (young < cutoff or total - gone >= keep) as whole
    from seen group by partition
), boundary as (
    select c.*, greatest(by_time, by_size) as piece,
        coalesce((select max(gone) from seen s where s.partition = c.partition
            and s.piece < greatest(by_time, by_size)), 0) as gone_before
    from crossed c where cutoff is not null or keep is not null
), inside as (
    select r.partition, r.last_offset, b.cutoff, b.keep, b.total, b.by_time, b.by_size, b.piece,
        max(r.timestamp) over before as youngest,
        b.gone_before + sum(r.byte_size) over before as gone
    from read_parquet('{runs}', filename = true) r
    join boundary b on r.partition = b.partition and r.filename = b.piece
    window before as (partition by r.partition order by r.last_offset)
), ends as (
    select partition, last_offset from inside
    where (by_time = piece and youngest < cutoff) or (by_size = piece and total - gone >= keep)
    union all
    select partition, whole from crossed where whole is not null
)
select partition, max(last_offset) + 1 as log_start from ends group by partition
"""

EFFECT: Final = """
with used as (
    select r.object_id, sum(r.byte_size) as before,
        sum(r.byte_size) filter (r.last_offset >= s.log_start) as after
    from read_parquet('{runs}') r join starts s using (partition) group by r.object_id
)
select count(*) filter (after is null), sum(o.size_bytes) filter (after is null),
    sum(o.size_bytes - after) from used join read_parquet('{objects}') o using (object_id)
"""


def _connected(**tables: pa.Table) -> Any:
    import duckdb

    connection = duckdb.connect(config={"threads": THREADS})
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def duckdb_starts(runs: Path, limits: Limits, form: str) -> Starts:
    """Return the log starts that DuckDB computes, by one of two forms of query."""
    query = WINDOWS if form == "windows" else DIGESTS
    with _connected(limits=limits.table()) as connection:
        found = connection.execute(query.format(runs=runs / "*.parquet")).fetchnumpy()
    starts = np.zeros(len(limits.keep_ms), np.int64)
    starts[found["partition"]] = found["log_start"]
    return starts


def duckdb_effect(runs: Path, objects: Path, starts: Starts) -> Any:
    """Return the freed objects, their bytes, and the dead bytes of the other objects."""
    table = pa.table({"partition": np.arange(len(starts), dtype=np.int32), "log_start": starts})
    with _connected(starts=table) as connection:
        return connection.execute(
            EFFECT.format(runs=runs / "*.parquet", objects=objects)
        ).fetchall()


def planner_starts(runs: Path, limits: Limits) -> Starts:
    """Return the log starts that the coordinator's planner computes from all runs in memory."""
    table = ds.dataset(runs).to_table(
        columns=["partition", "last_offset", "timestamp", "byte_size"]
    )
    partition = table["partition"].to_numpy().astype(np.uint16)
    order = np.argsort(partition, kind="stable")
    last, times, sizes = (table[name].to_numpy()[order] for name in table.column_names[1:])
    counts = np.bincount(partition, minlength=len(limits.keep_ms))
    bounds = np.concatenate(([0], np.cumsum(counts)))
    summed = np.concatenate(([0], np.cumsum(sizes)))
    plan = plan_retention(
        Runs(last, times, sizes),
        bounds,
        log_start_offsets=np.zeros(len(counts), np.int64),
        total_bytes=summed[bounds[1:]] - summed[bounds[:-1]],
        retention_ms=limits.keep_ms,
        retention_bytes=limits.keep_bytes,
        now_ms=NOW_MS,
    )
    return np.where(plan.reasons != NOTHING, plan.log_start_offsets, 0)


def pandas_starts(runs: Path, limits: Limits) -> Starts:
    """Return the log starts that pandas computes with plain data-frame operations."""
    import pandas as pd

    frame = pd.read_parquet(runs).sort_values(["partition", "last_offset"], kind="stable")
    limited = limits.table().to_pandas().set_index("partition")
    groups = frame.groupby("partition", sort=False)
    frame["youngest"] = groups["timestamp"].cummax()
    frame["gone"] = groups["byte_size"].cumsum()
    frame["total"] = groups["byte_size"].transform("sum")
    cutoff = frame["partition"].map(limited["cutoff"])
    keep = frame["partition"].map(limited["keep"])
    goes = (frame["youngest"] < cutoff) | (frame["total"] - frame["gone"] >= keep)
    found = frame[goes].groupby("partition")["last_offset"].max() + 1
    starts = np.zeros(len(limits.keep_ms), np.int64)
    starts[found.index.to_numpy()] = found.to_numpy()
    return starts
