"""What brokers do to a batch coordinator, and remember.

They upload objects, several at a time, of idempotent batches over many partitions. Now and then a
broker sends a whole object again, or is sent batches that the other broker has committed already,
as by a client whose connection broke; takes a new epoch; leaves ids unused; asks whether an object
may be deleted, and commits it all the same. One producer of each broker has so many records in a
batch that its sequences wrap around.

The client hides leaders' deaths, and promises an answer: so a call that fails, fails the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import count
from random import Random
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.controller.client import ControllerClient
from records.features import SUPPORTED
from records.object_keys import ObjectKeys
from records.rpc.base import Request, Response
from records.rpc.batch_coordinator import CommitBatch, CommitBatchesRequest, CommitBatchesResponse
from records.rpc.brokers import BrokerRegistrationRequest, BrokerRegistrationResponse
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    IsSafeToDeleteFileRequest,
    ReleaseObjectLeaseRequest,
)
from tests.nemesis.batch_history import (
    TOPIC_IS_GONE,
    Batch,
    Committed,
    History,
    Outcome,
    Place,
    WrongHistoryError,
)

R = TypeVar("R", bound=Response)

PARTITIONS: Final = 8
PRODUCERS: Final = 4
IN_FLIGHT: Final = 6
KEPT_ANSWERS: Final = 20  # of those that a coordinator keeps: surely still there
LEASE_IDS: Final = 40
WRAPPING: Final = 2**27  # records of a batch: 16 of them, and the sequences begin anew
MAX_SEQUENCE: Final = 2**31 - 1
PATIENCE_MS: Final = 90_000
CALL_MS: Final = 5_000
NEVER_COMMITTED: Final = 55
ANSWER_FORGOTTEN: Final = 46
UNKNOWN_OUTCOME: Final = frozenset({6, 7, 41})
"""NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_CONTROLLER: the controller changed meanwhile."""

Answer: TypeAlias = "asyncio.Future[CommitBatchesResponse]"

SETTINGS: Final = ClientSettings(
    timeout_ms=PATIENCE_MS, attempt_timeout_ms=2_000, retry_ms=5, retry_max_ms=50
)


class Shared:
    """What the actors of one run know of each other."""

    def __init__(self, addresses: Sequence[tuple[str, int]], keys: ObjectKeys) -> None:
        self.history = History()
        self.addresses = list(addresses)
        self.keys = keys
        self.topics: dict[UUID, str] = {}  # that may be written to
        self.ends: dict[Place, int] = defaultdict(int)  # as far as acknowledged
        self.mail: dict[int, deque[Batch]] = defaultdict(deque)  # by broker: send these again
        self.numbers = count()
        self.stop = asyncio.Event()

    def client(self) -> CoordinatorClient:
        return CoordinatorClient(self.addresses, settings=SETTINGS)

    async def ask_controller(self, request: Request, response: type[R]) -> R:
        """The active controller's answer, through whatever happens to controllers."""
        client = ControllerClient(
            self.addresses, timeout_ms=PATIENCE_MS, attempt_timeout_ms=CALL_MS
        )
        try:
            return await client.call(request, response)
        finally:
            await client.close()

    def some_place(self, random: Random) -> Place | None:
        if not self.topics:
            return None
        return random.choice(list(self.topics)), random.randrange(PARTITIONS)


class Broker:
    """Uploads objects, several at a time, and remembers what it was told."""

    def __init__(self, shared: Shared, broker_id: int, peer_id: int, random: Random) -> None:
        self.acknowledged = 0
        self._shared = shared
        self._broker_id = broker_id
        self._peer_id = peer_id
        self._random = random
        self._client = shared.client()
        self._broker_epoch = -1
        self._registrations = 0
        self._lease_id = -1
        self._next_id = self._end_id = 0
        self._epochs: dict[int, int] = defaultdict(int)  # by producer
        self._sequences: dict[tuple[int, Place], int] = defaultdict(int)
        self._waiting: deque[tuple[int, CommitBatchesRequest, tuple[Batch, ...], Answer]] = deque()
        self._told: list[tuple[CommitBatchesRequest, CommitBatchesResponse]] = []

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    async def work(self) -> None:
        try:
            await self._register()
            while not self._shared.stop.is_set():
                if self._next_id == self._end_id:
                    await self._change_lease()
                await self._something()
                while len(self._waiting) >= IN_FLIGHT:
                    await self._hear()
                await asyncio.sleep(self._random.random() * 0.02)
            await self._hear_all()
            await self._release()
        finally:
            await self._client.close()

    async def _register(self) -> None:
        """Become a member, under a new epoch: with another rack, it is another registration."""
        self._registrations += 1
        listener = BrokerRegistrationRequest.Listener(
            name="PLAINTEXT", host="localhost", port=9_092, security_protocol=0
        )
        features = tuple(
            BrokerRegistrationRequest.Feature(
                name=name, min_supported_version=lowest, max_supported_version=highest
            )
            for name, (lowest, highest) in SUPPORTED.items()
        )
        request = BrokerRegistrationRequest(
            broker_id=self._broker_id, cluster_id=self._shared.keys.cluster_id,
            incarnation_id=UUID(int=1_000 + self._broker_id), listeners=(listener,),
            features=features,
            rack=str(self._registrations),
        )  # fmt: skip
        answer = await self._shared.ask_controller(request, BrokerRegistrationResponse)
        while answer.error_code in UNKNOWN_OUTCOME:
            answer = await self._shared.ask_controller(request, BrokerRegistrationResponse)
        if answer.error_code:
            raise WrongHistoryError(f"not registered: {answer}")
        self._broker_epoch = answer.broker_epoch

    async def _something(self) -> None:
        chance = self._random.random()
        if chance < 0.03:
            self._next_id += 1  # an upload that failed: an orphan
        elif chance < 0.06:
            await self._delete_and_commit()
        elif chance < 0.14 and self._told:
            await self._again()
        elif self._shared.topics:
            self._send()

    # --- leases -------------------------------------------------------------------------------

    async def _change_lease(self) -> None:
        await self._hear_all()
        if self._lease_id >= 0:
            if self._random.random() < 0.4:
                await self._register()  # a restart: its lease is never given back
                self._shared.history.happened["broker restarted"] += 1
            else:
                await self._release()
        lease = await self._client.call(
            AcquireObjectLeaseRequest(
                coordinator_partition=0, broker_id=self._broker_id,
                broker_epoch=self._broker_epoch, object_count=LEASE_IDS,
            )
        )  # fmt: skip
        if lease.error_code:
            raise WrongHistoryError(f"no lease: {lease}")
        self._lease_id = lease.lease_id
        self._next_id = lease.first_object_id
        self._end_id = self._next_id + lease.object_count - self._random.randrange(4)

    async def _release(self) -> None:
        answer = await self._client.call(
            ReleaseObjectLeaseRequest(
                coordinator_partition=0, broker_id=self._broker_id,
                broker_epoch=self._broker_epoch, lease_id=self._lease_id,
            )
        )  # fmt: skip
        if answer.error_code:
            raise WrongHistoryError(f"lease not released: {answer}")
        self._shared.history.happened["lease released"] += 1

    # --- commits ------------------------------------------------------------------------------

    def _send(self) -> None:
        batches = self._batches()
        request = self._request(batches)
        future = self._client.submit(request)
        self._waiting.append((time.monotonic_ns(), request, batches, future))

    def _batches(self) -> tuple[Batch, ...]:
        """New batches of a few partitions, and what the other broker's clients send again."""
        random, shared = self._random, self._shared
        groups: dict[Place, list[Batch]] = defaultdict(list)
        for _ in range(random.randint(1, 10)):
            place = shared.some_place(random)
            assert place is not None, "no topic to write to"
            for _ in range(random.randint(1, 3)):
                groups[place].append(self._batch(place))
        mail = shared.mail[self._broker_id]
        while mail:
            batch = mail.popleft()
            if batch.place[0] in shared.topics:
                groups[batch.place].append(batch)
        return tuple(batch for group in groups.values() for batch in group)

    def _batch(self, place: Place) -> Batch:
        random, number = self._random, next(self._shared.numbers)
        if random.random() < 0.1:
            return Batch(number, place, -1, -1, -1, random.randint(1, 50), 70)
        index = random.randrange(PRODUCERS)
        producer = 100 * self._broker_id + index
        if random.random() < 0.005:
            self._epochs[producer] += 1
            for key in [key for key in self._sequences if key[0] == producer]:
                del self._sequences[key]
        records = WRAPPING if not index else random.randint(1, 50)
        sequence = self._sequences[producer, place]
        following = sequence + records
        if following > MAX_SEQUENCE:
            self._shared.history.happened["sequence wrapped"] += 1
        self._sequences[producer, place] = following & MAX_SEQUENCE
        size = random.randint(61, 2_000)
        return Batch(number, place, producer, self._epochs[producer], sequence, records, size)

    def _request(self, batches: Iterable[Batch]) -> CommitBatchesRequest:
        """Their object, its batches by topic and partition, some bytes at its end used by none."""
        topics: dict[UUID, dict[int, list[CommitBatch]]] = defaultdict(lambda: defaultdict(list))
        at = 0
        for batch in batches:
            last = batch.sequence + batch.records - 1 & MAX_SEQUENCE if batch.sequence >= 0 else -1
            topics[batch.place[0]][batch.place[1]].append(
                CommitBatch(
                    at, batch.size, 0, batch.records - 1, time.time_ns() // 1_000_000, 0,
                    batch.producer_id, batch.epoch, batch.sequence, last,
                )
            )  # fmt: skip
            at += batch.size
        topic, object_id = CommitBatchesRequest.Topic, self._next_id
        self._next_id += 1
        return CommitBatchesRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch, lease_id=self._lease_id,
            object_id=object_id, object_format=1, object_size=at + self._random.randrange(500),
            topics=tuple(
                topic(
                    topic_id=topic_id,
                    partitions=tuple(
                        topic.Partition(partition_index=index, batches=tuple(rows))
                        for index, rows in partitions.items()
                    ),
                )
                for topic_id, partitions in topics.items()
            ),
        )  # fmt: skip

    async def _hear_all(self) -> None:
        while self._waiting:
            await self._hear()

    async def _hear(self) -> None:
        """The oldest commit's answer."""
        invoked, request, batches, future = self._waiting[0]
        answer = await future
        returned = time.monotonic_ns()
        self._waiting.popleft()
        if answer.error_code:
            raise WrongHistoryError(f"object {request.object_id} was refused: {answer}")
        self.acknowledged += 1
        self._told.append((request, answer))
        outcomes = _outcomes(answer)
        batches = _as_sent(request, batches)
        shared = self._shared
        shared.history.committed.append(
            Committed(request.object_id, invoked, returned, batches, outcomes)
        )
        for batch, outcome in zip(batches, outcomes, strict=True):
            if not outcome.error_code:
                end_offset = outcome.base_offset + batch.records
                shared.ends[batch.place] = max(shared.ends[batch.place], end_offset)
            shared.history.happened["duplicate"] += outcome.is_duplicate
            shared.history.happened["topic was gone"] += outcome.error_code in TOPIC_IS_GONE
            new = not batch.again and not outcome.error_code and batch.producer_id >= 0
            if new and self._random.random() < 0.02:
                shared.mail[self._peer_id].append(batch._replace(again=True))

    async def _again(self) -> None:
        """An object that was answered, once more: the same answer."""
        recent = self._random.random() < 0.8
        request, first = self._random.choice(self._told[-KEPT_ANSWERS:] if recent else self._told)
        again = await self._client.call(request)
        if not recent and again.error_code == ANSWER_FORGOTTEN:
            self._shared.history.happened["answer was forgotten"] += 1
        elif again.error_code or again.topics != first.topics:
            raise WrongHistoryError(f"first {first}, and again {again}: {request}")
        self._shared.history.happened["object sent again"] += 1

    async def _delete_and_commit(self) -> None:
        """Told that an object may be deleted, a broker may send its commit no more."""
        await self._hear_all()
        place = self._shared.some_place(self._random)
        if place is None:
            return
        request = self._request((Batch(next(self._shared.numbers), place, -1, -1, -1, 1, 70),))
        key = self._shared.keys.key(request.object_id)
        safe = await self._client.call(
            IsSafeToDeleteFileRequest(coordinator_partition=0, object_key=key)
        )
        late = await self._client.call(request)
        if not safe.is_safe or late.error_code != NEVER_COMMITTED:
            raise WrongHistoryError(f"{safe}, and yet {late}")
        self._shared.history.happened["late commit refused"] += 1


def _outcomes(answer: CommitBatchesResponse) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(result.error_code, result.assigned_base_offset, result.is_duplicate)
        for topic in answer.topics
        for partition in topic.partitions
        for result in partition.results
    )


def _as_sent(request: CommitBatchesRequest, batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """Batches in the order of the request, which has them topic by topic."""
    order = {
        (topic.topic_id, partition.partition_index): (outer, inner)
        for outer, topic in enumerate(request.topics)
        for inner, partition in enumerate(topic.partitions)
    }
    return tuple(sorted(batches, key=lambda batch: order[batch.place]))
