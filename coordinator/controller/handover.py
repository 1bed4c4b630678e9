"""How partitions get from the controller's log into their batch coordinators' logs, and out again.

Two groups, two logs, and a crash may come between any two steps. What makes it heal is that only
one log decides: the controller's. A topic exists once its records are committed there; its
coordinator is told afterwards, as often as it takes, and whoever asked for the topic hears of it
only then. A new controller knows nothing of what its predecessor had told to whom, so it compares
everything with everything, and tells again whatever is missing or left over.

Two things could do harm, and each is fenced where it arrives. A *former controller* still calling:
every call carries the controller epoch, and a coordinator refuses a lower one. A *late call* of
this very controller, overtaken by a deletion: a deleted topic's id stays as a tombstone at its
coordinator, and an Init of it creates nothing.

Calls to one coordinator are made one after another; a call without an answer is made again, later
and later. Nothing here waits for anything: results come by callback.

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
from coordinator.controller.reconciliation import Comparison, Hosted, Wanted
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc import batch_coordinator as rpc
from records.types import ZERO_UUID, Epoch, Offset

log = logging.getLogger("coordinator.controller")

TOPICS_OF_CALL: Final = 50
"""Encoded here and decided there in one piece, each about a millisecond."""

RESTORED_OF_TOPIC: Final = 100
"""In one call; the others follow."""

FIRST_RETRY_S: Final = 0.05
LAST_RETRY_S: Final = 2.0

Told: TypeAlias = Callable[[ErrorCode], None]

REFUSED: Final = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.STALE_CONTROLLER_EPOCH})
"""A release's errors after which it was surely not done."""


class CoordinatorCalls(Protocol):
    """The batch coordinators, by their partition of `__diskless-metadata`.

    Every call answers once, later or at once, with a result or a CoordinatorError; after an error
    nobody knows whether it was done.
    """

    def init(
        self,
        coordinator: int,
        request: rpc.InitDisklessTopicsRequest,
        done: Callable[[rpc.InitDisklessTopicsResponse | CoordinatorError], None],
    ) -> None:
        """Let topics have at least so many partitions; answered once that is committed."""

    def delete(
        self,
        coordinator: int,
        request: rpc.DeleteDisklessTopicsRequest,
        done: Callable[[rpc.DeleteDisklessTopicsResponse | CoordinatorError], None],
    ) -> None:
        """Delete topics; answered once that is committed."""

    def hosted(self, coordinator: int, done: Callable[[Hosted | CoordinatorError], None]) -> None:
        """All topics there are now."""

    def release(
        self,
        coordinator: int,
        epoch: Epoch,
        topic_id: UUID,
        partitions: frozenset[int],
        done: Callable[[frozenset[int] | CoordinatorError], None],
    ) -> None:
        """Let go of partitions that never had a commit; answers with those that are let go.

        Those take no commit any more; only an Init of a higher controller epoch that names them
        brings them back. Of a topic that is not there, nothing is let go.
        """

    def log_starts(
        self,
        coordinator: int,
        partitions: Iterable[tuple[UUID, int]],
        done: Callable[[Mapping[tuple[UUID, int], Offset] | CoordinatorError], None],
    ) -> None:
        """The first offset that is left of each partition that is there."""


class HandOver:
    """What the controller of one epoch still has to tell; silent when this node leads nothing."""

    def __init__(
        self,
        calls: CoordinatorCalls,
        *,
        image: Callable[[], MetadataImage],
        is_settled: Callable[[], bool],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """
        Args:  image: the newest one that is published.
               is_settled: nothing is committed that the image lacks.
        """
        self.calls = calls
        self.image = image
        self.is_settled = is_settled
        self.call_later = call_later
        self.epoch: Epoch | None = None
        self._lines: dict[int, _Line] = {}
        self.failed_calls = 0
        self.compared = 0

    # --- the controller's followers -------------------------------------------------------------

    def begin(self, epoch: Epoch) -> None:
        """We are the controller of `epoch`: compare everything."""
        self.epoch = epoch
        self.open_lines()

    def end(self, epoch: Epoch) -> None:  # noqa: ARG002 (a follower's)
        """We no longer are; the next one compares for itself."""
        self.epoch = None
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.close()

    def open_lines(self) -> None:
        """One for each coordinator there is; a new coordinator is compared at once."""
        for coordinator in range(self.image().coordinator_count):
            self._line(coordinator)

    def on_image(self, image: MetadataImage) -> None:
        """There may be one coordinator more."""
        if self.epoch is not None and image.coordinator_count > len(self._lines):
            self.open_lines()

    @property
    def outstanding(self) -> int:
        """Topics that some coordinator is still to be told of."""
        return sum(line.outstanding for line in self._lines.values())

    # --- what is to be told ---------------------------------------------------------------------

    def create(
        self,
        topic_id: UUID,
        counts: Mapping[int, int],
        name: str,
        told: Told,
        restored: frozenset[int] = frozenset(),
    ) -> None:
        """A topic has partitions, committed: let its coordinators have them.

        Args:  counts: for each coordinator, so many partitions of the topic at least.
               restored: ones that they may have let go, under an earlier controller.
               told: hears NONE once all coordinators have committed it, or the first error.
        """
        if self.epoch is None or not counts:
            told(ErrorCode.NONE if self.epoch is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        open_calls = set(counts)

        def teller(coordinator: int) -> Told:
            def one(error: ErrorCode) -> None:
                if error and open_calls:
                    open_calls.clear()
                    told(error)
                elif coordinator in open_calls:
                    open_calls.discard(coordinator)
                    if not open_calls:
                        told(ErrorCode.NONE)

            return one

        for coordinator, count in counts.items():
            self._line(coordinator).create(
                topic_id, Wanted(name, count, restored), teller(coordinator)
            )

    def delete(self, topic_id: UUID, coordinators: Iterable[int]) -> None:
        """A topic is gone, committed: its coordinators are told some time soon."""
        if self.epoch is not None:
            for coordinator in coordinators:
                self._line(coordinator).delete(topic_id)

    def release(
        self,
        coordinator: int,
        topic_id: UUID,
        partitions: frozenset[int],
        done: Callable[[frozenset[int] | CoordinatorError], None],
    ) -> None:
        """Ask a coordinator to let go of empty partitions, in its line's turn."""
        assert self.epoch is not None, "no controller asks to release"
        self._line(coordinator).release(topic_id, partitions, done)

    def has_let_go(self, coordinator: int, topic_id: UUID, partition: int) -> bool:
        """Was it asked to, by us, and may have? Then it cannot have that back in our epoch."""
        line = self._lines.get(coordinator)
        return line is not None and (topic_id, partition) in line.let_go

    def _line(self, coordinator: int) -> _Line:
        line = self._lines.get(coordinator)
        if line is None:
            assert self.epoch is not None, f"coordinator {coordinator} is called by no controller"
            line = self._lines[coordinator] = _Line(self, coordinator, self.epoch)
            line.go_on()
        return line


class _Line:
    """What one coordinator is still to be told in one controller epoch: one call at a time."""

    def __init__(self, owner: HandOver, coordinator: int, epoch: Epoch) -> None:
        self._owner = owner
        self._coordinator = coordinator
        self._epoch = epoch
        self._is_compared = False
        self._wanted: dict[UUID, Wanted] = {}
        self.let_go: set[tuple[UUID, int]] = set()  # or may have: nobody has answered
        self._doomed: dict[UUID, None] = {}  # in order
        self._releases: list[tuple[UUID, frozenset[int], Callable[..., None]]] = []
        self._told: dict[UUID, list[Told]] = {}
        self._busy = False
        self._closed = False
        self._turn = 0  # whose it is, of the kinds of calls
        self._retry_s = FIRST_RETRY_S

    @property
    def outstanding(self) -> int:
        return len(self._wanted) + len(self._doomed) + len(self._releases)

    def create(self, topic_id: UUID, wanted: Wanted, told: Told) -> None:
        self._want(topic_id, wanted)
        self._told.setdefault(topic_id, []).append(told)
        self.go_on()

    def _want(self, topic_id: UUID, wanted: Wanted) -> None:
        before = self._wanted.get(topic_id, wanted)
        self._wanted[topic_id] = Wanted(
            wanted.name,
            max(before.partitions, wanted.partitions),
            before.restored | wanted.restored,
        )

    def delete(self, topic_id: UUID) -> None:
        self._wanted.pop(topic_id, None)
        self._doomed[topic_id] = None
        self._tell(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        self.go_on()

    def release(
        self, topic_id: UUID, partitions: frozenset[int], done: Callable[..., None]
    ) -> None:
        self._releases.append((topic_id, partitions, done))
        self.go_on()

    def close(self) -> None:
        """Our epoch is over: whoever waits must not think that it failed, nor that it was done."""
        self._closed = True
        for topic_id in list(self._told):
            self._tell(topic_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        lost = CoordinatorError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "the controller is another one now"
        )
        releases, self._releases = self._releases, []
        for _, _, done in releases:
            done(lost)

    def go_on(self) -> None:
        """The next call, if none is under way. The kinds take turns: none waits for ever."""
        if self._busy or self._closed:
            return
        due = (
            (bool(self._wanted), self._init),
            (bool(self._releases), self._release),
            (not self._is_compared, self._compare),
            (self._is_compared and bool(self._doomed), self._delete),
        )
        for step in range(len(due)):
            is_due, call = due[(self._turn + step) % len(due)]
            if is_due:
                self._turn += step + 1
                call()
                return

    def _next_wanted(self) -> dict[UUID, Wanted]:
        """What one call may name, and no more partitions than it may make."""
        asked: dict[UUID, Wanted] = {}
        partitions = 0
        for topic_id, wanted in islice(self._wanted.items(), TOPICS_OF_CALL):
            partitions += wanted.partitions
            if asked and partitions > MAX_PARTITIONS:
                break
            restored = frozenset(sorted(wanted.restored)[:RESTORED_OF_TOPIC])
            asked[topic_id] = wanted._replace(restored=restored)
        return asked

    def _init(self) -> None:
        asked = self._next_wanted()
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
                for topic_id, wanted in asked.items()
            ),
        )

        def done(answer: rpc.InitDisklessTopicsResponse | CoordinatorError) -> None:
            if not self._answered(answer):
                return
            assert not isinstance(answer, CoordinatorError)
            for result in answer.responses:
                told, wanted = asked.get(result.topic_id), self._wanted.get(result.topic_id)
                if told is None or wanted is None or wanted.partitions != told.partitions:
                    continue
                rest = frozenset() if result.error_code else wanted.restored - told.restored
                if rest:
                    self._wanted[result.topic_id] = wanted._replace(restored=rest)
                else:
                    del self._wanted[result.topic_id]
                    self._tell(result.topic_id, self._judge(result.topic_id, result.error_code))
            self.go_on()

        self._busy = True
        self._owner.calls.init(self._coordinator, request, done)

    def _delete(self) -> None:
        asked = tuple(self._doomed)[:TOPICS_OF_CALL]
        request = rpc.DeleteDisklessTopicsRequest(
            coordinator_partition=self._coordinator,
            controller_epoch=self._epoch,
            topic_ids=asked,
        )

        def done(answer: rpc.DeleteDisklessTopicsResponse | CoordinatorError) -> None:
            if not self._answered(answer):
                return
            for topic_id in asked:
                self._doomed.pop(topic_id, None)
            self.go_on()

        self._busy = True
        self._owner.calls.delete(self._coordinator, request, done)

    def _compare(self) -> None:
        """Be heard, then look: or a former controller's call could still come after our look.

        To be heard is to let go of nothing: the coordinator keeps our epoch, whatever it is asked.
        """

        def done(hosted: Hosted | CoordinatorError) -> None:
            if not self._answered(hosted):
                return
            assert not isinstance(hosted, CoordinatorError)
            if not self._owner.is_settled():
                self._later()  # a topic that we do not see yet must not be taken for a leftover
                return
            self._compare_slice(Comparison(self._owner.image(), self._coordinator, hosted))

        def heard(answer: frozenset[int] | CoordinatorError) -> None:
            if self._answered(answer):
                self._busy = True
                self._owner.calls.hosted(self._coordinator, done)

        self._busy = True
        self._owner.calls.release(self._coordinator, self._epoch, ZERO_UUID, frozenset({0}), heard)

    def _compare_slice(self, comparison: Comparison) -> None:
        """A few topics; the line stays busy until all are through."""
        if self._closed:
            return
        if comparison.go_on():
            self._busy = True
            self._owner.call_later(0, lambda: self._compare_slice(comparison))
            return
        self._busy = False
        self._is_compared = True
        self._owner.compared += 1
        for topic_id, wanted in comparison.missing.items():
            if topic_id in self._owner.image().topics:  # not deleted meanwhile
                self._want(topic_id, wanted)
        for topic_id in comparison.left_over:
            self._doomed[topic_id] = None
        log.info(
            "coordinator=%d epoch=%d action=compare missing=%d left_over=%d",
            self._coordinator,
            self._epoch,
            len(comparison.missing),
            len(comparison.left_over),
        )
        self.go_on()

    def _release(self) -> None:
        topic_id, partitions, tell = self._releases[0]

        def done(answer: frozenset[int] | CoordinatorError) -> None:
            if isinstance(answer, CoordinatorError) and answer.code not in REFUSED:
                self._answered(answer)  # it may be done, or be done yet: asked until we know
                return
            self._busy = False
            if self._closed:
                return
            self._retry_s = FIRST_RETRY_S
            if not isinstance(answer, CoordinatorError):
                kept = partitions - answer
                self.let_go.difference_update((topic_id, partition) for partition in kept)
            self._releases.pop(0)
            tell(answer)
            self.go_on()

        self._busy = True
        self.let_go.update((topic_id, partition) for partition in partitions)
        self._owner.calls.release(self._coordinator, self._epoch, topic_id, partitions, done)

    def _answered(self, answer: object) -> bool:
        """Whether a call was answered, and we are still who asked. If not, it is made again."""
        self._busy = False
        if self._closed:
            return False
        if isinstance(answer, CoordinatorError):
            self._owner.failed_calls += 1
            log.info("coordinator=%d error=%s", self._coordinator, answer)
            self._later()
            return False
        self._retry_s = FIRST_RETRY_S
        return True

    def _later(self) -> None:
        self._busy = True

        def again() -> None:
            self._busy = False
            self.go_on()

        self._owner.call_later(self._retry_s, again)
        self._retry_s = min(LAST_RETRY_S, 2 * self._retry_s)

    def _judge(self, topic_id: UUID, error: int) -> ErrorCode:
        if error:
            log.error(
                "coordinator=%d topic=%s action=init error=%d", self._coordinator, topic_id, error
            )
        if error == ErrorCode.STALE_CONTROLLER_EPOCH:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # and we shall soon hear of it
        return (
            ErrorCode(error) if error in CONTROLLER_CODES else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )

    def _tell(self, topic_id: UUID, error: ErrorCode) -> None:
        for told in self._told.pop(topic_id, ()):
            told(error)
