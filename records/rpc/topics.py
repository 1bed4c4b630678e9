"""Topics made, grown and removed, and who coordinates what.

Source: KIP-4 (CreateTopics, DeleteTopics), KIP-195 (CreatePartitions), KIP-516 (topic ids),
KIP-525 (configurations in the answer), KIP-699 (FindCoordinator for many keys).
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
    String,
    Uuid,
    between,
    nullable,
    since,
    tag,
    until,
)


class CreateTopicsRequest(Request, key=19, versions="2-7", flexible="5+"):
    """Creates topics. Source: KIP-4, KIP-464 (-1 stands for the broker's default)."""

    class CreatableTopic(Message):
        class CreatableReplicaAssignment(Message):
            partition_index: Int32
            broker_ids: Array[Int32]

        class CreatableTopicConfig(Message):
            name: String
            value: String | None

        name: String
        num_partitions: Int32  # -1: the default, or as assigned
        replication_factor: Int16  # -1: the default, or as assigned
        assignments: Array[CreatableReplicaAssignment]
        configs: Array[CreatableTopicConfig]

    topics: Array[CreatableTopic]
    timeout_ms: Int32 = 60_000
    validate_only: Annotated[Bool, since(1)] = False


class CreateTopicsResponse(Response, key=19, versions="2-7", flexible="5+"):
    """A result for each topic. Source: KIP-4, KIP-525."""

    class CreatableTopicResult(Message):
        class CreatableTopicConfigs(Message):
            name: Annotated[String, since(5)] = ""
            value: Annotated[String | None, since(5)] = ""
            read_only: Annotated[Bool, since(5)] = False
            config_source: Annotated[Int8, since(5), IGNORABLE] = -1
            is_sensitive: Annotated[Bool, since(5)] = False

        name: String
        topic_id: Annotated[Uuid, since(7), IGNORABLE] = ZERO_UUID
        error_code: Int16 = 0
        error_message: Annotated[String | None, since(1), IGNORABLE] = ""
        topic_config_error_code: Annotated[Int16, since(5), tag(0, "5+"), IGNORABLE] = 0
        num_partitions: Annotated[Int32, since(5), IGNORABLE] = -1
        replication_factor: Annotated[Int16, since(5), IGNORABLE] = -1
        configs: Annotated[Array[CreatableTopicConfigs] | None, since(5), IGNORABLE] = ()

    throttle_time_ms: Annotated[Int32, since(2), IGNORABLE] = 0
    topics: Array[CreatableTopicResult]


class DeleteTopicsRequest(Request, key=20, versions="1-6", flexible="4+"):
    """Deletes topics, by name or by id. Source: KIP-4, KIP-516."""

    class DeleteTopicState(Message):
        name: Annotated[String | None, since(6)] = None
        topic_id: Annotated[Uuid, since(6)] = ZERO_UUID

    topics: Annotated[Array[DeleteTopicState], since(6)] = ()
    topic_names: Annotated[Array[String], until(5), IGNORABLE] = ()
    timeout_ms: Int32


class DeleteTopicsResponse(Response, key=20, versions="1-6", flexible="4+"):
    """A result for each topic. Source: KIP-4, KIP-516."""

    class DeletableTopicResult(Message):
        name: Annotated[String | None, nullable("6+")]
        topic_id: Annotated[Uuid, since(6), IGNORABLE] = ZERO_UUID
        error_code: Int16 = 0
        error_message: Annotated[String | None, since(5), IGNORABLE] = None

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    responses: Array[DeletableTopicResult]


class CreatePartitionsRequest(Request, key=37, versions="0-3", flexible="2+"):
    """Gives topics more partitions. Source: KIP-195."""

    class CreatePartitionsTopic(Message):
        class CreatePartitionsAssignment(Message):
            broker_ids: Array[Int32]

        name: String
        count: Int32  # partitions afterwards, those there are included
        assignments: Array[CreatePartitionsAssignment] | None

    topics: Array[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Bool


class CreatePartitionsResponse(Response, key=37, versions="0-3", flexible="2+"):
    """A result for each topic. Source: KIP-195."""

    class CreatePartitionsTopicResult(Message):
        name: String
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    results: Array[CreatePartitionsTopicResult]


class FindCoordinatorRequest(Request, key=10, versions="0-6", flexible="3+"):
    """Asks which node acts for a group, or for a partition's batches.

    Key type 3 is KIP-1164's, with a key of the form `read|write:topicId:partition`; it is taken
    from version 4 on, because upstream may give version 7 to something else. Source: KIP-699.
    """

    key: Annotated[String, until(3)] = ""
    key_type: Annotated[Int8, since(1)] = 0  # 0 group, 1 transaction, 2 share, 3 batch
    coordinator_keys: Annotated[Array[String], since(4)] = ()


class FindCoordinatorResponse(Response, key=10, versions="0-6", flexible="3+"):
    """The node for each key. Source: KIP-699."""

    class Coordinator(Message):
        key: Annotated[String, since(4)] = ""
        node_id: Annotated[Int32, since(4)] = 0
        host: Annotated[String, since(4)] = ""
        port: Annotated[Int32, since(4)] = 0
        error_code: Annotated[Int16, since(4)] = 0
        error_message: Annotated[String | None, since(4), IGNORABLE] = ""

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    error_code: Annotated[Int16, until(3)] = 0
    error_message: Annotated[String | None, between(1, 3), IGNORABLE] = ""
    node_id: Annotated[Int32, until(3)] = 0
    host: Annotated[String, until(3)] = ""
    port: Annotated[Int32, until(3)] = 0
    coordinators: Annotated[Array[Coordinator], since(4)] = ()
