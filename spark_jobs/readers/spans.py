"""Plans a read: the spans to read, and remarks about offsets that were deleted.

    plan = plan_spans(logs.log(name), name, end_offset, start_offset=None)
    plan.spans, plan.remarks

A log's head is cut now and then, and a checkpoint stands for the deleted records. For a read from
the beginning that is no loss: the log then begins with the checkpoint, and a remark says so. A read
from a deleted offset wants the records themselves, and raises an error; or, if the caller allows
it, reads the checkpoint and what follows it, with a remark that names what is missing.

Source: KIP-630 (a log begins with a checkpoint once its head is cut);
docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spark_jobs.readers.log_files import SPLIT_BYTES, FileSpan, LostRangeError
from spark_jobs.readers.logs import Log, Span

TASK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of small segments that one task reads together."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Spans in order, and warnings about them."""

    log: str
    spans: Sequence[Span]
    remarks: tuple[str, ...] = ()


def plan_spans(
    log: Log,
    name: str,
    end_offset: int,
    *,
    start_offset: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    fail_on_data_loss: bool = True,
) -> ReadPlan:
    """Split a log from `start_offset` to `end_offset`, exclusive, into spans to be read.

    A `start_offset` of None is the beginning of the log.

    Raises:  LostRangeError; LogsError; OSError.
    """
    remarks: list[str] = []
    try:
        spans = log.spans(end_offset, start_offset=start_offset, split_bytes=split_bytes)
    except LostRangeError as error:
        if fail_on_data_loss:
            raise
        remarks.append(f"{name}: lost: {error}")
        spans = _after_the_loss(log, end_offset, error, split_bytes)
    if spans and spans[0].is_checkpoint:
        end = spans[0].end_offset
        remarks.append(f"{name}: offsets below {end} are read from the checkpoint there")
    return ReadPlan(name, spans, tuple(remarks))


def share_out(spans: Iterable[Span], task_bytes: int = TASK_BYTES) -> list[tuple[Span, ...]]:
    """Group neighbouring spans of a log into tasks of about `task_bytes` bytes each.

    A task costs more than a small segment.

    Spans that cannot say how large they are were cut to size already.
    """
    tasks: list[list[Span]] = []
    held = task_bytes
    for span in spans:
        size = span.size_bytes() if isinstance(span, FileSpan) else task_bytes
        if held + size > task_bytes:
            tasks.append([])
            held = 0
        tasks[-1].append(span)
        held += size
    return [tuple(task) for task in tasks]


def epoch_before(log: Log, offset: int) -> int | None:
    """Return the epoch of the record before an offset, or None if that record was deleted.

    Raises:  RecordError.
    """
    if offset == 0:
        return None
    try:
        spans = log.spans(offset, start_offset=offset - 1)
        epochs = [batch.header.leader_epoch for span in spans for batch in span.batches()]
    except LostRangeError:
        return None
    return epochs[-1] if epochs else None


def _after_the_loss(
    log: Log, end_offset: int, error: LostRangeError, split_bytes: int
) -> Sequence[Span]:
    """Return the spans of the log that are readable after a range of its offsets was lost."""
    try:
        return log.spans(end_offset, split_bytes=split_bytes)
    except LostRangeError as again:
        earliest = error.earliest if again.earliest is None else again.earliest
        if earliest is None or earliest >= end_offset:
            return ()
        return log.spans(end_offset, start_offset=earliest, split_bytes=split_bytes)
