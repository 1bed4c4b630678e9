"""The table of access control: principals, access control entries, requests, and their answers.

    for principal, label, answer in answers(ask_as): ...

The same cluster is made at Esker and at Apache Kafka: topics, groups and entries. Then each
principal sends each request, and what is kept of the answer is what access control decides: names,
authorized operations, and error codes. `tests/data/access_of_kafka.json` has the answers of Apache
Kafka 4.3.1 with StandardAuthorizer.

An error code that is neither about authorization nor about unknown names is written as `ok`: what
happens behind the authorizer has tests of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from records.batch import TRANSACTIONAL
from records.batch_writer import build_batch
from records.kafka_errors import ErrorCode
from records.rpc import API
from records.rpc import cluster as cluster_rpc
from records.rpc import configs as configs_rpc
from records.rpc import fetch as fetch_rpc
from records.rpc import groups as groups_rpc
from records.rpc import list_offsets as list_rpc
from records.rpc import partitions as partitions_rpc
from records.rpc import produce as produce_rpc
from records.rpc import quorum as quorum_rpc
from records.rpc import replicas as replicas_rpc
from records.rpc import security as security_rpc
from records.rpc import topics as topics_rpc
from records.rpc import transactions as transactions_rpc
from records.rpc.base import Request
from records.rpc.brokers import UnregisterBrokerRequest, UpdateFeaturesRequest
from records.types import ZERO_UUID

RECORDED: Final = Path(__file__).parents[1] / "data" / "access_of_kafka.json"
ADMIN: Final = "admin"
PRINCIPALS: Final = ("ann", "op", "node", "writer", "nobody")

TOPICS: Final = (
    "described",
    "elsewhere",
    "hidden",
    "local",
    "own-1",
    "own-secret",
    "public",
    "read",
    "write",
)
GROUPS: Final = ("hidden-group", "own-group", "readers", "seen")
UNKNOWN_ID: Final = UUID(int=7)

ACLS: Final = """
--allow-principal User:ann --operation Read --topic read
--allow-principal User:ann --operation Write --topic write
--allow-principal User:ann --operation Describe --operation DescribeConfigs --topic described
--allow-principal User:ann --operation Describe --topic absent
--allow-principal User:ann --operation All --topic own- --resource-pattern-type prefixed
--deny-principal User:ann --operation Read --operation Describe --topic own-secret
--allow-principal User:ann --operation Read --group readers
--allow-principal User:ann --operation Describe --group seen
--allow-principal User:ann --operation All --group own- --resource-pattern-type prefixed
--allow-principal User:ann --operation Write --transactional-id mine
--allow-principal User:ann --operation Describe --transactional-id seen
--allow-principal User:* --operation Describe --topic public
--allow-principal User:* --allow-host 127.0.0.1 --operation Read --topic local
--allow-principal User:* --allow-host 10.1.2.3 --operation Read --topic elsewhere
--allow-principal User:op --operation Describe --operation Alter --cluster
--allow-principal User:op --operation DescribeConfigs --operation AlterConfigs --cluster
--allow-principal User:op --operation Create --cluster
--deny-principal User:op --operation Describe --topic hidden
--allow-principal User:node --operation ClusterAction --cluster
--allow-principal User:writer --operation IdempotentWrite --cluster
--allow-principal User:writer --operation Write --topic *
--deny-principal User:writer --operation Write --topic hid --resource-pattern-type prefixed
""".strip().splitlines()
"""Arguments of `kafka-acls.sh --add`."""

KEPT_CODES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.SECURITY_DISABLED,
}
KEPT_NAMES: Final = {
    "name",
    "topic",
    "topic_id",
    "topic_name",
    "group_id",
    "key",
    "resource_name",
    "transactional_id",
    "user",
    "partition_index",
    "partition_id",
    "partition",
    "index",
    "authorized_operations",
    "topic_authorized_operations",
    "cluster_authorized_operations",
}
CODES: Final = {"error_code", "partition_error_code", "topic_config_error_code"}

OPERATIONS: Final = {
    "All": 2, "Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Alter": 7, "Describe": 8,
    "ClusterAction": 9, "DescribeConfigs": 10, "AlterConfigs": 11, "IdempotentWrite": 12,
}  # fmt: skip


class Ask(NamedTuple):
    """A request of the table."""

    label: str
    request: Request
    version: int


# --- the cluster --------------------------------------------------------------------------------


def creations() -> list[security_rpc.CreateAclsRequest.AclCreation]:
    """Return the entries of the table as CreateAcls has them."""
    found = []
    for line in ACLS:
        words = line.split()
        pattern, host, operations = 3, "*", []
        kind, name, principal, permission = 4, "kafka-cluster", "", 3
        for word, value in zip(words, [*words[1:], ""], strict=True):
            match word:
                case "--allow-principal" | "--deny-principal":
                    principal, permission = value, 3 if "allow" in word else 2
                case "--operation":
                    operations.append(OPERATIONS[value])
                case "--topic" | "--group" | "--transactional-id":
                    kind = {"--topic": 2, "--group": 3, "--transactional-id": 5}[word]
                    name = value
                case "--allow-host":
                    host = value
                case "--resource-pattern-type":
                    pattern = 4
        found += [
            security_rpc.CreateAclsRequest.AclCreation(
                resource_type=kind,
                resource_name=name,
                resource_pattern_type=pattern,
                principal=principal,
                host=host,
                operation=operation,
                permission_type=permission,
            )
            for operation in operations
        ]
    return found


def topics_request() -> topics_rpc.CreateTopicsRequest:
    """Return the request that creates the topics of the table."""
    return topics_rpc.CreateTopicsRequest(
        topics=tuple(_creatable(name) for name in TOPICS), timeout_ms=30_000
    )


def _creatable(name: str) -> topics_rpc.CreateTopicsRequest.CreatableTopic:
    return topics_rpc.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )


def commit(group: str, *names: str) -> groups_rpc.OffsetCommitRequest:
    """Return a request that commits an offset of each topic for a group without members."""
    topic = groups_rpc.OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    return groups_rpc.OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=tuple(topic(name=name, partitions=(partition,)) for name in names),
    )


# --- requests -----------------------------------------------------------------------------------

SOME: Final = ("read", "write", "described", "hidden", "missing", "own-1", "own-secret")


def _produce(*names: str, transactional_id: str | None = None) -> produce_rpc.ProduceRequest:
    batch = build_batch(
        [(None, b"x", 0, ())],
        base_offset=0,
        leader_epoch=-1,
        producer_id=-1 if transactional_id is None else 1,
        producer_epoch=-1 if transactional_id is None else 0,
        base_sequence=-1 if transactional_id is None else 0,
        attributes=0 if transactional_id is None else TRANSACTIONAL,
    )
    topic = produce_rpc.ProduceRequest.TopicProduceData
    data = (topic.PartitionProduceData(index=0, records=bytes(batch)),)
    return produce_rpc.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=tuple(topic(name=name, partition_data=data) for name in names),
    )


def _fetch(*names: str | UUID, replica_id: int = -1) -> fetch_rpc.FetchRequest:
    topic = fetch_rpc.FetchRequest.FetchTopic
    partition = topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return fetch_rpc.FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=10_000,
        session_epoch=-1,
        topics=tuple(
            topic(topic_id=name, partitions=(partition,))
            if isinstance(name, UUID)
            else topic(topic=name, partitions=(partition,))
            for name in names
        ),
    )


def _metadata(*names: str | UUID | None, **more: Any) -> cluster_rpc.MetadataRequest:
    topic = cluster_rpc.MetadataRequest.MetadataRequestTopic
    return cluster_rpc.MetadataRequest(
        topics=None
        if names == (None,)
        else tuple(
            topic(name=None, topic_id=name) if isinstance(name, UUID) else topic(name=name)
            for name in names
        ),
        **{"allow_auto_topic_creation": False, **more},
    )


def record_requests(ids: dict[str, UUID]) -> Iterator[Ask]:
    """Yield requests about records and offsets.

    Args:  ids: of the topics.
    """
    by_id = (ids["read"], ids["hidden"], UNKNOWN_ID)
    yield Ask("Produce", _produce(*SOME), 9)
    yield Ask("Produce, transactional", _produce("write", transactional_id="other"), 9)
    yield Ask("Fetch", _fetch(*SOME, "local", "elsewhere"), 12)
    yield Ask("Fetch by id", _fetch(*by_id), 13)
    listed = list_rpc.ListOffsetsRequest.ListOffsetsTopic
    last = listed.ListOffsetsPartition(partition_index=0, timestamp=-1)
    yield Ask(
        "ListOffsets",
        list_rpc.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=tuple(listed(name=name, partitions=(last,)) for name in SOME),
        ),
        7,
    )
    operations = {"include_topic_authorized_operations": True}
    yield Ask("Metadata", _metadata(*SOME, "absent", "public", **operations), 12)
    yield Ask("Metadata of all", _metadata(None, **operations), 12)
    yield Ask("Metadata, version 0, of all", cluster_rpc.MetadataRequest(topics=()), 0)
    yield Ask("Metadata by id", _metadata(*by_id, **operations), 12)
    cluster = {"include_cluster_authorized_operations": True}
    yield Ask("Metadata of the cluster", _metadata(**cluster), 8)
    creates = {"allow_auto_topic_creation": True}
    yield Ask("Metadata that creates", _metadata("absent", "missing", **creates), 12)
    deleted = partitions_rpc.DeleteRecordsRequest.DeleteRecordsTopic
    none = deleted.DeleteRecordsPartition(partition_index=0, offset=0)
    yield Ask(
        "DeleteRecords",
        partitions_rpc.DeleteRecordsRequest(
            timeout_ms=10_000,
            topics=tuple(deleted(name=name, partitions=(none,)) for name in SOME),
        ),
        2,
    )
    ended = partitions_rpc.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    epoch = ended.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    yield Ask(
        "OffsetForLeaderEpoch",
        partitions_rpc.OffsetForLeaderEpochRequest(
            replica_id=-2, topics=tuple(ended(topic=name, partitions=(epoch,)) for name in SOME)
        ),
        4,
    )
    paged = partitions_rpc.DescribeTopicPartitionsRequest
    for label, names in (("", SOME), (" of all", ())):
        yield Ask(
            f"DescribeTopicPartitions{label}",
            paged(topics=tuple(paged.TopicRequest(name=name) for name in names)),
            0,
        )
    producers = transactions_rpc.DescribeProducersRequest
    yield Ask(
        "DescribeProducers",
        producers(
            topics=tuple(producers.TopicRequest(name=name, partition_indexes=(0,)) for name in SOME)
        ),
        0,
    )


def group_requests() -> Iterator[Ask]:
    """Yield requests about groups."""
    for group in GROUPS:
        yield Ask(f"OffsetCommit of {group}", commit(group, *SOME), 8)
    fetched = groups_rpc.OffsetFetchRequest
    topics = tuple(
        fetched.OffsetFetchRequestTopic(name=name, partition_indexes=(0,)) for name in SOME
    )
    for version in (1, 5, 7):
        for group in ("seen", "hidden-group"):
            label = f"OffsetFetch {version} of {group}"
            yield Ask(label, fetched(group_id=group, topics=topics), version)
    yield Ask("OffsetFetch 7 of all topics", fetched(group_id="seen", topics=None), 7)
    named = fetched.OffsetFetchRequestGroup
    in_group = tuple(
        named.OffsetFetchRequestTopics(name=name, partition_indexes=(0,)) for name in SOME
    )
    yield Ask(
        "OffsetFetch 8",
        fetched(
            groups=(
                named(group_id="seen", topics=in_group),
                named(group_id="readers", topics=None),
                named(group_id="hidden-group", topics=None),
            )
        ),
        8,
    )
    for group in ("readers", "hidden-group"):
        yield from _member_requests(group)
    described = groups_rpc.DescribeGroupsRequest(groups=GROUPS, include_authorized_operations=True)
    yield Ask("DescribeGroups", described, 5)
    yield Ask("ListGroups", groups_rpc.ListGroupsRequest(), 4)
    delete = groups_rpc.DeleteGroupsRequest(groups_names=("hidden-group", "no group", "own-none"))
    yield Ask("DeleteGroups", delete, 2)
    forgotten = groups_rpc.OffsetDeleteRequest
    topic = forgotten.OffsetDeleteRequestTopic
    for group in ("own-group", "hidden-group"):
        yield Ask(
            f"OffsetDelete of {group}",
            forgotten(
                group_id=group,
                topics=tuple(
                    topic(
                        name=name,
                        partitions=(topic.OffsetDeleteRequestPartition(partition_index=7),),
                    )
                    for name in SOME
                ),
            ),
            0,
        )
    for kind, keys in ((0, GROUPS), (1, ("mine", "seen", "other"))):
        yield Ask(
            f"FindCoordinator, key type {kind}",
            topics_rpc.FindCoordinatorRequest(key_type=kind, coordinator_keys=keys),
            4,
        )
    for key in ("readers", "hidden-group"):
        find = topics_rpc.FindCoordinatorRequest(key_type=0, key=key)
        yield Ask(f"FindCoordinator 3 of {key}", find, 3)


def _member_requests(group: str) -> Iterator[Ask]:
    member = {"group_id": group, "generation_id": 1, "member_id": "none"}
    protocol = groups_rpc.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = groups_rpc.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )
    yield Ask(f"JoinGroup of {group}", join, 5)
    yield Ask(f"Heartbeat of {group}", groups_rpc.HeartbeatRequest(**member), 3)
    yield Ask(f"SyncGroup of {group}", groups_rpc.SyncGroupRequest(**member, assignments=()), 3)
    leave = groups_rpc.LeaveGroupRequest.MemberIdentity(member_id="none")
    yield Ask(
        f"LeaveGroup of {group}", groups_rpc.LeaveGroupRequest(group_id=group, members=(leave,)), 3
    )


def transaction_requests() -> Iterator[Ask]:
    """Yield requests about transactions and producer ids."""
    init = partitions_rpc.InitProducerIdRequest
    yield Ask("InitProducerId", init(transactional_id=None, transaction_timeout_ms=0), 4)
    for name in ("mine", "other"):
        yield Ask(
            f"InitProducerId of {name}",
            init(transactional_id=name, transaction_timeout_ms=60_000),
            4,
        )
        topic = transactions_rpc.AddPartitionsToTxnTopic
        yield Ask(
            f"AddPartitionsToTxn of {name}",
            transactions_rpc.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=987_654,
                v3_and_below_topics=tuple(
                    topic(name=one, partitions=(0,)) for one in ("write", "hidden", "missing")
                ),
            ),
            3,
        )
        ids = {"transactional_id": name, "producer_id": 987_654, "producer_epoch": 0}
        for group in ("readers", "hidden-group"):
            add = transactions_rpc.AddOffsetsToTxnRequest(**ids, group_id=group)
            yield Ask(f"AddOffsetsToTxn of {name}, {group}", add, 3)
            committed = groups_rpc.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
            partition = committed.TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=0, committed_metadata=""
            )
            yield Ask(
                f"TxnOffsetCommit of {name}, {group}",
                groups_rpc.TxnOffsetCommitRequest(
                    **ids,
                    group_id=group,
                    topics=tuple(
                        committed(name=one, partitions=(partition,))
                        for one in ("hidden", "missing")
                    ),
                ),
                3,
            )
        yield Ask(f"EndTxn of {name}", transactions_rpc.EndTxnRequest(**ids, committed=False), 3)
    described = transactions_rpc.DescribeTransactionsRequest(
        transactional_ids=("mine", "seen", "other")
    )
    yield Ask("DescribeTransactions", described, 0)
    listed = transactions_rpc.ListTransactionsRequest(state_filters=(), producer_id_filters=())
    yield Ask("ListTransactions", listed, 0)
    marker = transactions_rpc.WriteTxnMarkersRequest.WritableTxnMarker
    yield Ask(
        "WriteTxnMarkers",
        transactions_rpc.WriteTxnMarkersRequest(
            markers=(
                marker(
                    producer_id=987_654,
                    producer_epoch=0,
                    transaction_result=False,
                    coordinator_epoch=0,
                    topics=(marker.WritableTxnMarkerTopic(name="missing", partition_indexes=(0,)),),
                ),
            )
        ),
        1,
    )


def admin_requests(ids: dict[str, UUID]) -> Iterator[Ask]:
    """Yield requests that describe or change the cluster; none of them changes anything."""
    yield Ask(
        "CreateTopics",
        topics_rpc.CreateTopicsRequest(
            topics=tuple(_creatable(name) for name in ("own-2", "own-1", "new", "hidden")),
            timeout_ms=10_000,
            validate_only=True,
        ),
        7,
    )
    delete = topics_rpc.DeleteTopicsRequest
    names = ("described", "hidden", "missing", "absent", "own-none")
    yield Ask("DeleteTopics", delete(topic_names=("missing", "absent"), timeout_ms=10_000), 5)
    states = [delete.DeleteTopicState(name=name) for name in names if name in ("missing", "absent")]
    yield Ask(
        "DeleteTopics by id",
        delete(
            topics=(*states, delete.DeleteTopicState(name=None, topic_id=UNKNOWN_ID)),
            timeout_ms=10_000,
        ),
        6,
    )
    grow = topics_rpc.CreatePartitionsRequest
    yield Ask(
        "CreatePartitions",
        grow(
            topics=tuple(
                grow.CreatePartitionsTopic(name=name, count=3, assignments=None)
                for name in ("own-1", "read", "hidden", "missing")
            ),
            timeout_ms=10_000,
            validate_only=True,
        ),
        3,
    )
    yield from _config_requests()
    yield from _security_requests()
    yield from _cluster_requests(ids)


def _config_requests() -> Iterator[Ask]:
    resources = ((2, "described"), (2, "own-1"), (2, "hidden"), (2, "missing"), (4, ""))
    describe = configs_rpc.DescribeConfigsRequest
    yield Ask(
        "DescribeConfigs",
        describe(
            resources=tuple(
                describe.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=()
                )
                for kind, name in resources
            )
        ),
        4,
    )
    for request, version in (
        (configs_rpc.AlterConfigsRequest, 2),
        (configs_rpc.IncrementalAlterConfigsRequest, 1),
    ):
        yield Ask(
            request.__name__.removesuffix("Request"),
            request(
                resources=tuple(
                    request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=())
                    for kind, name in resources
                ),
                validate_only=True,
            ),
            version,
        )
    yield Ask("ListConfigResources", configs_rpc.ListConfigResourcesRequest(), 0)


def _security_requests() -> Iterator[Ask]:
    nothing = {
        "resource_type_filter": 2,
        "resource_name_filter": "no resource",
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    yield Ask("DescribeAcls", security_rpc.DescribeAclsRequest(**nothing), 2)
    yield Ask("CreateAcls", security_rpc.CreateAclsRequest(creations=(creations()[0],)), 2)
    delete = security_rpc.DeleteAclsRequest
    yield Ask("DeleteAcls", delete(filters=(delete.DeleteAclsFilter(**nothing),)), 2)
    described = security_rpc.DescribeUserScramCredentialsRequest
    yield Ask(
        "DescribeUserScramCredentials", described(users=(described.UserName(name="none"),)), 0
    )
    altered = security_rpc.AlterUserScramCredentialsRequest
    gone = altered.ScramCredentialDeletion(name="none", mechanism=1)
    yield Ask("AlterUserScramCredentials", altered(deletions=(gone,), upsertions=()), 0)
    quotas = security_rpc.DescribeClientQuotasRequest(components=(), strict=False)
    yield Ask("DescribeClientQuotas", quotas, 1)
    entry = security_rpc.AlterClientQuotasRequest.EntryData
    some = entry(
        entity=(entry.EntityData(entity_type="user", entity_name="none"),),
        ops=(entry.OpData(key="producer_byte_rate", value=1e6, remove=False),),
    )
    change = security_rpc.AlterClientQuotasRequest(entries=(some,), validate_only=True)
    yield Ask("AlterClientQuotas", change, 1)


def _cluster_requests(ids: dict[str, UUID]) -> Iterator[Ask]:
    del ids
    for operations in (True, False):
        yield Ask(
            f"DescribeCluster, operations {operations}",
            cluster_rpc.DescribeClusterRequest(include_cluster_authorized_operations=operations),
            0,
        )
    yield Ask("DescribeLogDirs", replicas_rpc.DescribeLogDirsRequest(topics=()), 4)
    elect = replicas_rpc.ElectLeadersRequest
    yield Ask(
        "ElectLeaders",
        elect(
            election_type=0,
            topic_partitions=(elect.TopicPartitions(topic="missing", partitions=(0,)),),
            timeout_ms=10_000,
        ),
        2,
    )
    move = replicas_rpc.AlterPartitionReassignmentsRequest
    partition = move.ReassignableTopic.ReassignablePartition(partition_index=0, replicas=None)
    topic = move.ReassignableTopic(name="missing", partitions=(partition,))
    yield Ask("AlterPartitionReassignments", move(topics=(topic,), timeout_ms=10_000), 0)
    listed = replicas_rpc.ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000)
    yield Ask("ListPartitionReassignments", listed, 0)
    asked = quorum_rpc.DescribeQuorumRequest.TopicData
    log = asked(
        topic_name="__cluster_metadata",
        partitions=(asked.PartitionData(partition_index=0),),
    )
    yield Ask("DescribeQuorum", quorum_rpc.DescribeQuorumRequest(topics=(log,)), 1)
    yield Ask(
        "UpdateFeatures",
        UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=(), validate_only=True),
        1,
    )
    yield Ask("UnregisterBroker", UnregisterBrokerRequest(broker_id=987), 0)


def requests(ids: dict[str, UUID]) -> Iterator[Ask]:
    """Yield every request of the table."""
    yield from record_requests(ids)
    yield from group_requests()
    yield from transaction_requests()
    yield from admin_requests(ids)


# --- answers ------------------------------------------------------------------------------------


def kept(value: Any, names: dict[UUID, str]) -> Any:
    """Return of a response what access control decides; lists are sorted.

    Internal topics and the settings of topics are left out: each system has its own.

    Args:  names: of topics, by id.
    """
    found: dict[str, Any] = {}
    for field in value.schema().fields:
        item = getattr(value, field.name)
        if isinstance(item, str) and item.startswith("__"):
            return {}
        if field.name == "configs":
            continue
        if field.name in CODES:
            found[field.name] = ErrorCode(item).name if item in KEPT_CODES else "ok"
        elif field.name == "topic_id":
            if item != ZERO_UUID:
                found["topic_id"] = names.get(item, "unknown")
        elif field.name in KEPT_NAMES:
            found[field.name] = item
        elif isinstance(item, tuple) and item and hasattr(item[0], "schema"):
            parts = [part for part in (kept(one, names) for one in item) if part]
            if parts:
                found[field.name] = sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
    return found


AskAs = Callable[[str, Request, int], Any]
"""Sends a request as a principal, and returns the response."""


def answers(ask_as: AskAs, api_key: int | None = None) -> dict[str, dict[str, Any]]:
    """Send the table's requests as each principal, and return the answers by request.

    Args:  api_key: of the only requests to send; None: all.
    """
    described = ask_as(ADMIN, _metadata(*TOPICS), 12)
    ids = {topic.name: topic.topic_id for topic in described.topics}
    names = {topic_id: name for name, topic_id in ids.items()}
    found: dict[str, dict[str, Any]] = {}
    for ask in requests(ids):
        if api_key not in (None, ask.request.schema().key):
            continue
        row = found.setdefault(ask.label, {})
        for principal in PRINCIPALS:
            answer = ask_as(principal, ask.request, ask.version)
            row[principal] = json.loads(json.dumps(kept(answer, names)))
    return found


def response_of(request: Request) -> Any:
    """Return the class of the response to a request."""
    key = request.schema().key
    assert key is not None
    return API[key].response
