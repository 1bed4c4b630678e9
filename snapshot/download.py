"""Receives a checkpoint from a leader in chunks, and publishes it only when it is whole.

Chunks arrive in order and are appended to a partial file. Each chunk's position and the file's size
are checked at once. Every batch, the header and the footer are checked before the file gets its
final name; the footer's count and checksum find a file that was put together from two leaders.

A partial file survives a lost connection and a restart. Its last bytes may never have reached the
disk, so `begin` reads it and truncates it after the last sound batch; it cuts off a footer, too,
because no leader answers a request at the file's end. The remaining bytes may be another leader's,
which only the footer's checksum shows.

The trap: a failed flush costs the partial file, because its state on disk is unknown afterwards.

Source: KIP-630, FetchSnapshot and Validation of Snapshot and Log;
docs/design/snapshots.md#fetching-a-snapshot. Upstream's KafkaRaftClient cannot resume after a
restart, and verifies nothing but the position.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final, NoReturn

from raft.interfaces import EpochStarts, RejectedSnapshotError, SnapshotChunk
from raft.segments.files import File, FileSystem, Mode
from records.types import OffsetAndEpoch
from snapshot.encoder import MAX_BATCH_BYTES
from snapshot.errors import DamagedFileError
from snapshot.framing import Checkpoint, Framing
from snapshot.names import DOWNLOAD_NUMBER, part_name
from snapshot.partfile import PartFile
from snapshot.reader import verify_checkpoint
from snapshot.stream import iter_file_batches

FLUSH_EVERY_BYTES: Final = 1024 * 1024
"""Bounds what one flush writes: a long flush would hold up the flushes of the log beside it."""


class PartDownload:
    """One download of a checkpoint. Implements `raft.interfaces.Download`."""

    def __init__(self, files: FileSystem, part: PartFile, snapshot_id: OffsetAndEpoch) -> None:
        self.snapshot_id = snapshot_id
        self.checkpoint: Checkpoint | None = None  # what verification found
        self.resumed_bytes = part.size_bytes  # what an earlier download had left
        self._files = files
        self._part = part
        self._size_bytes: int | None = None  # of the whole file, as the first piece said
        self._unflushed_bytes = 0

    @classmethod
    def begin(cls, files: FileSystem, directory: Path, snapshot_id: OffsetAndEpoch) -> PartDownload:
        """Open the existing partial file of a checkpoint, or create a partial file.

        Raises OSError.
        """
        path = directory / part_name(snapshot_id, DOWNLOAD_NUMBER)
        if files.exists(path):
            _cut_after_last_sound_batch(files, path, snapshot_id)
            return cls(files, PartFile.resume(files, path), snapshot_id)
        part = PartFile.create(files, directory, snapshot_id, unique=DOWNLOAD_NUMBER)
        try:
            files.fsync_directory(directory)  # or there is nothing to resume after a power loss
        except OSError:
            part.discard()
            raise
        return cls(files, part, snapshot_id)

    @property
    def position(self) -> int:
        """Return the position of the next byte to request."""
        return self._part.size_bytes

    @property
    def size_bytes(self) -> int | None:
        """Return the size of the whole checkpoint in bytes, or None before the first chunk came."""
        return self._size_bytes

    def take(self, position: int, piece: SnapshotChunk) -> bool:
        """Write a chunk of the checkpoint, and return True once the last byte is written.

        Raises:  RejectedSnapshotError, the part is thrown away then; OSError, the part is what it
                 was, and the same piece may be tried again.
        """
        reason = self._objection(position, piece)
        if reason is not None:
            self._reject(reason)
        if self._size_bytes is None:
            self._check_free_space(piece.size_bytes)
            self._size_bytes = piece.size_bytes
        if len(piece.data):
            self._part.append(piece.data)
            self._flush_now_and_then(len(piece.data))
        return self.position == self._size_bytes

    def _objection(self, position: int, piece: SnapshotChunk) -> str | None:
        """Return the reason why a chunk cannot belong to this download, or None if it can."""
        if position != self.position:
            return f"bytes from {position}, expected from {self.position}"
        if self._size_bytes is not None and piece.size_bytes != self._size_bytes:
            return f"the file had {self._size_bytes} bytes, now it has {piece.size_bytes}"
        if position + len(piece.data) > piece.size_bytes:
            return f"bytes up to {position + len(piece.data)} of {piece.size_bytes}"
        if not len(piece.data) and position < piece.size_bytes:
            return f"nothing from {position}, the file has {piece.size_bytes} bytes"
        return None

    def _check_free_space(self, size_bytes: int) -> None:
        """Raise OSError if the missing part of the checkpoint does not fit on the disk.

        A full disk would also fail the log beside it.
        """
        missing = size_bytes - self.position - self._files.free_bytes(self._part.path.parent)
        if missing > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._part.path))

    def _flush_now_and_then(self, added_bytes: int) -> None:
        self._unflushed_bytes += added_bytes
        if self._unflushed_bytes < FLUSH_EVERY_BYTES:
            return
        try:
            self._part.flush()
        except OSError as error:
            self._reject(f"it could not be flushed: {error}")
        self._unflushed_bytes = 0

    def verify(self) -> Checkpoint:
        """Read the downloaded checkpoint from beginning to end, and check every byte.

        Raises:  RejectedSnapshotError; OSError.
        """
        if self.position != self._size_bytes:
            self._reject(f"{self.position} bytes, the file has {self._size_bytes}")
        try:
            return verify_checkpoint(self._files, self._part.path, epoch=self.snapshot_id.epoch)
        except DamagedFileError as error:
            self._reject(str(error))

    def publish(self) -> EpochStarts:
        """Verify the downloaded file, make it durable and rename it durably to its final name.

        Returns: the epochs that it names.
        Raises:  RejectedSnapshotError; OSError. Its bytes are thrown away either way; only if the
                 last step failed, the checkpoint may be there, whole, the next time one looks.
        """
        try:
            self.checkpoint = self.verify()
            self._part.publish()
        except OSError:
            self.discard()
            raise
        return self.checkpoint.preamble.epochs

    def keep(self) -> None:
        """Stop the download and keep the partial file, unflushed, for a later `begin`."""
        self._part.keep()

    def discard(self) -> None:
        """Stop the download and delete the partial file, unless `publish` or `keep` was called."""
        with contextlib.suppress(OSError):  # a part that stays is cut, or found out, later
            self._part.discard()

    def _reject(self, reason: str) -> NoReturn:
        self.discard()
        raise RejectedSnapshotError(f"{self._part.path.name}: {reason}")


def _cut_after_last_sound_batch(files: FileSystem, path: Path, snapshot_id: OffsetAndEpoch) -> None:
    """Truncate a partial file after its last valid batch before the footer."""
    file = files.open(path, Mode.WRITE)
    try:
        sound_bytes = _sound_bytes(file, path, snapshot_id)
        if sound_bytes < file.size():
            file.truncate(sound_bytes)
    finally:
        file.close()


def _sound_bytes(file: File, path: Path, snapshot_id: OffsetAndEpoch) -> int:
    """Return the number of bytes before a partial file's footer or first invalid batch."""
    framing = Framing(path, size_bytes=1 << 62, epoch=snapshot_id.epoch)
    sound_bytes = 0
    with contextlib.suppress(DamagedFileError):
        for batch in iter_file_batches(file, path, max_batch_bytes=MAX_BATCH_BYTES):
            if batch.header.is_control and sound_bytes:
                break
            framing.take(batch)
            sound_bytes += batch.header.size_bytes
    return sound_bytes
