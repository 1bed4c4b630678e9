"""ReportLostRecords: a broker tells a log's leader what the newest backup holds of that log.

Quorum nodes have no access to the object store, so they cannot read a backup themselves. There is
no such RPC upstream.

Source: docs/design/backup.md#the-leader-is-told.
"""

from records.rpc.base import Request, Response
from records.wire import Bool, Int16, Int32, Int64, String


class ReportLostRecordsRequest(Request, key=1150, versions="0"):
    """Tells the leader of a log where the log ends in its newest backup."""

    topic_name: String
    partition_index: Int32
    end_offset: Int64  # exclusive; all records below were committed
    epoch: Int32  # of the record before `end_offset`


class ReportLostRecordsResponse(Response, key=1150, versions="0"):
    """Says whether the leader's log lacks records of the backup."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    is_lost: Bool = False
