"""Hostile input closes its connection with one log line and a count; the listener runs on."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raft.net import (
    Answer,
    Frame,
    Limits,
    Listener,
    Reason,
    Reply,
    RequestKind,
    ServerConnection,
    connect,
    parse_request_header,
    response_header,
)
from raft.net.connection_set import LOG_LINES_PER_SWEEP
from records.errors import RecordError
from tests.waiting import wait_until_async

from .conftest import sweep_by_hand

pytestmark = pytest.mark.slow

KIND = RequestKind.of(1100, 0, first_flexible=0)


def echo(connection: ServerConnection, frame: Frame) -> Answer:  # noqa: ARG001
    header = parse_request_header(frame, {1100: 0})
    return response_header(header.correlation_id, flexible=True) + bytes(frame[header.body_at :])


async def still_answers(listener: Listener) -> None:
    """A well-behaved client is served as if nothing had happened."""
    connection = await connect("127.0.0.1", listener.port)
    assert await connection.request(KIND, b"well?") == b"well?"
    connection.close()
    await wait_until_async(lambda: not listener.connections)


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"\xff" * 64, Reason.NEGATIVE_LENGTH),
        (b"\x06\x40\x00\x01" + bytes(100), Reason.OVERSIZED),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), Reason.TLS),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Reason.HTTP),
        (b"\x00\x00\x00\x00", Reason.MALFORMED),
        (b"\x00\x00\x00\x03abc", Reason.MALFORMED),
        (b"\x00\x00\x00\x14" + b"z" * 20, Reason.MALFORMED),
        (b"\x00\x00\x00\x0b\x04\x4c\x00\x00\x00\x00\x00\x00\x7f\xff\x00", Reason.MALFORMED),
    ],
)
def test_a_listener_closes_a_connection_that_sends_random_bytes_with_one_log_line(
    on_loop, caplog, garbage, reason
):
    async def main():
        listener = Listener(echo, name="front")
        await listener.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        host, port = writer.get_extra_info("sockname")
        writer.write(garbage)
        with suppress(ConnectionResetError):  # if bytes of ours were left unread
            assert await reader.read() == b""
        await wait_until_async(lambda: not listener.connections)
        assert listener.ended == {reason: 1}
        lines = [record.getMessage() for record in caplog.records if record.name == "raft.net"]
        assert len(lines) == 1
        assert f"listener=front peer={host}:{port}" in lines[0]
        assert f"closed={reason} " in lines[0]
        assert "\n" not in lines[0]
        writer.close()
        await still_answers(listener)
        await listener.close()

    with caplog.at_level(logging.INFO):
        on_loop(main())


@given(st.lists(st.binary(max_size=80), max_size=6), st.integers(0, 3), st.booleans())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_listener_serves_requests_after_any_sequence_of_bytes(on_loop, pieces, good, half_close):
    """Good requests, then anything at all; what was good is answered, and the next client too."""
    request = bytes.fromhex("00000010 044c 0000 00000000 ffff 00 6162636465")

    async def main():
        listener = Listener(echo)
        await listener.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(request * good)
        for _ in range(good):
            assert (await reader.readexactly(14))[9:] == b"abcde"
        with suppress(OSError, RuntimeError):  # closed by the listener in between
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            if half_close:
                writer.write_eof()
        writer.close()
        await wait_until_async(lambda: listener.accepted == 1 and not listener.connections)
        await still_answers(listener)
        assert listener.memory_used == 0
        assert not {Reason.INVARIANT, Reason.FAILED} & set(listener.ended)
        await listener.close()

    on_loop(main())


def test_the_listener_limits_its_log_lines_about_malformed_connections(on_loop, caplog):
    async def main():
        listener = Listener(echo)
        await listener.start("127.0.0.1", 0)
        sweep_by_hand(listener)
        for _ in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"\xff" * 8)
            await wait_until_async(lambda: bool(listener.accepted) and not listener.connections)
            writer.close()
        assert listener.ended == {Reason.NEGATIVE_LENGTH: 40}
        listener.sweep(asyncio.get_running_loop().time())
        await listener.close()

    on_loop(main())
    lines = [record.getMessage() for record in caplog.records if record.name == "raft.net"]
    assert len(lines) <= 3 * (LOG_LINES_PER_SWEEP + 1)
    assert any("suppressed_lines=" in line for line in lines)


@pytest.mark.parametrize("sent", [b"\x00", b"\x00\x00\x10\x00", b"\x00\x00\x10\x00half"])
def test_a_listener_closes_a_connection_stalled_in_the_middle_of_a_frame(on_loop, sent):
    async def main():
        listener = Listener(echo, limits=Limits(stall_ms=60_000))
        await listener.start("127.0.0.1", 0)
        sweep_by_hand(listener)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(sent)
        await wait_until_async(
            lambda: any(c.bytes_received == len(sent) for c in listener.connections)
        )
        now = asyncio.get_running_loop().time()
        listener.sweep(now)
        writer.write(b"\x00")  # one byte in a minute is not progress
        await wait_until_async(
            lambda: any(c.bytes_received > len(sent) for c in listener.connections)
        )
        listener.sweep(now + 59)
        assert listener.connections
        listener.sweep(now + 61)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        await wait_until_async(lambda: not listener.connections)
        assert listener.ended == {Reason.FRAME_STALLED: 1}
        writer.close()
        await still_answers(listener)
        await listener.close()

    on_loop(main())


def test_a_listener_does_not_close_a_connection_to_a_slow_client_that_makes_progress(on_loop):
    async def main():
        limits = Limits(stall_ms=60_000, stall_bytes=1_000)
        listener = Listener(echo, limits=limits)
        await listener.start("127.0.0.1", 0)
        sweep_by_hand(listener)
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write((100_000).to_bytes(4, "big"))
        now = asyncio.get_running_loop().time()
        for minute in range(5):
            writer.write(bytes(1_000))
            sent = 4 + 1_000 * (minute + 1)
            await wait_until_async(
                lambda sent=sent: any(c.bytes_received == sent for c in listener.connections)
            )
            listener.sweep(now + 59 * minute)
        assert listener.connections
        writer.transport.abort()
        await listener.close()

    on_loop(main())


def test_a_listener_closes_idle_connections_but_none_with_a_request_in_flight(on_loop):
    async def main():
        def park(connection: ServerConnection, frame: Frame) -> Answer:
            return Reply(connection) if len(frame) > 20 else echo(connection, frame)

        listener = Listener(park, limits=Limits(idle_ms=300_000))
        await listener.start("127.0.0.1", 0)
        sweep_by_hand(listener)
        idle = await connect("127.0.0.1", listener.port)
        await idle.request(KIND, b"")
        silent = await connect("127.0.0.1", listener.port)
        waiting = await connect("127.0.0.1", listener.port)
        waiting.send(KIND, bytes(20), lambda _: None)
        await wait_until_async(lambda: sum(c.in_flight for c in listener.connections) == 1)
        await wait_until_async(lambda: len(listener.connections) == 3)
        now = asyncio.get_running_loop().time()
        listener.sweep(now)
        listener.sweep(now + 299)
        assert len(listener.connections) == 3
        listener.sweep(now + 301)
        await wait_until_async(lambda: idle.closed and silent.closed)
        assert not waiting.closed
        assert listener.ended == {Reason.IDLE: 2}
        waiting.close()
        await listener.close()

    on_loop(main())


def test_a_listener_closes_idle_connections_by_a_timer_of_its_own(on_loop):
    async def main():
        listener = Listener(echo, limits=Limits(idle_ms=20))
        await listener.start("127.0.0.1", 0)
        silent = await connect("127.0.0.1", listener.port)
        await wait_until_async(lambda: silent.closed)
        assert listener.ended == {Reason.IDLE: 1}
        await listener.close()

    on_loop(main())


def test_a_listener_closes_a_connection_beyond_the_limit_and_keeps_earlier_connections(on_loop):
    async def main():
        listener = Listener(echo, limits=Limits(max_connections=2))
        await listener.start("127.0.0.1", 0)
        first = await connect("127.0.0.1", listener.port)
        second = await connect("127.0.0.1", listener.port)
        await wait_until_async(lambda: len(listener.connections) == 2)
        third = await connect("127.0.0.1", listener.port)
        await wait_until_async(lambda: third.closed)
        assert await first.request(KIND, b"1") == b"1"
        assert await second.request(KIND, b"2") == b"2"
        assert listener.ended == {Reason.TOO_MANY_CONNECTIONS: 1}
        first.close()
        second.close()
        await wait_until_async(lambda: not listener.connections)
        await still_answers(listener)
        await listener.close()

    on_loop(main())


@pytest.mark.parametrize(
    ("limits", "served"),
    [
        (Limits(max_connections_per_ip=2), 2),
        (Limits(max_connections_per_ip=2, max_connections_per_ip_overrides={"127.0.0.1": 1}), 1),
        (Limits(max_connections_per_ip=0, max_connections_per_ip_overrides={"127.0.0.1": 3}), 3),
        (Limits(max_connections_per_ip_overrides={"10.0.0.7": 1}), 4),
    ],
)
def test_a_listener_closes_a_connection_of_an_address_with_too_many(on_loop, limits, served):
    async def main():
        listener = Listener(echo, limits=limits)
        await listener.start("127.0.0.1", 0)
        for _ in range(2):  # what has ended does not count
            clients = [await connect("127.0.0.1", listener.port) for _ in range(4)]
            await wait_until_async(lambda: len(listener.connections) == served)
            await wait_until_async(
                lambda clients=clients: sum(client.closed for client in clients) == 4 - served
            )
            assert await clients[0].request(KIND, b"1") == b"1"
            for client in clients:
                client.close()
            await wait_until_async(lambda: not listener.connections)
        assert listener.ended[Reason.TOO_MANY_CONNECTIONS] == 2 * (4 - served)
        await listener.close()

    on_loop(main())


def test_a_listener_allocates_no_memory_beyond_its_limit_for_announced_frame_lengths(on_loop):
    """Fifty strangers announce 90 MB each and send a little: 4.5 GB announced."""

    async def main():
        listener = Listener(echo, limits=Limits(memory_bytes=200_000_000))
        await listener.start("127.0.0.1", 0)
        tracemalloc.start()
        writers = []
        for _ in range(50):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write((90_000_000).to_bytes(4, "big") + bytes(60_000))
            writers.append(writer)
        await wait_until_async(lambda: listener.accepted == 50)
        await wait_until_async(lambda: all(c.bytes_received for c in listener.connections))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert listener.memory_used <= 200_000_000 + 90_000_000
        assert peak < 50 * 200_000 + 3 * 5_000_000, f"{peak} bytes"
        await still_answers_beside(listener)
        for writer in writers:
            writer.transport.abort()
        await wait_until_async(lambda: not listener.connections)
        assert listener.memory_used == 0
        await listener.close()

    async def still_answers_beside(listener: Listener) -> None:
        connection = await connect("127.0.0.1", listener.port)
        assert await connection.request(KIND, b"well?") == b"well?"
        connection.close()

    on_loop(main())


def free_descriptors() -> int:
    """How many more this process may open, but for a hundred that it needs meanwhile."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - len(list(Path("/proc/self/fd").iterdir())) - 100


def test_ten_thousand_idle_connections_take_little_memory_and_delay_no_request(on_loop):
    """Both ends live in this process, so half the descriptors it may yet open, at most 10,000."""

    async def main():
        count = min(10_000, free_descriptors() // 2)
        traced = min(1_000, count)  # tracing makes each connection three times as slow
        listener = Listener(echo, limits=Limits(max_connections=count + 1))
        await listener.start("127.0.0.1", 0, backlog=4_096)
        sweep_by_hand(listener)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        sockets = []
        loop = asyncio.get_running_loop()
        for n in range(count):
            stranger = socket.socket()
            stranger.setblocking(False)
            sockets.append(stranger)
            await loop.sock_connect(stranger, ("127.0.0.1", listener.port))
            if n % 100 == 99:
                await wait_until_async(lambda n=n: listener.accepted == n + 1)
            if n + 1 == traced:
                await wait_until_async(lambda n=n: len(listener.connections) == n + 1)
                each = (tracemalloc.get_traced_memory()[0] - before) / traced
                tracemalloc.stop()
        await wait_until_async(lambda: len(listener.connections) == count)
        assert each < 6_000, f"{each:.0f} bytes per idle connection"
        connection = await connect("127.0.0.1", listener.port)
        assert await connection.request(KIND, b"well?") == b"well?"
        start = loop.time()
        listener.sweep(start)
        print(f"{count} idle connections, {each:.0f} bytes of Python memory each")
        for stranger in sockets:
            stranger.close()
        connection.close()
        await listener.close()
        assert not listener.connections

    on_loop(main())


def test_a_failed_assertion_in_a_request_handler_reaches_the_event_loops_exception_handler():
    reached: list[BaseException] = []

    def broken(*_: object) -> Answer:
        raise AssertionError("epoch went backwards")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reached.append(context["exception"])
        )
        listener = Listener(broken)
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        connection.send(KIND, b"", lambda _: None)
        await wait_until_async(lambda: connection.closed)
        assert listener.ended == {Reason.INVARIANT: 1}
        await listener.close()

    asyncio.run(main())
    assert [str(error) for error in reached] == ["epoch went backwards"]


def test_a_listener_closes_a_connection_whose_request_handler_raises_record_error(on_loop):
    async def main():
        def refuse(*_: object) -> Answer:
            raise RecordError("an array of -7 elements")

        listener = Listener(refuse)
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        connection.send(KIND, b"", lambda _: None)
        await wait_until_async(lambda: connection.closed)
        assert listener.ended == {Reason.MALFORMED: 1}
        await listener.close()

    on_loop(main())


def test_an_unexpected_error_in_a_handler_closes_one_connection_and_logs_its_source_line(
    on_loop, caplog
):
    async def main():
        def buggy(*_: object) -> Answer:
            return {}["missing"]

        async def later() -> bytes:
            raise ValueError("from a task")

        listener = Listener(buggy)
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        connection.send(KIND, b"", lambda _: None)
        await wait_until_async(lambda: connection.closed)
        listener.handle = lambda *_: later()
        connection = await connect("127.0.0.1", listener.port)
        connection.send(KIND, b"", lambda _: None)
        await wait_until_async(lambda: connection.closed)
        await wait_until_async(lambda: not listener.connections)
        assert listener.ended == {Reason.FAILED: 2}
        await listener.close()

    on_loop(main())
    first, second = (r.getMessage() for r in caplog.records if r.name == "raft.net")
    assert "KeyError" in first
    assert "test_hostile.py:" in first
    assert "ValueError: from a task" in second


def test_later_requests_do_not_change_a_request_frame_that_a_handler_still_references(on_loop):
    async def main():
        kept: list[Frame] = []

        def keep(connection: ServerConnection, frame: Frame) -> Answer:
            kept.append(frame)
            return echo(connection, frame)

        listener = Listener(keep)
        await listener.start("127.0.0.1", 0)
        connections = [await connect("127.0.0.1", listener.port) for _ in range(3)]
        bodies = [bytes([n % 256]) * (n * 613 % 70_000) for n in range(300)]
        futures = [connections[n % 3].request(KIND, body) for n, body in enumerate(bodies)]
        answers = await asyncio.gather(*futures)
        assert [bytes(answer) for answer in answers] == bodies
        assert sorted(bytes(frame[11:]) for frame in kept) == sorted(bodies)
        for connection in connections:
            connection.close()
        await listener.close()

    on_loop(main())
