"""Lists the operations and resources that each API of a broker needs, as data.

    for check in CHECKS[8]:  # OffsetCommit
        check.operation, check.kind, check.names  # READ, GROUP, ("group_id",)

A check names the fields of the request in which the resources' names (or topic ids) stand; a check
of the cluster has none. `unless` is a second check that also grants what the first one does.

Guards take their operations from here (`coordinator.controller.guarding`, `diskless.access`).

Source: upstream's page "Authorization and ACLs". Where KafkaApis and ControllerApis do otherwise
(ElectLeaders, Produce, InitProducerId, DeleteTopics, DescribeCluster) it is as they do, and as
Apache Kafka 4.3.1 answers (`tests/interop/test_access_answers.py`).
Keys from 1000 on are ours: those that change anything need ALTER of the cluster, or
CLUSTER_ACTION if nodes send them; the others need DESCRIBE of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from coordinator.controller.authorizer import Operation, ResourceType

IN_ANSWER: Final = ""
"""In place of a field: the names stand in the answer, which is filtered."""


class Check(NamedTuple):
    """One operation on one type of resource that a request needs."""

    operation: Operation
    kind: ResourceType
    names: tuple[str, ...] = ()
    when: str = ""  # the part of the API that needs it; all of it if empty
    unless: Check | None = None


def _cluster(operation: Operation, when: str = "", unless: Check | None = None) -> Check:
    return Check(operation, ResourceType.CLUSTER, (), when, unless)


def _topic(operation: Operation, *names: str, when: str = "", unless: Check | None = None) -> Check:
    return Check(operation, ResourceType.TOPIC, names, when, unless)


def _group(operation: Operation, *names: str, when: str = "", unless: Check | None = None) -> Check:
    return Check(operation, ResourceType.GROUP, names, when, unless)


def _transactional_id(operation: Operation, *names: str, when: str = "") -> Check:
    return Check(operation, ResourceType.TRANSACTIONAL_ID, names, when)


_DESCRIBE: Final = (_cluster(Operation.DESCRIBE),)
_ALTER: Final = (_cluster(Operation.ALTER),)
_CLUSTER_ACTION: Final = (_cluster(Operation.CLUSTER_ACTION),)
_MEMBER: Final = (_group(Operation.READ, "group_id"),)
_CREATES: Final = _cluster(Operation.CREATE)
_DELETES: Final = _cluster(Operation.DELETE)
_OPERATIONS_SHOWN: Final = "the cluster's authorized operations are asked for"
_CONFIGS: Final = "resources.resource_name"


def _configs(operation: Operation) -> tuple[Check, ...]:
    return (
        _topic(operation, _CONFIGS, when="resource_type is TOPIC"),
        _group(operation, _CONFIGS, when="resource_type is GROUP"),
        _cluster(operation, "resource_type is another one"),
    )


CHECKS: Final[Mapping[int, tuple[Check, ...]]] = MappingProxyType(
    {
        0: (  # Produce
            _transactional_id(Operation.WRITE, "transactional_id", when="a batch is transactional"),
            _topic(Operation.WRITE, "topic_data.name", "topic_data.topic_id"),
        ),
        1: (  # Fetch
            _topic(Operation.READ, "topics.topic", "topics.topic_id", when="a consumer fetches"),
            _cluster(Operation.CLUSTER_ACTION, "a replica fetches"),
        ),
        2: (_topic(Operation.DESCRIBE, "topics.name"),),  # ListOffsets
        3: (  # Metadata
            _topic(Operation.DESCRIBE, "topics.name", "topics.topic_id", IN_ANSWER),
            _topic(Operation.CREATE, "topics.name", when="it creates a topic", unless=_CREATES),
            _cluster(Operation.DESCRIBE, _OPERATIONS_SHOWN),
        ),
        8: (  # OffsetCommit
            _group(Operation.READ, "group_id"),
            _topic(Operation.READ, "topics.name", "topics.topic_id"),
        ),
        9: (  # OffsetFetch
            _group(Operation.DESCRIBE, "group_id", "groups.group_id"),
            _topic(
                Operation.DESCRIBE,
                "topics.name",
                "groups.topics.name",
                "groups.topics.topic_id",
                IN_ANSWER,
            ),
        ),
        10: (  # FindCoordinator
            _group(Operation.DESCRIBE, "key", "coordinator_keys", when="key_type is 0"),
            _transactional_id(Operation.DESCRIBE, "key", "coordinator_keys", when="key_type is 1"),
            _cluster(Operation.DESCRIBE, "key_type is 3, a batch coordinator"),
        ),
        11: _MEMBER,  # JoinGroup
        12: _MEMBER,  # Heartbeat
        13: _MEMBER,  # LeaveGroup
        14: _MEMBER,  # SyncGroup
        15: (_group(Operation.DESCRIBE, "groups"),),  # DescribeGroups
        16: (  # ListGroups
            _group(Operation.DESCRIBE, IN_ANSWER, unless=_cluster(Operation.DESCRIBE)),
        ),
        17: (),  # SaslHandshake
        18: (),  # ApiVersions
        19: (  # CreateTopics
            _topic(Operation.CREATE, "topics.name", unless=_CREATES),
            _topic(Operation.DESCRIBE_CONFIGS, "topics.name", when="the answer shows configs"),
        ),
        20: (  # DeleteTopics
            _topic(
                Operation.DELETE,
                "topic_names",
                "topics.name",
                "topics.topic_id",
                unless=_DELETES,
            ),
            _topic(
                Operation.DESCRIBE,
                "topic_names",
                "topics.name",
                "topics.topic_id",
                when="the answer tells whether a name exists",
                unless=_DELETES,
            ),
        ),
        21: (_topic(Operation.DELETE, "topics.name"),),  # DeleteRecords
        22: (  # InitProducerId
            _transactional_id(Operation.WRITE, "transactional_id", when="it is not null"),
            _transactional_id(
                Operation.TWO_PHASE_COMMIT, "transactional_id", when="enable_2_pc is set"
            ),
            _cluster(
                Operation.IDEMPOTENT_WRITE,
                "transactional_id is null",
                unless=_topic(Operation.WRITE, when="of any topic"),
            ),
        ),
        23: (  # OffsetForLeaderEpoch
            _topic(Operation.DESCRIBE, "topics.topic", unless=_cluster(Operation.CLUSTER_ACTION)),
        ),
        24: (  # AddPartitionsToTxn
            _transactional_id(Operation.WRITE, "v3_and_below_transactional_id"),
            _topic(Operation.WRITE, "v3_and_below_topics.name"),
            _cluster(Operation.CLUSTER_ACTION, "transactions, of versions 4 and later"),
        ),
        25: (  # AddOffsetsToTxn
            _transactional_id(Operation.WRITE, "transactional_id"),
            _group(Operation.READ, "group_id"),
        ),
        26: (_transactional_id(Operation.WRITE, "transactional_id"),),  # EndTxn
        27: (  # WriteTxnMarkers
            _cluster(Operation.CLUSTER_ACTION, unless=_cluster(Operation.ALTER)),
        ),
        28: (  # TxnOffsetCommit
            _transactional_id(Operation.WRITE, "transactional_id"),
            _group(Operation.READ, "group_id"),
            _topic(Operation.READ, "topics.name"),
        ),
        29: _DESCRIBE,  # DescribeAcls
        30: _ALTER,  # CreateAcls
        31: _ALTER,  # DeleteAcls
        32: _configs(Operation.DESCRIBE_CONFIGS),  # DescribeConfigs
        33: _configs(Operation.ALTER_CONFIGS),  # AlterConfigs
        35: _DESCRIBE,  # DescribeLogDirs
        36: (),  # SaslAuthenticate
        37: (_topic(Operation.ALTER, "topics.name"),),  # CreatePartitions
        38: (  # CreateDelegationToken
            Check(
                Operation.CREATE_TOKENS,
                ResourceType.USER,
                ("owner_principal_name",),
                "the owner is another user",
            ),
        ),
        39: (),  # RenewDelegationToken: the owner and the renewers may
        40: (),  # ExpireDelegationToken: the owner and the renewers may
        41: (  # DescribeDelegationToken
            Check(
                Operation.DESCRIBE,
                ResourceType.DELEGATION_TOKEN,
                (IN_ANSWER,),
                "the token is another user's",
                Check(Operation.DESCRIBE_TOKENS, ResourceType.USER, ("owners.principal_name",)),
            ),
        ),
        42: (_group(Operation.DELETE, "groups_names"),),  # DeleteGroups
        43: _ALTER,  # ElectLeaders
        44: _configs(Operation.ALTER_CONFIGS),  # IncrementalAlterConfigs
        45: _ALTER,  # AlterPartitionReassignments
        46: _DESCRIBE,  # ListPartitionReassignments
        47: (  # OffsetDelete
            _group(Operation.DELETE, "group_id"),
            _topic(Operation.READ, "topics.name"),
        ),
        48: (_cluster(Operation.DESCRIBE_CONFIGS),),  # DescribeClientQuotas
        49: (_cluster(Operation.ALTER_CONFIGS),),  # AlterClientQuotas
        50: _DESCRIBE,  # DescribeUserScramCredentials
        51: _ALTER,  # AlterUserScramCredentials
        55: _DESCRIBE,  # DescribeQuorum
        57: _ALTER,  # UpdateFeatures
        60: (_cluster(Operation.DESCRIBE, _OPERATIONS_SHOWN),),  # DescribeCluster
        61: (_topic(Operation.READ, "topics.name"),),  # DescribeProducers
        64: _ALTER,  # UnregisterBroker
        65: (  # DescribeTransactions
            _transactional_id(Operation.DESCRIBE, "transactional_ids"),
            _topic(Operation.DESCRIBE, IN_ANSWER),
        ),
        66: (_transactional_id(Operation.DESCRIBE, IN_ANSWER),),  # ListTransactions
        71: (),  # GetTelemetrySubscriptions
        72: (),  # PushTelemetry
        74: (_cluster(Operation.DESCRIBE_CONFIGS),),  # ListConfigResources
        75: (_topic(Operation.DESCRIBE, "topics.name", IN_ANSWER),),  # DescribeTopicPartitions
        1076: _ALTER,  # CreateChunks
        1077: _ALTER,  # AlterChunkAssignments
        1097: (_topic(Operation.READ, "topics.topic_id"),),  # FindBatches
        1105: _DESCRIBE,  # DescribeDisklessTopics
        1106: _DESCRIBE,  # DescribeDisklessObject
        1108: _ALTER,  # ApplyRetention
        1109: _ALTER,  # MarkOrphans
        1112: _DESCRIBE,  # DescribeTopics
        1113: _DESCRIBE,  # DescribeBrokers
        1115: _ALTER,  # AcceptClock
        1116: _CLUSTER_ACTION,  # RewriteLease
        1117: _CLUSTER_ACTION,  # ReplaceRuns
        1118: _DESCRIBE,  # DescribeCleaning
        1119: _DESCRIBE,  # ListDisklessObjects
    }
)
"""What each API needs, by api key: every check of a row whose `when` applies."""
