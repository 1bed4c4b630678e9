"""One group's directory: its log, its election state, its markers.

    <log dir>/<topic>-<partition>/
        *.log, *.index, ...    the log (`raft.segments`)
        *.checkpoint           its checkpoints (`raft.interfaces.Snapshots`)
        partition.metadata     the topic's id
        quorum-state           the election state
        recovering             marks a lost disk, until the replica has caught up
        in-doubt               a fork was found: says why, and how the doubt is ended

The event loop appends and reads; flushing, election states and truncations are jobs of the group's
`DiskThread`. Recent appends are also kept in memory: a leader answers nearly every Fetch from
there, without reading the page cache and parsing the log again.

Source: KIP-595, Quorum State; docs/design/quorum.md#lost-disks,
docs/design/quorum.md#recovery-point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from raft.core.epoch_budget import BUDGET
from raft.core.log import EpochStart, LogState
from raft.core.roles import ElectionState
from raft.core.voters import ReplicaKey
from raft.driver.errors import LostDiskError, MissingSnapshotError
from raft.driver.snapshot_hosting import NoSnapshots
from raft.interfaces import Snapshots
from raft.segments.errors import CorruptFileError, CorruptLogError
from raft.segments.files import FileSystem, read_small_file, replace_file
from raft.segments.log import Log, LogConfig
from raft.segments.properties import (
    QUORUM_STATE_FILE,
    QuorumState,
    read_partition_metadata,
    read_quorum_state,
    write_partition_metadata,
    write_quorum_state,
)
from raft.segments.recovery import holding_batches
from raft.segments.segment import Records, Segment
from raft.wire.responses import Group
from records.types import ZERO_UUID, Epoch, NodeId, Offset, OffsetAndEpoch

RECOVERING_FILE: Final = "recovering"
DOUBT_FILE: Final = "in-doubt"
DOUBT_LIMIT_BYTES: Final = 16 * 1024
TAIL_BYTES: Final = 4 * 1024 * 1024  # of the log's end kept in memory, per group


class _TailChunk(NamedTuple):
    base_offset: Offset
    end_offset: Offset  # exclusive
    data: bytes | bytearray | memoryview


class Storage:
    """An open group directory; the module's docstring says which thread calls which method."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        log: Log,
        voters: tuple[NodeId, ...],
        snapshots: Snapshots,
    ) -> None:
        self.directory = directory
        self.log = log
        self.snapshots = snapshots
        self._files = files
        self._voters = voters
        self._tail: deque[_TailChunk] = deque()
        self._tail_bytes = 0

    @classmethod
    def has_batches(cls, files: FileSystem, log_dir: Path, group: Group) -> bool:
        """Return whether a group was started on this disk before, so that its log holds batches.

        A directory without batches of a group that is not listed is left from a crash during its
        creation: the group is listed before it votes or appends.
        """
        directory = log_dir / group.name
        return files.exists(directory) and bool(holding_batches(files, directory))

    @classmethod
    def create(
        cls, files: FileSystem, log_dir: Path, group: Group, config: LogConfig, *, recovering: bool
    ) -> None:
        """Create a group's empty log durably, replacing an incomplete creation.

        Args:    recovering: the disk of this replica was lost; it must not vote before it has
                 caught up. The marker is written before the log.
        """
        directory = log_dir / group.name
        files.make_directory(directory)
        if recovering:
            replace_file(files, directory / RECOVERING_FILE, b"")
        write_partition_metadata(files, directory, group.topic_id)
        write_quorum_state(files, directory, QuorumState(epoch=Epoch(0)))
        Log.create(files, directory, config).close()

    @classmethod
    def open(
        cls,
        files: FileSystem,
        log_dir: Path,
        group: Group,
        config: LogConfig,
        voters: tuple[NodeId, ...],
        store: Callable[[FileSystem, Path], Snapshots] | None = None,
    ) -> Storage:
        """Open a group, recover its log and make the whole log durable.

        Args:    store: opens its checkpoints; None: it keeps no checkpoints.
        Raises:  LostDiskError if its directory is gone or another topic's; CorruptLogError,
                 CorruptFileError, MissingLogError, OSError.
        """
        directory = log_dir / group.name
        if not files.exists(directory):
            raise LostDiskError(directory)
        try:
            topic_id = read_partition_metadata(files, directory)
        except FileNotFoundError:
            raise LostDiskError(directory, "has no partition.metadata") from None
        if topic_id != group.topic_id:
            raise LostDiskError(directory, f"holds topic id {topic_id}, not {group.topic_id}")
        snapshots = store(files, directory) if store is not None else NoSnapshots()
        storage = cls(files, directory, Log.open(files, directory, config), voters, snapshots)
        if storage.recovering:  # the replica that knew of commits is no more
            storage.log.forget_floor()
        return storage

    # --- initial state of the core ------------------------------------------------------------

    def log_state(self) -> LogState:
        """Return the recovered log's start, end and epochs, and the id of the newest checkpoint.

        Raises:  MissingSnapshotError if no checkpoint covers the records before the log's start;
                 CorruptLogError if the log contradicts itself.
        """
        log, newest = self.log, self.snapshots.newest
        start_offset = log.log_start_offset
        if start_offset > (newest.offset if newest is not None else 0):
            raise MissingSnapshotError(self.directory, start_offset, newest)
        try:
            return LogState(
                start_offset=start_offset,
                start_epoch=self._epoch_before(start_offset),
                end_offset=log.log_end_offset,
                epochs=tuple(
                    EpochStart(epoch, first)
                    for epoch, first in log.epochs
                    if first < log.log_end_offset  # an epoch in force at the end has no record yet
                ),
                snapshot_id=newest,
                floor=log.floor,
                snapshot_epochs=() if newest is None else self.snapshots.epochs(newest),
            )
        except ValueError as error:
            raise CorruptLogError(
                path=self.directory, position=0, offset=log.log_start_offset, reason=str(error)
            ) from error

    def _epoch_before(self, start_offset: Offset) -> Epoch:
        """Return the epoch of the record before the log's start, read from a checkpoint.

        If that checkpoint was removed and a newer one left, the epoch at the start is used. It is
        the same unless an epoch began right there; then a replica whose log ends there is directed
        to the snapshot, which is always safe.
        """
        if start_offset == 0:
            return Epoch(0)
        for snapshot_id in self.snapshots.ids:
            if snapshot_id.offset == start_offset:
                return snapshot_id.epoch
        return self.log.epoch_at(start_offset) or Epoch(0)

    def election_state(self) -> ElectionState:
        """Read the election state that was last persisted.

        Raises:  CorruptFileError, also if log or checkpoints are more than `BUDGET` epochs ahead of
                 it; LostDiskError if the file is missing (it is written at creation): a node that
                 forgot its vote would vote again.
        """
        stored = read_quorum_state(self._files, self.directory)
        if stored is None:
            raise LostDiskError(self.directory, "has no quorum-state")
        newest = self.snapshots.newest
        held = max(
            self.log.epochs[-1].epoch if self.log.epochs else Epoch(0),
            newest.epoch if newest is not None else Epoch(0),
        )
        if held > stored.epoch + BUDGET:
            # Written before the first record of its epoch, it cannot lag. And a batch's epoch is
            # outside its checksum: one damaged bit would use up the epochs of the whole quorum.
            raise CorruptFileError(
                path=self.directory / QUORUM_STATE_FILE,
                reason=f"leaderEpoch {stored.epoch}, but log or checkpoints are of epoch {held}: "
                "one of them is damaged or another quorum's",
            )
        voted = None
        if stored.voted_id is not None:
            voted = ReplicaKey(stored.voted_id, stored.voted_directory_id or ZERO_UUID)
        return ElectionState(epoch=stored.epoch, leader_id=stored.leader_id, voted=voted)

    @property
    def recovering(self) -> bool:
        """Return whether the file exists that marks the replica as recovering from a lost disk."""
        return self._files.exists(self.directory / RECOVERING_FILE)

    @property
    def doubt(self) -> str | None:
        """Return the description of the fork that stopped this group, or None without a fork."""
        try:
            data = read_small_file(
                self._files, self.directory / DOUBT_FILE, limit_bytes=DOUBT_LIMIT_BYTES
            )
        except FileNotFoundError:
            return None
        return data.decode("utf-8", "replace").strip() or "a fork was found earlier"

    # --- jobs of the disk thread --------------------------------------------------------------

    def persist(self, state: ElectionState) -> None:
        """Replace the stored election state durably by `state`."""
        voted = state.voted
        write_quorum_state(
            self._files,
            self.directory,
            QuorumState(
                epoch=state.epoch,
                leader_id=state.leader_id,
                voted_id=voted.id if voted else None,
                voted_directory_id=voted.directory_id if voted else None,
                voters=self._voters,
            ),
        )

    def mark_doubt(self, text: str) -> None:
        """Write the description of a fork durably to the file that keeps this group stopped."""
        replace_file(self._files, self.directory / DOUBT_FILE, f"{text}\n".encode())

    def clear_recovering(self) -> None:
        """Remove durably the file that marks the replica as recovering from a lost disk."""
        self._files.unlink(self.directory / RECOVERING_FILE)
        self._files.fsync_directory(self.directory)

    def flush(self) -> Offset:
        """Make all earlier appends durable, and return the end offset of the durable log."""
        return self.log.flush()

    def truncate(self, end_offset: Offset) -> None:
        """Truncate the group's log durably at `end_offset`.

        The loop must not append meanwhile, nor read past `end_offset`.
        """
        self._tail = deque()  # a new one: the loop may be reading committed batches of the old
        self._tail_bytes = 0
        end = self.log.truncate_to(end_offset)
        assert end == end_offset, f"cut at {end}, asked for {end_offset}: inside a batch"

    def reset(self, snapshot_id: OffsetAndEpoch) -> None:
        """Remove all batches of the log, which then starts at this checkpoint's end offset.

        The group is busy meanwhile, so that nothing else uses the log.
        """
        self._tail = deque()
        self._tail_bytes = 0
        self.log.reset_to(snapshot_id.offset)

    def cut_prefix(self, start_offset: Offset) -> list[Segment]:
        """Move the log's start durably, and return the segments to delete.

        The loop must not append meanwhile.
        """
        if self.log.flushed_end_offset < start_offset:  # a majority flushed before this disk did
            self.log.flush()
        return self.log.cut_prefix(start_offset)

    # --- called on the event loop -------------------------------------------------------------

    def append(
        self,
        data: bytes | bytearray | memoryview,
        base_offset: Offset,
        end_offset: Offset,
        *,
        keep: bool = True,
    ) -> None:
        """Append whole batches to the log; `data` must not change afterwards.

        Args:    keep: also keep `data` in memory, for Fetches of replicas or to be applied soon.
        Raises:  StorageError: the node cannot go on.
        """
        appended = self.log.append(data)
        assert appended.base_offset == base_offset, f"{appended}, expected base {base_offset}"
        assert appended.end_offset == end_offset, f"{appended}, expected end {end_offset}"
        if not keep:
            self.forget_tail()
            return
        self._tail.append(_TailChunk(base_offset, end_offset, data))
        self._tail_bytes += len(data)
        while self._tail_bytes > TAIL_BYTES and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft().data)

    def forget_tail(self) -> None:
        """Drop the log's newest batches from memory."""
        self._tail.clear()
        self._tail_bytes = 0

    def read_bytes(
        self, from_offset: Offset, end_offset: Offset, max_bytes: int
    ) -> bytes | bytearray | memoryview:
        """Return whole batches between two offsets, the first even if it exceeds `max_bytes`."""
        if from_offset >= end_offset:
            return b""
        if self._tail and self._tail[0].base_offset <= from_offset:
            data = self._from_tail(from_offset, end_offset, max_bytes)
            if data is not None:
                return data
        found = self.log.read_data(from_offset, max_bytes=max_bytes, end_offset=end_offset)
        return found if found is not None else b""

    def _from_tail(
        self, from_offset: Offset, end_offset: Offset, max_bytes: int
    ) -> bytes | bytearray | memoryview | None:
        """Return batches kept in memory, or None if they must be read from the log's files."""
        found: list[bytes | bytearray | memoryview] = []
        size = 0
        for chunk in reversed(self._tail):
            if chunk.base_offset < from_offset:
                return None if chunk.end_offset > from_offset else _join_chunks(found, max_bytes)
            if chunk.end_offset <= end_offset:
                found.append(chunk.data)
                size += len(chunk.data)
            if chunk.base_offset == from_offset:
                break
        return _join_chunks(found, max_bytes)

    def read(self, from_offset: Offset, end_offset: Offset, max_bytes: int) -> Records | None:
        """Return whole batches from the batch that contains `from_offset`; None at `end_offset`.

        Raises:  OffsetOutOfRangeError; CorruptLogError where the disk lost what it held.
        """
        return self.log.read(
            from_offset, max_bytes=max_bytes, end_offset=end_offset, verify_crc=False
        )

    def close(self) -> None:
        """Flush, record the recovery point, and close log and checkpoints.

        Raises FlushFailedError.
        """
        try:
            self.log.close()
        finally:
            self.snapshots.close()


def _join_chunks(
    newest_first: list[bytes | bytearray | memoryview], max_bytes: int
) -> bytes | bytearray | memoryview | None:
    """Join the oldest chunks of batches that fit into `max_bytes`; return None if none fits."""
    if not newest_first:
        return None
    newest_first.reverse()
    if len(newest_first) == 1:
        return newest_first[0] if len(newest_first[0]) <= max_bytes else None
    fitting: list[bytes | bytearray | memoryview] = []
    size = 0
    for data in newest_first:
        size += len(data)
        if size > max_bytes:
            break
        fitting.append(data)
    return b"".join(fitting) if fitting else None
