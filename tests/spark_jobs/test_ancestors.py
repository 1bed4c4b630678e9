"""Jobs find the objects of a restored cluster's ancestors.

Source: docs/design/restore.md#keys-of-older-objects.
"""

from __future__ import annotations

from pathlib import Path

from raft.driver.config import METADATA_GROUP
from records.object_keys import ObjectKeys
from spark_jobs.readers.logs import ReplicaLogs
from spark_jobs.tables.ancestors import ancestors_of
from tests.esker.restore.lost import CLUSTER_ID, lost_logs, write_node
from tests.esker.restore.test_directories import NEW_ID, make_home, restore


def test_the_keys_of_a_restored_clusters_older_objects_name_the_lost_cluster(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path)
    restore(home, home / "101")
    path = home / "new" / "1"
    (checkpoint,) = (path / METADATA_GROUP.name).glob("*.checkpoint")
    end = int(checkpoint.name.partition("-")[0])
    logs = ReplicaLogs(path, high_watermarks={METADATA_GROUP.name: end})
    keys = ObjectKeys(
        prefix="",
        cluster_id=logs.cluster_id,
        coordinator_partition=0,
        ancestors=ancestors_of(logs),
    )
    assert (keys.writer(1), keys.writer(1 << 30)) == (CLUSTER_ID, NEW_ID)
    assert (home / "store" / keys.key(1)).exists()


def test_a_cluster_that_was_never_restored_has_no_ancestors(tmp_path: Path) -> None:
    logs = lost_logs()
    path = write_node(tmp_path / "101", logs)
    found = ReplicaLogs(path, high_watermarks={METADATA_GROUP.name: len(logs[METADATA_GROUP])})
    assert ancestors_of(found).clusters == ()
