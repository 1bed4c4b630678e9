"""Carries partitions from the controller's log into their batch coordinators' logs, and out again.

Two groups, two logs, and a crash may come between any two steps. It heals because only one log
decides: the controller's. A topic exists once its records are committed there; its coordinator is
informed afterwards, as often as necessary, and the client that created it is answered only then. A
new controller does not know which calls its predecessor made, so it compares its image with what
every coordinator has, and repeats whatever is missing or left over.

Two things could do harm, and each is fenced where it arrives. A *former controller* still calling:
every call carries the controller epoch, and a coordinator refuses a lower one. A *late call* of
this very controller, overtaken by a deletion: a deleted topic's id stays as a tombstone at its
coordinator, and an Init of it creates nothing.

Calls to one coordinator are made one after another; a call without an answer is repeated with
growing pauses. Nothing here blocks: results arrive by callback.

Source: docs/design/controller.md#hand-over-between-groups; KIP-1164 (InitDisklessTopics,
DeleteDisklessTopics).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from coordinator.batch.settings import MAX_PARTITIONS
from coordinator.controller.errors import CONTROLLER_CODES
from coordinator.controller.image import MetadataImage
from coordinator.controller.reconciliation import HostedPartitions, Reconciliation, WantedTopic
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc import batch_coordinator as rpc
from records.types import ZERO_UUID, Epoch, Offset

log = logging.getLogger("coordinator.controller")

MAX_CALL_TOPICS: Final = 50
"""Encoded here and decided there as a whole, each in about a millisecond."""

MAX_CALL_RESTORED: Final = 100
"""Restored partitions of one topic in one call; the next call names the others."""

FIRST_RETRY_S: Final = 0.05
LAST_RETRY_S: Final = 2.0

OnDone: TypeAlias = Callable[[ErrorCode], None]

REFUSED: Final = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.STALE_CONTROLLER_EPOCH})
"""Errors after which a release was certainly not carried out."""


class CoordinatorCalls(Protocol):
    """Calls to the batch coordinators, by their partition of `__diskless-metadata`.

    Every call ends once, later or at once, with a result or a CoordinatorError; after an error it
    is unknown whether the call was carried out.
    """

    def init(
        self,
        coordinator: int,
        request: rpc.InitDisklessTopicsRequest,
        done: Callable[[rpc.InitDisklessTopicsResponse | CoordinatorError], None],
    ) -> None:
        """Create topics at a batch coordinator; call `done` once the topics are committed."""

    def delete(
        self,
        coordinator: int,
        request: rpc.DeleteDisklessTopicsRequest,
        done: Callable[[rpc.DeleteDisklessTopicsResponse | CoordinatorError], None],
    ) -> None:
        """Delete topics at a batch coordinator; call `done` once the deletion is committed."""

    def hosted(
        self, coordinator: int, done: Callable[[HostedPartitions | CoordinatorError], None]
    ) -> None:
        """List all topics and partitions of a batch coordinator; call `done` with the list."""

    def release(
        self,
        coordinator: int,
        epoch: Epoch,
        topic_id: UUID,
        partitions: frozenset[int],
        done: Callable[[frozenset[int] | CoordinatorError], None],
    ) -> None:
        """Release partitions that never had a commit; call `done` with the released partitions.

        A released partition takes no commit any more; only an Init of a higher controller epoch
        that names it restores it. Partitions of an unknown topic are not released.
        """

    def log_starts(
        self,
        coordinator: int,
        partitions: Iterable[tuple[UUID, int]],
        done: Callable[[Mapping[tuple[UUID, int], Offset] | CoordinatorError], None],
    ) -> None:
        """Read the log start offset of each existing partition; call `done` with the offsets."""


class HandOver:
    """The controller's pending calls to batch coordinators in one epoch; idle while not leading."""

    def __init__(
        self,
        calls: CoordinatorCalls,
        *,
        image: Callable[[], MetadataImage],
        is_settled: Callable[[], bool],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Create the controller's queues of calls to coordinators, which `begin` starts.

        Args:  image: returns the newest published one.
               is_settled: whether the image has everything that is committed.
        """
        self.calls = calls
        self.image = image
        self.is_settled = is_settled
        self.call_later = call_later
        self.epoch: Epoch | None = None
        self._outboxes: dict[int, _CoordinatorOutbox] = {}
        self.failed_calls = 0
        self.reconciled = 0

    # --- leadership -----------------------------------------------------------------------------

    def begin(self, epoch: Epoch) -> None:
        """Begin a controller epoch: compare each coordinator's topics with the cluster image."""
        self.epoch = epoch
        self.open_outboxes()

    def end(self, epoch: Epoch) -> None:  # noqa: ARG002 (a follower's)
        """Drop all pending calls to coordinators, because this node's leadership has ended."""
        self.epoch = None
        outboxes, self._outboxes = self._outboxes, {}
        for outbox in outboxes.values():
            outbox.close()

    def open_outboxes(self) -> None:
        """Create each batch coordinator's missing queue of calls, which first reconciles topics."""
        for coordinator in range(self.image().coordinator_count):
            self._outbox(coordinator)

    def on_image(self, image: MetadataImage) -> None:
        """Open a queue of calls to each batch coordinator that the new cluster image adds."""
        if self.epoch is not None and image.coordinator_count > len(self._outboxes):
            self.open_outboxes()

    @property
    def outstanding(self) -> int:
        """Return the number of topic changes that batch coordinators have not confirmed yet."""
        return sum(outbox.outstanding for outbox in self._outboxes.values())

    # --- requests -------------------------------------------------------------------------------

    def create(
        self,
        topic_id: UUID,
        counts: Mapping[int, int],
        name: str,
        on_done: OnDone,
        restored: frozenset[int] = frozenset(),
    ) -> None:
        """Queue calls that create a committed topic's partitions at the batch coordinators.

        Args:  counts: for each coordinator, the least number of the topic's partitions.
               restored: partitions that they may have released under an earlier controller.
               on_done: called with NONE once all coordinators committed it, or the first error.
        """
        if self.epoch is None or not counts:
            on_done(ErrorCode.NONE if self.epoch is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        open_calls = set(counts)

        def make_callback(coordinator: int) -> OnDone:
            def on_call_done(error: ErrorCode) -> None:
                if error and open_calls:
                    open_calls.clear()
                    on_done(error)
                elif coordinator in open_calls:
                    open_calls.discard(coordinator)
                    if not open_calls:
                        on_done(ErrorCode.NONE)

            return on_call_done

        for coordinator, count in counts.items():
            self._outbox(coordinator).create(
                topic_id, WantedTopic(name, count, restored), make_callback(coordinator)
            )

    def delete(self, topic_id: UUID, coordinators: Iterable[int]) -> None:
        """Queue calls that delete a topic at these batch coordinators."""
        if self.epoch is not None:
            for coordinator in coordinators:
                self._outbox(coordinator).delete(topic_id)

    def release(
        self,
        coordinator: int,
        topic_id: UUID,
        partitions: frozenset[int],
        done: Callable[[frozenset[int] | CoordinatorError], None],
    ) -> None:
        """Queue a call that releases partitions without data at a batch coordinator."""
        assert self.epoch is not None, "a release without a controller epoch"
        self._outbox(coordinator).release(topic_id, partitions, done)

    def has_released(self, coordinator: int, topic_id: UUID, partition: int) -> bool:
        """Return whether the coordinator may have released the partition in this epoch.

        If so, it cannot get that partition back in this epoch.
        """
        outbox = self._outboxes.get(coordinator)
        return outbox is not None and (topic_id, partition) in outbox.released_partitions

    def _outbox(self, coordinator: int) -> _CoordinatorOutbox:
        outbox = self._outboxes.get(coordinator)
        if outbox is None:
            assert self.epoch is not None, f"a call to coordinator {coordinator} without an epoch"
            outbox = self._outboxes[coordinator] = _CoordinatorOutbox(self, coordinator, self.epoch)
            outbox.send_next()
        return outbox


class _CoordinatorOutbox:
    """The calls that one coordinator still has to get in one controller epoch, one at a time."""

    def __init__(self, owner: HandOver, coordinator: int, epoch: Epoch) -> None:
        self._owner = owner
        self._coordinator = coordinator
        self._epoch = epoch
        self._is_reconciled = False
        self._wanted: dict[UUID, WantedTopic] = {}
        self.released_partitions: set[tuple[UUID, int]] = set()  # or may have: an answer is missing
        self._to_delete: dict[UUID, None] = {}  # in order
        self._releases: list[tuple[UUID, frozenset[int], Callable[..., None]]] = []
        self._waiting: dict[UUID, list[OnDone]] = {}
        self._busy = False
        self._closed = False
        self._turn = 0  # which kind of call is next
        self._retry_s = FIRST_RETRY_S

    @property
    def outstanding(self) -> int:
        return len(self._wanted) + len(self._to_delete) + len(self._releases)

    def create(self, topic_id: UUID, wanted: WantedTopic, on_done: OnDone) -> None:
        self._want(topic_id, wanted)
        self._waiting.setdefault(topic_id, []).append(on_done)
        self.send_next()

    def _want(self, topic_id: UUID, wanted: WantedTopic) -> None:
        before = self._wanted.get(topic_id, wanted)
        self._wanted[topic_id] = WantedTopic(
            wanted.name,
            max(before.partitions, wanted.partitions),
            before.restored | wanted.restored,
        )

    def delete(self, topic_id: UUID) -> None:
        self._wanted.pop(topic_id, None)
        self._to_delete[topic_id] = None
        self._notify(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        self.send_next()

    def release(
        self, topic_id: UUID, partitions: frozenset[int], done: Callable[..., None]
    ) -> None:
        self._releases.append((topic_id, partitions, done))
        self.send_next()

    def close(self) -> None:
        """End every waiting call with NOT_LEADER_OR_FOLLOWER, and begin no further call."""
        self._closed = True
        for topic_id in list(self._waiting):
            self._notify(topic_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        lost = CoordinatorError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "another node is the controller now"
        )
        releases, self._releases = self._releases, []
        for _, _, done in releases:
            done(lost)

    def send_next(self) -> None:
        """Make the next queued call to the batch coordinator if no call is in flight.

        The kinds take turns, so that none waits for ever.
        """
        if self._busy or self._closed:
            return
        due = (
            (bool(self._wanted), self._init),
            (bool(self._releases), self._release),
            (not self._is_reconciled, self._reconcile),
            (self._is_reconciled and bool(self._to_delete), self._delete),
        )
        for step in range(len(due)):
            is_due, call = due[(self._turn + step) % len(due)]
            if is_due:
                self._turn += step + 1
                call()
                return

    def _next_wanted(self) -> dict[UUID, WantedTopic]:
        """Return the topics for the next InitDisklessTopics request, up to the request's limits."""
        requested: dict[UUID, WantedTopic] = {}
        partitions = 0
        for topic_id, wanted in islice(self._wanted.items(), MAX_CALL_TOPICS):
            partitions += wanted.partitions
            if requested and partitions > MAX_PARTITIONS:
                break
            restored = frozenset(sorted(wanted.restored)[:MAX_CALL_RESTORED])
            requested[topic_id] = wanted._replace(restored=restored)
        return requested

    def _init(self) -> None:
        requested = self._next_wanted()
        topic = rpc.InitDisklessTopicsRequest.Topic
        request = rpc.InitDisklessTopicsRequest(
            coordinator_partition=self._coordinator,
            controller_epoch=self._epoch,
            topics=tuple(
                topic(
                    topic_id=topic_id,
                    topic_name=wanted.name,
                    num_partitions=wanted.partitions,
                    restored=tuple(sorted(wanted.restored)),
                )
                for topic_id, wanted in requested.items()
            ),
        )

        def done(answer: rpc.InitDisklessTopicsResponse | CoordinatorError) -> None:
            if not self._accept_answer(answer):
                return
            assert not isinstance(answer, CoordinatorError)
            for result in answer.responses:
                sent, wanted = requested.get(result.topic_id), self._wanted.get(result.topic_id)
                if sent is None or wanted is None or wanted.partitions != sent.partitions:
                    continue
                rest = frozenset() if result.error_code else wanted.restored - sent.restored
                if rest:
                    self._wanted[result.topic_id] = wanted._replace(restored=rest)
                else:
                    del self._wanted[result.topic_id]
                    self._notify(
                        result.topic_id, self._client_code(result.topic_id, result.error_code)
                    )
            self.send_next()

        self._busy = True
        self._owner.calls.init(self._coordinator, request, done)

    def _delete(self) -> None:
        requested = tuple(self._to_delete)[:MAX_CALL_TOPICS]
        request = rpc.DeleteDisklessTopicsRequest(
            coordinator_partition=self._coordinator,
            controller_epoch=self._epoch,
            topic_ids=requested,
        )

        def done(answer: rpc.DeleteDisklessTopicsResponse | CoordinatorError) -> None:
            if not self._accept_answer(answer):
                return
            for topic_id in requested:
                self._to_delete.pop(topic_id, None)
            self.send_next()

        self._busy = True
        self._owner.calls.delete(self._coordinator, request, done)

    def _reconcile(self) -> None:
        """Announce the controller epoch to the coordinator; compare its topics with the image.

        Without the first step a former controller's call could still arrive after the comparison.
        The call releases nothing: the coordinator keeps the epoch of any call.
        """

        def done(hosted: HostedPartitions | CoordinatorError) -> None:
            if not self._accept_answer(hosted):
                return
            assert not isinstance(hosted, CoordinatorError)
            if not self._owner.is_settled():
                self._retry_later()  # a topic that the image lacks yet is not a leftover
                return
            self._reconcile_slice(Reconciliation(self._owner.image(), self._coordinator, hosted))

        def on_epoch_known(answer: frozenset[int] | CoordinatorError) -> None:
            if self._accept_answer(answer):
                self._busy = True
                self._owner.calls.hosted(self._coordinator, done)

        self._busy = True
        self._owner.calls.release(
            self._coordinator, self._epoch, ZERO_UUID, frozenset({0}), on_epoch_known
        )

    def _reconcile_slice(self, reconciliation: Reconciliation) -> None:
        """Compare a slice of the coordinator's topics with the cluster image."""
        if self._closed:
            return
        if reconciliation.compare_slice():
            self._busy = True
            self._owner.call_later(0, lambda: self._reconcile_slice(reconciliation))
            return
        self._busy = False
        self._is_reconciled = True
        self._owner.reconciled += 1
        for topic_id, wanted in reconciliation.missing.items():
            if topic_id in self._owner.image().topics:  # not deleted meanwhile
                self._want(topic_id, wanted)
        for topic_id in reconciliation.left_over:
            self._to_delete[topic_id] = None
        log.info(
            "coordinator=%d epoch=%d action=compare missing=%d left_over=%d",
            self._coordinator,
            self._epoch,
            len(reconciliation.missing),
            len(reconciliation.left_over),
        )
        self.send_next()

    def _release(self) -> None:
        topic_id, partitions, on_released = self._releases[0]

        def done(answer: frozenset[int] | CoordinatorError) -> None:
            if isinstance(answer, CoordinatorError) and answer.code not in REFUSED:
                self._accept_answer(answer)  # the outcome is unknown: repeated until it is certain
                return
            self._busy = False
            if self._closed:
                return
            self._retry_s = FIRST_RETRY_S
            if not isinstance(answer, CoordinatorError):
                kept = partitions - answer
                self.released_partitions.difference_update(
                    (topic_id, partition) for partition in kept
                )
            self._releases.pop(0)
            on_released(answer)
            self.send_next()

        self._busy = True
        self.released_partitions.update((topic_id, partition) for partition in partitions)
        self._owner.calls.release(self._coordinator, self._epoch, topic_id, partitions, done)

    def _accept_answer(self, answer: object) -> bool:
        """Return whether the call to the coordinator succeeded; retry a failed call later."""
        self._busy = False
        if self._closed:
            return False
        if isinstance(answer, CoordinatorError):
            self._owner.failed_calls += 1
            log.info("coordinator=%d error=%s", self._coordinator, answer)
            self._retry_later()
            return False
        self._retry_s = FIRST_RETRY_S
        return True

    def _retry_later(self) -> None:
        self._busy = True

        def again() -> None:
            self._busy = False
            self.send_next()

        self._owner.call_later(self._retry_s, again)
        self._retry_s = min(LAST_RETRY_S, 2 * self._retry_s)

    def _client_code(self, topic_id: UUID, error: int) -> ErrorCode:
        if error:
            log.error(
                "coordinator=%d topic=%s action=init error=%d", self._coordinator, topic_id, error
            )
        if error == ErrorCode.STALE_CONTROLLER_EPOCH:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # this node is about to be deposed
        return (
            ErrorCode(error) if error in CONTROLLER_CODES else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )

    def _notify(self, topic_id: UUID, error: ErrorCode) -> None:
        for on_done in self._waiting.pop(topic_id, ()):
            on_done(error)
