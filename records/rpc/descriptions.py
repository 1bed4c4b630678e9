"""Descriptions of topics and brokers from a controller's image, for people and programs.

Kafka's controllers answer no such questions; its brokers do (Metadata), and there need not be one.
Any node of the quorum answers from its own image and says as of which offset; an offset that an
answer must not be older than can be asked for by asking the leader.

Source: KIP-1114 (chunks of a partition); KIP-631 (brokers). The numbers, from 1112 on, are ours.
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import IGNORABLE, Array, Bool, Int16, Int32, Int64, String, UInt16, Uuid, tag


class DescribeTopicsRequest(Request, key=1112, versions="0"):
    """Asks for topics with their partitions and chunks; of all of them if none is named."""

    topic_names: Array[String] | None = None


class DescribeTopicsResponse(Response, key=1112, versions="0"):
    """Topics by rising name, as one replica's image has them."""

    class Topic(Message):
        class Partition(Message):
            class Chunk(Message):
                start_offset: Int64  # inclusive, as all offsets here
                start_timestamp: Int64  # ms since 1970
                stop_offset: Int64  # readers stop here; -1: the active chunk
                end_offset: Int64  # replicas stop here; -1: the active chunk
                epoch: Int32
                replicas: Array[Int32]
                isr: Array[Int32]

            partition_index: Int32
            leader_id: Int32
            replicas: Array[Int32]
            isr: Array[Int32]
            coordinator: Int32  # the partition of __diskless-metadata that has its batches
            chunks: Array[Chunk]  # by rising start, the active one last; none: never cut
            assigned: Annotated[Array[Int32], tag(0), IGNORABLE] = ()  # replicas in the log

        error_code: Int16 = 0
        topic_name: String
        topic_id: Uuid
        is_internal: Bool = False
        partitions: Array[Partition] = ()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    image_offset: Int64 = -1  # everything below it is in the image (exclusive)
    image_age_ms: Annotated[Int64, tag(0), IGNORABLE] = -1  # at most, of a broker's; -1: unknown
    topics: Array[Topic] = ()


class DescribeBrokersRequest(Request, key=1113, versions="0"):
    """Asks which brokers are registered."""


class DescribeBrokersResponse(Response, key=1113, versions="0"):
    """Brokers by rising id, as one replica's image has them."""

    class Broker(Message):
        class Listener(Message):
            name: String
            host: String
            port: UInt16

        broker_id: Int32
        broker_epoch: Int64
        rack: String | None
        is_fenced: Bool
        in_controlled_shutdown: Bool
        listeners: Array[Listener]
        unpreferred_reason: Annotated[String, tag(0), IGNORABLE] = ""  # empty: preferred

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    image_offset: Int64 = -1  # everything below it is in the image (exclusive)
    image_age_ms: Annotated[Int64, tag(0), IGNORABLE] = -1  # at most, of a broker's; -1: unknown
    brokers: Array[Broker] = ()
