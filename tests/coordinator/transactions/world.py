"""The transaction log on a log in memory, with destinations of markers that tests control."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from coordinator.transactions.leader import Decided, TransactionLog
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.markers import Answered, MarkerDelivery, Row
from coordinator.transactions.settings import TransactionSettings
from coordinator.transactions.state import State, Transaction, TransactionsImage
from records.batch import iter_batches
from records.rpc import transaction_log as rpc
from records.rpc.base import Request
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.doubles.memory_log import MemoryLog

ID = "x"
TOPIC = UUID(int=71)
OTHER = UUID(int=72)
GROUPS = UUID(int=73)
TIMEOUT_MS = 60_000


class Applier:
    """Reads committed batches and applies them, as `snapshot.host` does, without files."""

    def __init__(self, log: MemoryLog, machine: TransactionMachine) -> None:
        self._log = log
        self._machine = machine

    def committed(self, high_watermark: Offset) -> None:
        while self._machine.applied.offset < high_watermark:
            for batch in iter_batches(self._log.read(self._machine.applied.offset, 64 * 1024)):
                self._machine.apply([batch])

    def lead(self, epoch: Epoch) -> None: ...

    def step_down(self, epoch: Epoch) -> None: ...

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None: ...


class FewPlaces:
    """Where partitions live; a test may change it."""

    def __init__(self) -> None:
        self.known: dict[UUID, int] = {TOPIC: 0, OTHER: 1}
        self.image_offset = 100

    def coordinator(self, topic_id: UUID, partition: int) -> int | None:  # noqa: ARG002
        return self.known.get(topic_id)

    def offset(self) -> int:
        return self.image_offset


class World:
    """The transaction log: `ask` it, `pass_ms`, hold back markers, change the leader."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.log = MemoryLog("__transaction_state-0")
        self.settings = settings or TransactionSettings()
        self.wall_ms = 1_700_000_000_000
        self.places = FewPlaces()
        self.brokers: list[int] | None = None
        self.sent: list[tuple[int, tuple[Row, ...]]] = []  # requests with markers, in order
        self.held: list[tuple[int, Sequence[Row], Answered]] = []
        self.holds = False  # whether markers wait for a test to answer them
        self.code_of: Callable[[int, Row], int] = lambda _destination, _row: 0
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[int, Callable[[], None]]] = []
        self.machine = TransactionMachine()
        self.build()
        self.log.elect()
        self.run()

    def build(self) -> None:
        """Build the leader side of the log on the present machine."""
        self.log._watchers.clear()
        self.transactions = TransactionLog(
            self.log,
            self.machine,
            self.settings,
            call_soon=self._soon.append,
            wall_ms=lambda: self.wall_ms,
            brokers=lambda: self.brokers,
            make_delivery=lambda complete: MarkerDelivery(
                self.places,
                send=self._send,
                call_later=lambda ms, call: self._later.append((self.wall_ms + ms, call)),
                complete=complete,
            ),
        )
        self.log.watch(Applier(self.log, self.machine))
        self.log.watch(self.transactions)

    def _send(self, destination: int, rows: Sequence[Row], answered: Answered) -> None:
        self.sent.append((destination, tuple(rows)))
        if self.holds:
            self.held.append((destination, rows, answered))
        else:
            answered([self.code_of(destination, row) for row in rows])

    def run(self) -> None:
        """Run everything that is due."""
        for _ in range(10_000):
            if self._soon:
                self._soon.popleft()()
                continue
            due = [entry for entry in self._later if entry[0] <= self.wall_ms]
            if not due:
                return
            self._later = [entry for entry in self._later if entry[0] > self.wall_ms]
            for _, call in due:
                call()
        raise AssertionError("it does not end")

    def pass_ms(self, ms: int) -> None:
        """Advance the clock, and run what is due by then."""
        self.wall_ms += ms
        self.run()

    def change_leader(self, *, lose: bool = False) -> None:
        """Elect another leader, which keeps or loses what was not committed."""
        self.log.depose(lose_uncommitted=lose)
        self.run()
        self.log.elect()
        self.run()

    @property
    def image(self) -> TransactionsImage:
        """The applied image."""
        return self.machine.image

    @property
    def transaction(self) -> Transaction:
        """The applied state of ID."""
        found: Transaction = self.image.ids[ID]
        return found

    @property
    def state(self) -> State:
        """The applied state of ID, its name only."""
        return self.transaction.state

    def ask(self, request: Request) -> Any:
        """Send a request and return its response, or the CoordinatorError."""
        answers: list[Any] = []
        self.transactions.ask(request, answers.append)
        self.run()
        (answer,) = answers
        return answer.response if isinstance(answer, Decided) else answer

    # --- the calls of a producer ----------------------------------------------------------------

    def acquire(self, broker_id: int = 1, *, create: bool = True, name: str = ID) -> Any:
        """Acquire the ownership of an id."""
        return self.ask(
            rpc.AcquireTransactionalIdRequest(
                transactional_id=name, broker_id=broker_id, broker_epoch=1, create=create
            )
        )

    def init(self, owner: int, spare: int = 4000, **more: Any) -> Any:
        """Initialise the producer of ID."""
        more = {"timeout_ms": TIMEOUT_MS, **more}
        return self.ask(
            rpc.InitTransactionalIdRequest(
                transactional_id=ID, ownership_epoch=owner, spare_producer_id=spare, **more
            )
        )

    def add(self, owner: int, *topics: UUID, producer_id: int = 4000, epoch: int = 0) -> Any:
        """Add partition 0 of topics to the transaction of ID."""
        return self.ask(
            rpc.AddTransactionPartitionsRequest(
                transactional_id=ID,
                ownership_epoch=owner,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=named(*(topics or (TOPIC,))),
                metadata_offset=50,
            )
        )

    def end(
        self,
        owner: int,
        *,
        committed: bool = True,
        producer_id: int = 4000,
        epoch: int = 0,
        version: int = 0,
        spare: int = -1,
    ) -> Any:
        """End the transaction of ID."""
        return self.ask(
            rpc.EndTransactionRequest(
                transactional_id=ID,
                ownership_epoch=owner,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=committed,
                client_version=version,
                spare_producer_id=spare,
            )
        )

    def prove(
        self, *topics: UUID, producer_id: int = 4000, epoch: int = 0, adds: bool = False
    ) -> Any:
        """Prove partition 0 of topics."""
        return self.ask(
            rpc.ProveTransactionRequest(
                transactional_id=ID,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=named(*(topics or (TOPIC,))),
                adds=adds,
                metadata_offset=50,
            )
        )

    def begin(self, *topics: UUID) -> int:
        """Acquire ID, initialise its producer, begin a transaction; return the ownership epoch."""
        owner = self.acquire().ownership_epoch
        assert self.init(owner).error_code == 0
        assert self.add(owner, *topics).error_code == 0
        return int(owner)


def named(*topics: UUID) -> tuple[rpc.TransactionTopic, ...]:
    """Partition 0 of each topic."""
    names = {GROUPS: "__consumer_offsets"}
    return tuple(
        rpc.TransactionTopic(
            topic_id=topic, topic_name=names.get(topic, f"t{topic.int}"), partitions=(0,)
        )
        for topic in topics
    )
