"""Transcripts: a comment, commands, and the output of the members.

A file is blocks separated by blank lines. A block has comment lines (`#`), command lines (several
commands per line, separated by `;`), a line `----`, and the expected output: what happened, then
the state of each node whose state changed. `pytest --rewrite` writes the output anew.

    cluster voters=3 observers=1    begin anew (the default is three voters)
    log 1 1 1 4                     before the start: node 1's log, one epoch per record
    election 1 epoch=5 voted=2      before the start: its election state
    start | start 1 2               start all, or these
    run 100                         let 100 ms pass
    timeout 1                       node 1's patience ends now
    append 1 a b | read 1 r         propose records, or begin a read, at node 1
    propose 1 x epoch=2 expect=7    a proposal with conditions
    isolate 1; cut 1 2; oneway 1 2; heal
    hold-link 2 1; release-link 2 1 messages from 2 to 1 wait
    copy 1; bring-back 1            node 1's disk is copied; it comes back as that copy
    trust 1                         before a start: an operator ends node 1's doubt
    hold-disk 1; release-disk 1     writes take effect, flushes are not reported
    crash 1; restart 1; wipe 1      wipe: the disk is lost, the node is to be recovering
    reset 2 1                       the connections from 2 to 1 are reset
    batches-per-fetch 1             a Fetch is answered with at most so many batches
    stranger 1 vote 2 9000          somebody sends node 1 a vote of epoch 9000 as if it were node 2
    stranger 1 vote 2 +9 times=50   fifty of them, each nine epochs ahead of what node 1 is in then
                                    (vote, pre-vote, begin or end)
    waits 1                         what node 1, which lost its disk, tells the operator
    resign 1; shutdown 1; describe 1; logs; state; messages on|off
    snapshot 1 4; trim 1 4          node 1 has a snapshot ending at 4; its log starts at 4
    fetched 3 | failed 3            the snapshot that node 3 fetches has come, or cannot be had
    progress 3 | complete 3         a chunk of the snapshot has come, or the last one
    fetched 3 7 1                   the snapshot to 7 in epoch 1 is complete, awaited or not
    checkpoint 3 7 1 | checkpoint 3 7 1 1:0
                                    the same, but node 3 crashes before it can take note; the epochs
                                    that the snapshot names, each with its first offset
    record 3 5                      before a start: node 3's floor
    begins 3 4 1                    before a start: node 3's log begins after snapshot (4, 1)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from raft.core import effects as fx
from raft.core import events as ev
from raft.core.messages import (
    Batch,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    Request,
    VoteRequest,
)
from raft.core.quorum import Quorum
from raft.core.roles import ElectionState, Leader
from raft.core.timers import Timer
from raft.core.voters import ReplicaKey
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from tests.raft.core.harness import Cluster, Disk

SEPARATOR = "----"


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of a transcript: comments and commands as written, and expected output."""

    head: tuple[str, ...]
    expected: tuple[str, ...]

    @property
    def commands(self) -> list[str]:
        lines = [line for line in self.head if not line.startswith("#")]
        return [command.strip() for line in lines for command in line.split(";") if command.strip()]


def parse(text: str) -> list[Block]:
    blocks = []
    for chunk in text.strip().split("\n\n"):
        head, _, expected = chunk.partition(f"\n{SEPARATOR}")
        lines = tuple(head.strip("\n").split("\n"))
        blocks.append(Block(head=lines, expected=tuple(expected.strip("\n").splitlines())))
    return blocks


def render(blocks: list[Block], outputs: list[list[str]]) -> str:
    chunks = []
    for block, output in zip(blocks, outputs, strict=True):
        body = [*block.head, SEPARATOR, *output] if block.commands else list(block.head)
        chunks.append("\n".join(body))
    return "\n\n".join(chunks) + "\n"


def play(path: Path, quorum_class: type[Quorum] = Quorum) -> tuple[list[Block], list[list[str]]]:
    """Run a transcript; return its blocks as written, and the present output of each."""
    blocks = parse(path.read_text())
    story = Story(quorum_class)
    return blocks, [story.play(block.commands) for block in blocks]


def strangers_request(kind: str, named: NodeId, epoch: Epoch, quorum: Quorum) -> Request:
    """A request in the name of a member; it need not even name the cluster."""
    match kind:
        case "vote" | "pre-vote":
            return VoteRequest(
                cluster_id=None,
                voter=None,
                candidate=ReplicaKey(named),
                epoch=epoch,
                last_epoch=quorum.log.last_epoch,
                end_offset=quorum.log.end_offset,
                pre_vote=kind == "pre-vote",
            )
        case "begin":
            return BeginQuorumEpochRequest(
                cluster_id=None, voter=None, leader_id=named, epoch=epoch
            )
        case _:
            return EndQuorumEpochRequest(
                cluster_id=None,
                leader_id=named,
                epoch=epoch,
                preferred_candidates=(),
            )


class Story:
    """Carries out commands on a cluster."""

    def __init__(self, quorum_class: type[Quorum] = Quorum) -> None:
        self.quorum_class = quorum_class
        self.cluster = Cluster(quorum_class=quorum_class)
        self.shown: dict[NodeId, str] = {}
        self.copies: dict[str, Disk] = {}
        self.proposed = 0

    def play(self, commands: list[str]) -> list[str]:
        for command in commands:
            name, *words = command.split()
            getattr(self, "do_" + name.replace("-", "_"))(*words)
        trace, self.cluster.trace = self.cluster.trace, []
        return trace + self._changes()

    def _changes(self) -> list[str]:
        lines = []
        for node_id, node in self.cluster.nodes.items():
            if node.incarnation == 0:
                continue
            line = self.cluster.state_line(node_id)
            if self.shown.get(node_id) != line:
                self.shown[node_id] = line
                lines.append(line)
        return lines

    # -- the set-up --------------------------------------------------------------------------

    def do_cluster(self, *settings: str) -> None:
        sizes = {key: int(value) for key, value in (word.split("=") for word in settings)}
        self.cluster = Cluster(quorum_class=self.quorum_class, **sizes)
        self.shown = {}

    def do_log(self, node: str, *epochs: str) -> None:
        disk = self.cluster.nodes[NodeId(int(node))].disk
        disk.log = [
            Batch(Offset(i), Offset(i + 1), Epoch(int(epoch)), 100, f"record {epoch}.{i}")
            for i, epoch in enumerate(epochs, disk.start.offset)
        ]
        disk.flushed = len(disk.log)
        if disk.log:
            disk.election = ElectionState(epoch=disk.log[-1].epoch)

    def do_election(self, node: str, *settings: str) -> None:
        values = {key: int(value) for key, value in (word.split("=") for word in settings)}
        self.cluster.nodes[NodeId(int(node))].disk.election = ElectionState(
            epoch=Epoch(values["epoch"]),
            leader_id=NodeId(values["leader"]) if "leader" in values else None,
            voted=ReplicaKey(NodeId(values["voted"])) if "voted" in values else None,
        )

    def do_start(self, *nodes: str) -> None:
        for node in nodes or tuple(self.cluster.nodes):
            self.cluster.start(NodeId(int(node)))

    # -- time and chance ---------------------------------------------------------------------

    def do_run(self, duration_ms: str) -> None:
        self.cluster.run(int(duration_ms))

    def do_timeout(self, node: str) -> None:
        deadlines = self._quorum(node)._context.timers.deadlines
        patience = (Timer.ELECTION, Timer.FETCH, Timer.FAILOVER, Timer.CHECK_QUORUM)
        for timer in patience:
            if timer in deadlines:
                deadlines[timer] = self.cluster.now_ms
        self.cluster.step(NodeId(int(node)), ev.Tick())
        if Timer.FAILOVER in deadlines:  # the random moment after a fetch timeout
            deadlines[Timer.FAILOVER] = self.cluster.now_ms
            self.cluster.step(NodeId(int(node)), ev.Tick())

    def do_isolate(self, node: str) -> None:
        for other in self.cluster.nodes:
            if other != int(node):
                self.do_cut(node, str(other))

    def do_cut(self, one: str, other: str) -> None:
        self.do_oneway(one, other)
        self.do_oneway(other, one)

    def do_oneway(self, sender: str, receiver: str) -> None:
        self.cluster.cut.add((NodeId(int(sender)), NodeId(int(receiver))))

    def do_heal(self) -> None:
        self.cluster.cut.clear()

    def do_hold_link(self, sender: str, receiver: str) -> None:
        self.cluster.held_links[NodeId(int(sender)), NodeId(int(receiver))] = []

    def do_release_link(self, sender: str, receiver: str) -> None:
        link = (NodeId(int(sender)), NodeId(int(receiver)))
        for arrive in self.cluster.held_links.pop(link):
            self.cluster._later(1, arrive)

    def do_hold_disk(self, node: str) -> None:
        held = self.cluster.nodes[NodeId(int(node))]
        held.held = held.held or []

    def do_release_disk(self, node: str) -> None:
        self.cluster.release_disk(NodeId(int(node)))

    def do_crash(self, node: str) -> None:
        self.cluster.crash(NodeId(int(node)))

    def do_restart(self, node: str) -> None:
        self.cluster.start(NodeId(int(node)))

    def do_wipe(self, node: str) -> None:
        self.cluster.nodes[NodeId(int(node))].disk = Disk(recovering=True)

    def do_copy(self, node: str) -> None:
        self.copies[node] = self.cluster.nodes[NodeId(int(node))].disk.copy()

    def do_bring_back(self, node: str) -> None:
        self.cluster.nodes[NodeId(int(node))].disk = self.copies[node].copy()

    def do_trust(self, node: str) -> None:
        self.cluster.nodes[NodeId(int(node))].disk.in_doubt = False

    def do_forks(self) -> None:
        self.cluster.history.clear()  # what is committed from now on contradicts it
        self.cluster.leaders.clear()

    def do_reset(self, node: str, peer: str) -> None:
        self.cluster.reset_connection(NodeId(int(node)), NodeId(int(peer)))

    def do_batches_per_fetch(self, number: str) -> None:
        self.cluster.batches_per_fetch = int(number)

    # -- requests ----------------------------------------------------------------------------

    def do_append(self, node: str, *data: str) -> None:
        role = self._quorum(node).role
        epoch = role.epoch
        batches = tuple(ev.NewBatch(1, 100, word) for word in data)
        self.proposed += 1
        token = f"proposal {self.proposed}"
        proposal = ev.Proposal(token, epoch, None, batches)
        self.cluster.step(NodeId(int(node)), ev.Propose((proposal,)))
        if isinstance(role, Leader) and "accepted" not in self.cluster.answered[token]:
            self.cluster.say(f"{token}: {self.cluster.answered[token]}")

    def do_propose(self, node: str, data: str, *settings: str) -> None:
        values = {key: int(value) for key, value in (word.split("=") for word in settings)}
        expect = Offset(values["expect"]) if "expect" in values else None
        epoch = Epoch(values.get("epoch", self._quorum(node).epoch))
        batches = (ev.NewBatch(values.get("records", 1), 100, data),)
        proposal = ev.Proposal(data, epoch, expect, batches)
        self.cluster.step(NodeId(int(node)), ev.Propose((proposal,)))
        if "accepted" in self.cluster.answered[data]:
            self.cluster.say(f"{node} {data}: {self.cluster.answered[data]}")

    def do_read(self, node: str, token: str) -> None:
        self.cluster.step(NodeId(int(node)), ev.Read(token))

    def do_resign(self, node: str) -> None:
        self.cluster.step(NodeId(int(node)), ev.Resign())

    def do_shutdown(self, node: str) -> None:
        self.cluster.step(NodeId(int(node)), ev.Shutdown())

    def do_snapshot(self, node: str, end_offset: str) -> None:
        quorum = self._quorum(node)
        snapshot_id = OffsetAndEpoch(
            Offset(int(end_offset)), quorum.log.epoch_before(Offset(int(end_offset)))
        )
        self.cluster.nodes[NodeId(int(node))].disk.snapshot_id = snapshot_id
        self.cluster.step(NodeId(int(node)), ev.SnapshotTaken(snapshot_id))

    def do_trim(self, node: str, start_offset: str) -> None:
        self.cluster.step(NodeId(int(node)), ev.LogStartMoved(Offset(int(start_offset))))
        disk, quorum = self.cluster.nodes[NodeId(int(node))].disk, self._quorum(node)
        dropped = sum(1 for batch in disk.log if batch.end_offset <= int(start_offset))
        del disk.log[:dropped]
        disk.flushed -= dropped
        disk.start = OffsetAndEpoch(quorum.log.start_offset, quorum.log.start_epoch)

    def do_begins(self, node: str, end_offset: str, epoch: str) -> None:
        snapshot_id = OffsetAndEpoch(Offset(int(end_offset)), Epoch(int(epoch)))
        disk = self.cluster.nodes[NodeId(int(node))].disk
        disk.start, disk.log, disk.flushed = snapshot_id, [], 0
        disk.snapshot_id = snapshot_id if snapshot_id.offset else None
        disk.election = ElectionState(epoch=snapshot_id.epoch)

    def do_checkpoint(self, node: str, end_offset: str, epoch: str, *epochs: str) -> None:
        disk = self.cluster.nodes[NodeId(int(node))].disk
        disk.snapshot_id = OffsetAndEpoch(Offset(int(end_offset)), Epoch(int(epoch)))
        pairs = (map(int, pair.split(":")) for pair in epochs)
        disk.snapshot_epochs = tuple((Epoch(epoch), Offset(first)) for epoch, first in pairs)

    def do_record(self, node: str, floor: str) -> None:
        self.cluster.nodes[NodeId(int(node))].disk.floor = Offset(int(floor))

    def do_fetched(self, node: str, *snapshot: str) -> None:
        if snapshot:
            end_offset, epoch = map(int, snapshot)
            snapshot_id = OffsetAndEpoch(Offset(end_offset), Epoch(epoch))
        else:
            awaited = self._quorum(node)._context.follower.fetching_snapshot
            assert awaited is not None, f"{node} fetches no snapshot"
            snapshot_id = awaited
        disk = self.cluster.nodes[NodeId(int(node))].disk
        disk.snapshot_id = max(disk.snapshot_id or snapshot_id, snapshot_id)
        self.cluster.step(NodeId(int(node)), ev.SnapshotFetched(snapshot_id, self._epochs(node)))

    def _epochs(self, node: str) -> tuple[tuple[Epoch, Offset], ...]:
        """The epochs that the leader's snapshot names; none if nobody is followed."""
        leader = self._quorum(node).leader_id
        known = None if leader is None else self.cluster.nodes[leader].quorum
        if known is None or known.log.snapshot_id is None:
            return ()
        return known.log.epochs_below(known.log.snapshot_id.offset)

    def do_progress(self, node: str) -> None:
        self.cluster.step(NodeId(int(node)), ev.SnapshotProgress())

    def do_complete(self, node: str) -> None:
        self.cluster.step(NodeId(int(node)), ev.SnapshotProgress(complete=True))

    def do_failed(self, node: str) -> None:
        snapshot_id = self._quorum(node)._context.follower.fetching_snapshot
        assert snapshot_id is not None, f"{node} fetches no snapshot"
        self.cluster.step(NodeId(int(node)), ev.SnapshotFailed(snapshot_id))

    def do_stranger(self, node: str, kind: str, named: str, epoch: str, *settings: str) -> None:
        values = {key: int(value) for key, value in (word.split("=") for word in settings)}
        quorum, known, answers = self._quorum(node), NodeId(int(named)), Counter[str]()
        for _ in range(values.get("times", 1)):
            ahead = quorum.epoch if epoch.startswith("+") else 0
            request = strangers_request(kind, known, Epoch(int(epoch) + ahead), quorum)
            effects = self.cluster.step(NodeId(int(node)), ev.Received(-1, 0, request))
            for effect in effects:
                if isinstance(effect, fx.Respond):
                    granted = getattr(effect.response, "granted", False)
                    answers["granted" if granted else effect.response.error.name] += 1
        told = ", ".join(f"{count} {name}" for name, count in answers.items())
        self.cluster.say(f"{node} answers a stranger's {kind} as {named}: {told or 'nothing yet'}")

    # -- looking -----------------------------------------------------------------------------

    def do_messages(self, switch: str) -> None:
        self.cluster.show_messages = switch == "on"

    def do_state(self) -> None:
        self.shown = {}

    def do_logs(self) -> None:
        for node_id, node in self.cluster.nodes.items():
            epochs = " ".join(str(batch.epoch) for batch in node.disk.log)
            self.cluster.say(f"{node_id} log {epochs}".rstrip())

    def do_waits(self, node: str) -> None:
        self.cluster.say(f"{node} waits: {self._quorum(node).recovering_reason}")

    def do_describe(self, node: str) -> None:
        effects = self._quorum(node).step(
            ev.Received(-1, 0, DescribeQuorumRequest()), self.cluster.now_ms
        )
        response = effects[-1].response  # type: ignore[union-attr]
        if response.error:
            self.cluster.say(f"{node} describe: {response.error.name} leader={response.leader_id}")
            return
        for kind in ("voters", "observers"):
            for state in getattr(response, kind):
                end, fetch, caught_up = state[1:]
                self.cluster.say(
                    f"{kind[:-1]} {state.key.id} leo={end} fetch={fetch} caught_up={caught_up}"
                )

    def _quorum(self, node: str) -> Quorum:
        quorum = self.cluster.nodes[NodeId(int(node))].quorum
        assert quorum is not None, f"node {node} is down"
        return quorum
