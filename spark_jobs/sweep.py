"""A sweep of a whole cluster, read from one replica's directory.

    plan = make_plan(Path("/var/lib/esker"), {"__cluster_metadata-0": 812, ...}, now_ms=now)

What the replica holds of the logs is read as far as it is committed, which only the quorum can say;
a replica that lags gives an older plan, and an older plan is a smaller one, never a wrong one.

Source: DESIGN §10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from raft.segments.files import RealFileSystem
from raft.segments.properties import read_meta_properties
from spark_jobs.log_files import LogFiles, LostRangeError
from spark_jobs.plan_file import Effect, Plan, PlanRow
from spark_jobs.retention import effect_of, plan_rows
from spark_jobs.state import state_at
from spark_jobs.topics import topics_at

CLUSTER_METADATA: Final = "__cluster_metadata-0"
DISKLESS_METADATA: Final = "__diskless-metadata-"


class ReplicaError(Exception):
    """A directory that cannot be read from. One sentence naming it."""


READING_ERRORS: Final = (ReplicaError, LostRangeError)
"""What reading a replica may raise besides damage and what the disk says."""


def logs_of(log_dir: Path) -> list[str]:
    """The logs that a sweep reads: the cluster's, and each coordinator's. Raises OSError."""
    return [CLUSTER_METADATA, *(f"{DISKLESS_METADATA}{n}" for n in coordinators_of(log_dir))]


def coordinators_of(log_dir: Path) -> list[int]:
    """The partitions of `__diskless-metadata` that a replica's directory has. Raises OSError."""
    names = (path.name for path in log_dir.iterdir() if path.is_dir())
    numbers = (name.removeprefix(DISKLESS_METADATA) for name in names if DISKLESS_METADATA in name)
    return sorted(int(number) for number in numbers if number.isdecimal())


def make_plan(
    log_dir: Path,
    high_watermarks: Mapping[str, int],
    *,
    now_ms: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """What retention would remove, as of what this replica holds.

    Args:    high_watermarks: of each log, from whoever leads it; exclusive.
             now_ms: ms since 1970, that ages are counted from.
             progress: told the log that is read next.
    Raises:  ReplicaError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    try:
        meta = read_meta_properties(RealFileSystem(), log_dir)
    except FileNotFoundError:
        raise ReplicaError(f"{log_dir} is no log directory of a node: no meta.properties") from None
    read: dict[str, int] = {}

    def committed(name: str) -> tuple[LogFiles, int]:
        if name not in high_watermarks:
            raise ReplicaError(f"{log_dir}: how much of {name} is committed is not known")
        log = LogFiles(log_dir / name)
        read[name] = min(log.end_offset(), high_watermarks[name])
        progress(name)
        return log, read[name]

    topics = topics_at(*committed(CLUSTER_METADATA))
    rows: list[PlanRow] = []
    effects: dict[int, Effect] = {}
    for coordinator in coordinators_of(log_dir):
        state = state_at(*committed(f"{DISKLESS_METADATA}{coordinator}"))
        found = plan_rows(state, topics, coordinator=coordinator, now_ms=now_ms)
        effects[coordinator] = effect_of(state, found)
        rows += found
    return Plan(meta.cluster_id, now_ms, read, rows, effects)
