"""The active controller: decides requests, keeps the log alive, fences silent brokers.

`Controller` runs on every node and is idle until its node leads. Then it decides each request on
the *pending* image, which holds what was proposed and not committed yet, and answers when the
outcome can no longer be lost (`coordinator.proposer` has that rule). Images are immutable, so a
pending image is one more image.

The first decision of a leadership comes before all others: a transaction that the former leader
left open is aborted, and an empty log begins with the bootstrap records, in a transaction of their
own. A large decision becomes a transaction too, split into batches of 250 records, so that a
replica applies it in slices and shows it at once.

No clock, socket or thread in here: time, delayed calls and ids come from outside.

Source: docs/design/state-machines.md#a-refusal-waits-for-the-read-barrier; KIP-631; KIP-835
(NoOpRecord); KIP-868 (transactions).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from coordinator.controller.apply import ImageEdit
from coordinator.controller.decide.brokers import fence_silent
from coordinator.controller.decide.context import Context, Decision, Limits
from coordinator.controller.decide.transactions import (
    create_transaction_log,
    lacks_transaction_log,
)
from coordinator.controller.image import MetadataImage
from coordinator.controller.machine import ControllerMachine
from coordinator.controller.preference import (
    Preferences,
    change_preferences,
    may_write_preference,
)
from coordinator.controller.sessions import BrokerSessions
from coordinator.proposer import Done, Proposer
from raft.interfaces import Draft, ReplicatedLog, draft_values
from records.features import SUPPORTED
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    RegisterBrokerRecord,
)
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch

log = logging.getLogger("coordinator.controller")

BATCH_RECORDS: Final = 250
"""A larger decision is split: a replica applies one batch in one step, in about 2 ms."""

TURN_BYTES: Final = 2 * 1024
"""Records decided in one turn of the loop: one slice of a request, fifty partitions, 0.6 ms."""

_BEGIN: Final = 23  # BeginTransactionRecord's type: the second byte of its frame

Decide = Callable[[Context], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The controller's settings. Times in ms."""

    cluster_id: str
    session_timeout_ms: int = 9_000  # broker.session.timeout.ms
    tick_interval_ms: int = 500  # between two checks of sessions and idleness
    max_idle_interval_ms: int = 500  # metadata.max.idle.interval.ms; 0: no NoOpRecord
    bootstrap: tuple[MetadataRecord, ...] = ()  # of an empty log
    limits: Limits = field(default_factory=Limits)
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: SUPPORTED)
    node_id: int = 0
    voters: frozenset[int] = frozenset()  # ids; a level is finalized only if all support it


class PendingImage:
    """The image that decisions are based on; see `coordinator.proposer.Pending`."""

    def __init__(self, machine: ControllerMachine) -> None:
        self._machine = machine
        self._image = machine.image
        self._edit: ImageEdit | None = None
        self.next_offset = Offset(0)

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply a proposed record to the pending cluster image."""
        if self._edit is None:
            self._edit = ImageEdit(self._image)
        self._edit.apply(record)
        self.next_offset = Offset(offset + 1)

    def broker(self, broker_id: int) -> RegisterBrokerRecord | None:
        """Return a broker's registration with all proposed changes, or None if not registered.

        Publishes no image.
        """
        if self._edit is not None:
            return self._edit.broker(broker_id)
        found: RegisterBrokerRecord | None = self._image.brokers.get(broker_id)
        return found

    def drop(self) -> None:
        """Discard all proposed records and return to the applied cluster image."""
        self._image, self._edit = self._machine.image, None
        self.next_offset = self._machine.applied.offset

    @property
    def image(self) -> MetadataImage:
        """Return the cluster image with all proposed records, as of `next_offset`."""
        if self._edit is not None:
            self._image = self._edit.publish(self.next_offset, self._image.epoch)
        return self._image

    def settle(self) -> None:
        """Discard the pending image if the applied image includes every proposed record."""
        if self._machine.applied.offset == self.next_offset and not self._machine.in_transaction:
            self.drop()


def make_draft(values: Sequence[Sequence[bytes]], now_ms: int) -> Draft:
    """Encode the records of several decisions as batches of bounded size.

    Small decisions share a batch, and a long transaction is split.

    A decision that is not a transaction is not split: it relies on being in one batch.
    """
    batches: list[list[bytes]] = [[]]
    for decided in values:
        if len(decided) <= BATCH_RECORDS or decided[0][1] != _BEGIN:
            batches[-1].extend(decided)
            continue
        batches += [
            list(decided[first : first + BATCH_RECORDS])
            for first in range(0, len(decided), BATCH_RECORDS)
        ]
        batches.append([])
    drafts = [draft_values(batch, timestamp_ms=now_ms) for batch in batches if batch]
    return Draft(
        [part for draft in drafts for part in draft.parts],
        [count for draft in drafts for count in draft.counts],
    )


def as_transaction(decision: Decision, name: str) -> Decision:
    """Wrap records that exceed one batch in a transaction, so that all or none take effect."""
    if decision.one_batch or len(decision.records) <= BATCH_RECORDS:
        return decision
    records = (
        BeginTransactionRecord(name=name),
        *decision.records,
        EndTransactionRecord(),
    )
    return replace(decision, records=records)


class Controller:
    """Decides while its node leads; a `Watcher` of the cluster log, registered after the machine's
    host.
    """

    def __init__(
        self,
        controlled: ReplicatedLog,
        machine: ControllerMachine,
        config: ControllerConfig,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        new_id: Callable[[], UUID],
    ) -> None:
        """Create a controller on the cluster log, which decides requests after `lead` is called.

        Args:  wall_ms: for times in records and responses; monotonic_ms: for sessions.
        """
        self.log = controlled
        self.machine = machine
        self.config = config
        self.sessions = BrokerSessions(timeout_ms=config.session_timeout_ms)
        self.preferences = Preferences()
        self.fenced_brokers = 0  # by this node, since it started
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._new_id = new_id
        self._pending = PendingImage(machine)
        self._proposer = Proposer(
            controlled,
            self._pending,
            applied=lambda: machine.applied.offset,
            call_soon=call_soon,
            now_ms=wall_ms,
            draft=make_draft,
            turn_bytes=TURN_BYTES,
        )
        self._idle: tuple[Offset, int] = (Offset(-1), 0)  # the log's end offset, and since when
        self._subscribers: list[tuple[Callable[[Epoch], None], Callable[[Epoch], None]]] = []
        self._leading: Epoch | None = None
        self._active: Epoch | None = None
        machine.listen(self._on_image)

    @property
    def active_epoch(self) -> Epoch | None:
        """Return the controller epoch if this node is the active controller, else None."""
        return self._active

    @property
    def proposer(self) -> Proposer:
        """Return the proposer of this controller's log records, for its counters."""
        return self._proposer

    @property
    def metadata_lag(self) -> int:
        """Return the number of committed records that this node has not applied yet.

        Source: KIP-631, MetadataLag.
        """
        return max(0, (self.log.high_watermark or 0) - self.machine.applied.offset)

    def subscribe(self, active: Callable[[Epoch], None], over: Callable[[Epoch], None]) -> None:
        """Register callbacks that run when this controller becomes active and when it stops."""
        self._subscribers.append((active, over))

    # --- a Watcher ----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Send the responses whose records are below the high watermark."""
        self._proposer.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        """Start to lead; decide requests once every record before this epoch is applied."""
        self._leading = epoch
        self.sessions.begin(self._monotonic_ms())
        self.preferences.begin(self._monotonic_ms())
        self._idle = (Offset(-1), self._monotonic_ms())
        self._proposer.lead(epoch)
        self.submit(self._begin, lambda outcome: self._on_begun(epoch, outcome))

    def step_down(self, epoch: Epoch) -> None:
        """Stop deciding requests; waiting requests end with an unknown outcome."""
        was, self._active, self._leading = self._active, None, None
        self._proposer.step_down(epoch)
        if was is not None:
            for _, over in self._subscribers:
                over(was)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Do nothing, because the host of the state machine loads snapshots."""

    def _on_image(self, image: MetadataImage) -> None:  # noqa: ARG002 (a listener's)
        self._pending.settle()
        self._proposer.applied()

    # --- deciding -----------------------------------------------------------------------------

    def submit(
        self, decide: Decide, done: Done, *, name: str = "decision", urgent: bool = False
    ) -> None:
        """Queue a decision function; call `done` with its committed response or an error.

        The error is a CoordinatorError.

        Even an urgent decision waits for a leadership's first one: what is written before that may
        be inside a transaction which the first decision aborts.
        """

        def run(pending: PendingImage, now_ms: int) -> Decision:
            context = self._context(pending.image, pending.next_offset, now_ms)
            return as_transaction(decide(context), name)

        self._proposer.submit(run, done, urgent=urgent and self._active is not None)

    def _context(self, image: MetadataImage, next_offset: Offset, now_ms: int) -> Context:
        return Context(
            image=image,
            next_offset=next_offset,
            now_ms=now_ms,
            cluster_id=self.config.cluster_id,
            sessions=self.sessions,
            new_id=self._new_id,
            limits=self.config.limits,
            features=self.config.features,
            node_id=self.config.node_id,
            voters=self.config.voters,
        )

    def settled_context(self, broker_id: int) -> Context | None:
        """Return the committed state, or None if a pending record changes the registration.

        Every other answer waits until all that was proposed before it is committed, as it may rest
        on that. This one rests on one broker's record; while the pending image has the same one,
        nothing that is pending concerns it, and a heartbeat need not wait for the commit of other
        requests.
        """
        applied = self.machine.image
        known = applied.brokers.get(broker_id)
        if self._active is None or known is None or known != self._pending.broker(broker_id):
            return None
        return self._context(applied, applied.offset, self._wall_ms())

    def _begin(self, context: Context) -> Decision:
        """Abort an open transaction and bootstrap an empty log, as a leadership's first decision.

        An empty log gets the bootstrap records.
        """
        records: list[MetadataRecord] = []
        if self.machine.in_transaction:
            records.append(AbortTransactionRecord(reason="its leader is gone"))
        if not context.image.record_count and self.config.bootstrap:
            records += [
                BeginTransactionRecord(name="Bootstrap records"),
                *self.config.bootstrap,
                EndTransactionRecord(),
            ]
        return Decision(records, None, one_batch=True)

    def _on_begun(self, epoch: Epoch, outcome: Any) -> None:
        if isinstance(outcome, Exception) or self._leading != epoch:
            return
        self._active = epoch
        log.info("controller epoch=%d offset=%d", epoch, self.machine.applied.offset)
        for active, _ in self._subscribers:
            active(epoch)

    # --- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """While leading, fence silent brokers, update preferred ones and append to an idle log.

        Call it every tick interval, leading or not.
        """
        if self._active is None:
            return
        now_ms = self._monotonic_ms()
        self.sessions.tick(now_ms)
        if any(
            not broker.fenced
            and not self.sessions.is_alive(broker_id, broker.broker_epoch, fenced=False)
            for broker_id, broker in self.machine.image.brokers.items()
        ):
            self.submit(fence_silent, self._on_fenced, name="fence brokers")
        self.preferences.tick(now_ms)
        image = self.machine.image
        if may_write_preference(image) and self.preferences.choose(image, now_ms):
            self.submit(
                lambda context: change_preferences(context, self.preferences, now_ms),
                self._on_preferences_changed,
                name="change preferences",
            )
        if lacks_transaction_log(image):
            self.submit(create_transaction_log, lambda _: None, name="create transaction log")
        self._keep_alive(now_ms)

    def _on_preferences_changed(self, outcome: Any) -> None:
        if not isinstance(outcome, Exception):
            for change in outcome:
                preferred = "no" if change.reason else "yes"
                log.warning(
                    "action=prefer broker=%d preferred=%s reason=%r",
                    change.broker_id, preferred, change.reason,
                )  # fmt: skip

    def _on_fenced(self, outcome: Any) -> None:
        if not isinstance(outcome, Exception) and outcome:
            self.fenced_brokers += len(outcome)
            log.warning("action=fence brokers=%s reason=session", ",".join(map(str, outcome)))

    def _keep_alive(self, now_ms: int) -> None:
        """Append a NoOpRecord to a log without new records, so that readers see progress."""
        end_offset, since_ms = self._idle
        if self.log.end_offset != end_offset:
            self._idle = (self.log.end_offset, now_ms)
        elif self.config.max_idle_interval_ms and (
            now_ms - since_ms >= self.config.max_idle_interval_ms
        ):
            self.submit(lambda _: Decision((NoOpRecord(),), None), lambda _: None)
