"""Hostile clients get errors, use bounded memory, and do not affect others.

The transport's own (half frames, stalls, claimed lengths) is in `tests/raft/net/test_hostile.py`;
this is the whole broker behind it, on a real socket.

Source: invariant 10 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from struct import pack, unpack
from typing import Any

import pytest

from diskless.broker import Broker
from raft.net import Limits, Reason, RequestKind, request_header
from raft.net.routes import first_flexible
from records.batch_writer import build_batch
from records.codec import decode_message, encode_message
from records.rpc import API
from records.rpc.base import Request
from records.rpc.cluster import MetadataRequest, MetadataResponse
from records.rpc.configs import DescribeConfigsRequest
from records.rpc.descriptions import DescribeTopicsRequest
from records.rpc.fetch import FetchRequest
from records.rpc.groups import ListGroupsRequest
from records.rpc.partitions import DescribeTopicPartitionsRequest
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.diskless.broker_world import ask_at, running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.nonsense import Nonsense
from tests.waiting import DEADLINE_S, wait_until_async

pytestmark = pytest.mark.slow

UNREGISTER_BROKER = 64
"""Left out: it is no nonsense, and with the right id it ends the broker's membership."""

PRODUCE = 0  # with acks=0 an error closes the connection: nothing else could tell

ROUNDS = 3  # of each request at each version, as it is and damaged
_topic = MetadataRequest.MetadataRequestTopic


class Scene:
    """A broker with topic t, and the reasons why its connections closed."""

    def __init__(self, world: ClusterWorld, broker: Broker) -> None:
        self.world = world
        self.broker = broker
        self.listener = broker.listeners["PLAIN"]
        self.dispatcher = broker.dispatchers["PLAIN"]
        self.port = self.listener.port
        self.ours: list[str] = []  # what ended a connection and is nobody's fault but ours
        self._note_faults()

    def _note_faults(self) -> None:
        ended = self.listener._shared.report_end

        def noted(connection: Any, reason: Reason, detail: str) -> None:
            if reason in (Reason.INVARIANT, Reason.FAILED):
                self.ours.append(detail)
            ended(connection, reason, detail)

        self.listener._shared.report_end = noted  # type: ignore[method-assign]

    async def stranger(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def still_serves(self) -> None:
        """Assert that a well-behaved client can write and read."""
        async with asyncio.timeout(DEADLINE_S):
            answer = await ask_at(
                self.port, MetadataRequest(topics=(_topic(name="t"),)), MetadataResponse, 12
            )
            assert answer.topics[0].error_code == 0
            produced = await ask_at(self.port, produce(b"good"), ProduceResponse, 9)
            (partition,) = produced.responses[0].partition_responses
            assert partition.error_code == 0
        assert not self.ours


def produce(value: bytes) -> ProduceRequest:
    """Build a Produce of one record to t-0 with acks=-1."""
    batch = build_batch([(None, value, 1_700_000_000_000, ())], base_offset=0, leader_epoch=-1)
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=bytes(batch))
    return ProduceRequest(
        acks=-1, timeout_ms=5_000, topic_data=(topic(name="t", partition_data=(partition,)),)
    )


def framed(key: int, version: int, body: bytes) -> bytes:
    """Encode a request as a frame."""
    flexible = first_flexible(key) if key in API else 0
    header = request_header(RequestKind.of(key, version, flexible), 7, "stranger")
    return pack(">i", len(header) + len(body)) + header + body


def frame_of(request: Request, version: int) -> bytes:
    key = request.schema().key
    assert key is not None
    return framed(key, version, encode_message(request, version))


def on_a_broker(
    story: Callable[[Scene], Awaitable[None]], *, limits: Limits | None = None, **values: Any
) -> None:
    """Run a story on a broker; errors that the loop would only log fail the test."""
    unexpected: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: unexpected.append(c))
        async with (
            asyncio.timeout(DEADLINE_S),
            ClusterWorld(brokers=()) as world,
            running_broker(world, limits=limits, **values) as broker,
        ):
            await world.create("t", 2)
            await story(Scene(world, broker))

    asyncio.run(main())
    assert not unexpected, unexpected


# --- every request, with any content --------------------------------------------------------------


async def throw(scene: Scene, frames: list[bytes]) -> None:
    """Send each frame over its own connection, and disconnect once it was handled."""
    taken, ended = scene.dispatcher.requests, scene.listener.ended
    for frame in frames:
        before = taken.total() + ended.total()
        _, writer = await scene.stranger()
        writer.write(frame)
        await wait_until_async(lambda before=before: taken.total() + ended.total() > before)
        writer.close()
        await wait_until_async(lambda: not scene.listener.connections)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_broker_keeps_serving_after_random_requests(seed: int) -> None:
    """A request that decodes is answered; another one closes its own connection."""
    print(f"reproduce: pytest {__file__} -k random_requests with seed {seed}")
    random = Random(seed)

    async def story(scene: Scene) -> None:
        topic = scene.world.image.topic("t")
        assert topic is not None
        nonsense = Nonsense(random, ("t", "g"), (topic.topic_id,))
        for key, served in sorted(scene.dispatcher.served.items()):
            if key == UNREGISTER_BROKER:
                continue
            kind = API[key].request
            first = max(served.lowest, kind.schema().versions.first)
            for version in range(first, served.highest + 1):
                bodies = [
                    encode_message(nonsense.request(kind, version), version) for _ in range(ROUNDS)
                ]
                malformed = scene.listener.ended[Reason.MALFORMED]
                await throw(scene, [framed(key, version, body) for body in bodies])
                assert scene.listener.ended[Reason.MALFORMED] == malformed or key == PRODUCE, (
                    f"{kind.__name__} v{version} can be decoded, and was not answered"
                )
                damaged = [nonsense.damaged(body) for body in bodies]
                await throw(scene, [framed(key, version, body) for body in damaged])
            assert not scene.ours, f"{kind.__name__}: {scene.ours}"
        await scene.still_serves()

    on_a_broker(story)


# --- not Kafka at all -----------------------------------------------------------------------------

TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (TLS_HELLO, "closed=tls_on_plaintext_port"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "closed=http_on_kafka_port"),
        (b"POST / HTTP/1.1\r\n\r\n", "closed=http_on_kafka_port"),
        (pack(">i", 200_000_000), "closed=oversized_frame"),
        (framed(68, 0, b"\0" * 16), 'closed=malformed_request detail="unknown api key 68, version'),
        (framed(3, 99, b"\0" * 16), "api key 3 has no version 99 here; client id 'stranger'"),
        (framed(3, 12, bytes(1 << 20)), "api key 3 of 1048595 bytes, the limit is 1048576"),
        (framed(11, 5, bytes(3 << 20)), "2097152"),
    ],
)
def test_bytes_of_another_protocol_close_the_connection_with_one_log_line(
    sent: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raft.net")

    async def story(scene: Scene) -> None:
        reader, writer = await scene.stranger()
        writer.write(sent)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        lines = [one.getMessage() for one in caplog.records if one.name == "raft.net"]
        assert len(lines) == 1
        assert line in lines[0]
        assert "listener=PLAIN peer=127.0.0.1:" in lines[0]
        await scene.still_serves()

    on_a_broker(story)


# --- clients that take and do not give ------------------------------------------------------------


def test_a_broker_serves_a_request_whose_bytes_arrive_in_two_parts() -> None:
    """Other clients' requests are served in between."""

    async def story(scene: Scene) -> None:
        frame = frame_of(produce(b"slow"), 9)
        reader, writer = await scene.stranger()
        for at in range(0, len(frame), 7):
            writer.write(frame[at : at + 7])
            await writer.drain()
            if at % 35 == 0:
                await scene.still_serves()
        (size,) = unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)
        told = decode_message(ProduceResponse, answer[5:], 9)
        assert told.responses[0].partition_responses[0].error_code == 0
        writer.close()

    on_a_broker(story)


_described = DescribeConfigsRequest.DescribeConfigsResource

LONG_ANSWERS: dict[str, tuple[Request, int]] = {
    "Metadata": (MetadataRequest(topics=None), 12),
    "DescribeTopicPartitions": (DescribeTopicPartitionsRequest(topics=()), 0),
    "DescribeConfigs": (
        DescribeConfigsRequest(
            resources=(
                _described(resource_type=2, resource_name="wide", configuration_keys=None),
                _described(resource_type=4, resource_name="1", configuration_keys=None),
            ),
            include_synonyms=True,
            include_documentation=True,
        ),
        4,
    ),
    "DescribeTopics": (DescribeTopicsRequest(topic_names=None), 0),
    "Fetch": (
        FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=(
                FetchRequest.FetchTopic(
                    topic="t",
                    partitions=(
                        FetchRequest.FetchTopic.FetchPartition(
                            partition=0, fetch_offset=0, partition_max_bytes=1 << 20
                        ),
                    ),
                ),
            ),
        ),
        12,
    ),
}
"""Questions whose answers are many times as long."""


@pytest.mark.parametrize("name", LONG_ANSWERS)
def test_a_client_that_never_reads_uses_bounded_memory(name: str) -> None:
    """Four clients send three hundred requests each for 10 KB and more, and read nothing.

    What is held for each client is what its socket takes, the transport's bound, its requests, and
    one answer more.
    """
    limits = Limits(write_high_water_bytes=65_536)
    asked = frame_of(*LONG_ANSWERS[name]) * 300

    async def story(scene: Scene) -> None:
        await scene.world.create("wide", 300)
        await ask_at(scene.port, produce(bytes(20_000)), ProduceResponse, 9)
        loop = asyncio.get_running_loop()
        silent = []
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(4):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.setblocking(False)
            silent.append(one)
            await loop.sock_connect(one, ("127.0.0.1", scene.port))
        await wait_until_async(lambda: len(scene.listener.connections) == 4)
        for connection in scene.listener.connections:  # or the kernel takes megabytes of each
            assert connection._transport is not None
            there = connection._transport.get_extra_info("socket")
            there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        for one in silent:
            await loop.sock_sendall(one, asked)
        await wait_until_async(lambda: all(not one.writable for one in scene.listener.connections))
        await scene.still_serves()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        print(f"4 clients that read nothing: {held / 4 / 1024:.0f} KiB each")
        assert held < 4 * 400_000, f"{held} bytes"
        for one in silent:
            one.close()
        await wait_until_async(lambda: not scene.listener.connections)
        await scene.still_serves()

    on_a_broker(story, limits=limits)


def test_a_thousand_idle_clients_do_not_delay_requests_of_other_clients() -> None:
    """Each sends ApiVersions once and stays connected."""

    async def story(scene: Scene) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(1_000, (soft - len(list(Path("/proc/self/fd").iterdir())) - 100) // 2)
        hello = framed(18, 0, b"")
        loop = asyncio.get_running_loop()
        idle = []
        for number in range(count):
            one = socket.socket()
            one.setblocking(False)
            idle.append(one)
            await loop.sock_connect(one, ("127.0.0.1", scene.port))
            await loop.sock_sendall(one, hello)
            if number % 100 == 99:
                await wait_until_async(lambda n=number: scene.dispatcher.requests[18] > n)
        await wait_until_async(lambda: scene.dispatcher.requests[18] == count)
        await scene.still_serves()
        await wait_until_async(lambda: len(scene.listener.connections) == count)
        for one in idle:
            one.close()
        await wait_until_async(lambda: not scene.listener.connections)
        print(f"{count} idle clients")

    on_a_broker(story)


def test_a_broker_has_neither_tasks_nor_memory_for_clients_that_disconnected() -> None:
    """No tasks, group members or request memory remain."""

    async def story(scene: Scene) -> None:
        await scene.still_serves()
        before = len(asyncio.all_tasks())
        for number in range(50):
            _, writer = await scene.stranger()
            writer.write(frame_of(MetadataRequest(topics=(_topic(name=f"n{number}"),)), 12))
            writer.write(frame_of(produce(b"gone"), 9))
            await writer.drain()
            writer.transport.abort()
        await wait_until_async(lambda: not scene.listener.connections)
        await wait_until_async(lambda: scene.listener.memory_used == 0)
        await wait_until_async(lambda: len(asyncio.all_tasks()) <= before + 1)
        await scene.still_serves()

    on_a_broker(story)


@pytest.mark.parametrize("version", [3, 9])
def test_a_broker_ignores_trailing_bytes_of_a_request(version: int) -> None:
    """In every family, as Kafka's brokers do; librdkafka sends some."""

    async def story(scene: Scene) -> None:
        body = encode_message(produce(b"and more"), version) + bytes(3)
        reader, writer = await scene.stranger()
        for frame in (
            framed(PRODUCE, version, body),
            framed(3, 12, encode_message(MetadataRequest(topics=None), 12) + bytes(3)),
            framed(16, 4, encode_message(ListGroupsRequest(), 4) + bytes(3)),
        ):
            writer.write(frame)
            (size,) = unpack(">i", await reader.readexactly(4))
            assert len(await reader.readexactly(size)) == size
        writer.close()

    on_a_broker(story)
