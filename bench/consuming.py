"""Reads a whole topic by one consumer, for the benchmarks that compare readers.

`read_all` is librdkafka's consumer, which makes a Python object of each record. `receive_all` only
receives Fetch responses and looks at the batches' headers: what it takes is the broker's time and
the network's.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from struct import Struct
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from raft.driver.peers import kind_of
from raft.net import request_header
from records.batch import iter_batches
from records.codec import decode_message, encode_message
from records.rpc.fetch import FetchRequest, FetchResponse

WAIT_S: Final = 60
"""The longest wait for the next records."""

VERSION: Final = 12  # of Fetch: the last one by topic name
FETCH: Final = kind_of(1, VERSION)
_LENGTH: Final = Struct(">i")
_Topic = FetchRequest.FetchTopic


def read_all(
    bootstrap: str,
    topic: str,
    partitions: int,
    records: int,
    settings: Mapping[str, str] | None = None,
) -> float:
    """Return the seconds in which one consumer reads a topic from offset 0 on.

    Args:    records: of all partitions together. settings: of the consumer, in addition.
    Raises:  AssertionError if no more records come.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            **(settings or {}),
        }
    )
    begun, count = time.perf_counter(), 0
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while count < records:
        messages = consumer.consume(min(1_000, records - count), timeout=WAIT_S)
        assert messages, f"{count} of {records} records came, and then none"
        count += sum(message.error() is None for message in messages)
    took_s = time.perf_counter() - begun
    consumer.close()
    return took_s


def receive_all(address: str, topic: str, partitions: int, records: int, rack: str) -> float:
    """Return the seconds in which one connection receives a topic from offset 0 on.

    Its Fetches are those of a librdkafka consumer with default settings: 1 MiB of each partition.

    Args:    address: host:port. records: of all partitions together.
             rack: of the broker; the client's id names it, too.
    Raises:  AssertionError for an error in a response, if the connection ends, or if no more
             records come.
    """
    host, _, port = address.rpartition(":")
    ends, buffer = [0] * partitions, bytearray(16 << 20)
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = moved_at = time.perf_counter()
        while (count := sum(ends)) < records:
            assert time.perf_counter() - moved_at < WAIT_S, f"{count} of {records} records came"
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=50 << 20,
                rack_id=rack,
                topics=(
                    _Topic(
                        topic=topic,
                        partitions=tuple(
                            _Topic.FetchPartition(
                                partition=index, fetch_offset=end, partition_max_bytes=1 << 20
                            )
                            for index, end in enumerate(ends)
                        ),
                    ),
                ),
            )
            head = request_header(FETCH, 1, f"bench,esker_rack={rack}")
            body = head + encode_message(request, VERSION)
            connection.sendall(_LENGTH.pack(len(body)) + body)
            _receive(connection, memoryview(buffer)[: _LENGTH.size])
            (size,) = _LENGTH.unpack_from(buffer)
            if size > len(buffer):
                buffer = bytearray(size)
            frame = memoryview(buffer)[:size]
            _receive(connection, frame)
            answer = decode_message(FetchResponse, frame, VERSION, _LENGTH.size + 1)
            for partition in answer.responses[0].partitions:
                assert partition.error_code == 0, partition.error_code
                for batch in iter_batches(partition.records or b"", verify_crc=False):
                    ends[partition.partition_index] = batch.header.end_offset
                    moved_at = time.perf_counter()
        return time.perf_counter() - begun


def _receive(connection: socket.socket, room: memoryview) -> None:
    """Fill `room` with the next bytes of a connection."""
    while room:
        count = connection.recv_into(room)
        assert count, "the connection ended"
        room = room[count:]
