"""Writes bytes of logs and checkpoints as data objects, a bounded number of bytes at a time.

The ranges that one cut adds are packed together, so an ordinary cut is one data object.

Source: docs/design/backup.md#the-pieces.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Final, Protocol

from diskless.backup.bucket import Bucket
from diskless.backup.cut import BackupLog, CutError, read_batches
from diskless.backup.manifest import (
    DATA_HEADER,
    BackedUpCheckpoint,
    BackedUpRange,
    DataPart,
)
from raft.interfaces import SnapshotChunk
from records.types import OffsetAndEpoch

OBJECT_BYTES: Final = 32 * 1024 * 1024
"""Bytes in memory, after which a data object is written."""

_CHECKPOINT_BYTES: Final = 1024 * 1024  # read from a checkpoint at once
_BATCHES_AT_ONCE: Final = 512


class CheckpointBytes(Protocol):
    """The part of a log's `raft.interfaces.Snapshots` that is read."""

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None: ...

    def read(
        self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
    ) -> SnapshotChunk | None: ...


@dataclass(frozen=True, slots=True)
class _Packed:
    """A range whose object has no name yet."""

    log_name: str
    start: int
    end: int
    position: int
    size_bytes: int
    sha256: str


class Packer:
    """Writes the data objects of one manifest."""

    def __init__(self, bucket: Bucket, number: int, object_bytes: int = OBJECT_BYTES) -> None:
        """Create a packer for manifest `number`."""
        self.ranges: defaultdict[str, list[BackedUpRange]] = defaultdict(list)  # by log
        self.bytes = 0
        self._bucket = bucket
        self._number = number
        self._object_bytes = object_bytes
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._packed: list[_Packed] = []

    async def add(self, one: BackupLog, start: int, end: int) -> int | None:
        """Add the records [start, end) of a log; return the epoch of the last, None without any.

        Raises:  CutError if this broker does not have them; StorageError.
        """
        digest = hashlib.sha256()
        at, began, epoch = start, len(self._parts), None
        position = self._size_bytes
        for data, batch in read_batches(one.log, start, end):
            self._parts.append(data)
            self._size_bytes += len(data)
            digest.update(data)
            at, epoch = batch.header.end_offset, batch.header.leader_epoch
            if self._size_bytes >= self._object_bytes:
                self._close_range(one.name, start, at, position, digest.hexdigest())
                await self.flush()
                digest, start, began, position = hashlib.sha256(), at, 0, 0
            elif len(self._parts) % _BATCHES_AT_ONCE == 0:
                await asyncio.sleep(0)  # other work of the broker goes on
        if len(self._parts) > began:
            self._close_range(one.name, start, at, position, digest.hexdigest())
        return epoch

    def _close_range(self, log_name: str, start: int, end: int, position: int, sha256: str) -> None:
        size_bytes = self._size_bytes - position
        self._packed.append(_Packed(log_name, start, end, position, size_bytes, sha256))

    async def flush(self) -> None:
        """Write what was added as a data object. Raises StorageError."""
        if not self._parts:
            return
        name = await self._bucket.write_data(self._number, self._parts)
        for one in self._packed:
            part = DataPart(name, len(DATA_HEADER) + one.position, one.size_bytes, one.sha256)
            self.ranges[one.log_name].append(BackedUpRange(one.start, one.end, part))
        self.bytes += self._size_bytes
        self._parts, self._packed, self._size_bytes = [], [], 0

    async def add_checkpoint(
        self, name: str, snapshots: CheckpointBytes, snapshot_id: OffsetAndEpoch
    ) -> BackedUpCheckpoint:
        """Write a checkpoint of the log `name` in objects of its own.

        Raises:  CutError if the log drops it meanwhile; StorageError.
        """
        size_bytes = snapshots.size_bytes(snapshot_id)
        parts: list[DataPart] = []
        position = 0
        while size_bytes is not None and position < size_bytes:
            chunks: list[bytes] = []
            held = 0
            while position < size_bytes and held < self._object_bytes:
                chunk = snapshots.read(snapshot_id, position, _CHECKPOINT_BYTES)
                if chunk is None or not len(chunk.data):
                    raise CutError(f"{name}: checkpoint {snapshot_id} was dropped meanwhile")
                chunks.append(bytes(chunk.data))
                held += len(chunk.data)
                position += len(chunk.data)
                await asyncio.sleep(0)
            stored = await self._bucket.write_data(self._number, chunks)
            digest = hashlib.sha256()
            for data in chunks:
                digest.update(data)
            parts.append(DataPart(stored, len(DATA_HEADER), held, digest.hexdigest()))
            self.bytes += held
        if not parts:
            raise CutError(f"{name}: checkpoint {snapshot_id} is gone")
        return BackedUpCheckpoint(snapshot_id.offset, snapshot_id.epoch, tuple(parts))
