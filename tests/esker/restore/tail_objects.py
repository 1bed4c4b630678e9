"""Objects that brokers of the lost cluster uploaded, and whose commits no source has."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from records.batch import TRANSACTIONAL
from records.batch_writer import build_batch
from records.object_keys import ObjectKeys
from records.schema import MetadataRecord
from records.wal import APPENDED, PartitionBatches, build_object
from tests.coordinator.batch.actors import TOPIC, Broker, batch, create
from tests.coordinator.batch.subjects import MemoryWorld
from tests.esker.restore.lost import CLUSTER_ID, COORDINATOR, EPOCH, TIME, Logs, lost_logs

KEYS = ObjectKeys(prefix="", cluster_id=CLUSTER_ID, coordinator_partition=0)


class Sent(NamedTuple):
    """A batch that a producer sent."""

    records: int = 5
    producer: int = -1
    first: int = 0
    topic: UUID = TOPIC
    partition: int = 0
    is_transactional: bool = False


def upload(
    home: Path, object_id: int, *batches: Sent, broker: int = 101, epoch: int = 40, **changed: Any
) -> Path:
    """Write an object; its records have its id as their value. Returns its path.

    Args:    changed: values of the footer; `named_id` is the object id in it.
    """
    groups: dict[tuple[UUID, int], list[Sent]] = {}
    for one in batches or (Sent(),):
        groups.setdefault((one.topic, one.partition), []).append(one)
    content = [
        PartitionBatches(
            topic, partition, [_bytes(one, object_id) for one in sent], sum(s.records for s in sent)
        )
        for (topic, partition), sent in groups.items()
    ]
    values = {
        "cluster_id": CLUSTER_ID,
        "object_id": changed.pop("named_id", object_id),
        "object_format": APPENDED,
        **changed,
    }
    parts, _ = build_object(content, broker_id=broker, broker_epoch=epoch, **values)
    path = home / "store" / KEYS.key(object_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    os.utime(path, (TIME / 1_000, TIME / 1_000))
    return path


def _bytes(sent: Sent, object_id: int) -> bytearray:
    return build_batch(
        [(b"k", str(object_id).encode(), TIME, ())] * sent.records,
        base_offset=0,
        leader_epoch=0,
        attributes=TRANSACTIONAL if sent.is_transactional else 0,
        producer_id=sent.producer,
        producer_epoch=0 if sent.producer >= 0 else -1,
        base_sequence=sent.first if sent.producer >= 0 else -1,
    )


def logs_of_leases() -> Logs:
    """Logs whose batch coordinator has ids of every kind.

    Ids 0 and 1 are committed, 2 was passed over, 3 is committed, and 4 to 99 are of the same lease,
    which is closed; 100 to 199 are of an open lease, of which 100 is committed and 105 was called
    safe to delete. The next id is 200.
    """

    async def story() -> list[MetadataRecord]:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world, 101, 40)
        await broker.acquire()
        for object_id, first in ((0, 0), (1, 10), (3, 20)):
            sent = batch(records=10, producer=4_000, first=first)
            await broker.commit(sent, object_id=object_id)
        await broker.release()
        await broker.acquire()
        await broker.commit(batch(records=10, producer=4_000, first=30))
        assert await broker.is_safe(105)
        return [record for _, record in world.coordinator.log]

    records = asyncio.run(story())
    return {**lost_logs(), COORDINATOR: [(EPOCH, record) for record in records]}
