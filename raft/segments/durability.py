"""Tracks what of a log is durable, and what is durably known to be; shared by two threads.

`Log` appends on its owner's thread; `flush` runs in another at the same time. All they share is
here: which segments have bytes that no flush has covered, how far a flush has got, the recovery
point, and whether the log has failed. The lock is held by a flush and by whatever deletes bytes,
never by an append: an append only adds to the end of `unflushed` and moves the log end *after*
that, each in one step of the interpreter, so a flush that reads the end first misses nothing below.

Source: docs/design/quorum.md#durability-barriers, docs/design/quorum.md#recovery-point.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from raft.segments.epochs import Epochs, write_epochs
from raft.segments.errors import (
    DiskFullError,
    FlushFailedError,
    LogFailedError,
    StorageError,
    WriteFailedError,
)
from raft.segments.files import NO_ROOM, FileSystem
from raft.segments.recovery_point import LogState, RecoveryPointFile
from raft.segments.segment import Segment
from records.types import Offset

logger = logging.getLogger(__name__)


class Durability:
    """The flushed end, the recovery point, and the failure that stops both."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        *,
        state_file: RecoveryPointFile,
        epochs: Epochs,
        active: Segment,
        end_offset: Offset,
        interval_ms: int,
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._directory = directory
        self._state_file = state_file
        self._epochs = epochs
        self._interval_ms = interval_ms
        self._clock = clock
        self._recorded_at = clock()
        self._failure: StorageError | None = None
        self._names_unflushed = False  # a segment was created since the directory was synced
        self.committed_end_offset = Offset(0)  # as the owner knows it; may be past the flushed end
        self.unflushed = [active]  # segments a flush must still cover, in order; the active last
        self.flushed_end_offset = end_offset
        self.lock = threading.RLock()

    @property
    def state(self) -> LogState:
        """Return the recorded log start and recovery point."""
        return self._state_file.state

    # --- moving forward --------------------------------------------------------------------------

    def created(self, segment: Segment) -> None:
        """Register a new active segment, whose name and bytes are not durable yet."""
        self._names_unflushed = True
        self.unflushed.append(segment)

    def flush(self, end: Offset) -> Offset:
        """Make all records below `end` durable; the caller holds the lock.

        Raises:  FlushFailedError, LogFailedError.
        """
        self.check()
        unflushed = tuple(self.unflushed)
        if end == self.flushed_end_offset and not self._names_unflushed:
            return end
        try:
            for segment in unflushed:
                segment.file.fdatasync()
        except OSError as error:
            self.fail(FlushFailedError(path=self._directory, reason=str(error)))
        self.sync_new_names()
        rolled = unflushed[:-1]
        del self.unflushed[: len(rolled)]
        self.flushed_end_offset = end
        if rolled or (self._clock() - self._recorded_at) * 1000 >= self._interval_ms:
            self.record(rolled)
        return end

    def sync_new_names(self) -> None:
        """Make the file names of any new segments durable.

        Raises:  FlushFailedError.
        """
        if self._names_unflushed:
            self._names_unflushed = False  # before the sync: a roll meanwhile sets it again
            try:
                self._files.fsync_directory(self._directory)
            except OSError as error:
                self.fail(FlushFailedError(path=self._directory, reason=str(error)))

    def record(self, rolled: tuple[Segment, ...] = ()) -> None:
        """Write the recovery point and the committed offset to disk; the caller holds the lock.

        Everything that is not scanned below it must be durable first: the indexes of rolled
        segments and the epochs. If there is no room for those, the point just stays where it is.
        Raises:  FlushFailedError.
        """
        self._recorded_at = self._clock()
        end = self.flushed_end_offset
        try:
            *sealed, active = self.unflushed  # rolled since the last flush, which may end there
            for segment in (*rolled, *sealed):
                segment.write_indexes(durably=True)
            active.write_indexes(durably=False)
            if self._epochs.dirty:
                self._epochs.dirty = False  # before the copy: a later change sets it again
                write_epochs(self._files, self._directory, self._epochs.entries)
            state = self.state._replace(recovery_point=end, floor=self.newest_floor)
            if state != self.state:
                self._state_file.write(state)
        except OSError as error:
            self._epochs.dirty = True
            if error.errno not in NO_ROOM:
                self.fail(FlushFailedError(path=self._directory, reason=str(error)))
            logger.error("log=%s action=keep_recovery_point reason=%r", self._directory, str(error))

    @property
    def newest_floor(self) -> Offset:
        """Return the offset below which this node knows all records as committed and flushed.

        It is 0 while the file of the recovery point is still that of Esker 0.1.
        Why not what is committed alone: a follower may know of more than it has flushed, and what a
        power failure then takes would look like records lost to a fork.
        """
        if not self._state_file.has_floor:
            return Offset(0)
        return max(self.state.floor, min(self.committed_end_offset, self.flushed_end_offset))

    def allow_floor(self) -> None:
        """Record floors from now on, which releases of `esker.version` 1 cannot read."""
        self._state_file.allow_floor()

    def forget_floor(self) -> None:
        """Set the recorded floor of committed records durably to 0."""
        if self.state.floor:
            self._state_file.write(self.state._replace(floor=Offset(0)))

    # --- moving back and starting over: the lock is held by the caller ---------------------------

    def lower(self, end: Offset) -> None:
        """Lower the recovery point to `end` durably.

        Raises OSError.
        """
        if self.state.recovery_point > end:
            self._state_file.write(self.state._replace(recovery_point=end))
        self.flushed_end_offset = min(self.flushed_end_offset, end)

    def raise_start(self, start: Offset) -> None:
        """Record durably that the log starts at `start`.

        Raises OSError.
        """
        recovery_point = max(self.state.recovery_point, start)
        self._state_file.write(
            self.state._replace(log_start_offset=start, recovery_point=recovery_point)
        )

    def begin_reset(self, start: Offset) -> RecoveryPointFile:
        """Record durably that a reset of the log began, and keep the floor of committed records.

        Raises OSError.
        """
        self._state_file.write(LogState(start, start, resetting=True, floor=self.state.floor))
        return self._state_file

    def restart(self, active: Segment, start: Offset) -> None:
        """End a reset, after which one empty, durable segment is the whole log."""
        self.unflushed = [active]
        self.flushed_end_offset = start
        self._names_unflushed = False

    def keep_only(self, segments: list[Segment]) -> None:
        """Keep only these of the unflushed segments, or the last, active one if none is left."""
        kept = [segment for segment in self.unflushed if segment in segments]
        self.unflushed = kept or [segments[-1]]

    def sync_names(self) -> None:
        """Make the creation and deletion of the log's files durable.

        Raises OSError.
        """
        self._files.fsync_directory(self._directory)
        self._names_unflushed = False

    # --- failing ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise LogFailedError if the log has failed or is closed."""
        if self._failure is not None:
            raise LogFailedError(path=self._directory, reason=str(self._failure))

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def fail(self, failure: StorageError) -> NoReturn:
        """Refuse all writes to the log from now on, and raise `failure`."""
        self._failure = failure
        logger.critical("log=%s action=fail reason=%r", self._directory, str(failure))
        raise failure

    def close(self) -> None:
        """Refuse all writes to the log from now on."""
        if self._failure is None:
            self._failure = LogFailedError(path=self._directory, reason="the log is closed")
        self._state_file.close()


def storage_error(path: Path, error: OSError) -> StorageError:
    """Return DiskFullError for a full disk, or WriteFailedError for any other error."""
    kind = DiskFullError if error.errno in NO_ROOM else WriteFailedError
    return kind(path=path, reason=str(error))
