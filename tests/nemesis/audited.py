"""Audits a cluster after a run: the quorum's logs, the nodes' directories and every object.

The quorum is read as by an observer, while the cluster works.

Source: docs/design/pipeline.md#the-audit, docs/design/invariants.md; `spark_jobs.audit`.
"""

from __future__ import annotations

from typing import Final

from spark_jobs.audit.job import audit
from spark_jobs.audit.one_log import AuditRequest, Report
from spark_jobs.audit.store import Depth
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.inputs import Inputs, open_logs
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import LogsError
from spark_jobs.readers.object_store import open_store
from tests.clients.cluster import EskerCluster
from tests.waiting import wait_until

SHOWN: Final = 5


class ViolationsError(Exception):
    """An audit was not clean."""


def check_audit(cluster: EskerCluster) -> Report:
    """Audit a cluster that works. Raises ViolationsError."""
    found: list[Report] = []

    def readable() -> bool:
        try:
            found.append(_audit(cluster))
        except (LogsError, LostRangeError):  # a new leader, or a log start that moved meanwhile
            return False
        return True

    wait_until(readable, "the logs can be read")
    return clean(found[-1])


def _audit(cluster: EskerCluster) -> Report:
    controllers = tuple(cluster.controllers)
    replicas = tuple(
        (f"node {node}", open_logs(Inputs(cluster.log_dir(node), controllers)))
        for node in cluster.quorum_ids
    )
    audit_request = AuditRequest(
        open_store(str(cluster.store)), depth=Depth.FULL, replicas=replicas
    )
    return audit(open_logs(Inputs(controllers=controllers)), LocalEngine(), audit_request)


def clean(report: Report) -> Report:
    """The report, if nothing is wrong. Raises ViolationsError."""
    kept = report.findings.kept
    if kept:
        first = [str(one) for name in kept for one in kept[name][:SHOWN]]
        raise ViolationsError(f"{report.findings.counts}: " + "; ".join(first))
    return report
