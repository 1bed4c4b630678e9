"""Order and back-pressure of one connection's requests. Source: Kafka protocol guide, "Network"."""

from __future__ import annotations

import asyncio
import tracemalloc
from itertools import pairwise
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raft.net import (
    Answer,
    ClientConnection,
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
from raft.net.frames import LENGTH
from tests.waiting import wait_until_async

from .conftest import sweep_by_hand

KIND = RequestKind.of(1100, 0, first_flexible=0)
APIS = {1100: 0}


def answer_to(frame: Frame) -> bytes:
    """The echo of a request: a response header and the request's body."""
    header = parse_request_header(frame, APIS)
    return response_header(header.correlation_id, flexible=True) + bytes(frame[header.body_at :])


@given(
    ways=st.lists(st.sampled_from(["now", "tuple", "later", "early", "task", "none"]), max_size=40),
    sizes=st.lists(st.integers(0, 9_000), min_size=1, max_size=5),
    limit=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_responses_arrive_in_request_order_for_every_kind_of_handler(
    on_loop, ways, sizes, limit, seed
):
    """Answers are bytes, buffers, deferred replies sent in any order, tasks, or None."""
    random = Random(seed)

    async def main() -> None:
        parked: list[tuple[Reply, bytes]] = []
        handled: list[int] = []
        most_in_flight = 0

        async def from_task(answer: bytes) -> bytes:
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
            return answer

        def handle(connection: ServerConnection, frame: Frame) -> Answer:
            nonlocal most_in_flight
            handled.append(len(handled))
            most_in_flight = max(most_in_flight, connection.in_flight + 1)
            way, answer = ways[handled[-1]], answer_to(frame)
            if way == "none":
                return None
            if way == "now":
                return answer
            if way == "tuple":
                return (answer[:3], memoryview(answer)[3:])
            if way == "task":
                return from_task(answer)
            reply = Reply(connection)
            if way == "early":
                reply.send([answer])
            else:
                parked.append((reply, answer))
                asyncio.get_running_loop().call_soon(release)
            return reply

        def release() -> None:
            random.shuffle(parked)
            if random.random() < 0.3:
                Reply.send_all(parked)
                parked.clear()
            elif parked:
                reply, answer = parked.pop()
                reply.send(answer)

        listener = Listener(handle, limits=Limits(max_in_flight_requests=limit))
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        futures = []
        for n, way in enumerate(ways):
            body = (b"%d " % n).ljust(sizes[n % len(sizes)], b".")
            if way == "none":
                connection.send(KIND, body, None)
            else:
                futures.append((body, connection.request(KIND, body)))
            if random.random() < 0.3:
                await asyncio.sleep(0)
        for body, future in futures:  # correlation ids are checked on arrival
            assert bytes(await future) == body
        await wait_until_async(lambda: len(handled) == len(ways))
        assert most_in_flight <= limit
        connection.close()
        await listener.close()
        assert listener.memory_used == 0

    on_loop(main())


def flood(body: bytes, count: int) -> bytes:
    """`count` framed requests with correlation ids from 0."""
    requests = []
    for n in range(count):
        head = bytes.fromhex("044c0000") + n.to_bytes(4, "big") + bytes.fromhex("ffff00")
        requests.append(LENGTH.pack(len(head) + len(body)) + head + body)
    return b"".join(requests)


def test_a_server_does_not_read_a_connection_with_too_many_requests_in_flight(on_loop):
    async def main():
        parked: list[tuple[Reply, Frame]] = []

        def park(connection: ServerConnection, frame: Frame) -> Answer:
            parked.append((Reply(connection), answer_to(frame)))
            return parked[-1][0]

        listener = Listener(park, limits=Limits(max_in_flight_requests=10))
        await listener.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(flood(b"x" * 5_000, 2_000))
        answered = 0
        while answered < 2_000:
            due = min(10, 2_000 - answered)
            await wait_until_async(lambda due=due: len(parked) == due)
            (connection,) = listener.connections
            assert connection.in_flight == len(parked)
            received = connection.bytes_received / 5_015
            assert received <= answered + 10 + 65_536 / 5_015 + 2, "read more than one buffer ahead"
            batch, parked[:] = list(parked), []
            for reply, answer in batch:
                reply.send(answer)
            for _ in batch:
                (size,) = LENGTH.unpack(await reader.readexactly(4))
                answer = await reader.readexactly(size)
                assert int.from_bytes(answer[:4], "big") == answered
                answered += 1
        writer.close()
        await wait_until_async(lambda: not listener.connections)
        await listener.close()
        assert listener.ended == {Reason.PEER_CLOSED: 1}

    on_loop(main())


def test_a_server_reads_other_connections_while_one_connection_is_paused(on_loop):
    async def main():
        parked: list[tuple[Reply, Frame]] = []

        def park(connection: ServerConnection, frame: Frame) -> Answer:
            if len(frame) < 100:
                return answer_to(frame)
            connection.pause_reading()
            parked.append((Reply(connection), answer_to(frame)))
            return parked[-1][0]

        listener = Listener(park)
        await listener.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(flood(b"x" * 5_000, 500))
        await wait_until_async(lambda: len(parked) == 1)
        (held,) = listener.connections
        other = await connect("127.0.0.1", listener.port)
        for _ in range(3):
            assert await other.request(KIND, b"small", timeout_ms=5_000) == b"small"
        assert len(parked) == 1
        assert held.bytes_received <= 5_015 + 65_536, "read more than one buffer ahead"
        for answered in range(500):
            await wait_until_async(lambda answered=answered: len(parked) == answered + 1)
            parked[-1][0].send(parked[-1][1])
            held.resume_reading()
            (size,) = LENGTH.unpack(await reader.readexactly(4))
            answer = await reader.readexactly(size)
            assert int.from_bytes(answer[:4], "big") == answered
        other.close()
        writer.close()
        await wait_until_async(lambda: not listener.connections)
        await listener.close()

    on_loop(main())


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_in_flight_requests=4),
        Limits(max_in_flight_bytes=4_000),
        Limits(memory_bytes=4_000),
    ],
)
def test_a_server_reads_no_further_request_of_a_connection_at_its_limit_of_pending_responses(
    on_loop, limits
):
    async def main():
        parked: list[tuple[Reply, bytes]] = []

        def park(connection: ServerConnection, frame: Frame) -> Answer:
            parked.append((Reply(connection), answer_to(frame)))
            return parked[-1][0]

        listener = Listener(park, limits=limits)
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        futures = [connection.request(KIND, bytes(1_000)) for _ in range(10)]  # 1,011 with header
        expected = 4
        for done in range(10):
            await wait_until_async(lambda: bool(parked))
            assert len(parked) <= expected
            reply, answer = parked.pop(0)
            reply.send(answer)
            assert await futures[done] == bytes(1_000)
        connection.close()
        await listener.close()

    on_loop(main())


def test_a_server_pauses_and_then_closes_a_connection_to_a_client_that_never_reads(on_loop):
    async def main():
        answer = response_header(0, flexible=True) + bytes(100_000)
        handled = 0

        def handle(*_: object) -> Answer:
            nonlocal handled
            handled += 1
            return answer

        limits = Limits(write_high_water_bytes=500_000, stall_ms=60_000)
        listener = Listener(handle, limits=limits)
        await listener.start("127.0.0.1", 0)
        sweep_by_hand(listener)
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1)
        writer.write(flood(b"", 5_000))
        await wait_until_async(lambda: any(c._write_paused for c in listener.connections))
        (connection,) = listener.connections
        before = 0
        while before != handled:  # the kernel's own buffers fill up first
            before = handled
            for _ in range(20):
                await asyncio.sleep(0.001)
        buffered = connection._transport.get_write_buffer_size()
        assert 0 < buffered <= 500_000 + 2 * len(answer)
        assert handled < 5_000, "everything was answered: the kernel took it all"
        now = asyncio.get_running_loop().time()
        listener.sweep(now)
        listener.sweep(now + 59)
        assert connection in listener.connections
        listener.sweep(now + 61)
        await wait_until_async(lambda: not listener.connections)
        assert listener.ended == {Reason.WRITE_STALLED: 1}
        writer.transport.abort()
        await listener.close()

    on_loop(main())


def test_the_requests_of_all_connections_stay_within_the_shared_memory_limit(on_loop):
    async def main():
        size, clients = 200_000, 12
        limits = Limits(memory_bytes=700_000, max_frame_bytes=1_000_000)
        parked: list[tuple[Reply, bytes]] = []
        most_used = 0

        def park(connection: ServerConnection, frame: Frame) -> Answer:
            nonlocal most_used
            most_used = max(most_used, listener.memory_used)
            parked.append((Reply(connection), answer_to(frame)[:5]))
            return parked[-1][0]

        listener = Listener(park, limits=limits)
        await listener.start("127.0.0.1", 0)
        connections = [await connect("127.0.0.1", listener.port) for _ in range(clients)]
        body = bytes(size)
        futures = [c.request(KIND, body) for c in connections for _ in range(3)]
        tracemalloc.start()
        peaks = []
        while not all(future.done() for future in futures):
            await wait_until_async(lambda: bool(parked) or all(future.done() for future in futures))
            peaks.append(listener.memory_used)
            batch, parked[:] = list(parked), []
            for reply, answer in batch:
                reply.send(answer)
            await asyncio.sleep(0)
        tracemalloc.stop()
        assert await asyncio.gather(*futures) == [b""] * len(futures)
        assert max(peaks) <= 700_000 + size + 100, "one frame more than the bound, at most"
        assert most_used <= 700_000 + 2 * size + 100  # counted twice while it is handed over
        for connection in connections:
            connection.close()
        await listener.close()
        assert listener.memory_used == 0
        assert len(peaks) >= len(futures) * size // (700_000 + size), "nobody ever had to wait"

    on_loop(main())


def test_a_server_serves_a_small_request_while_large_requests_fill_the_shared_memory(on_loop):
    async def main():
        parked: list[Reply] = []

        def handle(connection: ServerConnection, frame: Frame) -> Answer:
            if len(frame) < 1_000:
                return answer_to(frame)
            parked.append(Reply(connection))
            return parked[-1]

        listener = Listener(handle, limits=Limits(memory_bytes=100_000))
        await listener.start("127.0.0.1", 0)
        greedy: list[ClientConnection] = []
        for _ in range(3):
            greedy.append(await connect("127.0.0.1", listener.port))
            greedy[-1].send(KIND, bytes(300_000), lambda _: None)
        await wait_until_async(lambda: len(parked) == 1)
        voter = await connect("127.0.0.1", listener.port)
        assert await voter.request(KIND, b"vote") == b"vote"
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        request = flood(b"in two pieces", 1)
        writer.write(request[:20])
        await wait_until_async(lambda: any(c.bytes_received == 20 for c in listener.connections))
        writer.write(request[20:])
        assert (await reader.readexactly(4 + 5 + 13))[9:] == b"in two pieces"
        writer.close()
        assert len(parked) == 1, "the second large request was let in beyond the bound"
        greedy[0].close()
        greedy[1].close()
        greedy[2].close()
        voter.close()
        await listener.close()
        assert listener.memory_used == 0

    on_loop(main())


def test_requests_that_a_client_sent_before_it_closed_reach_the_server(on_loop):
    async def main():
        arrived: list[bytes] = []
        listener = Listener(lambda _, frame: arrived.append(bytes(frame[11:])))
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        connection.send(KIND, b"good", None)
        connection.send(KIND, b"bye", None)
        connection.close()
        await wait_until_async(lambda: len(arrived) == 2)
        await listener.close()
        assert arrived == [b"good", b"bye"]

    on_loop(main())


def test_a_server_handles_no_request_of_a_connection_after_a_handler_closed_the_connection(on_loop):
    async def main():
        handled: list[bytes] = []
        parked: list[Reply] = []

        def handle(connection: ServerConnection, frame: Frame) -> Answer:
            body = bytes(frame[11:])
            handled.append(body)
            if body == b"close":
                connection.close()
                return Reply(connection)
            if body == b"park":
                parked.append(Reply(connection))
                return parked[-1]
            return answer_to(frame)

        closed: list[ServerConnection] = []
        listener = Listener(handle, on_close=closed.append)
        await listener.start("127.0.0.1", 0)
        connection = await connect("127.0.0.1", listener.port)
        first = connection.request(KIND, b"1")
        for body in (b"park", b"2", b"close", b"3"):
            connection.send(KIND, body, lambda _: None)
        assert await first == b"1"
        await wait_until_async(lambda: connection.closed)
        assert handled == [b"1", b"park", b"2", b"close"]
        assert len(closed) == 1
        parked[0].send(b"too late")  # whoever waits need not know
        assert closed[0].in_flight == 0
        assert listener.memory_used == 0
        await listener.close()

    on_loop(main())


def test_clients_and_servers_number_their_connections_in_increasing_order(on_loop):
    async def main():
        seen: list[int] = []
        listener = Listener(lambda c, f: (seen.append(c.id), answer_to(f))[1])
        await listener.start("127.0.0.1", 0)
        ids = []
        for _ in range(3):
            connection = await connect("127.0.0.1", listener.port)
            await connection.request(KIND, b"")
            ids.append(connection.id)
            connection.close()
        await listener.close()
        assert all(a < b for a, b in pairwise(ids))
        assert all(a < b for a, b in pairwise(seen))
        assert not set(ids) & set(seen)

    on_loop(main())


def test_a_closing_listener_answers_requests_in_flight(on_loop):
    async def main():
        parked: list[tuple[Reply, bytes]] = []

        def park(connection: ServerConnection, frame: Frame) -> Answer:
            parked.append((Reply(connection), answer_to(frame)))
            return parked[-1][0]

        listener = Listener(park)
        await listener.start("127.0.0.1", 0)
        busy = await connect("127.0.0.1", listener.port)
        idle = await connect("127.0.0.1", listener.port)
        asked = busy.request(KIND, b"begun")
        await wait_until_async(lambda: bool(parked))
        closing = asyncio.ensure_future(listener.close(drain_ms=20_000))
        await wait_until_async(lambda: idle.closed)
        busy.send(KIND, b"too late", lambda _: None)
        sent = listener.connections.copy().pop().bytes_received + 4 + 11 + 8
        await wait_until_async(lambda: all(c.bytes_received == sent for c in listener.connections))
        assert len(parked) == 1
        parked[0][0].send(parked[0][1])
        assert await asked == b"begun"
        await closing
        await wait_until_async(lambda: busy.closed)
        assert listener.ended == {Reason.SHUTDOWN: 2}

    on_loop(main())
