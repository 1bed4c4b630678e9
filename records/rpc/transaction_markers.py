"""The batch coordinator's call that ends transactions in its partitions.

The sender is the leader of the transaction log, or a broker that passes on an administrator's
WriteTxnMarkers. Markers are rows, tuples of numbers: one for each partition of each transaction.

Source: docs/design/transactions-batches.md#writetransactionmarkers-1130.
"""

from __future__ import annotations

from typing import NamedTuple

from records.rpc.base import CoordinatorRequest, Response
from records.wire import Array, Int8, Int16, Int32, Int64, String, Uuid


class TransactionMarker(NamedTuple):
    """The end of one transaction in one partition."""

    topic_index: Int32  # into topic_ids
    partition_index: Int32
    producer_id: Int64
    producer_epoch: Int16  # of the marker
    transaction_number: Int64
    outcome: Int8  # 0 abort, 1 commit
    coordinator_epoch: Int32  # of the transaction log's leader


class WriteTransactionMarkersRequest(
    CoordinatorRequest["WriteTransactionMarkersResponse"], key=1130, versions="0"
):
    """Ends transactions in partitions; idempotent by transaction number."""

    coordinator_partition: Int32  # of __diskless-metadata
    topic_ids: Array[Uuid]  # each topic once
    markers: Array[TransactionMarker]


class WriteTransactionMarkersResponse(Response, key=1130, versions="0"):
    """An error code for each marker, in the order of the request."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # of the whole request; the markers then have no codes
    error_message: String | None = None
    marker_error_codes: Array[Int16] = ()
