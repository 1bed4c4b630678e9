"""Reads a checkpoint: as batches, as records, as raw bytes, and verifies it.

    checkpoint = verify_checkpoint(files, path)      # all of it, or an error that says where
    with CheckpointReader(files, path) as reader:    # then load it
        for offset, record in reader.records():
            state.apply(record)

The surprise: whether a file is whole is known at its end only. So `records` hands out records that
are each under a sound checksum, and still raises at the end if the footer denies the whole. A
loader either verifies first or throws away what it built.

Source: KIP-630, Loading Snapshots and FetchSnapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from raft.segments.files import FileSystem, Mode
from records.batch import Batch, Record, iter_records
from records.errors import RecordError
from records.frame import decode_record
from records.schema import MetadataRecord
from records.types import Epoch, Offset
from snapshot.encoder import MAX_BATCH_BYTES
from snapshot.errors import DamagedFileError
from snapshot.framing import MAX_DECOMPRESSED_BYTES, Checkpoint, Framing, Preamble
from snapshot.names import BOOTSTRAP_NAME, parse_checkpoint_name, parse_part_name
from snapshot.stream import iter_file_batches


class CheckpointReader:
    """An open checkpoint. Each pass over its batches starts at its beginning and checks it all."""

    def __init__(self, files: FileSystem, path: Path, *, epoch: Epoch | None = None) -> None:
        """Open a checkpoint file, which may be partial, for reading.

        Args:    epoch: which every batch must have; taken from the file's name if not given, and
                 from the first batch if the name says nothing either.
        Raises:  OSError.
        """
        self.path = path
        self._epoch = _epoch_in_name(path.name) if epoch is None else epoch
        self._file = files.open(path, Mode.READ)
        self.size_bytes = self._file.size()
        self.checkpoint: Checkpoint | None = None
        """What the last complete pass found; None before."""

    def batches(self) -> Iterator[Batch]:
        """Yield all batches of the checkpoint, header and footer included, checking each batch.

        Raises:  DamagedFileError, TruncatedFileError.
        """
        framing = Framing(self.path, size_bytes=self.size_bytes, epoch=self._epoch)
        for batch in iter_file_batches(
            self._file, self.path, end_position=self.size_bytes, max_batch_bytes=MAX_BATCH_BYTES
        ):
            framing.take(batch)
            yield batch
        self.checkpoint = framing.finish()

    def preamble(self) -> Preamble:
        """Return the content of the header batch. Raises DamagedFileError, TruncatedFileError."""
        framing = Framing(self.path, size_bytes=self.size_bytes, epoch=self._epoch)
        batches = iter_file_batches(
            self._file, self.path, end_position=self.size_bytes, max_batch_bytes=MAX_BATCH_BYTES
        )
        for batch in batches:
            framing.take(batch)
            break
        if framing.preamble is None:
            framing.finish()  # raises
        assert framing.preamble is not None, f"{self.path} is whole without a header"
        return framing.preamble

    def records(self) -> Iterator[tuple[Offset, MetadataRecord]]:
        """Yield the checkpoint's metadata records with their offsets inside the file.

        Raises:  DamagedFileError, also for a record that cannot be decoded: its cause is then the
                 MalformedMessageError, UnknownRecordError or UnsupportedVersionError.
        """
        for batch in self.batches():
            if not batch.header.is_control:
                yield from decode_batch(self.path, batch)

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` raw bytes from `position`, or none at or after the end.

        A reader that has the file open reads on, even after the file was unlinked.
        """
        return self._file.read(position, min(size_bytes, max(0, self.size_bytes - position)))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def decode_batch(path: Path, batch: Batch) -> Iterator[tuple[Offset, MetadataRecord]]:
    """Return the decoded records of one data batch of a checkpoint.

    Raises as `CheckpointReader.records`.
    """
    offset = batch.header.base_offset
    try:
        for record in iter_records(batch, limit_bytes=MAX_DECOMPRESSED_BYTES):
            offset = record.offset
            reason = strangeness(batch, record)
            if reason is not None or record.value is None:
                raise DamagedFileError(
                    path=path, position=batch.position, offset=offset, reason=f"{reason}"
                )
            yield offset, decode_record(record.value)
    except DamagedFileError:
        raise
    except RecordError as error:
        raise DamagedFileError(
            path=path, position=batch.position, offset=offset, reason=str(error)
        ) from error


def strangeness(batch: Batch, record: Record) -> str | None:
    """Return the reason why a record cannot be part of a checkpoint, or None if it can be.

    These are the records that upstream's reader stops at.
    """
    if record.key is not None:
        return "a metadata record with a key"
    if not record.value:
        return "a metadata record without a value"
    if record.headers:
        return "a metadata record with headers"
    if record.timestamp != batch.header.base_timestamp:
        return "a metadata record with a time of its own"
    return None


def verify_checkpoint(
    files: FileSystem, path: Path, *, epoch: Epoch | None = None, decode: bool = False
) -> Checkpoint:
    """Read a checkpoint to its end, and check every batch and record.

    Args:    epoch: as for `CheckpointReader`.
             decode: also decode every record. Without it the checksums vouch for them.
    Raises:  DamagedFileError, TruncatedFileError, OSError.
    """
    with CheckpointReader(files, path, epoch=epoch) as reader:
        for _ in reader.records() if decode else reader.batches():
            pass
        assert reader.checkpoint is not None, f"{path} was not read to its end"
        return reader.checkpoint


def read_preamble(files: FileSystem, path: Path, *, epoch: Epoch | None = None) -> Preamble:
    """Return the content of a checkpoint's header batch, without reading further.

    Raises:  DamagedFileError, OSError.
    """
    with CheckpointReader(files, path, epoch=epoch) as reader:
        return reader.preamble()


def _epoch_in_name(name: str) -> Epoch | None:
    """Return the epoch in a checkpoint's file name, or None for a name without an epoch."""
    if name.removesuffix(".tmp") == BOOTSTRAP_NAME:
        return Epoch(0)
    snapshot_id = parse_part_name(name) or parse_checkpoint_name(name.removesuffix(".deleted"))
    return None if snapshot_id is None else snapshot_id.epoch
