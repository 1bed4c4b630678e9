"""What must be true after every step, known from outside the nodes.

The checker believes no node. It keeps, for every machine, a *ledger* of what that machine's log
holds and how much of it the simulated disk has been told to keep, as a chain of checksums: the
chain at an offset names everything before it, so comparing two logs is comparing two numbers
(invariant 3, docs/design/invariants.md). After a restart the ledger is compared with the bytes that
are really there. What is committed is the first chain that any node reports, and for ever after the
only one; when it grows, the disks of a majority of intact voters must hold it (invariant 2),
whatever the nodes think they hold.

Every check costs O(1) per step or per batch.

Source: invariants 1-3 and 11 (docs/design/invariants.md); Raft paper, figure 3; KIP-595.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from raft.core.effects import Transition
from raft.core.messages import (
    BeginQuorumEpochRequest,
    DescribeQuorumResponse,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from raft.core.roles import Candidate, ElectionState, Leader, Prospective, Resigned
from records.batch import CONTROL, Batch, iter_batches
from records.kafka_errors import ErrorCode
from records.types import OffsetAndEpoch
from tests.simulation.state import StateModel

if TYPE_CHECKING:
    from tests.simulation.node import Process

HEADER_BYTES: Final = 61
MOST_EPOCHS: Final = 10_000
"""More than the elections of a schedule and what strangers may spend at each of its nodes."""


class Ledger:
    """What one machine's log holds, as the simulation knows it; offsets are exclusive ends."""

    __slots__ = ("chains", "durable_end", "ends", "epochs", "installing")

    def __init__(self, start: int = 0, chain: int = 0, epoch: int = 0) -> None:
        """Of a log that begins at `start`; what is before it is known by its chain."""
        self.ends: list[int] = [start]
        self.chains: dict[int, int] = {start: chain}
        self.epochs: dict[int, int] = {start: epoch}
        self.durable_end = start
        self.installing: int | None = None  # the log is being emptied, to begin there

    def begun_at(self, start: int) -> Ledger:
        """The beginning of the same log, or of what it is about to be replaced by."""
        assert start in self.chains, f"a log begins at {start}, which it held no record before"
        return Ledger(start, self.chains[start], self.epochs[start])

    @property
    def end(self) -> int:
        """Where the log ends, flushed or not."""
        return self.ends[-1]

    def append(self, batch: Batch) -> int:
        """One batch more; the chain that names all up to its end."""
        header = batch.header
        end = int(header.end_offset)
        assert header.base_offset == self.end, f"gap: {header} after {self.end}"
        chain = crc32c(batch.view, self.chains[self.end])
        self.ends.append(end)
        self.chains[end] = chain
        self.epochs[end] = int(header.leader_epoch)
        return chain

    def truncate(self, end: int) -> None:
        """Forget what lies at or after `end`."""
        while self.ends[-1] > end:
            last = self.ends.pop()
            del self.chains[last], self.epochs[last]
        self.durable_end = min(self.durable_end, end)


class Checker:
    """All that is known about the whole cluster, and what may never be otherwise."""

    def __init__(self, voters: Iterable[int]) -> None:
        self.voters = tuple(voters)
        self.majority = len(self.voters) // 2 + 1
        self.ledgers: dict[int, Ledger] = {}
        self.intact: dict[int, bool] = {}  # by voter: its disk was not lost, or it caught up
        self.lost: dict[int, Ledger] = {}  # by voter: what its lost disk held
        self.leaders: dict[int, int] = {}
        self.campaigns: dict[tuple[int, int], int] = {}  # (epoch, node) -> its life
        self.votes: dict[tuple[int, int], int] = {}
        self.named: dict[tuple[int, int], int] = {}  # (end offset, epoch) -> chain
        self.told_epoch: Counter[int] = Counter()
        self.committed = Ledger()
        self.committed_in: dict[int, int] = {}  # how far, by the epoch of who committed it
        self.places: dict[bytes, int] = {}  # records of a committed batch -> its base offset
        self.states = StateModel()
        self.rare: Counter[str] = Counter()

    # -- logs ------------------------------------------------------------------------------------

    def appending(self, node_id: int, data: bytes) -> None:
        """These batches are about to be written."""
        ledger = self.ledgers[node_id]
        for batch in iter_batches(data, verify_crc=False):
            chain = ledger.append(batch)
            place = (ledger.end, int(batch.header.leader_epoch))
            known = self.named.setdefault(place, chain)
            assert known == chain, (
                f"node {node_id}: two logs that agree on (end offset, epoch) {place} differ before"
                " it (invariant 3)"
            )

    def truncating(self, node_id: int, end: int) -> None:
        """The log is about to be cut: until that is done it may or may not be."""
        ledger = self.ledgers[node_id]
        ledger.durable_end = min(ledger.durable_end, end)
        self.rare["divergent truncations"] += 1

    def truncated(self, node_id: int, end: int) -> None:
        """The log was cut, durably."""
        self.ledgers[node_id].truncate(end)

    def installing(self, process: Process, snapshot_id: OffsetAndEpoch) -> None:
        """The log is about to be replaced by a checkpoint: until that is done it may be or not."""
        truth, ledger = self.committed, self.ledgers[process.node_id]
        offset, epoch = snapshot_id
        assert truth.epochs.get(offset) == epoch, (
            f"{process} installs {snapshot_id}, which is not of what is committed: there"
            f" {truth.epochs.get(offset)} is the epoch before {offset} (invariant 2)"
        )
        ledger.installing = offset
        ledger.durable_end = min(ledger.durable_end, offset)
        self.rare["snapshots installed"] += 1

    def installed(self, process: Process, snapshot_id: OffsetAndEpoch) -> None:
        """It was, durably."""
        self.ledgers[process.node_id] = self.committed.begun_at(snapshot_id.offset)

    def flushed(self, node_id: int, end: int) -> None:
        """The disk said that it keeps the log up to `end`."""
        ledger = self.ledgers[node_id]
        ledger.durable_end = max(ledger.durable_end, min(end, ledger.end))

    def damaged(self, node_id: int) -> None:
        """What this disk promised to keep is wrong somewhere: no copy there counts any more."""
        self.lost[node_id] = self.ledgers[node_id]
        self.intact[node_id] = False

    def wiped(self, node_id: int) -> None:
        """The disk was lost."""
        self.lost[node_id] = self.ledgers[node_id]
        self.ledgers[node_id] = Ledger()
        self.intact[node_id] = False
        self.told_epoch[node_id] = 0

    def caught_up(self, node_id: int) -> None:
        """A voter whose disk was lost is a voter again."""
        self.rare["voters recovered"] += 1
        self.intact[node_id] = True

    def recovered(
        self, node_id: int, start: int, batches: Iterable[Batch], *, lost_power: bool
    ) -> None:
        """After a restart: what is on the disk from `start` on, read by the production code."""
        before = self.ledgers[node_id]
        # What it replaces may have had a batch that ends there, too, and was never committed.
        truth = self.committed.chains.get(start)
        installed = before.installing == start and before.chains.get(start) != truth
        now = (self.committed if installed else before).begun_at(start)
        if installed or before.installing == start:
            before.durable_end = start
        for batch in batches:
            chain = now.append(batch)
            assert before.chains.get(now.end) == chain, (
                f"node {node_id}: after a restart its log holds, below {now.end}, what it did not"
                f" hold before: it ended at {before.end} (invariant 2)"
            )
        assert now.end >= before.durable_end, (
            f"node {node_id}: its disk kept {before.durable_end}, its log ends at {now.end}"
        )
        if lost_power and now.end < before.end:
            self.rare["crashes that lost unflushed bytes"] += 1
        now.durable_end = now.end
        self.ledgers[node_id] = now

    def floor_found(self, node_id: int, floor: int) -> None:
        """After a restart: what the disk says was committed is there, and was."""
        ledger, truth = self.ledgers[node_id], self.committed
        assert floor <= ledger.end, (
            f"node {node_id}: its floor is {floor}, its log ends at {ledger.end}: it was recorded"
            " above what was flushed"
        )
        assert floor <= truth.end, f"node {node_id}: floor {floor}, {truth.end} are committed"
        here = ledger.chains.get(floor)
        assert here is None or here == truth.chains[floor], (
            f"node {node_id}: below its floor {floor} are other records than were committed"
        )

    # -- committing ------------------------------------------------------------------------------

    def committed_to(self, node_id: int, high_watermark: int, data: Iterable[Batch]) -> None:
        """A node says that all below `high_watermark` is committed; `data` is what is news."""
        truth, ledger = self.committed, self.ledgers[node_id]
        here = ledger.chains.get(min(truth.end, high_watermark))
        expected = truth.chains.get(min(truth.end, high_watermark))
        assert here == expected, (
            f"node {node_id}: committed records differ below {min(truth.end, high_watermark)}:"
            f" high watermark {high_watermark}, its log ends at {ledger.end} (invariant 2)"
        )
        if high_watermark <= truth.end:
            return
        for batch in data:
            self._commit(batch)
        assert truth.end == high_watermark, f"{truth.end} committed, not {high_watermark}"
        assert truth.chains[truth.end] == ledger.chains[truth.end], "the log and its reader differ"
        self.committed_in[truth.epochs[truth.end]] = truth.end  # only a record of its own commits
        holders = [voter for voter in self.voters if self._holds(voter, high_watermark)]
        assert len(holders) >= self.majority, (
            f"node {node_id} calls {high_watermark} committed, but only the disks of {holders} of"
            f" {self.voters} hold it (invariants 2 and 11)"
        )

    def _commit(self, batch: Batch) -> None:
        self.committed.append(batch)
        self.states.commit(batch)
        if not batch.header.attributes & CONTROL:
            records = bytes(batch.view[HEADER_BYTES:])
            assert records not in self.places, (
                f"committed twice, at {self.places[records]} and {batch.header.base_offset}"
            )
            self.places[records] = int(batch.header.base_offset)

    def _holds(self, voter: int, end: int) -> bool:
        """On disk; or on a disk that was lost while its acknowledgement was on its way."""
        chain = self.committed.chains[end]
        ledgers = [self.ledgers[voter]]
        if not self.intact.get(voter, True):
            ledgers.append(self.lost[voter])
        return any(own.durable_end >= end and own.chains.get(end) == chain for own in ledgers)

    # -- roles -----------------------------------------------------------------------------------

    def after_step(self, process: Process) -> None:
        """Epochs and high watermarks never go backwards (invariant 1), nor epochs up by far."""
        quorum = process.quorum
        epoch, high_watermark = quorum.role.epoch, quorum.log.high_watermark
        assert epoch >= process.seen_epoch, f"{process}: epoch {process.seen_epoch} -> {epoch}"
        assert epoch <= MOST_EPOCHS, f"{process}: epoch {process.seen_epoch} -> {epoch}"
        process.seen_epoch = epoch
        if high_watermark is not None:
            assert high_watermark >= process.seen_high_watermark, (
                f"{process}: high watermark {process.seen_high_watermark} -> {high_watermark}"
            )
            process.seen_high_watermark = high_watermark

    def transition(self, process: Process, effect: Transition) -> None:
        """At most one leader per epoch, and it has all that was committed in earlier ones.

        Not in later ones: who was paused may count its last vote when others have gone on.
        """
        old, new = effect.old, effect.new
        if isinstance(new, Leader):
            first = self.leaders.setdefault(new.epoch, process.node_id)
            assert first == process.node_id, (
                f"nodes {first} and {process.node_id} both lead epoch {new.epoch} (invariant 1)"
            )
            earlier = [end for epoch, end in self.committed_in.items() if epoch < new.epoch]
            end, ledger = max(earlier, default=0), self.ledgers[process.node_id]
            assert ledger.chains.get(end) == self.committed.chains[end], (
                f"node {process.node_id} leads epoch {new.epoch} without all that is committed: its"
                f" log ends at {ledger.end}, {end} were before (invariant 2)"
            )
            self.rare["leader changes"] += 1
        elif isinstance(old, Prospective) and not isinstance(new, Candidate):
            self.rare["pre-vote losses"] += 1
        elif isinstance(new, Resigned) and effect.reason == "no majority fetches":
            self.rare["check-quorum resignations"] += 1

    # -- what is said ----------------------------------------------------------------------------

    def says(self, process: Process, epoch: int) -> None:
        """A message names our epoch: the disk must know it, or a crash could take it back."""
        node_id = process.node_id
        durable = max(
            process.machine.election.epoch,
            self.ledgers[node_id].epochs[self.ledgers[node_id].ends[-1]],
        )
        assert epoch <= durable, (
            f"{process} speaks in epoch {epoch}; its disk knows {durable} (invariant 11)"
        )
        assert epoch >= self.told_epoch[node_id], (
            f"{process} speaks in epoch {epoch} after {self.told_epoch[node_id]} (invariant 1)"
        )
        self.told_epoch[node_id] = epoch

    def requests(self, process: Process, request: Request) -> None:
        """Nothing that is sent depends on what can still be lost (invariant 11)."""
        node_id = process.node_id
        if isinstance(request, FetchRequest):
            self.says(process, request.epoch)
            held = self.ledgers[node_id].durable_end
            if node_id not in self.voters:  # it acknowledges nothing by its offset
                held = self.ledgers[node_id].end
                self.rare["unflushed fetches"] += (
                    request.fetch_offset > self.ledgers[node_id].durable_end
                )
            assert request.fetch_offset <= held, (
                f"{process} acknowledges {request.fetch_offset}, its disk keeps {held}"
                " (invariant 11)"
            )
            assert request.floor <= self.ledgers[node_id].durable_end, (
                f"{process} reports the floor {request.floor}, its disk keeps"
                f" {self.ledgers[node_id].durable_end} (invariant 11)"
            )
        elif isinstance(request, VoteRequest):
            self.says(process, request.epoch)
            if not request.pre_vote:
                self._votes(process, request.epoch, node_id)
                life = process.machine.lives
                first = self.campaigns.setdefault((request.epoch, node_id), life)
                assert first == life, f"{process} campaigns again in epoch {request.epoch}"
        elif isinstance(request, BeginQuorumEpochRequest):
            self.says(process, request.epoch)
            self.leads(process, request.epoch)

    def responds(self, process: Process, request: Request, response: Response) -> None:
        """The same for answers."""
        if isinstance(response, DescribeQuorumResponse) and response.error is not ErrorCode.NONE:
            return  # who has forgotten epochs names none
        pre_vote = isinstance(request, VoteRequest) and request.pre_vote
        if not (pre_vote and response.epoch == request.epoch):  # else it says nothing of ours
            self.says(process, response.epoch)
        if isinstance(response, VoteResponse) and isinstance(request, VoteRequest):
            self._decided_by_snapshot(process, request)
        if isinstance(response, VoteResponse) and response.granted:
            assert isinstance(request, VoteRequest), f"{request} is answered by {response}"
            if not request.pre_vote:
                self._votes(process, request.epoch, request.candidate.id)
        elif isinstance(response, FetchResponse) and response.high_watermark is not None:
            assert response.high_watermark <= self.committed.end, (
                f"{process} tells a high watermark of {response.high_watermark},"
                f" {self.committed.end} are committed"
            )

    def _decided_by_snapshot(self, process: Process, request: VoteRequest) -> None:
        """Count the votes of nodes whose log holds no record: their snapshot decides."""
        log = process.quorum.log
        if log.start_offset and not log.epochs:
            self.rare["votes decided by a snapshot"] += 1
            newest = (log.start_epoch, log.start_offset)
            if (request.last_epoch, request.end_offset) < newest:
                self.rare["votes refused for a snapshot"] += 1

    def _votes(self, process: Process, epoch: int, candidate: int) -> None:
        durable: ElectionState = process.machine.election
        voted = durable.voted
        kept = durable.epoch == epoch and voted is not None and voted.id == candidate
        assert kept or durable.epoch > epoch, (  # a newer epoch spends the votes of all before it
            f"{process} votes for {candidate} in epoch {epoch}; its disk says {durable}"
            " (invariant 11)"
        )
        assert self.intact.get(process.node_id, True), (
            f"{process} votes before it has recovered from a lost disk"
        )
        first = self.votes.setdefault((epoch, process.node_id), candidate)
        assert first == candidate, (
            f"{process} votes for {first} and for {candidate} in epoch {epoch} (invariant 1)"
        )

    def leads(self, process: Process, epoch: int) -> None:
        """It acts as a leader: its disk must know that it is one."""
        durable = process.machine.election
        assert durable.epoch == epoch and durable.leader_id == process.node_id, (  # noqa: PT018
            f"{process} leads epoch {epoch}; its disk says {durable} (invariant 11)"
        )
