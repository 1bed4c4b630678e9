"""How checkpoints are kept: what the driver needs of the snapshot room, as the front door gives it.

Without it a group keeps everything: its log begins at 0 for ever.

Source: KIP-630; docs/design/snapshots.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from raft.driver.counters import Timings
from raft.driver.node_services import RoomHost, StateListener
from raft.interfaces import Download, ReplicatedLog, SnapshotChunk, Snapshots, StateMachine
from raft.segments.files import FileSystem
from records.types import NodeId, Offset, OffsetAndEpoch


class KeptCheckpoint(NamedTuple):
    """One of our checkpoints, as far as the log's start goes."""

    snapshot_id: OffsetAndEpoch
    size_bytes: int
    log_bytes_after: int  # of the log, from its end on
    age_ms: int  # since it was published here, or found at the start


class FollowingReplica(NamedTuple):
    """Another replica, as its leader knows it; None: it has not fetched in this epoch."""

    node_id: NodeId
    voter: bool
    offset: Offset | None  # it holds everything below, on disk
    last_fetch_ms: int | None


class ReadingArchive(NamedTuple):
    """Somebody who keeps the log elsewhere, as its leader knows it."""

    node_id: NodeId  # as whom it fetches
    offset: Offset  # it has everything below, durably
    last_fetch_ms: int


class LogStartView(NamedTuple):
    """What there is to know when it is to be decided where a log may start. Times on one clock."""

    now_ms: int
    log_start_offset: Offset
    log_bytes: int  # from its start on; what is dead in its first segment is not counted
    checkpoints: Sequence[KeptCheckpoint]  # oldest first
    leading_since_ms: int | None  # None: we do not lead
    replicas: Sequence[FollowingReplica]  # of a leader: all others
    leader_log_start: Offset | None  # of a follower: what its leader last said
    readers: Sequence[ReadingArchive] = ()  # of a leader


class Taken(NamedTuple):
    """What came of asking for a checkpoint."""

    snapshot_id: OffsetAndEpoch | None  # the newest there is; None: there is none
    error: str | None = None  # why none was taken
    broken: bool = False  # the disk's fault


class Hosted(Protocol):
    """A state machine that is driven: loaded, fed with what is committed, checkpointed."""

    @property
    def applied_offset(self) -> Offset:
        """Everything below is in the state."""

    @property
    def generating(self) -> bool:
        """Is a checkpoint being written?"""

    @property
    def generations(self) -> Timings:
        """How long checkpoints took to write since the start."""

    @property
    def loads(self) -> Timings:
        """How long checkpoints took to load since the start."""

    @property
    def checkpoint_bytes(self) -> int:
        """Of the newest checkpoint; 0 if there is none."""

    def take_now(self, done: Callable[[Taken], None]) -> None:
        """Take a checkpoint whatever the policy says, and tell when it is durable."""

    def close(self) -> None:
        """Apply nothing more, write nothing more."""


class Keeping(Protocol):
    """Checkpoints: where they lie, when they are taken, and how far the log is cut."""

    def store(self, files: FileSystem, directory: Path) -> Snapshots:
        """The checkpoints in a group's directory, as found. Raises OSError."""

    def log_start(self, view: LogStartView) -> OffsetAndEpoch | None:
        """The checkpoint that the log should start at now; None: where it does already."""

    def host(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        node: RoomHost,
        listener: StateListener | None,
    ) -> Hosted:
        """Drive a state machine from now on: watch its log, load, apply, take checkpoints."""


class NoSnapshots:
    """The checkpoints of a group that has none, and takes none in."""

    newest: OffsetAndEpoch | None = None
    ids: Sequence[OffsetAndEpoch] = ()

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:  # noqa: ARG002
        """Return None: there is no checkpoint."""
        return None

    def read(
        self,
        snapshot_id: OffsetAndEpoch,  # noqa: ARG002
        position: int,  # noqa: ARG002
        max_bytes: int,  # noqa: ARG002
    ) -> SnapshotChunk | None:
        """There is none."""
        return None

    def receive(self, snapshot_id: OffsetAndEpoch) -> Download:
        """Nobody may be sent here for one: raises OSError."""
        raise OSError(f"no place to keep checkpoint {snapshot_id}")

    def added(self, snapshot_id: OffsetAndEpoch) -> None:
        """Nobody can have published one here."""
        raise AssertionError(f"no place for checkpoint {snapshot_id}")

    def drop_below(self, log_start_offset: Offset) -> None:
        """Nothing to drop."""

    def close(self) -> None:
        """Nothing is open."""
