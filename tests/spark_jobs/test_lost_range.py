"""Tests that lost offsets end every command with exit code 6.

Source: docs/design/pipeline.md#exit-codes.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from esker.commands.spark import app
from esker.commands.spark.session import spark_session
from spark_jobs.readers.logs import CLUSTER_METADATA
from spark_jobs.session import spark_session as session
from tests.spark_jobs.audit_world import CLUSTER_ID, COORDINATOR, Entry, write_entries
from tests.spark_jobs.logs import mark_committed
from tests.spark_jobs.test_audit_cluster import the_history
from tests.spark_jobs.test_audit_store import the_world
from tests.spark_jobs.test_failures import JOB_ABORTED


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return a node whose coordinator's log has lost its head and the checkpoint for it."""
    entries, _ = the_world()
    directory = tmp_path / "node1"
    cluster = [Entry(1), *(Entry(one) for one in the_history())]
    ends = {
        CLUSTER_METADATA: write_entries(directory / CLUSTER_METADATA, cluster),
        COORDINATOR: write_entries(directory / COORDINATOR, list(entries), per_segment=5),
    }
    (directory / COORDINATOR / f"{0:020}.log").unlink()
    mark_committed(directory, ends, CLUSTER_ID)
    (tmp_path / "store").mkdir()
    return directory


COMMANDS = {
    "audit": ("audit",),
    "archive": ("archive", "--out", "{}/archive"),
    "orphans plan": (
        "orphans", "plan", "--store", "{}/store", "--listings", "{}/seen", "--out", "{}/plan.jsonl"
    ),
    "orphans dangling": ("orphans", "dangling", "--store", "{}/store"),
    "report": ("report", "--out", "{}/report"),
    "retention plan": ("retention", "plan", "--digests", "{}/kept", "--out", "{}/plan.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_spark_job_whose_requested_offsets_were_deleted_exits_with_6(
    node: Path, words: tuple[str, ...]
) -> None:
    filled = [word.format(node.parent) for word in words]
    done = CliRunner().invoke(app, [*filled, "--log-dir", str(node)])
    assert done.exit_code == 6, (done.output, done.exception)
    assert "offsets from 0 on are gone" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("spark_jobs.readers.log_files.LostRangeError: log-0: offsets from 0 on are gone", 6),
        ("spark_jobs.readers.logs.LogsError: log-0: nobody leads", 3),
    ],
)
def test_a_spark_job_whose_worker_finds_that_requested_offsets_were_deleted_exits_with_6(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: str, code: int
) -> None:
    """Spark reports a worker's error as text."""
    monkeypatch.setattr(session, "start_session", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(session, "stop_session", lambda _: None)
    with (
        pytest.raises(typer.Exit) as ended,
        spark_session("job", None, "1g", tmp_path / "spark.log"),
    ):
        raise PySparkException(JOB_ABORTED.format(raised=raised))
    assert ended.value.exit_code == code
