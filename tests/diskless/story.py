"""Whole brokers in one story: producers, consumers, and everything that can go wrong, by one seed.

Two brokers of one cluster share a store that fails. Uploads are slow, fail, or succeed with their
answer lost; commits' answers are lost; nobody leads for a while; replicas lag; a broker loses its
epoch and gets another. Producers do what Kafka's do: they send again what failed with an error that
may pass, idempotent ones under the same sequence. Consumers read on, now here, now there.

What must hold in the end: each partition's offsets have no gap; what was acknowledged is at its
offset; nothing is there more often than it was sent, and of an idempotent producer once and in
order; and every consumer saw just what is there, at every broker, and never an error that would
make it jump.

Source: docs/design/broker.md; invariants 5, 6 and 9 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from coordinator.errors import OutcomeUnknownError
from diskless.fetch.service import FetchService
from diskless.produce.object_writer import WriterSettings
from diskless.stores.faults import Fault, FaultRule
from diskless.stores.memory import MemoryStore
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatchesRequest, CommitBatchesResponse
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import Produced, RecordsBroker, batch, values

PARTITIONS: Final = 2
BATCHES: Final = 12  # of each producer
MAY_PASS: Final = {6, 7, 19, 56}  # errors after which a producer sends again
DUPLICATE: Final = 46  # it is there, at an offset that nobody remembers


class Story:
    """One seeded story. Call `run` on a new loop, then `check`."""

    def __init__(self, seed: int, *, fetch_type: type[FetchService] = FetchService) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.note = f"reproduce: Story({seed:#x}), tests/diskless/test_stories.py"
        self.fetch_type = fetch_type
        self.acknowledged: dict[tuple[int, int], int] = {}  # (partition, offset): number
        self.sends: Counter[int] = Counter()  # how often each number was sent
        self.sent: list[tuple[int, int, list[int]]] = []  # idempotent producers': what, in order
        self.read: list[tuple[int, list[tuple[int, int]]]] = []  # consumers': partition, what
        self.logs: list[list[tuple[int, int]]] = []
        self.errors: list[int] = []
        self.lost = 0
        self.sent_again = 0
        self._next = 0
        self._producing = 0

    async def run(self) -> None:
        """Run producers and consumers under faults, then heal, and read everything."""
        async with ClusterWorld(brokers=(1, 2)) as world:
            self.world = world
            await world.create("t", partitions=PARTITIONS)
            submit = world.leaders[0].submit
            world.leaders[0].submit = self._losing(submit)  # type: ignore[method-assign]
            memory = MemoryStore(world.wall_ms)
            self.brokers = [self._broker(broker_id, memory) for broker_id in (1, 2)]
            for broker in self.brokers:
                broker.store.rules = self._rules()
            producers = [
                self._produce(self.random.randrange(PARTITIONS), producer_id, pipelined)
                for producer_id, pipelined in ((-1, 1), (-1, 1), (1, 1), (2, 3), (3, 3))
            ]
            self._producing = len(producers)
            trouble = asyncio.ensure_future(self._trouble())
            consumers = [
                asyncio.ensure_future(self._consume(index % PARTITIONS)) for index in range(4)
            ]
            await asyncio.gather(*producers)
            trouble.cancel()
            await self._heal()
            await asyncio.gather(*consumers)
            self.logs = [await self._read_all(partition) for partition in range(PARTITIONS)]
            for broker in self.brokers:
                await broker.end()
                left = broker.writers.in_flight_bytes, broker.in_flight.used_bytes
                assert left == (0, 0), f"bytes that never landed: {left}"

    def _broker(self, broker_id: int, memory: MemoryStore) -> RecordsBroker:
        random = self.random
        return RecordsBroker(
            self.world,
            broker_id,
            memory,
            seed=random.randrange(2**32),
            settings=WriterSettings(
                commit_interval_ms=random.choice((1, 20, 250)),
                buffer_max_bytes=random.choice((300, 3_000, 1_000_000)),
                max_uploads=random.choice((1, 3, 8)),
                upload_timeout_ms=random.choice((400, 3_000)),
                lease_ids=random.choice((1, 3, 100)),
            ),
            max_in_flight=random.choice((200, 2_000, 1 << 20)),
            fetch_type=self.fetch_type,
        )

    def _rules(self) -> tuple[FaultRule, ...]:
        upload, fetch, choice = frozenset({"upload"}), frozenset({"fetch"}), self.random.choice
        return (
            FaultRule(fault=Fault.ERROR, operations=upload, probability=choice((0, 0.3))),
            FaultRule(fault=Fault.REFUSED, operations=upload, probability=choice((0, 0.05))),
            FaultRule(fault=Fault.LOST_ANSWER, operations=upload, probability=choice((0, 0.3))),
            FaultRule(fault=Fault.SLOW, operations=upload, probability=0.4, delay_s=0.3),
            FaultRule(fault=Fault.ERROR, operations=fetch, probability=choice((0, 0.2))),
            FaultRule(fault=Fault.DAMAGED, operations=fetch, probability=choice((0, 0.2))),
        )

    # --- what goes wrong --------------------------------------------------------------------------

    def _losing(
        self, submit: Callable[..., asyncio.Future[CommitBatchesResponse]]
    ) -> Callable[[CommitBatchesRequest], asyncio.Future[CommitBatchesResponse]]:
        often = self.random.choice((0.0, 0.2, 0.5))

        async def lost(answer: asyncio.Future[CommitBatchesResponse]) -> CommitBatchesResponse:
            await answer
            self.lost += 1
            await asyncio.sleep(0.2)
            raise OutcomeUnknownError(ErrorCode.REQUEST_TIMED_OUT, "the answer was lost")

        def losing(request: CommitBatchesRequest) -> asyncio.Future[CommitBatchesResponse]:
            answer = submit(request)
            return asyncio.ensure_future(lost(answer)) if self.random.random() < often else answer

        return losing

    async def _trouble(self) -> None:
        while True:
            await asyncio.sleep(self.random.random())
            broker = self.random.choice(self.brokers)
            replica = broker.cluster.replicas[0]
            match self.random.randrange(4):
                case 0:
                    self.world.leaders[0].away = not self.world.leaders[0].away
                case 1:
                    replica.paused = not replica.paused
                    replica.go_on()
                case 2:
                    broker.cluster.ages_ms[0] = self.random.choice((0.0, 10.0**6))
                case 3:
                    await self._register_anew(broker)

    async def _register_anew(self, broker: RecordsBroker) -> None:
        """End the broker's session; after a while register it under another epoch."""
        broker_id = broker.cluster.broker_id
        if self.random.random() < 0.5:
            broker.writers.end()
        await self.world.unregister(broker_id)
        await self.world.register(broker_id, incarnation=self.random.randrange(2**20))
        await self.world.unfence(broker_id)
        await asyncio.sleep(self.random.random() * 0.2)
        broker.begin()

    async def _heal(self) -> None:
        self.world.leaders[0].away = False
        for broker in self.brokers:
            broker.store.rules = ()
            broker.cluster.ages_ms[0] = 0.0
            broker.cluster.replicas[0].paused = False
            broker.cluster.replicas[0].go_on()
            if broker.cluster.broker_id not in self.world.image.brokers:  # in the middle of it
                await self.world.register(broker.cluster.broker_id, incarnation=2**21)
            broker.begin()

    # --- clients --------------------------------------------------------------------------------

    async def _produce(self, partition: int, producer_id: int, pipelined: int) -> None:
        """Send batches one by one or a few at a time, and retry until they are acknowledged."""
        sequence, numbers = 0, []
        waiting: list[tuple[list[int], bytes]] = []
        for _ in range(BATCHES):
            some = [self._next + at for at in range(self.random.randint(1, 3))]
            self._next += len(some)
            numbers += some
            idempotent = producer_id >= 0
            waiting.append(
                (
                    some,
                    batch(
                        *some,
                        now_ms=self.world.wall_ms(),
                        producer_id=producer_id,
                        producer_epoch=0 if idempotent else -1,
                        base_sequence=sequence if idempotent else -1,
                    ),
                )
            )
            sequence += len(some)
        if producer_id >= 0:
            self.sent.append((partition, producer_id, numbers))
        while waiting:
            await asyncio.sleep(self.random.random() * 0.2)
            broker = self.random.choice(self.brokers)
            for some, _ in waiting[:pipelined]:
                self.sends.update(some)
            answers = await asyncio.gather(
                *(
                    broker.produce("t", partition, records, timeout_ms=2_000)
                    for _, records in waiting[:pipelined]
                )
            )
            while answers and self._is_there(partition, waiting[0][0], answers[0], producer_id):
                waiting.pop(0)
                answers.pop(0)
        self._producing -= 1

    def _is_there(
        self, partition: int, numbers: list[int], answer: Produced, producer_id: int
    ) -> bool:
        """Record an answer; return False if the batch must be sent again."""
        self.errors.append(answer.error_code)
        if answer.error_code == 0:
            for at, number in enumerate(numbers):
                self.acknowledged[(partition, answer.base_offset + at)] = number
            return True
        if answer.error_code == DUPLICATE:
            return True
        assert answer.error_code in MAY_PASS or (producer_id >= 0 and answer.error_code == 45), (
            f"{answer} of {numbers}"
        )
        self.sent_again += 1
        return False

    async def _consume(self, partition: int) -> None:
        """Read from broker after broker, until producers are done and nothing is left."""
        seen: list[tuple[int, int]] = []
        self.read.append((partition, seen))
        while True:
            done = not self._producing
            broker = self.random.choice(self.brokers)
            offset = seen[-1][0] + 1 if seen else 0
            found = await broker.fetch(
                "t", partition, offset, max_wait_ms=self.random.choice((0, 200)),
                max_bytes=self.random.choice((1, 200, 100_000)),
            )  # fmt: skip
            assert found.error_code in (0, 2, 6, 56, 78), f"a consumer at {offset} got {found}"
            some = [(at, number) for at, number in values(found.records) if at >= offset]
            seen += some
            if done and not some and found.error_code == 0:
                return
            await asyncio.sleep(self.random.random() * 0.3)

    async def _read_all(self, partition: int) -> list[tuple[int, int]]:
        log: list[tuple[int, int]] = []
        while True:
            found = await self.brokers[0].fetch("t", partition, len(log))
            assert found.error_code == 0, found
            some = [(at, number) for at, number in values(found.records) if at >= len(log)]
            if not some:
                assert len(log) == found.high_watermark
                return log
            log += some

    # --- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        """See the module."""
        for log in self.logs:
            assert [at for at, _ in log] == list(range(len(log))), "offsets have a gap"
        for (partition, offset), number in self.acknowledged.items():
            found = dict(self.logs[partition]).get(offset)
            assert found == number, f"{number} was acknowledged at {offset}, {found} is there"
        stored = Counter(number for log in self.logs for _, number in log)
        for number, count in stored.items():
            assert count <= self.sends[number], f"{number} was sent {self.sends[number]} times"
        for partition, producer_id, numbers in self.sent:
            mine = set(numbers)
            found_in_order = [number for _, number in self.logs[partition] if number in mine]
            assert found_in_order == numbers, f"producer {producer_id}: {found_in_order}"
        for partition, seen in self.read:
            assert seen == self.logs[partition][: len(seen)], "a consumer saw something else"
            assert len(seen) == len(self.logs[partition])
