"""Does everything still hold? Logs, checkpoints, replicas and objects against each other.

    report = audit(logs, LocalEngine(), Asked(bucket=..., depth=Depth.SAMPLE))
    report.findings.counts

Two passes over each coordinator's log, span by span, on whichever engine. The first reads what is
small: where each span leaves off, and every record that is no commit. Out of that come, here, the
ledger and what was before each span; with them the second pass judges the commits of each span by
itself. So the same rules run in this process and in Spark's tasks, and what travels is never a row
for each batch.

The surprise is what is not said. An invariant that the data cannot show (what was acknowledged, or
promised and not written down) is not audited, and what was left out for want of a store or of a
second replica is named in the report: a clean audit says what it looked at.

Source: docs/design/pipeline.md#the-audit, docs/design/invariants.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_jobs.audit.one_log import Asked, OneLog, Progress, Report
from spark_jobs.audit.rows import Ends, Place
from spark_jobs.audit.rules import Fault, Faults, rule
from spark_jobs.audit.store import Depth
from spark_jobs.readers.engines import Engine
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA, Logs, LogsError

NOTHING_ELSE: Final = Asked()


@rule("one-coordinator", "5", "A partition has batches at one coordinator only.")
def one_coordinator(logs: Sequence[tuple[str, Ends]]) -> Faults:
    owners: dict[Place, str] = {}
    for name, ends in logs:
        for place, high_watermark in ends.partitions.items():
            owner = owners.setdefault(place, name) if high_watermark else name
            if owner != name:
                what = f"{place[0]}-{place[1]} has batches in {owner} and in {name}"
                yield Fault(None, what)


def audit(
    logs: Logs,
    engine: Engine,
    asked: Asked = NOTHING_ELSE,
    progress: Progress = lambda _: None,
) -> Report:
    """Hold everything to every rule that the data can show.

    Raises:  LogsError, LostRangeError, StorageError, OSError: what could not be read at all.
    """
    report = Report(logs.cluster_id)
    ends = []
    names = logs.names()
    if not names:
        raise LogsError("there is no log to audit")
    for name in names:
        one = OneLog(logs, name, engine, asked, report, progress)
        if name.startswith(DISKLESS_METADATA):
            ends.append((name, one.audit_coordinator()))
        elif name == CLUSTER_METADATA:
            one.audit_cluster()
        one.compare_replicas()
    report.findings.add("one-coordinator", CLUSTER_METADATA, one_coordinator(ends))
    _say_unchecked(report, asked)
    return report


def _say_unchecked(report: Report, asked: Asked) -> None:
    if asked.store is None:
        report.unchecked["object-exists, object-whole, footer-agrees, bytes-sound"] = "no --store"
    elif asked.depth is not Depth.FULL:
        which = "of no object" if asked.depth is Depth.NONE else "of a sample of objects only"
        report.unchecked["footer-agrees, bytes-sound"] = f"{which}: --bytes {asked.depth}"
    if not asked.replicas:
        report.unchecked["replicas-agree"] = "one replica was given"
    if not any(log.checkpoints for log in report.logs):
        why = "there is no checkpoint but what a log begins with"
        report.unchecked["checkpoint-*-replay"] = why
