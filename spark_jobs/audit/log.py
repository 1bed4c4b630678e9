"""Checks a log whatever its records mean (offsets, epochs, leaders), and makes the first pass over
it.

`summarise_span` reads one span. It checks the batches against what every log promises, counts the
records by type, and keeps what the second pass needs: every record that is not a commit, undecoded,
and the state that the commits of the span end with.

Why `BatchRange`: the same rules judge batches within a span and spans within a log. Both are ranges
with a first offset, an end, and an epoch at each, and a range must begin where the one before
ended.

A span that has records and no batches is read as well; then offsets may skip (control records use
them), and the leaders are unknown.

Source: invariants 1-3 (docs/design/invariants.md); KIP-595 (an epoch's first record is its
LeaderChange).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final, NamedTuple, Protocol, runtime_checkable

from records.batch import Batch, ControlType, iter_records
from records.compression import Buffer
from records.control import LeaderChangeMessage
from records.errors import RecordError
from records.frame import (
    METADATA_RECORDS,
    control_record_type,
    decode_control_record,
    read_frame,
)
from spark_jobs.audit.ledger import APPLIED
from spark_jobs.audit.rows import EndState, end_state_of, marker_rows_of, rows_of
from spark_jobs.audit.rules import Fault, Faults, Findings, rule
from spark_jobs.audit.transactions import FirstBatch, Marker, first_batches_of, markers_of
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Span
from spark_jobs.tables.commits import CommitColumns
from spark_jobs.tables.markers import MARKERS_KEY, MarkerColumns
from spark_jobs.tables.schemas import OBJECT_COMMIT_KEY

CONTROL: Final = "control"


@runtime_checkable
class BatchSpan(Protocol):
    """A span that can return its batches as they were written, control records included."""

    def batches(self) -> Iterator[Batch]:
        """Return the whole batches that hold any offset of this span of the log."""
        ...


class BatchRange(NamedTuple):
    """The offsets and epochs of a batch, or of a span of batches."""

    base_offset: int
    end_offset: int  # exclusive
    first_epoch: int
    last_epoch: int
    leader_change: bool  # is its first record one?


class Leader(NamedTuple):
    """The contents of a LeaderChange record."""

    offset: int
    epoch: int
    leader_id: int


class Event(NamedTuple):
    """A record other than a commit, undecoded."""

    offset: int
    value: bytes  # with its frame


@dataclass(slots=True)
class SpanSummary:
    """Contents and findings of one span, from the first pass."""

    start_offset: int
    end_offset: int  # exclusive
    is_checkpoint: bool
    batch_range: BatchRange | None = None  # None: of no batch
    leaders: list[Leader] = field(default_factory=list)
    types: Counter[tuple[int, int]] = field(default_factory=Counter)  # by type and version
    control: Counter[int] = field(default_factory=Counter)
    unknown: dict[tuple[int, int], int] = field(default_factory=dict)  # the first offset of each
    events: list[Event] = field(default_factory=list)
    commits: int = 0
    ends: EndState = field(default_factory=EndState)
    first_batches: list[FirstBatch] = field(default_factory=list)  # of transactions
    markers: list[Marker] = field(default_factory=list)
    newest_ms: int = -1  # time of the newest commit or marker, ms since 1970
    findings: Findings = field(default_factory=Findings)
    unreadable: str | None = None  # why reading ended early
    readable_end: int = 0  # exclusive; behind the last batch that was read whole
    is_gone: bool = False  # a file is missing: perhaps deleted while the audit ran


# --- the rules ----------------------------------------------------------------------------------


@rule("log-readable", "2", "Every committed batch of a log is there, and its checksum is right.")
def log_readable(parts: Iterable[SpanSummary]) -> Faults:
    for part in parts:
        if part.unreadable is not None:
            yield Fault(part.start_offset, part.unreadable)


@rule("log-offsets-gapless", "2", "Each batch of a log begins at the offset where the last ended.")
def log_offsets_gapless(ranges: Iterable[BatchRange]) -> Faults:
    for before, after in pairwise(ranges):
        if after.base_offset != before.end_offset:
            what = f"begins at {after.base_offset}, the one before it ended at {before.end_offset}"
            yield Fault(after.base_offset, what, "batch")


@rule("log-epochs-rise", "1", "Epochs never go back along a log.")
def log_epochs_rise(ranges: Iterable[BatchRange]) -> Faults:
    for before, after in pairwise(ranges):
        if after.first_epoch < before.last_epoch:
            what = f"epoch {after.first_epoch} after {before.last_epoch}"
            yield Fault(after.base_offset, what, "batch")


@rule("epoch-begins-with-leader", "1", "The first record of an epoch is its LeaderChange.")
def epoch_begins_with_leader(ranges: Sequence[BatchRange]) -> Faults:
    if ranges and ranges[0].base_offset == 0 < ranges[0].end_offset and not ranges[0].leader_change:
        yield Fault(0, f"epoch {ranges[0].first_epoch} begins with something else", "batch")
    for before, after in pairwise(ranges):
        if after.first_epoch > before.last_epoch and not after.leader_change:
            what = f"epoch {after.first_epoch} begins with something else"
            yield Fault(after.base_offset, what, "batch")


@rule("one-leader", "1", "An epoch has one leader.")
def one_leader(leaders: Iterable[Leader]) -> Faults:
    known: dict[int, Leader] = {}
    for leader in leaders:
        first = known.setdefault(leader.epoch, leader)
        if first is not leader:
            ids = f"{leader.leader_id}, and by {first.leader_id} before"
            what = f"epoch {leader.epoch} is led by {ids}"
            yield Fault(leader.offset, what, "LeaderChangeMessage")


_RANGE_RULES: Final = {
    "log-offsets-gapless": log_offsets_gapless,
    "log-epochs-rise": log_epochs_rise,
    "epoch-begins-with-leader": epoch_begins_with_leader,
}


def check_ranges(log: str, ranges: Sequence[BatchRange], findings: Findings) -> None:
    """Check that the batch ranges of a log are adjacent in offsets, and that epochs never fall."""
    for name, check in _RANGE_RULES.items():
        findings.add(name, log, check(ranges))


def check_spans(log: str, parts: Sequence[SpanSummary], findings: Findings) -> None:
    """Check that a log's spans are readable and adjacent, with at most one leader per epoch.

    Nothing is said of how the spans before and behind an unreadable one fit together.
    """
    findings.add("log-readable", log, log_readable(parts))
    for is_readable, group in groupby(parts, lambda part: part.unreadable is None):
        if is_readable:
            check_ranges(log, _bounded_ranges([*group]), findings)
    findings.add("one-leader", log, one_leader(one for part in parts for one in part.leaders))


def _bounded_ranges(parts: Sequence[SpanSummary]) -> list[BatchRange]:
    """Return the batch ranges of adjacent spans, between empty ranges at their planned bounds."""
    ranges = [part.batch_range for part in parts if part.batch_range is not None]
    planned = [part for part in parts if not part.is_checkpoint]
    if not ranges or not planned:
        return ranges
    begin, end = planned[0].start_offset, planned[-1].end_offset
    first, last = ranges[0].first_epoch, ranges[-1].last_epoch
    return [
        BatchRange(begin, begin, first, first, False),
        *ranges,
        BatchRange(end, end, last, last, False),
    ]


# --- the first pass -----------------------------------------------------------------------------


def summarise_span(log: str, span: Span, *, keeps_events: bool = True) -> SpanSummary:
    """Read a span of the log once, check its batches, and return a summary of its contents.

    An unreadable record ends the reading: `unreadable` says why, `log-readable` reports it, and
    the rest of the summary is of no use but for `readable_end`.

    Args:    keeps_events: also keep all records that are not commits, and the columns of commits.
    """
    found = SpanSummary(
        span.start_offset, span.end_offset, span.is_checkpoint, readable_end=span.start_offset
    )
    ranges: list[BatchRange] = []
    columns, markers = CommitColumns(), MarkerColumns()
    try:
        for position, value in _values(span, found, ranges):
            key, version, _ = read_frame(value)
            found.types[key, version] += 1
            known = METADATA_RECORDS.get(key)
            if known is None or version not in known.schema().versions:
                found.unknown.setdefault((key, version), position.offset)
            elif key == OBJECT_COMMIT_KEY:
                found.commits += 1
                if keeps_events:
                    columns.add(position, value)
            elif key == MARKERS_KEY:
                markers.add(position, value)
            elif keeps_events and known in APPLIED:
                found.events.append(Event(position.offset, bytes(value)))
        rows, ends = rows_of(columns.take()), marker_rows_of(markers.take())
        found.ends = end_state_of(rows, ends)
        found.first_batches, found.markers = first_batches_of(rows, ends), markers_of(ends)
        times = (one["committed_at_ms"].max(initial=-1) for one in (rows, ends))
        found.newest_ms = int(max(times))
    except (RecordError, LostRangeError) as error:
        found.unreadable = str(error)
        found.is_gone = isinstance(error, LostRangeError)
    if ranges:
        check_ranges(log, ranges, found.findings)
        first, last = ranges[0], ranges[-1]
        found.batch_range = BatchRange(
            first.base_offset, last.end_offset, first.first_epoch, last.last_epoch,
            first.leader_change,
        )  # fmt: skip
    return found


def _values(
    span: Span, found: SpanSummary, ranges: list[BatchRange]
) -> Iterator[tuple[LogPosition, Buffer]]:
    """Yield a span's metadata records, and add its batch ranges and leaders to the summary."""
    if span.is_checkpoint or not isinstance(span, BatchSpan):
        yield from span.values()
        return
    start, end = span.start_offset, span.end_offset
    for batch in span.batches():
        header = batch.header
        leader = None
        if header.is_control:
            for record in iter_records(batch):
                kind = control_record_type(record.key)
                found.control[kind] += 1
                if kind == ControlType.LEADER_CHANGE:
                    message = decode_control_record(record.key, record.value)
                    assert isinstance(message, LeaderChangeMessage), f"type 2 is {message}"
                    leader = Leader(record.offset, header.leader_epoch, message.leader_id)
                    found.leaders.append(leader)
        first = max(header.base_offset, start)
        ranges.append(
            BatchRange(
                first, min(header.end_offset, end), header.leader_epoch, header.leader_epoch,
                leader is not None and leader.offset == first,
            )
        )  # fmt: skip
        if not header.is_control:
            for record in iter_records(batch):
                if start <= record.offset < end and record.value is not None:
                    yield (
                        LogPosition(False, record.offset, header.leader_epoch, record.timestamp),
                        record.value,
                    )
        found.readable_end = min(header.end_offset, end)
