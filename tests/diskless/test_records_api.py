"""Produce and Fetch handlers: order, waiting, disconnects, racks.

Source: docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from coordinator.controller.placement import leader, unfenced_brokers
from diskless.apis.records import MAX_IN_LINE, RecordApis
from diskless.placement import REDIRECT_PAUSE_S
from raft.net import Limits, Listener, connect
from raft.net.connection import Answer, ServerConnection
from raft.net.frames import Frame
from raft.net.header import parse_request_header, request_header
from raft.net.rpc import request_kind
from records.codec import decode_message, encode_parts
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.produce import ProduceRequest, ProduceResponse
from records.rpc.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch, fetching, values
from tests.diskless.virtual_time import run
from tests.waiting import wait_until_async

APIS = {0: 9, 1: 12}


def claim(
    work: Callable[[ClusterWorld, RecordsBroker], Awaitable[None]], **more: dict[int, str]
) -> None:
    async def on_loop() -> None:
        async with ClusterWorld(brokers=(1, 2, 3), **more) as world:  # type: ignore[arg-type]
            await world.create("t", partitions=2)
            broker = RecordsBroker(world, 1)
            await work(world, broker)
            await broker.end()

    run(on_loop)


def test_a_broker_serves_produce_and_fetch_at_every_announced_version() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        topic = world.image.topic("t")
        assert topic is not None
        served = broker.handlers
        assert (served[0].lowest, served[0].highest) == (0, 13)  # 0 to 2 only to be refused
        assert (served[1].lowest, served[1].highest) == (4, 18)
        for version in range(3, 14):
            records = batch(version, now_ms=world.wall_ms())
            answer = await broker.produce("t", 0, records, version=version, topic_id=topic.topic_id)
            assert (answer.error_code, answer.base_offset) == (0, version - 3)
        for version in range(4, 19):
            found = await broker.fetch("t", 0, 9, version=version, topic_id=topic.topic_id)
            assert values(found.records) == [(9, 12), (10, 13)], f"version {version}"

    claim(work)


def test_a_fetch_of_a_recreated_topic_never_returns_records_of_the_deleted_topic() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        old = world.image.topic("t")
        assert old is not None
        for number in (1, 2, 3):
            await broker.produce("t", 0, batch(number, now_ms=world.wall_ms()))
        waiting = asyncio.ensure_future(
            broker.fetch("", 0, 3, version=13, topic_id=old.topic_id, max_wait_ms=20_000)
        )
        await asyncio.sleep(0.1)
        state = DeleteTopicsRequest.DeleteTopicState
        deletion = DeleteTopicsRequest(topics=(state(name="t"),), timeout_ms=1_000)
        await world.ask(deletion, DeleteTopicsResponse)
        assert (await waiting).error_code == 100, "who waits is told at once"
        new = await world.create("t", partitions=2)
        assert new.topic_id != old.topic_id
        for version, topic_id, expected in ((13, old.topic_id, 100), (12, UUID(int=0), 1)):
            found = await broker.fetch("t", 0, 1, version=version, topic_id=topic_id)
            assert (found.error_code, found.records) == (expected, b"")
        late = await broker.produce(
            "", 0, batch(9, now_ms=world.wall_ms()), version=13, topic_id=old.topic_id
        )
        assert late.error_code == 100
        await broker.produce("t", 0, batch(7, now_ms=world.wall_ms()))
        assert values((await broker.fetch("t", 0, 0)).records) == [(0, 7)]

    claim(work)


# --- racks --------------------------------------------------------------------------------------

RACKS = {1: "a", 2: "b", 3: "b"}


def test_a_broker_redirects_a_consumer_of_another_rack_at_most_once_a_minute() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        topic = world.image.topic("t")
        assert topic is not None
        await broker.produce("t", 0, batch(1, now_ms=world.wall_ms()))
        first = await broker.fetch("t", 0, 0, rack="b", max_wait_ms=20_000)
        assert first.preferred_read_replica in (2, 3)
        assert (first.error_code, first.records, first.high_watermark) == (0, b"", 1)
        again = await broker.fetch("t", 0, 0, rack="b")
        assert (again.preferred_read_replica, values(again.records)) == (-1, [(0, 1)])
        other = await broker.fetch("t", 1, 0, rack="b")
        assert other.preferred_read_replica in (2, 3), "another partition is another matter"
        await asyncio.sleep(REDIRECT_PAUSE_S)
        later = await broker.fetch("t", 0, 0, rack="b")
        assert later.preferred_read_replica == first.preferred_read_replica
        assert broker.fetch_service.counters.redirects == 3

    claim(work, racks=RACKS)


def test_a_broker_redirects_no_consumer_out_of_its_rack_or_to_a_missing_broker() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        await broker.produce("t", 0, batch(1, now_ms=world.wall_ms()))
        for rack in ("a", "", "nowhere"):
            found = await broker.fetch("t", 0, 0, rack=rack)
            assert (found.preferred_read_replica, len(values(found.records))) == (-1, 1)
        assert broker.fetch_service.counters.unknown_racks == 1
        for broker_id in (2, 3):
            await world.fence(broker_id)
        found = await broker.fetch("t", 0, 0, rack="b")
        assert found.preferred_read_replica == -1, "fenced brokers are no place to read"

    claim(work, racks=RACKS)


def test_a_fetch_redirects_to_the_leader_that_metadata_names() -> None:
    async def work(world: ClusterWorld, broker: RecordsBroker) -> None:
        topic = world.image.topic("t")
        assert topic is not None
        there = leader(topic.topic_id, 0, "b", unfenced_brokers(world.image))
        assert (await broker.fetch("t", 0, 0, rack="b")).preferred_read_replica == there

    claim(work, racks=RACKS)


# --- over a socket ------------------------------------------------------------------------------


class Socket:
    """A listener that serves Produce and Fetch on a real loop."""

    def __init__(self, broker: RecordsBroker, limits: Limits | None = None) -> None:
        self.broker = broker

        def handle(connection: ServerConnection, frame: Frame) -> Answer:
            header = parse_request_header(frame, APIS)
            serve = broker.handlers[header.api_key].serve
            return serve(connection, header, frame[header.body_at :])

        self.listener = Listener(
            handle, name="t", limits=limits, on_close=broker.apis.connection_closed
        )


def on_socket(
    work: Callable[[ClusterWorld, Socket], Awaitable[None]], max_answer_bytes: int | None = None
) -> None:
    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await world.create("t", partitions=2)
            broker = RecordsBroker(world, 1)
            if max_answer_bytes is not None:
                broker.apis = RecordApis(
                    broker.produce_service,
                    broker.fetch_service,
                    broker.zones,
                    max_answer_bytes=max_answer_bytes,
                )
                broker.handlers = broker.apis.handlers()
            socket = Socket(broker)
            await socket.listener.start("127.0.0.1", 0)
            try:
                await work(world, socket)
            finally:
                await socket.listener.close()
                await broker.end(5)
            assert broker.apis.fetches == 0, "a Fetch was left behind"

    asyncio.run(on_loop())


FETCH = request_kind(FetchRequest, 12)


def parts_of(request: FetchRequest) -> tuple[bytes, ...]:
    return tuple(encode_parts(request, 12))  # type: ignore[arg-type]


def test_a_waiting_fetch_ends_when_its_client_disconnects() -> None:
    async def work(_: ClusterWorld, socket: Socket) -> None:
        apis = socket.broker.apis
        clients = [await connect("127.0.0.1", socket.listener.port) for _ in range(5)]
        for client in clients:
            for _ in range(3):
                client.send(
                    FETCH,
                    parts_of(fetching("t", [(0, 0)], max_wait_ms=60_000)),
                    lambda _: None,
                    timeout_ms=60_000,
                )
        await wait_until_async(lambda: apis.fetches == 15)
        for number, client in enumerate(clients):
            client.close()
            await wait_until_async(lambda number=number: apis.fetches == 12 - 3 * number)  # type: ignore[misc]
        assert not socket.broker.news._waiting

    on_socket(work)


def test_a_waiting_fetch_does_not_block_later_requests_of_its_connection() -> None:
    async def work(world: ClusterWorld, socket: Socket) -> None:
        client = await connect("127.0.0.1", socket.listener.port)
        waiting = fetching("t", [(0, 0)], max_wait_ms=30_000)
        first = asyncio.ensure_future(client.request(FETCH, parts_of(waiting), timeout_ms=60_000))
        sent = ProduceRequest.TopicProduceData
        produce = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=(
                sent(
                    name="t",
                    partition_data=(
                        sent.PartitionProduceData(
                            index=0, records=batch(5, now_ms=world.wall_ms())
                        ),
                    ),
                ),
            ),
        )
        second = asyncio.ensure_future(
            client.request(
                request_kind(ProduceRequest, 12),
                tuple(encode_parts(produce, 12)),
                timeout_ms=60_000,
            )
        )
        found = decode_message(FetchResponse, await first, 12)
        assert values(found.responses[0].partitions[0].records) == [(0, 5)]
        answer = decode_message(ProduceResponse, await second, 12)
        assert answer.responses[0].partition_responses[0].error_code == 0
        client.close()

    on_socket(work)


def test_clients_that_never_read_responses_use_little_memory_and_delay_no_other_client() -> None:
    """Twenty clients send a hundred Fetches of half a megabyte each, and read no response."""

    async def work(world: ClusterWorld, socket: Socket) -> None:
        broker = socket.broker
        for number in range(8):
            records = batch(number, now_ms=world.wall_ms(), size=500_000)
            assert (await broker.produce("t", 0, records)).error_code == 0
        silent = []
        request = fetching("t", [(0, 0)], max_bytes=1 << 24)
        frames = b"".join(frame_of(request, number) for number in range(100))
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", socket.listener.port)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frames)
            silent.append(writer)
        client = await connect("127.0.0.1", socket.listener.port)
        for _ in range(20):
            answer = await client.request(FETCH, parts_of(request), timeout_ms=10_000)
            found = decode_message(FetchResponse, answer, 12)
            assert values(found.responses[0].partitions[0].records)[0] == (0, 0)
            assert broker.apis.fetches <= 20 * MAX_IN_LINE + 1
            made = broker.apis._unread_bytes + broker.fetch_service.reading_bytes
            assert made <= 4_000_000 + 22 * 600_000, f"{made} bytes of answers are held"
        client.close()
        for writer in silent:
            writer.close()
        await wait_until_async(lambda: not socket.listener.connections)

    on_socket(work, max_answer_bytes=4_000_000)


def frame_of(request: FetchRequest, correlation_id: int) -> bytes:
    body = b"".join(bytes(part) for part in encode_parts(request, 12))
    frame = bytes(request_header(FETCH, correlation_id, "silent")) + body
    return len(frame).to_bytes(4, "big") + frame
