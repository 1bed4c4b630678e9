"""Chunks of a partition (KIP-1114), and which batch coordinator has a partition (KIP-1164).

The KIPs' own record numbers, 28 and 29, mean other things upstream: ours are theirs plus 1000. None
of these records is written before a chunk or a second batch coordinator exists, so until then an
unmodified Java node reads the log.
"""

from typing import Annotated

from records.schema import MetadataRecord
from records.wire import Array, Int32, Int64, Uuid, tag


class ChunkRecord(MetadataRecord, key=1028, versions="0"):
    """An inactive chunk: offsets that no longer grow, and the brokers that hold them.

    All offsets are inclusive. The KIP has two epochs for one thing; both are written equal, one
    higher with each change. Source: KIP-1114, Public Interfaces.
    """

    partition_id: Int32 = -1
    topic_id: Uuid
    start_offset: Int64 = -1
    start_timestamp: Int64 = -1  # ms since 1970
    stop_offset: Int64 = -1  # readers stop here: the last stable offset - 1
    end_offset: Int64 = -1  # replicas stop here: the high watermark - 1
    chunk_epoch: Int32 = -1
    replicas: Array[Int32]
    directories: Array[Uuid]
    isr: Array[Int32]
    removing_replicas: Array[Int32]
    adding_replicas: Array[Int32]
    epoch: Int32 = -1


class ChunkChangeRecord(MetadataRecord, key=1029, versions="0"):
    """Changed fields of a chunk; empty replicas remove it. Source: KIP-1114, Public Interfaces."""

    partition_id: Int32 = -1
    topic_id: Uuid
    start_offset: Int64 = -1  # names the chunk
    replicas: Annotated[Array[Int32], tag(0)] = ()
    directories: Annotated[Array[Uuid] | None, tag(1)] = None
    isr: Annotated[Array[Int32], tag(2)] = ()
    removing_replicas: Annotated[Array[Int32], tag(3)] = ()
    adding_replicas: Annotated[Array[Int32], tag(4)] = ()
    epoch: Int32 = -1


class TopicPartitionToBatchCoordinatorMapping(MetadataRecord, key=1030, versions="0"):
    """A partition belongs to this partition of `__diskless-metadata`. Source: KIP-1164."""

    partition_index: Int32
    topic_id: Uuid
    batch_coordinator_partition_index: Int32
