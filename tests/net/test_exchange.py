"""Requests and answers over real sockets. Source: Kafka protocol guide, "Network"."""

from __future__ import annotations

import asyncio
from struct import Struct

import pytest

from raft.net import (
    Answer,
    ConnectError,
    ConnectionLostError,
    Listener,
    Reason,
    Reply,
    RequestKind,
    RequestTimeoutError,
    ServerConnection,
    connect,
    parse_request_header,
    response_header,
)

ECHO = RequestKind.of(1100, 0, first_flexible=0)
APIS = {1100: 0}


def echo(connection: ServerConnection, frame: memoryview) -> Answer:  # noqa: ARG001
    header = parse_request_header(frame, APIS)
    return response_header(header.correlation_id, flexible=True) + frame[header.body_at :]


def test_a_request_gets_its_answer(on_loop):
    async def main():
        listener = Listener(echo)
        await listener.start("127.0.0.1", 0)
        connection = await connect("localhost", listener.port, client_id="me")
        assert bytes(await connection.request(ECHO, b"hello")) == b"hello"
        large = bytes(range(256)) * 20_000  # 5 MB: more than is right-sized at once
        assert await connection.request(ECHO, (large, b"end")) == large + b"end"
        answers = await asyncio.gather(*(connection.request(ECHO, b"%d" % i) for i in range(5_000)))
        assert answers == [b"%d" % i for i in range(5_000)]
        connection.close()
        await listener.close()
        assert listener.memory_used == 0

    on_loop(main())


def test_answers_leave_in_request_order_whatever_order_they_become_ready_in(on_loop):
    async def main():
        parked: list[tuple[int, Reply]] = []

        def park(connection: ServerConnection, frame: memoryview) -> Answer:
            header = parse_request_header(frame, APIS)
            parked.append((header.correlation_id, Reply(connection)))
            if len(parked) == 5:
                for correlation_id, reply in reversed(parked):
                    reply.send(response_header(correlation_id, flexible=True))
            return parked[-1][1]

        listener = Listener(park)
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        order = []
        futures = [connection.request(ECHO, b"") for _ in range(5)]
        for n, future in enumerate(futures):
            future.add_done_callback(lambda _, n=n: order.append(n))
        await asyncio.gather(*futures)
        assert order == [0, 1, 2, 3, 4]
        connection.close()
        await listener.close()

    on_loop(main())


def test_a_lost_connection_fails_everything_in_flight_and_tells_its_owner_first(on_loop):
    async def main():
        told: list[object] = []
        server_side: list[ServerConnection] = []

        def park(connection: ServerConnection, frame: memoryview) -> Answer:  # noqa: ARG001
            server_side.append(connection)
            return Reply(connection)

        listener = Listener(park)
        await listener.start("127.0.0.1", 0)
        connection = await connect(
            "127.0.0.1", listener.port, on_close=lambda _, error: told.append(error.reason)
        )
        both = asyncio.Event()
        connection.send(ECHO, b"", told.append)
        connection.send(ECHO, b"", lambda error: (told.append(error), both.set()))
        while len(server_side) < 2:
            await asyncio.sleep(0)
        server_side[0].abort(Reason.SHUTDOWN)
        await both.wait()
        assert told[0] in (Reason.RESET, Reason.PEER_CLOSED)
        assert [type(error) for error in told[1:]] == [ConnectionLostError] * 2
        with pytest.raises(ConnectionLostError):
            connection.send(ECHO, b"", told.append)
        await listener.close()

    on_loop(main())


def test_a_late_answer_closes_the_connection(on_loop):
    async def main():
        listener = Listener(lambda connection, _: Reply(connection))
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        behind = connection.request(ECHO, b"")
        with pytest.raises(RequestTimeoutError):
            await connection.request(ECHO, b"", timeout_ms=20)
        with pytest.raises(RequestTimeoutError):
            await behind
        assert connection.close_reason is Reason.TIMEOUT
        await listener.close()

    on_loop(main())


def test_refused_and_unresolved_are_told_apart(on_loop, unused_port):
    async def main():
        with pytest.raises(ConnectError) as refused:
            await connect("127.0.0.1", unused_port)
        assert refused.value.reason is Reason.REFUSED
        with pytest.raises(ConnectError) as unresolved:
            await connect("no-such-host.invalid", 1)
        assert unresolved.value.reason is Reason.UNRESOLVED

    on_loop(main())


def test_an_answer_with_a_foreign_correlation_id_closes_the_connection(on_loop):
    async def main():
        listener = Listener(lambda *_: Struct(">ib").pack(999, 0))
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        with pytest.raises(ConnectionLostError):
            await connection.request(ECHO, b"")
        assert connection.close_reason is Reason.MISMATCH
        await listener.close()

    on_loop(main())
