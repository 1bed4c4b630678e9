"""The interface of the quorum to the code above it: one replicated log per group.

Below stand its snapshots: the interface to the store of checkpoint files that the quorum calls
(`Snapshots`), and the interface to a state machine that the host of checkpoints calls
(`StateMachine`).

A state machine *decides* on the leader and *applies* everywhere. It drafts batches, proposes them
under the epoch it leads and the log end it decided against, and hears later, like every replica,
what was committed. It is told that it leads only when its epoch's first record is committed and
everything before it was delivered, so it may decide at once
(docs/design/state-machines.md#a-new-leader-decides-nothing).

Surprises. Proposing is no function call that returns an offset: proposals of one turn of the event
loop travel together, and a `Ticket` is told the outcome. *Accepted is not committed*: whatever is
said to the outside waits until the high watermark reaches the end of what was accepted. And when
leadership is lost, what was accepted and not committed has an unknown outcome.

All calls and all callbacks are made on one thread: the event loop's.

Source: docs/design/state-machines.md#a-new-leader-decides-nothing; upstream's RaftClient and
RaftClient.Listener, whose contract this is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from records.batch import Batch
from records.batch_writer import build_value_batch
from records.compression import Buffer, Compression
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


class Draft(NamedTuple):
    """Whole encoded record batches (version 2) to append together or not at all.

    Base offset and leader epoch, which no checksum covers, are written once they are known.
    """

    parts: Sequence[Buffer]  # the bytes of each batch
    counts: Sequence[int]  # how many offsets each takes, at least 1


def draft_values(
    values: Sequence[Buffer], *, timestamp_ms: int, compression: Compression = Compression.NONE
) -> Draft:
    """Encode `values` as one batch of keyless records, which is the form of metadata records.

    Raises:  BatchTooLargeError.

    >>> draft_values([b"one", b"two"], timestamp_ms=0).counts
    (2,)
    """
    batch = build_value_batch(
        values,
        base_offset=0,
        leader_epoch=0,
        timestamp=timestamp_ms,
        compression=compression,
    )
    return Draft((batch,), (len(values),))


class NotLeaderError(Exception):
    """This node does not lead the group, or no longer; only a leader can answer."""

    def __init__(self, error: int) -> None:
        super().__init__(f"not the leader (error code {int(error)})")
        self.error = error  # Kafka's code


class Ticket(Protocol):
    """The proposer of a draft. It is notified once, on the loop, of the proposal's outcome."""

    def __hash__(self) -> int: ...

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:
        """Record that the proposed batches were appended to the log at [base_offset, end_offset).

        The batches are committed once the high watermark is at `end_offset`.
        """

    def refused(self, error: int) -> None:
        """Record that the proposed batches were finally refused with Kafka's error code `error`.

        6 NOT_LEADER_OR_FOLLOWER: not leading, or another epoch. 42 INVALID_REQUEST: the log ends
        elsewhere than expected. 89 THROTTLING_QUOTA_EXCEEDED: too much waits to be committed.
        """


class Watcher(Protocol):
    """Follows a log; its methods are called on the loop, in order, after registering."""

    def committed(self, high_watermark: Offset) -> None:
        """React to the commit of all records below `high_watermark`, which can now be read.

        The high watermark never moves back.
        """

    def lead(self, epoch: Epoch) -> None:
        """React to this node's leadership of `epoch`, whose first record is already committed."""

    def step_down(self, epoch: Epoch) -> None:
        """React to the end of leadership of `epoch`, which may lose uncommitted proposals."""

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """React to a log that now starts at this snapshot's end, by loading the snapshot."""


class Degradation(NamedTuple):
    """A fault that a node notices about itself and tells in `/health`."""

    name: str  # of the kind of fault; alerts rely on it
    reason: str  # one sentence with the place and the fault
    unready: bool = True  # the node cannot do its work meanwhile


class CommittedAsOf(NamedTuple):
    """A leader's statement that everything committed by `at_s` is below `high_watermark`."""

    high_watermark: Offset
    at_s: float  # of the event loop's clock, which never steps


class VoterClocks(NamedTuple):
    """The wall clocks of a log's voters, as the leader knows them from their Fetches."""

    voters: int  # all, this node included
    ahead_ms: tuple[int, ...]  # of this node's wall clock: of other voters that fetched lately


class ReplicatedLog(Protocol):
    """One group's log on this node. All offsets called end or watermark are exclusive."""

    @property
    def name(self) -> str:
        """Return the name of the log, `topic-partition`."""

    @property
    def leader_id(self) -> NodeId | None:
        """Return the id of the leader, or None if this node does not know the leader."""

    @property
    def leading_epoch(self) -> Epoch | None:
        """Return the epoch that this node leads and may propose in, or None."""

    @property
    def start_offset(self) -> Offset:
        """Return the first offset that can be read; a snapshot holds the records before it."""

    @property
    def end_offset(self) -> Offset:
        """Return the end offset of the log, including records that are not committed."""

    @property
    def high_watermark(self) -> Offset | None:
        """Return the exclusive high watermark, or None while it is unknown."""

    @property
    def committed_as_of(self) -> CommittedAsOf | None:
        """Return the newest known high watermark, and the last time it was known to be current.

        Whoever has applied all of it lags behind by the time since then at most: so an idle log
        does not age, and one that is cut off from its leader does.
        """

    @property
    def voter_clocks(self) -> VoterClocks:
        """Return how many ms each other voter's wall clock is ahead of this node's clock."""

    @property
    def in_doubt(self) -> bool:
        """Return whether a fork of this log was found, so that this node must not serve it."""

    def epoch_before(self, offset: Offset) -> Epoch | None:
        """Return the epoch of the record before `offset`, committed or not.

        None if the log, on this node, neither holds that record nor begins right after it.
        """

    def epochs_below(self, offset: Offset) -> EpochStarts:
        """Return the newest epochs of the records below `offset`, at most `MAX_EPOCHS` epochs."""

    def report_fork(self, applied: OffsetAndEpoch, log_epoch: Epoch) -> None:
        """Report that log and state differ: the log has `log_epoch` at the state's last record.

        Args:  applied: where a state of committed records ends, and its last epoch.
               log_epoch: the epoch that the log has there.
        """

    @property
    def snapshots(self) -> Snapshots:
        """Return the checkpoints of this log on this node."""

    def snapshot_taken(self, snapshot_id: OffsetAndEpoch) -> None:
        """Register a durable local checkpoint, so that the log may later start at its end.

        Its end is at or below the high watermark, and where a batch ends.
        """

    def watch(self, watcher: Watcher) -> None:
        """Register a watcher, which first receives the current snapshot and high watermark."""

    def propose(
        self,
        ticket: Ticket,
        epoch: Epoch,
        draft: Draft,
        *,
        expected_end_offset: Offset | None = None,
    ) -> None:
        """Propose a draft (batches without offsets), to be appended if this node leads `epoch`.

        Args:  expected_end_offset: refuse if the log ends elsewhere when it is this draft's turn;
               counting the drafts proposed before it. None: wherever.
        """

    def read(self, from_offset: Offset, max_bytes: int) -> Buffer:
        """Return committed batches as bytes, beginning with the batch that holds `from_offset`.

        At least one batch if there is a committed one, even if it is larger than `max_bytes`;
        nothing at the high watermark. The first batch may begin before `from_offset`.

        Raises:  ValueError below the start or above the high watermark.
        """

    def barrier(self) -> Awaitable[Offset]:
        """Return an awaitable of the offset that must be applied before a linearizable read.

        Raises:  NotLeaderError when awaited.
        """

    def resign(self) -> None:
        """Resign the leadership if this node leads."""


# --- snapshots (KIP-630) ------------------------------------------------------------------------


EpochStarts: TypeAlias = Sequence[tuple[Epoch, Offset]]
"""Epochs of a log and the offset of the first record of each, oldest first."""

MAX_EPOCHS: Final = 256
"""Number of epochs, the newest ones, that a checkpoint names: 3 KB."""


class SnapshotChunk(NamedTuple):
    """Some bytes of a checkpoint's file."""

    size_bytes: int  # of the whole file
    data: Buffer  # from the position asked for; nothing only at the file's end


class RejectedSnapshotError(Exception):
    """The leader's bytes are no checkpoint, or not the requested one: fetch all of it again."""


class Download(Protocol):
    """The download of a checkpoint from a leader. Every call may touch the disk."""

    @property
    def position(self) -> int:
        """Return the position of the next byte to request, above 0 in a resumed download."""

    def take(self, position: int, piece: SnapshotChunk) -> bool:
        """Write a chunk of the checkpoint, and return True once the last byte is written.

        Raises:  RejectedSnapshotError if it cannot belong here (another position or size, nothing
                 before the end, too much); OSError, the part then is what it was.
        """

    def publish(self) -> EpochStarts:
        """Verify the whole downloaded file, and rename the file durably to its final name.

        Returns: the epochs that it names.
        Raises:  RejectedSnapshotError: its bytes were thrown away; OSError.
        """

    def keep(self) -> None:
        """Stop the download, and keep the partial file for a later `Snapshots.receive`."""

    def discard(self) -> None:
        """Stop the download, and delete the partial file."""


class Snapshots(Protocol):
    """One group's checkpoints on this node; its log may start at any of them."""

    @property
    def newest(self) -> OffsetAndEpoch | None:
        """Return the id of the newest checkpoint, except bootstrap ones, or None without one."""

    @property
    def ids(self) -> Sequence[OffsetAndEpoch]:
        """Return the ids of all checkpoints, oldest first."""

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        """Return the size of a checkpoint in bytes, or None if it does not exist.

        Raises OSError.
        """

    def read(
        self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
    ) -> SnapshotChunk | None:
        """Return a checkpoint's bytes for a FetchSnapshot, or None for an unknown checkpoint.

        Who reads one keeps it from being dropped for a while.

        Raises:  ValueError if `position` is negative or past the end; OSError.
        """

    def receive(self, snapshot_id: OffsetAndEpoch) -> Download:
        """Begin or resume the download of a checkpoint.

        Raises OSError.
        """

    def added(self, snapshot_id: OffsetAndEpoch) -> None:
        """Register a checkpoint that was published by a download or by this node itself."""

    def epochs(self, snapshot_id: OffsetAndEpoch) -> EpochStarts:
        """Return the epochs in a checkpoint's header, or none if the checkpoint is damaged.

        Raises:  OSError.
        """

    def drop_below(self, log_start_offset: Offset) -> None:
        """Drop checkpoints that end below `log_start_offset` and are not being read.

        Raises OSError.
        """

    def close(self) -> None:
        """Close the open checkpoint files, because the group has ended."""


class Frozen(Protocol):
    """A state as of one offset; later changes do not show in it."""

    def values(self) -> Iterator[Buffer]:
        """Yield the frozen state's encoded records, in an order that is valid for `load`.

        The same state gives the same bytes, on whichever replica. Iterated in short slices, between
        which the state machine goes on applying. Nothing (`b""`) says that there is nothing just
        now: come back in some milliseconds.
        """

    def close(self) -> None:
        """Stop reading the frozen state."""


class StateMachine(Protocol):
    """State built from a group's committed records; the same on every replica.

    Source: docs/design/state-machines.md#decide-and-apply; KIP-630, When to Snapshot (changed
    records).
    """

    @property
    def applied(self) -> OffsetAndEpoch:
        """Return the offset after the last applied record, and that record's epoch."""

    @property
    def last_timestamp(self) -> int:
        """Return the timestamp in ms of the last applied batch, or 0 if no batch was applied."""

    @property
    def changed_records(self) -> int:
        """Return how many records were replaced or deleted since the newest checkpoint.

        An addition alone is no change (KIP-630, When to Snapshot). Survives a restart, if only
        because the log after the checkpoint is applied again.
        """

    @property
    def total_records(self) -> int:
        """Return how many records a checkpoint of the state would hold now."""

    @property
    def checkpointable(self) -> bool:
        """Return whether a checkpoint may be taken now, outside of a metadata transaction."""

    def apply(self, batches: Iterable[Batch]) -> None:
        """Apply committed batches in order, including control batches, to the state."""

    def reset(self) -> None:
        """Empty the state and set the applied offset to 0.

        Called where a state that outlived its process cannot be compared with the log any more.
        """

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Replace the state by a checkpoint's batches, yielding control every few milliseconds.

        Until the iterator is exhausted no other code may read the state.
        """

    def freeze(self) -> Frozen:
        """Return a frozen copy of the state as of `applied`, which later changes do not affect."""

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:
        """Subtract the changes in a new checkpoint from the number of changed records."""
