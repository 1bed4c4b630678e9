"""Interfaces by which the driver uses checkpoints; `esker.server.snapshot_hosting` implements them.

Without an implementation a group keeps its whole log: it begins at offset 0.

Source: KIP-630; docs/design/snapshots.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from raft.driver.counters import Timings
from raft.driver.node_services import ServiceHost, StateListener
from raft.interfaces import (
    Download,
    EpochStarts,
    ReplicatedLog,
    SnapshotChunk,
    Snapshots,
    StateMachine,
)
from raft.segments.files import FileSystem
from records.types import NodeId, Offset, OffsetAndEpoch


class KeptCheckpoint(NamedTuple):
    """A local checkpoint, as input of the rule for the log's start."""

    snapshot_id: OffsetAndEpoch
    size_bytes: int
    log_bytes_after: int  # of the log, from its end on
    age_ms: int  # since it was published here, or found at the start


class FollowingReplica(NamedTuple):
    """Another replica as its leader knows it; None means that it has not fetched in this epoch."""

    node_id: NodeId
    voter: bool
    offset: Offset | None  # its log is durable below this
    last_fetch_ms: int | None


class ReadingArchive(NamedTuple):
    """An archive that reads the log, as its leader knows it."""

    node_id: NodeId  # the node id that it fetches with
    offset: Offset  # its archive is durable below this
    last_fetch_ms: int


class LogStartView(NamedTuple):
    """Input of the rule that decides where a log may start. All times are of one clock."""

    now_ms: int
    log_start_offset: Offset
    log_bytes: int  # from its start on; records below it in the first segment are not counted
    checkpoints: Sequence[KeptCheckpoint]  # oldest first
    leading_since_ms: int | None  # None: this node does not lead
    replicas: Sequence[FollowingReplica]  # all other replicas; empty unless this node leads
    leader_log_start: Offset | None  # on a follower: of the leader's last Fetch response
    readers: Sequence[ReadingArchive] = ()  # empty unless this node leads


class SnapshotOutcome(NamedTuple):
    """The outcome of a request to take a checkpoint."""

    snapshot_id: OffsetAndEpoch | None  # the newest checkpoint; None: there is none
    error: str | None = None  # why none was taken
    broken: bool = False  # the disk failed


class HostedMachine(Protocol):
    """A state machine with its host, which loads it, feeds it and takes its checkpoints."""

    @property
    def applied_offset(self) -> Offset:
        """Return the first log offset that the state machine has not applied yet."""

    @property
    def generating(self) -> bool:
        """Return whether a checkpoint is being written."""

    @property
    def generations(self) -> Timings:
        """Return a histogram of the durations of writing checkpoints since the node's start."""

    @property
    def loads(self) -> Timings:
        """Return a histogram of the durations of loading checkpoints since the node's start."""

    @property
    def checkpoint_bytes(self) -> int:
        """Return the size of the newest checkpoint in bytes, or 0 if there is none."""

    def take_now(self, done: Callable[[SnapshotOutcome], None]) -> None:
        """Take a checkpoint regardless of the policy, and call `done` with the outcome."""

    def close(self) -> None:
        """Stop applying log records and writing checkpoints."""


class SnapshotHosting(Protocol):
    """Opens checkpoints, decides how far a log may be cut, and hosts state machines."""

    def store(self, files: FileSystem, directory: Path) -> Snapshots:
        """Open the store of the checkpoints in a group's directory.

        Raises OSError.
        """

    def log_start(self, view: LogStartView) -> OffsetAndEpoch | None:
        """Return the checkpoint that the log should start at, or None to keep the log's start."""

    def host(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        node: ServiceHost,
        listener: StateListener | None,
    ) -> HostedMachine:
        """Host a state machine: load its state, apply committed records, take checkpoints."""


class NoSnapshots:
    """A store for a group without checkpoints, which installs none either."""

    newest: OffsetAndEpoch | None = None
    ids: Sequence[OffsetAndEpoch] = ()

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:  # noqa: ARG002
        """Return None, because there is no checkpoint."""
        return None

    def read(
        self,
        snapshot_id: OffsetAndEpoch,  # noqa: ARG002
        position: int,  # noqa: ARG002
        max_bytes: int,  # noqa: ARG002
    ) -> SnapshotChunk | None:
        """Return None, because there is no checkpoint."""
        return None

    def receive(self, snapshot_id: OffsetAndEpoch) -> Download:
        """Raise OSError, because this node keeps no checkpoints."""
        raise OSError(f"this node keeps no checkpoints: {snapshot_id}")

    def added(self, snapshot_id: OffsetAndEpoch) -> None:
        """Fail, because this node cannot have published a checkpoint."""
        raise AssertionError(f"a checkpoint in a store without any: {snapshot_id}")

    def epochs(self, snapshot_id: OffsetAndEpoch) -> EpochStarts:  # noqa: ARG002
        """Return no epochs, because there is no checkpoint."""
        return ()

    def drop_below(self, log_start_offset: Offset) -> None:
        """Do nothing, because there is no checkpoint."""

    def close(self) -> None:
        """Do nothing, because no checkpoint file is open."""
