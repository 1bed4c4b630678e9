"""Produce over a real socket: partitions validated separately, one response.

Source: docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest

from coordinator.controller.image import MetadataImage
from diskless.cluster import Cluster
from diskless.produce.buffer import AppendResult, Waiter
from diskless.produce.in_flight import InFlight
from diskless.produce.service import TOPIC_WAIT_S, ProduceService
from diskless.produce.validation import Accepted, Outcome, validate
from diskless.transactions.proofs import Proof
from raft.net import Listener, run
from raft.net.client import connect
from raft.net.connection import Answer, ServerConnection
from raft.net.errors import ConnectionLostError
from raft.net.frames import Frame
from raft.net.header import parse_request_header
from raft.net.rpc import request_kind
from records.batch import TRANSACTIONAL
from records.batch_writer import build_batch
from records.codec import decode_message, encode_parts
from records.compression import Compression
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.coordinator.controller.test_chunks import with_topic
from tests.coordinator.controller.test_refusals import alter
from tests.diskless.produce_world import never_early

NOW_MS = 1_700_000_000_000
PRODUCE = 0
_topic = ProduceRequest.TopicProduceData


def batch(*values: bytes, attributes: int = 0, timestamp: int = NOW_MS) -> bytes:
    records = [(None, value, timestamp, ()) for value in values or (b"one", b"two")]
    return bytes(build_batch(records, base_offset=0, leader_epoch=-1, attributes=attributes))


def request(
    *parts: tuple[str, int, bytes | None],
    acks: int = -1,
    timeout_ms: int = 10_000,
    transactional_id: str | None = None,
    topic_id: UUID = UUID(int=0),  # noqa: B008
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            _topic(
                name=name,
                topic_id=topic_id,
                partition_data=(_topic.PartitionProduceData(index=index, records=records),),
            )
            for name, index, records in parts
        ),
    )


class Kept:
    """A writer that collects batches until a test settles them."""

    def __init__(self) -> None:
        self.appended: list[tuple[UUID, int, Accepted, bool, Waiter]] = []
        self.at_once: AppendResult | None = None

    def append(
        self,
        topic_id: UUID,
        partition: int,
        accepted: Accepted,
        *,
        append_time: bool,
        waiter: Waiter,
        proof: Proof | None = None,  # noqa: ARG002 (a writer's)
    ) -> None:
        self.appended.append((topic_id, partition, accepted, append_time, waiter))
        if self.at_once is not None:
            waiter.appended(self.at_once)


class Broker:
    """A listener that serves Produce alone."""

    def __init__(self, image: MetadataImage, max_bytes: int = 1 << 20) -> None:
        self.image = image
        self.writer: Kept | None = Kept()
        self.writer.at_once = AppendResult(0, None, 70, -1, 5)
        self.in_flight = InFlight(max_bytes)
        self.news = asyncio.Event()
        self.heard_by = 0  # times that a request waited for it
        self.newest_at: float | None = None  # as of when the image has everything; None: unknown
        service = ProduceService(
            cast(Cluster, self),  # as far as Produce knows it
            writer=lambda _: self.writer,
            now_ms=lambda: NOW_MS,
            in_flight=self.in_flight,
            closing=(closing := never_early()),
        )
        self.awaited = closing.awaited
        self.counters = service.counters

        def handle(connection: ServerConnection, frame: Frame) -> Answer:
            header = parse_request_header(frame, {PRODUCE: 9})
            return service.serve(connection, header, frame[header.body_at :])

        self.listener = Listener(handle, name="test")

    async def image_where(
        self, holds: Callable[[MetadataImage], bool], timeout_s: float
    ) -> MetadataImage | None:
        assert 0 <= timeout_s <= TOPIC_WAIT_S
        self.heard_by += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), timeout_s)
        return self.image if holds(self.image) else None

    def image_age_ms(self) -> float | None:
        if self.newest_at is None:
            return None
        return (asyncio.get_running_loop().time() - self.newest_at) * 1_000

    async def ask(self, message: ProduceRequest, version: int = 9) -> ProduceResponse:
        """Send a Produce; return the response. Raises ConnectionLostError if it is closed."""
        connection = await connect("127.0.0.1", self.listener.port)
        loop = asyncio.get_running_loop()
        found: asyncio.Future[ProduceResponse] = loop.create_future()

        def on_answer(answer: Frame | ConnectionLostError) -> None:
            if isinstance(answer, ConnectionLostError):
                found.set_exception(answer)
            else:
                found.set_result(decode_message(ProduceResponse, answer, version))

        parts = tuple(encode_parts(message, version))
        connection.send(request_kind(ProduceRequest, version), parts, on_answer, timeout_ms=5_000)
        try:
            return await found
        finally:
            connection.close()


def claim(work: Callable[[Broker], Awaitable[None]], image: MetadataImage | None = None) -> None:
    async def on_loop() -> None:
        broker = Broker(image or with_topic().image)
        await broker.listener.start("127.0.0.1", 0)
        try:
            await work(broker)
        finally:
            await broker.listener.close()

    run(on_loop())


def errors(answer: ProduceResponse) -> list[int]:
    return [p.error_code for topic in answer.responses for p in topic.partition_responses]


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_response_has_the_base_offset_of_the_committed_batch(version: int) -> None:
    image = with_topic().image
    topic_id = image.topic_ids["t"]

    async def work(broker: Broker) -> None:
        answer = await broker.ask(request(("t", 1, batch()), topic_id=topic_id), version)
        (partition,) = answer.responses[0].partition_responses
        assert (partition.error_code, partition.index, partition.base_offset) == (0, 1, 70)
        assert partition.log_start_offset == (5 if version >= 5 else -1)
        assert broker.writer is not None
        ((found, index, accepted, append_time, _),) = broker.writer.appended
        assert (found, index, append_time) == (topic_id, 1, False)
        assert accepted.batch.view == batch()

    claim(work, image)


def test_refusals_by_the_writer_and_timeouts_are_counted_as_those_by_the_broker_are() -> None:
    async def work(broker: Broker) -> None:
        assert broker.writer is not None
        message = request(("t", 0, batch()), ("t", 1, batch()), ("u", 0, batch()))
        broker.writer.at_once = AppendResult(45)  # OUT_OF_ORDER_SEQUENCE_NUMBER
        assert errors(await broker.ask(message)) == [45, 45, 3]
        assert broker.counters.refused == {45: 2, 3: 1}
        broker.writer.at_once = None
        assert errors(await broker.ask(request(("t", 0, batch()), timeout_ms=10))) == [7]
        assert broker.counters.refused == {45: 2, 3: 1, 7: 1}
        broker.writer.appended[-1][4].appended(AppendResult(45))  # later
        assert broker.counters.refused == {45: 2, 3: 1, 7: 1}
        broker.writer.at_once = AppendResult(100)  # the topic was deleted: UNKNOWN_TOPIC_ID
        assert errors(await broker.ask(request(("t", 0, batch())))) == [3]
        assert broker.counters.refused == {45: 2, 3: 2, 7: 1}

    claim(work)


def test_a_broker_expects_a_further_produce_request_of_a_connection_after_each_answer() -> None:
    async def work(broker: Broker) -> None:
        connection = await connect("127.0.0.1", broker.listener.port)
        kind = request_kind(ProduceRequest, 9)
        parts = tuple(encode_parts(request(("t", 0, batch())), 9))
        answer = asyncio.get_running_loop().create_future()
        connection.send(kind, parts, answer.set_result, timeout_ms=5_000)
        await answer
        assert not broker.awaited.have_come
        assert broker.writer is not None
        broker.writer.at_once = None
        connection.send(kind, parts, lambda _: None, timeout_ms=5_000)
        while len(broker.writer.appended) < 2:
            await asyncio.sleep(0.001)
        assert broker.awaited.have_come
        connection.close()

    claim(work)


@pytest.mark.parametrize("acks", [-1, 0])
def test_produce_requests_wait_in_order_for_a_topic_that_the_brokers_image_lacks(acks: int) -> None:
    """Its id is not in the image yet; the client's next requests wait behind it."""
    later = with_topic().image
    topic_id = later.topic_ids["t"]

    async def work(broker: Broker) -> None:
        connection = await connect("127.0.0.1", broker.listener.port)
        loop = asyncio.get_running_loop()
        kind = request_kind(ProduceRequest, 13)
        answers: list[asyncio.Future[Frame | ConnectionLostError]] = []
        for value in (b"1", b"2", b"3"):
            message = request(("t", 0, batch(value)), topic_id=topic_id, acks=acks)
            answers.append(loop.create_future())
            on_answer = answers[-1].set_result if acks else None
            parts = tuple(encode_parts(message, 13))
            connection.send(kind, parts, on_answer, timeout_ms=5_000)
        writer = broker.writer
        assert writer is not None
        while not broker.heard_by:
            await asyncio.sleep(0.001)
        assert not writer.appended
        broker.image = later
        broker.news.set()
        while len(writer.appended) < 3:
            await asyncio.sleep(0.001)
        assert [bytes(one[2].batch.view) for one in writer.appended] == [
            batch(value) for value in (b"1", b"2", b"3")
        ]
        assert broker.heard_by
        if acks:
            for answer in answers:
                body = await answer
                assert not isinstance(body, ConnectionLostError)
                assert errors(decode_message(ProduceResponse, body, 13)) == [0]
        connection.close()

    claim(work, MetadataImage())


@pytest.mark.parametrize("timeout_ms", [0, 100])
def test_a_produce_waits_for_an_unknown_topic_within_its_timeout(timeout_ms: int) -> None:
    """The error is UNKNOWN_TOPIC_ID: REQUEST_TIMED_OUT would mean that it may be written."""

    async def work(broker: Broker) -> None:
        asked = request(("t", 0, batch()), topic_id=UUID(int=1), timeout_ms=timeout_ms)
        began = asyncio.get_running_loop().time()
        assert errors(await broker.ask(asked, 13)) == [100]
        took_ms = (asyncio.get_running_loop().time() - began) * 1_000
        assert bool(broker.heard_by) == (timeout_ms > 0)
        assert took_ms >= 0.9 * timeout_ms

    claim(work, MetadataImage())


def test_a_broker_refuses_a_produce_to_an_unknown_topic_once_its_image_is_new_enough() -> None:
    async def work(broker: Broker) -> None:
        loop = asyncio.get_running_loop()
        broker.newest_at = loop.time()  # before the request: a topic may have come since
        asked = request(("t", 0, batch()), topic_id=UUID(int=1), timeout_ms=30_000)
        answer = asyncio.ensure_future(broker.ask(asked, 13))
        while broker.heard_by < 3:
            await asyncio.sleep(0.001)
        assert not answer.done()
        broker.newest_at = loop.time()
        assert errors(await answer) == [100]
        assert loop.time() - broker.newest_at < TOPIC_WAIT_S / 2

    claim(work, MetadataImage())


BOMB = bytes(50_000_000)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (Compression.NONE, b""),
        (Compression.GZIP, Random(1).randbytes(300_000)),
        (Compression.ZSTD, BOMB),
    ],
)
def test_slow_produce_validation_does_not_delay_other_connections(
    codec: Compression, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation runs in a thread; only its own connection waits, and keeps its order."""
    records = [(None, value, NOW_MS, ())] * (1 if value else 50_000)
    heavy = bytes(build_batch(records, base_offset=0, leader_epoch=-1, compression=codec))
    threads: list[threading.Thread] = []

    def watched(*about: Any, **more: Any) -> Outcome:
        outcome = validate(*about, **more)
        threads.append(threading.current_thread())
        return outcome

    monkeypatch.setattr("diskless.produce.service.validate", watched)

    async def work(broker: Broker) -> None:
        connection = await connect("127.0.0.1", broker.listener.port)
        kind = request_kind(ProduceRequest, 9)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        for sent in (heavy, batch(b"behind")):
            parts = tuple(encode_parts(request(("t", 0, sent)), 9))
            on_answer = done.set_result if sent is not heavy else None
            connection.send(kind, parts, on_answer or (lambda _: None), timeout_ms=60_000)
        assert errors(decode_message(ProduceResponse, await done, 9)) == [0]
        connection.close()
        assert broker.writer is not None
        found = [bytes(one[2].batch.view) for one in broker.writer.appended]
        assert found == [heavy, batch(b"behind")]
        assert [one is threading.main_thread() for one in threads] == [False, True]

    claim(work)


def test_a_produce_response_has_a_separate_error_for_each_invalid_partition() -> None:
    async def work(broker: Broker) -> None:
        spoiled = bytearray(batch())
        spoiled[-1] ^= 1
        answer = await broker.ask(
            request(
                ("t", 0, batch()),
                ("t", 1, bytes(spoiled)),
                ("t", 9, batch()),
                ("nowhere", 0, batch()),
                ("__consumer_offsets", 0, batch()),
                ("t", 0, None),
                ("t", 0, batch(attributes=TRANSACTIONAL)),
            )
        )
        assert errors(answer) == [0, 2, 3, 3, 17, 87, 53]
        assert broker.writer is not None
        assert len(broker.writer.appended) == 1

    claim(work)


def test_a_produce_gets_different_errors_for_an_unknown_topic_id_and_topic_name() -> None:
    async def work(broker: Broker) -> None:
        answer = await broker.ask(request(("", 0, batch()), topic_id=UUID(int=99)), 13)
        assert errors(answer) == [100]

    claim(work)


@pytest.mark.parametrize(("version", "code"), [(9, 3), (12, 3), (13, 100)])
def test_a_produce_to_a_topic_that_is_deleted_meanwhile_gets_an_unknown_topic_error(
    version: int, code: int
) -> None:
    """The coordinator knows ids only; a client that sent a name need not know of ids."""
    image = with_topic().image

    async def work(broker: Broker) -> None:
        assert broker.writer is not None
        broker.writer.at_once = AppendResult(100, "no such topic any more")
        topic_id = image.topic_ids["t"]
        answer = await broker.ask(request(("t", 0, batch()), topic_id=topic_id), version)
        assert errors(answer) == [code]

    claim(work, image)


def test_a_broker_refuses_produce_requests_with_invalid_acks_or_a_transactional_id() -> None:
    async def work(broker: Broker) -> None:
        assert errors(await broker.ask(request(("t", 0, batch()), acks=2))) == [21]
        transactional = request(("t", 0, batch()), transactional_id="x")
        assert errors(await broker.ask(transactional)) == [53]
        assert errors(await broker.ask(request())) == []
        assert broker.writer is not None
        assert not broker.writer.appended

    claim(work)


def test_a_broker_without_a_broker_epoch_refuses_produce_with_not_leader_or_follower() -> None:
    async def work(broker: Broker) -> None:
        broker.writer = None
        assert errors(await broker.ask(request(("t", 0, batch())))) == [6]

    claim(work)


def test_a_produce_request_that_times_out_may_still_be_committed() -> None:
    async def work(broker: Broker) -> None:
        assert broker.writer is not None
        broker.writer.at_once = None
        asked = asyncio.ensure_future(
            broker.ask(request(("t", 0, batch()), ("t", 1, batch()), timeout_ms=500))
        )
        while len(broker.writer.appended) < 2:
            await asyncio.sleep(0.001)
        broker.writer.appended[0][4].appended(AppendResult(0, None, 3))
        answer = await asked
        assert errors(answer) == [0, 7]
        broker.writer.appended[1][4].appended(AppendResult(0, None, 4))  # nobody hears it

    claim(work)


def test_a_produce_with_acks_0_gets_no_response_and_its_error_closes_the_connection() -> None:
    async def work(broker: Broker) -> None:
        assert broker.writer is not None
        with pytest.raises(ConnectionLostError):
            await broker.ask(request(("nowhere", 0, batch()), acks=0))
        assert not broker.writer.appended
        broker.writer.at_once = None
        asked = asyncio.ensure_future(broker.ask(request(("t", 0, batch()), acks=0)))
        while not broker.writer.appended:
            await asyncio.sleep(0.001)
        broker.writer.appended[0][4].appended(AppendResult(56, "the object store failed"))
        with pytest.raises(ConnectionLostError):
            await asked

    claim(work)


def test_a_produce_validates_batches_by_the_settings_of_the_topic() -> None:
    world = with_topic()
    for key, value in (
        ("max.message.bytes", "80"),
        ("message.timestamp.type", "LogAppendTime"),
    ):
        answer = world.ask(alter(2, "t", key, value))
        assert answer.responses[0].error_code == 0

    async def work(broker: Broker) -> None:
        small, large = batch(b"x", timestamp=5), batch(b"x" * 100)
        answer = await broker.ask(request(("t", 0, small), ("t", 1, large)))
        assert errors(answer) == [0, 10]
        assert broker.writer is not None
        assert [append_time for *_, append_time, _ in broker.writer.appended] == [True]

    claim(work, world.image)
