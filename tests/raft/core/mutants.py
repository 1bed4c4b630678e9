"""Mutants: deliberate mistakes, each a small change to one decision of the core.

The core keeps its decisions in small methods; a mutant overrides one of them in the class that has
it, and `with_part` builds a `Quorum` with that class. The simulator's mutants do the same.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final
from unittest.mock import patch

import raft.core.context
import raft.core.quorum
from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import InDoubt
from raft.core.elections import Elections, VoteGranting
from raft.core.epoch_budget import BUDGET
from raft.core.events import SnapshotFetched
from raft.core.fetch_service import FetchService
from raft.core.fetcher import Fetcher
from raft.core.fork import Fork
from raft.core.forks import Forks
from raft.core.gate import Gate
from raft.core.leader_log import LeaderLog
from raft.core.leadership import Leadership
from raft.core.log import LogState
from raft.core.messages import (
    NO_FLOOR,
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
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


def with_part(part: type, *, checked: bool = True) -> type[Quorum]:
    """Return a `Quorum` that is built with `part` in place of its base class.

    Args:  checked: whether it asserts its invariants; if not, the transcript alone finds it.
    """
    replaced = part.__base__
    assert replaced is not None
    new = [name for name in vars(part) if not (name.startswith("__") or hasattr(replaced, name))]
    assert not new, f"{part.__name__} overrides what {replaced.__name__} does not have: {new}"

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
    """The gate lets messages out before the election state is on disk."""

    def close(self) -> None:
        self.write_due = True


class LeaderIdAfterTheFirstAppend(LeaderLog):
    """A leader opens its epoch on winning it, before that is on disk."""

    def enter(self) -> None:
        super().enter()
        assert isinstance(self._context.role, Leader)
        self.open_epoch(self._context.role)


class CampaignsAgainInTheSameEpoch(Context):
    """A restarted candidate is Candidate again."""

    def restored_role(self, election: ElectionState) -> Role:
        if election.voted == self.identity and election.leader_id is None:
            return Candidate(
                epoch=election.epoch, granted=frozenset({self.node_id}), rejected=frozenset()
            )
        return super().restored_role(election)


class CountsAnUnflushedCopy(LeaderLog):
    """A leader counts its own unflushed records."""

    def _own_end_offset(self) -> Offset:
        return self._context.log.end_offset


class AcknowledgesUnflushedBytes(Discovery):
    """A follower fetches, and so acknowledges, while it flushes."""

    def can_fetch(self) -> bool:
        return True


class CommitsAPreviousEpochByCounting(LeaderLog):
    """A leader commits records of an earlier epoch by counting. Source: Raft paper, figure 8."""

    def _is_committable(self, leader: LeaderState, offset: Offset) -> bool:
        return leader.is_open and offset > 0


class IgnoresDivergence(FetchService):
    """A leader does not compare the follower's last epoch with its own log."""

    def _judge_fetch(self, request: FetchRequest) -> EpochEnd | OffsetAndEpoch | None:
        verdict = super()._judge_fetch(request)
        return None if isinstance(verdict, EpochEnd) else verdict


class TruncatesWithoutChecking(Fetcher):
    """A follower truncates to the end of the leader's epoch without comparing its own log."""

    def _truncation_point(self, diverging: EpochEnd) -> Offset:
        return diverging.end_offset


class LetsARecoveringVoterVote(VoteGranting):
    """A voter that lost its disk votes."""

    def _can_vote(self) -> bool:
        return True


class ReadsByAFetchSentBefore(Reads):
    """Any Fetch confirms a read, even one sent before the read began."""

    def _confirmed_by(self, leader: LeaderState, *_: object) -> int:
        return leader.read_round


class ReadsWithoutTheRound(Reads):
    """A leader answers reads without confirmation."""

    def _confirmed_round(self, leader: LeaderState) -> int:
        return leader.read_round


class ForgetsTheEpochInAnAcknowledgement(FetchService):
    """A leader accepts a Fetch of any epoch."""

    def _leader_only_error(self, epoch: Epoch) -> ErrorCode:  # noqa: ARG002
        return super()._leader_only_error(self._context.epoch)


class LeadsWithoutAMajority(Leadership):
    """A leader without followers never resigns."""

    def check_quorum(self) -> None:
        """Do nothing."""


class FollowsBeforeItAskedAround(Recovery):
    """A voter that lost its disk follows the first leader it finds, deposed or not."""

    def has_current_epoch(self) -> bool:
        return True


class NamesEpochsItHasForgotten(FetchService):
    """A voter that lost its disk names its epoch to another one."""

    def describe(self, request: DescribeQuorumRequest) -> Response:
        recovering, self._context.recovering = self._context.recovering, False
        response = super().describe(request)
        self._context.recovering = recovering
        return response


class VotesByTheLog(VoteGranting):
    """Votes compare the records of the logs and ignore a newer snapshot."""

    def log_position(self) -> tuple[Epoch, Offset]:
        return super().log_position() if self._context.log.epochs else (Epoch(0), Offset(0))


class ForgetsALateSnapshot(SnapshotInstallation):
    """A snapshot that arrives after its epoch is not installed."""

    def on_fetched(self, event: SnapshotFetched) -> None:
        if self._context.follower.fetching_snapshot == event.snapshot_id:
            super().on_fetched(event)


class TakesItsLogAsItIs(SnapshotInstallation):
    """A snapshot that a crash left published but not installed is ignored."""

    def validate(self) -> None:
        """Do nothing."""


class TakesAnySnapshotForItsOwn(FetchService):
    """A leader lets a replica continue at its log start without comparing the epoch before."""

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
    """A candidate begins an epoch that the wire cannot carry."""

    def _campaign_if_granted(self, role: Prospective) -> None:
        if len(role.granted) >= self._context.voters.majority:
            self._campaign(Epoch(role.epoch + 1), "majority of pre-votes")


class WaitsForAFrozenVoter(Elections):
    """A candidate of a split vote waits for the last voter until its election timeout."""

    def _shorten_candidacy(self, role: Candidate) -> None:
        """Change nothing."""


class HasNoFloor(LogState):
    """What was known to be committed is forgotten with the process."""

    __slots__ = ()

    @property
    def floor(self) -> Offset:
        return NO_FLOOR


class CutsInSilence(Forks):
    """A leader's wish is carried out, whatever was known to be committed."""

    def least_end_offset(self) -> Offset:
        return NO_FLOOR


class DoubtsAndGoesOn(Forks):
    """A fork is reported, and the member follows on."""

    def enter_doubt(self, fork: Fork) -> None:
        self._context.gate.emit(InDoubt(fork))


class KeepsItsDoubtToItself(Forks):
    """The voters are not told of the fork."""

    def tell(self) -> None:
        pass


class VotesBelowTheFloor(VoteGranting):
    """The last epoch alone decides, whatever the candidate lacks."""

    def _least_end_offset(self) -> Offset:
        return NO_FLOOR


class ErasesTheEvidence(Forks):
    """A snapshot is installed over committed records that it does not have."""

    def of_snapshot(self, *_: Any, **__: Any) -> Fork | None:
        return None


def with_log(part: type[LogState]) -> type[Quorum]:
    """Return a `Quorum` whose log is of another class."""

    class Mutant(Quorum):
        def __init__(self, *, log: LogState, **settings: Any) -> None:
            log.__class__ = part
            super().__init__(log=log, **settings)

    Mutant.__name__ = part.__name__
    return Mutant


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
    with_part(WaitsForAFrozenVoter): "split_vote",
    with_log(HasNoFloor): "forks",
    with_part(CutsInSilence): "forks",
    with_part(DoubtsAndGoesOn): "forks",
    with_part(KeepsItsDoubtToItself): "forks",
    with_part(VotesBelowTheFloor): "forks",
    with_part(ErasesTheEvidence): "forks_snapshot",
}
"""Each mutant, with the transcript that pins the rule it breaks."""
