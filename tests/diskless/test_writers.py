"""Writers begin and end with their broker's epoch.

Source: docs/design/batch-coordinator.md#object-leases,
docs/design/broker.md#errors-a-producer-sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coordinator.errors import OutcomeUnknownError
from diskless.produce.closing import ClosingSettings
from diskless.produce.object_writer import WriterSettings
from diskless.stores.faults import Fault, FaultRule
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatchesRequest, CommitBatchesResponse
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import Produced, RecordsBroker, batch, values
from tests.diskless.virtual_time import run

NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
SLOW = FaultRule(fault=Fault.SLOW, operations=frozenset({"upload"}), delay_s=1.0)
QUICK = WriterSettings(commit_interval_ms=20, upload_timeout_ms=5_000)


def claim(work: Callable[[ClusterWorld, RecordsBroker], Awaitable[None]]) -> None:
    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await world.create("t")
            broker = RecordsBroker(world, 1)
            await work(world, broker)
            await broker.end()
            assert broker.writers.in_flight_bytes == broker.in_flight.used_bytes == 0

    run(on_loop)


def send(world: ClusterWorld, broker: RecordsBroker, number: int) -> asyncio.Future[Produced]:
    return asyncio.ensure_future(
        broker.produce("t", 0, batch(number, now_ms=world.wall_ms()), timeout_ms=10_000)
    )


async def register_anew(world: ClusterWorld) -> None:
    """Register another process under this broker's id, with a newer epoch."""
    await world.unregister(1)
    await world.register(1, incarnation=1)
    await world.unfence(1)


async def stored(broker: RecordsBroker) -> list[int]:
    return [number for _, number in values((await broker.fetch("t", 0, 0)).records)]


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.1])
def test_an_ended_broker_epoch_drops_the_batches_that_were_not_submitted_to_the_coordinator(
    after_s: float,
) -> None:
    """Buffered, waiting for an id, or being uploaded."""

    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        broker.store.rules = (SLOW,)
        sent = [send(world, broker, number) for number in range(3)]
        await asyncio.sleep(after_s)
        broker.writers.end()
        answers = await asyncio.gather(*sent)
        assert {answer.error_code for answer in answers} == {NOT_LEADER_OR_FOLLOWER}
        assert (await send(world, broker, 9)).error_code == NOT_LEADER_OR_FOLLOWER
        await register_anew(world)
        broker.begin()
        assert (await send(world, broker, 10)).error_code == 0
        await asyncio.sleep(10)
        assert await stored(broker) == [10]

    claim(work)


class Forgetful:
    """A coordinator's `submit` that loses the first answer to each commit."""

    def __init__(self, submit: Callable[..., asyncio.Future[CommitBatchesResponse]]) -> None:
        self.submit = submit
        self.submitted: list[int] = []

    def __call__(self, request: CommitBatchesRequest) -> asyncio.Future[CommitBatchesResponse]:
        first = request.object_id not in self.submitted
        self.submitted.append(request.object_id)
        answer = self.submit(request)
        return asyncio.ensure_future(self._lost(answer)) if first else answer

    async def _lost(self, answer: asyncio.Future[CommitBatchesResponse]) -> CommitBatchesResponse:
        await answer
        await asyncio.sleep(1)
        raise OutcomeUnknownError(ErrorCode.REQUEST_TIMED_OUT, "the answer was lost")


def test_a_commit_submitted_before_the_broker_epoch_ends_still_gets_its_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        forgetful = Forgetful(world.leaders[0].submit)
        monkeypatch.setattr(world.leaders[0], "submit", forgetful)
        sent = send(world, broker, 1)
        while not forgetful.submitted:
            await asyncio.sleep(0.01)
        broker.writers.end()
        await register_anew(world)
        broker.begin()
        answer = await sent
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert forgetful.submitted == [0, 0], "one object, asked about twice"
        assert await stored(broker) == [1]

    claim(work)


def test_a_second_process_with_the_same_broker_id_fences_the_first_process_exactly_once() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        assert (await send(world, broker, 1)).error_code == 0
        await register_anew(world)  # a second process with our id
        other = RecordsBroker(world, 1, broker.memory)
        assert (await send(world, other, 2)).error_code == 0
        for number in (3, 4):
            answers = await asyncio.gather(*(send(world, broker, number) for _ in range(3)))
            assert {answer.error_code for answer in answers} == {NOT_LEADER_OR_FOLLOWER}
        assert (broker.fenced, broker.writers.epoch) == (1, None)
        assert await stored(other) == [1, 2]
        await other.end()

    claim(work)


def test_flushing_an_object_writer_uploads_its_buffer_before_the_commit_interval_ends() -> None:
    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await world.create("t")
            settings = WriterSettings(
                commit_interval_ms=60_000, closing=ClosingSettings(quiet_ms=0)
            )
            broker = RecordsBroker(world, 1, settings=settings)
            sent = send(world, broker, 1)
            await asyncio.sleep(1)
            assert not sent.done()
            broker.writers.flush()
            await asyncio.sleep(0.1)
            assert (await sent).error_code == 0
            await broker.end()

    run(on_loop)


def test_a_closing_broker_writes_its_buffers_and_accepts_no_more_batches() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        broker.store.rules = (SLOW,)
        sent = [send(world, broker, number) for number in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(broker.end())
        await asyncio.sleep(0.001)
        assert (await send(world, broker, 9)).error_code == NOT_LEADER_OR_FOLLOWER
        await closing
        assert {answer.error_code for answer in await asyncio.gather(*sent)} == {0}
        assert await stored(broker) == [0, 1, 2]

    claim(work)


def test_a_broker_that_closes_before_its_uploads_end_answers_not_leader_or_follower() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        broker.store.rules = (FaultRule(fault=Fault.SLOW, delay_s=100.0),)
        sent = send(world, broker, 1)
        await asyncio.sleep(0.1)
        await broker.end(timeout_s=0.5)
        assert (await sent).error_code == NOT_LEADER_OR_FOLLOWER

    claim(work)
