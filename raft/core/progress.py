"""A follower's knowledge of its leader, and a leader's of its replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from raft.core.effects import ForkReported
from raft.core.messages import FetchResponse, ReplicaState
from raft.core.voters import ReplicaKey
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


class LeaderWatermark(NamedTuple):
    """A leader's high watermark, and a time from which it has held.

    All that was committed by `at_ms` is below `high_watermark`. The time is that of the request,
    not of the answer: an answer may lie unread for as long as a process stands still.
    """

    high_watermark: Offset
    at_ms: int


@dataclass(slots=True, eq=False)
class FollowerState:
    """A follower's knowledge of its leader; begun anew with each leader."""

    hears_leader: bool = False  # it answered a Fetch, and was not lost since
    leader_lost: bool = False  # and we may not campaign: ask the other voters
    fetching_snapshot: OffsetAndEpoch | None = None
    snapshot_complete: bool = False  # it is being verified: the leader owes nothing
    snapshot_failures: int = 0  # in a row
    catch_up_offset: Offset | None = None  # recovering: the log end the leader had
    spent_vote_due: bool = False  # recovering: our vote in this epoch is on its way to the disk


@dataclass(slots=True, eq=False)
class ReplicaProgress:
    """A leader's knowledge of one replica, from its Fetches; begun anew with every epoch.

    `answered_round` is the read round that was current when a Fetch was last answered on
    `answered_connection`; the next Fetch on that connection was sent after it, and confirms it.
    """

    key: ReplicaKey
    end_offset: Offset | None = None  # exclusive; what it holds on disk
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    begin_acked_ms: int | None = None
    answered_connection: int = -1
    answered_round: int = -1
    confirmed_round: int = -1
    fork: ForkReported | None = None  # its log parts from ours below what it knew as committed
    _leader_end_offset: Offset | None = None  # at its last Fetch

    @property
    def last_heard_ms(self) -> int | None:
        """Return when the replica last sent a Fetch or BeginQuorumEpoch response; None if never."""
        heard = (self.last_fetch_ms, self.begin_acked_ms)
        return max((at_ms for at_ms in heard if at_ms is not None), default=None)

    def acknowledge(self, end_offset: Offset, leader_end_offset: Offset, now_ms: int) -> None:
        """Record a Fetch from `end_offset`, and the time when the replica was last caught up."""
        if end_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif self._leader_end_offset is not None and end_offset >= self._leader_end_offset:
            self.last_caught_up_ms = self.last_fetch_ms
        self.end_offset = end_offset
        self._leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def state(self) -> ReplicaState:
        """Return this replica's state in the form that DescribeQuorum reports."""
        return ReplicaState(self.key, self.end_offset, self.last_fetch_ms, self.last_caught_up_ms)


class ParkedFetch(NamedTuple):
    """A Fetch that waits at the end of the log for something new."""

    connection: int
    correlation: int
    replica: ReplicaProgress
    fetch_offset: Offset
    max_bytes: int
    high_watermark: Offset  # as the replica knows it; 0 if it knows none
    deadline_ms: int
    is_observer: bool = False  # its node is no voter, not even one that lost its disk


class WaitingRead(NamedTuple):
    """A read that waits until a majority has confirmed this leader in `round` or later."""

    token: Hashable
    round: int
    offset: Offset  # the high watermark when the read began


@dataclass(slots=True, eq=False)
class LeaderState:
    """A leader's knowledge of its replicas, and the requests that wait; for one epoch."""

    epoch: Epoch
    start_offset: Offset  # of the LeaderChange record, the epoch's first
    since_ms: int
    is_open: bool = False  # our leadership is durable, and LeaderChange appended
    is_announced: bool = False  # LeaderChange is committed, and `Lead` was emitted
    voters: dict[NodeId, ReplicaProgress] = field(default_factory=dict)  # the others
    observers: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    parked: dict[int, ParkedFetch] = field(default_factory=dict)  # by connection: one each
    data_response: FetchResponse | None = None
    uncommitted: deque[tuple[Offset, int]] = field(default_factory=deque)  # (end offset, bytes)
    uncommitted_bytes: int = 0
    reads: list[WaitingRead] = field(default_factory=list)
    read_round: int = 0
    round_used: bool = False  # a Fetch was answered in this round: a new read needs a new round

    def charge(self, end_offset: Offset, size_bytes: int) -> None:
        """Add a proposal's bytes to the uncommitted bytes until `end_offset` is committed."""
        self.uncommitted.append((end_offset, size_bytes))
        self.uncommitted_bytes += size_bytes

    def release(self, high_watermark: Offset) -> None:
        """Subtract the bytes of proposals below the high watermark from the uncommitted bytes."""
        uncommitted = self.uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            self.uncommitted_bytes -= uncommitted.popleft()[1]
