"""Logs come from one of three inputs; only committed records are read."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
import typer

from esker.commands.spark.inputs import inputs_of
from raft.segments.errors import CorruptFileError
from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import HIGH_WATERMARKS_FILE, write_high_watermarks
from raft.segments.properties import MetaProperties, write_meta_properties
from raft.segments.segment import segment_name
from records.metadata import NoOpRecord
from records.types import NodeId
from snapshot.errors import DamagedFileError
from spark_jobs.readers import inputs
from spark_jobs.readers.inputs import Inputs, open_logs
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import CLUSTER_METADATA, LogsError, coordinators_of
from tests.spark_jobs.logs import write_log

META = MetaProperties(cluster_id="xBIb", node_id=NodeId(1), directory_id=UUID(int=5))


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_meta_properties(RealFileSystem(), tmp_path, META)
    for name in (CLUSTER_METADATA, "__diskless-metadata-0", "__consumer_offsets-0"):
        write_log(tmp_path / name, [[NoOpRecord()]] * 10)
    return tmp_path


def mark(log_dir: Path, cluster: int, diskless: int) -> None:
    marks = {("__cluster_metadata", 0): cluster, ("__diskless-metadata", 0): diskless}
    write_high_watermarks(RealFileSystem(), log_dir, marks)


def test_a_job_reads_a_log_directory_without_a_quorum_up_to_its_saved_high_watermark(
    log_dir: Path,
) -> None:
    mark(log_dir, 7, 1_000)
    logs = open_logs(Inputs(log_dir=log_dir))
    assert (logs.cluster_id, coordinators_of(logs)) == ("xBIb", [0])
    log = logs.log(CLUSTER_METADATA)
    assert log.end_offset() == 7
    assert [p.offset for s in log.spans(7) for p, _ in s.values()] == list(range(7))
    assert logs.log("__diskless-metadata-0").end_offset() == 10  # the log lags what was committed
    mark(log_dir, 9, 1_000)
    assert log.end_offset() == 9  # as of now


def test_a_job_does_not_read_a_log_without_a_saved_high_watermark(log_dir: Path) -> None:
    with pytest.raises(LogsError, match="the high watermark of __cluster_metadata-0 is not"):
        open_logs(Inputs(log_dir=log_dir)).log(CLUSTER_METADATA)
    (log_dir / HIGH_WATERMARKS_FILE).write_text("0\n1\nnonsense\n")
    with pytest.raises(CorruptFileError, match="is no topic, partition and offset"):
        open_logs(Inputs(log_dir=log_dir)).log(CLUSTER_METADATA)


def test_a_job_ignores_a_torn_log_end_and_fails_on_a_damaged_committed_record(
    log_dir: Path,
) -> None:
    path = log_dir / CLUSTER_METADATA / segment_name(0)
    with path.open("ab") as file:
        file.write(bytes(200))  # as a crash leaves it
    mark(log_dir, 10, 10)
    log = open_logs(Inputs(log_dir=log_dir)).log(CLUSTER_METADATA)
    assert log.end_offset() == 10
    mark(log_dir, 11, 10)
    with pytest.raises(DamagedFileError):
        log.end_offset()
    os.truncate(path, path.stat().st_size - 201)  # inside the last batch: it came from elsewhere
    assert log.end_offset() == 9


def test_no_offset_range_of_a_log_directory_ends_above_the_high_watermark(log_dir: Path) -> None:
    """A stream that continues in another directory asks for offsets of the first."""
    mark(log_dir, 7, 10)
    log = open_logs(Inputs(log_dir=log_dir)).log(CLUSTER_METADATA)
    with pytest.raises(LostRangeError, match="only offsets below 7 are committed"):
        log.spans(9, start_offset=5)


class Quorum:
    """A quorum that has everything up to 10, and one epoch for all of it."""

    cluster_id = "xBIb"

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.logs = [CLUSTER_METADATA]

    def names(self) -> list[str]:
        return self.logs

    def log(self, name: str) -> Quorum:
        self.name = name
        return self

    def end_offset(self) -> int:
        return 10

    def contains(self, offset: int, epoch: int) -> bool:
        assert offset == 10
        return epoch == self.epoch


def test_spark_reads_no_uncommitted_record_from_an_isolated_node(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led epoch 1, and appended up to 10; then others led epoch 2, and committed up to 10."""
    both = Inputs(log_dir=log_dir, controllers=(("a", 1),))
    quorum = Quorum(epoch=1)
    monkeypatch.setattr(inputs, "QuorumLogs", lambda *_, **__: quorum)
    assert open_logs(both).log(CLUSTER_METADATA).end_offset() == 10
    quorum.epoch = 2
    with pytest.raises(LogsError, match="the high watermark of __cluster_metadata-0 is not"):
        open_logs(both)
    mark(log_dir, 6, 0)
    assert open_logs(both).log(CLUSTER_METADATA).end_offset() == 6
    quorum.logs = [CLUSTER_METADATA, "__diskless-metadata-0", "__diskless-metadata-1"]
    with pytest.raises(LogsError, match="has no log __diskless-metadata-1, which the cluster has"):
        open_logs(both)
    quorum.cluster_id = "another"
    with pytest.raises(LogsError, match="is of cluster xBIb, the quorum of another"):
        open_logs(both)


def test_opening_logs_without_a_source_or_from_two_sources_raises_an_error(tmp_path: Path) -> None:
    for place, said in (
        (Inputs(), "name the source of the logs"),
        (Inputs(log_dir=tmp_path), "is not a node's log directory"),
        (Inputs(archive="a", log_dir=tmp_path), "give no other source"),
        (Inputs(archive="gs://b"), "neither a directory nor s3://"),
    ):
        with pytest.raises(LogsError, match=said):
            open_logs(place)


def test_the_command_line_accepts_exactly_one_source_of_logs() -> None:
    assert inputs_of(None, "a:1,[::1]:2", None, 5) == Inputs(
        controllers=(("a", 1), ("::1", 2)), timeout_ms=5
    )
    for log_dir, quorum, archive in (
        (None, None, None),
        (Path("d"), None, "a"),
        (None, "a:1", "a"),
    ):
        with pytest.raises(typer.BadParameter, match="--archive"):
            inputs_of(log_dir, quorum, archive, 5)
