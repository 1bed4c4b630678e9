"""A cluster that died in every part audits clean: while it works, and what its nodes leave.

And an audit of real files finds what is wrong with them: a byte, an object.

Source: docs/design/pipeline.md#the-audit.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from typer.testing import CliRunner

from esker.cli import app
from spark_jobs.audit.job import audit
from spark_jobs.audit.one_log import AuditRequest, Report
from spark_jobs.audit.store import Depth
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.inputs import Inputs, open_logs
from spark_jobs.readers.logs import CLUSTER_METADATA, ReplicaLogs
from spark_jobs.readers.object_store import open_store
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.nemesis.audited import check_audit, clean
from tests.nemesis.broker_faults import SETTINGS, BrokerNemesis
from tests.nemesis.record_traffic import Traffic
from tests.nemesis.test_nemesis import seed_of_run
from tests.nemesis.test_two_coordinators import check

TOPIC = "records"
COORDINATOR = "__diskless-metadata-0"


def audit_of_files(cluster: EskerCluster, first: int, committed: dict[str, int]) -> Report:
    """Of dead nodes' directories, beginning with one."""
    logs = {node: ReplicaLogs(cluster.log_dir(node), committed) for node in cluster.quorum_ids}
    others = tuple((f"node {node}", other) for node, other in logs.items() if node != first)
    audit_request = AuditRequest(
        open_store(str(cluster.store)), "", Depth.FULL, others, f"node {first}"
    )
    return audit(logs[first], LocalEngine(), audit_request)


def test_spark_audit_of_a_cluster_whose_nodes_were_killed_finds_no_violation(
    tmp_path: Path,
) -> None:
    random = Random(seed_of_run())
    with EskerCluster(tmp_path / "cluster", settings=SETTINGS) as cluster:
        cluster.start()
        client = Confluent(cluster.bootstrap)
        client.create_topic(TOPIC, 4, {})
        with Traffic(cluster.bootstrap, TOPIC, 4) as traffic:
            BrokerNemesis(cluster, traffic, random).run(["kill_broker"])
            take_checkpoints(cluster)
            BrokerNemesis(cluster, traffic, random).run(["kill_coordinator"])
            check_audit(cluster)  # batches are committed and objects uploaded meanwhile
        check(cluster, traffic, TOPIC)  # which also ends the consumer
        quorum = open_logs(Inputs(controllers=tuple(cluster.controllers)))
        committed = {name: quorum.log(name).end_offset() for name in quorum.names()}
        cluster.kill()
        first = random.choice(cluster.quorum_ids)
        report = clean(audit_of_files(cluster, first, committed))
        of_coordinator = next(log for log in report.logs if log.name == COORDINATOR)
        assert of_coordinator.objects_read == of_coordinator.objects > 0
        assert len(of_coordinator.checkpoints) == len(cluster.quorum_ids)
        print(f"{of_coordinator.commits} commits, {of_coordinator.objects} objects read")
        spoil_and_find(cluster, first, committed)


def take_checkpoints(cluster: EskerCluster) -> None:
    controllers = ",".join(f"{host}:{port}" for host, port in cluster.controllers)
    for group in (CLUSTER_METADATA, COORDINATOR):
        words = ("snapshot", "take", "--group", group, "--bootstrap-controller", controllers)
        ran = CliRunner().invoke(app, words)
        assert not ran.exit_code, ran.output


def spoil_and_find(cluster: EskerCluster, first: int, committed: dict[str, int]) -> None:
    """A byte of one node's log, then an object."""
    path = min((cluster.log_dir(first) / COORDINATOR).glob("*.log"))
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at] ^= 1
    path.write_bytes(data)
    found = audit_of_files(cluster, first, committed).findings.counts
    assert "log-readable" in found, found
    data[at] ^= 1
    path.write_bytes(data)
    objects = (p for p in cluster.store.rglob("*") if p.is_file() and p.name.isdigit())
    newest = max(objects, key=lambda p: int(p.name))
    newest.unlink()
    found = audit_of_files(cluster, first, committed).findings.counts
    assert found == {"object-exists": 1}, found
