"""Deleted records leave the object store although their objects have live neighbours.

With real processes and files: `esker.delete.physical.max.ms`, docs/design/compaction.md.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.clients.client import Message
from tests.clients.cluster import EskerCluster
from tests.clients.world import World, values
from tests.nemesis.audited import check_audit
from tests.waiting import wait_until

SETTINGS: Final = {
    "diskless.file.delete.delay.ms": "2000",
    "esker.file.delete.interval.ms": "200",
    "esker.compaction.interval.ms": "300",
    "esker.compaction.min.age.ms": "1",
    "esker.compaction.max.wait.ms": "1",
    "esker.compaction.min.saved.runs": "6",  # of nine
    "esker.delete.physical.max.ms": "9200",
}
SECRET: Final = b"secret"


def stored(cluster: EskerCluster) -> list[bytes]:
    """Return the bytes of each object of batches in the store that is not deleted meanwhile."""
    found = []
    for path in cluster.store.rglob("[0-9]*"):
        if path.is_file() and "probe" not in path.parts:
            with suppress(FileNotFoundError):
                found.append(path.read_bytes())
    return found


def test_brokers_remove_the_bytes_of_deleted_records_from_merged_objects_with_live_batches(
    tmp_path: Path,
) -> None:
    with EskerCluster(tmp_path, quorum=(1,), brokers=1, settings=SETTINGS) as cluster:
        cluster.start()
        world = World(cluster.brokers)
        gone, cut, kept = world.topic(), world.topic(), world.topic()
        for number in range(3):
            world.other.send(gone, [Message(SECRET)] * 4)
            first = SECRET if number < 2 else b"public"
            world.other.send(cut, [Message(SECRET), Message(first), Message(b"public")])
            world.other.send(kept, [Message(b"public %d" % number)])
        # One object has all: runs were merged, so that the coordinator notes deletions from now on.
        wait_until(lambda: len(stored(cluster)) == 1, "the objects are merged, and deleted")
        assert SECRET in stored(cluster)[0]
        world.other.delete_topic(gone)
        world.other.delete_records(cut, 0, 7)
        wait_until(
            lambda: not any(SECRET in data for data in stored(cluster)),
            "no object has the bytes of deleted records",
            state=lambda: [(len(data), data.count(SECRET)) for data in stored(cluster)],
        )
        assert values(world.other.read(kept, 3)) == [b"public 0", b"public 1", b"public 2"]
        assert values(world.other.read(cut, 2)) == [b"public"] * 2
        check_audit(cluster)
        cluster.check_alive()
