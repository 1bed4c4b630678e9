"""Requests to batch coordinators, and on chunks and checkpoints, as they really ask."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from records.rpc import (
    backup,
    chunks,
    descriptions,
    objects,
    rewriting,
    snapshots,
    transaction_markers,
)
from records.rpc import batch_coordinator as coordinator
from records.rpc.base import Request
from tests.versions.nodes import BROKER, BROKER_ID
from tests.versions.scene import (
    BENCH,
    METADATA,
    NOWHERE,
    Ask,
    Scene,
)


def create_chunks(scene: Scene) -> tuple[Request, ...]:
    ask = chunks.CreateChunksRequest
    named = scene.topic if scene.listener == BROKER else f"grown-{scene.listener}"
    return tuple(
        ask(
            topic_partitions=(
                ask.TopicPartition(
                    topic_name=name, partition_id=0, broker_ids=(BROKER_ID,), start_offset=1,
                    start_timestamp=1, prev_stop_offset=0,
                ),
            )
        )
        for name in (named, "nowhere")
    )  # fmt: skip


def alter_chunks(_: Scene) -> tuple[Request, ...]:
    ask = chunks.AlterChunkAssignmentsRequest
    return tuple(
        ask(
            chunks=(
                ask.Assignment(
                    topic_name=name, partition_id=0, start_offset=0, chunk_epoch=-1,
                    broker_ids=(BROKER_ID,),
                ),
            )
        )
        for name in ("t", "nowhere")
    )  # fmt: skip


def init_topics(scene: Scene) -> tuple[Request, ...]:
    ask = coordinator.InitDisklessTopicsRequest
    topic = ask.Topic(topic_id=UUID(int=9), topic_name="own", num_partitions=1)
    return tuple(
        ask(controller_epoch=epoch, topics=(topic,), coordinator_partition=index)
        for epoch, index in ((scene.leader_epoch, 0), (0, 0), (scene.leader_epoch, 9))
    )


def commit_batches(scene: Scene) -> tuple[Request, ...]:
    ask = coordinator.CommitBatchesRequest
    now_ms = time.time_ns() // 1_000_000
    batch = coordinator.CommitBatch(0, 100, 0, 0, now_ms, 0, -1, -1, -1, -1)

    def asking(topic_id: UUID, broker_epoch: int, lease_id: int, index: int = 0) -> Request:
        partition = ask.Topic.Partition(partition_index=0, batches=(batch,))
        return ask(
            broker_id=BROKER_ID, broker_epoch=broker_epoch, lease_id=lease_id,
            object_id=scene.object_id, object_format=1, object_size=150,
            topics=(ask.Topic(topic_id=topic_id, partitions=(partition,)),),
            coordinator_partition=index,
        )  # fmt: skip

    return (
        asking(scene.topic_id, scene.broker_epoch, scene.lease_id),
        asking(NOWHERE, scene.broker_epoch, scene.lease_id),
        asking(scene.topic_id, scene.broker_epoch, 10**6),
        asking(scene.topic_id, 0, scene.lease_id),
        asking(scene.topic_id, scene.broker_epoch, scene.lease_id, 9),
    )


def delete_diskless_topics(scene: Scene) -> tuple[Request, ...]:
    ask = coordinator.DeleteDisklessTopicsRequest
    return tuple(
        ask(controller_epoch=epoch, topic_ids=(UUID(int=9), NOWHERE), coordinator_partition=index)
        for epoch, index in ((scene.leader_epoch, 0), (0, 0), (scene.leader_epoch, 9))
    )


def by_partition(kind: Any, fields: dict[str, Any], top: dict[str, Any]) -> Ask:
    """Requests that name partitions by topic id: one that is there, some that are not."""

    def asking(scene: Scene) -> tuple[Request, ...]:
        topic = kind.Topic
        named = tuple(
            topic(
                topic_id=topic_id,
                partitions=tuple(
                    topic.Partition(partition_index=index, **fields) for index in (0, 9)
                ),
            )
            for topic_id in (scene.topic_id, NOWHERE)
        )
        at_top = {name: value(scene) if callable(value) else value for name, value in top.items()}
        return tuple(kind(topics=named, coordinator_partition=index, **at_top) for index in (0, 9))

    return asking


def describe_producers(scene: Scene) -> tuple[Request, ...]:
    ask = coordinator.DescribeDisklessProducersRequest
    topics = tuple(
        ask.Topic(topic_id=topic_id, partitions=(0, 9)) for topic_id in (scene.topic_id, NOWHERE)
    )
    return tuple(ask(coordinator_partition=index, topics=topics) for index in (0, 9))


def describe_cleaning(scene: Scene) -> tuple[Request, ...]:
    ask = rewriting.DescribeCleaningRequest
    topics = tuple(
        ask.Topic(topic_id=topic_id, partitions=(0, 9)) for topic_id in (scene.topic_id, NOWHERE)
    )
    return tuple(ask(coordinator_partition=index, topics=topics) for index in (0, 9))


PLAN = UUID(int=5)


def rewrite_lease(_: Scene) -> tuple[Request, ...]:
    ask = rewriting.RewriteLeaseRequest
    return (
        ask(coordinator_partition=0, plan_id=PLAN, object_count=1),
        ask(coordinator_partition=0, plan_id=PLAN, object_count=0),
        ask(coordinator_partition=0, plan_id=PLAN, lease_id=10**6),
        ask(coordinator_partition=9, plan_id=PLAN, object_count=1),
    )


def replace_runs(scene: Scene) -> tuple[Request, ...]:
    ask = rewriting.ReplaceRunsRequest
    partition = ask.Topic.Partition(
        partition_index=0, first_offset=0, end_offset=1, old_run_count=1, old_runs_digest=1,
        runs=(rewriting.NewRun(0, 1, 0, 100, -1, 1, 0),),
    )  # fmt: skip
    return tuple(
        ask(
            coordinator_partition=index, lease_id=10**6, plan_id=PLAN, object_id=10**6,
            object_format=2, object_size=150,
            topics=(ask.Topic(topic_id=topic_id, partitions=(partition,)),),
        )
        for topic_id, index in ((scene.topic_id, 0), (NOWHERE, 0), (scene.topic_id, 9))
    )  # fmt: skip


def write_markers(scene: Scene) -> tuple[Request, ...]:
    ask = transaction_markers.WriteTransactionMarkersRequest
    marker = transaction_markers.TransactionMarker(0, 0, 7, 0, 1, 1, 3)
    return tuple(
        ask(coordinator_partition=index, topic_ids=(topic_id,), markers=markers)
        for topic_id, index, markers in (
            (scene.topic_id, 0, (marker,)),
            (scene.topic_id, 0, ()),
            (NOWHERE, 0, (marker, marker._replace(topic_index=5))),
            (scene.topic_id, 9, (marker,)),
        )
    )


def assign(scene: Scene) -> tuple[Request, ...]:
    ask = coordinator.AssignPartitionToBatchCoordinatorRequest
    return tuple(
        ask(
            topics=(
                ask.Topic(
                    topic_id=topic_id,
                    partitions=(
                        ask.Topic.Partition(
                            partition_index=1, batch_coordinator_partition_index=index
                        ),
                    ),
                ),
            )
        )
        for topic_id, index in ((scene.topic_id, 0), (scene.topic_id, 9), (NOWHERE, 0))
    )


def lease(scene: Scene) -> tuple[Request, ...]:
    return tuple(
        objects.AcquireObjectLeaseRequest(
            coordinator_partition=index, broker_id=BROKER_ID, broker_epoch=epoch, object_count=5
        )
        for index, epoch in ((0, scene.broker_epoch), (0, 0), (9, 0))
    )


def release_lease(scene: Scene) -> tuple[Request, ...]:
    return tuple(
        objects.ReleaseObjectLeaseRequest(
            coordinator_partition=index, broker_id=BROKER_ID, broker_epoch=scene.broker_epoch,
            lease_id=lease_id,
        )
        for index, lease_id in ((0, scene.lease_id), (0, 10**6), (9, 1))
    )  # fmt: skip


def each_coordinator(kind: Any, *variants: Callable[[Scene], dict[str, Any]]) -> Ask:
    """The same of a coordinator that is there, and of one that is not."""

    def asking(scene: Scene) -> tuple[Request, ...]:
        return tuple(
            kind(coordinator_partition=index, **variant(scene))
            for variant in variants
            for index in (0, 9)
        )

    return asking


def take_snapshot(_: Scene) -> tuple[Request, ...]:
    return tuple(
        snapshots.TakeSnapshotRequest(topic_name=name, partition_index=0, timeout_ms=5_000)
        for name in (METADATA, "__diskless-metadata", "nowhere")
    )


def describe_snapshots(_: Scene) -> tuple[Request, ...]:
    ask = snapshots.DescribeSnapshotsRequest
    named = tuple(
        ask.Topic(topic_name=name, partitions=(0, 9)) for name in (METADATA, BENCH, "nowhere")
    )
    return ask(), ask(topics=named)


def report_lost_records(_: Scene) -> tuple[Request, ...]:
    return tuple(
        backup.ReportLostRecordsRequest(topic_name=name, partition_index=0, end_offset=end, epoch=0)
        for name in (METADATA, "__diskless-metadata", "nowhere")
        for end in (-1, 0)
    )


def describe_topics(_: Scene) -> tuple[Request, ...]:
    ask = descriptions.DescribeTopicsRequest
    return ask(), ask(topic_names=("t", "nowhere"))
