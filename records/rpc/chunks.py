"""The RPCs that create and move chunks, with KIP-1114's numbers plus 1000.

Source: KIP-1114, Public Interfaces (76 and 77 mean other things upstream).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import Array, Int16, Int32, Int64, String, Uuid, tag


class CreateChunksRequest(Request, key=1076, versions="0"):
    """Ends the active chunk of each partition and begins another. Source: KIP-1114."""

    class TopicPartition(Message):
        topic_name: String
        partition_id: Int32
        broker_ids: Array[Int32]  # the new chunk's replicas
        start_offset: Int64  # of the new chunk: the high watermark
        start_timestamp: Int64  # ms since 1970
        prev_stop_offset: Int64  # inclusive, of the chunk that ends
        topic_id: Annotated[Uuid, tag(0)] = ZERO_UUID  # whose high watermark that is; 0: not known
        active_start_offset: Annotated[Int64, tag(1)] = -1  # of the chunk to end; -1: any

    topic_partitions: Array[TopicPartition]


class CreateChunksResponse(Response, key=1076, versions="0"):
    """A result for each partition. Source: KIP-1114."""

    class TopicPartitionResult(Message):
        topic_name: String
        partition_id: Int32
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    results: Array[TopicPartitionResult]


class AlterChunkAssignmentsRequest(Request, key=1077, versions="0"):
    """Gives inactive chunks other replicas. Source: KIP-1114."""

    class Assignment(Message):
        topic_name: String
        partition_id: Int32
        start_offset: Int64  # names the chunk
        chunk_epoch: Int32 = -1
        broker_ids: Array[Int32]

    chunks: Array[Assignment]


class AlterChunkAssignmentsResponse(Response, key=1077, versions="0"):
    """A result for each chunk. Source: KIP-1114."""

    class AssignmentResult(Message):
        topic_name: String
        partition_id: Int32
        start_offset: Int64
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    results: Array[AssignmentResult]
