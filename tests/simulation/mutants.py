"""Deliberate bugs: each is one rule of the protocol left out, and each must be found.

A simulation that is green proves little until it has been seen red. A mutant overrides one method
of a production class; nothing else of the run differs. `pinned` is a seed whose schedule kills it,
so that `make test` does so in a second; `python -m tests.simulation --mutants` looks for the first
of a range of fresh seeds that does, and says how many it took.

Not among them: a leader that takes a Fetch of another epoch for an acknowledgement. Nothing it
could break is left to break: what a Fetch says it holds is compared with the leader's own log, a
replica cannot hold records of an epoch it is not in, and only such records move the high watermark.

Source: docs/design/quorum.md; Raft paper, figure 8 (previous epochs); KIP-101 (truncation to the
high watermark).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import ReadReady, Truncate
from raft.core.elections import Elections, VoteGranting
from raft.core.events import Read
from raft.core.fetch_service import FetchService
from raft.core.fetcher import Fetcher
from raft.core.leader_log import LeaderLog
from raft.core.messages import EpochEnd, FetchRequest
from raft.core.progress import LeaderState
from raft.core.reads import Reads
from raft.core.roles import Candidate, Leader, Prospective, Unattached
from raft.segments.errors import CorruptLogError
from raft.segments.files import FileSystem
from raft.segments.log import Log, LogConfig
from raft.segments.recovery_point import LogState as RecoveryState
from raft.segments.recovery_point import RecoveryPointFile
from records.batch_writer import build_value_batch
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from tests.raft.core.mutants import with_part
from tests.simulation.checks import Checker, Ledger
from tests.simulation.cluster import Cluster, Production
from tests.simulation.disk import SimulatedDisk
from tests.simulation.machine import Machine
from tests.simulation.node import Pending, Process
from tests.simulation.plan import LEADER, Fault, Plan, draw
from tests.simulation.world import MS, SECOND


class VoteBeforeDisk(Context):
    """A vote is answered while it is still on its way to the disk."""

    def note_election_state(self) -> None:
        super().note_election_state()
        if self.gate.write_due and isinstance(self.role, Unattached):
            self.gate.is_closed = False


class LeaderIdLater(LeaderLog):
    """The first record of an epoch is appended before the disk knows that we lead it."""

    def enter(self) -> None:
        super().enter()
        assert isinstance(self._context.role, Leader)
        self.open_epoch(self._context.role)


class CampaignAgain(Elections):
    """A candidate that starts again asks for votes in the epoch it had already voted in."""

    def _campaign_if_granted(self, role: Prospective) -> None:
        context = self._context
        if role.voted == context.identity and len(role.granted) >= context.voters.majority:
            self._campaign(role.epoch, "again")
            assert isinstance(context.role, Candidate)
            self.on_own_vote_durable(context.role)  # the disk knows it already
        else:
            super()._campaign_if_granted(role)


class CountUnflushed(LeaderLog):
    """A leader counts its own copy as soon as it is appended."""

    def _own_end_offset(self) -> Offset:
        return self._context.log.end_offset


class AcknowledgeUnflushed(Discovery):
    """A follower acknowledges what it appended and has not flushed."""

    def can_fetch(self) -> bool:
        return True


class CommitByCounting(LeaderLog):
    """Records of an earlier epoch are committed as soon as a majority holds them (figure 8)."""

    def _is_committable(self, leader: LeaderState, offset: Offset) -> bool:
        return leader.is_open and offset > 0


class IgnoreDivergence(FetchService):
    """A leader takes every follower's log for a beginning of its own."""

    def _judge_fetch(self, request: FetchRequest) -> EpochEnd | OffsetAndEpoch | None:
        verdict = super()._judge_fetch(request)
        log = self._context.log
        there = log.start_offset <= request.fetch_offset <= log.end_offset
        return None if there else verdict


class TruncateUnasked(Fetcher):
    """A follower of a new leader drops what it does not know to be committed, without asking."""

    def enter(self) -> None:
        super().enter()
        log = self._context.log
        point = log.high_watermark or log.start_offset
        if point < log.end_offset:
            log.truncate(point)
            self._context.gate.emit(Truncate(point, log.generation))


class VoteWhileRecovering(VoteGranting):
    """A voter that lost its disk votes at once."""

    def _can_vote(self) -> bool:
        return True


class OldFetchConfirms(Reads):
    """A read is confirmed by Fetches that were sent before it began."""

    def _confirmed_by(self, leader: LeaderState, *_: object) -> int:
        return leader.read_round


class ReadAlone(Reads):
    """A leader answers a read without asking anybody."""

    def on_read(self, event: Read) -> None:
        leader, high_watermark = self._context.leader, self._context.log.high_watermark
        if leader is not None and leader.is_announced:
            assert high_watermark is not None
            self._context.gate.emit(ReadReady(event.token, high_watermark))
        else:
            super().on_read(event)


class BelieveAnyEpoch(Discovery):
    """Whoever names an epoch moves us there."""

    def _believes(self, peer: NodeId, epoch: Epoch) -> bool:  # noqa: ARG002
        return True


class AcknowledgeLater(Process):
    """A proposal is acknowledged once its offset is committed, whoever leads by then."""

    def _on_step_down(self, effect: Any) -> None:
        pending = list(self.pending)
        super()._on_step_down(effect)
        self.pending.extend(pending)

    def _is_acknowledged(self, pending: Pending, high_watermark: Offset) -> bool:
        return pending.end_offset <= high_watermark


class CutBelowPoint(Log):
    """Damage below the recovery point is cut off like a torn tail."""

    @classmethod
    def open(
        cls, files: FileSystem, directory: Path, config: LogConfig | None = None, **options: Any
    ) -> Log:
        with suppress(CorruptLogError):
            return super().open(files, directory, config, **options)
        state_file = RecoveryPointFile.open(files, directory)
        state_file.write(RecoveryState(Offset(0), Offset(0)))
        state_file.close()
        return super().open(files, directory, config, **options)


class FloorAboveFlushed(Log):
    """The floor is the high watermark, flushed or not."""

    def record_recovery_point(self) -> None:
        super().record_recovery_point()
        state_file, committed = self._durability._state_file, self._durability.committed_end_offset
        state_file.write(state_file.state._replace(floor=max(self.floor, committed)))


class SegmentReappears(Log):
    """Segments are deleted by a truncation, but the directory is not synced before going on."""

    def _truncate(self, keep: int, position: int, end: Offset) -> None:
        disk: Any = self._files
        disk.fsync_directory = lambda _: None
        super()._truncate(keep, position, end)
        del disk.fsync_directory


def _truncated_segments_fit_again(production: Production) -> None:
    """No schedule does this in reasonable time: what is deleted must fit what is written instead.

    Epoch 5 wrote three segments here that no majority held. The next leader's log has records of
    epoch 3 at those offsets: they end exactly where the second of our segments began when the power
    fails. If its name comes back, the log goes on with epoch 5, and looks sound.
    """
    for seed in range(8):
        disk, directory, checker = SimulatedDisk(), Path("/log"), Checker((1,))
        disk.make_directory(directory)
        config = LogConfig(segment_bytes=200)
        log = production.log.create(disk, directory, config)
        checker.ledgers[1] = Ledger()

        def append(epoch: int, log: Log = log, checker: Checker = checker) -> None:
            data = build_value_batch(
                [b"epoch %d" % epoch],
                base_offset=log.log_end_offset,
                leader_epoch=epoch,
                timestamp=0,
            )
            checker.appending(1, bytes(data))
            log.append(data)
            checker.flushed(1, log.flush())

        for epoch in (3, 5, 5, 5, 5, 5, 5):
            append(epoch)
        checker.truncated(1, log.truncate_to(Offset(1)))
        append(3)
        disk.crash(Random(seed))
        log = production.log.open(disk, directory, config)
        checker.recovered(1, log.log_start_offset, Machine.stored(log), lost_power=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug, the weather that suits it, and a schedule that kills it."""

    name: str
    production: Production
    pinned: int
    suited: Callable[[Plan], Plan] = lambda plan: plan
    story: Callable[[Production], None] | None = None  # instead of a schedule

    def run(self, seed: int, production: Production) -> int:
        """One schedule, or the story; the number of events. AssertionError: it was found."""
        if self.story is not None:
            self.story(production)
            return 0
        return Cluster(self.suited(draw(seed)), production).run_storm().events


def _short_reigns(plan: Plan) -> Plan:
    """Leaders die soon after they are elected, with records that few hold: figure 8."""
    return replace(
        plan,
        voters=3,
        observers=0,
        clock_ppm=(),
        election_timeout_ms=500,
        pause_us=4 * MS,
        ambush_on="AppendLeaderChange",
        ambush_one_in=2,
        ambush_within=60,
    )


def _two_candidates(plan: Plan) -> Plan:
    """Nobody else can win while one of two is away; it dies in the middle of its campaign."""
    return replace(
        plan,
        voters=2,
        observers=0,
        clock_ppm=(),
        faults=(),
        ambush_on="PersistElectionState",
        ambush_one_in=3,
    )


def _pauses(plan: Plan) -> Plan:
    """Leaders that sleep through an election and wake up to old messages."""
    faults = tuple(
        Fault(at_us, "pause", LEADER, 0, 5 * SECOND, 0)
        for at_us in range(3 * SECOND, 60 * SECOND, 9 * SECOND)
    )
    return replace(
        plan,
        voters=3,
        observers=0,
        clock_ppm=(),
        faults=faults,
        storm_us=20 * SECOND,
        pause_us=4 * MS,
        election_timeout_ms=500,
        ambush_one_in=0,
    )


def _strangers(plan: Plan) -> Plan:
    """Requests in every voter's name, again and again."""
    faults = tuple(
        Fault(at_us, "stranger", LEADER, 0, 0, 50 + at_us // SECOND)
        for at_us in range(2 * SECOND, 8 * SECOND, SECOND)
    )
    return replace(plan, voters=3, observers=0, clock_ppm=(), faults=faults)


MUTANTS: Final = (
    Mutant(
        name="believe any epoch",
        production=Production(quorum=with_part(BelieveAnyEpoch)),
        suited=_strangers,
        pinned=1,
    ),
    Mutant(
        name="skip the vote's persist",
        production=Production(quorum=with_part(VoteBeforeDisk)),
        pinned=3,
    ),
    Mutant(
        name="leaderId after the first append",
        production=Production(quorum=with_part(LeaderIdLater)),
        pinned=1,
    ),
    Mutant(
        name="campaign again in the same epoch",
        production=Production(quorum=with_part(CampaignAgain)),
        suited=_two_candidates,
        pinned=14,
    ),
    Mutant(
        name="count an unflushed copy",
        production=Production(quorum=with_part(CountUnflushed)),
        pinned=1,
    ),
    Mutant(
        name="acknowledge an unflushed copy",
        production=Production(quorum=with_part(AcknowledgeUnflushed)),
        pinned=3,
    ),
    Mutant(
        name="commit a previous epoch's record by counting",
        production=Production(quorum=with_part(CommitByCounting)),
        suited=_short_reigns,
        pinned=7,
    ),
    Mutant(
        name="ignore divergence",
        production=Production(quorum=with_part(IgnoreDivergence)),
        pinned=34,
    ),
    Mutant(
        name="truncate without checking",
        production=Production(quorum=with_part(TruncateUnasked)),
        pinned=21,
    ),
    Mutant(
        name="cut below the recovery point", production=Production(log=CutBelowPoint), pinned=39
    ),
    Mutant(
        name="record a floor above the flushed end",
        production=Production(log=FloorAboveFlushed),
        pinned=22,
    ),
    Mutant(
        name="let a recovering voter vote",
        production=Production(quorum=with_part(VoteWhileRecovering)),
        pinned=17,
    ),
    Mutant(
        name="answer a read from a Fetch sent before it",
        production=Production(quorum=with_part(OldFetchConfirms)),
        suited=_pauses,
        pinned=2,
    ),
    Mutant(
        name="answer a read without the round",
        production=Production(quorum=with_part(ReadAlone)),
        pinned=9,
    ),
    Mutant(
        name="forget the epoch in an acknowledgement",
        production=Production(process=AcknowledgeLater),
        pinned=9,
    ),
    Mutant(
        name="segment reappears after truncation",
        production=Production(log=SegmentReappears),
        pinned=0,
        story=_truncated_segments_fit_again,
    ),
)
"""Every bug that must be found."""
