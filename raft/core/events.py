"""Events: all that can happen to a quorum member, and the rules that a driver keeps.

A driver owns one `Quorum` per group. It calls `step(event, now_ms)` for everything that happens and
carries out the returned effects (`raft.core.effects`) **in order**, those of one step before those
of the next. It never calls `step` from inside an effect: it queues the event. `now_ms` is any clock
that does not go backwards (milliseconds; not wall time).

Rules the core relies on:

1. The first event is `Start`, once. The constructor was given the member's past: log geometry,
   election state, recovering mark.
2. Bytes reported durable *are* durable: fdatasync has returned (for files that were renamed or
   deleted, the directory's fsync too). A flush that fails stops the process.
3. Bytes of an `Append` are readable for the following effects (`RespondFetch`), flushed or not.
   After `Append` and `AppendLeaderChange`, flush and report `AppendDurable`, soon where
   `Quorum.acknowledges`; one flush may cover many appends (group commit).
4. `AppendDurable` carries the `generation` of the newest `Append` or `Truncate` effect carried out
   when its flush *began*: a flush that began before a truncation says nothing of later bytes.
5. Responses are matched to requests by the driver: `ResponseReceived` names the `request_id` that
   `Send` carried, whatever connection or correlation id was used. Each `Send` is followed by at
   most one `ResponseReceived` or `RequestFailed`, or by none (the core has timeouts).
   When a connection is closed, its outstanding requests fail. A connection closed by
   `Reconnect` is no `PeerLost`.
6. Inbound connections have ids that are never used twice by one process. Requests of one connection
   are reported in the order they came. Its responses are written in the order of their effects.
7. Fetches of one group to one peer travel on a connection of their own; when the core says
   `Reconnect`, that connection is closed for good before another Fetch is sent, so that on one
   connection a Fetch always follows the response to the one before it (reads depend on it).
8. Bytes from outside are checked before they are events: undecodable requests, CRC errors and
   batches cut short never reach the core. A batch whose CRC is wrong is dropped with all after it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from raft.core.messages import Request, Response
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Start:
    """The node has started."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of the last `SetTimer` has come; early or superfluous ticks do no harm."""


class Received(NamedTuple):
    """A request came in; its answer is a `Respond`, `RespondFetch` or `ServeSnapshot`.

    A Fetch may stay unanswered for its `max_wait_ms`. A Fetch that is followed by another
    on its connection is answered at once.
    """

    connection: int
    correlation: int  # given back in the answer; unique among a connection's unanswered requests
    request: Request


class ResponseReceived(NamedTuple):
    """The answer to the `Send` with this id."""

    request_id: int
    response: Response


class RequestFailed(NamedTuple):
    """The `Send` with this id gets no answer: its connection closed or could not be made."""

    request_id: int


@dataclass(frozen=True, slots=True)
class UnsupportedVersion:
    """The peer does not know the version that this `Send` needs (a pre-vote needs Vote v2)."""

    request_id: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """An established connection of ours to this peer ended: reset, closed by it, or half closed.

    Requests outstanding on it are reported by `RequestFailed`, before this or after.
    """

    peer: NodeId


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """A connection to this peer was refused: no process listens there."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """An inbound connection is gone; its requests need no answer."""

    connection: int


@dataclass(frozen=True, slots=True)
class ElectionStateDurable:
    """The election state with this sequence number is on disk, and so is every earlier one."""

    sequence: int


class AppendDurable(NamedTuple):
    """The log is on disk up to `end_offset` (exclusive); `generation` as in rule 4."""

    end_offset: Offset
    generation: int


class NewBatch(NamedTuple):
    """A batch to append; its offset and epoch are stamped once it is accepted."""

    record_count: int  # offsets it takes, at least 1
    size_bytes: int
    data: object


class Proposal(NamedTuple):
    """Batches to append together or not at all.

    `epoch` is that of the proposer's `Lead`; `expected_end_offset` is the log end offset on which
    its decision is based, None if it does not matter. A mismatch is refused.
    """

    token: Hashable  # given back in `Accepted` or `Refused`
    epoch: Epoch
    expected_end_offset: Offset | None
    batches: tuple[NewBatch, ...]


class Propose(NamedTuple):
    """State machines want to append; each proposal is judged by itself, in order."""

    proposals: tuple[Proposal, ...]


class Read(NamedTuple):
    """A caller asks for a linearizable read, answered by `ReadReady` or `ReadRefused`."""

    token: Hashable


@dataclass(frozen=True, slots=True)
class Resign:
    """The node is asked to give up leadership, if it leads, and to stay in the quorum."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The node is about to stop: it hands leadership over, then emits `ShutdownReady`."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot made by this node is durable under its final name."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class StateContradicts:
    """A state that holds only committed records ends in another epoch than the log has there."""

    applied: OffsetAndEpoch  # the state's end, and the epoch of its last record
    log_epoch: Epoch  # of the log's record before that end


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Records before `log_start_offset` were deleted; a snapshot at or above it exists."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """A chunk of the snapshot being fetched came from the leader: a sign that it lives.

    `complete` with the last chunk: while the snapshot is verified and flushed, the leader's silence
    does not count.
    """

    complete: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotFetched:
    """The snapshot is complete, verified and durable under its final name, but not yet used.

    The core answers with `InstallSnapshot`, unless its log holds all that by now. The event may
    follow an `AbandonSnapshot` too: a complete snapshot counts whichever node leads.
    """

    snapshot_id: OffsetAndEpoch
    epochs: tuple[tuple[Epoch, Offset], ...] = ()  # of the log it covers, with their first offsets


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot could not be fetched from this leader; the core fetches the log again."""

    snapshot_id: OffsetAndEpoch


Event: TypeAlias = (
    Start
    | Tick
    | Received
    | ResponseReceived
    | RequestFailed
    | UnsupportedVersion
    | PeerLost
    | PeerRefused
    | ConnectionClosed
    | ElectionStateDurable
    | AppendDurable
    | Propose
    | Read
    | Resign
    | Shutdown
    | SnapshotTaken
    | StateContradicts
    | LogStartMoved
    | SnapshotProgress
    | SnapshotFetched
    | SnapshotFailed
)
