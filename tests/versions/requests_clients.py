"""Requests of producers, consumers and admin clients, as they really ask."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from records.batch_writer import build_batch
from records.rpc import (
    cluster,
    configs,
    fetch,
    list_offsets,
    partitions,
    produce,
    topics,
)
from records.rpc.base import Request
from records.types import METADATA_TOPIC_ID
from tests.versions.nodes import BROKER_ID
from tests.versions.scene import (
    METADATA,
    NOWHERE,
    Scene,
)


def produce_records(scene: Scene) -> tuple[Request, ...]:
    now_ms = time.time_ns() // 1_000_000
    batch = bytes(build_batch([(None, b"value", now_ms, ())], base_offset=0, leader_epoch=-1))
    topic = produce.ProduceRequest.TopicProduceData
    return tuple(
        produce.ProduceRequest(
            acks=-1, timeout_ms=5_000,
            topic_data=(
                topic(
                    name=name, topic_id=topic_id,
                    partition_data=tuple(
                        topic.PartitionProduceData(index=index, records=records)
                        for index, records in data
                    ),
                ),
            ),
        )
        for name, topic_id, data in (
            (scene.log, scene.log_id, [(0, batch)]),
            (scene.log, scene.log_id, [(9, batch), (0, batch[:-1])]),
            ("nowhere", NOWHERE, [(0, batch)]),
        )
    )  # fmt: skip


def fetch_records(scene: Scene) -> tuple[Request, ...]:
    topic = fetch.FetchRequest.FetchTopic

    def asking(name: str, topic_id: UUID, *indexes: int, **more: Any) -> Request:
        offset, epoch = more.pop("fetch_offset", 0), more.pop("epoch", -1)
        fetched = tuple(
            topic.FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=10_000,
                current_leader_epoch=epoch,
                last_fetched_epoch=0 if "replica_state" in more else -1,
            )
            for index in indexes
        )  # fmt: skip
        of_topic = topic(topic=name, topic_id=topic_id, partitions=fetched)
        return fetch.FetchRequest(max_wait_ms=0, min_bytes=0, topics=(of_topic,), **more)

    replica: dict[str, Any] = {
        "replica_id": 77,
        "replica_state": fetch.FetchRequest.ReplicaState(replica_id=77),
        "epoch": scene.leader_epoch,
    }
    return (
        asking(scene.log, scene.log_id, 0),
        asking(scene.log, scene.log_id, 0, 9, fetch_offset=10**6),
        asking(scene.log, scene.log_id, 0, epoch=10**6),
        asking("nowhere", NOWHERE, 0),
        asking(scene.log, scene.log_id, 0, session_id=5, session_epoch=1),
        asking(scene.log, scene.log_id, 0, session_id=0, session_epoch=0),
        asking(METADATA, METADATA_TOPIC_ID, 0, **replica),
        asking(METADATA, METADATA_TOPIC_ID, 0, **replica | {"fetch_offset": 10**6}),
        asking(METADATA, METADATA_TOPIC_ID, 0, **replica | {"epoch": scene.leader_epoch - 1}),
        asking(METADATA, METADATA_TOPIC_ID, 0, **replica | {"epoch": scene.leader_epoch + 1}),
    )


def offsets_of(scene: Scene) -> tuple[Request, ...]:
    topic = list_offsets.ListOffsetsRequest.ListOffsetsTopic

    def asking(name: str, *timestamps: int, epoch: int = -1, index: int = 0) -> Request:
        asked = tuple(
            topic.ListOffsetsPartition(
                partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
            )
            for timestamp in timestamps
        )
        return list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=(topic(name=name, partitions=asked),), timeout_ms=1_000
        )

    return (
        *(asking(scene.log, one) for one in (-1, -2, -3, -4, -5, -9, 0, 1 << 50)),
        asking(scene.log, -1, -2),
        asking(scene.log, -1, epoch=10**6),
        asking(scene.log, -1, index=9),
        asking("nowhere", -1),
    )


def metadata(scene: Scene) -> tuple[Request, ...]:
    topic = cluster.MetadataRequest.MetadataRequestTopic
    unknown = topic(name="no such name!")
    operations = {
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    ids = (topic(name=None, topic_id=scene.topic_id), topic(name=None, topic_id=NOWHERE))
    return (
        cluster.MetadataRequest(topics=(topic(name="t"), unknown), **operations),  # type: ignore[arg-type]
        cluster.MetadataRequest(topics=None),
        cluster.MetadataRequest(topics=(topic(name="chunked"),)),
        cluster.MetadataRequest(topics=(topic(name=scene.new + "-auto"),)),
        *([cluster.MetadataRequest(topics=ids)] if scene.version >= 12 else []),
    )


def api_versions(_: Scene) -> tuple[Request, ...]:
    ask = cluster.ApiVersionsRequest
    return (
        ask(client_software_name="test", client_software_version="1"),
        ask(client_software_name="a b", client_software_version="!"),
    )


def create_topics(scene: Scene) -> tuple[Request, ...]:
    topic = topics.CreateTopicsRequest.CreatableTopic

    def asking(name: str, count: int, setting: str, *, only: bool = False) -> Request:
        made = topic(
            name=name, num_partitions=count, replication_factor=1, assignments=(),
            configs=(topic.CreatableTopicConfig(name=setting, value="1000"),),
        )  # fmt: skip
        return topics.CreateTopicsRequest(topics=(made,), timeout_ms=5_000, validate_only=only)

    return (
        asking(scene.new, 2, "retention.ms"),
        asking(scene.new, 2, "retention.ms"),
        asking(scene.new + "-not", 2, "retention.ms", only=True),
        asking(scene.new + "-bad", 2, "no.such.setting"),
        asking("no such name!", 0, "retention.ms"),
    )


def delete_topics(scene: Scene) -> tuple[Request, ...]:
    ask = topics.DeleteTopicsRequest
    made = f"new-{scene.listener}-{scene.version + 1}"  # creation has a version more
    names = (made, "nowhere")
    states = (
        *(ask.DeleteTopicState(name=name) for name in names),
        ask.DeleteTopicState(name=None, topic_id=NOWHERE),
    )
    return (ask(topics=states, topic_names=names, timeout_ms=5_000),)


def delete_records(_: Scene) -> tuple[Request, ...]:
    topic = partitions.DeleteRecordsRequest.DeleteRecordsTopic
    asked = tuple(
        topic(
            name=name,
            partitions=tuple(
                topic.DeleteRecordsPartition(partition_index=index, offset=offset)
                for index, offset in ((0, 0), (1, 10**6), (9, 0))
            ),
        )
        for name in ("t", "nowhere")
    )
    return (partitions.DeleteRecordsRequest(topics=asked, timeout_ms=5_000),)


def producer_ids(_: Scene) -> tuple[Request, ...]:
    ask = partitions.InitProducerIdRequest
    return (
        ask(transactional_id=None, transaction_timeout_ms=1_000),
        ask(transactional_id=None, transaction_timeout_ms=1_000, producer_id=5, producer_epoch=3),
        ask(transactional_id="transactional", transaction_timeout_ms=1_000),
        ask(transactional_id=None, transaction_timeout_ms=1_000, enable_2_pc=True),
    )


def epochs(_: Scene) -> tuple[Request, ...]:
    topic = partitions.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = tuple(
        topic(
            topic=name,
            partitions=tuple(
                topic.OffsetForLeaderPartition(
                    partition=index, current_leader_epoch=current, leader_epoch=0
                )
                for index, current in ((0, -1), (0, 99), (9, -1))
            ),
        )
        for name in ("t", "nowhere")
    )
    return (partitions.OffsetForLeaderEpochRequest(replica_id=-1, topics=asked),)


def describe_configs(_: Scene) -> tuple[Request, ...]:
    resource = configs.DescribeConfigsRequest.DescribeConfigsResource
    resources = tuple(
        resource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name, keys in (
            (2, "t", None), (2, "t", ("retention.ms", "no.such.setting")), (2, "nowhere", None),
            (4, str(BROKER_ID), None), (4, "", None), (4, "x", None), (8, "logger", None),
        )
    )  # fmt: skip
    return tuple(
        configs.DescribeConfigsRequest(
            resources=resources, include_synonyms=more, include_documentation=more
        )
        for more in (False, True)
    )


def create_partitions(scene: Scene) -> tuple[Request, ...]:
    topic = topics.CreatePartitionsRequest.CreatePartitionsTopic
    given = (topic.CreatePartitionsAssignment(broker_ids=(BROKER_ID,)),)
    name = f"grown-{scene.listener}"
    asked = (
        topic(name=name, count=scene.version + 3, assignments=given),
        topic(name="t", count=1, assignments=None),
        topic(name="nowhere", count=3, assignments=None),
    )
    return (topics.CreatePartitionsRequest(topics=asked, timeout_ms=5_000, validate_only=False),)


def alter_configs(_: Scene) -> tuple[Request, ...]:
    resource = configs.IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = tuple(
        resource(
            resource_type=kind, resource_name=name,
            configs=(resource.AlterableConfig(name=key, config_operation=what, value=value),),
        )
        for kind, name, key, what, value in (
            (2, "t", "retention.ms", 0, "100000000"), (2, "nowhere", "retention.ms", 1, None),
            (4, str(BROKER_ID), "no.such.setting", 0, "1"), (8, "logger", "a", 0, "b"),
        )
    )  # fmt: skip
    return (configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=False),)


def replace_configs(_: Scene) -> tuple[Request, ...]:
    resource = configs.AlterConfigsRequest.AlterConfigsResource
    resources = tuple(
        resource(
            resource_type=kind, resource_name=name,
            configs=(resource.AlterableConfig(name=key, value=value),),
        )
        for kind, name, key, value in (
            (2, "chunked", "retention.ms", "100000000"), (2, "nowhere", "retention.ms", "1"),
            (2, "t", "retention.ms", None), (4, "77", "log.retention.ms", "5"),
        )
    )  # fmt: skip
    return (configs.AlterConfigsRequest(resources=resources, validate_only=False),)


def describe_partitions(_: Scene) -> tuple[Request, ...]:
    ask = partitions.DescribeTopicPartitionsRequest
    asked = tuple(ask.TopicRequest(name=name) for name in ("t", "nowhere"))
    cursor = ask.Cursor(topic_name="t", partition_index=1)
    return (
        ask(topics=asked),
        ask(topics=(ask.TopicRequest(name="chunked"),)),
        ask(topics=asked, response_partition_limit=1),
        ask(topics=(), cursor=cursor),
    )
