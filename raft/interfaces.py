"""What the rooms above see of the quorum: one replicated log per group, and who leads it.

Below stand its snapshots: what the quorum needs of whoever keeps checkpoint files (`Snapshots`),
and what whoever takes and loads them needs of a state machine (`StateMachine`).

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
from typing import NamedTuple, Protocol

from records.batch import Batch
from records.batch_writer import build_value_batch
from records.compression import Buffer
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


class Draft(NamedTuple):
    """Whole encoded record batches (version 2) to append together or not at all.

    Base offset and leader epoch, which no checksum covers, are written once they are known.
    """

    parts: Sequence[Buffer]  # the bytes of each batch
    counts: Sequence[int]  # how many offsets each takes, at least 1


def draft_values(values: Sequence[Buffer], *, timestamp_ms: int) -> Draft:
    """One batch of records without keys: how metadata records are written.

    Raises:  BatchTooLargeError.

    >>> draft_values([b"one", b"two"], timestamp_ms=0).counts
    (2,)
    """
    batch = build_value_batch(values, base_offset=0, leader_epoch=0, timestamp=timestamp_ms)
    return Draft((batch,), (len(values),))


class NotLeaderError(Exception):
    """Only a leader could have answered, and this node is not, or no longer, one."""

    def __init__(self, error: int) -> None:
        super().__init__(f"not the leader (error code {int(error)})")
        self.error = error  # Kafka's code


class Ticket(Protocol):
    """Who proposed: told once, on the loop, whether its batches are in the log."""

    def __hash__(self) -> int: ...

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:
        """They are, at [base_offset, end_offset); committed once the high watermark is there."""

    def refused(self, error: int) -> None:
        """They are not, and never will be. Kafka's error code.

        6 NOT_LEADER_OR_FOLLOWER: not leading, or another epoch. 42 INVALID_REQUEST: the log ends
        elsewhere than expected. 89 THROTTLING_QUOTA_EXCEEDED: too much waits to be committed.
        """


class Watcher(Protocol):
    """Who follows a log's life; called on the loop, in order, after registering."""

    def committed(self, high_watermark: Offset) -> None:
        """Everything below (exclusive) is committed and can be read; never goes backwards."""

    def lead(self, epoch: Epoch) -> None:
        """We lead `epoch`; all committed before it, and its first record, were told before."""

    def step_down(self, epoch: Epoch) -> None:
        """We no longer lead `epoch`; what was proposed and not committed may be lost."""

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """The log now begins at this snapshot, past what was delivered: load it, then go on."""


class CommittedAsOf(NamedTuple):
    """What was committed by `at_s` is below `high_watermark`: a leader said so."""

    high_watermark: Offset
    at_s: float  # of the event loop's clock, which never steps


class ReplicatedLog(Protocol):
    """One group's log on this node. All offsets called end or watermark are exclusive."""

    @property
    def name(self) -> str:
        """`topic-partition`."""

    @property
    def leader_id(self) -> NodeId | None:
        """The leader as far as this node knows."""

    @property
    def leading_epoch(self) -> Epoch | None:
        """The epoch this node leads and may propose in; None otherwise."""

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read; what is before it is in a snapshot."""

    @property
    def end_offset(self) -> Offset:
        """The end of the log, committed or not: what a leader's next proposal should expect."""

    @property
    def high_watermark(self) -> Offset | None:
        """Everything below it is committed; None until a leader has told."""

    @property
    def committed_as_of(self) -> CommittedAsOf | None:
        """A leader's newest word on the high watermark; None if none was heard.

        Whoever has applied all of it lags behind by the time since then at most: so an idle log
        does not age, and one that is cut off from its leader does.
        """

    @property
    def snapshots(self) -> Snapshots:
        """The checkpoints of this log on this node."""

    def snapshot_taken(self, snapshot_id: OffsetAndEpoch) -> None:
        """A checkpoint of ours is durable under its final name: the log may start there one day.

        Its end is at or below the high watermark, and where a batch ends.
        """

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` from now on; first what is true already: the snapshot, the watermark."""

    def propose(
        self,
        ticket: Ticket,
        epoch: Epoch,
        draft: Draft,
        *,
        expected_end_offset: Offset | None = None,
    ) -> None:
        """Ask for a draft to be appended, whole, under the leadership of `epoch`.

        Args:  expected_end_offset: refuse if the log ends elsewhere when it is this draft's turn;
               counting the drafts proposed before it. None: wherever.
        """

    def read(self, from_offset: Offset, max_bytes: int) -> Buffer:
        """Committed batches, back to back and whole, beginning with the one at `from_offset`.

        At least one batch if there is a committed one, even if it is larger than `max_bytes`;
        nothing at the high watermark. The first batch may begin before `from_offset`.

        Raises:  ValueError below the start or above the high watermark.
        """

    def barrier(self) -> Awaitable[Offset]:
        """Linearizable read: answer from state that holds everything below the offset awaited.

        Raises:  NotLeaderError when awaited.
        """

    def resign(self) -> None:
        """Give up leadership, if we have it."""


# --- snapshots (KIP-630) ------------------------------------------------------------------------


class Piece(NamedTuple):
    """Some bytes of a checkpoint's file."""

    size_bytes: int  # of the whole file
    data: Buffer  # from the position asked for; nothing only at the file's end


class RejectedSnapshotError(Exception):
    """What a leader sent is no checkpoint, or not the one asked for: fetch all of it again."""


class Download(Protocol):
    """A checkpoint on its way from a leader. Every call may touch the disk."""

    @property
    def position(self) -> int:
        """The byte to ask for next; above 0 at first if an earlier part is gone on with."""

    def take(self, position: int, piece: Piece) -> bool:
        """Write a piece; True once the last byte is there.

        Raises:  RejectedSnapshotError if it cannot belong here (another position or size, nothing
                 before the end, too much); OSError, the part then is what it was.
        """

    def publish(self) -> None:
        """Verify the whole, make it durable, give it its final name, durably.

        Raises:  RejectedSnapshotError: its bytes were thrown away; OSError.
        """

    def keep(self) -> None:
        """Stop; what is there stays for a later `Snapshots.receive`."""

    def discard(self) -> None:
        """Stop, and throw away what is there."""


class Snapshots(Protocol):
    """One group's checkpoints on this node: the files that its log may be cut down to."""

    @property
    def newest(self) -> OffsetAndEpoch | None:
        """The id of the newest checkpoint; None if there is none (a bootstrap is none)."""

    @property
    def ids(self) -> Sequence[OffsetAndEpoch]:
        """All there are, oldest first."""

    def size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        """Of its file; None if there is no such checkpoint. Keeps nothing. Raises OSError."""

    def read(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> Piece | None:
        """Bytes to answer a FetchSnapshot with; None if there is no such checkpoint.

        Who reads one keeps it from being dropped for a while.

        Raises:  ValueError if `position` is negative or past the end; OSError.
        """

    def receive(self, snapshot_id: OffsetAndEpoch) -> Download:
        """Begin or resume a download. Raises OSError."""

    def added(self, snapshot_id: OffsetAndEpoch) -> None:
        """A checkpoint was published here, by a download or by whoever generates them."""

    def drop_below(self, log_start_offset: Offset) -> None:
        """Drop checkpoints that end below it, but not under a reader. Raises OSError."""

    def close(self) -> None:
        """The group ends here: let go of open files, and serve nothing more."""


class Frozen(Protocol):
    """A state as of one offset, which later changes do not show in."""

    def values(self) -> Iterator[Buffer]:
        """Its records, framed (`records.frame.encode_record`), in the order they are to be loaded.

        The same state gives the same bytes, on whichever replica. Iterated in short slices, between
        which the state machine goes on applying. Nothing (`b""`) says that there is nothing just
        now: come back in some milliseconds.
        """

    def close(self) -> None:
        """Nobody reads on."""


class StateMachine(Protocol):
    """What is built from a group's committed records; the same on every replica.

    Source: docs/design/state-machines.md#decide-and-apply; KIP-630, When to Snapshot (changed
    records).
    """

    @property
    def applied(self) -> OffsetAndEpoch:
        """Everything below the offset is in the state; the epoch is of the record before it."""

    @property
    def last_timestamp(self) -> int:
        """Of the last batch applied, ms since 1970; 0 if none: LastContainedLogTimestamp."""

    @property
    def changed_records(self) -> int:
        """Records, of the newest checkpoint or added since, that were replaced or deleted since.

        An addition alone is no change (KIP-630, When to Snapshot). Survives a restart, if only
        because the log after the checkpoint is applied again.
        """

    @property
    def total_records(self) -> int:
        """Records that a checkpoint of the state would hold now."""

    @property
    def checkpointable(self) -> bool:
        """May a checkpoint be taken now? Not inside an open metadata transaction."""

    def apply(self, batches: Iterable[Batch]) -> None:
        """Committed batches, in order, right after `applied`; control batches too."""

    def reset(self) -> None:
        """Forget everything: an empty state, `applied` at 0. Asked for where a state that outlived
        its process turns out to be of another history than the log."""

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Replace the state by a verified checkpoint's data batches, in slices of a few ms.

        Until the iterator is exhausted the state is nobody's to look at.
        """

    def freeze(self) -> Frozen:
        """The state as of `applied`."""

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:
        """That frozen state is durable in a checkpoint: count changed records from there."""
