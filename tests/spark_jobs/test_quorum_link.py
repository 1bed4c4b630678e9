"""Answers at a controller's address are verified: each invalid one is an error in one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.fetch import FetchRequest
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from records.rpc.snapshots import DescribeSnapshotsRequest, DescribeSnapshotsResponse
from records.types import Epoch, Offset, OffsetAndEpoch
from spark_jobs.readers import quorum_link
from spark_jobs.readers.checkpoint_copy import copies_of, copy_checkpoint
from spark_jobs.readers.logs import LogsError
from spark_jobs.readers.quorum_link import Quorum, QuorumLink
from spark_jobs.readers.quorum_logs import QuorumLogs

QUORUM = Quorum((("controller", 1),), "", 1_000_000_000, timeout_ms=1)
LOG = "__cluster_metadata-0"

Topic = DescribeQuorumResponse.TopicData
Node = DescribeClusterResponse.DescribeClusterBroker


def leads(_: object) -> DescribeQuorumResponse:
    partition = Topic.PartitionData(
        partition_index=0, leader_id=1, leader_epoch=1, high_watermark=9, current_voters=(),
        observers=(),
    )  # fmt: skip
    topic = Topic(topic_name="__cluster_metadata", partitions=(partition,))
    return DescribeQuorumResponse(topics=(topic,))


def alone(_: object) -> DescribeClusterResponse:
    return DescribeClusterResponse(cluster_id="xBIb", brokers=())


@dataclass
class Controllers:
    """Answers by the request's class, whatever the address."""

    answers: dict[type, Callable[[Any], Any]]
    opened: list[tuple[str, int]] = field(default_factory=list)
    peer: str = "controller:1"

    async def open(self, host: str, port: int, *, timeout_ms: int, security: Any) -> Controllers:
        assert timeout_ms > 0
        assert security is None, "the process's own"
        self.opened.append((host, port))
        return self

    @property
    def connection(self) -> Controllers:
        return self

    def close(self) -> None: ...

    async def call(self, request: Any, response: type, version: int | None = None) -> Any:  # noqa: ARG002
        answer = self.answers[type(request)](request)
        return await answer if asyncio.iscoroutine(answer) else answer


@pytest.fixture
def controllers(monkeypatch: pytest.MonkeyPatch) -> Controllers:
    made = Controllers({DescribeQuorumRequest: leads, DescribeClusterRequest: alone})
    monkeypatch.setattr(quorum_link, "open_rpc", made.open)
    return made


@pytest.mark.parametrize(
    "topics", [(), (Topic(topic_name="__cluster_metadata", partitions=()),)], ids=["none", "empty"]
)
def test_a_controller_that_describes_no_log_is_not_the_leader(
    controllers: Controllers, topics: Any
) -> None:
    controllers.answers[DescribeQuorumRequest] = lambda _: DescribeQuorumResponse(topics=topics)
    with QuorumLink(QUORUM, LOG) as link, pytest.raises(LogsError, match="has no leader"):
        link.describe()


def test_the_search_for_a_leader_among_named_controllers_is_bounded(
    controllers: Controllers,
) -> None:
    number = count(2)

    def more(_: object) -> DescribeClusterResponse:
        nodes = (Node(broker_id=1, host="another", port=next(number)) for _ in range(50))
        return DescribeClusterResponse(cluster_id="xBIb", brokers=tuple(nodes))

    controllers.answers[DescribeQuorumRequest] = lambda _: DescribeQuorumResponse(topics=())
    controllers.answers[DescribeClusterRequest] = more
    with QuorumLink(QUORUM, LOG) as link, pytest.raises(LogsError, match="has no leader"):
        link.describe()
    assert len(controllers.opened) <= 2 * 64  # an attempt, perhaps two


def test_a_quorum_that_refuses_to_list_its_logs_raises_a_logs_error(
    controllers: Controllers,
) -> None:
    controllers.answers[DescribeSnapshotsRequest] = lambda _: DescribeSnapshotsResponse(
        error_code=31, groups=()
    )
    with (
        QuorumLink(QUORUM, LOG) as link,
        pytest.raises(LogsError, match="CLUSTER_AUTHORIZATION_FAILED"),
    ):
        link.names()


@pytest.mark.parametrize("cluster_id", ["", "..", "/etc", "a/b", "a\0", "a" * 256])
def test_a_job_refuses_a_cluster_id_that_could_be_used_as_a_path(
    controllers: Controllers, cluster_id: str
) -> None:
    """It names the directory of checkpoint copies, in which older ones are deleted."""
    controllers.answers[DescribeClusterRequest] = lambda _: DescribeClusterResponse(
        cluster_id=cluster_id, brokers=()
    )
    controllers.answers[DescribeSnapshotsRequest] = lambda _: DescribeSnapshotsResponse(groups=())
    with pytest.raises(LogsError, match="is not a cluster id"):
        QuorumLogs([("controller", 1)], timeout_ms=1)


@pytest.mark.parametrize("taken", ["writable", "linked"])
def test_a_job_refuses_checkpoint_copies_in_a_directory_that_others_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    copies = copies_of("xBIb", LOG)
    if taken == "linked":
        (tmp_path / "elsewhere").mkdir()
        copies.parent.parent.symlink_to(tmp_path / "elsewhere")
    else:
        copies.parent.parent.mkdir()
        copies.parent.parent.chmod(0o777)
    with (
        QuorumLink(QUORUM, LOG) as link,
        pytest.raises(LogsError, match="not this user's alone; set TMPDIR"),
    ):
        copy_checkpoint(link, copies, OffsetAndEpoch(Offset(3), Epoch(1)))


def test_closing_a_quorum_link_cancels_fetches_begun_in_advance(controllers: Controllers) -> None:
    asked = asyncio.Event()

    async def never(_: object) -> None:
        asked.set()
        await asyncio.get_running_loop().create_future()

    controllers.answers[FetchRequest] = lambda request: never(request)
    link = QuorumLink(QUORUM, LOG)
    pending = link.begin_fetch(7)
    link.close()
    assert pending.cancelled()
