"""Stores and commits records without a broker's writer: one object per call.

stored = Stored(world)
await stored.commit("t", [batch(100, 300), batch(200)])  # timestamps: offsets 0-1, and 2
"""

from __future__ import annotations

from collections.abc import Sequence

from diskless.produce.validation import Accepted, TopicRules, validate
from diskless.stores.memory import MemoryStore
from records.batch_writer import build_batch
from records.compression import Compression
from records.rpc.batch_coordinator import CommitBatch, CommitBatchesRequest
from records.rpc.objects import AcquireObjectLeaseRequest
from tests.diskless.cluster_world import ClusterWorld


def batch(*timestamps: int, compression: Compression = Compression.NONE) -> bytes:
    """Build a producer's batch with one record per timestamp."""
    return bytes(
        build_batch(
            [(None, b"value %d" % at, time, ()) for at, time in enumerate(timestamps)],
            base_offset=0,
            leader_epoch=-1,
            compression=compression,
        )
    )


class Stored:
    """A separate broker that uploads and commits objects."""

    def __init__(self, world: ClusterWorld, broker_id: int = 77) -> None:
        self.store = MemoryStore(world.wall_ms)
        self._world = world
        self._broker_id = broker_id
        self._broker_epoch: int | None = None  # registered with the first commit, and fenced
        self.keys: list[str] = []  # of the objects, in order

    async def commit(
        self, topic: str, batches: Sequence[bytes], *, partition: int = 0, append_time: bool = False
    ) -> int:
        """Store batches side by side in one object; return the first offset."""
        image = self._world.image.topic(topic)
        assert image is not None, f"no topic {topic}"
        coordinator = image.coordinator(partition)
        leader = self._world.leaders[coordinator]
        if self._broker_epoch is None:
            self._broker_epoch = await self._world.register(self._broker_id)
        lease = await leader.call(
            AcquireObjectLeaseRequest(
                coordinator_partition=coordinator,
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                object_count=1,
            )
        )
        assert lease.error_code == 0, lease
        object_id = lease.first_object_id
        self.keys.append(leader.settings.keys.key(object_id))
        await self.store.upload(self.keys[-1], batches, sum(map(len, batches)))
        rows, at = [], 0
        for data in batches:
            outcome = validate(data, 9, TopicRules(log_append_time=True), 0)
            assert isinstance(outcome, Accepted), outcome
            last = outcome.batch.header.last_offset_delta
            time = outcome.max_timestamp
            rows.append(CommitBatch(at, len(data), 0, last, time, int(append_time), -1, -1, -1, -1))
            at += len(data)
        group = CommitBatchesRequest.Topic.Partition(partition_index=partition, batches=tuple(rows))
        answer = await leader.call(
            CommitBatchesRequest(
                coordinator_partition=coordinator,
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                lease_id=lease.lease_id,
                object_id=object_id,
                object_format=1,
                object_size=at,
                topics=(CommitBatchesRequest.Topic(topic_id=image.topic_id, partitions=(group,)),),
            )
        )
        results = answer.topics[0].partitions[0].results
        assert not any(result.error_code for result in results), results
        return results[0].assigned_base_offset
