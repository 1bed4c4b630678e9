"""Brokers that coordinate groups, and the group log, on a clock and network that tests control."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from coordinator.errors import CoordinatorError
from coordinator.features import Features
from coordinator.groups.core import GroupBroker
from coordinator.groups.events import (
    BrokersChanged,
    Call,
    Effect,
    InboundRequest,
    LogResponse,
    Reply,
    Tick,
)
from coordinator.groups.leader import GroupLog
from coordinator.groups.machine import GroupMachine
from coordinator.groups.service import CALLS, fetch_state
from coordinator.groups.settings import GroupSettings, LogSettings
from coordinator.groups.state import GroupsImage
from coordinator.persistent_map import Map
from coordinator.rendezvous import group_broker
from records.batch import Batch, iter_batches
from records.batch_writer import build_value_batch
from records.codec import encode_message
from records.features import ESKER_VERSION
from records.rpc import groups as rpc
from records.rpc.base import Request
from records.rpc.group_log import FetchGroupStateRequest
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.doubles.memory_log import MemoryLog

GROUP = "g"
MAX_STEPS = 100_000
TRANSACTIONS = Features(Map().set(ESKER_VERSION, 4))
TOPICS = {"t": (UUID(int=71), 4), "u": (UUID(int=72), 1)}


class FewTopics:
    """The existing topics; a test may change them."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.known = dict(TOPICS)
        self.level_at_ms: int | None = 2**62  # until when nothing is missing; None: never
        self._now_ms = now_ms

    def age_ms(self) -> float | None:
        return None if self.level_at_ms is None else max(0, self._now_ms() - self.level_at_ms)

    def partition_count(self, name: str) -> int | None:
        return self.known[name][1] if name in self.known else None

    def topic_id(self, name: str) -> UUID | None:
        return self.known[name][0] if name in self.known else None

    def name(self, topic_id: UUID) -> str | None:
        return next((name for name, (found, _) in self.known.items() if found == topic_id), None)


class Applier:
    """Reads committed batches and applies them, as `snapshot.host` does, without files."""

    def __init__(self, log: MemoryLog, machine: GroupMachine) -> None:
        self._log = log
        self._machine = machine

    def committed(self, high_watermark: Offset) -> None:
        while self._machine.applied.offset < high_watermark:
            data = self._log.read(self._machine.applied.offset, 64 * 1024)
            for batch in iter_batches(data):
                self._machine.apply([batch])

    def lead(self, epoch: Epoch) -> None: ...

    def step_down(self, epoch: Epoch) -> None: ...

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None: ...


class World:
    """Brokers and the group log: `ask` a broker, `pass_ms`, lose or hold back calls."""

    def __init__(
        self,
        brokers: Iterable[int] = (1,),
        *,
        auto_commit: bool = True,
        settings: GroupSettings | None = None,
        log_settings: LogSettings | None = None,
        checks_brokers: bool = True,
    ) -> None:
        self.log = MemoryLog("__consumer_offsets-0", auto_commit=auto_commit)
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.log_settings = log_settings or LogSettings()
        self.now_ms = 1_000
        self.wall_ms = 1_700_000_000_000
        self.topics = FewTopics(lambda: self.now_ms)
        self.unfenced: set[int] = set(brokers)
        self.checks_brokers = checks_brokers
        self.registered: dict[int, int] | None = None  # broker epochs; None: any epoch
        self.brokers: dict[int, GroupBroker] = {}
        self.answers: dict[int, Any] = {}
        self.versions: dict[int, tuple[int, int]] = {}  # ticket -> broker, version
        self.checkpoint: tuple[OffsetAndEpoch, list[bytes]] | None = None
        self.held: list[tuple[int, Call]] = []  # calls that a test delivers itself
        self.holds: Callable[[int, Call], bool] = lambda _broker, _call: False
        self.seen: Callable[[GroupsImage], None] = lambda _image: None
        self.tickets = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._build_log()
        self.log.elect()
        self.log.commit()
        self.run()
        for broker_id in sorted(self.unfenced):
            self.start_broker(broker_id)

    # --- the log ------------------------------------------------------------------------------

    def _build_log(self) -> None:
        self.machine = GroupMachine()
        if self.checkpoint is not None:
            load(self.machine, *self.checkpoint)
        self.log._watchers.clear()
        self.applier = Applier(self.log, self.machine)
        self.groups = GroupLog(
            self.log,
            self.machine,
            self.log_settings,
            call_soon=self._soon.append,
            wall_ms=lambda: self.wall_ms,
            brokers=lambda: sorted(self.unfenced) if self.checks_brokers else None,
            broker_epochs=lambda: self.registered,
            features=lambda: TRANSACTIONS,
        )
        self.log.watch(self.applier)
        self.log.watch(self.groups)
        self.machine.listen(lambda image: self.seen(image))

    def restart_log(self) -> None:
        """Restart the log's node from its checkpoint, if it has one; it leads again."""
        if self.log.leading_epoch is not None:
            self.log.depose()
        self.run()
        self._build_log()
        self.log.elect()
        self.log.commit()
        self.run()

    def change_leader(self, *, lose: bool) -> None:
        """Elect another leader, which keeps or loses what was not committed."""
        self.log.depose(lose_uncommitted=lose)
        self.run()
        self.log.elect()
        self.log.commit()
        self.run()

    def take_checkpoint(self) -> None:
        """Freeze the current state; a restart begins with it."""
        values = records_of(self.machine)
        self.checkpoint = (self.machine.applied, values)
        self.machine.checkpointed(self.machine.applied, len(values))

    @property
    def image(self) -> GroupsImage:
        """The committed state."""
        return self.machine.image

    # --- brokers ------------------------------------------------------------------------------

    def start_broker(self, broker_id: int) -> None:
        """Start a broker's process with an empty memory."""
        self.unfenced.add(broker_id)
        self.brokers[broker_id] = GroupBroker(
            broker_id,
            self.settings,
            self.topics,
            wall_ms=lambda: self.wall_ms,
            catalog=lambda: self.machine.image.groups.items(),
        )
        self.tell_brokers()

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker; its waiting requests get no answer."""
        self.unfenced.discard(broker_id)
        del self.brokers[broker_id]
        self.tell_brokers()

    def tell_brokers(self, only: Iterable[int] | None = None) -> None:
        """Send brokers the set of unfenced brokers."""
        for broker_id in list(self.brokers) if only is None else only:
            self._step(broker_id, BrokersChanged(frozenset(self.unfenced), 1))
        self.run()

    def owner(self, group_id: str = GROUP) -> int:
        """Return the broker that is chosen for a group."""
        chosen = group_broker(group_id, self.unfenced)
        assert chosen is not None
        return chosen

    # --- asking -------------------------------------------------------------------------------

    def send(
        self,
        request: Request,
        *,
        version: int | None = None,
        broker: int | None = None,
        client: str = "c",
        number: int = -1,
        is_connected: Callable[[], bool] = lambda: True,
    ) -> int:
        """Send a client's request; return its ticket.

        `number` is that of the ongoing transaction of a TxnOffsetCommit.
        """
        self.tickets += 1
        ticket = self.tickets
        version = request.schema().versions.last if version is None else version
        if broker is None:
            broker = self.owner(getattr(request, "group_id", GROUP))
        self.versions[ticket] = (broker, version)
        unique = f"u{ticket}"
        more = (number, is_connected)
        inbound = InboundRequest(ticket, request, version, client, "/host", unique, *more)
        self._step(broker, inbound)
        self.run()
        return ticket

    def ask(self, request: Request, **more: Any) -> Any:
        """Send a request and return its answer."""
        ticket = self.send(request, **more)
        assert ticket in self.answers, f"no answer to {request}"
        return self.answers[ticket]

    def inform(self, broker_id: int, event: Any) -> None:
        """Send an event to a broker, and run what follows."""
        self._step(broker_id, event)
        self.run()

    def _step(self, broker_id: int, event: Any) -> None:
        broker = self.brokers.get(broker_id)
        if broker is None:
            return
        for effect in broker.step(event, self.now_ms):
            self._do(broker_id, broker, effect)

    def _do(self, broker_id: int, broker: GroupBroker, effect: Effect) -> None:
        if isinstance(effect, Reply):
            ticket = effect.ticket
            assert isinstance(ticket, int)
            assert ticket not in self.answers, f"answered twice: {effect}"
            encode_message(effect.response, self.versions[ticket][1])
            self.answers[ticket] = effect.response
            return
        encode_message(effect.request, 0)
        if self.holds(broker_id, effect):
            self.held.append((broker_id, effect))
        else:
            self._soon.append(lambda: self.deliver(broker_id, effect, broker))

    def deliver(self, broker_id: int, call: Call, broker: GroupBroker | None = None) -> None:
        """Deliver a call to the log, and its answer to the process that sent it."""

        def back(answer: Any) -> None:
            if isinstance(answer, CoordinatorError):
                answer = CALLS[type(call.request)](error_code=int(answer.code))
            if broker is not None and self.brokers.get(broker_id) is broker:
                self._soon.append(lambda: self._answer(broker_id, broker, call.call_id, answer))

        if isinstance(call.request, FetchGroupStateRequest):
            leads = self.groups.proposer.epoch is not None
            back(fetch_state(call.request, self.machine.image) if leads else None)
        else:
            self.groups.ask(call.request, back)

    def _answer(self, broker_id: int, broker: GroupBroker, call_id: int, answer: Any) -> None:
        if self.brokers.get(broker_id) is broker:
            self._step(broker_id, LogResponse(call_id, answer))

    def lose_answer(self, broker_id: int, call: Call) -> None:
        """Tell a broker that the answer to a call is lost."""
        self._step(broker_id, LogResponse(call.call_id, None))
        self.run()

    # --- time ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run everything that is due now."""
        for _ in range(MAX_STEPS):
            if not self._soon:
                return
            self._soon.popleft()()
        raise AssertionError("never idle")

    def pass_ms(self, ms: int) -> None:
        """Advance the clock, and run what becomes due."""
        until = self.now_ms + ms
        for _ in range(MAX_STEPS):
            due = [b.deadline_ms for b in self.brokers.values() if b.deadline_ms is not None]
            at = min([until, *due])
            self.wall_ms += max(0, at - self.now_ms)
            self.now_ms = max(self.now_ms, at)
            if not due or min(due) > until:
                break
            for broker_id in list(self.brokers):
                self._step(broker_id, Tick())
            self.run()
        else:
            raise AssertionError("time stands still")

    # --- shorthands ---------------------------------------------------------------------------

    def commit(self, member: Any = None, offset: int = 1, **more: Any) -> int:
        """Commit an offset of t-0; return the error."""
        answer = self.ask(commit_request(member, offset), **more)
        return int(answer.topics[0].partitions[0].error_code)

    def committed(self, topic: str = "t", partition: int = 0, **more: Any) -> int:
        """Return the committed offset, as OffsetFetch does."""
        topics = rpc.OffsetFetchRequest.OffsetFetchRequestTopic
        request = rpc.OffsetFetchRequest(
            group_id=GROUP, topics=(topics(name=topic, partition_indexes=(partition,)),)
        )
        answer = self.ask(request, version=7, **more)
        assert answer.error_code == 0, answer
        return int(answer.topics[0].partitions[0].committed_offset)

    def state(self, group_id: str = GROUP) -> str:
        """Return the group's state at its broker."""
        group: Any = self.brokers[self.owner(group_id)].groups[group_id]
        return str(group.state.value)

    def group(self, group_id: str = GROUP) -> Any:
        """Return the group in its broker's memory."""
        return self.brokers[self.owner(group_id)].groups[group_id]


class Consumer:
    """A group member whose requests a test sends one by one."""

    def __init__(
        self,
        world: World,
        name: str = "c",
        *,
        instance_id: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        protocol_type: str = "consumer",
    ) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.protocols = protocols
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.protocol_type = protocol_type
        self.member_id = ""
        self.generation = -1
        self.joined: rpc.JoinGroupResponse | None = None
        self.metadata = b""
        self.assignment = b""

    def join_request(self) -> rpc.JoinGroupRequest:
        """Build its JoinGroup."""
        protocol = rpc.JoinGroupRequest.JoinGroupRequestProtocol
        return rpc.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=tuple(
                protocol(name=name, metadata=self.metadata or f"{self.name}/{name}".encode())
                for name in self.protocols
            ),
        )

    def send_join(self, **more: Any) -> int:
        """Send a JoinGroup, after the member id handshake if needed; return the ticket of the last
        one.
        """
        ticket = self.world.send(
            self.join_request(), version=self.version, client=self.name, **more
        )
        answer = self.world.answers.get(ticket)
        if answer is not None and answer.error_code == 79:
            self.member_id = answer.member_id
            return self.send_join(**more)
        return ticket

    def joins(self, ticket: int) -> int:
        """Process the answer to a JoinGroup; return its error."""
        answer = self.world.answers[ticket]
        if not answer.error_code:
            self.joined = answer
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return int(answer.error_code)

    def join(self, **more: Any) -> int:
        """Join and return the error."""
        return self.joins(self.send_join(**more))

    @property
    def leads(self) -> bool:
        """Whether it is the leader of its generation."""
        return self.joined is not None and self.joined.leader == self.member_id

    def sync_request(self, assignments: dict[str, bytes] | None = None) -> rpc.SyncGroupRequest:
        """Build its SyncGroup, with assignments if it leads."""
        assignment = rpc.SyncGroupRequest.SyncGroupRequestAssignment
        joined = self.joined
        if assignments is None and self.leads and joined is not None and not joined.skip_assignment:
            assignments = {
                member.member_id: f"{self.generation}:{member.member_id}".encode()
                for member in joined.members
            }
        return rpc.SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocol_name=self.joined.protocol_name if self.joined else None,
            assignments=tuple(
                assignment(member_id=member_id, assignment=data)
                for member_id, data in (assignments or {}).items()
            ),
        )

    def send_sync(self, assignments: dict[str, bytes] | None = None, **more: Any) -> int:
        """Send a SyncGroup; return the ticket."""
        return self.world.send(self.sync_request(assignments), version=5, **more)

    def synced(self, ticket: int) -> int:
        """Process the answer to a SyncGroup; return its error."""
        answer = self.world.answers[ticket]
        self.assignment = bytes(answer.assignment)
        if not answer.error_code:
            stored = self.world.image.groups[GROUP].generation_id
            assert stored >= self.generation, f"{self.generation} at work, {stored} in the log"
        return int(answer.error_code)

    def sync(self, assignments: dict[str, bytes] | None = None, **more: Any) -> int:
        """Sync and return the error."""
        return self.synced(self.send_sync(assignments, **more))

    def beat_request(self) -> rpc.HeartbeatRequest:
        """Build its Heartbeat."""
        return rpc.HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )

    def beat(self, **more: Any) -> int:
        """Send a Heartbeat and return the error."""
        return int(self.world.ask(self.beat_request(), **more).error_code)

    def leave_request(self) -> rpc.LeaveGroupRequest:
        """Build its LeaveGroup."""
        identity = rpc.LeaveGroupRequest.MemberIdentity
        return rpc.LeaveGroupRequest(
            group_id=GROUP,
            members=(identity(member_id=self.member_id, group_instance_id=self.instance_id),),
        )

    def leave(self, **more: Any) -> int:
        """Leave and return the error."""
        answer = self.world.ask(self.leave_request(), **more)
        return int(answer.error_code or answer.members[0].error_code)

    def commit(self, offset: int = 1, **more: Any) -> int:
        """Commit an offset of t-0; return the error."""
        return self.world.commit(self, offset, **more)


def commit_request(
    member: Any = None, offset: int = 1, topic: str = "t", partition: int = 0, metadata: str = ""
) -> rpc.OffsetCommitRequest:
    """Build an OffsetCommit of one offset, in version 9's form."""
    topics = rpc.OffsetCommitRequest.OffsetCommitRequestTopic
    return rpc.OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1 if member is None else member.generation,
        member_id="" if member is None else member.member_id,
        group_instance_id=None if member is None else member.instance_id,
        topics=(
            topics(
                name=topic,
                topic_id=TOPICS[topic][0] if topic in TOPICS else UUID(int=99),
                partitions=(
                    topics.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata=metadata,
                    ),
                ),
            ),
        ),
    )


def stable(world: World, *consumers: Consumer) -> None:
    """Make these consumers the only members, in a stable group."""
    first = [consumer.send_join() for consumer in consumers]
    for consumer, ticket in zip(consumers, first, strict=True):
        if ticket in world.answers:
            consumer.joins(ticket)
    while any(c.generation != consumers[-1].generation or c.generation < 0 for c in consumers):
        again = [(c, c.send_join()) for c in consumers if c.generation != consumers[-1].generation]
        for consumer, ticket in zip(consumers, first, strict=True):
            if ticket in world.answers:
                consumer.joins(ticket)
        for consumer, ticket in again:
            if ticket in world.answers:
                consumer.joins(ticket)
    tickets = [(consumer, consumer.send_sync()) for consumer in consumers]
    for consumer, ticket in tickets:
        assert consumer.synced(ticket) == 0, world.answers[ticket]
    assert world.state() == "Stable"


def drive(world: World, consumers: list[Consumer], rounds: int) -> bool:
    """Act as client libraries do; return whether all consumers end up in one generation."""
    waiting: dict[int, tuple[str, int]] = {}
    working: set[int] = set()
    for _ in range(rounds):
        for index, client in enumerate(consumers):
            if index in waiting:
                kind, ticket = waiting[index]
                if ticket not in world.answers:
                    continue
                del waiting[index]
                code = world.answers[ticket].error_code
                if code in (25, 82):
                    client.member_id, client.generation = "", -1
                elif code == 79:
                    client.member_id = world.answers[ticket].member_id
                elif kind == "join" and client.joins(ticket) == 0:
                    waiting[index] = ("sync", client.send_sync())
                elif kind == "sync" and client.synced(ticket) == 0:
                    working.add(index)
                elif kind == "beat" and code:
                    working.discard(index)
            elif index not in working:
                waiting[index] = ("join", client.send_join())
            else:
                waiting[index] = ("beat", world.send(client.beat_request()))
        if len(working) == len(consumers) and len({c.generation for c in consumers}) == 1:
            return True
        world.pass_ms(500)
    return False


def records_of(machine: GroupMachine) -> list[bytes]:
    """Return a checkpoint's values."""
    frozen = machine.freeze()
    values = [bytes(value) for value in frozen.values() if value]
    frozen.close()
    return values


def load(machine: GroupMachine, snapshot_id: OffsetAndEpoch, values: list[bytes]) -> None:
    """Load a checkpoint's values in small batches."""
    batches = []
    for first in range(0, len(values), 3):
        data = build_value_batch(
            values[first : first + 3], base_offset=first, leader_epoch=0, timestamp=0
        )
        batches += list[Batch](iter_batches(bytes(data)))
    for _ in machine.load(snapshot_id, batches):
        pass
