"""Writing a checkpoint, in bounded memory.

The file is an ordinary sequence of record batches: a control batch with the header (and, from
kraft.version 1 on, that version and the voters), data batches, and a control batch with the footer.
Offsets count from 0 inside the file and mean nothing outside it; the leader epoch of every batch is
the snapshot's.

Our footer says how many records precede it and the CRC-32C of every byte before it, in tagged
fields that Java skips. Upstream's says nothing, so there only the rename proves completeness, and a
file joined from two leaders' downloads, each batch sound, passes.

The surprise: no clock is read. Every batch carries the time of the last record that the snapshot
covers (upstream: the time of writing), so the same state at the same offset gives the same bytes on
every node. And nothing is compressed: upstream's reader takes a record that is larger than its
compressed batch for a damaged one.

Source: KIP-630, Snapshot Format; KIP-853 (kraft.version, voters).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

from crc32c import crc32c

from raft.segments.files import FileSystem
from records.batch import CONTROL
from records.batch_writer import build_batch, build_value_batch
from records.compression import Buffer
from records.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from records.frame import encode_control_record, encode_record
from records.schema import ControlRecord, MetadataRecord
from records.types import Epoch, OffsetAndEpoch
from snapshot.partfile import PartFile

TARGET_BATCH_BYTES: Final = 1024 * 1024
"""A batch is closed before it would grow past this: what a reader holds in memory at once."""

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The largest batch upstream writes or reads in a metadata log or a snapshot."""

_RECORD_OVERHEAD_BYTES: Final = 20  # more than the varints around one value can take


class CheckpointWriter:
    """Writes one checkpoint: `append` each record, then `freeze`.

    Leaving the `with` block without `freeze` leaves nothing behind.

        with CheckpointWriter.create(files, directory, snapshot_id, last_timestamp=t) as writer:
            for record in state:
                writer.append(record)
            path = writer.freeze()
    """

    def __init__(
        self,
        part: PartFile,
        *,
        epoch: Epoch,
        last_timestamp: int,
        kraft_version: int = 0,
        voters: VotersRecord | None = None,
        target_batch_bytes: int = TARGET_BATCH_BYTES,
    ) -> None:
        assert target_batch_bytes <= MAX_BATCH_BYTES, f"batches of {target_batch_bytes} bytes"
        assert voters is None or kraft_version >= 1, f"voters at kraft.version {kraft_version}"
        self._part = part
        self._epoch = epoch
        self._timestamp = last_timestamp
        self._target_batch_bytes = target_batch_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._next_offset = 0
        self._crc = 0
        controls: list[ControlRecord] = [
            SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp)
        ]
        if kraft_version >= 1:
            controls.append(KRaftVersionRecord(k_raft_version=kraft_version))
        if voters is not None:
            controls.append(voters)
        try:
            self._write_controls(controls)
        except BaseException:
            part.discard()  # the caller has no writer yet to do it
            raise

    @classmethod
    def create(
        cls,
        files: FileSystem,
        directory: Path,
        snapshot_id: OffsetAndEpoch,
        *,
        last_timestamp: int,
        kraft_version: int = 0,
        voters: VotersRecord | None = None,
    ) -> CheckpointWriter:
        """Start the checkpoint of a log up to `snapshot_id`.

        Args:    last_timestamp: ms since 1970, of the last record that the snapshot covers.
                 kraft_version, voters: in force at the snapshot's end; from 1 on they are written.
        """
        return cls(
            PartFile.create(files, directory, snapshot_id),
            epoch=snapshot_id.epoch,
            last_timestamp=last_timestamp,
            kraft_version=kraft_version,
            voters=voters,
        )

    @classmethod
    def create_bootstrap(cls, files: FileSystem, directory: Path) -> CheckpointWriter:
        """Start a `bootstrap.checkpoint`: epoch 0 and no log behind it, so no time either."""
        part = PartFile.create_bootstrap(files, directory)
        return cls(part, epoch=Epoch(0), last_timestamp=0)

    @property
    def record_count(self) -> int:
        """Records so far, those of the header batch included."""
        return self._next_offset + len(self._pending)

    def append(self, record: MetadataRecord) -> None:
        """Add one record, at the lowest version that loses nothing. Errors: `append_value`."""
        self.append_value(encode_record(record))

    def append_values(self, values: Iterable[Buffer]) -> None:
        """Add record values that are encoded already. Errors: `append_value`."""
        for value in values:
            self.append_value(value)

    def append_value(self, value: Buffer) -> None:
        """Add the value of one record, as it stands in a log.

        Raises:  BatchTooLargeError if it alone exceeds MAX_BATCH_BYTES; OSError.
        """
        assert len(value) > 0, "a metadata record has a value"
        size = len(value) + _RECORD_OVERHEAD_BYTES
        if self._pending and self._pending_bytes + size > self._target_batch_bytes:
            self._flush()
        self._pending.append(bytes(value))
        self._pending_bytes += size

    def freeze(self) -> Path:
        """Write the footer and make the file appear under its name, durably. Raises OSError."""
        self._flush()
        self._write_controls(
            [SnapshotFooterRecord(record_count=self._next_offset, content_crc=self._crc)]
        )
        return self._part.publish()

    def discard(self) -> None:
        """Give the checkpoint up. After `freeze` this does nothing."""
        self._part.discard()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    def _flush(self) -> None:
        if not self._pending:
            return
        batch = build_value_batch(
            self._pending,
            base_offset=self._next_offset,
            leader_epoch=self._epoch,
            timestamp=self._timestamp,
            max_size_bytes=MAX_BATCH_BYTES,
        )
        self._write(batch, len(self._pending))
        self._pending.clear()
        self._pending_bytes = 0

    def _write_controls(self, controls: list[ControlRecord]) -> None:
        batch = build_batch(
            [(*encode_control_record(record), self._timestamp, ()) for record in controls],
            base_offset=self._next_offset,
            leader_epoch=self._epoch,
            attributes=CONTROL,
        )
        self._write(batch, len(controls))

    def _write(self, batch: bytearray, record_count: int) -> None:
        self._part.append(batch)
        self._crc = crc32c(batch, self._crc)
        self._next_offset += record_count
