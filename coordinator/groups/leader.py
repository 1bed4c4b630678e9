"""The group log on a node of the quorum: decides while this node leads, and serves reads.

Decisions are made on the *pending* image, and every response waits until nothing it rests on can be
lost (`coordinator.proposer`). An expiry pass visits all groups periodically, a few hundred in each
step: it finds candidates in the applied state, and decides again on the pending one.

No asyncio and no clock in here.

Source: docs/design/groups.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

from coordinator.features import Features
from coordinator.groups import decide, decide_transactions
from coordinator.groups.decide import Context, Decision
from coordinator.groups.machine import GroupMachine
from coordinator.groups.settings import LogSettings
from coordinator.groups.state import Group, GroupsEdit, GroupsImage
from coordinator.proposer import Done, Proposer
from raft.interfaces import ReplicatedLog
from records.rpc import group_log as rpc
from records.rpc.base import Request
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch

log = logging.getLogger("coordinator.groups")

EXPIRY_SLICE_GROUPS: Final = 200  # scanned in one step
MAX_DELETED_TOPICS: Final = 10_000  # kept for the next expiry pass; leftovers are harmless
MAX_GONE_TOPICS: Final = 10_000  # whose late commits are refused; the newest are kept

Brokers = Callable[[], Sequence[int] | None]
"""Returns the unfenced brokers in this node's image; None if they are unknown."""

BrokerEpochs = Callable[[], Mapping[int, int] | None]
"""Returns the epoch of each broker registered in this node's image; None: any epoch is kept."""

_DECISIONS: Final[dict[type[Request], Callable[[Any, Context], Decision]]] = {
    rpc.AcquireGroupOwnershipRequest: decide.decide_acquire,
    rpc.CommitGroupOffsetsRequest: decide.decide_commit_offsets,
    rpc.CommitGroupGenerationRequest: decide.decide_commit_generation,
    rpc.RemoveGroupRequest: decide.decide_remove,
    rpc.RemoveGroupOffsetsRequest: decide.decide_remove_offsets,
    rpc.CommitTransactionalOffsetsRequest: decide_transactions.decide_commit_transactional,
    rpc.WriteGroupMarkersRequest: decide_transactions.decide_markers,
}


class PendingGroups:
    """The image that decisions are based on; see `coordinator.proposer.Pending`."""

    def __init__(self, machine: GroupMachine) -> None:
        self._machine = machine
        self._image = machine.image
        self._edit: GroupsEdit | None = None
        self._next_offset = Offset(0)

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply a proposed record to the pending image of the groups."""
        if self._edit is None:
            self._edit = GroupsEdit(self._image)
        self._edit.apply(record)
        self._next_offset = Offset(offset + 1)

    def drop(self) -> None:
        """Discard all proposed records and return to the applied image of the groups."""
        self._image, self._edit = self._machine.image, None
        self._next_offset = self._machine.applied.offset

    @property
    def image(self) -> GroupsImage:
        """Return the applied image of the groups with all proposed records."""
        if self._edit is not None:
            self._image, self._edit = self._edit.publish(), None
        return self._image

    def settle(self) -> None:
        """Discard the pending image if the applied image includes every proposed record."""
        if self._machine.applied.offset == self._next_offset:
            self.drop()


class GroupLog:
    """Decides requests and applies timeouts; a `Watcher` of the log, registered after the machine's
    host.
    """

    def __init__(
        self,
        watched: ReplicatedLog,
        machine: GroupMachine,
        settings: LogSettings,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        wall_ms: Callable[[], int],
        brokers: Brokers = lambda: None,
        broker_epochs: BrokerEpochs = lambda: None,
        features: Callable[[], Features] = Features,
    ) -> None:
        """Create the leader side of a group log, which decides requests after `lead` is called.

        Args:  machine: its host applies to it what the log commits.
               brokers: returns the unfenced brokers.
               broker_epochs: returns the epochs of the registered brokers.
               features: returns the feature levels in this node's image.
        """
        self.log = watched
        self.machine = machine
        self.settings = settings
        self.call_soon = call_soon
        self.wall_ms = wall_ms
        self._brokers = brokers
        self._broker_epochs = broker_epochs
        self._features = features
        self._pending = PendingGroups(machine)
        self.proposer = Proposer(
            watched,
            self._pending,
            applied=lambda: machine.applied.offset,
            call_soon=call_soon,
            now_ms=wall_ms,
        )
        self._deleted_topics: frozenset[UUID] = frozenset()
        self._gone_topics: dict[UUID, None] = {}  # kept after the pass too; oldest first
        self._waiting: list[tuple[Offset, Callable[[], None]]] = []
        machine.listen(self._on_image)

    # --- a Watcher ----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Send the responses whose records are below the high watermark."""
        self.proposer.committed(high_watermark)

    def lead(self, epoch: Epoch) -> None:
        """Start to lead; decide requests once every record before this epoch is applied."""
        self.proposer.lead(epoch)

    def step_down(self, epoch: Epoch) -> None:
        """Stop deciding requests; waiting requests end with an unknown outcome."""
        self.proposer.step_down(epoch)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Do nothing, because the host of the state machine loads snapshots."""

    def _on_image(self, image: GroupsImage) -> None:  # noqa: ARG002 (a listener's)
        self._pending.settle()
        self.proposer.applied()
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

    # --- deciding -----------------------------------------------------------------------------

    def ask(self, request: Request, done: Done) -> None:
        """Decide a request; call `done` with the committed response or a CoordinatorError."""
        decision = _DECISIONS[type(request)]
        self.submit(lambda context: decision(request, context), done)

    def submit(self, decision: Callable[[Context], Decision], done: Done) -> None:
        """Queue a decision function; call `done` with its committed response or an error.

        The error is a CoordinatorError.
        """

        def run(pending: PendingGroups, now_ms: int) -> Decision:
            return decision(self.context(pending.image, now_ms))

        self.proposer.submit(run, done)

    def context(self, image: GroupsImage, now_ms: int) -> Context:
        """Build the inputs of a decision on this image of the groups."""
        return Context(
            image=image,
            now_ms=now_ms,
            settings=self.settings,
            brokers=self._brokers(),
            broker_epochs=self._broker_epochs(),
            gone_topics=self._gone_topics,
            features=self._features(),
        )

    # --- expiry -------------------------------------------------------------------------------

    def topic_deleted(self, topic_id: UUID) -> None:
        """Record a deleted topic, whose committed offsets the next expiry pass removes.

        Every node records it. Commits that name the topic's id are refused from now on.
        """
        self._gone_topics[topic_id] = None
        if len(self._gone_topics) > MAX_GONE_TOPICS:
            del self._gone_topics[next(iter(self._gone_topics))]
        if len(self._deleted_topics) < MAX_DELETED_TOPICS:
            self._deleted_topics |= {topic_id}

    def expire_groups(self, done: Callable[[int], None] | None = None) -> None:
        """Start an expiry pass over all groups; call `done` with the number of records written.

        A node that does not lead writes nothing.
        """
        deleted, self._deleted_topics = self._deleted_topics, frozenset()
        _ExpiryPass(self, deleted, done or (lambda _: None)).step()

    def keep_deleted_topics(self, topic_ids: frozenset[UUID]) -> None:
        """Keep deleted topics for the next expiry pass, because this pass skipped some groups."""
        self._deleted_topics |= topic_ids


class _ExpiryPass:
    """One pass over the groups and producer ids that existed when it began.

    It handles a slice in each turn of the loop.
    """

    def __init__(
        self, owner: GroupLog, deleted: frozenset[UUID], done: Callable[[int], None]
    ) -> None:
        self._owner = owner
        self._deleted = deleted
        self._done = done
        image = owner.machine.image
        self._groups: Iterator[tuple[str, Group]] = iter(image.groups.items())
        self._producers = iter(image.producers.items())
        self._total = 0

    def step(self) -> None:
        """Scan the next few groups, and propose to remove expired offsets and groups."""
        owner = self._owner
        groups = list(islice(self._groups, EXPIRY_SLICE_GROUPS))
        if owner.proposer.epoch is None:
            owner.keep_deleted_topics(self._deleted)
            self._done(self._total)
            return
        if not groups:
            self._step_producers()
            return
        context = owner.context(owner.machine.image, owner.wall_ms())
        for _, group in groups:
            owner.keep_deleted_topics(self._deleted & group.pending.topic_ids())
        due = [
            name for name, group in groups if decide.is_expiry_due(group, self._deleted, context)
        ]
        if due:
            owner.submit(lambda late: decide.decide_expiry(due, self._deleted, late), self._decided)
        else:
            owner.call_soon(self.step)

    def _step_producers(self) -> None:
        """Scan the next few producer ids, and propose to remove their old ended transactions."""
        owner = self._owner
        producers = list(islice(self._producers, EXPIRY_SLICE_GROUPS))
        if not producers:
            self._done(self._total)
            return
        context = owner.context(owner.machine.image, owner.wall_ms())
        due = [
            producer_id
            for producer_id, producer in producers
            if decide_transactions.is_producer_expired(producer, context)
        ]
        if due:
            owner.submit(
                lambda late: decide_transactions.decide_producer_expiry(due, late), self._decided
            )
        else:
            owner.call_soon(self.step)

    def _decided(self, answer: Any) -> None:
        if not isinstance(answer, Exception):
            self._total += answer
        self._owner.call_soon(self.step)
