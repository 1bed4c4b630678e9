"""What an audit does where the bytes are: a span at a time, in a task of an engine's.

What goes in is pickled, and what comes out is small: findings, ends, checksums. Rows of batches
stay here.

Source: docs/design/pipeline.md#the-audit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from diskless.stores.interface import StorageError
from records.diskless import ObjectCommitRecord
from records.errors import RecordError
from records.frame import read_frame
from spark_jobs.audit import commits as audit_commits
from spark_jobs.audit import producers as audit_producers
from spark_jobs.audit.answers import HEADS, heads_of
from spark_jobs.audit.checkpoints import SOUND, Facts, checkpoint_readable, facts_of
from spark_jobs.audit.cluster import check_cluster
from spark_jobs.audit.commits import Commits
from spark_jobs.audit.ledger import Ledger
from spark_jobs.audit.log import Gathered, gather, log_readable
from spark_jobs.audit.objects import Live, died, live_at, runs_of
from spark_jobs.audit.replicas import Sums, sums_of
from spark_jobs.audit.rows import Ends, Numbers, Rows, rows_of
from spark_jobs.audit.rules import RULES, Fault, Findings, rules_of
from spark_jobs.audit.store import Bucket, check_store, claims_of, look_at, missing
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import Span
from spark_jobs.tables.commits import CommitColumns
from spark_jobs.tables.schemas import OBJECT_COMMIT_KEY

COMMIT_RULES: Final = (
    *rules_of(audit_commits.__name__),
    *rules_of(audit_producers.__name__),
    RULES["marked-unused"],
    RULES["removed-unused"],
)


@dataclass(slots=True)
class Judged:
    """What the second pass found in one span."""

    findings: Findings
    live: dict[int, Live]  # by the offset that it is as of
    objects: Numbers  # of commits: what `heads_of` tells, a column each
    missing: list[tuple[int, Fault]]
    read: int  # objects whose bytes were read
    store_failed: StorageError | None = None  # then nothing is said of objects


@dataclass(frozen=True, slots=True)
class Shared:
    log: str
    ledger: Ledger
    end_offset: int
    offsets: tuple[int, ...]  # where states are compared, and the end
    bucket: Bucket | None


def gather_part(log: str, keeps_events: bool, span: Span) -> Gathered:
    return gather(log, span, keeps_events=keeps_events)


def read_facts(work: tuple[str, Span]) -> tuple[Facts | None, Findings]:
    name, span = work
    findings = Findings()
    try:
        found, _ = facts_of(span)
    except LostRangeError:  # a newer one has taken its place
        return None, findings
    except RecordError as error:
        findings.add("checkpoint-readable", name, checkpoint_readable(span.end_offset, str(error)))
        return None, findings
    findings.check(name, SOUND, found)
    return found, findings


def add_up(name: str, span: Span) -> tuple[Sums | None, Findings]:
    """What a replica has of a span; None if it cannot be read."""
    findings = Findings()
    try:
        return sums_of(span), findings
    except LostRangeError:  # cut off meanwhile, or told by the replica's own audit
        return None, findings
    except RecordError as error:
        part = Gathered(span.start_offset, span.end_offset, False, unreadable=str(error))
        findings.add("log-readable", name, log_readable([part]))
        return None, findings


def check_a_cluster(work: tuple[str, tuple[Span, ...], tuple[tuple[str, Span], ...]]) -> Findings:
    return check_cluster(*work)


def judge(shared: Shared, work: tuple[Span, Ends]) -> Judged:
    span, before = work
    findings = Findings()
    ledger = shared.ledger
    if span.is_checkpoint:
        _, rows = facts_of(span)
        heads = np.zeros((len(HEADS) + 1, 0), np.int64)
    else:
        rows = _commits_in(span)
        commits = Commits(rows, before, ledger, span.start_offset, span.end_offset)
        findings.check(shared.log, COMMIT_RULES, commits)
        heads = heads_of(rows)
    runs = rows if span.is_checkpoint else runs_of(rows)
    deaths = died(runs, ledger)
    live = {
        offset: live_at(runs, deaths, offset)
        for offset in shared.offsets
        if offset >= span.end_offset
    }
    missed: list[tuple[int, Fault]] = []
    read = 0
    if shared.bucket is not None:
        used = np.unique(runs["object_id"][deaths >= shared.end_offset])
        alive = used[~np.isin(used, [*ledger.marked, *ledger.removed])]
        try:
            looks = look_at(shared.bucket, claims_of(rows, alive, whole=not span.is_checkpoint))
        except StorageError as error:  # an answer: engines raise only what is wrong with logs
            return Judged(findings, live, heads, [], 0, error)
        check_store(shared.log, looks, findings)
        missed = missing(looks)
        read = sum(look.footer is not None for look in looks)
    return Judged(findings, live, heads, missed, read)


def _commits_in(span: Span) -> Rows:
    columns = CommitColumns()
    for place, value in span.values():
        key, version, _ = read_frame(value)
        if key == OBJECT_COMMIT_KEY and version in ObjectCommitRecord.schema().versions:
            columns.add(place, value)
    return rows_of(columns.take())
