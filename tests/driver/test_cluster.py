"""Three real processes: they elect, commit, survive kill -9, and catch up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver.client import ClientError
from tests.driver.cluster import Cluster


def test_three_processes_elect_a_leader_and_commit(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            first = client.produce([b"one", b"two"])
            assert client.produce([b"three"]) == first + 2
            assert client.end_offset() == first + 3
            assert [value for _, value in client.read(first)] == [b"one", b"two", b"three"]
        follower = next(node for node in cluster.ids if node != leader)
        with cluster.client(follower) as client, pytest.raises(ClientError) as refused:
            client.produce([b"not here"])
        assert refused.value.error == 6  # NOT_LEADER_OR_FOLLOWER
        assert set(cluster.stop().values()) == {0}
