"""Directories of nodes of a lost cluster, written record by record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from msgspec import structs

from coordinator.batch.state import Lease
from coordinator.transactions.state import State
from esker.restore.run import Prepared, prepare
from esker.server.bootstrap import bootstrap_records, topic_id
from raft.driver.config import METADATA_GROUP
from raft.driver.registry import Registry
from raft.driver.storage import Storage
from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import write_high_watermarks
from raft.segments.log import Log, LogConfig
from raft.segments.properties import (
    MetaProperties,
    QuorumState,
    write_meta_properties,
    write_quorum_state,
)
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.diskless import LeaseState
from records.frame import encode_record
from records.groups import GroupOffsetsRecord, GroupOwnerRecord, PendingGroupOffsetsRecord
from records.internal_topics import CONSUMER_OFFSETS, DISKLESS_METADATA, TRANSACTION_STATE
from records.metadata import (
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from records.transactions import (
    TransactionalIdOwnerRecord,
    TransactionPartitionsRecord,
    TransactionStateRecord,
)
from records.types import Epoch, NodeId
from snapshot.reader import CheckpointReader
from tests.coordinator.batch.actors import TOPIC, Broker, batch, create
from tests.coordinator.batch.contract_transactions import send
from tests.coordinator.batch.subjects import MemoryWorld

CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
COORDINATOR: Final = Group(DISKLESS_METADATA, 0, topic_id(CLUSTER_ID, DISKLESS_METADATA))
GROUPS: Final = Group(CONSUMER_OFFSETS, 0, topic_id(CLUSTER_ID, CONSUMER_OFFSETS))
TRANSACTIONS: Final = Group(TRANSACTION_STATE, 0, topic_id(CLUSTER_ID, TRANSACTION_STATE))
LOGS: Final = (METADATA_GROUP, COORDINATOR, GROUPS)
EPOCH: Final = 5
TIME: Final = 1_700_000_000_000

Written = tuple[int, MetadataRecord]
"""A record and the epoch of its leader."""

Logs = dict[Group, list[Written]]


def cluster_records(*, has_topic: bool = True) -> list[MetadataRecord]:
    """The cluster log: a broker with a high epoch, a topic of one partition."""
    records: list[MetadataRecord] = [*bootstrap_records(CLUSTER_ID, (1, 2, 3), bench_log=False)]
    records.append(
        RegisterBrokerRecord(
            broker_id=101,
            incarnation_id=UUID(int=1),
            broker_epoch=40,
            end_points=(),
            features=(),
            rack=None,
            fenced=False,
        )
    )
    if has_topic:
        records.append(TopicRecord(name="t", topic_id=TOPIC))
        records.append(
            PartitionRecord(
                partition_id=0,
                topic_id=TOPIC,
                replicas=(101,),
                isr=(101,),
                removing_replicas=(),
                adding_replicas=(),
                leader=101,
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    records.append(ProducerIdsRecord(broker_id=101, broker_epoch=40, next_producer_id=3_000))
    return records


def coordinator_records() -> list[MetadataRecord]:
    """A batch coordinator's log: two objects of ten records each, in a lease that is open."""

    async def story() -> list[MetadataRecord]:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world, 101, 40)
        await broker.acquire()
        await broker.commit(batch(records=10, producer=4_000))
        await broker.commit(batch(records=10, producer=4_000, first=10))
        return [record for _, record in world.coordinator.log]

    return asyncio.run(story())


def group_records(offset: int = 10) -> list[MetadataRecord]:
    """The groups' log: one group that has read the topic up to an offset."""
    partition = GroupOffsetsRecord.Topic.Partition(
        partition_index=0,
        committed_offset=offset,
        leader_epoch=0,
        metadata="",
        committed_at_ms=TIME,
    )
    return [
        GroupOwnerRecord(
            group_id="g", ownership_epoch=7, broker_id=101, broker_epoch=40, acquired_at_ms=TIME
        ),
        GroupOffsetsRecord(
            group_id="g",
            ownership_epoch=7,
            sequence=1,
            topics=(
                GroupOffsetsRecord.Topic(topic_name="t", topic_id=TOPIC, partitions=(partition,)),
            ),
        ),
    ]


def transaction_records() -> list[MetadataRecord]:
    """The transaction log: an id whose last transaction is complete, and one with an open one."""
    records: list[MetadataRecord] = []
    for number, (name, state) in enumerate((("closed", 4), ("open", 1))):
        records.append(
            TransactionalIdOwnerRecord(
                transactional_id=name,
                ownership_epoch=number + 1,
                broker_id=101,
                broker_epoch=40,
                acquired_at_ms=TIME,
            )
        )
        records.append(
            TransactionStateRecord(
                transactional_id=name,
                producer_id=1_000 + number,
                producer_epoch=0,
                last_producer_epoch=-1,
                timeout_ms=60_000,
                state=state,
                transaction_number=8,
                epoch_began_at_ms=TIME,
                started_at_ms=TIME,
                updated_at_ms=TIME,
            )
        )
    return records


def transaction_of_7(state: State, number: int) -> list[MetadataRecord]:
    """The transaction log: producer 7, whose newest transaction has this number and state."""
    base = TransactionStateRecord(
        transactional_id="x",
        producer_id=7,
        producer_epoch=0,
        last_producer_epoch=-1,
        timeout_ms=60_000,
        state=int(State.EMPTY),
        transaction_number=number - 1,
        epoch_began_at_ms=TIME,
        started_at_ms=-1,
        updated_at_ms=TIME,
    )
    topic = TransactionPartitionsRecord.Topic
    records: list[MetadataRecord] = [
        TransactionalIdOwnerRecord(
            transactional_id="x",
            ownership_epoch=1,
            broker_id=101,
            broker_epoch=40,
            acquired_at_ms=TIME,
        ),
        base,
        TransactionPartitionsRecord(
            transactional_id="x",
            transaction_number=number,
            topics=(
                topic(topic_id=TOPIC, topic_name="t", partitions=(0,)),
                topic(topic_id=GROUPS.topic_id, topic_name=CONSUMER_OFFSETS, partitions=(0,)),
            ),
            metadata_offset=1,
            added_at_ms=TIME,
        ),
    ]
    if state is not State.ONGOING:
        records.append(
            structs.replace(base, state=int(state), transaction_number=number, started_at_ms=TIME)
        )
    return records


def open_logs(transactions: Sequence[MetadataRecord]) -> Logs:
    """All logs of a cluster; transaction 8 of producer 7 is open in a partition and in a group."""

    async def story() -> list[MetadataRecord]:
        world = MemoryWorld()
        world.view.raise_level(4)
        await create(world)
        broker = Broker(world, 101, 40)
        await broker.acquire()
        await send(broker, batch(records=10))
        assert await send(broker, batch(producer=7), numbers=(8,)) == [(0, 10)]
        return [record for _, record in world.coordinator.log]

    owner, committed = group_records(5)
    assert isinstance(committed, GroupOffsetsRecord)
    (topic,) = committed.topics
    (partition,) = topic.partitions
    pending = PendingGroupOffsetsRecord(
        group_id="g",
        ownership_epoch=7,
        sequence=2,
        commits=(
            PendingGroupOffsetsRecord.Commit(
                producer_id=7,
                producer_epoch=0,
                transaction_number=8,
                topics=(
                    structs.replace(
                        topic, partitions=(structs.replace(partition, committed_offset=9),)
                    ),
                ),
            ),
        ),
    )
    logs = lost_logs()
    logs[COORDINATOR] = [(EPOCH, one) for one in asyncio.run(story())]
    logs[GROUPS] = [(EPOCH, one) for one in (owner, committed, pending)]
    logs[TRANSACTIONS] = [(EPOCH, one) for one in transactions]
    return logs


def lost_logs(*, has_topic: bool = True, committed_offset: int = 10) -> Logs:
    """All logs of the lost cluster."""
    return {
        METADATA_GROUP: [(EPOCH, one) for one in cluster_records(has_topic=has_topic)],
        COORDINATOR: [(EPOCH, one) for one in coordinator_records()],
        GROUPS: [(EPOCH, one) for one in group_records(committed_offset)],
    }


def write_node(
    path: Path,
    logs: Mapping[Group, Sequence[Written]],
    *,
    node_id: int = 101,
    cluster_id: str = CLUSTER_ID,
    unknown: Mapping[Group, int] | None = None,
    election_epoch: int = EPOCH,
) -> Path:
    """Write a node's directory; one batch for each record.

    Args:    unknown: number of records at the end of a log that the node did not know to be
                 committed.
    """
    files = RealFileSystem()
    files.make_directory(path)
    write_meta_properties(
        files,
        path,
        MetaProperties(
            cluster_id=cluster_id, node_id=NodeId(node_id), directory_id=UUID(int=node_id)
        ),
    )
    registry = Registry(files, path)
    watermarks = {}
    for group, records in logs.items():
        Storage.create(files, path, group, LogConfig(), recovering=False)
        directory = path / group.name
        write_quorum_state(files, directory, QuorumState(epoch=Epoch(election_epoch)))
        log = Log.open(files, directory)
        for offset, (epoch, record) in enumerate(records):
            log.append(
                build_value_batch(
                    [encode_record(record)],
                    base_offset=offset,
                    leader_epoch=epoch,
                    timestamp=TIME,
                )
            )
        log.close()
        registry.add(group)
        watermarks[group.topic, group.partition] = len(records) - (unknown or {}).get(group, 0)
    write_high_watermarks(files, path, watermarks)
    return path


@dataclass
class NewCheckpoints:
    """The records of the new checkpoints."""

    records: dict[Group, list[MetadataRecord]] = field(default_factory=dict)

    def of(self, group: Group, kind: type[MetadataRecord]) -> list[MetadataRecord]:
        return [record for record in self.records[group] if isinstance(record, kind)]


@contextmanager
def prepared(scratch: Path, *sources: Path) -> Iterator[tuple[Prepared, NewCheckpoints]]:
    """Prepare a restore, and read the checkpoints that it wrote."""
    with prepare(sources, scratch) as found:
        written = NewCheckpoints()
        for group, (path, _) in found.restored.checkpoints.items():
            with CheckpointReader(RealFileSystem(), path) as reader:
                written.records[group] = [record for _, record in reader.records()]
        yield found, written


def lease_of(record: LeaseState) -> Lease:
    """The state of a lease, without what these tests do not look at."""
    return Lease(
        record.broker_id,
        record.broker_epoch,
        record.first_object_id,
        record.end_object_id,
        record.last_committed_id,
        (),
        (),
        record.granted_at_ms,
        record.closed_at_ms,
        tuple(zip(record.orphans[::2], record.orphans[1::2], strict=True)),
    )
