"""Tests with real processes that a running archive holds the log start, and reports what it loses.

The archived log is the benchmark's, whose records are no metadata records: kept as bytes.

Source: docs/design/snapshots.md#an-archive-holds-the-log-start.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from uuid import UUID

import pytest

from records.rpc.fetch import FetchResponse
from spark_jobs.archive.engines import LocalArchiveEngine
from spark_jobs.archive.hold import FIRST_REPLICA_ID, Hold, fetched_as, replica_id_of
from spark_jobs.archive.job import LogPass, archive, open_archive
from spark_jobs.readers.archive_layout import About
from spark_jobs.readers.archived_logs import ArchivedLogs
from spark_jobs.readers.object_store import ObjectStore, open_store
from spark_jobs.readers.quorum_link import Quorum
from spark_jobs.readers.quorum_logs import QuorumLog, QuorumLogs
from tests.raft.driver.cluster import CLUSTER_ID, Cluster
from tests.raft.driver.test_cluster import QUICK
from tests.raft.driver.test_snapshots import METADATA, fill, taken
from tests.waiting import wait_until

LOG = "esker-bench-log-0"
BOUND = 400_000
LIVE_MS = 3_000

CUT_UNLESS_HELD = {
    "live_ms": LIVE_MS,
    "max_retention_bytes": 0,
    "archive_max_lag_bytes": BOUND,
}


@dataclass
class BenchLogs:
    """The bench log, which jobs do not read by themselves."""

    quorum: Quorum
    cluster_id: str = CLUSTER_ID

    def names(self) -> list[str]:
        return [LOG]

    def log(self, name: str) -> QuorumLog:
        return QuorumLog(self.quorum, name)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(
        tmp_path / "nodes", quorum=QUICK, state="kv", log_starts=CUT_UNLESS_HELD
    ) as started:
        started.start()
        started.wait_for_leader()
        yield started


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "archive").mkdir()
    return open_store(str(tmp_path / "archive"))


def logs_of(cluster: Cluster) -> BenchLogs:
    addresses = tuple(("127.0.0.1", port) for port in cluster.ports.values())
    return BenchLogs(Quorum(addresses, CLUSTER_ID, 1_000_000_000 + secrets.randbelow(10**6)))


def one_pass(logs: BenchLogs, store: ObjectStore, about: About) -> LogPass:
    (done,) = archive(logs, store, about=about, engine=LocalArchiveEngine())
    return done


def cut_unheld_log(cluster: Cluster) -> None:
    """Write a checkpoint of the cluster's log, and let the log begin there."""
    with cluster.client(cluster.wait_for_leader(METADATA)) as client:
        snapshot_id = taken(client, METADATA)
        wait_until(
            lambda: client.snapshots(METADATA).log_start_offset >= snapshot_id.offset,
            "the log is cut where nothing holds it",
        )


def test_a_running_archive_job_holds_the_log_start_back_up_to_a_maximum_lag(
    cluster: Cluster, store: ObjectStore
) -> None:
    logs = logs_of(cluster)
    about = open_archive(store, CLUSTER_ID)
    with (
        Hold(logs.quorum, about.archive_id, every_s=0.2) as hold,
        cluster.client(cluster.wait_for_leader()) as client,
    ):
        fill(client, 10)
        first = one_pass(logs, store, about)
        assert (first.start_offset, first.lost) == (0, [])
        hold.set_archived(LOG, first.end_offset)
        assert hold.wait_until_announced(LOG, first.end_offset, 20)

        # It has not got what follows: a checkpoint after that is no place to begin.
        fill(client, 10)
        held_at = taken(client)
        for _ in range(3):  # each log is looked at once a second
            cut_unheld_log(cluster)
        assert client.snapshots().log_start_offset <= first.end_offset

        # It has got it: the log moves on.
        second = one_pass(logs, store, about)
        assert second.start_offset == first.end_offset
        hold.set_archived(LOG, second.end_offset)
        wait_until(lambda: client.snapshots().log_start_offset == held_at.offset, "the log is cut")

        # Past the bound it goes without it.
        size = client.snapshots().log_size
        while client.snapshots().log_size < size + BOUND // 8:
            fill(client, 1)
        lost_to = taken(client)
        end_offset = client.end_offset()
        while client.snapshots().log_size < size + 2 * BOUND:
            fill(client, 5)
        wait_until(
            lambda: client.snapshots().log_start_offset >= lost_to.offset, "it waits no longer"
        )
        assert end_offset > second.end_offset

    third = one_pass(logs, store, about)
    assert third.lost == [(second.end_offset, lost_to.offset)]
    assert third.end_offset == third.log_end_offset
    links = ArchivedLogs(store).log(LOG).links
    assert [one.is_lost for one in links if one.is_checkpoint] == [True]
    assert links[0].start_offset == 0

    # The checkpoint came whole, byte for byte.
    spans = ArchivedLogs(store).log(LOG).spans(third.end_offset)
    assert spans[0].is_checkpoint
    copy = b"".join(batch.view for batch in spans[0].batches())
    files = [
        found
        for node in cluster.ids
        for found in cluster.log_dir(node).glob(f"{LOG}/*.checkpoint")
        if found.read_bytes() == copy
    ]
    assert files, "no replica has such a checkpoint"


def test_an_archive_job_announces_its_archived_offset_to_a_new_leader(
    cluster: Cluster, store: ObjectStore
) -> None:
    """The archive is soft state: no record mentions it, and none is needed."""
    logs = logs_of(cluster)
    about = open_archive(store, CLUSTER_ID)
    leader = cluster.wait_for_leader()
    with Hold(logs.quorum, about.archive_id, every_s=0.2) as hold:
        with cluster.client(leader) as client:
            fill(client, 2)
        hold.set_archived(LOG, 1)
        assert hold.wait_until_announced(LOG, 1, 20)
        cluster.kill(leader)
        leader = cluster.wait_for_leader()
        hold.set_archived(LOG, 2)
        assert hold.wait_until_announced(LOG, 2, 20)
        with cluster.client(leader) as client:
            fill(client, 2)
            taken(client)
            for _ in range(2):
                cut_unheld_log(cluster)
            assert client.snapshots().log_start_offset == 0
        # There is a checkpoint, and still the archive begins with the first record there ever was.
        done = one_pass(logs, store, about)
        assert (done.start_offset, done.end_offset) == (0, done.log_end_offset)
        assert [one.kind for one in ArchivedLogs(store).log(LOG).links] == ["log"]


def test_all_fetches_of_an_archive_job_use_one_replica_id(
    cluster: Cluster, store: ObjectStore
) -> None:
    """A new id for each pass would be one more observer that the log's start waits for."""
    about = open_archive(store, CLUSTER_ID)
    addresses = [("127.0.0.1", port) for port in cluster.ports.values()]
    for _ in range(2):
        logs = fetched_as(QuorumLogs(addresses), about.archive_id)
        (done,) = archive(logs, store, about=about, engine=LocalArchiveEngine())
        assert done.end_offset == done.log_end_offset > 0
    with cluster.client(cluster.wait_for_leader(METADATA)) as client:
        observers = client.describe(METADATA).observers
    assert [one.replica_id for one in observers] == [replica_id_of(about.archive_id)]


class Refusing:
    """A link to a leader that refuses an archive's first announcement."""

    errors: ClassVar[list[int]] = []

    def __init__(self, quorum: Quorum, name: str) -> None:
        assert (quorum.replica_id >= FIRST_REPLICA_ID, name) == (True, LOG)

    def call(self, *_: object) -> FetchResponse:
        return FetchResponse(error_code=self.errors.pop(0) if self.errors else 0, responses=())

    def close(self) -> None: ...


@pytest.mark.parametrize(("errors", "told"), [([31] * 10_000, False), ([31], True)])
def test_an_archived_offset_does_not_count_as_announced_while_the_leader_refuses_the_fetch(
    monkeypatch: pytest.MonkeyPatch, errors: list[int], told: bool
) -> None:
    monkeypatch.setattr("spark_jobs.archive.hold.QuorumLink", Refusing)
    monkeypatch.setattr(Refusing, "errors", errors)
    with Hold(Quorum((), CLUSTER_ID, -1), UUID(int=1), every_s=0.01) as hold:
        hold.set_archived(LOG, 7)
        assert hold.wait_until_announced(LOG, 7, 20 if told else 0.1) is told


def test_replica_ids_of_archives_differ_and_are_outside_of_the_node_ids() -> None:
    ids = {replica_id_of(UUID(int=number)) for number in range(1_000)}
    assert len(ids) > 990
    assert all(FIRST_REPLICA_ID <= one < 2**31 for one in ids)
