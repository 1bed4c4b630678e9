"""Judges retention plans made outside, row by row, by the present state.

A plan was made from what its maker read: the log of a replica that lags, an archive, or, worst, the
copy of a cluster that was restored since and has other data at the same offsets. So a row is only a
request. It is refused where the topic is gone, or where its settings keep more than the plan
assumed or forbid external retention; and its log start moves as far as this coordinator's own runs
allow: by time no further than the first run that is not too old, by size only if enough is left. So
no plan removes what our own enforcement would keep.

The trap is the price: a row by time costs one look-up, however many runs go, for the greatest times
of many runs stand beside them (`Runs.first_run_since`). Sizes have to be added up. So in a request
for more runs than `maintenance_limit`, one row goes part of its way, and says how far, and the rows
behind it are not decided (COORDINATOR_NOT_AVAILABLE); a repeated request gets further.

One approximation remains. Records without a time count from their commit, and commits are looked at
only for the last run that a row removes: those before it were committed earlier.

Source: docs/design/batch-coordinator.md#retention,
docs/design/batch-coordinator.md#plans-are-judged-by-the-runs-there-are.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from coordinator.batch.cluster_view import Enforcer
from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.decide.log_start import BY_TIME, NewLogStart, decide_retention
from coordinator.batch.reads import AppliedState, find_log_id, log_ends
from coordinator.batch.runs import Run
from coordinator.batch.settings import MAX_RETENTION_ROWS
from coordinator.batch.state import LogId, Tables
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import ApplyRetentionRequest, ApplyRetentionResponse

PLAN_LASTS_MS: Final = 3_600_000
"""Longest time from the moment that a plan counts ages from to its expiry. A plan that lasts longer
comes from a clock ahead of ours: it would not expire in time."""

CLOCKS_DIFFER_MS: Final = 300_000
"""The most that a plan's clock may be ahead of the leader's."""


def decide_apply_retention(
    request: ApplyRetentionRequest, tables: Tables, applied: AppliedState, context: Context
) -> Decision[ApplyRetentionResponse]:
    """Move log starts as an external retention plan says, as far as topic settings allow.

    A plan that is expired or another cluster's is refused as a whole.
    """
    rows = [
        NewLogStart(
            topic.topic_id, one.partition_index, one.log_start_offset, one.reason, one.limit
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    whole = _whole_refusal(request, len(rows), context)
    if whole is None:
        judge = _Judge(tables, applied, context)
        judged = [judge.judged(row) for row in rows]
        bounded = [row for row, _ in judged]
        decided = decide_retention(bounded, tables, context, Enforcer.EXTERNAL)
        records = decided.records
        answered = [
            _row_result(row, code or kept, tables)
            for (row, kept), code in zip(judged, decided.response, strict=True)
        ]
    else:
        records, answered = (), [_row_result(row, whole, tables) for row in rows]
    answers = iter(answered)
    topics = tuple(
        ApplyRetentionResponse.Topic(
            topic_id=topic.topic_id,
            partitions=tuple(next(answers) for _ in topic.partitions),
        )
        for topic in request.topics
    )
    return Decision(records, ApplyRetentionResponse(responses=topics))


def _whole_refusal(request: ApplyRetentionRequest, rows: int, context: Context) -> ErrorCode | None:
    if request.cluster_id != context.settings.keys.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if not 0 < request.expires_at_ms - context.now_ms <= PLAN_LASTS_MS + CLOCKS_DIFFER_MS:
        return ErrorCode.INVALID_TIMESTAMP
    return ErrorCode.INVALID_REQUEST if rows > MAX_RETENTION_ROWS else None


def _row_result(
    row: NewLogStart, code: int, tables: Tables
) -> ApplyRetentionResponse.Topic.Partition:
    log = log_ends(tables, row.topic_id, row.partition)
    log_start = -1 if code or log is None else max(log[0], row.log_start_offset)
    return ApplyRetentionResponse.Topic.Partition(
        partition_index=row.partition, error_code=code, low_watermark=log_start
    )


class _Judge:
    """Judges how far each row of one request may go, by the runs that there are."""

    def __init__(self, tables: Tables, applied: AppliedState, context: Context) -> None:
        self._tables = tables
        self._applied = applied
        self._context = context
        self._left = context.settings.maintenance_limit  # runs that may yet be added up

    def judged(self, row: NewLogStart) -> tuple[NewLogStart, ErrorCode]:
        """Limit a plan row's log start by the retention settings; return the row and its error."""
        log_id = find_log_id(self._tables, row.topic_id, row.partition)
        config = self._context.view.topic_config(row.topic_id)
        log = None if isinstance(log_id, ErrorCode) else self._tables.logs.get(log_id)
        there = None if isinstance(log_id, ErrorCode) else self._applied.logs.get(log_id)
        if isinstance(log_id, ErrorCode) or log is None or there is None or config is None:
            return row, ErrorCode.NONE  # refused for that
        if not log[0] < row.log_start_offset <= log[1]:
            return row, ErrorCode.NONE  # refused, or true already
        wanted = min(row.log_start_offset, there[1])
        if row.reason == BY_TIME:
            end = self._by_time(log_id, log[0], wanted, config.retention_ms)
        elif self._left == 0 or self._applied.run_totals(log_id) is None:
            return row._replace(log_start_offset=log[0]), ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            end = self._by_size(log_id, there[0], wanted, config.retention_bytes)
        kept = ErrorCode.NONE if end > log[0] else ErrorCode.POLICY_VIOLATION
        return row._replace(log_start_offset=max(log[0], end)), kept

    def _by_time(self, log_id: LogId, log_start: int, end: int, retention_ms: int | None) -> int:
        """Return the end offset of the oldest runs of batches that exceed retention.ms.

        At most `end`.
        """
        if retention_ms is None:
            return log_start
        since_ms = self._context.deletion_ms - retention_ms
        young = self._applied.first_run_since(log_id, since_ms, log_start)
        if young is not None:
            end = min(end, young.base_offset)
        last = self._last_run(log_id, log_start, end)
        if last is None or (last.max_timestamp < 0 and last.appended_at_ms >= since_ms):
            return log_start
        return last.last_offset + 1

    def _last_run(self, log_id: LogId, log_start: int, end: int) -> Run | None:
        """Return the last run of batches between the log start and `end`, or None if none is."""
        while end > log_start:
            run = next(iter(self._applied.runs_from(log_id, end - 1)), None)
            if run is None or run.last_offset < end:
                return run
            end = run.base_offset  # the next one ends there
        return None

    def _by_size(self, log_id: LogId, begin: int, end: int, retention_bytes: int | None) -> int:
        """Return the end offset of the oldest runs whose deletion leaves retention.bytes or more.

        Else returns the log start.

        Only as many runs are looked at as this request may still add up.

        Args:  begin: the applied log start.
        """
        totals = self._applied.run_totals(log_id)
        if totals is None or retention_bytes is None:
            return begin
        left, log_start = totals[1], begin
        for run in islice(self._applied.runs_from(log_id, begin), self._left):
            if run.last_offset >= end:
                break
            self._left -= 1
            left -= run.byte_size
            begin = run.last_offset + 1
        return begin if left >= retention_bytes else log_start
