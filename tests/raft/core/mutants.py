"""Deliberate mistakes, each a small change to one decision of the core.

They live in tests only: the core keeps its decisions in small methods, and a mutant overrides one.
The simulator's tests use the same list.
"""

from __future__ import annotations

from typing import Final

from raft.core.errors import ErrorCode
from raft.core.events import SnapshotFetched
from raft.core.messages import DescribeQuorumRequest, EpochEnd, FetchRequest
from raft.core.progress import LeaderBook
from raft.core.quorum import Quorum
from raft.core.roles import Candidate, ElectionState, Leader, Role
from records.types import Epoch, Offset, OffsetAndEpoch


class SkipsTheVotesPersist(Quorum):
    """Answers before the election state is on disk."""

    def _must_wait(self) -> bool:
        return False


class LeaderIdAfterTheFirstAppend(Quorum):
    """Opens its epoch on winning it, while the disk knows nothing of it yet."""

    def _enter_leader(self) -> None:
        super()._enter_leader()
        assert isinstance(self.role, Leader)
        self._open_epoch(self.role)

    def _check_invariants(self) -> None:
        """It would stop itself; here others are to notice."""


class CampaignsAgainInTheSameEpoch(Quorum):
    """A restarted candidate goes on where it was."""

    def _restored_role(self, election: ElectionState) -> Role:
        if election.voted == self.identity and election.leader_id is None:
            return Candidate(
                epoch=election.epoch, granted=frozenset({self.node_id}), rejected=frozenset()
            )
        return super()._restored_role(election)


class CountsAnUnflushedCopy(Quorum):
    """A leader counts what it has not flushed."""

    def _own_copy(self) -> Offset:
        return self.log.end_offset


class AcknowledgesUnflushedBytes(Quorum):
    """A follower fetches on, and so acknowledges, while it flushes."""

    def _may_fetch(self) -> bool:
        return True


class CommitsAPreviousEpochByCounting(Quorum):
    """Raft paper, figure 8."""

    def _committable(self, book: LeaderBook, offset: Offset) -> bool:
        return book.opened and offset > 0


class IgnoresDivergence(Quorum):
    """A leader takes any offset for a place in its own log."""

    def _judge_fetch(self, request: FetchRequest) -> EpochEnd | OffsetAndEpoch | None:
        verdict = super()._judge_fetch(request)
        return None if isinstance(verdict, EpochEnd) else verdict


class TruncatesWithoutChecking(Quorum):
    """A follower cuts where the leader's epoch ends, whatever its own log says."""

    def _truncation_point(self, diverging: EpochEnd) -> Offset:
        return diverging.end_offset


class LetsARecoveringVoterVote(Quorum):
    """A voter that has forgotten what it promised promises again."""

    def _may_vote(self) -> bool:
        return True


class ReadsByAFetchSentBefore(Quorum):
    """Any Fetch confirms a read, also one that was under way when the read began."""

    def _confirmed_by(self, book: LeaderBook, *_: object) -> int:
        return book.read_round


class ReadsWithoutTheRound(Quorum):
    """A leader takes its own word for being the leader."""

    def _confirmed_round(self, book: LeaderBook) -> int:
        return book.read_round


class ForgetsTheEpochInAnAcknowledgement(Quorum):
    """A Fetch of any epoch counts."""

    def _leader_only_error(self, epoch: Epoch) -> ErrorCode:  # noqa: ARG002
        return super()._leader_only_error(self.epoch)


class LeadsWithoutAMajority(Quorum):
    """Check-quorum left out: a leader that nobody follows stays."""

    def _on_check_quorum(self) -> None:
        """Nothing."""


class FollowsBeforeItAskedAround(Quorum):
    """A voter that lost its disk follows the first leader it meets, deposed or not."""

    def _knows_the_epoch(self) -> bool:
        return True


class NamesEpochsItHasForgotten(Quorum):
    """A voter that lost its disk tells another one its epoch, as if it knew of all before."""

    def _on_describe(
        self, connection: int, correlation: int, request: DescribeQuorumRequest
    ) -> None:
        recovering, self.recovering = self.recovering, False
        super()._on_describe(connection, correlation, request)
        self.recovering = recovering


class VotesByTheLog(Quorum):
    """Votes are asked and given by the records of the log, although a newer snapshot is there."""

    def _newest(self) -> tuple[Epoch, Offset]:
        return super()._newest() if self.log.epochs else (Epoch(0), Offset(0))


class ForgetsALateSnapshot(Quorum):
    """A snapshot that comes after its epoch is left lying beside the log."""

    def _on_snapshot_fetched(self, event: SnapshotFetched) -> None:
        if self._following.fetching_snapshot == event.snapshot_id:
            super()._on_snapshot_fetched(event)


class TakesItsLogAsItIs(Quorum):
    """After a crash between a snapshot's rename and the log's reset, the log's end stays."""

    def _validate_snapshot(self) -> None:
        """Nothing."""

    def _check_invariants(self) -> None:
        """It would stop itself; here others are to notice."""


class TakesAnySnapshotForItsOwn(Quorum):
    """A leader lets a replica go on behind the log's start, whatever it holds before."""

    def _judge_fetch(self, request: FetchRequest) -> EpochEnd | OffsetAndEpoch | None:
        verdict = super()._judge_fetch(request)
        behind = request.fetch_offset < self.log.start_offset
        return None if isinstance(verdict, OffsetAndEpoch) and not behind else verdict


MUTANTS: Final[dict[type[Quorum], str]] = {
    SkipsTheVotesPersist: "vote_durable",
    LeaderIdAfterTheFirstAppend: "leader_durable",
    CampaignsAgainInTheSameEpoch: "candidate_restart",
    CountsAnUnflushedCopy: "replication",
    AcknowledgesUnflushedBytes: "replication",
    CommitsAPreviousEpochByCounting: "raft_figure_8",
    IgnoresDivergence: "raft_figure_7",
    TruncatesWithoutChecking: "divergence",
    LetsARecoveringVoterVote: "recovering",
    ReadsByAFetchSentBefore: "reads",
    ReadsWithoutTheRound: "reads",
    ForgetsTheEpochInAnAcknowledgement: "old_epoch",
    LeadsWithoutAMajority: "check_quorum",
    FollowsBeforeItAskedAround: "recovering_stale_leader",
    NamesEpochsItHasForgotten: "recovering_two",
    VotesByTheLog: "snapshot_votes",
    ForgetsALateSnapshot: "snapshot_late",
    TakesItsLogAsItIs: "snapshot_start",
    TakesAnySnapshotForItsOwn: "snapshot_leader",
}
"""Each mutant, and the transcript that pins the rule it breaks."""
