"""Requests and answers over real sockets. Source: Kafka protocol guide, "Network"."""

from __future__ import annotations

import asyncio
import socket
from struct import Struct

import pytest

from raft.net import (
    Answer,
    ConnectError,
    ConnectionLostError,
    Frame,
    Limits,
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


def echo(connection: ServerConnection, frame: Frame) -> Answer:  # noqa: ARG001
    header = parse_request_header(frame, APIS)
    return response_header(header.correlation_id, flexible=True) + frame[header.body_at :]


def test_a_network_client_receives_the_response_to_its_request(on_loop):
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


@pytest.mark.parametrize("inherits", [False, True], ids=["own socket", "inherited socket"])
def test_a_listener_s_connections_have_its_send_buffer_size(on_loop, inherits):
    async def main():
        seen: list[int] = []

        def look(connection: ServerConnection, frame: Frame) -> Answer:
            accepted = connection._transport.get_extra_info("socket")
            seen.append(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
            return echo(connection, frame)

        for size_bytes in (None, 40_000):
            listener = Listener(look, limits=Limits(send_buffer_bytes=size_bytes))
            inherited = socket.create_server(("127.0.0.1", 0))
            port = inherited.getsockname()[1]
            await listener.start("127.0.0.1", 0, inherited=(inherited,))
            connection = await connect("127.0.0.1", port if inherits else listener.port)
            large = bytes(5_000_000)
            assert await connection.request(ECHO, large) == large
            connection.close()
            await listener.close()
        usual, limited = seen
        assert limited in (40_000, 80_000)  # Linux doubles it, for what it keeps besides
        assert usual > limited

    on_loop(main())


def test_a_server_sends_responses_in_request_order_even_if_later_responses_are_ready_first(on_loop):
    async def main():
        parked: list[tuple[int, Reply]] = []

        def park(connection: ServerConnection, frame: Frame) -> Answer:
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


def test_a_lost_connection_notifies_its_owner_and_then_fails_the_requests_in_flight(on_loop):
    async def main():
        told: list[object] = []
        server_side: list[ServerConnection] = []

        def park(connection: ServerConnection, frame: Frame) -> Answer:  # noqa: ARG001
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


def test_a_response_that_arrives_after_its_deadline_closes_the_clients_connection(on_loop):
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


def test_a_network_request_whose_deadline_has_already_passed_fails(on_loop):
    """A timer of uvloop's that is due at once is a plain handle: it cannot say when it is due."""

    async def main():
        listener = Listener(lambda connection, _: Reply(connection))
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        requests = (connection.request(ECHO, b"", timeout_ms=0) for _ in range(3))
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(answer, ConnectionLostError) for answer in answers), answers
        assert connection.closed
        await listener.close()

    on_loop(main())


def test_a_refused_connection_and_an_unresolved_host_name_raise_errors_with_different_reasons(
    on_loop, unused_port
):
    async def main():
        with pytest.raises(ConnectError) as refused:
            await connect("127.0.0.1", unused_port)
        assert refused.value.reason is Reason.REFUSED
        with pytest.raises(ConnectError) as unresolved:
            await connect("no-such-host.invalid", 1)
        assert unresolved.value.reason is Reason.UNRESOLVED

    on_loop(main())


def test_a_response_with_an_unknown_correlation_id_closes_the_connection(on_loop):
    async def main():
        listener = Listener(lambda *_: Struct(">ib").pack(999, 0))
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        with pytest.raises(ConnectionLostError):
            await connection.request(ECHO, b"")
        assert connection.close_reason is Reason.MISMATCH
        await listener.close()

    on_loop(main())


def test_nagles_algorithm_does_not_delay_small_responses(on_loop):
    async def main():
        delays: list[int] = []

        def look(connection: ServerConnection, frame: Frame) -> Answer:
            delays.append(no_delay(connection._transport))
            return echo(connection, frame)

        listener = Listener(look)
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        await connection.request(ECHO, b"")
        assert [no_delay(connection._transport), *delays] == [1, 1]
        connection.close()
        await listener.close()

    def no_delay(transport: asyncio.Transport) -> int:
        raw = transport.get_extra_info("socket")
        return raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    on_loop(main())


def test_a_client_resolves_a_host_name_at_every_connect_and_tries_all_its_addresses(unused_port):
    async def main():
        asked: list[str] = []
        addresses = ["127.0.0.2", "127.0.0.1"]

        async def resolve(host: str, port: int, **_: object) -> list[tuple]:
            asked.append(host)
            return [(0, 0, 0, "", (address, port)) for address in addresses]

        loop = asyncio.get_running_loop()
        real, loop.getaddrinfo = loop.getaddrinfo, resolve
        with pytest.raises(ConnectError) as refused:
            await connect("voter-1", unused_port)
        assert refused.value.reason is Reason.REFUSED
        listener = Listener(echo)
        loop.getaddrinfo = real
        await listener.start("127.0.0.1", unused_port)
        loop.getaddrinfo = resolve
        connection = await connect("voter-1", unused_port)  # 127.0.0.2 refuses, 127.0.0.1 answers
        assert asked == ["voter-1", "voter-1"]
        assert await connection.request(ECHO, b"there") == b"there"
        addresses.clear()
        with pytest.raises(ConnectError) as nowhere:
            await connect("voter-1", unused_port)
        assert nowhere.value.reason is Reason.UNRESOLVED
        connection.close()
        await listener.close()

    asyncio.run(main())


def test_a_connection_to_a_host_that_does_not_answer_fails_with_a_timeout(on_loop):
    """With a full accept queue the kernel drops further connects, as a black hole does."""

    async def main():
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            port = deaf.getsockname()[1]
            fillers = [socket.socket() for _ in range(8)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            with pytest.raises(ConnectError) as silent:
                await connect("127.0.0.1", port, timeout_ms=50)
            assert silent.value.reason is Reason.TIMEOUT
            for filler in fillers:
                filler.close()

    on_loop(main())


@pytest.mark.parametrize(
    ("sent", "asked", "reason"),
    [
        ("00000005 00000000 00", 0, Reason.BAD_ANSWER),  # nobody asked
        ("00000003 000000", 1, Reason.BAD_ANSWER),  # no room for a correlation id
        ("00000005 00000000 01", 1, Reason.BAD_ANSWER),  # a tagged field that is not there
        ("ffffffff", 1, Reason.NEGATIVE_LENGTH),
        ("7fffffff", 1, Reason.OVERSIZED),
        ("00000009 0000", 1, Reason.PEER_CLOSED),  # half an answer, then the end
    ],
)
def test_an_rpc_client_closes_its_connection_after_an_invalid_response(
    on_loop, sent, asked, reason
):
    async def main():
        loop = asyncio.get_running_loop()
        told: list[Reason] = []
        closed = asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            connection = await connect(
                "127.0.0.1",
                server.getsockname()[1],
                on_close=lambda _, error: (told.append(error.reason), closed.set()),
            )
            for _ in range(asked):
                connection.send(ECHO, b"", lambda error: told.append(error.reason))
            other_end, _ = await loop.sock_accept(server)
            with other_end:
                await loop.sock_sendall(other_end, bytes.fromhex(sent))
                other_end.shutdown(socket.SHUT_WR)
                await closed.wait()
        assert told == [reason] * (1 + asked)

    on_loop(main())
