"""The records of a restored cluster's log: its timeline, and where those of partitions began.

A restore makes a new cluster of the logs that survived: one *timeline* more of the same data. Only
a restore writes these records, into the first checkpoint of `__cluster_metadata`; they never change
afterwards. A cluster that was never restored has neither, and its timeline is 0.

Source: docs/design/restore.md#formats. The numbers are ours.
"""

from records.schema import Message, MetadataRecord
from records.wire import Array, Int32, Int64, String, Uuid


class TimelineRecord(MetadataRecord, key=1180, versions="0"):
    """The cluster was restored: the number of its timeline, and the clusters before it."""

    class Ancestor(Message):
        cluster_id: String
        object_ids_below: Array[Int64]  # by batch coordinator: lower ids are of this cluster

    timeline: Int32  # 1 after the first restore
    ancestors: Array[Ancestor]  # oldest first


class PartitionTimelinesRecord(MetadataRecord, key=1181, versions="0"):
    """The timelines of a partition that is older than the newest restore, by rising number.

    The first offset of a timeline is the exact end of the one before it.
    """

    topic_id: Uuid
    partition_index: Int32
    timelines: Array[Int32]
    first_offsets: Array[Int64]
