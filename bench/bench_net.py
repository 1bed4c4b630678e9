"""What does the transport cost against a bare uvloop protocol?

    python -m bench.bench_net [--seconds 2] [--rounds 3] [--only "100 B"]

One server process and one load process on loopback. The load keeps a fixed number of requests in
flight per connection (closed loop), counts answer bytes and parses nothing. Three servers take
turns in each round:

* bare: an `asyncio.Protocol` on uvloop that cuts length-prefixed frames out of what it gets and
  sends them back: no handler, no bounds, no order to keep, no time-outs;
* net: our listener with a handler that answers the same bytes;
* header: the same, reading each request's header and writing a response header.

Ratios are ours to bare in the same round, median of rounds, above 1 where we are faster: requests
per second, and server CPU time per request, which other load on the machine disturbs less. `us` is
that CPU time in microseconds. "large up" sends 1 MB requests and answers 16 bytes, "large down"
the other way round. The last lines have our client's `send` with callbacks against a bare protocol
client that packs requests and cuts answers, both asking the same server: CPU time of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from struct import Struct
from typing import Any, Final

from raft.net import (
    Answer,
    Arena,
    ConnectionLostError,
    Frame,
    Limits,
    Listener,
    RequestKind,
    ServerConnection,
    connect,
    loop_factory,
    parse_request_header,
    response_header,
)

SMALL: Final = 100
SHORT: Final = 16
LARGE: Final = 1_000_000
LENGTH: Final = Struct(">i")
APIS: Final = {1100: 0}
KIND: Final = RequestKind.of(1100, 0, first_flexible=0)
REQUEST_HEADER: Final = bytes.fromhex("044c 0000 00000000 0004 6c6f6164 00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of load: sizes are of frames without their length prefix."""

    name: str
    connections: int
    in_flight: int  # per connection
    request_bytes: int = SMALL
    answer_bytes: int = SMALL


SHAPES: Final = (
    Shape(name="100 B, 1 conn x 1", connections=1, in_flight=1),
    Shape(name="100 B, 1 conn x 100", connections=1, in_flight=100),
    Shape(name="100 B, 1 conn x 1000", connections=1, in_flight=1_000),
    Shape(name="100 B, 50 conn x 5", connections=50, in_flight=5),
    Shape(name="large up, 4 conn x 5", connections=4, in_flight=5,
          request_bytes=LARGE, answer_bytes=SHORT),
    Shape(name="large down, 4 conn x 5", connections=4, in_flight=5, answer_bytes=LARGE),
)  # fmt: skip


class BareServer(asyncio.Protocol):
    """The least a framed server can do in Python."""

    def __init__(self, answer: bytes | None) -> None:
        self.framed = None if answer is None else LENGTH.pack(len(answer)) + answer
        self.buffer = b""
        self.large = bytearray()
        self.missing = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.missing:  # a large frame is accumulated, not concatenated again and again
            self.large += data
            if len(self.large) < self.missing:
                return
            data, self.missing = bytes(self.large), 0
            self.large = bytearray()
        elif self.buffer:
            data = self.buffer + data
        out = []
        at, end = 0, len(data)
        unpack = LENGTH.unpack_from
        while end - at >= 4:
            (size,) = unpack(data, at)
            stop = at + 4 + size
            if stop > end:
                if size > 65_536:
                    self.missing, self.large = 4 + size, bytearray(data[at:])
                    at = end
                break
            out.append(data[at:stop] if self.framed is None else self.framed)
            at = stop
        self.buffer = data[at:]
        if out:
            self.transport.write(b"".join(out) if len(out) > 1 else out[0])


def handler(kind: str, answer: bytes | None) -> Any:
    """Return the listener's handler: an echo or a fixed response, with or without headers."""

    def echo(connection: ServerConnection, frame: Frame) -> Answer:  # noqa: ARG001
        return frame

    def fixed(connection: ServerConnection, frame: Frame) -> Answer:  # noqa: ARG001
        return answer

    def numbered(connection: ServerConnection, frame: Frame) -> Answer:  # noqa: ARG001
        return bytes(frame[4:8]) + b"\x00" + bytes(frame[13:])  # the least a response may be

    body = None if answer is None else answer[5:]

    def with_header(connection: ServerConnection, frame: Frame) -> Answer:  # noqa: ARG001
        header = parse_request_header(frame, APIS)
        if body is None:
            return response_header(header.correlation_id, flexible=True) + frame[5:]
        return (response_header(header.correlation_id, flexible=True), body)

    if kind == "header":
        return with_header
    if kind == "numbered":
        return numbered
    return echo if answer is None else fixed


def serve(kind: str, answer: bytes | None, pipe: Connection) -> None:
    """Run the server process, which reports its port and, on request, its CPU time by `pipe`."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        if kind == "bare":
            server = await loop.create_server(lambda: BareServer(answer), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
        else:
            listener = Listener(handler(kind, answer), limits=Limits())
            await listener.start("127.0.0.1", 0)
            port = listener.port
        stopped = asyncio.Event()

        def on_message() -> None:
            if pipe.recv():
                pipe.send(cpu_seconds())
            else:
                stopped.set()

        loop.add_reader(pipe.fileno(), on_message)
        pipe.send(port)
        await stopped.wait()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


def cpu_seconds() -> float:
    """Return the user and system CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Load(asyncio.BufferedProtocol):
    """Keeps `in_flight` requests under way and counts whole answers by their bytes."""

    def __init__(self, shape: Shape) -> None:
        body = REQUEST_HEADER.ljust(shape.request_bytes, b"x")
        self.request = LENGTH.pack(len(body)) + body
        self.many = self.request * shape.in_flight if shape.request_bytes == SMALL else b""
        self.shape = shape
        self.answer_bytes = 4 + shape.answer_bytes
        self.received = 0
        self.answers = 0
        self.view = memoryview(bytearray(262_144))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask(self.shape.in_flight)

    def ask(self, count: int) -> None:
        if self.many:
            self.transport.write(self.many[: count * len(self.request)])
        else:
            for _ in range(count):
                self.transport.write(self.request)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self.view

    def buffer_updated(self, nbytes: int) -> None:
        self.received += nbytes
        complete, self.received = divmod(self.received, self.answer_bytes)
        if complete:
            self.answers += complete
            self.ask(complete)


def measure(kind: str, shape: Shape, seconds: float) -> tuple[float, float]:
    """Measure a server; return requests per second and its CPU microseconds per request."""
    header_bytes = 5
    answer = None if shape.answer_bytes == SMALL else bytes(shape.answer_bytes)
    assert answer is None or len(answer) > header_bytes, "no room for a response header"
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(kind, answer, theirs))
    process.start()
    theirs.close()
    port = ours.recv()

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        loads = [Load(shape) for _ in range(shape.connections)]
        for load in loads:
            await loop.create_connection(lambda load=load: load, "127.0.0.1", port)
        await asyncio.sleep(min(0.3, seconds / 4))  # warm up
        count, cpu, start = sum(x.answers for x in loads), ask_cpu(), time.perf_counter()
        await asyncio.sleep(seconds)
        count = sum(x.answers for x in loads) - count
        cpu, took = ask_cpu() - cpu, time.perf_counter() - start
        for load in loads:
            load.transport.abort()
        return count / took, cpu / max(count, 1) * 1e6

    def ask_cpu() -> float:
        ours.send(True)
        return ours.recv()

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(main())
    finally:
        ours.send(False)
        process.join(5)
        if process.is_alive():
            process.kill()


class BareClient(asyncio.Protocol):
    """The least a client with correlation ids and callbacks in order can do."""

    def __init__(self, body: bytes, in_flight: int) -> None:
        self.body, self.in_flight = body, in_flight
        self.buffer = b""
        self.next_id = 0
        self.expected = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(b"".join(self.request() for _ in range(self.in_flight)))

    def request(self) -> bytes:
        self.next_id += 1
        return Struct(">ihhi").pack(8 + len(self.body), 1100, 0, self.next_id - 1) + self.body

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data
        at, end, out = 0, len(data), []
        while end - at >= 4:
            (size,) = LENGTH.unpack_from(data, at)
            stop = at + 4 + size
            if stop > end:
                break
            self.expected += 1
            out.append(self.request())
            at = stop
        self.buffer = data[at:]
        if out:
            self.transport.write(b"".join(out))


def measure_client(kind: str, in_flight: int, seconds: float) -> float:
    """Measure a client of an echo server; return its CPU microseconds per request."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=("numbered", None, theirs))
    process.start()
    theirs.close()
    port = ours.recv()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        answers = 0
        body = bytes(SMALL - 13)
        if kind == "bare":
            client = BareClient(b"\x00\x00\x00" + body, in_flight)
            await loop.create_connection(lambda: client, "127.0.0.1", port)
        else:
            connection = await connect("127.0.0.1", port, client_id="", arena=Arena())

            def on_answer(answer: object) -> None:
                nonlocal answers
                if not isinstance(answer, ConnectionLostError):
                    answers += 1
                    connection.send(KIND, body, on_answer)

            for _ in range(in_flight):
                connection.send(KIND, body, on_answer)
        await asyncio.sleep(min(0.3, seconds / 4))
        before = client.expected if kind == "bare" else answers
        cpu = cpu_seconds()
        await asyncio.sleep(seconds)
        cpu = cpu_seconds() - cpu
        count = (client.expected if kind == "bare" else answers) - before
        return cpu / max(count, 1) * 1e6

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(main())
    finally:
        ours.send(False)
        process.join(5)
        if process.is_alive():
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of every measurement (default 3)")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or '?'}, Python {platform.python_version()}, "
          f"{os.cpu_count()} cores, uvloop {'yes' if loop_factory() else 'no'}")  # fmt: skip
    print(f"{'':24}{'bare/s':>11}{'net/s':>11}{'header/s':>11}   ratio: net header"
          f"   CPU: net header{'bare us':>9}{'net us':>8}{'header us':>10}")  # fmt: skip
    for shape in SHAPES:
        if args.only in shape.name:
            report(shape, args.seconds, args.rounds)
    for in_flight in (1, 100):
        name = f"client, 100 B x {in_flight}"
        if args.only in name:
            rounds = [
                [measure_client(kind, in_flight, args.seconds) for kind in ("bare", "net")]
                for _ in range(args.rounds)
            ]
            bare, net = (statistics.median(column) for column in zip(*rounds, strict=True))
            ratio = statistics.median(bare / net for bare, net in rounds)
            print(f"{name:24}{'':51}{ratio:11.2f}{'':7}{bare:9.2f}{net:8.2f}")


def report(shape: Shape, seconds: float, rounds: int) -> None:
    """Measure one shape of load on each kind of server, and print a line of results."""
    kinds = ("bare", "net", "header")
    turns = [{kind: measure(kind, shape, seconds) for kind in kinds} for _ in range(rounds)]

    def median(kind: str, index: int) -> float:
        return statistics.median(turn[kind][index] for turn in turns)

    def rate(kind: str) -> float:
        return statistics.median(turn[kind][0] / turn["bare"][0] for turn in turns)

    def cpu(kind: str) -> float:
        return statistics.median(turn["bare"][1] / turn[kind][1] for turn in turns)

    print(f"{shape.name:24}{median('bare', 0):11,.0f}{median('net', 0):11,.0f}"
          f"{median('header', 0):11,.0f}{rate('net'):13.2f}{rate('header'):7.2f}"
          f"{cpu('net'):11.2f}{cpu('header'):7.2f}{median('bare', 1):9.2f}"
          f"{median('net', 1):8.2f}{median('header', 1):10.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
