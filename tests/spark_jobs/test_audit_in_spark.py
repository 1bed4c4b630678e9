"""Spark finds the same violations as a local audit: the same rules, offsets and counts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from records.frame import encode_record
from spark_jobs.audit.job import audit
from spark_jobs.audit.one_log import AuditRequest, Report
from spark_jobs.audit.store import Depth
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.logs import CLUSTER_METADATA
from spark_jobs.readers.object_store import DirectoryStore
from tests.coordinator.batch.subjects import KEYS
from tests.spark_jobs.audit_plants import edit_commit
from tests.spark_jobs.audit_world import (
    COORDINATOR,
    DirectoryLogs,
    Entry,
    broken_rules,
    checkpoint_at,
    describe_findings,
    write_checkpoint,
    write_entries,
)
from tests.spark_jobs.test_audit_cluster import PLANTS, the_history
from tests.spark_jobs.test_audit_store import put, the_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def plain(report: Report) -> dict[str, Any]:
    found = asdict(report)
    found["findings"]["kept"] = {
        name: sorted(kept) for name, kept in found["findings"]["kept"].items()
    }
    return found


def test_spark_and_the_local_engine_report_the_same_violations(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One world is sound; the other has faults in log, checkpoint, replica and store."""
    from spark_jobs.readers.engines import SparkEngine

    entries, objects = the_world()
    broken = edit_commit(edit_commit(list(entries), 7, broker_epoch=2), 9, size_bytes=1)
    chunked = PLANTS["chunks-adjoin"][0]()
    for name, life, records in (
        ("sound", list(entries), the_history()),
        ("broken", broken, chunked),
    ):
        end = write_entries(tmp_path / name / COORDINATOR, life, 6)
        written = [encode_record(record) for record in checkpoint_at(entries, end)]
        write_checkpoint(tmp_path / name / COORDINATOR, end, written)
        cluster = [Entry(1), *(Entry(record) for record in records)]
        write_entries(tmp_path / name / CLUSTER_METADATA, cluster)
    some = {number: data for number, data in objects.items() if number not in (3, 5)}
    put(tmp_path / "sound/store", objects)
    put(tmp_path / "broken/store", some)
    both = []
    for name in ("sound", "broken"):
        logs = DirectoryLogs(
            {log: tmp_path / name / log for log in (CLUSTER_METADATA, COORDINATOR)}
        )
        audit_request = AuditRequest(
            DirectoryStore(tmp_path / name / "store"), KEYS.prefix, Depth.FULL,
            (("another", DirectoryLogs({COORDINATOR: tmp_path / "sound" / COORDINATOR})),),
        )  # fmt: skip
        here = audit(logs, LocalEngine(), audit_request)
        assert plain(audit(logs, SparkEngine(spark, 4), audit_request)) == plain(here)
        both.append(here)
    sound, wrong = both
    assert not broken_rules(sound), describe_findings(sound)
    assert set(broken_rules(wrong)) == {
        "chunks-adjoin", "lease-owner", "footer-agrees", "bytes-inside", "object-whole",
        "object-exists", "checkpoint-objects-replay", "checkpoint-answers-replay",
        "replicas-agree",
    }  # fmt: skip
    assert broken_rules(wrong)["object-exists"] == 2
