"""Audits logs, checkpoints, replicas and objects against each other.

    report = audit(logs, LocalEngine(), AuditRequest(store, depth=Depth.SAMPLE))
    report.findings.counts

Two passes read each coordinator's log, span by span, on either engine. The first keeps what is
small: the state that each span ends with, and every record that is not a commit. From these the
driver builds the ledger and the state before each span; with them the second pass judges the
commits of each span by itself. So the same rules run in this process and in Spark's tasks, and no
row for a batch travels.

The trap is what a clean audit does not prove. An invariant that the data cannot show (which writes
were acknowledged, or promised and not written down) is not audited, and the report names what was
skipped for want of a store or of a second replica.

Source: docs/design/pipeline.md#the-audit, docs/design/invariants.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from records.errors import RecordError
from spark_jobs.audit.one_log import AuditRequest, LogAudit, Progress, Report, log_if_there
from spark_jobs.audit.rows import EndState, TopicPartition
from spark_jobs.audit.rules import Fault, Faults, rule
from spark_jobs.audit.store import Depth
from spark_jobs.audit.transaction_log import (
    TRANSACTION_LOG,
    IdState,
    newest_transactions,
    open_not_ended,
)
from spark_jobs.readers.engines import Engine
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA, Logs, LogsError

LOGS_ONLY: Final = AuditRequest()

OTHER_LOGS: Final = ("__consumer_offsets-0", TRANSACTION_LOG)
"""Logs of which only the batches are checked, and that replicas agree."""


@rule("one-coordinator", "5", "A partition has batches at one coordinator only.")
def one_coordinator(logs: Sequence[tuple[str, EndState]]) -> Faults:
    owners: dict[TopicPartition, str] = {}
    for name, ends in logs:
        for place, high_watermark in ends.partitions.items():
            owner = owners.setdefault(place, name) if high_watermark else name
            if owner != name:
                what = f"{place[0]}-{place[1]} has batches in {owner} and in {name}"
                yield Fault(None, what)


def audit(
    logs: Logs,
    engine: Engine,
    audit_request: AuditRequest = LOGS_ONLY,
    progress: Progress = lambda _: None,
) -> Report:
    """Check all logs, and the requested objects and replicas, against the audit's rules.

    Raises:  LogsError, LostRangeError, StorageError, OSError: what could not be read at all.
    """
    report = Report(logs.cluster_id)
    ends = []
    names = logs.names()
    if not names:
        raise LogsError("there is no log to audit")
    known, why_unknown = _transaction_log(logs)
    for name in names:
        one = LogAudit(logs, name, engine, audit_request, report, progress)
        if name.startswith(DISKLESS_METADATA):
            ends.append((name, one.audit_coordinator()))
            if known is not None:
                found = open_not_ended(one.open, known, one.newest_ms)
                report.findings.add("open-not-ended", name, found)
            elif one.open:
                report.unchecked["open-not-ended"] = why_unknown
        elif name == CLUSTER_METADATA:
            one.audit_cluster()
        one.compare_replicas()
    for name in OTHER_LOGS:
        if name not in names and log_if_there(logs, name) is not None:
            one = LogAudit(logs, name, engine, audit_request, report, progress)
            one.audit_batches()
            one.compare_replicas()
    report.findings.add("one-coordinator", CLUSTER_METADATA, one_coordinator(ends))
    _note_unchecked(report, audit_request)
    report.findings.name_topics()
    return report


def _transaction_log(logs: Logs) -> tuple[dict[int, IdState] | None, str]:
    """Return the newest transactions of the transaction log; None, and why, if it is unreadable.

    It is read before the coordinators' logs: an end that it has is then in these, too.
    """
    try:
        return newest_transactions(logs.log(TRANSACTION_LOG)), ""
    except (LogsError, LostRangeError, RecordError, OSError) as error:
        return None, f"{TRANSACTION_LOG} cannot be read: {error}"


def _note_unchecked(report: Report, audit_request: AuditRequest) -> None:
    if audit_request.store is None:
        report.unchecked["object-exists, object-whole, footer-agrees, bytes-sound"] = "no --store"
    elif audit_request.depth is not Depth.FULL:
        which = (
            "of no object" if audit_request.depth is Depth.NONE else "of a sample of objects only"
        )
        report.unchecked["footer-agrees, bytes-sound"] = f"{which}: --bytes {audit_request.depth}"
    if not audit_request.replicas:
        report.unchecked["replicas-agree"] = "one replica was given"
    if not any(log.checkpoints for log in report.logs):
        why = "there is no checkpoint but the one that a log begins with"
        report.unchecked["checkpoint-*-replay"] = why
