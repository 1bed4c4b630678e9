"""Moving log starts forward: DeleteRecords, and the results of retention.

Retention is computed elsewhere, by a planner that looks at runs; here its result is judged. A row
is refused where the topic is gone, where its settings now keep more than the plan assumed, or where
`esker.retention.enforcer` leaves the work to an external planner. New data never makes a plan
wrong: it makes no old record newer. Plans made outside are trusted less
(`coordinator.batch.decide.plans`).

Source: docs/design/batch-coordinator.md#retention,
docs/design/batch-coordinator.md#plans-are-judged-by-the-runs-there-are; KIP-1164, deleteRecords;
upstream's ReplicaManager.deleteRecords (-1 is the high watermark).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.cluster_view import Enforcer, TopicConfig
from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.settings import MAX_PARTITIONS
from coordinator.batch.state import NO_LOG, Log, Tables
from records.diskless import LogStartOffsetsRecord
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    DeleteDisklessRecordsRequest,
    DeleteDisklessRecordsResponse,
)

ON_REQUEST: Final = 0
BY_TIME: Final = 1
BY_SIZE: Final = 2
BY_PLAN: Final = 3
"""Reasons, as LogStartOffsetsRecord has them."""

_Group = DeleteDisklessRecordsResponse.Topic.Partition
_Topic = DeleteDisklessRecordsResponse.Topic


class NewLogStart(NamedTuple):
    """A row of a retention plan: a partition may begin here, under the settings it assumed."""

    topic_id: UUID
    partition: int
    log_start_offset: int
    reason: int  # BY_TIME or BY_SIZE
    limit: int  # the retention.ms or retention.bytes that was assumed


class _Moves:
    """Log starts that move in one decision, as columns."""

    def __init__(self) -> None:
        self.topic_indexes: dict[UUID, int] = {}
        self.rows: dict[tuple[int, int], int] = {}  # by topic index and partition

    def add(self, topic_id: UUID, partition: int, offset: int) -> None:
        """Set a partition's new log start offset, keeping the greatest of several offsets."""
        index = self.topic_indexes.setdefault(topic_id, len(self.topic_indexes))
        key = (index, partition)
        self.rows[key] = max(offset, self.rows.get(key, 0))

    def records(self, reason: int) -> tuple[LogStartOffsetsRecord, ...]:
        """Return one record with all new log start offsets, or no record if there are none."""
        if not self.rows:
            return ()
        return (
            LogStartOffsetsRecord(
                topic_ids=tuple(self.topic_indexes),
                topic_indexes=tuple(index for index, _ in self.rows),
                partitions=tuple(partition for _, partition in self.rows),
                log_start_offsets=tuple(self.rows.values()),
                reason=reason,
            ),
        )


def find_log(tables: Tables, topic_id: UUID, partition: int) -> Log | ErrorCode:
    """Return log start and high watermark of an undeleted topic's partition, or an error code."""
    topic = tables.topics.get(topic_id)
    if topic is None or topic.deleted_at_ms >= 0:
        return ErrorCode.UNKNOWN_TOPIC_ID
    log_id = topic.log_ids[partition] if 0 <= partition < len(topic.log_ids) else NO_LOG
    log = tables.logs.get(log_id)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else log


def decide_delete_records(
    request: DeleteDisklessRecordsRequest, tables: Tables, _context: Context
) -> Decision[DeleteDisklessRecordsResponse]:
    """Move log start offsets forward to the requested offsets, at most to the high watermark."""
    moves = _Moves()
    answered = []
    seen: set[tuple[UUID, int]] = set()
    for topic in request.topics:
        groups = []
        for requested in topic.partitions:
            key = (topic.topic_id, requested.partition_index)
            if key in seen or len(seen) >= MAX_PARTITIONS:
                groups.append(_refuse(requested.partition_index, ErrorCode.INVALID_REQUEST))
                continue
            seen.add(key)
            log = find_log(tables, *key)
            if isinstance(log, ErrorCode):
                groups.append(_refuse(requested.partition_index, log))
                continue
            log_start, high_watermark = log
            offset = high_watermark if requested.offset == -1 else requested.offset
            if not 0 <= offset <= high_watermark:
                groups.append(_refuse(requested.partition_index, ErrorCode.OFFSET_OUT_OF_RANGE))
                continue
            if offset > log_start:
                moves.add(topic.topic_id, requested.partition_index, offset)
            low_watermark = max(offset, log_start)
            groups.append(
                _Group(partition_index=requested.partition_index, low_watermark=low_watermark)
            )
        answered.append(_Topic(topic_id=topic.topic_id, partitions=tuple(groups)))
    response = DeleteDisklessRecordsResponse(responses=tuple(answered))
    return Decision(moves.records(ON_REQUEST), response)


def _refuse(partition: int, code: ErrorCode) -> _Group:
    return _Group(partition_index=partition, error_code=code, low_watermark=-1)


def decide_retention(
    rows: Sequence[NewLogStart], tables: Tables, context: Context, enforcer: Enforcer
) -> Decision[tuple[int, ...]]:
    """Move log start offsets as a retention plan says; return an error code for each row.

    Args:  enforcer: whose plan it is, COORDINATOR or EXTERNAL.
    """
    codes = []
    moves: dict[int, _Moves] = {}
    for row in rows:
        log = find_log(tables, row.topic_id, row.partition)
        code = log if isinstance(log, ErrorCode) else ErrorCode.NONE
        if not isinstance(log, ErrorCode):
            config = context.view.topic_config(row.topic_id)
            if config is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID  # the cluster has it no more; its data goes soon
            elif not _allows(config, row, enforcer):
                code = ErrorCode.POLICY_VIOLATION
            elif not 0 <= row.log_start_offset <= log[1]:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            elif row.log_start_offset > log[0]:
                reason = BY_PLAN if enforcer is Enforcer.EXTERNAL else row.reason
                to = moves.setdefault(reason, _Moves())
                to.add(row.topic_id, row.partition, row.log_start_offset)
        codes.append(int(code))
    # One partition may stand in a plan for time and for size: what moves further comes last.
    records = [record for reason in moves for record in moves[reason].records(reason)]
    return Decision(_keep_rising(records), tuple(codes))


def _keep_rising(records: list[LogStartOffsetsRecord]) -> tuple[LogStartOffsetsRecord, ...]:
    """Drop log starts that do not exceed their partition's log start in an earlier record."""
    furthest: dict[tuple[UUID, int], int] = {}
    kept: list[LogStartOffsetsRecord] = []
    for record in records:
        moves = _Moves()
        for index, partition, offset in zip(
            record.topic_indexes, record.partitions, record.log_start_offsets, strict=True
        ):
            key = (record.topic_ids[index], partition)
            if offset > furthest.get(key, -1):
                furthest[key] = offset
                moves.add(*key, offset)
        kept += moves.records(record.reason)
    return tuple(kept)


def _allows(config: TopicConfig, row: NewLogStart, enforcer: Enforcer) -> bool:
    """Return whether a topic's retention settings let `enforcer` apply this row of a plan."""
    if config.enforcer not in (enforcer, Enforcer.BOTH):
        return False
    limit = config.retention_ms if row.reason == BY_TIME else config.retention_bytes
    return row.reason in (BY_TIME, BY_SIZE) and limit is not None and limit <= row.limit
