"""Producers' memory is bounded, whatever the store does.

Source: docs/design/broker.md#memory-in-flight.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from diskless.produce.in_flight import InFlight
from diskless.produce.object_writer import WriterSettings
from diskless.produce.request import PendingProduce
from diskless.stores.memory import MemoryStore
from raft.net import ClientConnection, Listener, connect
from raft.net.connection import Answer, ServerConnection
from raft.net.frames import Frame
from raft.net.header import parse_request_header
from raft.net.rpc import request_kind
from records.codec import decode_message, encode_parts
from records.compression import Buffer
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch, values
from tests.waiting import DEADLINE_S, wait_until_async

VERSION = 9
BOUND = 4 << 20
TURNS = 1_000  # of the loop
SIZE = 200_000  # of a batch
PRODUCERS, REQUESTS = 8, 25  # 40 MB in all: ten times the bound
_sent = ProduceRequest.TopicProduceData


class StuckStore(MemoryStore):
    """A store whose uploads block until they are released."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.go = asyncio.Event()

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        await self.go.wait()
        await super().upload(key, parts, size_bytes)


def request(now_ms: int, producer: int, number: int, acks: int) -> ProduceRequest:
    records = batch(producer * 1_000 + number, now_ms=now_ms, size=SIZE)
    return ProduceRequest(
        acks=acks,
        timeout_ms=60_000,
        topic_data=(
            _sent(
                name="t",
                partition_data=(_sent.PartitionProduceData(index=producer, records=records),),
            ),
        ),
    )


class Scene:
    """A listener, a store that is stuck, and a broker with a small bound."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.store = StuckStore()
        self.broker = RecordsBroker(
            world,
            1,
            self.store,
            settings=WriterSettings(
                commit_interval_ms=5, buffer_max_bytes=1 << 20, upload_timeout_ms=60_000
            ),
            max_in_flight=BOUND,
        )
        self.listener = Listener(self._handle, on_close=self.broker.apis.connection_closed)
        self.peak = 0  # of all memory that requests hold

    def _handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        header = parse_request_header(frame, {0: 9})
        answer = self.broker.handlers[0].serve(connection, header, frame[header.body_at :])
        self.peak = max(self.peak, self.broker.in_flight.used_bytes)
        return answer

    async def send_all(self, client: ClientConnection, producer: int, acks: int) -> list[int]:
        """Pipeline all requests; return their offsets (none with acks=0)."""
        kind = request_kind(ProduceRequest, VERSION)
        asked = []
        for number in range(REQUESTS):
            message = request(self.world.wall_ms(), producer, number, acks)
            parts = tuple(encode_parts(message, VERSION))
            if acks == 0:
                client.send(kind, parts, lambda _: None, timeout_ms=60_000)
            else:
                asked.append(asyncio.ensure_future(client.request(kind, parts, timeout_ms=60_000)))
        answers = [decode_message(ProduceResponse, await one, VERSION) for one in asked]
        found = [answer.responses[0].partition_responses[0] for answer in answers]
        assert {one.error_code for one in found} <= {0}
        return [one.base_offset for one in found]

    async def all_are_held(self) -> None:
        """Wait until no producer's socket is read any more."""

        def held() -> int:
            return sum(one._held for one in self.listener.connections)

        await wait_until_async(lambda: held() >= PRODUCERS, "no socket is read", state=held)


@pytest.mark.parametrize("acks", [-1, 0])
def test_produce_requests_use_bounded_memory_while_the_store_hangs_and_complete_later(
    acks: int,
) -> None:
    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await world.create("t", partitions=PRODUCERS)
            scene = Scene(world)
            await scene.listener.start("127.0.0.1", 0)
            clients = [await connect("127.0.0.1", scene.listener.port) for _ in range(PRODUCERS)]
            try:
                sending = [
                    asyncio.ensure_future(scene.send_all(client, number, acks))
                    for number, client in enumerate(clients)
                ]
                await scene.all_are_held()
                in_flight = scene.broker.in_flight
                received = sum(one.bytes_received for one in scene.listener.connections)
                assert BOUND <= scene.peak <= BOUND + SIZE + 1_000, f"{scene.peak} bytes are held"
                # Each connection besides has one request waiting, and what was read with it.
                most = scene.peak + PRODUCERS * (2 * SIZE + 2 * 65_536)
                assert received <= most, f"{received} bytes were read"
                assert 0 < in_flight.waiting <= 2 * PRODUCERS
                scene.store.go.set()
                offsets = await asyncio.gather(*sending)
                if acks:
                    assert offsets == [list(range(REQUESTS))] * PRODUCERS
                await everything_is_there(scene)
                assert in_flight.waiting == 0
            finally:
                for client in clients:
                    client.close()
                await scene.listener.close()
                await scene.broker.end(5)

    asyncio.run(on_loop())


async def everything_is_there(scene: Scene) -> None:
    """Assert that each producer's records are stored once, in order."""
    expected = {
        producer: [(number, producer * 1_000 + number) for number in range(REQUESTS)]
        for producer in range(PRODUCERS)
    }
    async with asyncio.timeout(DEADLINE_S):
        for producer, records in expected.items():
            found: list[tuple[int, int]] = []
            while len(found) < REQUESTS:
                answer = await scene.broker.fetch(
                    "t", producer, len(found), max_wait_ms=1_000, max_bytes=1 << 24
                )
                found += values(answer.records)
            assert found == records


def test_a_produce_request_that_waits_too_long_for_memory_times_out_unwritten() -> None:
    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await world.create("t", partitions=1)
            scene = Scene(world)
            scene.broker.in_flight.acquire(BOUND)
            answer = await scene.broker.produce(
                "t", 0, batch(1, now_ms=world.wall_ms()), timeout_ms=30
            )
            assert answer.error_code == 7
            scene.store.go.set()
            scene.broker.in_flight.release(BOUND)
            late = await scene.broker.produce("t", 0, batch(2, now_ms=world.wall_ms()))
            assert (late.error_code, late.base_offset) == (0, 0), "the first was written after all"
            await scene.broker.end(5)

    asyncio.run(on_loop())


def test_produce_requests_that_wait_for_memory_keep_their_order() -> None:
    async def on_loop() -> None:
        in_flight = InFlight(100)
        in_flight.acquire(150)
        order: list[int] = []

        def taking(number: int) -> None:
            order.append(number)
            in_flight.acquire(60)

        for number in range(4):
            assert in_flight.is_full
            in_flight.wait(lambda number=number: taking(number))  # type: ignore[misc]
        in_flight.release(60)
        assert in_flight.is_full, "others wait: who comes now is behind them"
        await asyncio.sleep(0)
        assert order == [0]
        in_flight.release(150)
        await asyncio.sleep(0)
        assert order == [0, 1, 2]
        in_flight.release(120)
        await asyncio.sleep(0)
        assert order == [0, 1, 2, 3]
        assert (in_flight.used_bytes, in_flight.peak_bytes, in_flight.held_back) == (60, 150, 4)

    asyncio.run(on_loop())


def test_a_finished_produce_request_is_freed_without_the_garbage_collector() -> None:
    """The garbage collector runs seldom, and a request may take a megabyte."""

    def left() -> int:
        return sum(type(one) is PendingProduce for one in gc.get_objects())

    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await world.create("t", partitions=1)
            scene = Scene(world)
            scene.store.go.set()
            now_ms = world.wall_ms()
            assert (await scene.broker.produce("t", 0, batch(1, now_ms=now_ms))).error_code == 0
            assert (await scene.broker.produce("t", 7, batch(2, now_ms=now_ms))).error_code == 3
            scene.broker.in_flight.acquire(BOUND)
            late = await scene.broker.produce("t", 0, batch(3, now_ms=now_ms), timeout_ms=20)
            assert late.error_code == 7
            scene.broker.in_flight.release(BOUND)
            await scene.broker.end(60)
            for _ in range(TURNS):  # what was cancelled ends in its own turns
                if not left():
                    break
                await asyncio.sleep(0)
            assert left() == 0

    gc.collect()
    gc.disable()
    try:
        asyncio.run(on_loop())
    finally:
        gc.enable()
