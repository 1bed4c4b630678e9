"""The transaction log on a node of the quorum: decides and delivers markers while this node leads.

Decisions are made on the *pending* image, and every response waits until nothing it rests on can be
lost (`coordinator.proposer`). Passes over the ids abort timed-out transactions and remove expired
ids, a few hundred ids in each step: a pass finds candidates in the applied state, and decides again
on the pending one.

No asyncio and no clock in here.

Source: docs/design/transactions.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from coordinator.persistent_map import Map
from coordinator.proposer import Done, Proposer
from coordinator.transactions import decide
from coordinator.transactions.decide import Context, Decision
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.markers import MarkerDelivery
from coordinator.transactions.settings import TransactionSettings
from coordinator.transactions.state import Transaction, TransactionsEdit, TransactionsImage
from raft.interfaces import ReplicatedLog
from records.rpc import transaction_log as rpc
from records.rpc.base import Request
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch

log: Final = logging.getLogger("coordinator.transactions")

PASS_SLICE: Final = 500  # ids scanned in one step

Brokers = Callable[[], Sequence[int] | None]
"""Returns the unfenced brokers in this node's image; None if they are unknown."""

BrokerEpochs = Callable[[], Mapping[int, int] | None]
"""Returns the epoch of each broker registered in this node's image; None: any epoch is kept."""

_DECISIONS: Final[dict[type[Request], Callable[[Any, Context], Decision]]] = {
    rpc.AcquireTransactionalIdRequest: decide.decide_acquire,
    rpc.InitTransactionalIdRequest: decide.decide_init,
    rpc.AddTransactionPartitionsRequest: decide.decide_add,
    rpc.EndTransactionRequest: decide.decide_end,
    rpc.ProveTransactionRequest: decide.decide_prove,
}


class Decided:
    """The response of a decision, and whether records were written for it."""

    __slots__ = ("response", "wrote")

    def __init__(self, response: Any, *, wrote: bool) -> None:
        self.response = response
        self.wrote = wrote


class PendingTransactions:
    """The image that decisions are based on; see `coordinator.proposer.Pending`."""

    def __init__(self, machine: TransactionMachine) -> None:
        self._machine = machine
        self._image = machine.image
        self._edit: TransactionsEdit | None = None
        self.end_offset = Offset(0)  # of the last record in this image, exclusive

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply a proposed record to the pending image of transactional ids."""
        if self._edit is None:
            self._edit = TransactionsEdit(self._image)
        self._edit.apply(record)
        self.end_offset = Offset(offset + 1)

    def drop(self) -> None:
        """Discard all proposed records and return to the applied image of transactional ids."""
        self._image, self._edit = self._machine.image, None
        self.end_offset = self._machine.applied.offset

    @property
    def image(self) -> TransactionsImage:
        """Return the applied image of transactional ids with all proposed records."""
        if self._edit is not None:
            self._image, self._edit = self._edit.publish(), None
        return self._image

    def settle(self) -> None:
        """Discard the pending image if the applied image includes every proposed record."""
        if self._machine.applied.offset == self.end_offset:
            self.drop()


class TransactionLog:
    """Decides requests and timeouts; a `Watcher` of the log, registered after the machine."""

    def __init__(
        self,
        watched: ReplicatedLog,
        machine: TransactionMachine,
        settings: TransactionSettings,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        wall_ms: Callable[[], int],
        brokers: Brokers = lambda: None,
        broker_epochs: BrokerEpochs = lambda: None,
        make_delivery: Callable[[Callable[[str, int], None]], MarkerDelivery],
    ) -> None:
        """Create the leader side of a transaction log, which decides after `lead` is called.

        Args:  machine: its host applies to it what the log commits.
               brokers: returns the unfenced brokers.
               broker_epochs: returns the epochs of the registered brokers.
               make_delivery: builds the delivery of markers, given what ends a transaction.
        """
        self.log = watched
        self.machine = machine
        self.settings = settings
        self.call_soon = call_soon
        self.wall_ms = wall_ms
        self.timed_out = 0  # transactions that this node aborted by their timeout
        self._brokers = brokers
        self._broker_epochs = broker_epochs
        self._pending = PendingTransactions(machine)
        self.proposer = Proposer(
            watched,
            self._pending,
            applied=lambda: machine.applied.offset,
            call_soon=call_soon,
            now_ms=wall_ms,
        )
        self.delivery = make_delivery(self._complete)
        self._leads = False
        self._delivered: Map[tuple[str, int], bool] = Map()  # whose delivery has begun
        self._waiting: list[tuple[Offset, Callable[[], None]]] = []
        machine.listen(self._on_image)

    # --- a Watcher ----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Send the responses whose records are below the high watermark."""
        self.proposer.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        """Start to lead; decide requests once every record before this epoch is applied."""
        self.proposer.lead(epoch)
        self._leads = True
        self._deliver()

    def step_down(self, epoch: Epoch) -> None:
        """Stop deciding requests; waiting requests end with an unknown outcome."""
        self._leads, self._delivered = False, Map()
        self.delivery.end()
        self.proposer.step_down(epoch)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Do nothing, because the host of the state machine loads snapshots."""

    def _on_image(self, image: TransactionsImage) -> None:  # noqa: ARG002 (a listener's)
        self._pending.settle()
        self.proposer.applied()
        self._deliver()
        applied = self.machine.applied.offset
        due = [on_done for offset, on_done in self._waiting if offset <= applied]
        self._waiting = [waiter for waiter in self._waiting if waiter[0] > applied]
        for on_done in due:
            on_done()

    def when_applied(self, offset: Offset, on_done: Callable[[], None]) -> None:
        """Call `on_done` as soon as the applied state has every record below `offset`."""
        if self.machine.applied.offset >= offset:
            on_done()
        else:
            self._waiting.append((offset, on_done))

    def _deliver(self) -> None:
        """Begin to deliver the markers of transactions that are newly in a Prepare state."""
        if not self._leads:
            return
        image, before = self.machine.image, self._delivered
        self._delivered = image.prepared
        for transactional_id, _ in image.prepared.gone(before):
            self.delivery.add(transactional_id, image.ids[transactional_id])

    def _complete(self, transactional_id: str, number: int) -> None:
        """Propose the Complete state of a transaction whose markers are all written.

        If leadership is lost, the next leader delivers the markers again.
        """

        def done(answer: Any) -> None:
            if isinstance(answer, Exception) and self._leads:
                self.delivery.complete_later(transactional_id, number)

        self.submit(lambda context: decide.decide_complete(transactional_id, number, context), done)

    # --- deciding -----------------------------------------------------------------------------

    def ask(self, request: Request, done: Done) -> None:
        """Decide a request; call `done` with a `Decided` or a CoordinatorError."""
        decision = _DECISIONS[type(request)]

        def run(context: Context) -> Decision:
            decided = decision(request, context)
            return Decision(decided.records, Decided(decided.response, wrote=bool(decided.records)))

        self.submit(run, done)

    def submit(self, decision: Callable[[Context], Decision], done: Done) -> None:
        """Queue a decision function; call `done` with its committed response or an error.

        The error is a CoordinatorError.
        """

        def run(pending: PendingTransactions, now_ms: int) -> Decision:
            return decision(self.context(pending.image, pending.end_offset, now_ms))

        self.proposer.submit(run, done)

    def context(self, image: TransactionsImage, end_offset: int, now_ms: int) -> Context:
        """Build the inputs of a decision on this image of transactional ids."""
        return Context(
            image=image,
            end_offset=end_offset,
            now_ms=now_ms,
            settings=self.settings,
            brokers=self._brokers(),
            broker_epochs=self._broker_epochs(),
        )

    # --- passes over the ids ------------------------------------------------------------------

    def abort_timed_out(self, done: Callable[[int], None] = lambda _: None) -> None:
        """Abort the transactions that exceed their timeouts; call `done` with their number.

        A node that does not lead writes nothing.
        """

        def count(aborted: list[str]) -> int:
            self.timed_out += len(aborted)
            for transactional_id in aborted:
                log.info("transactional_id=%r action=abort reason=timeout", transactional_id)
            return len(aborted)

        names = iter(self.machine.image.ongoing)
        _Pass(self, names, decide.is_timed_out, decide.decide_timeouts, count, done).step()

    def remove_expired(self, done: Callable[[int], None] = lambda _: None) -> None:
        """Remove expired transactional ids; call `done` with their number."""

        def is_due(transaction: Transaction, now_ms: int) -> bool:
            return decide.is_expired(transaction, now_ms, self.settings)

        names = iter(self.machine.image.ids)
        _Pass(self, names, is_due, decide.decide_expiry, int, done).step()


class _Pass:
    """One pass over ids that existed when it began, a slice in each turn of the loop."""

    def __init__(
        self,
        owner: TransactionLog,
        names: Iterator[str],
        is_due: Callable[[Transaction, int], bool],
        decision: Callable[[Sequence[str], Context], Decision],
        count: Callable[[Any], int],
        done: Callable[[int], None],
    ) -> None:
        self._owner = owner
        self._names = names
        self._is_due = is_due
        self._decision = decision
        self._count = count
        self._done = done
        self._total = 0

    def step(self) -> None:
        """Scan the next few transactional ids, and propose the changes that are due for them."""
        owner = self._owner
        names = list(islice(self._names, PASS_SLICE))
        if not names or owner.proposer.epoch is None:
            self._done(self._total)
            return
        ids, now_ms = owner.machine.image.ids, owner.wall_ms()
        due = [
            name
            for name in names
            if (found := ids.get(name)) is not None and self._is_due(found, now_ms)
        ]
        if due:
            owner.submit(lambda context: self._decision(due, context), self._decided)
        else:
            owner.call_soon(self.step)

    def _decided(self, answer: Any) -> None:
        if not isinstance(answer, Exception):
            self._total += self._count(answer)
        self._owner.call_soon(self.step)
