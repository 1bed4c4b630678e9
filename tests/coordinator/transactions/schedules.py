"""Schedules of transactions under faults that a seed draws: all parts of production, on one clock.

Producers run transactions over three partitions of two batch coordinators, and a group's offsets.
Production code are the transaction log and its delivery of markers, two batch coordinators and
replicas of their states, the group log with its broker, and two brokers' owners and proofs. The
seed draws lost and late calls, lost answers, uploads that are committed late, leaders deposed in
the middle of markers, records that a deposed leader loses, timeouts, new producers of a
transactional id, moved ownerships, epochs near the last one, lagging replicas, images without a
topic, and deleted records.

Each producer does what Kafka's clients do. `run` checks after each step what readers see, and at
the end, when everything late has arrived, that each transaction is visible as a whole or not at
all.

Source: docs/design/transactions.md.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from coordinator.batch.memory import InMemoryState
from coordinator.batch.reads import find_batches
from coordinator.errors import CoordinatorError
from coordinator.features import Features
from coordinator.groups.events import Call
from coordinator.leader_client import Failure
from coordinator.persistent_map import Map
from coordinator.transactions.checkpoint import state_record
from coordinator.transactions.decide import Context, Decision
from coordinator.transactions.leader import Decided
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.markers import GROUP_LOG, Answered, Row, coordinator_request
from coordinator.transactions.state import LAST_EPOCH, OPEN, State, TransactionsImage
from diskless.transactions import ending
from diskless.transactions.owner import TransactionOwner
from diskless.transactions.proofs import Producer, Proof, TransactionProofs
from records.batch import iter_batches
from records.diskless import TransactionMarkersRecord
from records.features import ESKER_VERSION, TRANSACTION_VERSION
from records.kafka_errors import ErrorCode
from records.rpc import group_log, groups
from records.rpc import transaction_log as rpc
from records.rpc.base import Request
from records.rpc.batch_coordinator import (
    CommitBatchesRequest,
    DeleteDisklessRecordsRequest,
    FindBatchesRequest,
    TransactionalBatch,
)
from records.rpc.objects import AcquireObjectLeaseRequest
from tests.coordinator.batch.actors import batch, create, results
from tests.coordinator.batch.actors import groups as nested
from tests.coordinator.batch.subjects import KEYS, SETTINGS, MemoryWorld
from tests.coordinator.groups.world import GROUP, load, records_of
from tests.coordinator.groups.world import World as GroupWorld
from tests.coordinator.transactions.world import GROUPS, OTHER, TIMEOUT_MS, TOPIC
from tests.coordinator.transactions.world import World as LogWorld

PARTITIONS: Final = ((TOPIC, 0), (TOPIC, 1), (OTHER, 0))
NAMES: Final = {TOPIC: "t71", OTHER: "t72", GROUPS: "__consumer_offsets"}
OFFSETS: Final = (GROUPS, 0)
FEATURES: Final = Features(Map[str, int]().set(ESKER_VERSION, 4).set(TRANSACTION_VERSION, 2))
STEPS: Final = 70
AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Codes after which a client repeats its request."""

TopicPartition = tuple[UUID, int]


@dataclass(eq=False, slots=True)
class Sent:
    """A batch of a client's transaction; it may be in several objects, and accepted in one."""

    txn: Txn
    partition: TopicPartition
    producer_id: int
    epoch: int
    sequence: int
    number: int = -1  # under which it was accepted
    offset: int = -1
    is_acked: bool = False


@dataclass(eq=False, slots=True)
class Txn:
    """A transaction as its client knows it."""

    name: str
    sent: list[Sent] = field(default_factory=list)
    waiting: dict[TopicPartition, Sent | None] = field(default_factory=dict)  # None: not sent now
    offset: int = -1  # that the group log has acknowledged
    asks_commit: bool = False
    result: bool | None = None  # as the client was answered


@dataclass(eq=False, slots=True)
class Client:
    """A producer with a transactional id, as Kafka's clients behave."""

    name: str
    index: int
    producer_id: int = -1
    epoch: int = -1
    is_ready: bool = False
    raises_epoch: bool = False  # by InitProducerId: a batch may still arrive
    is_dead: bool = False  # fenced
    added: set[TopicPartition] = field(default_factory=set)
    sequences: Counter[TopicPartition] = field(default_factory=Counter)
    txn: Txn | None = None
    must_abort: bool = False
    left: int = 0  # batches and offsets to send in this transaction


@dataclass(eq=False, slots=True)
class Broker:
    """A broker's owner and proofs, with its own replica of the transaction log."""

    broker_id: int
    sim: Simulation
    machine: TransactionMachine = field(default_factory=TransactionMachine)

    def __post_init__(self) -> None:
        self.image = SimpleNamespace(
            offset=50, features=FEATURES, brokers={self.broker_id: SimpleNamespace(broker_epoch=1)}
        )
        cluster: Any = self
        self.owner = Owner(cluster)
        self.proofs = TransactionProofs(cluster)

    image: Any = None
    owner: Any = None
    proofs: Any = None

    def transactions(self) -> tuple[TransactionsImage, int]:
        """The replica, which may lag."""
        return self.machine.image, self.machine.applied.offset

    async def ask_transactions(self, request: Request) -> Any:
        """Send one call to the leader of the transaction log, through the faulty network."""
        return self.sim.call_log(request)

    def catch_up(self, batches: int = 10**6) -> None:
        """Apply the next batches of the transaction log."""
        log = self.sim.log.log
        while batches and self.machine.applied.offset < (log.high_watermark or 0):
            (one, *_) = iter_batches(log.read(self.machine.applied.offset, 1))
            self.machine.apply([one])
            batches -= 1


class Owner(TransactionOwner):
    """An owner of ids whose rendezvous choice the schedule makes."""

    def chosen_broker(self, transactional_id: str) -> int | None:  # noqa: ARG002
        """Return the broker that the schedule has chosen."""
        broker: Any = self._cluster
        chosen: int = broker.sim.chosen
        return chosen


@dataclass(eq=False)
class Part:
    """A batch coordinator, a lagging replica of its state, and what readers of that have seen."""

    world: MemoryWorld
    replica: InMemoryState = field(default_factory=InMemoryState)
    records: list[tuple[int, Any]] = field(default_factory=list)
    read: int = 0  # records of the coordinator that are in `records`
    applied: int = 0  # of `records`, in the replica
    objects: dict[int, Sent] = field(default_factory=dict)
    stable: dict[TopicPartition, int] = field(default_factory=Counter)


class Transactions(LogWorld):
    """The transaction log, whose markers go through the schedule's network."""

    sim: Simulation

    def _send(self, destination: int, rows: Sequence[Row], answered: Answered) -> None:
        self.sim.send_markers(destination, rows, answered)


class Simulation:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.faults = True
        self.late: list[Callable[[], object]] = []
        self.uploads: list[Callable[[], object]] = []
        self.chosen = 1
        self.log = Transactions()
        self.log.sim = self
        self.is_v2 = bool(seed % 2)
        self.spare = 4000
        self.offset = 0
        self.outcomes: dict[tuple[str, int], bool] = {}
        self.newest: dict[str, int] = {}
        self.ids: dict[int, str] = {}  # transactional ids by producer id
        self.txns: list[Txn] = []
        self.of_number: dict[tuple[str, int], Txn] = {}
        self.of_offset: dict[int, tuple[str, int, Txn]] = {}
        self.marked: set[tuple[UUID, int, int, int]] = set()
        self.log.machine.listen(self.heard)
        self.groups = GroupWorld()
        self.parts = [Part(MemoryWorld()), Part(MemoryWorld())]
        for part, topic in zip(self.parts, (TOPIC, OTHER), strict=True):
            part.world.view.raise_level(4)
            assert self.finish(create(part.world, topic)) == 0
            self.note(part)
        self.brokers = [Broker(1, self), Broker(2, self)]
        self.clients = [Client(name, index) for index, name in enumerate(("a", "b"))]
        if self.rng.random() < 0.3:
            for client in self.clients:
                self.exhaust(client)

    # --- running ------------------------------------------------------------------------------

    def run(self) -> Simulation:
        """Run the schedule to its end, and check it."""
        with patch.object(ending, "PAUSES_S", (0, 0, 0, 0)):
            for _ in range(STEPS):
                self.step()
                self.check()
            self.drain()
        return self

    def finish(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine whose only pauses are those between repeated questions."""
        while True:
            try:
                call.send(None)
            except StopIteration as end:
                return end.value
            self.log.pass_ms(20)

    def step(self) -> None:
        """Do one thing: mostly a producer's, sometimes the network's or a fault."""
        act = self.rng.random()
        self.log.pass_ms(self.rng.choice((0, 5, 60, 400)))
        if act < 0.64:
            self.advance(self.rng.choice([one for one in self.clients if not one.is_dead]))
        elif act < 0.82:
            self.take(self.uploads)
        elif act < 0.92:
            self.take(self.late)
        else:
            self.disturb()
        for broker in self.brokers:
            broker.catch_up(self.rng.choice((0, 0, 1, 5)))
        for part in self.parts:
            self.replicate(part, self.rng.choice((0, 1, 5)))

    def take(self, waiting: list[Callable[[], object]]) -> None:
        """Let one of the waiting calls arrive."""
        if waiting:
            waiting.pop(self.rng.randrange(len(waiting)))()

    def disturb(self) -> None:
        """Do one of the rarer faults."""
        log, act = self.log.log, self.rng.randrange(9)
        if not log.auto_commit:
            log.auto_commit = True
            if self.rng.random() < 0.5:
                self.log.change_leader(lose=self.rng.random() < 0.7)
                self.seen["leader lost records"] += 1
            else:
                log.commit()
                self.log.run()
        elif act == 0:
            log.auto_commit = False
        elif act == 1:
            self.log.change_leader()
        elif act == 2:
            self.restart_log()
        elif act == 3:
            self.log.pass_ms(TIMEOUT_MS)
            self.log.transactions.abort_timed_out()
            self.log.run()
            self.seen["timeout"] += 1
        elif act == 4:
            name = self.rng.choice("ab")  # fences the other producers of this id
            self.clients.append(Client(name, "ab".index(name)))
        elif act == 5:
            self.chosen = 3 - self.chosen
        elif act == 6:
            self.hide_or_show_topic()
        elif act == 7:
            self.trim(self.rng.choice(PARTITIONS))
        elif act == 8:
            part = self.rng.choice(self.parts)
            self.finish(part.world.restart())
            part.read = 0
        else:
            self.take(self.late)

    def restart_log(self) -> None:
        """Restart the node of the transaction log from a checkpoint."""
        at, values = self.log.machine.applied, records_of(self.log.machine)
        self.log.log.depose(lose_uncommitted=False)
        self.log.run()
        self.log.machine = TransactionMachine()
        load(self.log.machine, at, values)
        self.log.machine.listen(self.heard)
        self.log.build()
        self.log.log.elect()
        self.log.run()

    def hide_or_show_topic(self) -> None:
        """Let the leader's cluster image lag behind a topic, or catch up."""
        places = self.log.places
        is_behind = OTHER not in places.known
        places.image_offset = 100 if is_behind else 49
        if is_behind:
            places.known[OTHER] = 1
        else:
            del places.known[OTHER]
        self.log.transactions.delivery.places_changed()
        self.log.run()

    def trim(self, partition: TopicPartition) -> None:
        """Delete the first records of a partition."""
        part = self.part(partition)
        state = part.world.coordinator.state
        log_start, end = state.logs[state.topics[partition[0]].log_ids[partition[1]]]
        row = DeleteDisklessRecordsRequest.Topic.Partition(
            partition_index=partition[1], offset=self.rng.randint(log_start, end)
        )
        named = DeleteDisklessRecordsRequest.Topic(topic_id=partition[0], partitions=(row,))
        self.tell(part, DeleteDisklessRecordsRequest(topics=(named,)))

    def exhaust(self, client: Client) -> None:
        """Begin with a producer whose epoch is near the last one."""
        self.initialise(client)
        if not client.is_ready:
            return

        def raised(context: Context) -> Decision:
            before = context.image.ids[client.name]
            after = before._replace(producer_epoch=LAST_EPOCH - 1)
            return Decision((state_record(client.name, after),), None)

        self.log.transactions.submit(raised, lambda _: None)
        self.log.run()
        client.epoch = LAST_EPOCH - 1

    # --- the network --------------------------------------------------------------------------

    def call_log(self, request: Request) -> Any:
        """Carry a broker's call to the transaction log, or lose it, or its answer."""
        fault = self.rng.random() if self.faults else 1.0
        error = CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "lost")
        if fault < 0.05:
            return Failure(error, in_doubt=False)
        if fault < (0.2 if isinstance(request, rpc.EndTransactionRequest) else 0.12):
            self.late.append(lambda: self.ask(request))
            self.seen["late call"] += 1
            return Failure(error, in_doubt=True)
        answer = self.ask(request)
        if answer is None or isinstance(answer, CoordinatorError) or fault < 0.25:
            return Failure(error, in_doubt=True)
        return answer

    def ask(self, request: Request) -> Any:
        """Ask the transaction log; None if it does not answer now."""
        answers: list[Any] = []
        self.log.transactions.ask(request, answers.append)
        self.log.run()
        answer = answers[0] if answers else None
        return answer.response if isinstance(answer, Decided) else answer

    def send_markers(self, destination: int, rows: Sequence[Row], answered: Answered) -> None:
        """Carry markers to a destination, now or later, once or twice."""
        fault = self.rng.random() if self.faults else 1.0
        if fault < 0.25:
            self.seen["late markers"] += 1
            self.late.append(lambda: answered(self.write_markers(destination, rows)))
            return
        if fault < 0.35:  # a copy of a leader that gave up waiting
            self.late.append(lambda: self.write_markers(destination, rows))
            answered(None)
            return
        codes = self.write_markers(destination, rows)
        answered(None if fault < 0.5 else codes)

    def write_markers(self, destination: int, rows: Sequence[Row]) -> Sequence[int] | None:
        """Let a destination write markers."""
        if destination == GROUP_LOG:
            answers: list[Any] = []
            self.groups.groups.ask(
                group_log.WriteGroupMarkersRequest(
                    producer_ids=tuple(row.producer_id for row in rows),
                    transaction_numbers=tuple(row.number for row in rows),
                    committed=tuple(row.is_committed for row in rows),
                ),
                answers.append,
            )
            self.groups.run()
            assert answers[0].error_code == 0
            return [0] * len(rows)
        response = self.tell(self.parts[destination], coordinator_request(destination, rows, 1))
        assert response.error_code == 0, response
        codes: Sequence[int] = response.marker_error_codes
        return codes

    def tell(self, part: Part, request: Any) -> Any:
        """Ask a batch coordinator, and note the records that it wrote."""
        answer = self.finish(part.world.coordinator.call(request))
        self.note(part)
        return answer

    def note(self, part: Part) -> None:
        """Note the new records of a batch coordinator."""
        log = part.world.coordinator.log
        for entry in log[part.read :]:
            part.records.append(entry)
            if isinstance(entry[1], TransactionMarkersRecord):
                self.note_markers(entry[1])
        part.read = len(log)

    def note_markers(self, record: TransactionMarkersRecord) -> None:
        """Check that each marker is written once, and with the outcome that was decided."""
        for at, offset in enumerate(record.offsets):
            number, producer_id = record.transaction_numbers[at], record.producer_ids[at]
            topic = record.topic_ids[record.topic_indexes[at]]
            key = (topic, record.partitions[at], producer_id, number)
            if offset >= 0:
                assert key not in self.marked, f"a second marker: {key}"
            self.marked.add(key)
            decided = self.outcomes.get((self.ids[producer_id], number))
            assert decided == bool(record.outcomes[at]), f"marker {key}: decided was {decided}"

    def replicate(self, part: Part, count: int = 10**9) -> None:
        """Let the replica of a batch coordinator apply some records."""
        for offset, record in part.records[part.applied : part.applied + count]:
            part.replica.apply(offset, record)
            part.applied += 1

    def part(self, partition: TopicPartition) -> Part:
        return self.parts[0 if partition[0] == TOPIC else 1]

    # --- producers ----------------------------------------------------------------------------

    def call(self, client: Client, make: Callable[[int], Request], *, create: bool = False) -> Any:
        """Send a producer's call to the broker that owns its id; return a response or code."""
        broker = self.brokers[self.chosen - 1]
        coroutine = broker.owner.call(client.name, make, create=create, is_connected=lambda: True)
        answer = self.finish(coroutine)
        return ErrorCode(answer.error_code) if getattr(answer, "error_code", 0) else answer

    def advance(self, client: Client) -> None:
        """Let a producer do its next call."""
        if not client.is_ready:
            self.initialise(client)
        elif client.txn is None:
            client.txn, client.must_abort = Txn(client.name), False
            client.left = self.rng.randint(1, 3)
            self.txns.append(client.txn)
        elif client.must_abort or (not client.left and not client.txn.waiting):
            self.end(client, client.txn)
        elif client.left and self.rng.random() < 0.7:
            self.send(client, client.txn)
        elif client.txn.waiting and self.rng.random() < 0.15:
            self.seen["gave up"] += 1
            client.must_abort = client.raises_epoch = True
        else:
            self.resend(client, client.txn)

    def initialise(self, client: Client) -> None:
        """Send InitProducerId."""
        self.spare += 1

        def make(owner: int) -> Request:
            return rpc.InitTransactionalIdRequest(
                transactional_id=client.name,
                ownership_epoch=owner,
                timeout_ms=TIMEOUT_MS,
                spare_producer_id=self.spare,
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
            )

        answer = self.call(client, make, create=True)
        if isinstance(answer, ErrorCode):
            self.fail(client, answer)
        else:
            self.renew(client, answer)
            client.is_ready, client.raises_epoch = True, False

    def renew(self, client: Client, answer: Any) -> None:
        """Take a producer id and epoch from an answer; sequences begin at 0 in a new epoch."""
        now = (answer.producer_id, answer.producer_epoch)
        if now != (client.producer_id, client.epoch):
            self.seen["new producer id"] += client.producer_id not in (-1, now[0])
            client.sequences.clear()
        client.producer_id, client.epoch = now

    def fail(self, client: Client, code: ErrorCode) -> bool:
        """Note an error; return whether the client repeats its request."""
        if code in AGAIN:
            return True
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            client.is_dead = True
            self.seen["fenced"] += 1
            self.clients.append(Client(client.name, client.index))
        else:
            client.must_abort = True
        return False

    def add(self, client: Client, partition: TopicPartition) -> bool:
        """Add a partition to a transaction of version 1; return whether it is in it."""
        if self.is_v2 or partition in client.added:
            return True

        def make(owner: int) -> Request:
            return rpc.AddTransactionPartitionsRequest(
                transactional_id=client.name,
                ownership_epoch=owner,
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
                topics=named(partition),
                metadata_offset=50,
            )

        answer = self.call(client, make)
        if isinstance(answer, ErrorCode):
            self.fail(client, answer)
            return False
        client.added.add(partition)
        return True

    def send(self, client: Client, txn: Txn) -> None:
        """Send the next batch, or the offsets of the input."""
        partition = self.rng.choice((*PARTITIONS, OFFSETS))
        if partition in txn.waiting or not self.add(client, partition):
            return
        if partition == OFFSETS:
            self.commit_offset(client, txn)
            return
        client.left -= 1
        sequence = client.sequences[partition]
        sent = Sent(txn, partition, client.producer_id, client.epoch, sequence)
        client.sequences[partition] += 1
        client.added.add(partition)
        txn.sent.append(sent)
        self.produce(client, txn, sent)

    def resend(self, client: Client, txn: Txn) -> None:
        """Send a batch again that was answered with a code to be repeated."""
        for partition, sent in list(txn.waiting.items()):
            if sent is not None:
                txn.waiting[partition] = None
                self.produce(client, txn, sent)
                return

    def produce(self, client: Client, txn: Txn, sent: Sent) -> None:
        """Send a Produce request, which may arrive late."""
        txn.waiting[sent.partition] = None
        broker = self.rng.choice(self.brokers)

        def arrive() -> None:
            self.arrive(broker, client, sent)

        if self.faults and self.rng.random() < 0.12:
            self.late.append(arrive)
        else:
            arrive()

    def answer(self, client: Client, sent: Sent, code: int) -> None:
        """Give a client the answer to a batch, unless it has given up the transaction."""
        if client.txn is not sent.txn or client.is_dead:
            return
        if not code:
            sent.is_acked = True
            sent.txn.waiting.pop(sent.partition, None)
        elif code in AGAIN:
            sent.txn.waiting[sent.partition] = sent
        else:
            client.raises_epoch = True
            self.fail(client, ErrorCode(code))

    def arrive(self, broker: Broker, client: Client, sent: Sent) -> None:
        """A broker proves a batch on its arrival, and puts it in a buffer."""
        producer = Producer(client.name, sent.producer_id, sent.epoch)
        version = 12 if self.is_v2 else 11
        proof = broker.proofs.find(producer, sent.partition, version)
        if proof is None:
            wanted = {sent.partition: NAMES[sent.partition[0]]}
            proof = self.finish(broker.proofs.prove(producer, wanted, version))[sent.partition]
        if isinstance(proof, ErrorCode):
            self.answer(client, sent, proof)
            return
        proved = proof
        self.uploads.append(lambda: self.commit(client, sent, proved))

    def commit(self, client: Client, sent: Sent, proof: Proof) -> None:
        """Commit an uploaded object with one batch; the request or its answer may be lost."""
        part = self.part(sent.partition)
        lease = self.tell(
            part,
            AcquireObjectLeaseRequest(
                coordinator_partition=0, broker_id=1, broker_epoch=1, object_count=1
            ),
        )
        assert lease.error_code == 0, lease
        one = batch(producer=sent.producer_id, epoch=sent.epoch, first=sent.sequence)
        request = CommitBatchesRequest(
            broker_id=1,
            broker_epoch=1,
            lease_id=lease.lease_id,
            object_id=lease.first_object_id,
            object_format=1,
            object_size=1_000,
            topics=nested(one, topic=sent.partition[0], partition=sent.partition[1]),
            transactional=(
                TransactionalBatch(0, proof.number, proof.version, proof.epoch_began_at_ms),
            ),
        )
        part.objects[lease.first_object_id] = sent
        fault = self.rng.random() if self.faults else 1.0
        if fault < 0.06:
            self.answer(client, sent, ErrorCode.NOT_ENOUGH_REPLICAS)  # the upload failed
            return
        if fault < 0.16:
            self.late.append(lambda: self.deliver(part, sent, proof, request))
            self.seen["late commit"] += 1
            if fault < 0.11:
                self.answer(client, sent, ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        code = self.deliver(part, sent, proof, request)
        if fault < 0.22:  # the answer is lost, the request is repeated
            code = self.deliver(part, sent, proof, request)
        self.answer(client, sent, code)

    def deliver(self, part: Part, sent: Sent, proof: Proof, request: CommitBatchesRequest) -> int:
        """Let a batch coordinator judge a batch, and check what it accepts."""
        (result,) = results(self.tell(part, request))
        code = int(result.error_code)
        if code == ErrorCode.NOT_ENOUGH_REPLICAS:
            self.seen["refused by number"] += 1
            proof.refused(proof.producer)
        if not code and not result.is_duplicate and sent.number < 0:
            assert sent.offset < 0, f"accepted twice: {sent}"
            key = (*sent.partition, sent.producer_id, proof.number)
            assert key not in self.marked, f"accepted after its marker: {key}"
            sent.number, sent.offset = proof.number, result.assigned_base_offset
            self.claim(sent.txn, proof.number)
        return code

    def claim(self, txn: Txn, number: int) -> None:
        """Check that a number belongs to one transaction of a client."""
        owner = self.of_number.setdefault((txn.name, number), txn)
        assert owner is txn, f"number {number} of {txn.name} has two transactions"

    def commit_offset(self, client: Client, txn: Txn) -> None:
        """Commit the group's offset in the transaction."""
        answer = self.call_log(
            rpc.ProveTransactionRequest(
                transactional_id=client.name,
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
                topics=named(OFFSETS),
                adds=self.is_v2,
                metadata_offset=50,
            )
        )
        if isinstance(answer, Failure):
            return
        if answer.error_code:
            self.fail(client, ErrorCode(answer.error_code))
            return
        client.added.add(OFFSETS)
        self.offset += 1
        offset, number = self.offset, answer.transaction_number
        self.of_offset[offset] = (client.name, number, txn)
        topic = groups.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        one = topic.TxnOffsetCommitRequestPartition(
            partition_index=client.index, committed_offset=offset, committed_metadata=""
        )
        request = groups.TxnOffsetCommitRequest(
            transactional_id=client.name,
            group_id=GROUP,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            topics=(topic(name="t", partitions=(one,)),),
        )
        is_late = self.faults and self.rng.random() < 0.25
        self.groups.holds = lambda _, call: (
            is_late and isinstance(call.request, group_log.CommitTransactionalOffsetsRequest)
        )
        ticket = self.groups.send(request, number=number)
        held, self.groups.held = self.groups.held, []
        for broker_id, call in held:
            self.late.append(partial(self.deliver_to_groups, broker_id, call))
            self.groups.lose_answer(broker_id, call)
        code = self.groups.answers[ticket].topics[0].partitions[0].error_code
        if code and code not in AGAIN:
            self.fail(client, ErrorCode(code))
        if not code:
            txn.offset = offset
            client.left = max(0, client.left - 1)
            self.claim(txn, number)

    def deliver_to_groups(self, broker_id: int, call: Call) -> None:
        """Let the group log read a late call of a broker."""
        self.groups.deliver(broker_id, call)
        self.groups.run()

    def end(self, client: Client, txn: Txn) -> None:
        """End the transaction; nothing is sent if nothing was added."""
        commits = not client.must_abort and all(one.is_acked for one in txn.sent)
        if client.added:
            txn.asks_commit |= commits
            self.spare += 1

            def make(owner: int) -> Request:
                return rpc.EndTransactionRequest(
                    transactional_id=client.name,
                    ownership_epoch=owner,
                    producer_id=client.producer_id,
                    producer_epoch=client.epoch,
                    committed=commits,
                    client_version=2 if self.is_v2 else 0,
                    spare_producer_id=self.spare,
                )

            answer = self.call(client, make)
            if isinstance(answer, ErrorCode):
                if not self.fail(client, answer) and not client.is_dead:
                    client.is_dead = True  # INVALID_TXN_STATE: a new producer begins
                    self.clients.append(Client(client.name, client.index))
                return
            txn.result = commits
            self.seen["committed" if commits else "aborted"] += 1
            if self.is_v2:
                self.renew(client, answer)
        client.txn, client.must_abort = None, False
        client.added.clear()
        if client.raises_epoch:
            client.is_ready = False

    # --- what must be true ----------------------------------------------------------------------

    def heard(self, image: TransactionsImage) -> None:
        """Check that numbers rise by one, and that a decided outcome stays."""
        for name, found in image.ids.items():
            if found.producer_id >= 0:
                assert self.ids.setdefault(found.producer_id, name) == name
            is_given = found.state is State.ONGOING or found.state is State.EMPTY
            assert not is_given or found.producer_epoch <= LAST_EPOCH, f"{name}: {found}"
            before = self.newest.get(name, 0)
            assert before <= found.number <= before + 1, f"number {found.number} after {before}"
            self.newest[name] = found.number
            if found.state in (State.ONGOING, State.EMPTY) or not found.number:
                is_open = found.state is State.ONGOING
                decided = self.outcomes.get((name, found.number))
                assert not is_open or decided is None, f"number {found.number} is used again"
                continue
            commits = found.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
            if found.started_at_ms >= 0 and (name, found.number) not in self.outcomes:
                self.outcomes[name, found.number] = commits
            if found.state in OPEN:
                assert self.outcomes[name, found.number] == commits, f"{name} {found.number}"

    def is_committed(self, txn: Txn, number: int) -> bool:
        """Return whether the log has decided to commit, which the client must have asked for."""
        decided = self.outcomes.get((txn.name, number), False)
        assert not decided or txn.asks_commit, f"{txn} is committed, and nobody asked"
        return decided

    def check(self) -> None:
        """Check what readers of committed records and offsets see now."""
        for partition in PARTITIONS:
            self.check_partition(partition)
        group = self.groups.image.groups.get(GROUP)
        for place, stored in () if group is None else group.offsets.items():
            _, number, txn = self.of_offset[stored.offset]
            assert self.is_committed(txn, number), f"{place}: offset of {txn} is visible"

    def check_partition(self, partition: TopicPartition) -> None:
        """Check the records that a replica shows, and that its last stable offset rises."""
        part, (topic, index) = self.part(partition), partition
        state = part.replica
        if topic not in state.topics:
            return
        log_start, _ = state.logs[state.topics[topic].log_ids[index]]
        asked = FindBatchesRequest.Topic.Partition(
            partition_index=index, offset=log_start, max_bytes=10**6
        )
        request = FindBatchesRequest(
            topics=(FindBatchesRequest.Topic(topic_id=topic, partitions=(asked,)),),
            max_bytes=10**6,
            isolation_level=1,
        )
        found = find_batches(request, state, state, SETTINGS).responses[0].partitions[0]
        assert not found.error_code, found
        stable = found.last_stable_offset
        stable = found.high_watermark if stable < 0 else stable
        assert stable >= part.stable[partition], f"LSO {stable} after {part.stable[partition]}"
        part.stable[partition] = stable
        aborted = sorted(found.aborted, key=lambda one: one.first_offset)
        dropping: set[int] = set()
        for run in found.batches:
            assert run.last_offset < stable, f"{run} is not below {stable}"
            while aborted and aborted[0].first_offset <= run.last_offset:
                dropping.add(aborted.pop(0).producer_id)
            if run.object_format == 0:
                dropping.discard(run.producer_id)
                continue
            sent = part.objects[KEYS.object_id(run.object_key)]
            is_visible = sent.producer_id not in dropping
            committed = self.is_committed(sent.txn, sent.number)
            assert is_visible == committed, f"{sent} at {run.base_offset}: visible {is_visible}"
            self.seen["visible"] += is_visible
            self.seen["dropped"] += not is_visible

    def drain(self) -> None:
        """Let everything late arrive, without faults, and check the end."""
        self.faults = False
        if OTHER not in self.log.places.known:
            self.hide_or_show_topic()
        log = self.log.log
        log.auto_commit = True
        log.commit()
        self.log.run()
        for _ in range(6):
            for waiting in (self.late, self.uploads):
                while waiting:
                    self.take(waiting)
            for client in self.clients:
                client.is_dead = True
            self.log.pass_ms(TIMEOUT_MS)
            self.log.transactions.abort_timed_out()
            self.log.run()
            for part in self.parts:
                self.replicate(part)
        self.check()
        states = {name: found.state for name, found in self.log.image.ids.items()}
        assert not set(states.values()) & OPEN, states
        assert not self.log.transactions.delivery.transactions
        for part in self.parts:
            state = part.world.coordinator.state
            assert not state.open_transactions, f"open for ever: {state.open_transactions}"
            state.check_invariants()
        self.check_transactions()

    def check_transactions(self) -> None:
        """Check that each transaction has all or nothing of its batches and offsets."""
        last: dict[str, int] = {}
        for txn in self.txns:
            numbers = {one.number for one in txn.sent if one.number >= 0}
            if txn.offset >= 0:
                numbers.add(self.of_offset[txn.offset][1])
            outcomes = {self.is_committed(txn, number) for number in numbers}
            assert len(outcomes) <= 1, f"{txn}: {numbers}"
            if txn.result and (txn.sent or txn.offset >= 0):
                assert outcomes == {True}, f"{txn} was committed, and is not"
                assert all(one.number >= 0 for one in txn.sent), f"{txn} lacks a batch"
            if True in outcomes and txn.offset >= 0:
                last[txn.name] = max(txn.offset, last.get(txn.name, -1))
        group = self.groups.image.groups.get(GROUP)
        assert group is None or not group.pending.total, group
        for index, name in enumerate("ab"):
            stored = None if group is None else group.offsets.get(("t", index))
            assert (-1 if stored is None else stored.offset) >= last.get(name, -1), name


def named(partition: TopicPartition) -> tuple[rpc.TransactionTopic, ...]:
    """Name a partition as requests of the transaction log do."""
    topic_id, index = partition
    return (
        rpc.TransactionTopic(topic_id=topic_id, topic_name=NAMES[topic_id], partitions=(index,)),
    )
