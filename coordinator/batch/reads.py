"""Reads of applied state, against narrow interfaces that memory and database both have.

`Runs` serves brokers and consumers: findBatches and listOffsets are written against it, once.
`Candidates` serves the leader's sweeps: each method says *what might be due*, a bounded number, and
`coordinator.batch.decide` then looks at the pending tables before it says that it is.

Lists of objects to delete come from here, that is from what is applied, and never from pending
state: a mark that is lost with its leader must not have deleted anything.

Source: docs/design/batch-coordinator.md#runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from coordinator.batch.runs import APPENDED, Run, StoredObject
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.state import NO_LOG, Log, LogId, ProducerKey, Tables
from coordinator.batch.transactions import Aborted, last_stable_offset, overlapping
from records.kafka_errors import ErrorCode
from records.marker_batches import MARKER_BATCH_BYTES
from records.rpc.batch_coordinator import (
    AbortedTransaction,
    FindBatchesRequest,
    FindBatchesResponse,
    ListDisklessOffsetsRequest,
    ListDisklessOffsetsResponse,
)


class Runs(Protocol):
    """Live runs, in the order of their offsets."""

    def runs_from(self, log_id: LogId, offset: int) -> Iterable[Run]:
        """Return a partition's runs of batches from the run that contains `offset` on.

        `offset` is at or above the log start and below the high watermark.
        """

    def first_run_since(self, log_id: LogId, timestamp: int, from_offset: int) -> Run | None:
        """Return the first run from an offset on that has a record at or after `timestamp`.

        Its max timestamp is at least `timestamp`.

        Here and below, `from_offset` is at or above the log start; the run that holds it counts.
        """

    def run_of_max_timestamp(self, log_id: LogId, from_offset: int) -> Run | None:
        """Return the first of the runs from an offset on that have the greatest max timestamp.

        None if there is no run.
        """

    def aborted_from(self, log_id: LogId, offset: int) -> Iterable[Aborted]:
        """Return a partition's aborted transactions that end at or above an offset, by end."""


class Candidates(Protocol):
    """Rows that a maintenance step may have to act on. Every result is bounded by its `limit`."""

    def stored_object(self, object_id: int) -> StoredObject | None:
        """Return an object of the state by its object id, or None if there is no such object."""

    def unused_objects(self, limit: int) -> list[int]:
        """Return up to `limit` ids of objects with all batches deleted and no deletion mark.

        The ids rise.
        """

    def marked_objects(self, first_ms: int, last_ms: int, limit: int) -> list[tuple[int, int]]:
        """Return up to `limit` (mark time, object id) pairs of marks set in a time range.

        The interval is from first_ms to last_ms. At most `limit`, in order of time.
        """

    def producer_count(self) -> int:
        """Return the number of applied producer states: one for each partition of a producer."""

    def idle_producers(self, appended_before_ms: int, limit: int) -> list[ProducerKey]:
        """Return (log id, producer id) pairs of producers whose last append was before a time.

        In no order that matters.
        """

    def producers_of(self, log_id: LogId, limit: int) -> list[ProducerKey]:
        """Return (log id, producer id) pairs of up to `limit` producers of a partition."""

    def last_offset_of_runs(self, log_id: LogId, limit: int) -> int | None:
        """Return the last offset of a partition's first `limit` undeleted runs of batches.

        None if there is none.
        """


class AppliedState(Tables, Runs, Candidates, Protocol):
    """The applied state that a leader decides by, besides the pending tables."""

    def run_totals(self, log_id: LogId) -> tuple[int, int] | None:
        """Return the number and total bytes of a partition's undeleted runs, or None if unknown."""


# --- findBatches and listOffsets ----------------------------------------------------------------

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
"""ListOffsets' sentinels, as Kafka has them."""

READ_COMMITTED: Final = 1
"""The isolation level of a reader that sees only what committed transactions wrote."""

_Found = FindBatchesResponse.Topic.Partition
_Listed = ListDisklessOffsetsResponse.Topic.Partition


R = TypeVar("R")

Turns: TypeAlias = Generator[None, None, R]
"""An answer that takes several turns of the loop; the state may change between two of them."""

State: TypeAlias = Callable[[], tuple[Tables, Runs]]
"""Returns the applied state. It is called again for each partition, because a loaded checkpoint
replaces the state."""

A_TURN: Final = 64
"""Partitions looked up in one turn of the loop: 1 to 3 ms. A request may name sixty thousand."""


def at_once(turns: Turns[R]) -> R:
    """Run a generator to its end without giving way to the event loop, and return its result."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            answer: R = end.value
            return answer


def find_batches(
    request: FindBatchesRequest, tables: Tables, runs: Runs, settings: CoordinatorSettings
) -> FindBatchesResponse:
    """Find the runs of batches from each requested offset on, up to the requested bytes.

    A run that crosses a limit is still told, since its reader can stop inside it; the first run of
    the answer is told however large it is. Whoever finds the request's bytes, or `find_limit` runs,
    used up gets its offsets and no runs: a fetcher that rotates its partitions is served next time.
    """
    return at_once(find_in_turns(request, lambda: (tables, runs), settings))


def find_in_turns(
    request: FindBatchesRequest, state: State, settings: CoordinatorSettings
) -> Turns[FindBatchesResponse]:
    """Find runs of batches as `find_batches` does, but yield after every few partitions."""
    budget, count = _Budget(request.max_bytes, settings.find_limit), 0
    committed = request.isolation_level == READ_COMMITTED
    topics = []
    for topic in request.topics:
        found = []
        for requested in topic.partitions:
            tables, runs = state()
            found.append(
                _find(topic.topic_id, requested, tables, runs, settings, budget, committed)
            )
            count += 1
            if count % A_TURN == 0:
                yield
        topics.append(FindBatchesResponse.Topic(topic_id=topic.topic_id, partitions=tuple(found)))
    return FindBatchesResponse(responses=tuple(topics))


def denies(answer: FindBatchesResponse) -> bool:
    """Return whether a FindBatches response has an error for any of its partitions."""
    return any(found.error_code for topic in answer.responses for found in topic.partitions)


class _Budget:
    """The bytes and runs that one answer may still hold."""

    __slots__ = ("bytes_left", "runs_left", "told_any")

    def __init__(self, max_bytes: int, max_runs: int) -> None:
        self.bytes_left = max_bytes
        self.runs_left = max_runs
        self.told_any = False

    def is_used_up(self, left: int) -> bool:
        """Return whether the response's run or byte limit forbids another run of batches."""
        return self.runs_left <= 0 or (self.told_any and (left <= 0 or self.bytes_left <= 0))


def _find(
    topic_id: UUID,
    requested: FindBatchesRequest.Topic.Partition,
    tables: Tables,
    runs: Runs,
    settings: CoordinatorSettings,
    budget: _Budget,
    committed: bool,
) -> FindBatchesResponse.Topic.Partition:
    index = requested.partition_index
    log_id = find_log_id(tables, topic_id, index)
    log = None if isinstance(log_id, ErrorCode) else tables.logs.get(log_id)
    if isinstance(log_id, ErrorCode) or log is None:
        code = log_id if isinstance(log_id, ErrorCode) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _Found(
            partition_index=index,
            error_code=code,
            log_start_offset=-1,
            high_watermark=-1,
            batches=(),
        )
    log_start, high_watermark = log
    stable = last_stable_offset(log, tables.open_transactions.get(log_id))
    limit = stable if committed else high_watermark
    aborted: tuple[AbortedTransaction, ...] = ()
    code = ErrorCode.NONE
    batches: list[FindBatchesResponse.Topic.Partition.Batch] = []
    if not log_start <= requested.offset <= high_watermark:
        code = ErrorCode.OFFSET_OUT_OF_RANGE
    elif requested.offset < limit and not budget.is_used_up(requested.max_bytes):
        left = requested.max_bytes
        for run in runs.runs_from(log_id, requested.offset):
            if run.base_offset >= limit:
                break
            batches.append(_batch(run, settings))
            size = run.byte_size or MARKER_BATCH_BYTES
            left -= size
            budget.bytes_left -= size
            budget.runs_left -= 1
            budget.told_any = True
            if budget.is_used_up(left):  # before the next run is read in vain
                break
        if committed and batches:
            entries = runs.aborted_from(log_id, requested.offset)
            found = overlapping(entries, batches[-1].last_offset + 1)
            aborted = tuple(AbortedTransaction(one.producer_id, one.first_offset) for one in found)
    return _Found(
        partition_index=index,
        error_code=code,
        log_start_offset=log_start,
        high_watermark=high_watermark,
        batches=tuple(batches),
        last_stable_offset=-1 if stable == high_watermark else stable,
        aborted=aborted,
    )


def _batch(run: Run, settings: CoordinatorSettings) -> FindBatchesResponse.Topic.Partition.Batch:
    base, last, object_id, place, size, newest, appended, kind, count, object_format, marker = run
    if marker is not None:
        return _Found.Batch(
            object_key="",
            byte_offset=0,
            size=0,
            base_offset=base,
            last_offset=last,
            log_append_timestamp=appended,
            batch_max_timestamp=newest,
            message_timestamp_type=kind,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            object_format=object_format,
            record_count=count,
            marker_outcome=marker.outcome,
            coordinator_epoch=marker.coordinator_epoch,
        )
    return _Found.Batch(
        object_key=settings.keys.key(object_id),
        byte_offset=place,
        size=size,
        base_offset=base,
        last_offset=last,
        log_append_timestamp=appended,
        batch_max_timestamp=newest,
        message_timestamp_type=kind,
        object_format=object_format,
        record_count=-1 if object_format == APPENDED else count,
    )


def list_offsets(
    request: ListDisklessOffsetsRequest, tables: Tables, runs: Runs
) -> ListDisklessOffsetsResponse:
    """Return each requested partition's offset for the requested timestamp.

    The trap: a coordinator knows runs, not records. For a timestamp, and for the greatest one,
    it answers the first offset of the run in question that is left, or that the search began at;
    who wants the record reads on from there. The timestamp beside it is the run's greatest.
    """
    return at_once(list_in_turns(request, lambda: (tables, runs)))


def list_in_turns(
    request: ListDisklessOffsetsRequest, state: State
) -> Turns[ListDisklessOffsetsResponse]:
    """List offsets as `list_offsets` does, but yield after every few partitions."""
    topics, count = [], 0
    committed = request.isolation_level == READ_COMMITTED
    for topic in request.topics:
        listed = []
        for requested in topic.partitions:
            listed.append(_list(topic.topic_id, requested, *state(), committed))
            count += 1
            if count % A_TURN == 0:
                yield
        topics.append(
            ListDisklessOffsetsResponse.Topic(topic_id=topic.topic_id, partitions=tuple(listed))
        )
    return ListDisklessOffsetsResponse(responses=tuple(topics))


def _list(
    topic_id: UUID,
    requested: ListDisklessOffsetsRequest.Topic.Partition,
    tables: Tables,
    runs: Runs,
    committed: bool,
) -> ListDisklessOffsetsResponse.Topic.Partition:
    log_id = find_log_id(tables, topic_id, requested.partition_index)
    log = None if isinstance(log_id, ErrorCode) else tables.logs.get(log_id)
    code, timestamp, offset = ErrorCode.NONE, -1, -1
    if isinstance(log_id, ErrorCode):
        code = log_id
    elif log is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        log_start, high_watermark = log
        limit = high_watermark
        if committed:
            limit = last_stable_offset(log, tables.open_transactions.get(log_id))
        run: Run | None = None
        from_offset = max(log_start, requested.from_offset)
        if requested.timestamp >= 0:
            run = runs.first_run_since(log_id, requested.timestamp, from_offset)
        elif requested.timestamp == LATEST:
            offset = limit
        elif requested.timestamp in (EARLIEST, EARLIEST_LOCAL):
            offset = log_start
        elif requested.timestamp == MAX_TIMESTAMP:
            run = runs.run_of_max_timestamp(log_id, from_offset)
        elif requested.timestamp != LATEST_TIERED:  # of which there is nothing
            code = ErrorCode.UNSUPPORTED_VERSION
        if run is not None and run.base_offset < limit:
            timestamp, offset = run.max_timestamp, max(run.base_offset, from_offset)
    return _Listed(
        partition_index=requested.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
    )


def stable_ends(tables: Tables, topic_id: UUID, partition: int) -> Log | None:
    """Return an undeleted partition's log start and last stable offset; None if unknown."""
    log_id = find_log_id(tables, topic_id, partition)
    log = None if isinstance(log_id, ErrorCode) else tables.logs.get(log_id)
    if isinstance(log_id, ErrorCode) or log is None:
        return None
    return log[0], last_stable_offset(log, tables.open_transactions.get(log_id))


def log_ends(tables: Tables, topic_id: UUID, partition: int) -> Log | None:
    """Return an undeleted partition's log start offset and high watermark; None if unknown."""
    log_id = find_log_id(tables, topic_id, partition)
    return None if isinstance(log_id, ErrorCode) else tables.logs.get(log_id)


def find_log_id(tables: Tables, topic_id: UUID, partition: int) -> LogId | ErrorCode:
    """Return the log id of an undeleted topic's partition, or an error code if not found."""
    topic = tables.topics.get(topic_id)
    if topic is None or topic.deleted_at_ms >= 0:
        return ErrorCode.UNKNOWN_TOPIC_ID
    log_id = topic.log_ids[partition] if 0 <= partition < len(topic.log_ids) else NO_LOG
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log_id < 0 else log_id
