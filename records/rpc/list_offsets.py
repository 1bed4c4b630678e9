"""ListOffsets: where a partition begins and ends.

Source: KIP-79 (one offset by timestamp), KIP-207 (offsets not available yet), KIP-320 (fencing by
leader epoch), KIP-1075 (the time-out).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import IGNORABLE, Array, Int8, Int16, Int32, Int64, String, since


class ListOffsetsRequest(Request, key=2, versions="1-11", flexible="6+"):
    """Asks for the offset of a time; -1 is the end, -2 the start. Source: the protocol guide."""

    class ListOffsetsTopic(Message):
        class ListOffsetsPartition(Message):
            partition_index: Int32
            current_leader_epoch: Annotated[Int32, since(4), IGNORABLE] = -1
            timestamp: Int64

        name: String
        partitions: Array[ListOffsetsPartition]

    replica_id: Int32
    isolation_level: Annotated[Int8, since(2)] = 0
    topics: Array[ListOffsetsTopic]
    timeout_ms: Annotated[Int32, since(10), IGNORABLE] = 0


class ListOffsetsResponse(Response, key=2, versions="1-11", flexible="6+"):
    """The offset of each partition, or why there is none. Source: the protocol guide."""

    class ListOffsetsTopicResponse(Message):
        class ListOffsetsPartitionResponse(Message):
            partition_index: Int32
            error_code: Int16
            timestamp: Int64 = -1
            offset: Int64 = -1
            leader_epoch: Annotated[Int32, since(4)] = -1

        name: String
        partitions: Array[ListOffsetsPartitionResponse]

    throttle_time_ms: Annotated[Int32, since(2), IGNORABLE] = 0
    topics: Array[ListOffsetsTopicResponse]
