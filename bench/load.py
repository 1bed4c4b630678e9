"""A closed-loop load on `esker-bench-log`, its own process: `python -m bench.load '<json>'`.

Each connection keeps a window of Produce requests in flight (acks=all, one batch each) and sends
the next as an answer comes. Requests are encoded once; only the correlation id changes. Answers
come in order, so a queue of send times gives the latencies. One JSON object is printed at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Final, cast

from raft.net import request_header, run
from raft.net.rpc import request_kind
from records.batch_writer import build_batch, build_value_batch
from records.codec import encode_message
from records.rpc.produce import ProduceRequest

TOPIC: Final = "esker-bench-log"
VERSION: Final = 9
# a Produce v9 answer: correlation id, tags, one topic with one partition; its error is at this byte
_ERROR_AT: Final = 4 + 1 + 1 + (1 + len(TOPIC)) + 1 + 4
_HEAD: Final = struct.Struct(">ihhi")


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. Sizes in bytes, times in seconds."""

    port: int
    connections: int
    in_flight: int  # of all connections together
    records: int  # of a request
    record_bytes: int = 100
    keyed: bool = False  # each record sets one key, as etcd's load does
    warm_up_s: float = 1.0
    seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Result:
    """Requests per second and latencies in milliseconds, after the warm-up."""

    requests_per_s: float
    records_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int


def request_template(load: Load) -> tuple[int, bytes]:
    """Return a Produce request's length, and its bytes after the correlation id."""
    values = [os.urandom(load.record_bytes) for _ in range(load.records)]
    if load.keyed:
        rows = [(b"k0000", value, 0, ()) for value in values]
        batch = build_batch(rows, base_offset=0, leader_epoch=-1)
    else:
        batch = build_value_batch(values, base_offset=0, leader_epoch=-1, timestamp=0)
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=bytes(batch))
    request = ProduceRequest(
        acks=-1, timeout_ms=5_000, topic_data=(data(name=TOPIC, partition_data=(partition,)),)
    )
    head = request_header(request_kind(ProduceRequest, VERSION), 0, "bench")
    body = head[8:] + encode_message(request, VERSION)
    return len(body) + 8, body


class Sender(asyncio.Protocol):
    """One connection with its window."""

    def __init__(self, size: int, body: bytes, window: int, latencies: list[float]) -> None:
        self.size, self.body, self.window = size, body, window
        self.latencies = latencies
        self.done = self.errors = self.correlation = 0
        self.stopped = False
        self.sent: deque[float] = deque()
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, count: int) -> None:
        now = time.perf_counter()
        parts = []
        for _ in range(count):
            self.correlation = (self.correlation + 1) & 0x7FFFFFFF
            parts.append(_HEAD.pack(self.size, 0, VERSION, self.correlation))
            parts.append(self.body)
            self.sent.append(now)
        self.transport.write(b"".join(parts))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self.rest + data if self.rest else data
        position, answered = 0, 0
        while position + 4 <= len(data):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            at = position + 4 + _ERROR_AT
            if data[at : at + 2] != b"\0\0":
                self.errors += 1
            self.latencies.append(now - self.sent.popleft())
            position, answered = end, answered + 1
        self.rest = data[position:]
        self.done += answered
        if answered and not self.stopped:
            self.send(answered)


async def drive(load: Load) -> Result:
    """Run the load, and return the figures measured after the warm-up."""
    loop = asyncio.get_running_loop()
    size, body = request_template(load)
    latencies: list[float] = []
    window = max(1, load.in_flight // load.connections)
    senders = []
    for _ in range(load.connections):
        _, sender = await loop.create_connection(
            lambda: Sender(size, body, window, latencies), "127.0.0.1", load.port
        )
        sender.send(window)
        senders.append(sender)
    await asyncio.sleep(load.warm_up_s)
    latencies.clear()
    before, began = sum(sender.done for sender in senders), time.perf_counter()
    await asyncio.sleep(load.seconds)
    done = sum(sender.done for sender in senders) - before
    elapsed = time.perf_counter() - began
    measured = sorted(latencies)
    for sender in senders:
        sender.stopped = True
        sender.transport.close()
    assert measured, "no answer within the run"
    return Result(
        requests_per_s=done / elapsed,
        records_per_s=done * load.records / elapsed,
        p50_ms=measured[len(measured) // 2] * 1e3,
        p99_ms=measured[int(len(measured) * 0.99)] * 1e3,
        errors=sum(sender.errors for sender in senders),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(run(drive(Load(**json.loads(sys.argv[1])))))))
