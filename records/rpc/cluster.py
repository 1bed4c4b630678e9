"""The first requests of every client: api versions, brokers and topics.

Source: KIP-35 and KIP-584 (ApiVersions), KIP-516 (topic ids), KIP-919 (controllers described).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import (
    IGNORABLE,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Uuid,
    between,
    nullable,
    since,
    tag,
)


class ApiVersionsRequest(Request, key=18, versions="0-4", flexible="3+"):
    """Asks which RPCs and features a node has. Source: KIP-35, KIP-511."""

    client_software_name: Annotated[String, since(3), IGNORABLE] = ""
    client_software_version: Annotated[String, since(3), IGNORABLE] = ""


class ApiVersionsResponse(Response, key=18, versions="0-4", flexible="3+"):
    """The node's RPCs, and the features finalized. Source: KIP-35, KIP-584."""

    class ApiVersion(Message):
        api_key: Int16
        min_version: Int16
        max_version: Int16

    class SupportedFeatureKey(Message):
        name: String
        min_version: Int16
        max_version: Int16

    class FinalizedFeatureKey(Message):
        name: String
        max_version_level: Int16
        min_version_level: Int16

    error_code: Int16 = 0
    api_keys: Array[ApiVersion]
    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    supported_features: Annotated[Array[SupportedFeatureKey], since(3), tag(0), IGNORABLE] = ()
    finalized_features_epoch: Annotated[Int64, since(3), tag(1), IGNORABLE] = -1
    finalized_features: Annotated[Array[FinalizedFeatureKey], since(3), tag(2), IGNORABLE] = ()
    zk_migration_ready: Annotated[Bool, since(3), tag(3), IGNORABLE] = False


class MetadataRequest(Request, key=3, versions="0-13", flexible="9+"):
    """Asks for brokers, topics and partitions. Source: the protocol guide."""

    class MetadataRequestTopic(Message):
        topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
        name: Annotated[String | None, nullable("10+")]

    topics: Annotated[Array[MetadataRequestTopic] | None, nullable("1+")]
    allow_auto_topic_creation: Annotated[Bool, since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, between(8, 10)] = False
    include_topic_authorized_operations: Annotated[Bool, since(8)] = False


class MetadataResponse(Response, key=3, versions="0-13", flexible="9+"):
    """Brokers, topics and partitions.

    A partition's `start_offset` (of its active chunk) and `chunks` (the inactive ones, both ends of
    their offsets inclusive) are KIP-1114's, moved from version 13, which upstream gave to something
    else, into tagged fields that other clients skip. Source: the protocol guide, KIP-1114.
    """

    class MetadataResponseBroker(Message):
        node_id: Int32
        host: String
        port: Int32
        rack: Annotated[String | None, since(1), IGNORABLE] = None

    class MetadataResponseTopic(Message):
        class MetadataResponsePartition(Message):
            class MetadataResponseChunk(Message):
                start_offset: Int64 = -1
                start_timestamp: Int64 = -1
                stop_offset: Int64 = -1
                end_offset: Int64 = -1
                replica_nodes: Array[Int32]
                isr_nodes: Array[Int32]

            error_code: Int16 = 0
            partition_index: Int32
            leader_id: Int32
            leader_epoch: Annotated[Int32, since(7), IGNORABLE] = -1
            replica_nodes: Array[Int32]
            isr_nodes: Array[Int32]
            offline_replicas: Annotated[Array[Int32], since(5), IGNORABLE] = ()
            start_offset: Annotated[Int64, since(9), tag(1000), IGNORABLE] = -1
            chunks: Annotated[Array[MetadataResponseChunk], since(9), tag(1001), IGNORABLE] = ()

        error_code: Int16 = 0
        name: Annotated[String | None, nullable("12+")]
        topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
        is_internal: Annotated[Bool, since(1), IGNORABLE] = False
        partitions: Array[MetadataResponsePartition]
        topic_authorized_operations: Annotated[Int32, since(8)] = -(2**31)

    throttle_time_ms: Annotated[Int32, since(3), IGNORABLE] = 0
    brokers: Array[MetadataResponseBroker]
    cluster_id: Annotated[String | None, since(2), IGNORABLE] = None
    controller_id: Annotated[Int32, since(1), IGNORABLE] = -1
    topics: Array[MetadataResponseTopic]
    cluster_authorized_operations: Annotated[Int32, between(8, 10)] = -(2**31)
    error_code: Annotated[Int16, since(13), IGNORABLE] = 0


class DescribeClusterRequest(Request, key=60, versions="0-2"):
    """Asks for the brokers or the controllers. Source: KIP-700, KIP-919."""

    include_cluster_authorized_operations: Bool
    endpoint_type: Annotated[Int8, since(1)] = 1
    include_fenced_brokers: Annotated[Bool, since(2)] = False


class DescribeClusterResponse(Response, key=60, versions="0-2"):
    """The brokers or the controllers. Source: KIP-700, KIP-919."""

    class DescribeClusterBroker(Message):
        broker_id: Int32
        host: String
        port: Int32
        rack: String | None = None
        is_fenced: Annotated[Bool, since(2)] = False

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, since(1)] = 1
    cluster_id: String
    controller_id: Int32 = -1
    brokers: Array[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = -(2**31)
