"""A sweep of a whole cluster: what retention would remove, by the local engine.

    plan = make_plan(ReplicaLogs(Path("/var/lib/esker"), {...}), now_ms=now)

A replica that lags gives an older plan, and an older plan is a smaller one, never a wrong one.

Source: DESIGN §10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_jobs.log_files import LostRangeError
from spark_jobs.logs import (
    CLUSTER_METADATA,
    DISKLESS_METADATA,
    Log,
    Logs,
    LogsError,
    ReplicaLogs,
    coordinators_of,
    logs_in,
)
from spark_jobs.plan_file import Effect, Plan, PlanRow
from spark_jobs.retention import effect_of, plan_rows
from spark_jobs.state import state_at
from spark_jobs.topics import topics_at

__all__ = ["READING_ERRORS", "ReplicaLogs", "logs_in", "make_plan"]

READING_ERRORS: Final = (LogsError, LostRangeError)
"""What reading logs may raise besides damage and what the disk says."""


def make_plan(logs: Logs, *, now_ms: int, progress: Callable[[str], None] = lambda _: None) -> Plan:
    """What retention would remove, as of what can be read.

    Args:    now_ms: ms since 1970, that ages are counted from.
             progress: told the log that is read next.
    Raises:  LogsError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    read: dict[str, int] = {}

    def committed(name: str) -> tuple[Log, int]:
        progress(name)
        log = logs.log(name)
        read[name] = log.end_offset()
        return log, read[name]

    topics = topics_at(*committed(CLUSTER_METADATA))
    rows: list[PlanRow] = []
    effects: dict[int, Effect] = {}
    for coordinator in coordinators_of(logs):
        state = state_at(*committed(f"{DISKLESS_METADATA}{coordinator}"))
        found = plan_rows(state, topics, coordinator=coordinator, now_ms=now_ms)
        effects[coordinator] = effect_of(state, found)
        rows += found
    return Plan(logs.cluster_id, now_ms, read, rows, effects)
