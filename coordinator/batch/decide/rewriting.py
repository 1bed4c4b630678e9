"""Rewriting: leases of object ids for rewriters, and replacing runs of batches.

A rewriter has read runs and written their batches into an object of its own. Here each range of a
partition is judged by itself: are the live runs still those that the rewriter read? They are read
from applied state, and may be replaced or trimmed by records that are proposed and not yet applied.
So ranges that are being replaced stand in the pending tables (`Tables.replacing`), and every named
run must be live under the pending log start.

No answers are kept: a repeated request finds its runs in the state.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.decide.log_start import find_log
from coordinator.batch.id_ranges import contains
from coordinator.batch.reads import AppliedState, find_log_id
from coordinator.batch.runs import REWRITTEN, Run, digest_runs
from coordinator.batch.settings import MAX_OBJECT_BYTES
from coordinator.batch.state import Cleaning, Lease, LogId, Rewrite, Tables, cleaned, cleaning_of
from coordinator.batch.transactions import last_stable_offset
from coordinator.errors import CoordinatorError
from coordinator.features import may_write_format
from records.diskless import (
    LeaseClosedRecord,
    RewriteLeaseGrantedRecord,
    RewriteLeaseRenewedRecord,
    RunsReplacedRecord,
)
from records.kafka_errors import ErrorCode
from records.rpc.rewriting import (
    HORIZONS_SET,
    NO_PLAN,
    TOMBSTONES_REMOVED,
    DescribeCleaningRequest,
    DescribeCleaningResponse,
    NewRun,
    ReplaceRunsRequest,
    ReplaceRunsResponse,
    RewriteLeaseRequest,
    RewriteLeaseResponse,
)

MAX_REPLACED_RUNS: Final = 2_000
"""Old runs of one request, and new ones: what one record may cost while it is applied."""

MAX_REWRITE_IDS: Final = 1_000
"""Object ids of one rewrite lease."""

MAX_REWRITE_LEASES: Final = 64
"""Open rewrite leases of one coordinator."""

MAX_OPEN_OBJECTS: Final = 64
"""Objects of one lease that are filled at a time."""

MAX_DESCRIBED_PARTITIONS: Final = 10_000

GIVEN_BACK: Final = 0

_NEEDS_LEVEL: Final = "rewriting needs esker.version 3: finalize it first (esker features upgrade)"

Refusal = tuple[ErrorCode, str]


# --- leases ------------------------------------------------------------------------------------


def decide_rewrite_lease(
    request: RewriteLeaseRequest, tables: Tables, context: Context
) -> Decision[RewriteLeaseResponse]:
    """Grant, renew or end a lease of object ids for rewritten objects.

    Raises:  CoordinatorError for a broker epoch that the view does not know, as for other leases.
    """
    refused = _refuse_owner(request, tables, context)
    if refused is None and request.lease_id >= 0:
        return _renew_or_end(request, tables, context)
    if refused is None and request.releases:
        refused = ErrorCode.INVALID_REQUEST, "no lease is named to be released"
    elif refused is None and not 1 <= request.object_count <= MAX_REWRITE_IDS:
        refused = (
            ErrorCode.INVALID_REQUEST,
            f"{request.object_count} ids, a rewrite lease has 1 to {MAX_REWRITE_IDS}",
        )
    closed = _leases_of_lower_epochs(request, tables)
    there = [lease for _, lease in tables.leases.items() if lease.rewrite and lease.is_open]
    if refused is None and len(there) - len(closed) >= MAX_REWRITE_LEASES:
        refused = ErrorCode.INVALID_REQUEST, f"{MAX_REWRITE_LEASES} rewrite leases are open"
    if refused is not None:
        code, message = refused
        return Decision((), RewriteLeaseResponse(error_code=code, error_message=message))
    record = RewriteLeaseGrantedRecord(
        lease_id=tables.counters.next_lease_id,
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        plan_id=request.plan_id,
        first_object_id=tables.counters.next_object_id,
        object_count=request.object_count,
        granted_at_ms=context.steady_ms,
        closed_lease_ids=closed,
    )
    response = RewriteLeaseResponse(
        lease_id=record.lease_id,
        first_object_id=record.first_object_id,
        object_count=record.object_count,
        timeout_ms=context.settings.lease_timeout_ms,
    )
    return Decision((record,), response)


def _refuse_owner(request: RewriteLeaseRequest, tables: Tables, context: Context) -> Refusal | None:
    """Return the error of a request from an owner that must not get a rewrite lease, or None."""
    if not may_write_format(context.view.features(), 3):
        return ErrorCode.UNSUPPORTED_VERSION, _NEEDS_LEVEL
    is_brokers = request.broker_id >= 0 and request.broker_epoch >= 0
    is_plans = request.broker_id == request.broker_epoch == -1
    if is_brokers != (request.plan_id == NO_PLAN) or not (is_brokers or is_plans):
        return ErrorCode.INVALID_REQUEST, "a lease is a broker's (id and epoch) or a plan's (id)"
    if is_plans:
        return None
    broker = tables.brokers.get(request.broker_id)
    registered = context.view.broker_epoch(request.broker_id)
    known = max(-1 if broker is None else broker.epoch, -1 if registered is None else registered)
    if request.broker_epoch < known:
        return ErrorCode.STALE_BROKER_EPOCH, f"broker {request.broker_id} has epoch {known} by now"
    if registered is not None and request.broker_epoch > known:
        message = f"broker {request.broker_id} is not registered here with {request.broker_epoch}"
        raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return None


def _leases_of_lower_epochs(request: RewriteLeaseRequest, tables: Tables) -> tuple[int, ...]:
    return tuple(
        lease_id
        for lease_id, lease in sorted(tables.leases.items())
        if lease.rewrite is not None
        and lease.is_open
        and lease.broker_id == request.broker_id >= 0
        and lease.broker_epoch < request.broker_epoch
    )


def _renew_or_end(
    request: RewriteLeaseRequest, tables: Tables, context: Context
) -> Decision[RewriteLeaseResponse]:
    lease_id = request.lease_id
    found = _find_lease(request, tables)
    if not isinstance(found, Lease):
        is_over = found[0] == ErrorCode.OPERATION_NOT_ATTEMPTED
        if is_over and request.releases:
            return Decision((), RewriteLeaseResponse(lease_id=lease_id))
        return Decision((), RewriteLeaseResponse(error_code=found[0], error_message=found[1]))
    record: RewriteLeaseRenewedRecord | LeaseClosedRecord
    if request.releases:
        record = LeaseClosedRecord(
            lease_id=lease_id,
            closed_at_ms=context.steady_ms,
            end_object_id=found.end_object_id,
            reason=GIVEN_BACK,
        )
        return Decision((record,), RewriteLeaseResponse(lease_id=lease_id))
    record = RewriteLeaseRenewedRecord(lease_id=lease_id, renewed_at_ms=context.steady_ms)
    response = RewriteLeaseResponse(
        lease_id=lease_id,
        first_object_id=found.first_object_id,
        object_count=found.end_object_id - found.first_object_id,
        timeout_ms=context.settings.lease_timeout_ms,
    )
    return Decision((record,), response)


def _find_lease(
    request: RewriteLeaseRequest | ReplaceRunsRequest, tables: Tables
) -> Lease | Refusal:
    """Return the open rewrite lease that a request names and its sender owns, or else an error."""
    lease_id = request.lease_id
    lease = tables.leases.get(lease_id)
    if lease is None:
        if 0 <= lease_id < tables.counters.next_lease_id:
            return ErrorCode.OPERATION_NOT_ATTEMPTED, f"lease {lease_id} is long over"
        return ErrorCode.INVALID_REQUEST, f"no lease {lease_id} was granted"
    if lease.rewrite is None:
        return ErrorCode.INVALID_REQUEST, f"lease {lease_id} is not a rewriter's"
    owner = (lease.broker_id, lease.broker_epoch, UUID(bytes=lease.rewrite.plan_id))
    if owner != (request.broker_id, request.broker_epoch, request.plan_id):
        return ErrorCode.INVALID_REQUEST, f"lease {lease_id} is another owner's"
    broker = tables.brokers.get(lease.broker_id)
    if broker is not None and broker.epoch > lease.broker_epoch:
        message = f"broker {lease.broker_id} has epoch {broker.epoch} by now"
        return ErrorCode.STALE_BROKER_EPOCH, message
    if not lease.is_open:
        return ErrorCode.OPERATION_NOT_ATTEMPTED, f"lease {lease_id} is over"
    return lease


# --- replacing runs ----------------------------------------------------------------------------

_Range = ReplaceRunsRequest.Topic.Partition
_Topic = ReplaceRunsResponse.Topic
_Answer = ReplaceRunsResponse.Topic.Partition


class _Accepted(NamedTuple):
    """A range whose runs are to be replaced, and how far its partition is cleaned then."""

    cleaning: Cleaning


class _Done(NamedTuple):
    """A range that an earlier attempt of the same request has replaced."""

    cleaning: Cleaning


_Outcome = _Accepted | _Done | Refusal


def decide_replace_runs(
    request: ReplaceRunsRequest, tables: Tables, applied: AppliedState, context: Context
) -> Decision[ReplaceRunsResponse]:
    """Replace the runs of each range by runs in the request's object, or refuse the range.

    Args:  tables: pending state. applied: the applied state, which has the runs.
    """
    refused = _refuse_form(request, context)
    if refused is not None:
        return _refuse(refused)
    judge = _Judge(request, tables, applied)
    outcomes = [
        (topic, row, judge.judge(topic.topic_id, row))
        for topic in request.topics
        for row in topic.partitions
    ]
    accepted = [one for one in outcomes if isinstance(one[2], _Accepted)]
    again = any(one[2][0] == ErrorCode.COORDINATOR_NOT_AVAILABLE for one in outcomes)
    closes = request.closes_object and not again  # rows that are sent again need it open
    is_open = _find_object(request, tables, [row for _, row, _ in accepted])
    if is_open is not True and (accepted or not request.topics):
        return Decision((), ReplaceRunsResponse()) if is_open is False else _refuse(is_open)
    answered: dict[UUID, list[_Answer]] = {topic.topic_id: [] for topic in request.topics}
    for topic, row, outcome in outcomes:
        answered[topic.topic_id].append(_answer(row, outcome))
    response = ReplaceRunsResponse(
        topics=tuple(
            _Topic(topic_id=topic_id, partitions=tuple(answers))
            for topic_id, answers in answered.items()
        )
    )
    if not accepted and (not closes or is_open is not True):
        return Decision((), response)
    rows = [(topic.topic_id, row) for topic, row, _ in accepted]
    record = _record(request, rows, context, closes=closes)
    return Decision((record,), response)


def _refuse(refusal: Refusal) -> Decision[ReplaceRunsResponse]:
    code, message = refusal
    return Decision((), ReplaceRunsResponse(error_code=code, error_message=message))


def _answer(row: _Range, outcome: _Outcome) -> _Answer:
    if isinstance(outcome, _Accepted | _Done):
        return _Answer(partition_index=row.partition_index, **outcome.cleaning._asdict())
    code, message = outcome
    return _Answer(partition_index=row.partition_index, error_code=code, error_message=message)


def _refuse_form(request: ReplaceRunsRequest, context: Context) -> Refusal | None:
    """Return the error of a request that is invalid in every possible state, or None."""
    if not may_write_format(context.view.features(), 3):
        return ErrorCode.UNSUPPORTED_VERSION, _NEEDS_LEVEL
    rows = [row for topic in request.topics for row in topic.partitions]
    old, new = sum(row.old_run_count for row in rows), sum(len(row.runs) for row in rows)
    if max(old, new, len(rows)) > MAX_REPLACED_RUNS:
        message = f"{old} runs become {new}, at most {MAX_REPLACED_RUNS} of each in a request"
        return ErrorCode.MESSAGE_TOO_LARGE, message
    named = {
        (topic.topic_id, row.partition_index)
        for topic in request.topics
        for row in topic.partitions
    }
    if len({topic.topic_id for topic in request.topics}) != len(request.topics):
        return ErrorCode.INVALID_REQUEST, "a topic is named twice"
    if len(named) != len(rows):
        return ErrorCode.INVALID_REQUEST, "a partition is named twice"
    if request.object_format != REWRITTEN:
        return ErrorCode.INVALID_REQUEST, f"object format {request.object_format}, not {REWRITTEN}"
    if not 1 <= request.object_size <= MAX_OBJECT_BYTES:
        return ErrorCode.INVALID_REQUEST, f"an object of {request.object_size} bytes"
    places = sorted((run.byte_offset, run.size) for row in rows for run in row.runs)
    if any(place < 0 or size < 1 for place, size in places):
        return ErrorCode.INVALID_REQUEST, "a run of no or negative size, or at a negative place"
    if any(a[0] + a[1] > b[0] for a, b in pairwise(places)):
        return ErrorCode.INVALID_REQUEST, "two runs share bytes of the object"
    if places and sum(places[-1]) > request.object_size:
        message = f"a run ends at {sum(places[-1])} of an object of {request.object_size} bytes"
        return ErrorCode.INVALID_REQUEST, message
    return None


def _find_object(
    request: ReplaceRunsRequest, tables: Tables, rows: Sequence[_Range]
) -> bool | Refusal:
    """Return whether the request's object is open for new runs, or an error if it must not be used.

    False stands for an object that is closed already, where a request only closes it.
    """
    lease, object_id = _find_lease(request, tables), request.object_id
    if not isinstance(lease, Lease):
        return lease
    rewrite = lease.rewrite
    assert rewrite is not None, f"not a rewrite lease: {lease}"
    if not lease.first_object_id <= object_id < lease.end_object_id:
        message = f"object {object_id} is not of lease {request.lease_id}"
        return ErrorCode.INVALID_REQUEST, message
    if object_id in lease.fenced:
        return ErrorCode.OPERATION_NOT_ATTEMPTED, "it was called safe to delete"
    return _find_room(request, rewrite, rows)


def _find_room(
    request: ReplaceRunsRequest, rewrite: Rewrite, rows: Sequence[_Range]
) -> bool | Refusal:
    object_id, filled = request.object_id, 0
    found = rewrite.find_open(object_id)
    if found is not None:
        if (found.size_bytes, found.object_format) != (request.object_size, request.object_format):
            message = f"object {object_id} has another size or format: {found}"
            return ErrorCode.INVALID_REQUEST, message
        filled = found.filled_bytes
    elif contains(rewrite.opened, object_id):
        if not rows:
            return False
        return ErrorCode.OPERATION_NOT_ATTEMPTED, f"object {object_id} is closed"
    elif not rows:
        return ErrorCode.INVALID_REQUEST, f"object {object_id} was never opened"
    elif len(rewrite.open_objects) >= MAX_OPEN_OBJECTS:
        return ErrorCode.INVALID_REQUEST, f"{MAX_OPEN_OBJECTS} objects of the lease are open"
    filled += sum(run.size for row in rows for run in row.runs)
    if filled > request.object_size:
        message = f"runs of {filled} bytes in an object of {request.object_size}"
        return ErrorCode.INVALID_REQUEST, message
    return True


class _Judge:
    """Judges the ranges of one request, each by itself."""

    def __init__(self, request: ReplaceRunsRequest, tables: Tables, applied: AppliedState) -> None:
        self._object_id = request.object_id
        self._tables = tables
        self._applied = applied
        self._replacing: dict[LogId, list[tuple[int, int]]] = {}
        for (log_id, first), end in tables.replacing.items():
            self._replacing.setdefault(log_id, []).append((first, end))

    def judge(self, topic_id: UUID, row: _Range) -> _Outcome:
        """Return whether a range's runs still have to be replaced, or the error that forbids it.

        Retriable where records that are proposed and not applied decide it.
        """
        malformed = _malformation(row)
        if malformed is not None:
            return ErrorCode.INVALID_REQUEST, malformed
        log_id = find_log_id(self._tables, topic_id, row.partition_index)
        log = find_log(self._tables, topic_id, row.partition_index)
        if isinstance(log_id, ErrorCode) or isinstance(log, ErrorCode):
            code = log if isinstance(log, ErrorCode) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return code, "there is no such partition"
        log_start = log[0]
        stable = last_stable_offset(log, self._tables.open_transactions.get(log_id))
        if max(row.end_offset, row.bound) > stable:
            message = f"the range ends above the last stable offset {stable}"
            return ErrorCode.OFFSET_OUT_OF_RANGE, message
        there = self._applied.logs.get(log_id)
        if there is None or row.end_offset > there[1]:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, "its newest runs are not applied yet"
        first, end = row.first_offset, row.end_offset
        if any(a < end and first < b for a, b in self._replacing.get(log_id, ())):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, "a part of it is being replaced"
        if end <= there[0]:
            return ErrorCode.OFFSET_OUT_OF_RANGE, f"the log starts at {there[0]}"
        limit = max(row.old_run_count, len(row.runs)) + 1
        walk = islice(self._applied.runs_from(log_id, max(first, there[0])), limit)
        live = [run for run in walk if run.base_offset < end]
        before = self._tables.cleanings.get(log_id)
        if self._lies_in_object(row, live):
            return _Done(cleaning_of(before, log_start))
        refused = _refuse_runs(row, live, log_start) or self._refuse_ended(log_id, row)
        if refused is not None:
            return refused
        after = cleaning_of(before, log_start)
        if row.bound >= 0:
            after = cleaned(before, log_start, first, end, row.bound)
        if row.flags and after.cleaned_until < end:
            message = (
                f"it is cleaned until {after.cleaned_until}, so nothing above may depend on it"
            )
            return ErrorCode.POLICY_VIOLATION, message
        return _Accepted(after)

    def _refuse_ended(self, log_id: LogId, row: _Range) -> Refusal | None:
        """Return the error if a range drops an aborted transaction whose marker is after it."""
        if not row.ended_aborted:
            return None
        behind = {
            (entry.producer_id, entry.first_offset)
            for entry in self._applied.aborted_from(log_id, row.end_offset)
        }
        for entry in row.ended_aborted:
            if (entry.producer_id, entry.first_offset) in behind:
                message = f"the marker of the aborted transaction {entry} lies behind the range"
                return ErrorCode.INVALID_REQUEST, message
        return None

    def _lies_in_object(self, row: _Range, live: Sequence[Run]) -> bool:
        """Return whether the live runs of a range are already the request's new runs."""
        return len(live) == len(row.runs) and all(
            (run.object_id, run.byte_offset, run.byte_size, run.last_offset)
            == (self._object_id, new.byte_offset, new.size, new.last_offset)
            for run, new in zip(live, row.runs, strict=True)
        )


def _malformation(row: _Range) -> str | None:
    """Return the reason why a requested range of offsets is invalid in any state, or None."""
    if not 0 <= row.first_offset < row.end_offset:
        return f"the range from {row.first_offset} to {row.end_offset} is empty"
    if row.old_run_count < 1 or not row.runs:
        return "it names no old runs, or brings no new ones"
    if row.ended_aborted and row.bound < 0:
        return "merging keeps every record, so that no aborted entry ends"
    if not 0 <= row.flags <= HORIZONS_SET | TOMBSTONES_REMOVED:
        return f"flags {row.flags}"
    if row.bound < -1 or (row.bound == -1 and row.flags) or -1 < row.bound < row.end_offset:
        return f"a range up to {row.end_offset} with bound {row.bound} and flags {row.flags}"
    base = row.first_offset
    for run in row.runs:
        wrong = _malformed_run(run, base)
        if wrong is not None:
            return wrong
        base = run.last_offset + 1
    return None if base == row.end_offset else f"its runs end at {base}, not at {row.end_offset}"


def _malformed_run(run: NewRun, base_offset: int) -> str | None:
    if run.last_offset < base_offset:
        return f"a run ends at {run.last_offset} and begins at {base_offset}"
    if not 0 <= run.record_count <= run.last_offset - base_offset + 1:
        return f"{run.record_count} records from {base_offset} to {run.last_offset}"
    if run.timestamp_type not in (0, 1) or run.append_time < 0 or run.max_timestamp < -1:
        return f"a run with times {run.max_timestamp}, {run.append_time}, {run.timestamp_type}"
    return None


def _refuse_runs(row: _Range, live: Sequence[Run], log_start: int) -> Refusal | None:
    """Return the error that forbids the replacement of a range's live runs, or None."""
    if live[0].base_offset > row.first_offset or live[0].last_offset < log_start:
        return ErrorCode.OFFSET_OUT_OF_RANGE, f"the log starts at {log_start}"
    places = [(run.object_id, run.byte_offset, run.byte_size) for run in live]
    named = (row.first_offset, row.end_offset, row.old_run_count, row.old_runs_digest)
    ends = live[0].base_offset, live[-1].last_offset + 1
    if named != (*ends, len(live), digest_runs(places)):
        return ErrorCode.FENCED_STATE_EPOCH, f"{len(live)} live runs of the range are others"
    old, new = (sum(run.record_count for run in runs) for runs in (live, row.runs))
    if new > old or (row.bound < 0 and new != old):
        return ErrorCode.INVALID_REQUEST, f"{old} records become {new}"
    return None


def _record(
    request: ReplaceRunsRequest,
    rows: Iterable[tuple[UUID, _Range]],
    context: Context,
    *,
    closes: bool,
) -> RunsReplacedRecord:
    topic_indexes: dict[UUID, int] = {}
    indexed = [
        (topic_indexes.setdefault(topic_id, len(topic_indexes)), row) for topic_id, row in rows
    ]
    runs = [run for _, row in indexed for run in row.runs]
    ended = [entry for _, row in indexed for entry in row.ended_aborted]
    return RunsReplacedRecord(
        object_id=request.object_id,
        object_format=request.object_format,
        size_bytes=request.object_size,
        broker_id=request.broker_id,
        lease_id=request.lease_id,
        replaced_at_ms=context.now_ms,
        closes_object=int(closes),
        topic_ids=tuple(topic_indexes),
        topic_indexes=tuple(index for index, _ in indexed),
        partitions=tuple(row.partition_index for _, row in indexed),
        first_offsets=tuple(row.first_offset for _, row in indexed),
        end_offsets=tuple(row.end_offset for _, row in indexed),
        old_run_counts=tuple(row.old_run_count for _, row in indexed),
        old_run_digests=tuple(row.old_runs_digest for _, row in indexed),
        bounds=tuple(row.bound for _, row in indexed),
        flags=tuple(row.flags for _, row in indexed),
        run_counts=tuple(len(row.runs) for _, row in indexed),
        last_offsets=tuple(run.last_offset for run in runs),
        record_counts=tuple(run.record_count for run in runs),
        byte_offsets=tuple(run.byte_offset for run in runs),
        byte_sizes=tuple(run.size for run in runs),
        max_timestamps=tuple(run.max_timestamp for run in runs),
        append_times=tuple(run.append_time for run in runs),
        timestamp_types=tuple(run.timestamp_type for run in runs),
        ended_counts=tuple(len(row.ended_aborted) for _, row in indexed) if ended else (),
        ended_producer_ids=tuple(entry.producer_id for entry in ended),
        ended_first_offsets=tuple(entry.first_offset for entry in ended),
    )


# --- describing --------------------------------------------------------------------------------

_Described = DescribeCleaningResponse.Topic
_DescribedPartition = DescribeCleaningResponse.Topic.Partition


def describe_cleaning(
    request: DescribeCleaningRequest,
    tables: Tables,
    applied: AppliedState,
    _context: Context,
) -> DescribeCleaningResponse:
    """Describe the compaction progress of the requested partitions, from applied state."""
    if sum(len(topic.partitions) for topic in request.topics) > MAX_DESCRIBED_PARTITIONS:
        message = f"a request may name at most {MAX_DESCRIBED_PARTITIONS} partitions"
        return DescribeCleaningResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    return DescribeCleaningResponse(
        responses=tuple(
            _Described(
                topic_id=topic.topic_id,
                partitions=tuple(
                    _describe(topic.topic_id, index, tables, applied) for index in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _describe(
    topic_id: UUID, partition: int, tables: Tables, applied: AppliedState
) -> _DescribedPartition:
    log_id = find_log_id(tables, topic_id, partition)
    log = find_log(tables, topic_id, partition)
    if isinstance(log_id, ErrorCode) or isinstance(log, ErrorCode):
        code = log if isinstance(log, ErrorCode) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _DescribedPartition(partition_index=partition, error_code=code)
    run_count, stored_bytes = applied.run_totals(log_id) or (-1, -1)
    return _DescribedPartition(
        partition_index=partition,
        log_start_offset=log[0],
        high_watermark=log[1],
        last_stable_offset=last_stable_offset(log, tables.open_transactions.get(log_id)),
        run_count=run_count,
        stored_bytes=stored_bytes,
        **cleaning_of(tables.cleanings.get(log_id), log[0])._asdict(),
    )
