"""Produce: record batches for partitions, and the offsets they were given.

Source: KIP-98 (idempotent producers), KIP-467 (errors by record), KIP-951 (leaders in answers).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import (
    IGNORABLE,
    Array,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Uuid,
    since,
    tag,
    until,
)


class ProduceRequest(Request, key=0, versions="3-13", flexible="9+"):
    """Record batches to append. Source: the protocol guide."""

    class TopicProduceData(Message):
        class PartitionProduceData(Message):
            index: Int32
            records: Records | None

        name: Annotated[String, until(12), IGNORABLE] = ""
        topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
        partition_data: Array[PartitionProduceData]

    transactional_id: String | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: Array[TopicProduceData]


class ProduceResponse(Response, key=0, versions="3-13", flexible="9+"):
    """The offset or the error of each partition. Source: the protocol guide."""

    class TopicProduceResponse(Message):
        class PartitionProduceResponse(Message):
            class BatchIndexAndErrorMessage(Message):
                batch_index: Int32
                batch_index_error_message: String | None = None

            class LeaderIdAndEpoch(Message):
                leader_id: Int32 = -1
                leader_epoch: Int32 = -1

            index: Int32
            error_code: Int16 = 0
            base_offset: Int64
            log_append_time_ms: Int64 = -1
            log_start_offset: Annotated[Int64, since(5), IGNORABLE] = -1
            record_errors: Annotated[Array[BatchIndexAndErrorMessage], since(8), IGNORABLE] = ()
            error_message: Annotated[String | None, since(8), IGNORABLE] = None
            current_leader: Annotated[LeaderIdAndEpoch, since(10), tag(0)] = LeaderIdAndEpoch()

        name: Annotated[String, until(12), IGNORABLE] = ""
        topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
        partition_responses: Array[PartitionProduceResponse]

    class NodeEndpoint(Message):
        node_id: Int32
        host: String
        port: Int32
        rack: String | None = None

    responses: Array[TopicProduceResponse]
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[Array[NodeEndpoint], since(10), tag(0)] = ()
