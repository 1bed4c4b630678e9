"""Reads which clusters a restored cluster descends from: keys of older objects have their ids.

Source: docs/design/restore.md#keys-of-older-objects.
"""

from __future__ import annotations

from records.frame import decode_record, read_frame
from records.object_keys import Ancestor, Ancestors
from records.timelines import TimelineRecord
from spark_jobs.readers.logs import CLUSTER_METADATA, Logs


def ancestors_of(logs: Logs) -> Ancestors:
    """Return the ancestors of a cluster; none if it was never restored, or without a cluster log.

    A restore writes the record into the first checkpoint of that log, and each later checkpoint has
    it, so the first span is enough.

    Raises:  LogsError; LostRangeError; as `read_values`.
    """
    if CLUSTER_METADATA not in logs.names():
        return Ancestors()
    log = logs.log(CLUSTER_METADATA)
    for span in log.spans(log.end_offset()):
        for _, value in span.values():
            if read_frame(value)[0] == TimelineRecord.schema().key:
                record = decode_record(value)
                assert isinstance(record, TimelineRecord), record
                return Ancestors(
                    tuple(
                        Ancestor(one.cluster_id, one.object_ids_below) for one in record.ancestors
                    )
                )
        break
    return Ancestors()
