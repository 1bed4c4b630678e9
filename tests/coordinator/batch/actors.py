"""A broker, a controller and a reader, to tell stories about a coordinator with."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from records.rpc.batch_coordinator import (
    ApplyRetentionRequest,
    CommitBatch,
    CommitBatchesRequest,
    CommitBatchesResponse,
    CommitBatchResult,
    DeleteDisklessRecordsRequest,
    DeleteDisklessTopicsRequest,
    FindBatchesRequest,
    FindBatchesResponse,
    InitDisklessTopicsRequest,
    ListDisklessOffsetsRequest,
    ReleaseDisklessPartitionsRequest,
)
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    DeleteFilesRequest,
    GetFilesToDeleteRequest,
    IsSafeToDeleteFileRequest,
    IsSafeToDeleteFileResponse,
    MarkOrphansRequest,
    ReleaseObjectLeaseRequest,
)
from tests.coordinator.batch.subjects import KEYS, World

TOPIC = UUID(int=77)
OTHER_TOPIC = UUID(int=78)


def batch(
    at: int = 0,
    records: int = 1,
    *,
    size: int = 100,
    time: int = 0,
    append_time: bool = False,
    producer: int = -1,
    epoch: int = 0,
    first: int = 0,
) -> CommitBatch:
    """A batch as a broker describes it."""
    idempotent = producer >= 0
    return CommitBatch(
        byte_offset=at,
        size=size,
        base_offset=0,
        last_offset=records - 1,
        batch_max_timestamp=time,
        message_timestamp_type=int(append_time),
        producer_id=producer,
        producer_epoch=epoch if idempotent else -1,
        base_sequence=first if idempotent else -1,
        last_sequence=(first + records - 1) & (2**31 - 1) if idempotent else -1,
    )


def groups(
    *batches: CommitBatch, topic: UUID = TOPIC, partition: int = 0
) -> tuple[CommitBatchesRequest.Topic, ...]:
    """One partition's batches, as a request nests them."""
    group = CommitBatchesRequest.Topic.Partition(partition_index=partition, batches=batches)
    return (CommitBatchesRequest.Topic(topic_id=topic, partitions=(group,)),)


def results(response: CommitBatchesResponse) -> list[CommitBatchResult]:
    """The results of all batches of a committed object."""
    assert response.error_code == 0, response
    return [r for topic in response.topics for p in topic.partitions for r in p.results]


class Broker:
    """A broker of one epoch. It commits objects out of its newest lease."""

    def __init__(self, world: World, broker_id: int = 1, epoch: int = 1) -> None:
        self.world = world
        self.broker_id = broker_id
        self.epoch = epoch
        self.lease_id = self.first = self.next_id = -1
        self.last: CommitBatchesRequest | None = None

    async def acquire(self, count: int = 100) -> AcquireObjectLeaseResponse:
        request = AcquireObjectLeaseRequest(
            coordinator_partition=0,
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            object_count=count,
        )
        granted = await self.world.coordinator.call(request)
        if not granted.error_code:
            self.lease_id, self.first = granted.lease_id, granted.first_object_id
            self.next_id = self.first
        return granted

    async def release(self, lease_id: int | None = None, end: int = -1) -> int:
        request = ReleaseObjectLeaseRequest(
            coordinator_partition=0,
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            lease_id=self.lease_id if lease_id is None else lease_id,
            end_object_id=end,
        )
        return (await self.world.coordinator.call(request)).error_code

    async def commit(
        self,
        *batches: CommitBatch,
        topics: Sequence[CommitBatchesRequest.Topic] | None = None,
        object_id: int | None = None,
        lease_id: int | None = None,
        size: int = 1_000,
    ) -> CommitBatchesResponse:
        """Commit an object, by default the next of the lease with batches of the first topic."""
        if object_id is None:
            object_id, self.next_id = self.next_id, self.next_id + 1
        self.last = CommitBatchesRequest(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            lease_id=self.lease_id if lease_id is None else lease_id,
            object_id=object_id,
            object_format=1,
            object_size=size,
            topics=tuple(groups(*(batches or (batch(),))) if topics is None else topics),
        )
        return await self.world.coordinator.call(self.last)

    async def again(self, request: CommitBatchesRequest | None = None) -> CommitBatchesResponse:
        """Send the last commit, or another one, once more."""
        sent = request or self.last
        assert sent is not None
        return await self.world.coordinator.call(sent)

    async def files(self, limit: int = 1_000) -> list[int]:
        """Ids of the objects that may be deleted now."""
        request = GetFilesToDeleteRequest(coordinator_partition=0, max_files=limit)
        response = await self.world.coordinator.call(request)
        assert response.error_code == 0, response
        return [KEYS.object_id(file.object_key) for file in response.files]

    async def deleted(self, *object_ids: int) -> list[int]:
        """Report objects as deleted from the store; returns the error code of each."""
        keys = tuple(KEYS.key(object_id) for object_id in object_ids)
        return await self.deleted_keys(*keys)

    async def deleted_keys(self, *keys: str) -> list[int]:
        request = DeleteFilesRequest(coordinator_partition=0, object_keys=keys)
        response = await self.world.coordinator.call(request)
        assert response.error_code == 0, response
        return list(response.key_error_codes)

    async def is_safe(self, object_id: int) -> bool:
        answer = await self.ask_safe(KEYS.key(object_id))
        assert answer.error_code == 0, answer
        return answer.is_safe

    async def ask_safe(self, key: str) -> IsSafeToDeleteFileResponse:
        request = IsSafeToDeleteFileRequest(coordinator_partition=0, object_key=key)
        return await self.world.coordinator.call(request)


async def mark_orphans(
    world: World,
    *object_ids: int,
    keys: Sequence[str] = (),
    cluster_id: str = KEYS.cluster_id,
    expires_in_ms: int = 1_000,
) -> list[int] | int:
    """MarkOrphans: the error code of each object, or of the whole request."""
    request = MarkOrphansRequest(
        coordinator_partition=0,
        cluster_id=cluster_id,
        expires_at_ms=world.now_ms() + expires_in_ms,
        object_keys=(*map(KEYS.key, object_ids), *keys),
    )
    response = await world.coordinator.call(request)
    return response.error_code or list(response.key_error_codes)


async def create(
    world: World,
    topic: UUID = TOPIC,
    partitions: int = 2,
    *,
    epoch: int = 1,
    name: str = "orders",
    restored: Sequence[int] = (),
) -> int:
    """Send the controller's call; returns its error code."""
    asked = InitDisklessTopicsRequest.Topic(
        topic_id=topic, topic_name=name, num_partitions=partitions, restored=tuple(restored)
    )
    request = InitDisklessTopicsRequest(controller_epoch=epoch, topics=(asked,))
    response = await world.coordinator.call(request)
    return response.responses[0].error_code


async def release(world: World, *partitions: int, topic: UUID = TOPIC, epoch: int = 1) -> list[int]:
    """Send the controller's call; returns the error code of each partition."""
    named = ReleaseDisklessPartitionsRequest.Topic
    indexes = tuple(named.Partition(partition_index=index) for index in partitions)
    request = ReleaseDisklessPartitionsRequest(
        controller_epoch=epoch, topics=(named(topic_id=topic, partitions=indexes),)
    )
    response = await world.coordinator.call(request)
    return [partition.error_code for partition in response.responses[0].partitions]


async def delete(world: World, topic: UUID = TOPIC, *, epoch: int = 1) -> int:
    """Send the controller's call; returns its error code."""
    request = DeleteDisklessTopicsRequest(controller_epoch=epoch, topic_ids=(topic,))
    return (await world.coordinator.call(request)).responses[0].error_code


async def delete_records(
    world: World, offset: int, topic: UUID = TOPIC, partition: int = 0
) -> tuple[int, int]:
    """Error code and low watermark."""
    group = DeleteDisklessRecordsRequest.Topic.Partition(partition_index=partition, offset=offset)
    asked = DeleteDisklessRecordsRequest.Topic(topic_id=topic, partitions=(group,))
    response = await world.coordinator.call(DeleteDisklessRecordsRequest(topics=(asked,)))
    answer = response.responses[0].partitions[0]
    return answer.error_code, answer.low_watermark


async def apply_plan(
    world: World,
    *rows: tuple[int, int, int, int],
    topic: UUID = TOPIC,
    cluster_id: str = KEYS.cluster_id,
    expires_in_ms: int = 1_000,
) -> list[tuple[int, int]]:
    """(Error, log start) of each row (partition, log start, reason, limit) of an external plan."""
    asked = ApplyRetentionRequest.Topic
    request = ApplyRetentionRequest(
        cluster_id=cluster_id,
        expires_at_ms=world.now_ms() + expires_in_ms,
        topics=(
            asked(
                topic_id=topic,
                partitions=tuple(
                    asked.Partition(
                        partition_index=partition,
                        log_start_offset=start,
                        reason=reason,
                        limit=limit,
                    )
                    for partition, start, reason, limit in rows
                ),
            ),
        ),
    )
    answer = await world.coordinator.call(request)
    return [(one.error_code, one.low_watermark) for one in answer.responses[0].partitions]


async def offset_for(
    world: World, timestamp: int, topic: UUID = TOPIC, partition: int = 0, from_offset: int = -1
) -> tuple[int, int]:
    """Error code and offset of ListOffsets."""
    group = ListDisklessOffsetsRequest.Topic.Partition(
        partition_index=partition, timestamp=timestamp, from_offset=from_offset
    )
    asked = ListDisklessOffsetsRequest.Topic(topic_id=topic, partitions=(group,))
    response = await world.coordinator.call(ListDisklessOffsetsRequest(topics=(asked,)))
    answer = response.responses[0].partitions[0]
    return answer.error_code, answer.offset


async def find(
    world: World,
    *places: tuple[int, int],
    topic: UUID = TOPIC,
    max_bytes: int = 10**6,
    partition_bytes: int = 10**6,
) -> list[FindBatchesResponse.Topic.Partition]:
    """FindBatches of (partition, offset)s."""
    asked = tuple(
        FindBatchesRequest.Topic.Partition(
            partition_index=partition, offset=offset, max_bytes=partition_bytes
        )
        for partition, offset in places
    )
    request = FindBatchesRequest(
        topics=(FindBatchesRequest.Topic(topic_id=topic, partitions=asked),), max_bytes=max_bytes
    )
    return list((await world.coordinator.call(request)).responses[0].partitions)
