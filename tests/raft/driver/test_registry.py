"""The durable list of a node's groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

from raft.driver.registry import Registry
from raft.segments.files import RealFileSystem
from raft.wire.responses import Group

GROUPS = [Group(topic="t", partition=number, topic_id=UUID(int=1)) for number in range(24)]


def test_raft_groups_added_by_several_threads_are_all_listed(tmp_path: Path) -> None:
    """A cluster's first groups are created together, each in a thread of its own."""
    registry = Registry(RealFileSystem(), tmp_path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(registry.add, GROUPS))
    assert Registry(RealFileSystem(), tmp_path).groups.keys() == {g.name for g in GROUPS}
