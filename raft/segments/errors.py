"""The errors of the log's files, sorted by cause.

Bad bytes are `RecordError`s: the file contradicts itself or its checksum, and reading it again will
not help. `StorageError`s are the disk's: it is full, it is gone, or it did not keep what it was
given. After a failed flush nothing that is only in the page cache can be trusted any more, so the
log refuses all further writes and its process must end.

Source: KIP-595, Log; Rebello et al., "Can Applications Recover from fsync Failures?" (ATC 2020).
"""

from __future__ import annotations

from pathlib import Path

from records.errors import RecordError
from records.types import Epoch, Offset


class CorruptLogError(RecordError):
    """Bytes of a segment below the recovery point are damaged, so they may not be cut.

    `position` is the byte in `path` where the damage begins, `offset` the record expected there.
    """

    def __init__(self, *, path: Path, position: int, offset: int, reason: str) -> None:
        super().__init__(f"{path}, position {position}, offset {offset}: {reason}")
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


class CorruptFileError(RecordError):
    """A small file beside the log (a checkpoint, the election state) cannot be read."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class UnexpectedBatchError(RecordError):
    """A sound batch does not continue this log: its base offset is wrong or its epoch older."""

    def __init__(
        self, *, base_offset: int, epoch: int, log_end_offset: Offset, last_epoch: Epoch | None
    ) -> None:
        super().__init__(
            f"batch at offset {base_offset}, epoch {epoch} after a log that ends at "
            f"{log_end_offset}, epoch {last_epoch}"
        )
        self.base_offset = base_offset
        self.epoch = epoch
        self.log_end_offset = log_end_offset
        self.last_epoch = last_epoch


class OffsetOutOfRangeError(Exception):
    """A read names an offset below the log start or above the log end."""

    def __init__(self, *, offset: int, log_start_offset: Offset, log_end_offset: Offset) -> None:
        super().__init__(f"offset {offset} is outside [{log_start_offset}, {log_end_offset}]")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class StorageError(Exception):
    """An operation on the disk failed."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DiskFullError(StorageError):
    """The disk is full. The log is readable; a retry may succeed once there is space."""


class WriteFailedError(StorageError):
    """A write failed, not for lack of space. The log was truncated to its length before."""


class FlushFailedError(StorageError):
    """A flush failed, so written bytes may never become durable. The process must end."""


class LogFailedError(StorageError):
    """An earlier failure left this log in doubt; it accepts no more writes."""


class MissingLogError(StorageError):
    """A directory that should hold a log holds none: the disk was lost, the log is not new."""
