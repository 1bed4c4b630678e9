"""Encodes a checkpoint from its header to its footer, without I/O.

Records go in one by one, bytes come out by `drain`, batch by batch. Work is spread evenly: a record
is encoded when it is appended, so that closing a batch costs a checksum and a copy, whatever the
batch holds. Who generates on an event loop can stop after any record.

The surprise: no clock is read. Every batch carries the time of the last record that the snapshot
covers (upstream: the time of writing), so the same state at the same offset gives the same bytes on
every node. And nothing is compressed: upstream's reader takes a record that is larger than its
compressed batch for a damaged one.

Source: KIP-630, Snapshot Format; KIP-853 (kraft.version, voters); KIP-98 (record layout).
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from raft.interfaces import EpochStarts
from records.batch import CONTROL
from records.batch_writer import build_batch, seal_value_records
from records.compression import Buffer
from records.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from records.errors import BatchTooLargeError
from records.frame import encode_control_record
from records.schema import ControlRecord
from records.types import Epoch
from records.varint import SMALL_VARINTS, encode_varint

TARGET_BATCH_BYTES: Final = 256 * 1024
"""A batch is closed before it would grow past this: what a reader holds in memory at once, and what
is copied and summed up in one go (0.2 ms) when it is closed."""

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The largest batch upstream writes or reads in a metadata log or a snapshot."""

_RECORD_OVERHEAD_BYTES: Final = 20  # more than the varints around one value can take
_HEADER_BYTES: Final = 61
_SMALL: Final = len(SMALL_VARINTS)


class CheckpointEncoder:
    """Encodes the records of a checkpoint into batches with a header and a footer."""

    def __init__(
        self,
        *,
        epoch: Epoch,
        last_timestamp: int,
        kraft_version: int = 0,
        voters: VotersRecord | None = None,
        epochs: EpochStarts = (),
        target_batch_bytes: int = TARGET_BATCH_BYTES,
    ) -> None:
        """Create an encoder of one checkpoint's batches, beginning with the header batch."""
        assert target_batch_bytes <= MAX_BATCH_BYTES, f"batches of {target_batch_bytes} bytes"
        assert voters is None or kraft_version >= 1, f"voters at kraft.version {kraft_version}"
        self.target_batch_bytes = target_batch_bytes
        self._epoch = epoch
        self._timestamp = last_timestamp
        self._records = bytearray()  # of the open batch, encoded
        self._count = 0  # of the open batch
        self._counted_bytes = 0  # what the open batch may grow to, overestimated
        self._next_offset = 0  # of the open batch
        self._crc = 0
        self._ready: list[Buffer] = []
        self.ready_bytes = 0
        """What `drain` would give now."""
        controls: list[ControlRecord] = [
            SnapshotHeaderRecord(
                last_contained_log_timestamp=last_timestamp,
                epochs=tuple(
                    SnapshotHeaderRecord.EpochStart(epoch=epoch, start_offset=offset)
                    for epoch, offset in epochs
                ),
            )
        ]
        if kraft_version >= 1:
            controls.append(KRaftVersionRecord(k_raft_version=kraft_version))
        if voters is not None:
            controls.append(voters)
        self._control_count = len(controls)
        self._put_controls(controls)

    @property
    def record_count(self) -> int:
        """Return the number of records encoded up to now, including the header batch's records."""
        return self._next_offset + self._count

    @property
    def state_record_count(self) -> int:
        """Return the number of state records appended up to now."""
        return self.record_count - self._control_count

    def append(self, value: Buffer) -> None:
        """Append the value of one state record to the checkpoint.

        Raises:  BatchTooLargeError if it alone exceeds MAX_BATCH_BYTES.
        """
        size = len(value)
        assert size > 0, "a metadata record has a value"
        counted = size + _RECORD_OVERHEAD_BYTES
        if self._counted_bytes + counted > self.target_batch_bytes and self._count:
            self.close_batch()
        if counted > MAX_BATCH_BYTES - _HEADER_BYTES:
            raise BatchTooLargeError(size_bytes=counted, limit_bytes=MAX_BATCH_BYTES)
        count = self._count
        delta = SMALL_VARINTS[count] if count < _SMALL else encode_varint(count)
        length = SMALL_VARINTS[size] if size < _SMALL else encode_varint(size)
        whole = 5 + len(delta) + len(length) - 1 + size
        records = self._records
        records += SMALL_VARINTS[whole] if whole < _SMALL else encode_varint(whole)
        records += b"\x00\x00%b\x01%b" % (delta, length)  # no time of its own, no key
        records += value
        records += b"\x00"  # no headers
        self._count = count + 1
        self._counted_bytes += counted

    def close_batch(self) -> None:
        """Close the open batch, so that `drain` returns its bytes."""
        if not self._count:
            return
        batch = seal_value_records(
            self._records,
            base_offset=self._next_offset,
            leader_epoch=self._epoch,
            timestamp=self._timestamp,
            record_count=self._count,
            max_size_bytes=MAX_BATCH_BYTES,
        )
        self._put(batch, self._count)
        self._records = bytearray()
        self._count = self._counted_bytes = 0

    def finish(self) -> None:
        """Encode the footer of the checkpoint, after which no record may be appended."""
        self.close_batch()
        self._put_controls(
            [SnapshotFooterRecord(record_count=self._next_offset, content_crc=self._crc)]
        )

    def drain(self) -> list[Buffer]:
        """Return the encoded bytes and remove them from the encoder."""
        ready, self._ready, self.ready_bytes = self._ready, [], 0
        return ready

    def _put_controls(self, controls: list[ControlRecord]) -> None:
        batch = build_batch(
            [(*encode_control_record(record), self._timestamp, ()) for record in controls],
            base_offset=self._next_offset,
            leader_epoch=self._epoch,
            attributes=CONTROL,
        )
        self._put(batch, len(controls))

    def _put(self, batch: bytearray, record_count: int) -> None:
        self._ready.append(batch)
        self.ready_bytes += len(batch)
        self._crc = crc32c(batch, self._crc)
        self._next_offset += record_count
