"""Runs the parts of an audit that read bytes: one span at a time, in a task of an engine.

Arguments are pickled, and results are small: findings, end states, checksums. Rows of batches stay
in the task.

Source: docs/design/pipeline.md#the-audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from diskless.stores.interface import StorageError
from records.diskless import ObjectCommitRecord, TransactionMarkersRecord
from records.errors import RecordError
from records.frame import read_frame
from spark_jobs.audit import commits as audit_commits
from spark_jobs.audit import producers as audit_producers
from spark_jobs.audit.answers import HEADS, commit_heads
from spark_jobs.audit.checkpoint_rules import STANDALONE_RULES, checkpoint_readable
from spark_jobs.audit.checkpoints import CoordinatorFacts, read_checkpoint
from spark_jobs.audit.cluster import check_cluster
from spark_jobs.audit.commits import Commits
from spark_jobs.audit.ledger import Ledger
from spark_jobs.audit.log import SpanSummary, log_readable, summarise_span
from spark_jobs.audit.objects import (
    LiveState,
    OldRunsOf,
    death_offsets,
    live_at,
    marker_runs_of,
    old_runs,
    rewritten_runs,
    runs_of,
    used_after,
)
from spark_jobs.audit.replicas import BlockSums, sum_span
from spark_jobs.audit.rows import (
    NO_OBJECT,
    EndState,
    Numbers,
    Rows,
    joined,
    marker_rows_of,
    placed_rows,
    rows_of,
)
from spark_jobs.audit.rules import RULES, Fault, Findings, rules_of
from spark_jobs.audit.store import Bucket, check_store, claims_of, inspect_objects, missing_objects
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import Span
from spark_jobs.tables.commits import CommitColumns
from spark_jobs.tables.markers import MARKERS_KEY, MarkerColumns
from spark_jobs.tables.schemas import OBJECT_COMMIT_KEY

COMMIT_RULES: Final = (
    *rules_of(audit_commits.__name__),
    *rules_of(audit_producers.__name__),
    RULES["marked-unused"],
    RULES["removed-unused"],
)


@dataclass(slots=True)
class SpanVerdict:
    """Findings, live runs and objects of one span, from the second pass."""

    findings: Findings
    live: dict[int, LiveState]  # by the offset that it is as of
    objects: Numbers  # of commits: what `commit_heads` returns, a column each
    missing_objects: list[tuple[int, Fault]]
    read: int  # objects whose bytes were read
    old: OldRunsOf  # its runs that were replaced
    store_failed: StorageError | None = None  # then nothing is said of objects


@dataclass(frozen=True, slots=True)
class AuditContext:
    """Arguments that all tasks of a log's second pass share."""

    log: str
    ledger: Ledger
    end_offset: int
    offsets: tuple[int, ...]  # where states are compared, and the end
    bucket: Bucket | None


def summarise_part(log: str, keeps_events: bool, span: Span) -> SpanSummary:
    """Run the audit's first pass over one span of the log."""
    return summarise_span(log, span, keeps_events=keeps_events)


def read_facts(work: tuple[str, Span]) -> tuple[CoordinatorFacts | None, Findings]:
    """Read and check one checkpoint; return no state if the checkpoint is gone or damaged."""
    name, span = work
    findings = Findings()
    try:
        found, _ = read_checkpoint(span)
    except LostRangeError:  # a newer one has taken its place
        return None, findings
    except RecordError as error:
        findings.add("checkpoint-readable", name, checkpoint_readable(span.end_offset, str(error)))
        return None, findings
    findings.check(name, STANDALONE_RULES, found)
    return found, findings


def sum_batches(name: str, span: Span) -> tuple[BlockSums | None, Findings]:
    """Sum the hashes of a span's batches by block of offsets; None if the span is unreadable."""
    findings = Findings()
    try:
        return sum_span(span), findings
    except LostRangeError:  # cut off meanwhile, or told by the replica's own audit
        return None, findings
    except RecordError as error:
        part = SpanSummary(span.start_offset, span.end_offset, False, unreadable=str(error))
        findings.add("log-readable", name, log_readable([part]))
        return None, findings


def check_a_cluster(work: tuple[str, tuple[Span, ...], tuple[tuple[str, Span], ...]]) -> Findings:
    """Return the audit's findings about the cluster metadata log, from packed arguments."""
    return check_cluster(*work)


def judge_span(shared: AuditContext, work: tuple[Span, EndState]) -> SpanVerdict:
    """Run the audit's second pass over a span: check commits, undeleted batches and objects."""
    span, before = work
    findings = Findings()
    ledger = shared.ledger
    if span.is_checkpoint:
        _, rows = read_checkpoint(span)
        heads = np.zeros((len(HEADS) + 1, 0), np.int64)
    else:
        rows, markers = _appended_in(span)
        placed = placed_rows(rows, markers)
        commits = Commits(rows, placed, before, ledger, span.start_offset, span.end_offset)
        findings.check(shared.log, COMMIT_RULES, commits)
        heads = commit_heads(rows)
    runs = rows if span.is_checkpoint else joined(runs_of(rows), marker_runs_of(markers))
    offsets = [offset for offset in shared.offsets if offset >= span.end_offset]
    return _judge_runs(shared, rows, runs, offsets, SpanVerdict(findings, {}, heads, [], 0, {}))


def judge_rewritten(shared: AuditContext, ledger: Ledger) -> SpanVerdict:
    """Check the runs of batches in rewritten objects, as `judge_span` checks committed runs."""
    findings, runs = Findings(), rewritten_runs(ledger)
    marked = {object_id: offset for object_id, (offset, _) in ledger.marked.items()}
    for name, when, how, record in (
        ("marked-unused", marked, "marked", "ObjectsMarkedRecord"),
        ("removed-unused", ledger.removed, "removed", "ObjectsRemovedRecord"),
    ):
        findings.add(name, shared.log, used_after(runs, ledger, when, how, record))
    heads = np.zeros((len(HEADS) + 1, 0), np.int64)
    verdict = SpanVerdict(findings, {}, heads, [], 0, {})
    return _judge_runs(shared, runs, runs, shared.offsets, verdict)


def _judge_runs(
    shared: AuditContext, rows: Rows, runs: Rows, offsets: Sequence[int], verdict: SpanVerdict
) -> SpanVerdict:
    """Add live runs, replaced runs, and the faults of live objects to the verdict of a span."""
    ledger = shared.ledger
    deaths = death_offsets(runs, ledger)
    verdict.live = {offset: live_at(runs, deaths, offset) for offset in offsets}
    verdict.old = old_runs(runs, deaths, ledger)
    if shared.bucket is not None:
        used = np.unique(runs["object_id"][deaths >= shared.end_offset])
        used = used[used != NO_OBJECT]
        alive = used[~np.isin(used, [*ledger.marked, *ledger.removed])]
        try:
            inspections = inspect_objects(
                shared.bucket, claims_of(rows, alive, whole=rows is not runs)
            )
        except StorageError as error:  # an answer: engines raise only what is wrong with logs
            verdict.store_failed = error
            return verdict
        check_store(shared.log, inspections, verdict.findings)
        verdict.missing_objects = missing_objects(inspections)
        verdict.read = sum(inspection.footer is not None for inspection in inspections)
    return verdict


def _appended_in(span: Span) -> tuple[Rows, Rows]:
    """Return the batches of a span's commits, and its markers."""
    columns, markers = CommitColumns(), MarkerColumns()
    for place, value in span.values():
        key, version, _ = read_frame(value)
        if key == OBJECT_COMMIT_KEY and version in ObjectCommitRecord.schema().versions:
            columns.add(place, value)
        elif key == MARKERS_KEY and version in TransactionMarkersRecord.schema().versions:
            markers.add(place, value)
    return rows_of(columns.take()), marker_rows_of(markers.take())
