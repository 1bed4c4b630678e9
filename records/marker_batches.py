"""Kafka's control batch of a transaction marker, built from the marker's facts.

A batch coordinator stores a marker without bytes. Brokers build the batch when it is fetched, and
write it into an object when they merge: always the same bytes, so that every reader sees one log.

Source: KIP-98, Control messages; upstream's EndTransactionMarker and MemoryRecords.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from records.batch import CRC_START
from records.final_batches import LEADER_EPOCH

_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MAGIC: Final = 2
_NO_SEQUENCE: Final = -1
_LENGTH_BEGINS: Final = 12  # the batch length counts the bytes behind itself

_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_RECORD: Final = struct.Struct(">bbbbbhhbhib")
"""Length, attributes, time and offset deltas, key length, key, value length, value, headers."""

MARKER_BATCH_BYTES: Final = _BATCH.size + _RECORD.size


def marker_batch(
    *,
    base_offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    outcome: int,
    coordinator_epoch: int,
) -> bytes:
    """Return the control batch of a marker; `outcome` is 0 for an abort, 1 for a commit.

    >>> marker_batch(base_offset=5, timestamp=0, producer_id=7, producer_epoch=1, outcome=1,
    ...     coordinator_epoch=3)[-17:].hex(" ")
    '20 00 00 00 08 00 00 00 01 0c 00 00 00 00 00 03 00'
    """
    record = _RECORD.pack(
        2 * (_RECORD.size - 1), 0, 0, 0, 2 * 4, 0, outcome, 2 * 6, 0, coordinator_epoch, 0
    )  # lengths are zigzag varints below 64: twice their value, in one byte
    batch = bytearray(MARKER_BATCH_BYTES)
    _BATCH.pack_into(
        batch,
        0,
        base_offset,
        MARKER_BATCH_BYTES - _LENGTH_BEGINS,
        LEADER_EPOCH,
        _MAGIC,
        0,
        _TRANSACTIONAL | _CONTROL,
        0,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        _NO_SEQUENCE,
        1,
    )
    batch[_BATCH.size :] = record
    struct.pack_into(">I", batch, CRC_START - 4, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)
