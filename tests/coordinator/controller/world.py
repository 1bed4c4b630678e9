"""One node's controller on a log and on clocks that a test controls."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from coordinator.controller.checkpoint import image_records
from coordinator.controller.chunk_removal import ChunkRemoval
from coordinator.controller.decide import Limits
from coordinator.controller.handover import HandOver
from coordinator.controller.image import MetadataImage
from coordinator.controller.leader import Controller, ControllerConfig
from coordinator.controller.machine import ControllerMachine
from coordinator.controller.requests import Requests
from coordinator.controller.sessions import Connection
from records.batch import Batch, iter_batches, iter_records
from records.batch_writer import build_value_batch
from records.features import SUPPORTED
from records.frame import decode_record, encode_record
from records.metadata import FeatureLevelRecord, PartitionRecord, TopicRecord
from records.rpc.base import Request, Response
from records.rpc.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
)
from records.rpc.topics import CreateTopicsRequest, CreateTopicsResponse
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.coordinator.controller.coordinators import Coordinators
from tests.doubles.memory_log import MemoryLog

CLUSTER_ID = "c-1"
MAX_STEPS = 200_000
DISKLESS_ID = UUID(int=1 << 64)
VOTERS = (101, 102, 103)


def internal_topic(name: str, topic_id: UUID, partitions: int = 1) -> list[MetadataRecord]:
    """Build the bootstrap records of an internal topic."""
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=VOTERS,
                isr=VOTERS,
                removing_replicas=(),
                adding_replicas=(),
                leader=VOTERS[0],
                leader_epoch=0,
                partition_epoch=0,
            )
            for index in range(partitions)
        ),
    ]


BOOTSTRAP: tuple[MetadataRecord, ...] = (
    FeatureLevelRecord(name="metadata.version", feature_level=27),
    *internal_topic("__diskless-metadata", DISKLESS_ID),
    *internal_topic("__consumer_offsets", UUID(int=1 << 65)),
)


class Applier:
    """Reads committed batches and applies them, as `snapshot.host` does, without files."""

    def __init__(self, log: MemoryLog, machine: ControllerMachine) -> None:
        self._log = log
        self._machine = machine
        self._target = Offset(0)
        self.paused = False

    def committed(self, high_watermark: Offset) -> None:
        self._target = high_watermark
        self.go_on()

    def go_on(self) -> None:
        """Apply what is committed, unless paused."""
        while not self.paused and self._machine.applied.offset < self._target:
            data = self._log.read(self._machine.applied.offset, 64 * 1024)
            self._machine.apply(list(iter_batches(data)))

    def lead(self, epoch: Epoch) -> None: ...

    def step_down(self, epoch: Epoch) -> None: ...

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None: ...


class Timer:
    """The timer that `call_later` returns."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return id(self) < id(other)


class World:
    """A controller and its clocks: `ask` and `run`; `depose`, `elect`, `restart`, `pass_ms` in
    between.
    """

    def __init__(
        self,
        *,
        bootstrap: tuple[MetadataRecord, ...] = BOOTSTRAP,
        limits: Limits | None = None,
        auto_commit: bool = True,
        keeps_tombstones: bool = True,
        controller: type[Controller] = Controller,
        max_idle_interval_ms: int = 0,
        features: Mapping[str, tuple[int, int]] = SUPPORTED,
        voters: frozenset[int] = frozenset(),
    ) -> None:
        self.log = MemoryLog("__cluster_metadata-0", auto_commit=auto_commit)
        self.config = ControllerConfig(
            cluster_id=CLUSTER_ID,
            bootstrap=bootstrap,
            limits=limits or Limits(),
            max_idle_interval_ms=max_idle_interval_ms,
            features=features,
            node_id=VOTERS[0],
            voters=voters,
        )
        self.monotonic_ms = 1_000_000
        self.wall_ms = 1_700_000_000_000
        self.ids = 10_000
        self._kind = controller
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._timer_count = 0
        self.coordinators = Coordinators(self._soon.append, keeps_tombstones=keeps_tombstones)
        self.checkpoint: tuple[OffsetAndEpoch, list[bytes]] | None = None
        self._build()

    def _build(self) -> None:
        self.machine = ControllerMachine()
        if self.checkpoint is not None:
            load(self.machine, *self.checkpoint)
        self.applier = Applier(self.log, self.machine)
        self.controller = self._kind(
            self.log,
            self.machine,
            self.config,
            call_soon=self._soon.append,
            wall_ms=lambda: self.wall_ms,
            monotonic_ms=lambda: self.monotonic_ms,
            new_id=self._new_id,
        )
        self.handover = HandOver(
            self.coordinators,
            image=lambda: self.machine.image,
            is_settled=lambda: self.machine.applied.offset == (self.log.high_watermark or 0),
            call_later=self.call_later,
        )
        self.controller.subscribe(self.handover.begin, self.handover.end)
        self.machine.listen(self.handover.on_image)
        self.chunk_removal = ChunkRemoval(self.controller, self.handover)
        self.requests = Requests(
            self.controller,
            self.handover,
            call_later=self.call_later,
            monotonic_ms=lambda: self.monotonic_ms,
            barrier=self.barrier,
        )
        self.log._watchers.clear()  # a former process is gone
        self.log.watch(self.applier)
        self.log.watch(self.controller)

    def barrier(self, on_done: Callable[[BaseException | None], None]) -> None:
        """Run the log's read barrier with a callback; no other node could lead."""
        self._soon.append(
            lambda: on_done(
                None if self.log.leading_epoch is not None else ConnectionError("deposed")
            )
        )

    def _new_id(self) -> UUID:
        self.ids += 1
        return UUID(int=self.ids << 70 | self.ids)

    # --- what a test does ---------------------------------------------------------------------

    def elect(self) -> World:
        """Elect this node, and run what a new leader does."""
        self.log.elect()
        self.run()
        return self

    def depose(self, *, lose: bool = True) -> None:
        """Let another node lead for a moment."""
        self.log.depose(lose_uncommitted=lose)
        self.run()

    def restart(self) -> None:
        """Restart the process from its checkpoint, if it has one, and the log."""
        if self.log.leading_epoch is not None:
            self.log.depose()
        self._soon.clear()
        self._timers.clear()
        self._build()

    def take_checkpoint(self) -> None:
        """Freeze the current state; a restart begins with it."""
        frozen = self.machine.freeze()
        values = [bytes(value) for value in frozen.values()]
        frozen.close()
        self.checkpoint = (self.machine.applied, values)
        self.machine.checkpointed(self.machine.applied, len(values))

    def run(self) -> None:
        """Run everything that is due now."""
        for _ in range(MAX_STEPS):
            if not self._soon:
                return
            self._soon.popleft()()
        raise AssertionError("never idle")

    def step(self) -> bool:
        """Run one callback, or commit if there is none; return False if nothing is left to do."""
        if self._soon:
            self._soon.popleft()()
        elif self.log.high_watermark != self.log.end_offset:
            self.log.commit()
        else:
            return False
        return True

    def pass_ms(self, ms: int, *, tick_ms: int = 500) -> None:
        """Advance the clocks with ticks, and run what becomes due."""
        until = self.monotonic_ms + ms
        while self.monotonic_ms < until:
            self._move_clock(min(tick_ms, until - self.monotonic_ms))
            self.controller.tick()
            self.chunk_removal.tick(self.monotonic_ms)
            self.run()

    def jump_ms(self, ms: int) -> None:
        """Pause this process: the clocks advance without ticks."""
        self._move_clock(ms)

    def _move_clock(self, ms: int) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms
        while self._timers and self._timers[0][0] <= self.monotonic_ms:
            _, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
            self.run()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        if not delay_s:
            self._soon.append(lambda: timer.callback and timer.callback())
            return timer
        self._timer_count += 1
        at = self.monotonic_ms + max(1, int(delay_s * 1000))
        heapq.heappush(self._timers, (at, self._timer_count, timer))
        return timer

    def send(self, request: Request, connection: Connection | None = None) -> list[Any]:
        """Send a request; its answers are appended to the returned list."""
        answers: list[Any] = []
        self.requests.ask(request, answers.append, connection)
        return answers

    def ask(self, request: Request, connection: Connection | None = None) -> Any:
        """Send a request and return its answer."""
        answers = self.send(request, connection)
        self.run()
        assert len(answers) == 1, f"{len(answers)} answers to {request}"
        assert isinstance(answers[0], Response)
        return answers[0]

    @property
    def image(self) -> MetadataImage:
        """The committed and applied image."""
        return self.machine.image

    # --- shorthands ---------------------------------------------------------------------------

    def register(self, *broker_ids: int, unfence: bool = True) -> list[int]:
        """Register brokers and return their epochs."""
        epochs = []
        for broker_id in broker_ids:
            answer = self.ask(registration(broker_id))
            assert answer.error_code == 0, answer
            epochs.append(answer.broker_epoch)
            if unfence:
                self.beat(broker_id, answer.broker_epoch)
        return epochs

    def beat(
        self, broker_id: int, epoch: int, connection: Connection | None = None, **wants: bool
    ) -> BrokerHeartbeatResponse:
        """Send a heartbeat of a broker that has read everything."""
        answer: BrokerHeartbeatResponse = self.ask(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=epoch,
                current_metadata_offset=self.log.end_offset,
                want_fence=wants.get("want_fence", False),
                want_shut_down=wants.get("want_shut_down", False),
            ),
            connection,
        )
        return answer

    def unregister(self, broker_id: int) -> list[Any]:
        """Send the unregistration of a broker whose session has ended."""
        with ended_sessions(self.controller):
            answers = self.send(UnregisterBrokerRequest(broker_id=broker_id))
            self.run()
        return answers

    def create(self, name: str, partitions: int = 1, **more: Any) -> CreateTopicsResponse:
        """Create a topic."""
        answer: CreateTopicsResponse = self.ask(creation(name, partitions, **more))
        return answer


@contextmanager
def ended_sessions(controller: Controller) -> Iterator[None]:
    """Let every broker's session be over, while no tick fences a broker for it."""
    sessions = controller.sessions
    timeout_ms, sessions.timeout_ms = sessions.timeout_ms, 0
    yield
    sessions.timeout_ms = timeout_ms


def registration(broker_id: int, **more: Any) -> BrokerRegistrationRequest:
    """Build a valid registration."""
    listener = BrokerRegistrationRequest.Listener
    feature = BrokerRegistrationRequest.Feature
    fields = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": UUID(int=5_000 + broker_id),
        "listeners": (
            listener(name="PLAIN", host=f"b{broker_id}", port=9092, security_protocol=0),
        ),
        "features": (
            feature(name="metadata.version", min_supported_version=7, max_supported_version=27),
            feature(name="esker.version", min_supported_version=1, max_supported_version=5),
            feature(name="transaction.version", min_supported_version=0, max_supported_version=2),
        ),
        "rack": None,
    }
    return BrokerRegistrationRequest(**(fields | more))


def creation(
    name: str,
    partitions: int = 1,
    *,
    factor: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: dict[int, tuple[int, ...]] | None = None,
    timeout_ms: int = 30_000,
    validate_only: bool = False,
) -> CreateTopicsRequest:
    """Build a request to create one topic."""
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=(
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=factor,
                assignments=tuple(
                    topic.CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
                    for index, replicas in (assignments or {}).items()
                ),
                configs=tuple(
                    topic.CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()
                ),
            ),
        ),
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


def batches_of(values: list[bytes], *, epoch: int = 1) -> list[Batch]:
    """Build a checkpoint's data batches."""
    found: list[Batch] = []
    for first in range(0, len(values), 50):
        part = values[first : first + 50]
        data = build_value_batch(part, base_offset=first, leader_epoch=epoch, timestamp=0)
        found += iter_batches(data)
    return found


def load(machine: ControllerMachine, snapshot_id: OffsetAndEpoch, values: list[bytes]) -> None:
    """Load a whole checkpoint."""
    for _ in machine.load(snapshot_id, batches_of(values)):
        pass


def records_of(image: MetadataImage) -> list[bytes]:
    """Return the bytes of the image's checkpoint."""
    return [encode_record(record) for record in image_records(image)]


def log_batches(log: MemoryLog) -> list[list[MetadataRecord]]:
    """Return the committed records batch by batch, without control batches."""
    found = []
    position = log.start_offset
    while position < (log.high_watermark or 0):
        for batch in iter_batches(log.read(position, 1 << 20)):
            position = batch.header.end_offset
            if not batch.header.is_control:
                found.append([decode_record(record.value) for record in iter_records(batch)])
    return found
