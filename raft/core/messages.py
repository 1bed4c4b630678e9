"""The messages between members of a quorum, as frozen values.

One value concerns one group (replicated partition): topic, partition, correlation ids and endpoint
lists belong to the wire and to the driver. Wire sentinels stop there too: -1 is `None` here. Every
response, refusals included, names the leader and epoch the responder knows: so a node that lags
learns which node to ask.

Only Fetch responses carry records, as `Batch` values: opaque to the core, and checked against their
CRC by the decoder.

Source: KIP-595 (Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, DescribeQuorum), KIP-996 (PreVote),
KIP-853 (replica keys), KIP-630 (FetchSnapshot), KIP-1166 (Fetch v18, high watermark).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from raft.core.voters import ReplicaKey
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

MAX_OFFSET: Final = Offset(2**63 - 1)
"""`FetchRequest.high_watermark` of a version without that field: the sender is never behind."""

NO_FLOOR: Final = Offset(0)
"""`FetchRequest.floor` of a replica that knows of no committed record."""


class Batch(NamedTuple):
    """A record batch at its final place in the log; `data` is opaque to the core.

    `end_offset` is exclusive. A leader's own batches are stamped with `base_offset` and `epoch` by
    the driver before they are written; a follower's are written as they came.
    """

    base_offset: Offset
    end_offset: Offset
    epoch: Epoch
    size_bytes: int
    data: object


class EpochEnd(NamedTuple):
    """The exclusive end of an epoch in the leader's log. Wire: DivergingEpoch."""

    epoch: Epoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """A candidate asks for a vote, or a prospective one whether it would get it. Api key 52."""

    cluster_id: str | None
    voter: ReplicaKey | None  # the voter it is addressed to; None from version 0
    candidate: ReplicaKey
    epoch: Epoch  # binding: already incremented; pre-vote: the sender's present epoch
    last_epoch: Epoch  # of the last record in its log; wire name LastOffsetEpoch
    end_offset: Offset  # exclusive, although the wire calls it LastOffset
    pre_vote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """A voter grants or refuses. Source: KIP-595, Vote."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: NodeId | None
    epoch: Epoch
    granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """A leader tells a voter that does not fetch that it leads. Api key 53."""

    cluster_id: str | None
    voter: ReplicaKey | None
    leader_id: NodeId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse:
    """A voter takes note of its leader. Source: KIP-595, BeginQuorumEpoch."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: NodeId | None
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """A leader resigns and names its successors, the most complete log first. Api key 54."""

    cluster_id: str | None
    leader_id: NodeId
    epoch: Epoch
    preferred_candidates: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    """A voter takes note that its leader resigned. Source: KIP-595, EndQuorumEpoch."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: NodeId | None
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A replica asks for the log from `fetch_offset` on, and so says that it holds all before it.

    `fetch_offset` is the acknowledgement: the sender has everything below it on disk. Api key 1.
    """

    cluster_id: str | None
    replica: ReplicaKey
    epoch: Epoch  # wire name CurrentLeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch  # of the record before fetch_offset; 0 if there is none
    high_watermark: Offset | None = None  # as the sender knows it; MAX_OFFSET before version 18
    floor: Offset = NO_FLOOR  # it holds all below, and knew that to be committed; 0: none
    max_wait_ms: int = 0
    max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """The leader answers a Fetch: records, a divergence, a snapshot to begin from, or nothing new.

    At most one of `diverging`, `snapshot_id` and `batches` is present.
    On the leader's side `batches` is empty and `RespondFetch` says which bytes go with it.
    """

    error: ErrorCode = ErrorCode.NONE
    leader_id: NodeId | None
    epoch: Epoch
    high_watermark: Offset | None = None
    log_start_offset: Offset | None = None
    diverging: EpochEnd | None = None
    snapshot_id: OffsetAndEpoch | None = None
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """A replica asks for a chunk of a snapshot, from byte `position`. Api key 59."""

    cluster_id: str | None
    replica: ReplicaKey
    epoch: Epoch
    snapshot_id: OffsetAndEpoch
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """The core refuses a FetchSnapshot; the driver answers valid ones with bytes of the file."""

    error: ErrorCode
    leader_id: NodeId | None
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumRequest:
    """A node or a tool asks the leader how far its replicas are. Api key 55."""


class ReplicaState(NamedTuple):
    """One replica as its leader sees it; times on the leader's `now_ms` clock, None if never."""

    key: ReplicaKey
    log_end_offset: Offset | None
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponse:
    """The leader describes its replicas. Source: KIP-595, DescribeQuorum; KIP-836 (timestamps)."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: NodeId | None
    epoch: Epoch
    high_watermark: Offset | None = None
    voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


Request: TypeAlias = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | DescribeQuorumRequest
)
Response: TypeAlias = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | DescribeQuorumResponse
)
