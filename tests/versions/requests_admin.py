"""Requests about replicas, security and transactions, of which a cluster of this kind has none."""

from __future__ import annotations

from records.rpc import configs, replicas, security, telemetry, transactions
from records.rpc.base import Request
from records.types import ZERO_UUID
from tests.versions.nodes import BROKER_ID
from tests.versions.scene import NOWHERE, Scene


def elections(_: Scene) -> tuple[Request, ...]:
    ask = replicas.ElectLeadersRequest
    topics = tuple(ask.TopicPartitions(topic=name, partitions=(0, 9)) for name in ("t", "nowhere"))
    return (
        ask(election_type=0, topic_partitions=topics),
        ask(election_type=1, topic_partitions=topics),
        ask(election_type=7, topic_partitions=topics),
        ask(topic_partitions=None),
    )


def reassignments(_: Scene) -> tuple[Request, ...]:
    topic = replicas.AlterPartitionReassignmentsRequest.ReassignableTopic
    moves = (
        (0, (BROKER_ID,)),
        (1, (BROKER_ID, BROKER_ID)),
        (1, (77,)),
        (0, None),
        (0, ()),
        (9, None),
    )
    topics = tuple(
        topic(
            name=name,
            partitions=tuple(
                topic.ReassignablePartition(partition_index=index, replicas=brokers)
                for index, brokers in moves
            ),
        )
        for name in ("t", "nowhere")
    )
    return (replicas.AlterPartitionReassignmentsRequest(topics=topics),)


def list_reassignments(_: Scene) -> tuple[Request, ...]:
    ask = replicas.ListPartitionReassignmentsRequest
    topic = ask.ListPartitionReassignmentsTopics(name="t", partition_indexes=(0, 9))
    return (ask(topics=None), ask(topics=(topic,)))


def log_dirs(_: Scene) -> tuple[Request, ...]:
    ask = replicas.DescribeLogDirsRequest
    topics = tuple(
        ask.DescribableLogDirTopic(topic=name, partitions=(0, 1, 9)) for name in ("t", "nowhere")
    )
    return (ask(topics=None), ask(topics=topics), ask(topics=()))


def describe_acls(_: Scene) -> tuple[Request, ...]:
    return (
        security.DescribeAclsRequest(
            resource_type_filter=2, resource_name_filter="t", principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        ),
    )  # fmt: skip


def create_acls(_: Scene) -> tuple[Request, ...]:
    rule = security.CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", principal="User:ann", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    return (security.CreateAclsRequest(creations=(rule, rule)),)


def delete_acls(_: Scene) -> tuple[Request, ...]:
    rules = security.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=2, resource_name_filter=None, principal_filter=None, host_filter=None,
        operation=1, permission_type=1,
    )  # fmt: skip
    return (security.DeleteAclsRequest(filters=(rules,)),)


def sasl_handshakes(_: Scene) -> tuple[Request, ...]:
    return (security.SaslHandshakeRequest(mechanism="PLAIN"),)


def sasl_bytes(_: Scene) -> tuple[Request, ...]:
    return (security.SaslAuthenticateRequest(auth_bytes=b"\0ann\0secret"),)


def create_tokens(_: Scene) -> tuple[Request, ...]:
    ask = security.CreateDelegationTokenRequest
    renewer = ask.CreatableRenewers(principal_type="User", principal_name="ann")
    return (
        ask(renewers=(), max_lifetime_ms=-1),
        ask(
            owner_principal_type="User", owner_principal_name="bob", renewers=(renewer,),
            max_lifetime_ms=5,
        ),
    )  # fmt: skip


def renew_tokens(_: Scene) -> tuple[Request, ...]:
    return (security.RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=5),)


def expire_tokens(_: Scene) -> tuple[Request, ...]:
    return (security.ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=5),)


def describe_tokens(_: Scene) -> tuple[Request, ...]:
    ask = security.DescribeDelegationTokenRequest
    owner = ask.DescribeDelegationTokenOwner(principal_type="User", principal_name="ann")
    return (ask(owners=None), ask(owners=(owner,)))


def describe_quotas(_: Scene) -> tuple[Request, ...]:
    ask = security.DescribeClientQuotasRequest
    return tuple(
        ask(
            components=(ask.ComponentData(entity_type=kind, match_type=how, match=match),),
            strict=True,
        )
        for kind, how, match in (("user", 0, "ann"), ("client-id", 2, None), ("nobody", 1, None))
    )


def alter_quotas(_: Scene) -> tuple[Request, ...]:
    entry = security.AlterClientQuotasRequest.EntryData
    entity = (entry.EntityData(entity_type="client-id", entity_name="limited"),)
    change = entry.OpData(key="producer_byte_rate", value=1e6, remove=False)
    entries = (entry(entity=entity, ops=(change,)),)
    return (security.AlterClientQuotasRequest(entries=entries, validate_only=False),)


def describe_scram(_: Scene) -> tuple[Request, ...]:
    ask = security.DescribeUserScramCredentialsRequest
    users = tuple(ask.UserName(name=name) for name in ("ann", "bob", "bob"))
    return (ask(users=None), ask(users=users))


def alter_scram(_: Scene) -> tuple[Request, ...]:
    ask = security.AlterUserScramCredentialsRequest
    deletion = ask.ScramCredentialDeletion(name="ann", mechanism=1)
    upsertion = ask.ScramCredentialUpsertion(
        name="bob", mechanism=2, iterations=4_096, salt=b"s", salted_password=bytes(64)
    )
    return (ask(deletions=(deletion,), upsertions=(upsertion,)),)


def describe_producers(_: Scene) -> tuple[Request, ...]:
    ask = transactions.DescribeProducersRequest
    topics = tuple(
        ask.TopicRequest(name=name, partition_indexes=(0, 9)) for name in ("t", "nowhere", "")
    )
    return (ask(topics=topics),)


def write_markers(_: Scene) -> tuple[Request, ...]:
    marker = transactions.WriteTxnMarkersRequest.WritableTxnMarker
    topics = tuple(
        marker.WritableTxnMarkerTopic(name=name, partition_indexes=(0, 9))
        for name in ("t", "nowhere")
    )
    return tuple(
        transactions.WriteTxnMarkersRequest(
            markers=(
                marker(
                    producer_id=producer_id, producer_epoch=0, transaction_result=False,
                    topics=topics, coordinator_epoch=0, transaction_version=2,
                ),
            )
        )
        for producer_id in (5, -1)
    )  # fmt: skip


def describe_transactions(_: Scene) -> tuple[Request, ...]:
    return (transactions.DescribeTransactionsRequest(transactional_ids=("payments", "")),)


def list_transactions(_: Scene) -> tuple[Request, ...]:
    ask = transactions.ListTransactionsRequest
    return (
        ask(state_filters=(), producer_id_filters=()),
        ask(
            state_filters=("Ongoing", "Idle"), producer_id_filters=(5,), duration_filter=7,
            transactional_id_pattern="pay.*",
        ),
    )  # fmt: skip


def list_resources(_: Scene) -> tuple[Request, ...]:
    ask = configs.ListConfigResourcesRequest
    return tuple(ask(resource_types=types) for types in ((), (2, 32), (99,)))


def telemetry_subscriptions(_: Scene) -> tuple[Request, ...]:
    ask = telemetry.GetTelemetrySubscriptionsRequest
    return (ask(client_instance_id=ZERO_UUID), ask(client_instance_id=NOWHERE))


def pushed_telemetry(_: Scene) -> tuple[Request, ...]:
    return tuple(
        telemetry.PushTelemetryRequest(
            client_instance_id=client, subscription_id=5, terminating=True, compression_type=0,
            metrics=b"m",
        )
        for client in (ZERO_UUID, NOWHERE)
    )  # fmt: skip
