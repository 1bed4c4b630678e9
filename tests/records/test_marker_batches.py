"""The control batch of a transaction marker has the bytes that Kafka's own classes write.

The bytes are those of MemoryRecords.withEndTransactionMarker of kafka-clients 4.3.1.
"""

from __future__ import annotations

import pytest

from records.marker_batches import MARKER_BATCH_BYTES, marker_batch

ABORT = (
    "0000000000000005 00000042 00000000 02 00a17979 0030 00000000"
    "0000018bcfe56800 0000018bcfe56800 0000000000000007 0001 ffffffff 00000001"
    "20 00 00 00 08 0000 0000 0c 0000 00000003 00"
)
COMMIT = (
    "0000000000000005 00000042 00000000 02 f49faf31 0030 00000000"
    "0000018bcfe56800 0000018bcfe56800 0000000000000007 0001 ffffffff 00000001"
    "20 00 00 00 08 0000 0001 0c 0000 00000003 00"
)


@pytest.mark.parametrize(("outcome", "expected"), [(0, ABORT), (1, COMMIT)])
def test_the_control_batch_of_a_marker_has_the_bytes_that_kafka_writes(
    outcome: int, expected: str
) -> None:
    built = marker_batch(
        base_offset=5,
        timestamp=1_700_000_000_000,
        producer_id=7,
        producer_epoch=1,
        outcome=outcome,
        coordinator_epoch=3,
    )
    assert built == bytes.fromhex(expected)
    assert len(built) == MARKER_BATCH_BYTES
