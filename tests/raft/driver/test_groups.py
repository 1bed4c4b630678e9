"""Groups named together begin together.

Source: docs/design/quorum.md#groups-come-from-the-cluster-log.
"""

from raft.driver.registry import GROUPS_FILE
from tests.raft.driver.cluster import Cluster

TOPICS = ("__diskless-metadata", "__consumer_offsets", "esker-bench-log")


def test_raft_groups_named_by_one_metadata_transaction_start_concurrently(tmp_path):
    with Cluster(tmp_path, topics=TOPICS) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        for node in cluster.stop():
            listed = (cluster.log_dir(node) / GROUPS_FILE).read_text()
            assert all(f"{topic} 0 " in listed for topic in TOPICS), listed
