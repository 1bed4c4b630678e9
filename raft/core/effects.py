"""Effects: all that a quorum member can ask of its driver.

A driver carries them out in the order given. No effect waits: work that takes time (writing the
election state, flushing, sending) is started in order, and its end is an event
(`raft.core.events`). The core has already held back everything that must wait for the disk, so a
driver adds no rules of its own: **an effect may be carried out as soon as it is emitted**.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from raft.core.fork import Fork
from raft.core.messages import Batch, FetchResponse, FetchSnapshotRequest, Request, Response
from raft.core.roles import ElectionState, Role
from raft.core.voters import ReplicaKey
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class PersistElectionState:
    """Write this durably (temporary file, fsync, rename, fsync of the directory), then report it.

    Report `ElectionStateDurable(sequence)`. Of several that wait, writing only the newest is
    enough. Until then the core sends nothing and answers no request.
    """

    sequence: int
    state: ElectionState


@dataclass(frozen=True, slots=True)
class ClearRecovering:
    """Remove the durable *recovering* mark: this voter has caught up. No event reports it."""


class Append(NamedTuple):
    """Write these batches at the end of the log, flush soon, report `AppendDurable`.

    A leader's batches get `base_offset` and `epoch` stamped; a follower's are written as they are.
    """

    batches: tuple[Batch, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Append one control batch with one LeaderChangeMessage (v0), flushed and reported as `Append`.

    The first record of an epoch; its offset is `base_offset`, and the log then ends one later.
    """

    base_offset: Offset
    epoch: Epoch
    leader_id: NodeId
    voters: tuple[NodeId, ...]
    granting_voters: tuple[NodeId, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to `end_offset` (exclusive), durably, before any later effect is carried out."""

    end_offset: Offset
    generation: int


class Send(NamedTuple):
    """Send a request, dialling if there is no connection (a failed dial: `RequestFailed`).

    A Fetch goes by the group's own connection to that peer. The core has the timeouts: a driver
    need not report that no answer came.
    """

    peer: NodeId
    request_id: int
    request: Request


class Respond(NamedTuple):
    """Answer a `Received` request, adding the endpoint of the leader named in it."""

    connection: int
    correlation: int
    response: Response


class RespondFetch(NamedTuple):
    """Answer a Fetch with log bytes from `from_offset`, below `end_offset`, whole batches only.

    At most `max_bytes`, but the first batch even if it is larger. `from_offset == end_offset`: no
    bytes. The log never ends before `end_offset` here.
    """

    connection: int
    correlation: int
    response: FetchResponse
    from_offset: Offset
    end_offset: Offset
    max_bytes: int


class ServeSnapshot(NamedTuple):
    """Answer a FetchSnapshot whose leader and epoch were checked, with bytes of the file."""

    connection: int
    correlation: int
    request: FetchSnapshotRequest


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the group's Fetch connection to this peer, if open, and dial again at once.

    Requests outstanding on it may be failed or forgotten. A refused dial is `PeerRefused`.
    """

    peer: NodeId


class SetTimer(NamedTuple):
    """Report `Tick` at `at_ms`; this replaces the timer set before."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Fetch this snapshot from the leader, then report `SnapshotFetched` (or `SnapshotFailed`).

    Report `SnapshotProgress` with each chunk. The log is untouched until `InstallSnapshot`.
    """

    leader_id: NodeId
    epoch: Epoch
    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class AbandonSnapshot:
    """Stop fetching a snapshot: another epoch began. Fetched bytes may be kept for resuming.

    A snapshot that is complete and being verified may well be published; if it is, report
    `SnapshotFetched`.
    """

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Empty the log and let it start at the snapshot's end, durably, before any later effect.

    Then have the state machine load the snapshot. Appends that follow go to the new log.
    """

    snapshot_id: OffsetAndEpoch
    generation: int


class Committed(NamedTuple):
    """Note that everything below `high_watermark` (exclusive) is committed; it never goes back."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class Lead:
    """Tell the state machine that it leads `epoch`: its LeaderChange record is committed.

    First deliver everything committed so far. Proposals are accepted from now on.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StepDown:
    """Tell the state machine, after a `Lead`, that it leads no longer: proposals may be lost."""

    epoch: Epoch


class Accepted(NamedTuple):
    """Tell a proposer that its records are in the log at [base_offset, end_offset), uncommitted."""

    token: Hashable
    epoch: Epoch
    base_offset: Offset
    end_offset: Offset


class Refused(NamedTuple):
    """Tell a proposer that its records were not appended, and never will be.

    NOT_LEADER_OR_FOLLOWER (or another epoch), INVALID_REQUEST (another end offset, or a batch
    without records), THROTTLING_QUOTA_EXCEEDED (too much waits to be committed: try later).
    """

    token: Hashable
    error: ErrorCode


class ReadReady(NamedTuple):
    """Answer the read once everything below `offset` (exclusive) is applied."""

    token: Hashable
    offset: Offset


class ReadRefused(NamedTuple):
    """Refuse the read: NOT_LEADER_OR_FOLLOWER, or THROTTLING_QUOTA_EXCEEDED if too many wait."""

    token: Hashable
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Transition:
    """Log a change of role in one line: `node= role= epoch= reason=`."""

    old: Role | None
    new: Role
    reason: str


@dataclass(frozen=True, slots=True)
class PeerFault:
    """Log and count that a peer broke the protocol; its message was ignored."""

    peer: NodeId | None
    reason: str


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Stop this group on this node, durably: a fork was found. No record of it may be served.

    Source: docs/design/forks.md#a-group-in-doubt.
    """

    fork: Fork


@dataclass(frozen=True, slots=True)
class ForkReported:
    """Log and count that a replica's log parts from ours below what it knew to be committed.

    This node leads, and goes on leading.
    """

    replica: ReplicaKey
    floor: Offset  # the replica's
    parts_at: Offset  # at this offset, or before


@dataclass(frozen=True, slots=True)
class ShutdownReady:
    """Note that the process may stop: leadership is handed over, or no voter can take it."""


Message: TypeAlias = Send | Respond | RespondFetch | ServeSnapshot | Reconnect
"""Effects that other nodes notice; the gate holds them until the election state is durable."""

Effect: TypeAlias = (
    PersistElectionState
    | ClearRecovering
    | Append
    | AppendLeaderChange
    | Truncate
    | Send
    | Respond
    | RespondFetch
    | ServeSnapshot
    | Reconnect
    | SetTimer
    | FetchSnapshot
    | AbandonSnapshot
    | InstallSnapshot
    | Committed
    | Lead
    | StepDown
    | Accepted
    | Refused
    | ReadReady
    | ReadRefused
    | Transition
    | PeerFault
    | InDoubt
    | ForkReported
    | ShutdownReady
)
