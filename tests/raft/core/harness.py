"""A few quorum members on a fake network and disk, small and deterministic, driven by a test.

Time moves only when asked; a message takes 1 ms, a flush and a write of the election state 1 ms
each. Only the members' own seeded generators are random. (Random schedules, damage and volume are
the simulator's; this cluster plays transcripts.)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from raft.core import effects as fx
from raft.core import events as ev
from raft.core.config import QuorumConfig
from raft.core.log import EpochStart, LogState
from raft.core.messages import NO_FLOOR, Batch, FetchRequest, FetchResponse
from raft.core.quorum import Quorum
from raft.core.roles import ElectionState, Leader
from raft.core.voters import ReplicaKey, VoterSet, VoterSetHistory
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

HOP_MS = 1
DISK_MS = 1
FLOOR_MS = 1000  # from a commit until the floor is on the disk


@dataclass
class Disk:
    """The durable state of a node, and its unflushed batches."""

    election: ElectionState = field(default_factory=lambda: ElectionState(epoch=Epoch(0)))
    log: list[Batch] = field(default_factory=list)
    flushed: int = 0  # batches
    start: OffsetAndEpoch = field(default_factory=lambda: OffsetAndEpoch(Offset(0), Epoch(0)))
    snapshot_id: OffsetAndEpoch | None = None
    recovering: bool = False
    floor: Offset = NO_FLOOR
    in_doubt: bool = False
    snapshot_epochs: tuple[tuple[Epoch, Offset], ...] = ()
    late: list[OffsetAndEpoch] = field(default_factory=list)  # downloads that were abandoned

    def crash(self) -> None:
        """Lose the batches that were not flushed."""
        del self.log[self.flushed :]

    def geometry(self) -> LogState:
        epochs: list[EpochStart] = []
        for batch in self.log:
            if not epochs or batch.epoch > epochs[-1].epoch:
                epochs.append(EpochStart(batch.epoch, batch.base_offset))
        return LogState(
            start_offset=self.start.offset,
            start_epoch=self.start.epoch,
            end_offset=self.log[-1].end_offset if self.log else self.start.offset,
            epochs=tuple(epochs),
            snapshot_id=self.snapshot_id,
            floor=self.floor,
            snapshot_epochs=self.snapshot_epochs,
        )

    def copy(self) -> Disk:
        """Return what a copy of the disk, made now, would hold."""
        return replace(self, log=self.log[: self.flushed], late=[])


@dataclass
class Node:
    """One node; `quorum` is None while its process does not run."""

    id: NodeId
    disk: Disk = field(default_factory=Disk)
    quorum: Quorum | None = None
    incarnation: int = 0
    timer_ms: int | None = None
    held: list[Callable[[], None]] | None = None  # disk completions, while the disk is held
    committed: int = 0
    connections: dict[tuple[NodeId, str], int] = field(default_factory=dict)
    flush_due: bool = False
    generation: int = 0


@dataclass
class Request:
    """A request under way, with its sender's incarnation and connection."""

    sender: NodeId
    incarnation: int
    request_id: int
    connection: int
    abandoned: bool = False  # its connection was closed; it may arrive all the same


class Cluster:
    """Nodes, a clock and a queue of future actions."""

    def __init__(
        self,
        voters: int = 3,
        observers: int = 0,
        quorum_class: type[Quorum] = Quorum,
        config: QuorumConfig | None = None,
        seed: int = 1,
    ) -> None:
        self.now_ms = 0
        self.quorum_class = quorum_class
        self.config = config or QuorumConfig()
        self.seed = seed
        self.voter_set = VoterSet.of_ids(*range(1, voters + 1))
        self.nodes = {NodeId(n): Node(NodeId(n)) for n in range(1, voters + observers + 1)}
        self.trace: list[str] = []
        self.show_messages = False
        self.batches_per_fetch: int | None = None
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.held_links: dict[tuple[NodeId, NodeId], list[Callable[[], None]]] = {}
        self.leaders: dict[Epoch, NodeId] = {}
        self.history: dict[
            int, tuple[Epoch, object]
        ] = {}  # committed: base offset -> (epoch, data)
        self.answered: dict[Any, str] = {}
        self.recorder: Callable[[NodeId, Quorum, list[fx.Effect]], None] | None = None
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._connections = count(1)
        self._requests: dict[tuple[int, int], Request] = {}
        self._correlations = count(1)

    # -- processes --------------------------------------------------------------------------------

    def start(self, node_id: NodeId) -> None:
        node = self.nodes[node_id]
        assert node.quorum is None, f"{node_id} runs already"
        node.incarnation += 1
        node.generation = 0
        node.quorum = self.quorum_class(
            identity=ReplicaKey(node_id),
            cluster_id="stories",
            voters=VoterSetHistory(self.voter_set),
            log=node.disk.geometry(),
            election=node.disk.election,
            random=Random(f"{self.seed} {node_id} {node.incarnation}"),
            config=self.config,
            recovering=node.disk.recovering,
            in_doubt=node.disk.in_doubt,
        )
        self.step(node_id, ev.Start())

    def crash(self, node_id: NodeId) -> None:
        """Kill the process and cut the power: connections are reset, unflushed bytes are lost."""
        node = self.nodes[node_id]
        node.quorum, node.timer_ms, node.held, node.flush_due = None, None, None, False
        node.committed = 0
        node.incarnation += 1
        node.disk.crash()
        node.connections.clear()
        for other in self.nodes.values():
            self._drop_connections(other, node_id)

    def _drop_connections(self, node: Node, peer: NodeId) -> None:
        """End this node's connections to a peer, with the requests on them."""
        for kind in ("fetch", "other"):
            connection = node.connections.pop((peer, kind), None)
            if connection is not None:
                for key, request in tuple(self._requests.items()):
                    if request.connection == connection:
                        del self._requests[key]
                        self._later(HOP_MS, self._failing(request))
                if kind == "fetch":
                    self._later(HOP_MS, self._guarded(node, ev.PeerLost(peer)))

    def reset_connection(self, node_id: NodeId, peer: NodeId) -> None:
        self._drop_connections(self.nodes[node_id], peer)

    # -- events ------------------------------------------------------------------------------

    def step(self, node_id: NodeId, event: ev.Event) -> list[fx.Effect]:
        node = self.nodes[node_id]
        if node.quorum is None:
            return []
        effects = node.quorum.step(event, self.now_ms)
        if self.recorder is not None:
            self.recorder(node_id, node.quorum, effects)
        for effect in effects:
            self._carry_out(node, effect)
        return effects

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._order), action))

    def _guarded(self, node: Node, event: ev.Event) -> Callable[[], None]:
        """Return an action that steps this event, unless the node has crashed by then."""
        incarnation = node.incarnation

        def happen() -> None:
            if node.incarnation == incarnation:
                self.step(node.id, event)

        return happen

    def _failing(self, request: Request) -> Callable[[], None]:
        return self._guarded(self.nodes[request.sender], ev.RequestFailed(request.request_id))

    def _on_disk(self, node: Node, action: Callable[[], None]) -> None:
        """Run the action when the disk has done its work, in order."""
        incarnation = node.incarnation

        def done() -> None:
            if node.incarnation != incarnation:
                return
            if node.held is not None:
                node.held.append(action)
            else:
                action()

        self._later(DISK_MS, done)

    def release_disk(self, node_id: NodeId) -> None:
        node = self.nodes[node_id]
        held, node.held = node.held or [], None
        for action in held:
            action()

    def next_event_ms(self) -> int | None:
        timers = [node.timer_ms for node in self.nodes.values() if node.timer_ms is not None]
        queued = [self._queue[0][0]] if self._queue else []
        return min(timers + queued, default=None)

    def run(self, duration_ms: int) -> None:
        """Let this much time pass."""
        end_ms = self.now_ms + duration_ms
        while (at_ms := self.next_event_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            if self._queue and self._queue[0][0] <= self.now_ms:
                heapq.heappop(self._queue)[2]()
            else:
                due = min(
                    (node for node in self.nodes.values() if node.timer_ms is not None),
                    key=lambda node: (node.timer_ms, node.id),
                )
                due.timer_ms = None
                self.step(due.id, ev.Tick())
        self.now_ms = end_ms

    # -- effects -----------------------------------------------------------------------------

    def _carry_out(self, node: Node, effect: fx.Effect) -> None:
        match effect:
            case fx.SetTimer(at_ms):
                node.timer_ms = at_ms
            case fx.PersistElectionState():
                self._on_disk(node, lambda: self._persisted(node, effect))
            case fx.ClearRecovering():
                node.disk.recovering = False
                self.say(f"{node.id} recovered")
            case fx.Append() | fx.AppendLeaderChange():
                self._append(node, effect)
            case fx.Truncate(end_offset, generation):
                before = node.disk.log[-1].end_offset
                while node.disk.log and node.disk.log[-1].end_offset > end_offset:
                    node.disk.log.pop()
                node.disk.flushed = min(node.disk.flushed, len(node.disk.log))
                node.generation = generation
                self.say(f"{node.id} truncate {before} -> {end_offset}")
            case fx.Send():
                self._send(node, effect)
            case fx.Respond(connection, correlation, response):
                self._respond(node, connection, correlation, response)
            case fx.RespondFetch():
                self._respond_fetch(node, effect)
            case fx.Reconnect(peer):
                self._reconnect(node, peer)
            case fx.Committed(high_watermark):
                self._committed(node, high_watermark)
            case _:
                self._announce(node, effect)

    def _announce(self, node: Node, effect: fx.Effect) -> None:
        match effect:
            case fx.Transition(None, new, _):
                self.say(f"{node.id} starts {type(new).__name__.lower()} epoch={new.epoch}")
            case fx.Transition(old, new, reason):
                if isinstance(new, Leader):
                    first = self.leaders.setdefault(new.epoch, node.id)
                    assert first == node.id, f"{first} and {node.id} lead epoch {new.epoch}"
                names = f"{type(old).__name__} > {type(new).__name__}".lower()
                self.say(f"{node.id} {names} epoch={new.epoch} ({reason})")
            case fx.PeerFault(peer, reason):
                self.say(f"{node.id} faults {peer}: {reason}")
            case fx.Lead(epoch):
                self.say(f"{node.id} leads epoch={epoch}")
            case fx.StepDown(epoch):
                self.say(f"{node.id} steps down epoch={epoch}")
            case fx.Accepted(token, epoch, base_offset, _):
                self.answered[token] = f"accepted epoch={epoch} at {base_offset}"
            case fx.Refused(token, error) | fx.ReadRefused(token, error):
                self.answered[token] = f"refused {error.name}"
                self.say(f"{node.id} refuses {token}: {error.name}")
            case fx.ReadReady(token, offset):
                self.answered[token] = f"ready at {offset}"
                self.say(f"{node.id} answers read {token} at {offset}")
            case fx.FetchSnapshot(leader_id, _, snapshot_id):
                self.say(f"{node.id} fetches snapshot {tuple(snapshot_id)} from {leader_id}")
            case fx.AbandonSnapshot(snapshot_id):
                node.disk.late.append(snapshot_id)
                self.say(f"{node.id} abandons snapshot {tuple(snapshot_id)}")
            case fx.InstallSnapshot(snapshot_id, generation):
                disk, before = node.disk, self.history.get(snapshot_id.offset - 1)
                assert before is None or before[0] == snapshot_id.epoch, f"{snapshot_id}: {before}"
                disk.log, disk.flushed, disk.start = [], 0, snapshot_id
                disk.snapshot_id, node.generation = snapshot_id, generation
                self.say(f"{node.id} installs snapshot {tuple(snapshot_id)}")
            case fx.InDoubt(fork):
                node.disk.in_doubt = True
                self.say(f"{node.id} in doubt: {fork}")
            case fx.ForkReported(replica, floor, parts_at):
                self.say(f"{node.id} hears of a fork: {replica.id} floor={floor} at={parts_at}")
            case fx.ShutdownReady():
                self.say(f"{node.id} may stop")
            case fx.ServeSnapshot():
                self.say(f"{node.id} serves a snapshot")

    def _persisted(self, node: Node, effect: fx.PersistElectionState) -> None:
        node.disk.election = effect.state
        self.step(node.id, ev.ElectionStateDurable(effect.sequence))

    def _append(self, node: Node, effect: fx.Append | fx.AppendLeaderChange) -> None:
        if isinstance(effect, fx.Append):
            node.disk.log.extend(effect.batches)
        else:
            base = effect.base_offset
            end = Offset(base + 1)
            node.disk.log.append(Batch(base, end, effect.epoch, 100, f"leader {effect.leader_id}"))
        node.generation = effect.generation
        if not node.flush_due:
            node.flush_due = True
            self._on_disk(node, lambda: self._flushed(node))

    def _flushed(self, node: Node) -> None:
        node.flush_due = False
        node.disk.flushed = len(node.disk.log)
        end = node.disk.log[-1].end_offset if node.disk.log else node.disk.start.offset
        self.step(node.id, ev.AppendDurable(end, node.generation))

    def _committed(self, node: Node, high_watermark: Offset) -> None:
        """Check that all nodes commit the same batches."""
        for batch in node.disk.log:
            if node.committed < batch.end_offset <= high_watermark:
                committed = (batch.epoch, batch.data)
                first = self.history.setdefault(batch.base_offset, committed)
                here = batch.base_offset
                assert first == committed, f"{node.id} committed {committed} at {here}: {first}"
        node.committed = high_watermark
        incarnation = node.incarnation

        def record_floor() -> None:
            if node.incarnation == incarnation and node.quorum is not None:
                node.disk.floor = node.quorum.log.floor

        self._later(FLOOR_MS, record_floor)

    # -- network -----------------------------------------------------------------------------

    def _reconnect(self, node: Node, peer: NodeId) -> None:
        connection = node.connections.pop((peer, "fetch"), None)
        for request in self._requests.values():
            if request.connection == connection:
                request.abandoned = True
        if self.nodes[peer].quorum is None:
            self._later(HOP_MS, self._guarded(node, ev.PeerRefused(peer)))

    def _send(self, node: Node, effect: fx.Send) -> None:
        peer = self.nodes[effect.peer]
        kind = "fetch" if isinstance(effect.request, FetchRequest) else "other"
        connection = node.connections.setdefault((peer.id, kind), next(self._connections))
        request = Request(node.id, node.incarnation, effect.request_id, connection)
        correlation = next(self._correlations)
        self._requests[connection, correlation] = request
        self._say_message(node.id, peer.id, effect.request)

        def arrive() -> None:
            if (connection, correlation) not in self._requests:
                return
            if peer.quorum is None:
                del self._requests[connection, correlation]
                node.connections.pop((peer.id, kind), None)
                self._later(0, self._failing(request))
                self._later(0, self._guarded(node, ev.PeerRefused(peer.id)))
            else:
                self.step(peer.id, ev.Received(connection, correlation, effect.request))

        self._travel(node.id, peer.id, arrive)

    def _travel(self, sender: NodeId, receiver: NodeId, arrive: Callable[[], None]) -> None:
        if (sender, receiver) in self.held_links:
            self.held_links[sender, receiver].append(arrive)
        elif (sender, receiver) not in self.cut:
            self._later(HOP_MS, arrive)

    def _respond(self, node: Node, connection: int, correlation: int, response: Any) -> None:
        request = self._requests.get((connection, correlation))
        if request is None:
            return
        requester = self.nodes[request.sender]
        self._say_message(node.id, requester.id, response)
        if request.abandoned:
            return

        def arrive() -> None:
            settled = self._requests.pop((connection, correlation), None)
            if settled is not None and not settled.abandoned:
                event = ev.ResponseReceived(request.request_id, response)
                self._step_if_alive(requester, request.incarnation, event)

        self._travel(node.id, requester.id, arrive)

    def _step_if_alive(self, node: Node, incarnation: int, event: ev.Event) -> None:
        if node.incarnation == incarnation:
            self.step(node.id, event)

    def _respond_fetch(self, node: Node, effect: fx.RespondFetch) -> None:
        batches = tuple(
            batch
            for batch in node.disk.log
            if effect.from_offset <= batch.base_offset < effect.end_offset
        )[: self.batches_per_fetch]
        answer = effect.response
        response = FetchResponse(
            leader_id=answer.leader_id,
            epoch=answer.epoch,
            high_watermark=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
            batches=batches,
        )
        self._respond(node, effect.connection, effect.correlation, response)

    # -- telling -----------------------------------------------------------------------------

    def say(self, line: str) -> None:
        self.trace.append(line)

    def _say_message(self, sender: NodeId, receiver: NodeId, message: Any) -> None:
        if self.show_messages:
            self.say(f"{sender} > {receiver} {describe(message)}")

    def state_line(self, node_id: NodeId) -> str:
        node = self.nodes[node_id]
        if node.quorum is None:
            return f"{node_id} down"
        role, log = node.quorum.role, node.quorum.log
        hw = "?" if log.high_watermark is None else log.high_watermark
        unflushed = ""
        if log.flushed_end_offset != log.end_offset:
            unflushed = f" flushed={log.flushed_end_offset}"
        start = f" start={log.start_offset}" if log.start_offset else ""
        start += " in doubt" if node.quorum.in_doubt else ""
        return (
            f"{node_id} {type(role).__name__.lower():<11} epoch={role.epoch} "
            f"leo={log.end_offset}{unflushed} hw={hw}{start}"
        )


def describe(message: Any) -> str:
    """Format a message in a few words, without the fields that every message has."""
    match type(message).__name__:
        case "VoteRequest":
            kind = "pre-vote?" if message.pre_vote else "vote?"
            return f"{kind} epoch={message.epoch} log=({message.last_epoch}, {message.end_offset})"
        case "FetchRequest":
            return f"fetch epoch={message.epoch} from={message.fetch_offset}"
        case "FetchResponse" if message.error == 0:
            if message.diverging:
                end = message.diverging
                return f"diverging epoch={end.epoch} end_offset={end.end_offset}"
            if message.snapshot_id:
                return f"snapshot {tuple(message.snapshot_id)}"
            hw = message.high_watermark
            span = ""
            if message.batches:
                span = (
                    f" records={message.batches[0].base_offset}..{message.batches[-1].end_offset}"
                )
            return f"fetched hw={'?' if hw is None else hw}{span}"
        case "VoteResponse" if message.error == 0:
            return "granted" if message.granted else "not granted"
        case "BeginQuorumEpochRequest":
            return f"begin epoch={message.epoch}"
        case "EndQuorumEpochRequest":
            ids = [int(key.id) for key in message.preferred_candidates]
            return f"end epoch={message.epoch} candidates={ids}"
        case "DescribeQuorumRequest":
            return "describe"
        case name:
            kind = name.removesuffix("Response").removesuffix("QuorumEpoch").lower()
            return f"{kind}: {message.error.name}"
