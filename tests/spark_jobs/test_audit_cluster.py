"""Tests the rules about the cluster's own log: each plant breaks one rule alone, and logs of real
controllers are clean.

Source: docs/design/chunks.md; invariants 1, 4, 5 and 6 (docs/design/invariants.md); KIP-631,
KIP-1114.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from records.chunks import (
    ChunkChangeRecord,
    ChunkRecord,
    TopicPartitionToBatchCoordinatorMapping,
)
from records.frame import encode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from records.schema import MetadataRecord
from records.types import ZERO_UUID
from spark_jobs.readers.logs import CLUSTER_METADATA
from tests.spark_jobs.audit_world import (
    Entry,
    audit_directory,
    broken_rules,
    describe_findings,
    write_checkpoint,
    write_entries,
)

A, B = UUID(int=1), UUID(int=2)
Records = list[MetadataRecord]


def broker(broker_id: int, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id, is_migrating_zk_broker=False, incarnation_id=ZERO_UUID,
        broker_epoch=epoch, end_points=(), features=(), rack=None, fenced=True,
        in_controlled_shutdown=False, log_dirs=(),
    )  # fmt: skip


def partition(topic: UUID, index: int, **fields: Any) -> PartitionRecord:
    given: dict[str, Any] = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    return PartitionRecord(
        partition_id=index, topic_id=topic, replicas=(1,), isr=(1,), removing_replicas=(),
        adding_replicas=(), **(given | fields),
    )  # fmt: skip


def chunk(topic: UUID, start: int, end: int, **fields: Any) -> ChunkRecord:
    given: dict[str, Any] = {"stop_offset": end, "chunk_epoch": 0, "epoch": 0}
    return ChunkRecord(
        partition_id=0, topic_id=topic, start_offset=start, end_offset=end, start_timestamp=-1,
        replicas=(1,), directories=(), isr=(1,), removing_replicas=(), adding_replicas=(),
        **(given | fields),
    )  # fmt: skip


def change(topic: UUID, **fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=topic, **fields)


def the_history() -> Records:
    return [
        BeginTransactionRecord(),
        FeatureLevelRecord(name="metadata.version", feature_level=20),
        EndTransactionRecord(),
        broker(1, 4),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=-1),
        TopicRecord(name="a", topic_id=A),
        partition(A, 0),
        partition(A, 1),
        TopicPartitionToBatchCoordinatorMapping(
            partition_index=1, topic_id=A, batch_coordinator_partition_index=1
        ),
        ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="9"),
        chunk(A, 0, 9),
        change(A, start_offset=10, isr=(2,), replicas=(2,), leader=2),
        chunk(A, 10, 14),
        change(A, start_offset=15, replicas=(1,), isr=(1,), leader=1),
        ChunkChangeRecord(
            partition_id=0, topic_id=A, start_offset=0, replicas=(3,), isr=(3,), epoch=1
        ),
        ProducerIdsRecord(broker_id=1, broker_epoch=4, next_producer_id=1000),
        BeginTransactionRecord(),
        TopicRecord(name="never", topic_id=UUID(int=77)),
        AbortTransactionRecord(),
        TopicRecord(name="b", topic_id=B),
        partition(B, 0),
        RemoveTopicRecord(topic_id=B),
        TopicRecord(name="b", topic_id=UUID(int=3)),
        ChunkChangeRecord(partition_id=0, topic_id=A, start_offset=0, epoch=2),
        FenceBrokerRecord(id=1, epoch=4),
        broker(1, 40),
        broker(2, 41),
        UnregisterBrokerRecord(broker_id=2, broker_epoch=41),
    ]


def after(*records: MetadataRecord) -> Callable[[], Records]:
    return lambda: [*the_history(), *records]


PLANTS: Final[dict[str, list[Callable[[], Records]]]] = {
    "registrations-rise": [after(broker(1, 40)), after(broker(2, 41))],
    "broker-epochs-current": [
        after(FenceBrokerRecord(id=1, epoch=4)),
        after(UnregisterBrokerRecord(broker_id=2, broker_epoch=41)),
    ],
    "topics-named-once": [
        after(TopicRecord(name="a", topic_id=UUID(int=9))),
        after(TopicRecord(name="c", topic_id=A)),
        after(RemoveTopicRecord(topic_id=B)),
    ],
    "cluster-partitions-known": [
        after(partition(B, 1)),
        after(PartitionChangeRecord(partition_id=5, topic_id=A, leader=1)),
        after(ChunkChangeRecord(partition_id=0, topic_id=A, start_offset=3, replicas=(1,))),
    ],
    "partition-epochs-rise": [
        after(partition(A, 1, leader_epoch=1)),
        after(partition(A, 0, partition_epoch=9)),
    ],
    "chunk-ordered": [after(chunk(A, 15, 14)), after(chunk(A, 15, 20, stop_offset=21))],
    "chunks-adjoin": [
        after(chunk(A, 17, 20), change(A, start_offset=21)),
        after(chunk(A, 15, 20), change(A, start_offset=22)),
    ],
    "chunk-epochs-rise": [
        after(chunk(A, 15, 20, epoch=1)),
        after(
            ChunkChangeRecord(partition_id=0, topic_id=A, start_offset=10, replicas=(1,), epoch=2)
        ),
    ],
    "producer-ids-once": [
        after(ProducerIdsRecord(broker_id=1, broker_epoch=40, next_producer_id=999))
    ],
    "transactions-end": [
        after(BeginTransactionRecord(), BeginTransactionRecord(), EndTransactionRecord()),
        after(EndTransactionRecord()),
    ],
}


@pytest.mark.parametrize(
    ("name", "records"), [(name, plant) for name, plants in PLANTS.items() for plant in plants]
)
def test_each_fault_in_a_cluster_log_breaks_only_its_own_audit_rule(
    name: str, records: Callable[[], Records], tmp_path: Path
) -> None:
    write_entries(tmp_path, [Entry(1), *(Entry(record) for record in records())])
    report = audit_directory(tmp_path, CLUSTER_METADATA)
    assert set(broken_rules(report)) == {name}, describe_findings(report)
    assert report.findings.first(name).offset > len(the_history())  # type: ignore[operator]


def in_a_checkpoint() -> Records:
    """Return the checkpoint that a controller would write after `the_history`."""
    return [
        FeatureLevelRecord(name="metadata.version", feature_level=20),
        broker(1, 40),
        TopicRecord(name="a", topic_id=A),
        partition(A, 0, leader_epoch=2, partition_epoch=2, start_offset=15),
        partition(A, 1),
        chunk(A, 10, 14),
        TopicPartitionToBatchCoordinatorMapping(
            partition_index=1, topic_id=A, batch_coordinator_partition_index=1
        ),
        TopicRecord(name="b", topic_id=UUID(int=3)),
        ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="9"),
        ProducerIdsRecord(broker_id=1, broker_epoch=4, next_producer_id=1000),
    ]


@pytest.mark.parametrize("left_out", [None, *range(10)])
def test_the_audit_reports_a_cluster_checkpoint_that_lacks_any_record_as_a_violation(
    left_out: int | None, tmp_path: Path
) -> None:
    """Leaving any record out of the checkpoint is reported."""
    end = write_entries(tmp_path, [Entry(1), *(Entry(record) for record in the_history())])
    records = in_a_checkpoint()
    if left_out is not None:
        del records[left_out]
    write_checkpoint(tmp_path, end, [encode_record(record, _version(record)) for record in records])
    report = audit_directory(tmp_path, CLUSTER_METADATA)
    expected = set() if left_out is None else {"cluster-checkpoint-replay"}
    assert set(broken_rules(report)) == expected, describe_findings(report)
    assert len(report.logs[0].checkpoints) == 1


def _version(record: MetadataRecord) -> int | None:
    return 3 if isinstance(record, PartitionRecord) else None
