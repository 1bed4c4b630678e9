"""Deliberate mistakes, each a small change to one decision of the core.

They live in tests only: the core keeps its decisions in small methods, and a mutant overrides one
of them in the class that has it. The simulator's tests use the same way.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final
from unittest.mock import patch

import raft.core.context
import raft.core.quorum
from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.elections import Elections, VoteGranting
from raft.core.epoch_budget import BUDGET
from raft.core.errors import ErrorCode
from raft.core.events import SnapshotFetched
from raft.core.fetch_service import FetchService
from raft.core.fetcher import Fetcher
from raft.core.gate import Gate
from raft.core.leader_log import LeaderLog
from raft.core.leadership import Leadership
from raft.core.messages import (
    DescribeQuorumRequest,
    EpochEnd,
    FetchRequest,
    Response,
    VoteRequest,
    VoteResponse,
)
from raft.core.progress import LeaderState
from raft.core.quorum import Quorum
from raft.core.reads import Reads
from raft.core.recovery import Recovery
from raft.core.roles import Candidate, ElectionState, Leader, Prospective, Role, Unattached
from raft.core.snapshot_installation import SnapshotInstallation
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


def with_part(part: type, *, checked: bool = True) -> type[Quorum]:
    """A `Quorum` built with `part` in place of the class that `part` derives from.

    Args:  checked: whether it checks its invariants; without, others are to notice its mistake.
    """
    replaced = part.__base__
    assert replaced is not None

    class Mutant(Quorum):
        def __init__(self, **settings: Any) -> None:
            with ExitStack() as patches:
                for module in (raft.core.quorum, raft.core.context):
                    if getattr(module, replaced.__name__, None) is replaced:
                        patches.enter_context(patch.object(module, replaced.__name__, part))
                super().__init__(**settings)

        def _check_invariants(self) -> None:
            if checked:
                super()._check_invariants()

    Mutant.__name__ = part.__name__
    return Mutant


class SkipsTheVotesPersist(Gate):
    """Answers before the election state is on disk."""

    def close(self) -> None:
        self.write_due = True


class LeaderIdAfterTheFirstAppend(LeaderLog):
    """Opens its epoch on winning it, while the disk knows nothing of it yet."""

    def enter(self) -> None:
        super().enter()
        assert isinstance(self._context.role, Leader)
        self.open_epoch(self._context.role)


class CampaignsAgainInTheSameEpoch(Context):
    """A restarted candidate goes on where it was."""

    def restored_role(self, election: ElectionState) -> Role:
        if election.voted == self.identity and election.leader_id is None:
            return Candidate(
                epoch=election.epoch, granted=frozenset({self.node_id}), rejected=frozenset()
            )
        return super().restored_role(election)


class CountsAnUnflushedCopy(LeaderLog):
    """A leader counts what it has not flushed."""

    def _own_copy(self) -> Offset:
        return self._context.log.end_offset


class AcknowledgesUnflushedBytes(Discovery):
    """A follower fetches on, and so acknowledges, while it flushes."""

    def may_fetch(self) -> bool:
        return True


class CommitsAPreviousEpochByCounting(LeaderLog):
    """Raft paper, figure 8."""

    def _committable(self, leader: LeaderState, offset: Offset) -> bool:
        return leader.opened and offset > 0


class IgnoresDivergence(FetchService):
    """A leader takes any offset for a place in its own log."""

    def _judge_fetch(self, request: FetchRequest) -> EpochEnd | OffsetAndEpoch | None:
        verdict = super()._judge_fetch(request)
        return None if isinstance(verdict, EpochEnd) else verdict


class TruncatesWithoutChecking(Fetcher):
    """A follower cuts where the leader's epoch ends, whatever its own log says."""

    def _truncation_point(self, diverging: EpochEnd) -> Offset:
        return diverging.end_offset


class LetsARecoveringVoterVote(VoteGranting):
    """A voter that has forgotten what it promised promises again."""

    def _may_vote(self) -> bool:
        return True


class ReadsByAFetchSentBefore(Reads):
    """Any Fetch confirms a read, also one that was under way when the read began."""

    def _confirmed_by(self, leader: LeaderState, *_: object) -> int:
        return leader.read_round


class ReadsWithoutTheRound(Reads):
    """A leader takes its own word for being the leader."""

    def _confirmed_round(self, leader: LeaderState) -> int:
        return leader.read_round


class ForgetsTheEpochInAnAcknowledgement(FetchService):
    """A Fetch of any epoch counts."""

    def _leader_only_error(self, epoch: Epoch) -> ErrorCode:  # noqa: ARG002
        return super()._leader_only_error(self._context.epoch)


class LeadsWithoutAMajority(Leadership):
    """Check-quorum left out: a leader that nobody follows stays."""

    def check_quorum(self) -> None:
        """Nothing."""


class FollowsBeforeItAskedAround(Recovery):
    """A voter that lost its disk follows the first leader it meets, deposed or not."""

    def knows_the_epoch(self) -> bool:
        return True


class NamesEpochsItHasForgotten(FetchService):
    """A voter that lost its disk tells another one its epoch, as if it knew of all before."""

    def describe(self, request: DescribeQuorumRequest) -> Response:
        recovering, self._context.recovering = self._context.recovering, False
        response = super().describe(request)
        self._context.recovering = recovering
        return response


class VotesByTheLog(VoteGranting):
    """Votes are asked and given by the records of the log, although a newer snapshot is there."""

    def newest(self) -> tuple[Epoch, Offset]:
        return super().newest() if self._context.log.epochs else (Epoch(0), Offset(0))


class ForgetsALateSnapshot(SnapshotInstallation):
    """A snapshot that comes after its epoch is left lying beside the log."""

    def on_fetched(self, event: SnapshotFetched) -> None:
        if self._context.follower.fetching_snapshot == event.snapshot_id:
            super().on_fetched(event)


class TakesItsLogAsItIs(SnapshotInstallation):
    """After a crash between a snapshot's rename and the log's reset, the log's end stays."""

    def validate(self) -> None:
        """Nothing."""


class TakesAnySnapshotForItsOwn(FetchService):
    """A leader lets a replica go on behind the log's start, whatever it holds before."""

    def _judge_fetch(self, request: FetchRequest) -> EpochEnd | OffsetAndEpoch | None:
        verdict = super()._judge_fetch(request)
        behind = request.fetch_offset < self._context.log.start_offset
        return None if isinstance(verdict, OffsetAndEpoch) and not behind else verdict


class AcceptsAnyEpoch(Discovery):
    """Whoever names an epoch is believed."""

    def _believes(self, peer: NodeId, epoch: Epoch) -> bool:  # noqa: ARG002
        return True


class LimitsOnlyTheStep(Discovery):
    """An epoch is believed if it is near enough, however many such steps there were before."""

    def _believes(self, peer: NodeId, epoch: Epoch) -> bool:  # noqa: ARG002
        return epoch - self._context.epoch <= BUDGET


class NeverAsksTheNodeItself(Discovery):
    """What the budget does not cover stays unconfirmed for ever."""

    def ask_claimed(self) -> None:
        """Nothing."""


class APreVoteMovesTheEpoch(VoteGranting):
    """As Kafka has it."""

    def answer(self, request: VoteRequest) -> VoteResponse:
        if request.epoch > self._context.epoch:
            new = Unattached(epoch=request.epoch)
            self._context.become(new, f"vote request {request.epoch}")
        return super().answer(request)


class CampaignsPastTheLastEpoch(Elections):
    """The next epoch is one more, whether the wire can carry it or not."""

    def _campaign_if_welcome(self, role: Prospective) -> None:
        if len(role.granted) >= self._context.voters.majority:
            self._campaign(Epoch(role.epoch + 1), "majority of pre-votes")


MUTANTS: Final[dict[type[Quorum], str]] = {
    with_part(SkipsTheVotesPersist): "vote_durable",
    with_part(LeaderIdAfterTheFirstAppend, checked=False): "leader_durable",
    with_part(CampaignsAgainInTheSameEpoch): "candidate_restart",
    with_part(CountsAnUnflushedCopy): "replication",
    with_part(AcknowledgesUnflushedBytes): "replication",
    with_part(CommitsAPreviousEpochByCounting): "raft_figure_8",
    with_part(IgnoresDivergence): "raft_figure_7",
    with_part(TruncatesWithoutChecking): "divergence",
    with_part(LetsARecoveringVoterVote): "recovering",
    with_part(ReadsByAFetchSentBefore): "reads",
    with_part(ReadsWithoutTheRound): "reads",
    with_part(ForgetsTheEpochInAnAcknowledgement): "old_epoch",
    with_part(LeadsWithoutAMajority): "check_quorum",
    with_part(FollowsBeforeItAskedAround): "recovering_stale_leader",
    with_part(NamesEpochsItHasForgotten): "recovering_two",
    with_part(VotesByTheLog): "snapshot_votes",
    with_part(ForgetsALateSnapshot): "snapshot_late",
    with_part(TakesItsLogAsItIs, checked=False): "snapshot_start",
    with_part(TakesAnySnapshotForItsOwn): "snapshot_leader",
    with_part(AcceptsAnyEpoch): "hostile_epochs",
    with_part(LimitsOnlyTheStep): "hostile_epochs",
    with_part(NeverAsksTheNodeItself): "hostile_epochs",
    with_part(APreVoteMovesTheEpoch): "hostile_epochs",
    with_part(CampaignsPastTheLastEpoch): "hostile_epochs",
}
"""Each mutant, and the transcript that pins the rule it breaks."""
