"""Ending transactions in partitions: which markers are written, and which change nothing.

A marker's number decides alone, so it may be sent again without end: the transaction log decided
the outcome of that number once. No epoch fences it.

Source: docs/design/transactions-batches.md#writetransactionmarkers-1130; Kafka's
ProducerStateManager, which goes by epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.state import NO_LOG, Log, LogId, Tables
from coordinator.batch.transactions import (
    ABORTED,
    COMMITTED,
    NEEDS_LEVEL,
    NONE_OPEN,
    TRANSACTIONS_LEVEL,
    OpenTransactions,
    Transactional,
    last_stable_offset,
    without_transaction,
)
from coordinator.features import may_write_format
from records.diskless import TransactionMarkersRecord
from records.kafka_errors import ErrorCode
from records.rpc.transaction_markers import (
    TransactionMarker,
    WriteTransactionMarkersRequest,
    WriteTransactionMarkersResponse,
)

MAX_MARKERS: Final = 10_000
"""Markers of one request: half a megabyte of one record."""

_LAST_OFFSET: Final = 2**63 - 2

Answered = Decision[WriteTransactionMarkersResponse]


_Row = tuple[int, int, int, int, int, int, int, int, int, int]
"""A marker that changes the state: an index into the request's topics, then `_COLUMNS`."""

_OUTCOMES: Final = frozenset({ABORTED, COMMITTED})
_NEVER: Final = Transactional()

_COLUMNS: Final = (
    "partitions",
    "offsets",
    "producer_ids",
    "producer_epochs",
    "transaction_numbers",
    "outcomes",
    "coordinator_epochs",
    "first_offsets",
    "last_stable_offsets",
)


def decide_markers(
    request: WriteTransactionMarkersRequest, tables: Tables, context: Context
) -> Answered:
    """Write transaction markers in partitions where the transactions have not ended yet."""
    if not may_write_format(context.view.features(), TRANSACTIONS_LEVEL):
        return _refuse(ErrorCode.UNSUPPORTED_VERSION, NEEDS_LEVEL)
    if len(request.markers) > MAX_MARKERS:
        message = f"{len(request.markers)} markers in a request, at most {MAX_MARKERS}"
        return _refuse(ErrorCode.MESSAGE_TOO_LARGE, message)
    if len(set(request.topic_ids)) != len(request.topic_ids):
        return _refuse(ErrorCode.INVALID_REQUEST, "a topic is named twice")
    writer = _Writer(tables, request.topic_ids)
    codes = tuple(map(int, map(writer.judge, request.markers)))
    response = WriteTransactionMarkersResponse(marker_error_codes=codes)
    return Decision(writer.records(context.now_ms), response)


def _refuse(code: ErrorCode, message: str) -> Answered:
    return Decision((), WriteTransactionMarkersResponse(error_code=code, error_message=message))


class _Writer:
    """The markers of one request, judged one after the other."""

    def __init__(self, tables: Tables, topic_ids: Sequence[UUID]) -> None:
        self._tables = tables
        self._topic_ids = topic_ids
        self._topics = [tables.topics.get(topic_id) for topic_id in topic_ids]
        self._logs: dict[LogId, Log] = {}  # as this request's markers change them
        self._open: dict[LogId, OpenTransactions] = {}
        self._seen: set[tuple[LogId, int]] = set()
        self._rows: list[_Row] = []

    def judge(self, marker: TransactionMarker) -> ErrorCode:
        """Collect the marker if it changes the state, and return the response code for it."""
        topic_index, partition, producer_id, epoch, number, outcome, _ = marker
        log_id = self._find(topic_index, partition)
        if isinstance(log_id, ErrorCode):
            return log_id
        key = (log_id, producer_id)
        is_sound = producer_id >= 0 <= epoch and number >= 0 and outcome in _OUTCOMES
        if not is_sound or key in self._seen:
            return ErrorCode.INVALID_REQUEST
        self._seen.add(key)
        producer = self._tables.producers.get(key)
        open_number, first_offset, ended_number, _ = (producer and producer[3]) or _NEVER
        if open_number != number and (number <= ended_number or number < open_number):
            return ErrorCode.NONE  # a repetition, or the open transaction is newer
        log = self._logs.get(log_id) or self._tables.logs.get(log_id)
        assert log is not None, f"no log {log_id}"
        if log[1] > _LAST_OFFSET:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        ends = open_number in (number, NONE_OPEN)  # else a lower number stays open
        self._note(marker, log_id, log, first_offset if ends else -1, ends=ends)
        return ErrorCode.NONE

    def _find(self, topic_index: int, partition: int) -> LogId | ErrorCode:
        """Return the log id of a marker's partition, or the error code for the sender.

        UNKNOWN_TOPIC_ID is said of a tombstone only: the sender gives up the marker then.
        """
        if not 0 <= topic_index < len(self._topics):
            return ErrorCode.INVALID_REQUEST
        topic = self._topics[topic_index]
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic.deleted_at_ms >= 0:
            return ErrorCode.UNKNOWN_TOPIC_ID
        log_id = topic.log_ids[partition] if 0 <= partition < len(topic.log_ids) else NO_LOG
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log_id < 0 else log_id

    def _note(
        self,
        marker: TransactionMarker,
        log_id: LogId,
        log: Log,
        first_offset: int,
        *,
        ends: bool,
    ) -> None:
        """Add a marker's row; the marker takes an offset only if `ends` is true."""
        topic_index, partition, producer_id, epoch, number, outcome, coordinator_epoch = marker
        offset = log[1] if ends else -1
        opened = self._open.get(log_id)
        if opened is None:
            opened = self._open[log_id] = self._tables.open_transactions.get(log_id) or ()
        if ends:
            log = self._logs[log_id] = (log[0], offset + 1)
            if opened:
                opened = without_transaction(opened, first_offset, producer_id)
                self._open[log_id] = opened
        stable = last_stable_offset(log, opened)
        self._rows.append(
            (topic_index, partition, offset, producer_id, epoch, number, outcome,
             coordinator_epoch, first_offset, stable)
        )  # fmt: skip

    def records(self, now_ms: int) -> tuple[TransactionMarkersRecord, ...]:
        """Return one record with all collected markers, or no record if there are none."""
        if not self._rows:
            return ()
        used = sorted({row[0] for row in self._rows})
        renumbered = {old: new for new, old in enumerate(used)}
        indexes, *rest = zip(*self._rows, strict=True)
        columns: dict[str, Any] = dict(zip(_COLUMNS, rest, strict=True))
        return (
            TransactionMarkersRecord(
                written_at_ms=now_ms,
                topic_ids=tuple(self._topic_ids[index] for index in used),
                topic_indexes=tuple(renumbered[index] for index in indexes),
                **columns,
            ),
        )
