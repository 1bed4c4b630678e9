"""The metadata records of upstream Kafka, by upstream's names, numbers and versions.

They are what a controller writes to `__cluster_metadata-0` and what every node builds its image of
the cluster from. The numbers 6, 13 and 16 were given up by upstream and stay unused.

Source: KIP-500 and KIP-631; the schemas inside the released jars, which the interop tests compare
with these declarations field by field.
"""

from typing import Annotated

from records.schema import Message, MetadataRecord
from records.wire import (
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    UInt16,
    Uuid,
    since,
    tag,
)


class RegisterBrokerRecord(MetadataRecord, key=0, versions="0-4"):
    """A broker is registered with a new epoch. Source: KIP-631."""

    class BrokerEndpoint(Message):
        name: String
        host: String
        port: UInt16
        security_protocol: Int16

    class BrokerFeature(Message):
        name: String
        min_supported_version: Int16
        max_supported_version: Int16

    broker_id: Int32
    is_migrating_zk_broker: Annotated[Bool, since(2)] = False
    incarnation_id: Uuid
    broker_epoch: Int64  # the offset of this very record
    end_points: Array[BrokerEndpoint]
    features: Array[BrokerFeature]
    rack: String | None
    fenced: Bool = True
    in_controlled_shutdown: Annotated[Bool, since(1)] = False
    log_dirs: Annotated[Array[Uuid], since(3), tag(0)] = ()
    cordoned_log_dirs: Annotated[Array[Uuid] | None, since(4), tag(1)] = None
    unpreferred_reason: Annotated[String, tag(1000)] = ""  # ours; empty: clients are sent to it


class UnregisterBrokerRecord(MetadataRecord, key=1, versions="0"):
    """A broker's registration is removed. Source: KIP-631."""

    broker_id: Int32
    broker_epoch: Int64


class TopicRecord(MetadataRecord, key=2, versions="0"):
    """A topic exists; its partitions follow. Source: KIP-516, KIP-631."""

    name: String
    topic_id: Uuid


class PartitionRecord(MetadataRecord, key=3, versions="0-3"):
    """A partition and its whole state. Source: KIP-631, KIP-858, KIP-966; version 3: KIP-1114."""

    partition_id: Int32 = -1
    topic_id: Uuid
    replicas: Array[Int32]
    isr: Array[Int32]
    removing_replicas: Array[Int32]
    adding_replicas: Array[Int32]
    leader: Int32 = -1
    leader_recovery_state: Annotated[Int8, tag(0)] = 0  # 1 after an unclean election, else 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[Array[Uuid], since(1)] = ()
    eligible_leader_replicas: Annotated[Array[Int32] | None, since(2), tag(1)] = None
    last_known_elr: Annotated[Array[Int32] | None, since(2), tag(2)] = None
    start_offset: Annotated[Int64, since(3), tag(3)] = -1  # of the active chunk, inclusive
    start_timestamp: Annotated[Int64, since(3), tag(4)] = -1  # ms since 1970


class ConfigRecord(MetadataRecord, key=4, versions="0"):
    """A setting of a resource. Source: KIP-631."""

    resource_type: Int8  # 2 topic, 4 broker
    resource_name: String
    name: String
    value: String | None  # null deletes the setting


class PartitionChangeRecord(MetadataRecord, key=5, versions="0-3"):
    """The changed fields of a partition; null or the default means unchanged.

    Source: KIP-631; version 3: KIP-1114.
    """

    partition_id: Int32 = -1
    topic_id: Uuid
    isr: Annotated[Array[Int32] | None, tag(0)] = None
    leader: Annotated[Int32, tag(1)] = -2  # -1 is a change: no leader
    replicas: Annotated[Array[Int32] | None, tag(2)] = None
    removing_replicas: Annotated[Array[Int32] | None, tag(3)] = None
    adding_replicas: Annotated[Array[Int32] | None, tag(4)] = None
    leader_recovery_state: Annotated[Int8, tag(5)] = -1
    directories: Annotated[Array[Uuid] | None, since(1), tag(8)] = None
    eligible_leader_replicas: Annotated[Array[Int32] | None, since(2), tag(6)] = None
    last_known_elr: Annotated[Array[Int32] | None, since(2), tag(7)] = None
    start_offset: Annotated[Int64, since(3), tag(9)] = -1  # of the new active chunk, inclusive
    start_timestamp: Annotated[Int64, since(3), tag(10)] = -1  # ms since 1970


class FenceBrokerRecord(MetadataRecord, key=7, versions="0"):
    """Old form of fencing a broker; 17 is written now. Source: KIP-631."""

    id: Int32
    epoch: Int64


class UnfenceBrokerRecord(MetadataRecord, key=8, versions="0"):
    """Old form of unfencing a broker; 17 is written now. Source: KIP-631."""

    id: Int32
    epoch: Int64


class RemoveTopicRecord(MetadataRecord, key=9, versions="0"):
    """A topic and its partitions are removed. Source: KIP-631."""

    topic_id: Uuid


class DelegationTokenRecord(MetadataRecord, key=10, versions="0"):
    """A delegation token. Source: KIP-900."""

    owner: String
    requester: String
    renewers: Array[String]
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: String


class UserScramCredentialRecord(MetadataRecord, key=11, versions="0"):
    """A user's SCRAM credential. Source: KIP-900."""

    name: String
    mechanism: Int8
    salt: Bytes
    stored_key: Bytes
    server_key: Bytes
    iterations: Int32


class FeatureLevelRecord(MetadataRecord, key=12, versions="0"):
    """A feature is finalized at a level; 0 removes it. Source: KIP-584, KIP-778."""

    name: String
    feature_level: Int16


class ClientQuotaRecord(MetadataRecord, key=14, versions="0"):
    """A quota of a client entity. Source: KIP-546."""

    class EntityData(Message):
        entity_type: String
        entity_name: String | None

    entity: Array[EntityData]
    key: String
    value: Float64
    remove: Bool  # true removes the quota, and Value means nothing


class ProducerIdsRecord(MetadataRecord, key=15, versions="0"):
    """A block of producer ids is handed to a broker. Source: KIP-730."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64  # exclusive end of the block that was handed out
    block_time_ms: Annotated[Int64, tag(1000)] = -1  # when it was; Java skips the tag


class BrokerRegistrationChangeRecord(MetadataRecord, key=17, versions="0-3"):
    """The changed fields of a registered broker. Source: KIP-841."""

    broker_id: Int32
    broker_epoch: Int64
    fenced: Annotated[Int8, tag(0)] = 0  # 1 fence, -1 unfence, 0 unchanged
    in_controlled_shutdown: Annotated[Int8, since(1), tag(1)] = 0  # 1 begun, 0 unchanged
    log_dirs: Annotated[Array[Uuid], since(2), tag(2)] = ()
    cordoned_log_dirs: Annotated[Array[Uuid] | None, since(3), tag(3)] = None
    unpreferred_reason: Annotated[String | None, tag(1000)] = None  # null: unchanged


class AccessControlEntryRecord(MetadataRecord, key=18, versions="0"):
    """An access control entry. Source: KIP-801."""

    id: Uuid
    resource_type: Int8
    resource_name: String
    pattern_type: Int8
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class RemoveAccessControlEntryRecord(MetadataRecord, key=19, versions="0"):
    """An access control entry is removed. Source: KIP-801."""

    id: Uuid


class NoOpRecord(MetadataRecord, key=20, versions="0"):
    """An empty record, which shows that an idle log can still commit. Source: KIP-835."""


class ZkMigrationStateRecord(MetadataRecord, key=21, versions="0"):
    """State of the move away from ZooKeeper; read in old logs only. Source: KIP-866."""

    zk_migration_state: Int8


class RemoveUserScramCredentialRecord(MetadataRecord, key=22, versions="0"):
    """A SCRAM credential is removed. Source: KIP-900."""

    name: String
    mechanism: Int8


class BeginTransactionRecord(MetadataRecord, key=23, versions="0"):
    """The records that follow take effect only with an EndTransactionRecord. Source: KIP-868."""

    name: Annotated[String | None, tag(0)] = None


class EndTransactionRecord(MetadataRecord, key=24, versions="0"):
    """The open metadata transaction takes effect. Source: KIP-868."""


class AbortTransactionRecord(MetadataRecord, key=25, versions="0"):
    """The open metadata transaction is discarded. Source: KIP-868."""

    reason: Annotated[String | None, tag(0)] = None


class RemoveDelegationTokenRecord(MetadataRecord, key=26, versions="0"):
    """A delegation token is removed. Source: KIP-900."""

    token_id: String


class RegisterControllerRecord(MetadataRecord, key=27, versions="0"):
    """A controller is registered. Source: KIP-919."""

    class ControllerEndpoint(Message):
        name: String
        host: String
        port: UInt16
        security_protocol: Int16

    class ControllerFeature(Message):
        name: String
        min_supported_version: Int16
        max_supported_version: Int16

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: Bool
    end_points: Array[ControllerEndpoint]
    features: Array[ControllerFeature]


class ClearElrRecord(MetadataRecord, key=28, versions="0"):
    """Forgets eligible leader replicas, of a topic or of all. Source: KIP-966."""

    topic_name: String
