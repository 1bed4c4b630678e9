"""Requests of voters, observers, brokers and tools to the quorum, as they really ask."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from coordinator.controller.access import Client
from coordinator.controller.envelope import wrap
from raft.net.principal import Principal
from records.features import SUPPORTED
from records.rpc import (
    brokers,
    cluster,
    fetch,
    quorum,
    security,
)
from records.rpc.base import Request
from tests.versions.nodes import BROKER_ID, CLUSTER_ID
from tests.versions.scene import (
    METADATA,
    STRANGER,
    Scene,
)


def votes(scene: Scene) -> tuple[Request, ...]:
    topic = quorum.VoteRequest.TopicData

    def asking(name: str, epoch: int, **more: Any) -> Request:
        partition = topic.PartitionData(
            partition_index=0, replica_epoch=epoch, replica_id=2, last_offset_epoch=0, last_offset=0
        )
        return quorum.VoteRequest(topics=(topic(topic_name=name, partitions=(partition,)),), **more)

    return (
        asking(METADATA, scene.leader_epoch),
        asking(METADATA, 0),
        asking("nowhere", 1),
        asking(METADATA, scene.leader_epoch, cluster_id="another"),
    )


def begin_epochs(_: Scene) -> tuple[Request, ...]:
    topic = quorum.BeginQuorumEpochRequest.TopicData

    def asking(name: str, **more: Any) -> Request:
        partition = topic.PartitionData(partition_index=0, leader_id=2, leader_epoch=0)
        asked = (topic(topic_name=name, partitions=(partition,)),)
        return quorum.BeginQuorumEpochRequest(topics=asked, **more)

    return asking(METADATA), asking("nowhere"), asking(METADATA, cluster_id="another")


def end_epochs(_: Scene) -> tuple[Request, ...]:
    topic = quorum.EndQuorumEpochRequest.TopicData

    def asking(name: str, **more: Any) -> Request:
        partition = topic.PartitionData(partition_index=0, leader_id=2, leader_epoch=0)
        asked = (topic(topic_name=name, partitions=(partition,)),)
        return quorum.EndQuorumEpochRequest(topics=asked, **more)

    return asking(METADATA), asking("nowhere"), asking(METADATA, cluster_id="another")


def describe_quorum(_: Scene) -> tuple[Request, ...]:
    topic = quorum.DescribeQuorumRequest.TopicData
    partition = (topic.PartitionData(partition_index=0),)
    return tuple(
        quorum.DescribeQuorumRequest(topics=(topic(topic_name=name, partitions=partition),))
        for name in (METADATA, "__diskless-metadata", "nowhere")
    )


def update_features(_: Scene) -> tuple[Request, ...]:
    ask = brokers.UpdateFeaturesRequest
    key = ask.FeatureUpdateKey
    updates = (
        key(feature="metadata.version", max_version_level=27),
        key(feature="no.such.feature", max_version_level=1),
    )
    return tuple(ask(feature_updates=(one,)) for one in updates)


def envelopes(_: Scene) -> tuple[Request, ...]:
    client = Client(Principal("User", "ann"), "10.0.0.7")
    name = security.AlterUserScramCredentialsRequest.ScramCredentialDeletion
    deleted = security.AlterUserScramCredentialsRequest(
        deletions=(name(name="ann", mechanism=1),), upsertions=()
    )
    return (
        wrap(deleted, 0, client),
        wrap(
            cluster.DescribeClusterRequest(include_cluster_authorized_operations=False), 0, client
        ),
    )


def fetch_snapshots(scene: Scene) -> tuple[Request, ...]:
    topic = fetch.FetchSnapshotRequest.TopicSnapshot
    partition = topic.PartitionSnapshot

    def asking(name: str, epoch: int) -> Request:
        asked = partition(
            partition=0, current_leader_epoch=epoch, position=0,
            snapshot_id=partition.SnapshotId(end_offset=3, epoch=1),
        )  # fmt: skip
        of_topic = topic(name=name, partitions=(asked,))
        return fetch.FetchSnapshotRequest(replica_id=77, topics=(of_topic,))

    return (
        asking(METADATA, scene.leader_epoch), asking(METADATA, 0), asking("nowhere", 1),
    )  # fmt: skip


def describe_cluster(_: Scene) -> tuple[Request, ...]:
    return tuple(
        cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=True,
            endpoint_type=kind,
            include_fenced_brokers=fenced,
        )
        for kind in (1, 2, 3)
        for fenced in (False, True)
    )


def registration(_: Scene) -> tuple[Request, ...]:
    ask = brokers.BrokerRegistrationRequest
    listener = ask.Listener(name="PLAINTEXT", host="127.0.0.1", port=9, security_protocol=0)
    features = tuple(
        ask.Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in SUPPORTED.items()
    )
    return tuple(
        ask(
            broker_id=STRANGER, cluster_id=cluster_id, incarnation_id=UUID(int=102),
            listeners=(listener,), features=features, rack=None, log_dirs=(UUID(int=103),),
        )
        for cluster_id in (CLUSTER_ID, "another")
    )  # fmt: skip


def broker_heartbeat(scene: Scene) -> tuple[Request, ...]:
    return tuple(
        brokers.BrokerHeartbeatRequest(
            broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=0,
            want_fence=False, want_shut_down=False,
        )
        for broker_id, epoch in ((BROKER_ID, scene.broker_epoch), (BROKER_ID, 0), (999, 1))
    )  # fmt: skip


def unregister(_: Scene) -> tuple[Request, ...]:
    return tuple(brokers.UnregisterBrokerRequest(broker_id=one) for one in (STRANGER, 999))


def allocate_ids(scene: Scene) -> tuple[Request, ...]:
    return tuple(
        brokers.AllocateProducerIdsRequest(broker_id=BROKER_ID, broker_epoch=epoch)
        for epoch in (scene.broker_epoch, 0)
    )


def controller_registration(_: Scene) -> tuple[Request, ...]:
    ask = brokers.ControllerRegistrationRequest
    listener = ask.Listener(name="CONTROLLER", host="127.0.0.1", port=9, security_protocol=0)
    features = tuple(
        ask.Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in SUPPORTED.items()
    )
    return tuple(
        ask(
            controller_id=one, incarnation_id=UUID(int=8), zk_migration_ready=False,
            listeners=(listener,), features=features,
        )
        for one in (2, 999)
    )  # fmt: skip
