"""Opens a log after any crash: decides what is kept, what is cut, and what stops the node.

The recovery point (`recovery_point.py`) divides the log. Segments wholly below it were flushed,
indexes and all, and are only asked whether they still fit together; the others, and always the
last, are read from end to end. The first bad batch decides: at or above the point it is a torn
tail, cut there with everything after it and one log line; below it the disk lost what it had
promised, and `CorruptLogError` says where. A file that is missing counts like bytes that are.

What is found above the point may still sit in the page cache of a process that died, so it is
flushed before anyone may count on it: an opened log is durable to its end. And the cache is dropped
before it is read: if that process died of a failed flush, the cache holds bytes that the disk never
took, and a second flush would succeed without writing them.

Source: docs/design/quorum.md#recovery-point; Rebello et al., "Can Applications Recover from fsync
Failures?" (ATC 2020); org.apache.kafka.storage.internals.log.LogLoader, which trusts a
clean-shutdown marker instead and cuts at any damage.
"""

from __future__ import annotations

import contextlib
import logging
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from raft.segments.epochs import Epochs, EpochStart, read_epochs, write_epochs
from raft.segments.errors import (
    CorruptFileError,
    CorruptLogError,
    MissingLogError,
    WriteFailedError,
)
from raft.segments.files import NO_ROOM, TEMPORARY_SUFFIX, FileSystem, Mode
from raft.segments.recovery_point import LogState, RecoveryPointFile
from raft.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    base_offset_of,
    segment_name,
)
from records.batch import BatchHeader
from records.errors import RecordError
from records.types import Epoch, Offset

logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """A log that is sound and durable to its end; its last segment is active."""

    segments: list[Segment]
    epochs: Epochs
    end_offset: Offset
    state_file: RecoveryPointFile


def recover(files: FileSystem, directory: Path, *, index_interval_bytes: int) -> Recovered:
    """Open the log in `directory`, and remove damaged batches above the recovery point.

    Raises:  MissingLogError, CorruptLogError, CorruptFileError, OSError.
    """
    return _Recovery(files, directory, index_interval_bytes).run()


def holding_batches(files: FileSystem, directory: Path) -> list[Path]:
    """List the segments in a directory that are not empty.

    Raises OSError.
    """
    found = []
    for name in files.listdir(directory):
        if name.endswith(LOG_SUFFIX):
            file = files.open(directory / name, Mode.READ)
            if file.size():
                found.append(directory / name)
            file.close()
    return found


def make_empty(files: FileSystem, directory: Path, start_offset: Offset) -> None:
    """Create an empty log in `directory` durably, replacing the files of a crashed creation.

    Raises:  WriteFailedError if the directory holds batches; OSError.
    """
    files.make_directory(directory)
    held = holding_batches(files, directory)
    if held:
        raise WriteFailedError(path=held[0], reason="a log is already there")
    state = LogState(start_offset, start_offset, resetting=True)
    state_file = RecoveryPointFile.create(files, directory, state)
    files.fsync_directory(directory)
    start_over(files, directory, state_file)
    state_file.close()


def start_over(files: FileSystem, directory: Path, state_file: RecoveryPointFile) -> None:
    """Delete every segment and create an empty segment at the log start, which ends a reset.

    `state_file` says `resetting`, durably; so a crash in here is finished by the next open.
    """
    start = state_file.state.log_start_offset
    for name in files.listdir(directory):
        if name.endswith((LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
            files.unlink(directory / name)
    files.fsync_directory(directory)
    write_epochs(files, directory, ())
    files.open(directory / segment_name(start), Mode.CREATE).close()
    files.fsync_directory(directory)
    state_file.write(LogState(start, start, floor=state_file.state.floor))


class _Recovery:
    """One recovery; its steps share a list of segments that only shrinks."""

    def __init__(self, files: FileSystem, directory: Path, index_interval_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._segments: list[Segment] = []
        self._scanned: list[EpochStart] = []

    def run(self) -> Recovered:
        state_file = self._open_state()
        try:
            if state_file.state.resetting:
                start_over(self._files, self._directory, state_file)
            state = state_file.state
            self._open_segments(state)
            trusted = self._check_trusted(state.recovery_point)
            epochs = self._trusted_epochs(trusted, state.log_start_offset)
            end = self._scan_rest(trusted, epochs, state.recovery_point)
            for entry in self._scanned:
                epochs.assign(entry.epoch, entry.start_offset)
            epochs.drop_before(state.log_start_offset)
            if self._make_durable(trusted, epochs) and end != state.recovery_point:
                state_file.write(state._replace(recovery_point=end))
        except BaseException:
            state_file.close()
            for segment in self._segments:
                segment.close()
            raise
        return Recovered(self._segments, epochs, end, state_file)

    def _open_state(self) -> RecoveryPointFile:
        """Open the recovery point, or create a recovery point that covers no record."""
        try:
            return RecoveryPointFile.open(self._files, self._directory)
        except FileNotFoundError:
            pass
        bases = self._bases() if self._files.exists(self._directory) else []
        if not bases:
            raise MissingLogError(path=self._directory, reason="no log here")
        logger.warning("log=%s recovery_point=missing action=scan_all", self._directory)
        state_file = RecoveryPointFile.create(
            self._files, self._directory, LogState(bases[0], bases[0])
        )
        self._files.fsync_directory(self._directory)
        return state_file

    def _bases(self) -> list[Offset]:
        bases = (base_offset_of(name) for name in self._files.listdir(self._directory))
        return sorted(base for base in bases if base is not None)

    def _open_segments(self, state: LogState) -> None:
        """Open the segments above the log start, and finish an interrupted deletion of segments."""
        bases = self._bases()
        while len(bases) > 1 and bases[1] <= state.log_start_offset:
            base = bases.pop(0)
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(self._directory / segment_name(base, suffix))
        if not bases or bases[0] > state.log_start_offset:
            raise CorruptLogError(
                path=self._directory,
                position=0,
                offset=state.log_start_offset,
                reason="the segment that the log starts in is missing",
            )
        names = {segment_name(base) for base in bases}
        for name in self._files.listdir(self._directory):
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                base_offset = base_offset_of(name.removesuffix(TEMPORARY_SUFFIX), suffix)
                if base_offset is None:
                    continue
                if name.endswith(TEMPORARY_SUFFIX) or segment_name(base_offset) not in names:
                    self._files.unlink(self._directory / name)
        for base in bases:
            self._segments.append(
                Segment.open(
                    self._files,
                    self._directory,
                    base,
                    mode=Mode.WRITE,
                    index_interval_bytes=self._index_interval_bytes,
                )
            )

    def _check_trusted(self, recovery_point: Offset) -> int:
        """Return the number of segments below the recovery point, which are not scanned.

        One that ends *at* the point may have been rolled after the point was recorded, so that its
        indexes were still being written.
        Their indexes are loaded where they fit the log; where not, the segment is read after all,
        and any damage in it is damage below the recovery point.
        """
        for i, (segment, following) in enumerate(
            zip(self._segments, self._segments[1:], strict=False)
        ):
            end = following.base_offset
            if end >= recovery_point:
                return i
            if segment.load_indexes(end):
                continue
            logger.warning("log=%s action=rebuild_index", segment.path)
            self._rebuild_sound(segment, end, None)
        return len(self._segments) - 1

    def _trusted_epochs(self, trusted: int, log_start_offset: Offset) -> Epochs:
        """Return the unscanned segments' epochs, from the epoch checkpoint file if consistent."""
        segments = self._segments[:trusted]
        if not segments:
            return Epochs()
        try:
            epochs = Epochs(read_epochs(self._files, self._directory))
            epochs.truncate_to(self._segments[trusted].base_offset)
            epochs.drop_before(max(segments[0].base_offset, log_start_offset))
            reason = self._contradicts(epochs, segments, log_start_offset)
        except CorruptFileError as error:
            reason = error.reason
        if reason is None:
            return epochs
        logger.warning("log=%s action=rebuild_epochs reason=%r", self._directory, reason)
        epochs = Epochs()
        for segment, following in zip(segments, self._segments[1:], strict=False):
            for entry in self._rebuild_sound(segment, following.base_offset, epochs.last):
                epochs.assign(entry.epoch, entry.start_offset)
        return epochs

    def _contradicts(
        self, epochs: Epochs, segments: list[Segment], log_start_offset: Offset
    ) -> str | None:
        """Return the reason why the epoch checkpoint contradicts the segments, or None."""
        if not epochs.entries or epochs.entries[0].start_offset > max(
            log_start_offset, segments[0].base_offset
        ):
            return "it does not reach back to the log start"
        try:
            for segment in segments:
                start = max(segment.base_offset, log_start_offset)
                found = self._header_of(start).leader_epoch
                if epochs.epoch_at(start) != found:
                    return f"the batch at offset {start} has epoch {found}"
                last, found = segment.tail.end_offset - 1, Epoch(segment.tail.epoch)
                if epochs.epoch_at(last) != found:
                    return f"the batch at offset {last} has epoch {found}"
            for before, (epoch, start) in pairwise(epochs.entries):
                at, previous = self._header_of(start), self._header_of(start - 1)
                if (at.base_offset, at.leader_epoch) != (start, epoch):
                    return f"epoch {epoch} does not start at offset {start}"
                if previous.leader_epoch != before.epoch:
                    return f"epoch {before.epoch} does not end at offset {start}"
        except RecordError as error:
            return str(error)
        return None

    def _header_of(self, offset: int) -> BatchHeader:
        """Return the header of the batch that holds `offset`.

        Raises RecordError.
        """
        segment = next(s for s in reversed(self._segments) if s.base_offset <= offset)
        return segment.header_at(segment.locate(offset))

    def _rebuild_sound(
        self, segment: Segment, end_offset: Offset, last_epoch: Epoch | None
    ) -> list[EpochStart]:
        """Rebuild a segment's indexes below the recovery point; raise if the segment is damaged."""
        result = segment.rebuild(last_epoch=last_epoch)
        if result.damage is not None or segment.tail.end_offset != end_offset:
            raise CorruptLogError(
                path=segment.path,
                position=segment.tail.position,
                offset=segment.tail.end_offset,
                reason=result.damage or f"ends there, the next segment starts at {end_offset}",
            )
        segment.seal()
        segment.write_indexes(durably=True)
        return result.found.epochs

    def _scan_rest(self, trusted: int, epochs: Epochs, recovery_point: Offset) -> Offset:
        """Check the segments from number `trusted` on; truncate or fail at a damaged batch."""
        expected = self._segments[trusted].base_offset
        last_epoch = epochs.last
        for i in range(trusted, len(self._segments)):
            segment = self._segments[i]
            if segment.base_offset != expected:
                reason = f"the next segment starts at {segment.base_offset}"
                self._cut(i - 1, expected, recovery_point, reason)
                break
            segment.file.fdatasync()
            segment.file.drop_cache()
            result = segment.rebuild(last_epoch=last_epoch)
            self._scanned += result.found.epochs
            if self._scanned:
                last_epoch = self._scanned[-1].epoch
            expected = Offset(segment.tail.end_offset)
            if result.damage is not None:
                self._cut(i, expected, recovery_point, result.damage)
                break
        if expected < recovery_point:
            last = self._segments[-1]
            raise CorruptLogError(
                path=last.path,
                position=last.size_bytes,
                offset=expected,
                reason=f"the log ends there, but was flushed up to {recovery_point}",
            )
        return expected

    def _cut(self, i: int, end_offset: Offset, recovery_point: Offset, reason: str) -> None:
        """Remove the log after segment `i`'s valid part; raise if the recovery point is higher."""
        segment = self._segments[i]
        if end_offset < recovery_point:
            raise CorruptLogError(
                path=segment.path,
                position=segment.size_bytes,
                offset=end_offset,
                reason=reason,
            )
        cut_bytes = segment.file.size() - segment.size_bytes
        later = len(self._segments) - i - 1
        logger.warning(
            "log=%s action=cut_tail position=%d end_offset=%d bytes=%d segments=%d reason=%r",
            segment.path,
            segment.size_bytes,
            end_offset,
            cut_bytes,
            later,
            reason,
        )
        for _ in range(later):
            self._segments.pop().delete()
        self._files.fsync_directory(self._directory)
        segment.file.truncate(segment.size_bytes)

    def _make_durable(self, trusted: int, epochs: Epochs) -> bool:
        """Flush the scanned segments and their indexes; return False if the disk is full.

        False if the disk is too full for the indexes or the epochs: the log is sound, but its
        recovery point must stay where it was, so that the next open makes them anew.
        """
        for segment in self._segments[trusted:]:
            segment.file.fdatasync()
        # Their names, too: a process that died may have made them since it last synced any.
        self._files.fsync_directory(self._directory)
        try:
            for segment in self._segments[trusted:]:
                if segment is not self._segments[-1]:
                    segment.seal()
                segment.write_indexes(durably=True)
            write_epochs(self._files, self._directory, epochs.entries)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logger.error("log=%s action=keep_recovery_point reason=%r", self._directory, str(error))
            epochs.dirty = True
            return False
        epochs.dirty = False
        return True
