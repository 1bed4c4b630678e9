"""A whole cluster on one event loop, for tests of a broker: `diskless.cluster.Cluster`, as it is.

    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            await world.create("t", partitions=2)
            cluster = world.cluster(1)

The controller, the log of groups and their machines are the real ones, over logs in memory. A batch
coordinator is the in-memory one; each broker's replica of it is a state of its own, which applies
what the leader logged. Requests travel as bytes. Use it with `tests.diskless.virtual_time.run`: no
timer ticks by itself, no session ends, and nobody is fenced unless a test says so.

What a test decides: which broker reads late (`cluster.pause()`), who cannot be reached
(`world.controller_away`, `leader.away`, `world.groups_away`), how old a replica is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from coordinator.batch.decide import Decision
from coordinator.batch.describe import describe_topics
from coordinator.batch.memory import InMemoryCoordinator, InMemoryState
from coordinator.batch.reads import find_batches, log_ends, stable_ends
from coordinator.batch.settings import CoordinatorSettings
from coordinator.controller.access import Client
from coordinator.controller.cluster_view import ImageView
from coordinator.controller.coordinator_calls import ClientCalls
from coordinator.controller.decide.context import Decision as ControllerDecision
from coordinator.controller.envelope import unwrap, wrap
from coordinator.controller.handover import HandOver
from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.leader import Controller, ControllerConfig
from coordinator.controller.machine import ControllerMachine
from coordinator.controller.mutation_quotas import MutationQuotas, MutationWindow
from coordinator.controller.requests import Requests
from coordinator.controller.service import FORWARDABLE, ControllerService
from coordinator.errors import CoordinatorError
from coordinator.groups.leader import GroupLog
from coordinator.groups.machine import GroupMachine
from coordinator.groups.service import CALLS as GROUP_CALLS
from coordinator.groups.service import ask as ask_group_log
from coordinator.groups.settings import LogSettings
from coordinator.groups.state import Group
from coordinator.leader_client import Failure
from coordinator.transactions.leader import TransactionLog
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.markers import (
    GROUP_LOG,
    Answered,
    MarkerDelivery,
    Row,
    coordinator_request,
)
from coordinator.transactions.service import CALLS as TRANSACTION_CALLS
from coordinator.transactions.service import ask as ask_transaction_log
from coordinator.transactions.settings import TransactionSettings
from coordinator.transactions.state import TransactionsImage
from diskless.cluster import CommitQueue, Replica
from diskless.latest_image import LatestImage
from raft.interfaces import NotLeaderError
from records.batch import iter_batches
from records.codec import decode_message, encode_message
from records.kafka_errors import ErrorCode
from records.metadata import FeatureLevelRecord
from records.object_keys import ObjectKeys
from records.rpc import batch_coordinator as rpc
from records.rpc import group_log as group_log_rpc
from records.rpc import topics
from records.rpc.base import CoordinatorRequest, Request, Response
from records.rpc.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from records.rpc.objects import DescribeDisklessTopicsRequest
from records.rpc.security import EnvelopeRequest
from records.timelines import PartitionTimelinesRecord, TimelineRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.coordinator.controller.world import (
    CLUSTER_ID,
    DISKLESS_ID,
    creation,
    ended_sessions,
    internal_topic,
    registration,
)
from tests.doubles.memory_log import MemoryLog

WALL_MS: Final = 1_700_000_000_000
NO_SESSION_ENDS_MS: Final = 2**40
UNREACHABLE_S: Final = 10.0  # how long a caller tries before it gives up

R = TypeVar("R", bound=Response)
T = TypeVar("T")


class ClusterWorld:
    """A cluster on one event loop. Create it on a running loop, whose clock it uses."""

    def __init__(
        self,
        *,
        brokers: Iterable[int] = (1,),
        racks: Mapping[int, str] | None = None,
        coordinators: int = 1,
        key_prefix: str = "",
        log_settings: LogSettings | None = None,
        esker_version: int = 1,
        mutation_window: MutationWindow | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._first_brokers = tuple(brokers)
        self._racks = dict(racks or {})
        self._ids = 10_000
        self.controller_away = False
        self.groups_away = False
        self.clusters: dict[int, WorldCluster] = {}
        self._make_controller(coordinators, esker_version)
        self._calls = ClientCalls(lambda coordinator: self.leaders[coordinator])
        self._handover = HandOver(
            self._calls,
            image=lambda: self.machine.image,
            is_settled=lambda: self.machine.applied.offset == (self.log.high_watermark or 0),
            call_later=self._loop.call_later,
        )
        self.controller.subscribe(self._handover.begin, self._handover.end)
        self.machine.listen(self._handover.on_image)
        self._requests = Requests(
            self.controller,
            self._handover,
            call_later=self._loop.call_later,
            monotonic_ms=self.monotonic_ms,
            barrier=lambda told: self._loop.call_soon(told, None),
        )
        self.leaders = [
            WorldCoordinator(
                CoordinatorSettings(
                    keys=ObjectKeys(
                        prefix=key_prefix, cluster_id=CLUSTER_ID, coordinator_partition=index
                    )
                ),
                ImageView(lambda: self.machine.image),
                self.wall_ms,
            )
            for index in range(coordinators)
        ]
        self._mutations = MutationQuotas(
            mutation_window or MutationWindow(),
            image=lambda: self.image,
            monotonic_ms=self.monotonic_ms,
        )
        self._make_group_log(log_settings or LogSettings())
        self._make_transaction_log()

    def _make_controller(self, coordinators: int, esker_version: int) -> None:
        self.log = MemoryLog("__cluster_metadata-0")
        self.machine = ControllerMachine()
        bootstrap = (
            FeatureLevelRecord(name="metadata.version", feature_level=27),
            FeatureLevelRecord(name="esker.version", feature_level=esker_version),
            *internal_topic("__diskless-metadata", DISKLESS_ID, coordinators),
            *internal_topic("__consumer_offsets", UUID(int=1 << 65)),
        )
        self.controller = Controller(
            self.log,
            self.machine,
            ControllerConfig(
                cluster_id=CLUSTER_ID,
                session_timeout_ms=NO_SESSION_ENDS_MS,
                max_idle_interval_ms=0,
                bootstrap=bootstrap,
            ),
            call_soon=self._loop.call_soon,
            wall_ms=self.wall_ms,
            monotonic_ms=self.monotonic_ms,
            new_id=self._new_id,
        )
        self.log.watch(_Applier(self.log, self.machine))
        self.log.watch(self.controller)

    def _make_group_log(self, settings: LogSettings) -> None:
        self.group_machine = GroupMachine()
        memory = MemoryLog("__consumer_offsets-0")
        self.group_log = GroupLog(
            memory,
            self.group_machine,
            settings,
            call_soon=self._loop.call_soon,
            wall_ms=self.wall_ms,
            brokers=self._unfenced,
        )
        memory.watch(_Applier(memory, self.group_machine))
        memory.watch(self.group_log)
        memory.elect()

    def _make_transaction_log(self) -> None:
        self.transaction_machine = TransactionMachine()
        self._marker_calls: set[asyncio.Task[None]] = set()
        self.transactions_away = False  # whether the log's leader gives no answers
        memory = MemoryLog("__transaction_state-0")
        self.transaction_log = TransactionLog(
            memory,
            self.transaction_machine,
            TransactionSettings(),
            call_soon=self._loop.call_soon,
            wall_ms=self.wall_ms,
            brokers=self._unfenced,
            make_delivery=lambda complete: MarkerDelivery(
                self,
                send=self._send_markers,
                call_later=lambda ms, call: self._loop.call_later(ms / 1_000, call),
                complete=complete,
            ),
        )
        memory.watch(_Applier(memory, self.transaction_machine))
        memory.watch(self.transaction_log)
        memory.elect()

    def _unfenced(self) -> list[int]:
        brokers = self.machine.image.brokers.items()
        return sorted(broker_id for broker_id, broker in brokers if not broker.fenced)

    def coordinator(self, topic_id: UUID, partition: int) -> int | None:
        """See coordinator.transactions.markers.Places."""
        topic = self.machine.image.topics.get(topic_id)
        return None if topic is None else topic.coordinator(partition)

    def offset(self) -> int:
        """See coordinator.transactions.markers.Places."""
        return self.machine.image.offset

    def _send_markers(self, destination: int, rows: Sequence[Row], answered: Answered) -> None:
        async def send() -> None:
            if destination == GROUP_LOG:
                request: Any = group_log_rpc.WriteGroupMarkersRequest(
                    producer_ids=tuple(row.producer_id for row in rows),
                    transaction_numbers=tuple(row.number for row in rows),
                    committed=tuple(row.is_committed for row in rows),
                )
                answer = await ask_group_log(self.group_log, request)
                answered(None if answer.error_code else [0] * len(rows))
                return
            request = coordinator_request(destination, rows, 0)
            response = await self.leaders[destination].call(request)
            answered(None if response.error_code else response.marker_error_codes)

        task = self._loop.create_task(send())
        self._marker_calls.add(task)
        task.add_done_callback(self._marker_calls.discard)

    async def ask_transactions(self, request: Request) -> Response | Failure:
        """Send a request to the transaction log's leader, as a broker does."""
        await asyncio.sleep(0)
        if self.transactions_away:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return Failure(CoordinatorError(code, "it is away"), in_doubt=False)
        version = request.schema().versions.last
        received = decode_message(type(request), encode_message(request, version), version)
        answer = await ask_transaction_log(self.transaction_log, received)
        kind = TRANSACTION_CALLS[type(request)]
        decoded: Response = decode_message(kind, encode_message(answer, version), version)
        return decoded

    def wall_ms(self) -> int:
        """Milliseconds since 1970, advancing with the loop's clock."""
        return WALL_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """The loop's clock in milliseconds."""
        return int(self._loop.time() * 1000)

    def _new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids << 70 | self._ids)

    # --- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Elect a controller, register the brokers and let them be seen."""
        self.log.elect()
        while self.controller.active_epoch is None:
            await asyncio.sleep(0)
        for broker_id in self._first_brokers:
            await self.register(broker_id, rack=self._racks.get(broker_id))
            await self.unfence(broker_id)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._calls.close()

    # --- what a test does ---------------------------------------------------------------------

    async def finalize(self, **levels: int) -> None:
        """Write levels of features, by names with underscores, even if no node supports them."""
        records = tuple(
            FeatureLevelRecord(name=name.replace("_", "."), feature_level=level)
            for name, level in levels.items()
        )
        self.controller.submit(lambda _: ControllerDecision(records, None), lambda _: None)
        while not all(
            cluster.image.features.level(record.name) == record.feature_level
            for cluster in (self.cluster(broker_id) for broker_id in self._first_brokers)
            for record in records
        ):
            await asyncio.sleep(0.001)

    async def begin_timeline(self, topic: str, *first_offsets: int) -> None:
        """Write what a restore writes: the next timeline of partition 0 begins at each offset.

        The ids of earlier clusters are "cluster-0" and so on; object ids below 100 are the first's.
        """
        found = self.image.topic(topic)
        assert found is not None, topic
        ancestors = tuple(
            TimelineRecord.Ancestor(
                cluster_id=f"cluster-{number}", object_ids_below=(100 * (number + 1),)
            )
            for number in range(len(first_offsets))
        )
        records = (
            TimelineRecord(timeline=len(first_offsets), ancestors=ancestors),
            PartitionTimelinesRecord(
                topic_id=found.topic_id,
                partition_index=0,
                timelines=tuple(range(len(first_offsets) + 1)),
                first_offsets=(0, *first_offsets),
            ),
        )
        self.controller.submit(lambda _: ControllerDecision(records, None), lambda _: None)
        while not all(
            self.cluster(broker_id).image.timeline_number == len(first_offsets)
            for broker_id in self._first_brokers
        ):
            await asyncio.sleep(0.001)

    @property
    def image(self) -> MetadataImage:
        """The image that the controller has applied."""
        return self.machine.image

    def cluster(self, broker_id: int) -> WorldCluster:
        """This broker's view of the cluster; the same object each time."""
        if broker_id not in self.clusters:
            self.clusters[broker_id] = WorldCluster(self, broker_id)
        return self.clusters[broker_id]

    async def register(
        self,
        broker_id: int,
        *,
        rack: str | None = None,
        listeners: Mapping[str, tuple[str, int]] | None = None,
        incarnation: int = 0,
    ) -> int:
        """Register a broker, still fenced; return its epoch."""
        places = listeners or {"PLAIN": (f"b{broker_id}", 9092)}
        listener = BrokerRegistrationRequest.Listener
        request = registration(
            broker_id,
            rack=rack,
            incarnation_id=UUID(int=5_000 + broker_id + (incarnation << 32)),
            listeners=tuple(
                listener(name=name, host=host, port=port, security_protocol=0)
                for name, (host, port) in places.items()
            ),
        )
        answer = await self.ask(request, BrokerRegistrationResponse)
        assert answer.error_code == 0, answer
        return answer.broker_epoch

    async def unregister(self, broker_id: int) -> None:
        """Unregister a broker whose session has ended."""
        with ended_sessions(self.controller):
            request = UnregisterBrokerRequest(broker_id=broker_id)
            assert (await self.ask(request, UnregisterBrokerResponse)).error_code == 0

    async def unfence(self, broker_id: int) -> None:
        """Unfence a broker."""
        await self.beat(broker_id)

    async def fence(self, broker_id: int) -> None:
        """Fence a broker."""
        await self.beat(broker_id, want_fence=True)

    async def beat(
        self, broker_id: int, *, want_fence: bool = False, want_shut_down: bool = False
    ) -> BrokerHeartbeatResponse:
        """Send a heartbeat of a broker that has caught up."""
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].broker_epoch,
            current_metadata_offset=self.log.end_offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        return await self.ask(request, BrokerHeartbeatResponse)

    async def create(self, name: str, partitions: int = 1, **more: Any) -> TopicImage:
        """Create a topic and wait until it can be written.

        Arguments: `tests.coordinator.controller.world.creation`.
        """
        answer = await self.ask(creation(name, partitions, **more), topics.CreateTopicsResponse)
        assert answer.topics[0].error_code == 0, answer
        found = self.image.topic(name)
        assert found is not None, f"{name} was created and is not there"
        return found

    async def ask(self, request: Request, response: type[R], client: Client | None = None) -> R:
        """Send a request to the controller, encoded in the newest version.

        Args:  client: for whom it is forwarded in an envelope; its quotas count.
        """
        version = request.schema().versions.last
        charge = None
        if client is not None:
            envelope = decode_message(
                EnvelopeRequest, encode_message(wrap(request, version, client), 0), 0
            )
            client = unwrap(envelope, FORWARDABLE).client
            charge = self._mutations.charge_of(request.schema().key or 0, client)
        future: asyncio.Future[Response] = self._loop.create_future()

        def send(answer: Response) -> None:
            if not future.done():
                future.set_result(answer)

        received = decode_message(type(request), encode_message(request, version), version)
        await asyncio.sleep(0)
        if isinstance(received, topics.FindCoordinatorRequest):
            send(self._find_coordinators(received))
        else:
            self._requests.ask(received, send, None, charge)
        answer = await future
        return decode_message(response, encode_message(answer, version), version)

    def _find_coordinators(
        self, request: topics.FindCoordinatorRequest
    ) -> topics.FindCoordinatorResponse:
        """Answer FindCoordinator as a node that leads every coordinator."""
        service = ControllerService(
            self._requests.ask,
            image=lambda: self.machine.image,
            find_log=lambda _topic, _index: self.log,
            endpoint=lambda node_id: (node_id, f"q{node_id}", 9093),
            node_id=1,
        )
        return service.find_coordinators(request)


class WorldCluster(LatestImage):
    """One broker's view of a `ClusterWorld`, as `diskless.cluster.Cluster`."""

    def __init__(self, world: ClusterWorld, broker_id: int) -> None:
        super().__init__(world.image)
        self.world = world
        self._broker_id = broker_id
        self._commit_callbacks: list[Callable[[int], None]] = []
        self.asked_for: list[Client | None] = []  # the clients of requests to the controller
        self._paused = False
        self.ages_ms: dict[int, float | None] = defaultdict(float)  # of its replicas: level
        self.image_age: float | None = 0.0  # ms; None: it was never level
        self.groups_age: float | None = 0.0
        self.replicas = {
            index: WorldReplica(leader) for index, leader in enumerate(world.leaders)
        }  # a test may take one away
        for index, replica in self.replicas.items():
            replica.listen(lambda index=index: self._on_commit(index))  # type: ignore[misc]
        world.machine.listen(self._on_image)

    # --- what a test decides ------------------------------------------------------------------

    def pause(self) -> None:
        """Read nothing of the cluster log until `go_on`, so that the broker lags."""
        self._paused = True

    def go_on(self) -> None:
        """Read the records since `pause`."""
        self._paused = False
        self._on_image(self.world.image)

    # --- a Cluster ----------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """See Cluster."""
        return CLUSTER_ID

    @property
    def broker_id(self) -> int:
        """See Cluster."""
        return self._broker_id

    def image_age_ms(self) -> float | None:
        """See Cluster."""
        return self.image_age

    def groups_age_ms(self) -> float | None:
        """See Cluster."""
        return self.groups_age

    def replica(self, coordinator: int) -> Replica | None:
        """See Cluster."""
        return self.replicas.get(coordinator)

    def replica_age_ms(self, coordinator: int) -> float | None:
        """See Cluster."""
        return self.ages_ms[coordinator]

    def on_commit(self, callback: Callable[[int], None]) -> None:
        """See Cluster."""
        self._commit_callbacks.append(callback)

    def leader(self, coordinator: int) -> CommitQueue:
        """See Cluster."""
        return self.world.leaders[coordinator]

    async def ask_controller(
        self, request: Request, response: type[R], client: Client | None = None
    ) -> R:
        """See Cluster."""
        self.asked_for.append(client)
        if self.world.controller_away:
            await asyncio.sleep(UNREACHABLE_S)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, "no controller answers: it is away")
        return await self.world.ask(request, response, client)

    async def ask_groups(self, request: Request) -> Response | None:
        """See Cluster."""
        await asyncio.sleep(0)
        if self.world.groups_away:
            return None
        version = request.schema().versions.last
        received = decode_message(type(request), encode_message(request, version), version)
        response = GROUP_CALLS[type(request)]
        try:
            answer = await ask_group_log(self.world.group_log, received)
        except CoordinatorError as error:
            answer = response(error_code=int(error.code), error_message=error.message)
        except NotLeaderError as error:
            answer = response(
                error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE), error_message=str(error)
            )
        decoded: Response = decode_message(response, encode_message(answer, version), version)
        return decoded

    def groups(self) -> Iterable[tuple[str, Group]]:
        """See Cluster."""
        return self.world.group_machine.image.groups.items()

    async def ask_transactions(self, request: Request) -> Response | Failure:
        """See Cluster."""
        return await self.world.ask_transactions(request)

    def transactions(self) -> tuple[TransactionsImage, Offset]:
        """See Cluster."""
        machine = self.world.transaction_machine
        return machine.image, machine.applied.offset

    def metadata_offset(self) -> Offset:
        """See Cluster."""
        return Offset(self._image.offset - 1)

    async def report_lost_records(self, topic: str, partition: int, end: int, epoch: int) -> None:
        """See Cluster."""
        raise AssertionError(f"{topic}-{partition} lost records below {end}, epoch {epoch}")

    # --- told ---------------------------------------------------------------------------------

    def _on_image(self, image: MetadataImage) -> None:
        if self._paused or image is self._image:
            return
        self._publish(image)

    def _on_commit(self, coordinator: int) -> None:
        for callback in self._commit_callbacks:
            callback(coordinator)


class WorldCoordinator(InMemoryCoordinator):
    """The leader of one coordinator partition, with the interface of a broker's client."""

    def __init__(
        self, settings: CoordinatorSettings, view: ImageView, wall_ms: Callable[[], int]
    ) -> None:
        super().__init__(settings, view, wall_ms)
        self.away = False  # nobody leads
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Register a callback for each commit."""
        self._listeners.append(listener)

    def context(self) -> Any:
        """See InMemoryCoordinator. Every call asks for it first."""
        if self.away:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
        return super().context()

    def commit(self, decision: Decision[T]) -> T:
        """See InMemoryCoordinator."""
        answer = super().commit(decision)
        if decision.records:
            for listener in self._listeners:
                listener()
        return answer

    def submit(
        self, request: rpc.CommitBatchesRequest
    ) -> asyncio.Future[rpc.CommitBatchesResponse]:
        """See CommitQueue. Tasks begin in the order in which they are made."""
        return asyncio.ensure_future(self.call(request))

    async def call(self, request: CoordinatorRequest[R]) -> R:
        """See BatchCoordinator; the read barrier takes a turn of the loop."""
        if isinstance(request, rpc.ListDisklessOffsetsRequest):
            await asyncio.sleep(0)
        return await super().call(request)

    async def close(self) -> None:
        """Do nothing: closing a client does not stop the coordinator."""


class WorldReplica:
    """A read-only coordinator: applies what its leader has logged, at once unless paused."""

    def __init__(self, leader: WorldCoordinator) -> None:
        self._leader = leader
        self._applied = 0  # of the leader's log
        self._listeners: list[Callable[[], None]] = []
        self.state = InMemoryState()
        self.paused = False
        leader.listen(self.go_on)
        self.go_on()

    def listen(self, listener: Callable[[], None]) -> None:
        """Register a callback for applied records."""
        self._listeners.append(listener)

    def go_on(self) -> None:
        """Apply the committed records, unless paused."""
        if self.paused or not self.lag:
            return
        for offset, record in self._leader.log[self._applied :]:
            self.state.apply(offset, record)
        self._applied = len(self._leader.log)
        for listener in self._listeners:
            listener()

    @property
    def lag(self) -> int:
        """See Replica."""
        return len(self._leader.log) - self._applied

    def ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """See Replica."""
        return log_ends(self.state, topic_id, partition)

    def stable_ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """See Replica."""
        return stable_ends(self.state, topic_id, partition)

    async def call(self, request: Any) -> Any:
        """See CallTarget: FindBatches, and overviews of the applied state."""
        if isinstance(request, DescribeDisklessTopicsRequest):
            return describe_topics(request, self.state)
        assert isinstance(request, rpc.FindBatchesRequest), request
        return find_batches(request, self.state, self.state, self._leader.settings)


class _Applier:
    """Applies committed records as `snapshot.host` does, without files."""

    def __init__(self, log: MemoryLog, machine: ControllerMachine | GroupMachine) -> None:
        self._log = log
        self._machine = machine

    def committed(self, high_watermark: Offset) -> None:
        while self._machine.applied.offset < high_watermark:
            data = self._log.read(self._machine.applied.offset, 64 * 1024)
            self._machine.apply(list(iter_batches(data)))

    def lead(self, epoch: Epoch) -> None: ...

    def step_down(self, epoch: Epoch) -> None: ...

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None: ...
