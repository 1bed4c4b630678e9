"""A replica's log on disk: append, flush, read, truncate, drop a prefix, reset.

Two threads may use one log. Its owner (the event loop) calls everything; `flush` may run in another
thread at the same time as the owner appends and reads, and while it runs those never wait. What a
flush makes durable is what had been appended when it began, so appends that arrive meanwhile share
the next one (group commit). Operations that delete bytes wait for a running flush.

Three offsets matter, all exclusive: `log_end_offset` (appended), `flushed_end_offset` (durable:
only this may be promised) and `recovery_point` (durable, *and* durably known to be: below it
nothing is ever cut). The last is recorded when a segment was rolled, when a second has passed since
the last time, and on `close`; an idle owner calls `record_recovery_point` once a second.

The surprise is in truncation. The recovery point is lowered first, or a crash would leave a log
that ends below it. And what is cut is made durable before anything new is appended: else a power
loss could leave new batches followed by old ones that still match their checksums.

Source: KIP-595, Log; docs/design/quorum.md#recovery-point;
org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from raft.segments.durability import Durability, storage_error
from raft.segments.epochs import Epochs, EpochStart
from raft.segments.errors import (
    LogFailedError,
    OffsetOutOfRangeError,
    UnexpectedBatchError,
)
from raft.segments.files import FileSystem, Mode
from raft.segments.recovery import make_empty, recover, start_over
from raft.segments.recovery_point import RecoveryPointFile
from raft.segments.scan import NO_EPOCH, Advance
from raft.segments.segment import Records, Segment
from raft.segments.settings import MAX_RELATIVE, Appended
from raft.segments.settings import LogConfig as LogConfig
from records.batch import iter_batches, parse_header, read_batch
from records.compression import Buffer
from records.errors import RecordError
from records.types import Epoch, Offset, OffsetAndEpoch

logger = logging.getLogger(__name__)


class Log:
    """A log on disk. Made by `create` or `open`; closed by `close`."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        config: LogConfig,
        clock: Callable[[], float],
        *,
        segments: list[Segment],
        epochs: Epochs,
        end_offset: Offset,
        state_file: RecoveryPointFile,
    ) -> None:
        self.directory = directory
        self.config = config
        self._files = files
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._epochs = epochs
        self._log_end_offset = end_offset
        self._durability = Durability(
            files,
            directory,
            state_file=state_file,
            epochs=epochs,
            active=segments[-1],
            end_offset=end_offset,
            interval_ms=config.recovery_point_interval_ms,
            clock=clock,
        )

    # --- opening and closing -----------------------------------------------------------------

    @classmethod
    def create(
        cls,
        files: FileSystem,
        directory: Path,
        config: LogConfig | None = None,
        *,
        start_offset: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> Log:
        """Create an empty log durably, replacing the files of a crashed creation.

        Raises:  WriteFailedError if the directory holds batches; OSError.
        """
        make_empty(files, directory, Offset(start_offset))
        return cls.open(files, directory, config, clock=clock)

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: Path,
        config: LogConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> Log:
        """Open an existing log and recover it, so that it is durable to its end.

        Raises:  MissingLogError, CorruptLogError (damage below the recovery point),
                 CorruptFileError, OSError.
        """
        config = config or LogConfig()
        found = recover(files, directory, index_interval_bytes=config.index_interval_bytes)
        return cls(
            files,
            directory,
            config,
            clock,
            segments=found.segments,
            epochs=found.epochs,
            end_offset=found.end_offset,
            state_file=found.state_file,
        )

    def close(self) -> None:
        """Flush the log, record the recovery point and close every file.

        Closes a failed log too, unflushed.

        Raises:  FlushFailedError.
        """
        durability = self._durability
        with durability.lock:
            try:
                if not durability.failed:
                    durability.flush(self._log_end_offset)
                    self._segments[-1].seal()  # as upstream's close: the next roll finds it done
                    durability.record()
            finally:
                durability.close()
                for segment in self._segments:
                    segment.close()

    # --- positions ---------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> Offset:
        """Return the first offset that may be read."""
        return self._durability.state.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Return the offset that the next appended batch will have."""
        return self._log_end_offset

    @property
    def flushed_end_offset(self) -> Offset:
        """Return the offset below which every record survives a power loss."""
        return self._durability.flushed_end_offset

    @property
    def recovery_point(self) -> Offset:
        """Return the offset below which every record is recorded as durable."""
        return self._durability.state.recovery_point

    @property
    def floor(self) -> Offset:
        """Return the recorded offset below which every record was committed and flushed, or 0.

        Only a reset can leave a log that ends below it.
        """
        return self._durability.state.floor

    @property
    def last_epoch(self) -> Epoch | None:
        """Return the epoch of the last record, or None for an empty log."""
        return self._epochs.last

    @property
    def epochs(self) -> tuple[EpochStart, ...]:
        """Return the start offset of each epoch, oldest first."""
        return self._epochs.entries

    @property
    def size_bytes(self) -> int:
        """Return the size in bytes of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    def bytes_from(self, offset: int) -> int:
        """Return the log's size in bytes from the batch that holds `offset` to its end."""
        offset = max(offset, self.log_start_offset)
        if offset >= self._log_end_offset:
            return 0
        segment = self._segment_at(offset)
        before = segment.locate(offset)
        later = (one.size_bytes for one in self._segments if one.base_offset > segment.base_offset)
        return segment.size_bytes - before + sum(later)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch | None:
        """Return the greatest epoch in the log not later than `epoch`, and its end offset.

        None if every record here is of a later epoch, or there is none.
        Source: KIP-595, Fetch (diverging epoch).
        """
        return self._epochs.end_offset(epoch, log_end_offset=self._log_end_offset)

    def epoch_at(self, offset: int) -> Epoch | None:
        """Return the epoch of the record at `offset`, or None below the log start."""
        return self._epochs.epoch_at(offset)

    # --- appending ---------------------------------------------------------------------------

    def append(self, data: Buffer) -> Appended:
        """Append whole batches whose offsets and epochs are final, without making them durable.

        Raises:  RecordError if they are not sound, UnexpectedBatchError if they do not continue
                 the log; DiskFullError, WriteFailedError: nothing was appended, the log stays as
                 it was; LogFailedError after an earlier failure.
        """
        self._durability.check()
        assert len(data), "an append of nothing"
        if len(data) > self.config.segment_bytes and parse_header(data).size_bytes < len(data):
            return self._append_each(data)
        segment = self._segments[-1]
        found = self._check(segment, data)
        if self._must_roll(segment, found):
            segment = self._roll()
            found = self._check(segment, data)
        try:
            segment.append(data, found)
        except OSError as error:
            self._undo_append(segment, error)
        for epoch, start_offset in found.epochs:
            self._epochs.assign(epoch, start_offset)
        base, end = self._log_end_offset, Offset(found.tail.end_offset)
        self._log_end_offset = end
        return Appended(base, end, Epoch(found.tail.epoch))

    def _check(self, segment: Segment, data: Buffer) -> Advance:
        """Check that `data` continues the log; return the segment's new tail and index entries."""
        limit = self.config.max_batch_size_bytes
        found = segment.check(data, max_batch_size_bytes=limit)
        approved = found.tail.position - segment.tail.position
        if approved != len(data):
            header = read_batch(data, approved, max_size_bytes=limit).header
            raise UnexpectedBatchError(
                base_offset=header.base_offset,
                epoch=header.leader_epoch,
                log_end_offset=Offset(found.tail.end_offset),
                last_epoch=None if found.tail.epoch == NO_EPOCH else Epoch(found.tail.epoch),
            )
        return found

    def _append_each(self, data: Buffer) -> Appended:
        """Append batches one by one, because together they exceed a segment.

        If the disk fills up in between, the batches before stay appended, and the error says so by
        what `log_end_offset` then is.
        """
        base = self._log_end_offset
        for batch in iter_batches(data, max_size_bytes=self.config.max_batch_size_bytes):
            last = self.append(batch.view)
        return last._replace(base_offset=base)

    def _must_roll(self, segment: Segment, found: Advance) -> bool:
        """Return whether these batches exceed a segment's limit on size, age or offsets."""
        tail = found.tail
        first = segment.tail.first_timestamp
        if first is None:  # it is empty
            return False
        return (
            tail.position > self.config.segment_bytes
            or tail.end_offset - segment.base_offset > MAX_RELATIVE
            or (first >= 0 and tail.newest - first > self.config.segment_ms)
        )

    def _roll(self) -> Segment:
        """Start a new segment at the log end, whose name becomes durable with the next flush."""
        try:
            segment = self._create_segment(self._log_end_offset)
        except OSError as error:
            raise storage_error(self.directory, error) from error
        sealed = self._segments[-1]
        sealed.seal()
        segment.tail = segment.tail._replace(epoch=sealed.tail.epoch)
        self._durability.created(segment)
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        logger.info("log=%s action=roll base_offset=%d", self.directory, segment.base_offset)
        return segment

    def _create_segment(self, base_offset: Offset) -> Segment:
        return Segment.open(
            self._files,
            self.directory,
            base_offset,
            mode=Mode.CREATE,
            index_interval_bytes=self.config.index_interval_bytes,
        )

    def _undo_append(self, segment: Segment, error: OSError) -> None:
        """Truncate the bytes that a failed write left in the file, then raise the write's error.

        Durably, because whole batches may be among it: after a crash they would be found again, at
        offsets that other batches of the same epoch have taken meanwhile.
        """
        try:
            segment.file.truncate(segment.size_bytes)
            segment.file.fdatasync()
        except OSError as second:
            self._durability.fail(
                LogFailedError(path=segment.path, reason=f"{error}; then {second}")
            )
        logger.error("log=%s action=append_failed reason=%r", segment.path, str(error))
        raise storage_error(segment.path, error) from error

    # --- flushing ----------------------------------------------------------------------------

    def flush(self) -> Offset:
        """Make appended batches durable and return the new `flushed_end_offset`.

        Any thread may call this.

        Raises:  FlushFailedError: the process must end. LogFailedError after an earlier failure.
        """
        with self._durability.lock:
            return self._durability.flush(self._log_end_offset)

    def record_recovery_point(self) -> None:
        """Record durably the flushed end and the known committed offset, if either has moved.

        Any thread may call this.

        Raises:  FlushFailedError, LogFailedError.
        """
        with self._durability.lock:
            self._durability.check()
            moved = self._durability.newest_floor != self.floor
            if moved or self.flushed_end_offset != self.recovery_point:
                self._durability.record()

    def note_committed(self, offset: Offset) -> None:
        """Register that all records below `offset` are committed, to be recorded later."""
        self._durability.committed_end_offset = offset

    def allow_floor(self) -> None:
        """Record floors in a file that was written without; older releases cannot read it then."""
        with self._durability.lock:
            self._durability.allow_floor()

    def forget_floor(self) -> None:
        """Set the recorded floor of committed records durably to 0, because the replica was lost.

        Raises:  WriteFailedError, DiskFullError.
        """
        with self._durability.lock:
            try:
                self._durability.forget_floor()
            except OSError as error:
                raise storage_error(self.directory, error) from error

    # --- reading -----------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        verify_crc: bool = True,
    ) -> Records | None:
        """Read whole batches of one segment, starting with the batch that holds `offset`.

        Args:    max_bytes: the first batch is returned whatever its size, others while they fit.
                 end_offset: no batch that reaches past it (exclusive); the log end if None.
        Returns: None at the end, or if the first batch reaches past `end_offset`.
        Raises:  OffsetOutOfRangeError; CorruptLogError where the disk lost what it held.
        """
        limit = self._read_limit(offset, end_offset)
        if offset >= limit:
            return None
        return self._segment_at(offset).read(
            offset, max_bytes=max_bytes, end_offset=limit, verify_crc=verify_crc
        )

    def read_data(self, offset: int, *, max_bytes: int, end_offset: int) -> memoryview | None:
        """Read batches without checking their content, because replicas check fetched batches."""
        limit = self._read_limit(offset, end_offset)
        if offset >= limit:
            return None
        return self._segment_at(offset).read_data(offset, max_bytes=max_bytes, end_offset=limit)

    def _read_limit(self, offset: int, end_offset: int | None) -> Offset:
        """Return the offset at which a read must end: the lower of `end_offset` and log end.

        Raises OffsetOutOfRangeError.
        """
        if not self.log_start_offset <= offset <= self._log_end_offset:
            raise self._out_of_range(offset, self._log_end_offset)
        if end_offset is not None and end_offset < self._log_end_offset:
            return Offset(end_offset)
        return self._log_end_offset

    def _out_of_range(self, offset: int, end_offset: Offset) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            offset=offset, log_start_offset=self.log_start_offset, log_end_offset=end_offset
        )

    def _segment_at(self, offset: int) -> Segment:
        segments = self._segments  # one list, whole: `cut_prefix` replaces it in another thread
        if len(segments) == 1:
            return segments[0]
        return segments[bisect_right(segments, offset, key=_base_of) - 1]

    # --- deleting ----------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> Offset:
        """Remove every batch that ends after `offset` durably, and return the new log end.

        The log end is `offset` if a batch starts there, else the start of the batch that holds it
        (the log start, if that lies inside the same batch).
        Raises:  OffsetOutOfRangeError below the log start; CorruptLogError, and nothing was cut;
                 LogFailedError: a log cut half way refuses further writes.
        """
        with self._durability.lock:
            self._durability.check()
            if offset >= self._log_end_offset:
                return self._log_end_offset
            if offset < self.log_start_offset:
                raise self._out_of_range(offset, self._log_end_offset)
            keep = bisect_right(self._bases, offset)
            segment = self._segments[keep - 1]
            position = segment.locate(offset)
            end = segment.header_at(position).base_offset
            if end < self.log_start_offset:  # the log start lies inside that batch
                self.reset_to(self.log_start_offset)
                return self._log_end_offset
            try:
                self._truncate(keep, position, end)
            except (OSError, RecordError) as error:
                failure = LogFailedError(path=segment.path, reason=f"truncation: {error}")
                self._durability.fail(failure)
            logger.info("log=%s action=truncate end_offset=%d", self.directory, end)
            return end

    def _truncate(self, keep: int, position: int, end: Offset) -> None:
        """Keep the log's first `keep` segments, and truncate the last of these at `position`.

        Raises OSError, RecordError.
        """
        self._durability.lower(end)
        self._log_end_offset = end
        while len(self._segments) > keep:
            self._segments.pop().delete()
            self._bases.pop()
        self._durability.sync_names()
        segment = self._segments[-1]
        segment.truncate_to(position, end)
        self._durability.keep_only(self._segments)
        self._epochs.truncate_to(end)
        last_epoch = self._epochs.last
        segment.tail = segment.tail._replace(epoch=NO_EPOCH if last_epoch is None else last_epoch)

    def reset_to(self, offset: Offset) -> None:
        """Remove all records and start the log durably at `offset`, where a snapshot ends.

        Raises:  LogFailedError; the next open finishes what was begun.
        """
        with self._durability.lock:
            self._durability.check()
            try:
                state_file = self._durability.begin_reset(offset)
                for segment in self._segments:
                    segment.close()
                start_over(self._files, self.directory, state_file)
                active = self._create_segment(offset)
            except OSError as error:
                failure = LogFailedError(path=self.directory, reason=f"reset: {error}")
                self._durability.fail(failure)
            self._segments, self._bases = [active], [offset]
            self._epochs.clear()
            self._log_end_offset = offset
            self._durability.restart(active, offset)
            logger.info("log=%s action=reset start_offset=%d", self.directory, offset)

    def drop_prefix(self, new_start_offset: Offset) -> int:
        """Raise the log start durably, and return the number of deleted segments.

        The active segment stays, even if nothing in it can be read any more. Moving to or below the
        present start does nothing.
        Raises:  OffsetOutOfRangeError past the flushed end; WriteFailedError, DiskFullError.
        """
        dropped = self.cut_prefix(new_start_offset)
        self.delete(dropped)
        return len(dropped)

    def cut_prefix(self, new_start_offset: Offset) -> list[Segment]:
        """Raise the log start durably, and return the segments that `delete` will remove.

        Its owner may read meanwhile, from the new start on, but not append. Segments that are not
        deleted before a crash go with the next open.
        """
        with self._durability.lock:
            self._durability.check()
            if new_start_offset <= self.log_start_offset:
                return []
            if new_start_offset > self.flushed_end_offset:
                raise self._out_of_range(new_start_offset, self.flushed_end_offset)
            self._durability.sync_new_names()  # or both old and new segments could be gone
            try:
                self._durability.raise_start(new_start_offset)
            except OSError as error:
                raise storage_error(self.directory, error) from error
            keep = max(0, bisect_right(self._bases, new_start_offset) - 1)
            dropped = self._segments[:keep]
            self._segments = self._segments[keep:]  # a new list: who reads has the old or the new
            self._bases = self._bases[keep:]
            self._durability.keep_only(self._segments)
            self._epochs.drop_before(new_start_offset)
            logger.info(
                "log=%s action=drop_prefix start_offset=%d segments=%d",
                self.directory, new_start_offset, len(dropped),
            )  # fmt: skip
            return dropped

    def delete(self, segments: list[Segment]) -> None:
        """Delete the files of segments that `cut_prefix` returned.

        Any thread may call this. Raises WriteFailedError.
        """
        try:
            for segment in segments:
                segment.delete()
        except OSError as error:
            raise storage_error(self.directory, error) from error


def _base_of(segment: Segment) -> Offset:
    return segment.base_offset
