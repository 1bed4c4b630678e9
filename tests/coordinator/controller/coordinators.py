"""Small batch coordinators for the controller, as unreliable as a test wants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc import batch_coordinator as rpc
from records.types import Epoch, Offset


class OneCoordinator:
    """The state of one coordinator's log."""

    def __init__(self, *, keeps_tombstones: bool = True) -> None:
        self.epoch = -1
        self.topics: dict[UUID, set[int]] = {}
        self.tombstones: set[UUID] = set()
        self.released: dict[tuple[UUID, int], int] = {}  # partition -> the epoch that let it go
        self.written: dict[tuple[UUID, int], int] = defaultdict(int)  # high watermarks
        self.log_starts: dict[tuple[UUID, int], int] = {}
        self._keeps_tombstones = keeps_tombstones

    def _stale(self, epoch: int) -> bool:
        if epoch < self.epoch:
            return True
        self.epoch = epoch
        return False

    def init(self, request: rpc.InitDisklessTopicsRequest) -> rpc.InitDisklessTopicsResponse:
        stale = self._stale(request.controller_epoch)
        results = []
        for topic in request.topics:
            code = ErrorCode.NONE
            if stale:
                code = ErrorCode.STALE_CONTROLLER_EPOCH
            elif topic.topic_id in self.tombstones:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                held = self.topics.setdefault(topic.topic_id, set())
                for index in topic.restored:
                    if self.released.get((topic.topic_id, index), -1) < request.controller_epoch:
                        self.released.pop((topic.topic_id, index), None)
                held |= {
                    index
                    for index in range(topic.num_partitions)
                    if (topic.topic_id, index) not in self.released
                }
            results.append(
                rpc.InitDisklessTopicsResponse.TopicResult(topic_id=topic.topic_id, error_code=code)
            )
        return rpc.InitDisklessTopicsResponse(responses=tuple(results))

    def delete(self, request: rpc.DeleteDisklessTopicsRequest) -> rpc.DeleteDisklessTopicsResponse:
        stale = self._stale(request.controller_epoch)
        results = []
        for topic_id in request.topic_ids:
            if not stale:
                self.topics.pop(topic_id, None)
                if self._keeps_tombstones:
                    self.tombstones.add(topic_id)
            code = ErrorCode.STALE_CONTROLLER_EPOCH if stale else ErrorCode.NONE
            results.append(
                rpc.DeleteDisklessTopicsResponse.TopicResult(topic_id=topic_id, error_code=code)
            )
        return rpc.DeleteDisklessTopicsResponse(responses=tuple(results))

    def release(self, epoch: int, topic_id: UUID, partitions: frozenset[int]) -> frozenset[int]:
        if self._stale(epoch) or topic_id not in self.topics:
            return frozenset()
        free = frozenset(i for i in partitions if not self.written[topic_id, i])
        for index in free:
            self.topics.get(topic_id, set()).discard(index)
            self.released[topic_id, index] = epoch
        return free


class Coordinators:
    """Several coordinators; implements `coordinator.controller.handover.CoordinatorCalls`."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], Any], *, keeps_tombstones: bool = True
    ) -> None:
        self._call_soon = call_soon
        self._keeps_tombstones = keeps_tombstones
        self.all: dict[int, OneCoordinator] = {}
        self.down: set[int] = set()  # no call arrives
        self.mute: set[int] = set()  # carry out calls, and their answers are lost
        self.holding = False  # Inits are held back
        self.late: list[Callable[[], None]] = []
        self.calls: list[tuple[str, int]] = []

    def __getitem__(self, coordinator: int) -> OneCoordinator:
        if coordinator not in self.all:
            self.all[coordinator] = OneCoordinator(keeps_tombstones=self._keeps_tombstones)
        return self.all[coordinator]

    def _call(self, name: str, coordinator: int, run: Callable[[], Any], done: Any) -> None:
        self.calls.append((name, coordinator))
        error = CoordinatorError(ErrorCode.REQUEST_TIMED_OUT, "no answer")

        def arrive() -> None:
            if coordinator in self.down:
                done(error)
                return
            answer = run()
            self._call_soon(lambda: done(error if coordinator in self.mute else answer))

        if name == "init" and self.holding:
            self.late.append(run)  # it arrives long after its caller gave up
            self._call_soon(lambda: done(error))
        else:
            self._call_soon(arrive)

    def deliver_late(self) -> None:
        """Deliver the held calls, and each of them a second time."""
        held, self.late = self.late, []
        for run in held + held:
            run()

    def init(self, coordinator: int, request: rpc.InitDisklessTopicsRequest, done: Any) -> None:
        self._call("init", coordinator, lambda: self[coordinator].init(request), done)

    def delete(self, coordinator: int, request: rpc.DeleteDisklessTopicsRequest, done: Any) -> None:
        self._call("delete", coordinator, lambda: self[coordinator].delete(request), done)

    def hosted(self, coordinator: int, done: Any) -> None:
        def run() -> Mapping[UUID, frozenset[int]]:
            topics = self[coordinator].topics
            return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}

        self._call("hosted", coordinator, run, done)

    def release(
        self,
        coordinator: int,
        epoch: Epoch,
        topic_id: UUID,
        partitions: frozenset[int],
        done: Any,
    ) -> None:
        self._call(
            "release",
            coordinator,
            lambda: self[coordinator].release(epoch, topic_id, partitions),
            done,
        )

    def log_starts(
        self, coordinator: int, partitions: Iterable[tuple[UUID, int]], done: Any
    ) -> None:
        requested = list(partitions)

        def run() -> Mapping[tuple[UUID, int], Offset]:
            held = self[coordinator].log_starts
            return {named: Offset(held.get(named, 0)) for named in requested}

        self._call("log_starts", coordinator, run, done)
