"""A real Kafka node starts from a directory that we wrote, and we go on from what it leaves.

Every file is ours: identity, election state, log with its indexes and epochs. The node recovers the
log, is elected after the epoch we left, replays our records, serves the topic they create, and
appends. What it appended continues our log.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from esker.server.storage import format_storage
from esker.settings.config import load_config
from raft.segments.files import RealFileSystem
from raft.segments.log import Log
from raft.segments.properties import (
    MetaProperties,
    QuorumState,
    read_quorum_state,
    write_meta_properties,
    write_partition_metadata,
    write_quorum_state,
)
from records.batch import iter_batches, iter_records
from records.batch_writer import build_value_batch
from records.frame import decode_record, encode_record
from records.metadata import (
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from records.types import METADATA_TOPIC_ID, Epoch, NodeId
from snapshot.names import BOOTSTRAP_NAME
from snapshot.reader import CheckpointReader
from tests.interop.esker_nodes import LEVELS_OF_KAFKA
from tests.interop.kafka_rpc import Connection
from tests.interop.kafka_run import Kafka, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.interop.ours import TIMESTAMP, append_leader_change
from tests.waiting import wait_until

pytestmark = pytest.mark.java

FILES = RealFileSystem()
NODE_ID = NodeId(1)
TOPIC = "written-by-esker"
TOPIC_ID = UUID("ee5ce2ee-5ce2-4e5c-8e5c-e2ee5ce2ee5c")
DIRECTORY_ID = UUID("d15c0000-0000-4000-8000-00000000d15c")
METADATA_VERSION = 27  # 4.1-IV1: every release since 4.1 reads it
OUR_EPOCH = Epoch(7)


@pytest.fixture(scope="module")
def continued(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that we began and Kafka continued; beside it `served.txt`: what Kafka served."""
    home = tmp_path_factory.mktemp("continued") / "node"
    plan = configure_node(kafka, home, node_id=NODE_ID, dynamic_voters=False)
    log = plan.directory / "__cluster_metadata-0"
    _write_node(plan.directory, log)
    (home / "ours.log").write_bytes((log / f"{0:020}.log").read_bytes())
    with plan.started(["PLAINTEXT"]) as node, Connection(node.ports["PLAINTEXT"]) as broker:
        topic = {"topic_id": None, "name": TOPIC}
        answer = broker.call(
            "metadata",
            12,
            topics=[topic],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        (served,) = answer.topics
        (home / "served.txt").write_text(f"{served.name} {served.topic_id}")
    return log


def _write_node(directory: Path, log_directory: Path) -> None:
    meta = MetaProperties(cluster_id=CLUSTER_ID, node_id=NODE_ID, directory_id=DIRECTORY_ID)
    directory.mkdir()
    write_meta_properties(FILES, directory, meta)
    log = Log.create(FILES, log_directory)
    append_leader_change(log, epoch=OUR_EPOCH, leader=NODE_ID, voters=[NODE_ID], kraft_version=0)
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION),
        TopicRecord(name=TOPIC, topic_id=TOPIC_ID),
        PartitionRecord(
            partition_id=0,
            topic_id=TOPIC_ID,
            replicas=(NODE_ID,),
            isr=(NODE_ID,),
            removing_replicas=(),
            adding_replicas=(),
            leader=-1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(DIRECTORY_ID,),
        ),
    ]
    log.append(
        build_value_batch(
            [encode_record(record) for record in records],
            base_offset=log.log_end_offset,
            leader_epoch=OUR_EPOCH,
            timestamp=TIMESTAMP,
        )
    )
    log.close()
    write_partition_metadata(FILES, log_directory, METADATA_TOPIC_ID)
    state = QuorumState(epoch=OUR_EPOCH, leader_id=NODE_ID, voters=(NODE_ID,))
    write_quorum_state(FILES, log_directory, state, version=0)


def test_kafka_serves_the_topic_in_a_log_written_by_esker(continued: Path) -> None:
    assert (continued.parents[1] / "served.txt").read_text() == f"{TOPIC} {TOPIC_ID}"


def test_kafka_appends_to_a_log_written_by_esker_without_changing_its_bytes(
    continued: Path,
) -> None:
    ours = (continued.parents[1] / "ours.log").read_bytes()
    # Our records are older than metadata.log.segment.ms, so Kafka went on in a new segment.
    written = b"".join(segment.read_bytes() for segment in sorted(continued.glob("*.log")))
    assert written.startswith(ours)
    appended = list(iter_batches(written, len(ours)))
    assert appended[0].header.is_control
    assert appended[0].header.leader_epoch > OUR_EPOCH
    found = _metadata_records(written[len(ours) :])
    assert any(isinstance(r, RegisterBrokerRecord) and r.broker_id == NODE_ID for r in found)
    changes = [r for r in found if isinstance(r, PartitionChangeRecord) and r.topic_id == TOPIC_ID]
    assert changes[0].leader == NODE_ID, "Kafka elects a leader for our partition"


def test_esker_opens_a_log_of_esker_to_which_kafka_appended_records(continued: Path) -> None:
    """Although its recovery point is the one we left before Kafka wrote."""
    log = Log.open(FILES, continued)
    try:
        epochs = [entry.epoch for entry in log.epochs]
        assert epochs[0] == OUR_EPOCH
        assert len(epochs) == 2
        state = read_quorum_state(FILES, continued)
        assert state is not None
        assert state.epoch == epochs[-1]
        assert state.leader_id == NODE_ID
    finally:
        log.close()


def test_kafka_starts_in_a_directory_that_esker_formatted(kafka: Kafka, tmp_path: Path) -> None:
    """From the same properties file, with the records of our bootstrap checkpoint."""
    plan = configure_node(
        kafka, tmp_path / "node", node_id=NODE_ID, roles="controller", dynamic_voters=False
    )
    config = load_config(plan.properties)
    formatted = format_storage(config, CLUSTER_ID, features=LEVELS_OF_KAFKA)
    assert formatted.log_dir == plan.directory
    log = plan.directory / "__cluster_metadata-0" / f"{0:020}.log"
    with plan.started(["CONTROLLER"]) as node:
        wait_until(
            lambda: log.exists() and EndTransactionRecord() in _metadata_records(log.read_bytes()),
            state=node.said,
        )
    with CheckpointReader(FILES, plan.directory / BOOTSTRAP_NAME) as reader:
        expected = [record for _, record in reader.records()]
    written = _metadata_records(log.read_bytes())
    start = written.index(BeginTransactionRecord(name="Bootstrap records")) + 1
    assert written[start : start + len(expected)] == expected


def _metadata_records(data: bytes) -> list[MetadataRecord]:
    """The metadata records in a log's bytes; Kafka may be writing the last batch."""
    return [
        decode_record(record.value or b"")
        for batch in iter_batches(data, allow_partial_tail=True)
        if not batch.header.is_control
        for record in iter_records(batch)
    ]
