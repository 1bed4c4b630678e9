"""The changing accounts of a role: a follower's about its leader, a leader's about its replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

from raft.core.messages import FetchResponse, ReplicaState
from raft.core.voters import ReplicaKey
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


class FollowerBook:
    """What a follower keeps about its leader; begun anew with each leader."""

    __slots__ = (
        "catch_up_offset",
        "fetching_snapshot",
        "hears_leader",
        "leader_lost",
        "snapshot_complete",
        "snapshot_failures",
        "spent_vote_due",
    )

    def __init__(self) -> None:
        self.hears_leader = False  # it answered a Fetch, and was not lost since
        self.leader_lost = False  # and we may not campaign: ask around
        self.fetching_snapshot: OffsetAndEpoch | None = None
        self.snapshot_complete = (
            False  # it is all here, and being verified: the leader owes nothing
        )
        self.snapshot_failures = 0  # in a row
        self.catch_up_offset: Offset | None = None  # recovering: the log end the leader had
        self.spent_vote_due = False  # recovering: our vote in this epoch is on its way to the disk


class ReplicaProgress:
    """One replica as its Fetches show it; begun empty with every epoch.

    `answered_round` is the read round that was current when a Fetch was last answered on
    `answered_connection`; the next Fetch on that connection was sent after it, and confirms it.
    """

    __slots__ = (
        "_leader_end_offset",
        "answered_connection",
        "answered_round",
        "begin_acked_ms",
        "confirmed_round",
        "end_offset",
        "key",
        "last_caught_up_ms",
        "last_fetch_ms",
    )

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.end_offset: Offset | None = None  # exclusive; what it holds on disk
        self.last_fetch_ms: int | None = None
        self.last_caught_up_ms: int | None = None
        self.begin_acked_ms: int | None = None
        self.answered_connection = -1
        self.answered_round = -1
        self.confirmed_round = -1
        self._leader_end_offset: Offset | None = None  # at its last Fetch

    @property
    def last_heard_ms(self) -> int | None:
        """When it last fetched or acknowledged our BeginQuorumEpoch; None if never."""
        heard = (self.last_fetch_ms, self.begin_acked_ms)
        return max((at_ms for at_ms in heard if at_ms is not None), default=None)

    def acknowledge(self, end_offset: Offset, leader_end_offset: Offset, now_ms: int) -> None:
        """A Fetch arrived. It is caught up as of the last Fetch that it has now overtaken."""
        if end_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif self._leader_end_offset is not None and end_offset >= self._leader_end_offset:
            self.last_caught_up_ms = self.last_fetch_ms
        self.end_offset = end_offset
        self._leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def state(self) -> ReplicaState:
        """For DescribeQuorum."""
        return ReplicaState(self.key, self.end_offset, self.last_fetch_ms, self.last_caught_up_ms)


class ParkedFetch(NamedTuple):
    """A Fetch that waits at the end of the log for something new."""

    connection: int
    correlation: int
    replica: ReplicaProgress
    fetch_offset: Offset
    max_bytes: int
    high_watermark: Offset  # what the replica knows; 0 if nothing
    deadline_ms: int


class WaitingRead(NamedTuple):
    """A read that waits until a majority has confirmed us after `round` began."""

    token: Hashable
    round: int
    offset: Offset  # the high watermark when it was asked


class LeaderBook:
    """A leader's own accounts; thrown away when it leads no more."""

    __slots__ = (
        "announced",
        "epoch",
        "observers",
        "opened",
        "parked",
        "plain_answer",
        "read_round",
        "reads",
        "round_used",
        "since_ms",
        "start_offset",
        "uncommitted",
        "uncommitted_bytes",
        "voters",
    )

    def __init__(self, epoch: Epoch, start_offset: Offset, now_ms: int) -> None:
        self.epoch = epoch
        self.start_offset = start_offset  # of the LeaderChange record, the epoch's first
        self.since_ms = now_ms
        self.opened = False  # our leadership is durable, and LeaderChange appended
        self.announced = False  # LeaderChange is committed; `Lead` was emitted
        self.voters: dict[NodeId, ReplicaProgress] = {}  # the others
        self.observers: dict[ReplicaKey, ReplicaProgress] = {}
        self.parked: dict[int, ParkedFetch] = {}  # by connection: one each
        self.plain_answer: FetchResponse | None = None
        self.uncommitted: deque[tuple[Offset, int]] = deque()  # (end offset, bytes)
        self.uncommitted_bytes = 0
        self.reads: list[WaitingRead] = []
        self.read_round = 0
        self.round_used = False  # an answer was given in this round: a new read needs a new one

    def charge(self, end_offset: Offset, size_bytes: int) -> None:
        """These bytes wait to be committed."""
        self.uncommitted.append((end_offset, size_bytes))
        self.uncommitted_bytes += size_bytes

    def release(self, high_watermark: Offset) -> None:
        """Everything below is committed."""
        uncommitted = self.uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            self.uncommitted_bytes -= uncommitted.popleft()[1]
