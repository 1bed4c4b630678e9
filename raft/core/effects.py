"""Effects: all that a quorum member can ask of the world.

A driver carries them out in the order given. Nothing here waits: what takes time (writing the
election state, flushing, sending) is started in order and its end is an event
(`raft.core.events`). The core has already held back whatever must wait for the disk, so a driver
adds no rules of its own: **what is emitted may be done now**.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from raft.core.errors import ErrorCode
from raft.core.messages import Batch, FetchResponse, FetchSnapshotRequest, Request, Response
from raft.core.roles import ElectionState, Role
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class PersistElectionState:
    """Write this durably (temporary file, fsync, rename, fsync of the directory), then report it.

    Report `ElectionStateDurable(sequence)`. Of several that wait, writing only the newest is
    enough. Until then the core sends nothing and answers nobody.
    """

    sequence: int
    state: ElectionState


@dataclass(frozen=True, slots=True)
class ClearRecovering:
    """Remove the durable *recovering* mark: this voter has caught up. No event answers it."""


class Append(NamedTuple):
    """Write these batches at the end of the log, flush soon, report `AppendDurable`.

    A leader's batches get `base_offset` and `epoch` stamped; a follower's are written as they are.
    """

    batches: tuple[Batch, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Write one control batch with one LeaderChangeMessage (v0) at the end of the log; as `Append`.

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

    Fetch goes by the group's own connection to that peer. The core keeps the time: no answer is
    fine too.
    """

    peer: NodeId
    request_id: int
    request: Request


class Respond(NamedTuple):
    """Answer a `Received` request; the driver adds the endpoint of the leader named in it."""

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
    """Answer a FetchSnapshot that is in order as far as the quorum goes (leader, epoch)."""

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
    """Send a `Tick` at `at_ms`; replaces the timer set before. There is only one."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Fetch this snapshot from the leader, then report `SnapshotFetched` (or `SnapshotFailed`).

    Report `SnapshotProgress` with each piece. The log is untouched until `InstallSnapshot`.
    """

    leader_id: NodeId
    epoch: Epoch
    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class AbandonSnapshot:
    """Stop fetching a snapshot: another epoch began. What was fetched may be kept for resuming.

    One that is complete and being verified may well be published; if it is, `SnapshotFetched` must
    tell.
    """

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Empty the log, let it start at the snapshot's end, durably, before any later effect.

    Then have the state machine load the snapshot. Appends that follow go to the new log.
    """

    snapshot_id: OffsetAndEpoch
    generation: int


class Committed(NamedTuple):
    """Everything below `high_watermark` (exclusive) is committed; never goes backwards."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class Lead:
    """We lead `epoch`, and our LeaderChange record is committed: proposals are accepted from now.

    Deliver everything committed so far to the state machine first, then tell it.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StepDown:
    """We no longer lead `epoch` (sent only after a `Lead`): what was proposed may be lost."""

    epoch: Epoch


class Accepted(NamedTuple):
    """The proposal is in the log at [base_offset, end_offset) of `epoch`; not yet committed."""

    token: Hashable
    epoch: Epoch
    base_offset: Offset
    end_offset: Offset


class Refused(NamedTuple):
    """The proposal was not appended, and never will be.

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
    """We are not (or no longer) a leader who may answer: NOT_LEADER_OR_FOLLOWER.

    Or too many reads wait already: THROTTLING_QUOTA_EXCEEDED.
    """

    token: Hashable
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Transition:
    """The role changed: one line in the log of state, `node= role= epoch= reason=`."""

    old: Role | None
    new: Role
    reason: str


@dataclass(frozen=True, slots=True)
class PeerFault:
    """A peer broke the protocol; what it said was ignored. Log and count it."""

    peer: NodeId | None
    reason: str


@dataclass(frozen=True, slots=True)
class ShutdownReady:
    """Leadership is handed over, or nobody took the hand: the process may stop."""


Message: TypeAlias = Send | Respond | RespondFetch | ServeSnapshot | Reconnect
"""What other nodes notice; it waits until the election state is durable (`raft.core.gate`)."""

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
    | ShutdownReady
)
