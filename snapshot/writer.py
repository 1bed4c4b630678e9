"""Writes a checkpoint in bounded memory.

The file is an ordinary sequence of record batches: a control batch with the header (and, from
kraft.version 1 on, that version and the voters), data batches, and a control batch with the footer.
Offsets count from 0 inside the file and mean nothing outside it; the leader epoch of every batch is
the snapshot's.

Our footer says how many records precede it and the CRC-32C of every byte before it, in tagged
fields that Java skips. Upstream's says nothing, so there only the rename proves completeness, and a
file joined from two leaders' downloads, each batch sound, passes.

The bytes are `snapshot.encoder`'s; here they reach the disk. Whoever must not wait for the disk
uses the encoder alone (`snapshot.generation`).

Source: KIP-630, Snapshot Format; KIP-853 (kraft.version, voters).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from raft.segments.files import FileSystem
from records.compression import Buffer
from records.control import VotersRecord
from records.frame import encode_record
from records.schema import MetadataRecord
from records.types import Epoch, OffsetAndEpoch
from snapshot.encoder import CheckpointEncoder
from snapshot.partfile import PartFile


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
    ) -> None:
        self._part = part
        self._encoder = CheckpointEncoder(
            epoch=epoch,
            last_timestamp=last_timestamp,
            kraft_version=kraft_version,
            voters=voters,
        )
        try:
            self._write_ready()
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
        """Create a checkpoint file for the log's records up to `snapshot_id`.

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
        """Create a `bootstrap.checkpoint`, which has epoch 0 and belongs to no log."""
        part = PartFile.create_bootstrap(files, directory)
        return cls(part, epoch=Epoch(0), last_timestamp=0)

    @property
    def record_count(self) -> int:
        """Return the number of records written up to now, including those in the header batch."""
        return self._encoder.record_count

    @property
    def target_batch_bytes(self) -> int:
        """Return the size in bytes at which a batch is closed."""
        return self._encoder.target_batch_bytes

    @target_batch_bytes.setter
    def target_batch_bytes(self, size_bytes: int) -> None:
        self._encoder.target_batch_bytes = size_bytes

    def append(self, record: MetadataRecord) -> None:
        """Append one record in the lowest version that can encode all its fields.

        Raises as `append_value`.
        """
        self.append_value(encode_record(record))

    def append_values(self, values: Iterable[Buffer]) -> None:
        """Append encoded record values to the checkpoint.

        Raises as `append_value`.
        """
        for value in values:
            self.append_value(value)

    def append_value(self, value: Buffer) -> None:
        """Append one encoded record value to the checkpoint.

        Raises:  BatchTooLargeError if it alone exceeds MAX_BATCH_BYTES; OSError.
        """
        self._encoder.append(value)
        if self._encoder.ready_bytes:
            self._write_ready()

    def freeze(self) -> Path:
        """Write the footer and rename the file durably to its final name.

        Raises OSError.
        """
        self._encoder.close_batch()
        self._write_ready()
        self._encoder.finish()
        self._write_ready()
        return self._part.publish()

    def discard(self) -> None:
        """Discard the checkpoint's partial file, unless the checkpoint is already published."""
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

    def _write_ready(self) -> None:
        for batch in self._encoder.drain():
            self._part.append(batch)
