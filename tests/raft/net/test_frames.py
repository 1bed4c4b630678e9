"""However the network cuts a stream, the same frames come out. Pure: no sockets."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.net.errors import Reason
from raft.net.frames import (
    ARENA_BYTES,
    COPY_BYTES,
    FIRST_BYTES,
    JOIN_BYTES,
    LENGTH,
    Arena,
    FrameReader,
    gather,
    length_prefix,
)

SIZES = st.one_of(
    st.integers(0, 300),
    st.sampled_from([COPY_BYTES - 1, COPY_BYTES, COPY_BYTES + 1, ARENA_BYTES - 4, ARENA_BYTES]),
    st.integers(0, 3 * ARENA_BYTES),
)

BYTE_BY_BYTE = 20_000  # longer streams have a large read in each round of cuts: 2 MB take a minute


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> list[bytes | memoryview]:
    """Give `data` to the reader as a network would, reading at most `cuts[i]` bytes each time."""
    frames, at, turn = [], 0, 0
    while at < len(data) and reader.error is None:
        room = reader.lend()
        count = min(len(room), cuts[turn % len(cuts)], len(data) - at)
        room[:count] = data[at : at + count]
        frames += reader.received(count)
        if reader.wanted:
            reader.grant()
        at += count
        turn += 1
    return frames


@given(
    st.lists(SIZES, max_size=12),
    st.lists(st.integers(1, 2 * ARENA_BYTES), min_size=1, max_size=8),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_a_frame_reader_returns_the_same_frames_wherever_the_stream_is_cut(sizes, cuts, seed):
    random = Random(seed)  # Hypothesis's own draws and records each number: ten times as slow
    bodies = [random.randbytes(size) for size in sizes]
    stream = b"".join(LENGTH.pack(len(body)) + body for body in bodies)
    if len(stream) > BYTE_BY_BYTE:
        cuts = [*cuts, ARENA_BYTES]
    reader = FrameReader(Arena(), max_frame_bytes=3 * ARENA_BYTES)
    frames = feed(reader, stream, cuts)  # all are compared at the end: none was written over
    assert frames == bodies
    assert not reader.partial
    assert reader.frames_read == len(bodies)
    assert all(isinstance(frame, bytes) == (len(frame) <= COPY_BYTES) for frame in frames)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=40))
def test_a_frame_reader_accepts_a_length_prefix_byte_by_byte(cuts):
    stream = b"".join(length_prefix(size) + bytes(size) for size in range(5)) * 3
    reader = FrameReader(Arena(), max_frame_bytes=10)
    assert feed(reader, stream, cuts) == [bytes(size) for size in range(5)] * 3


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"\xff\xff\xff\xff", Reason.NEGATIVE_LENGTH),
        (b"\x80\x00\x00\x00rest", Reason.NEGATIVE_LENGTH),
        (b"\x00\x01\x00\x01", Reason.OVERSIZED),
        (b"\x7f\xff\xff\xff", Reason.OVERSIZED),
        (b"\x16\x03\x01\x02\x00\x01\x00", Reason.TLS),
        (b"GET / HTTP/1.1\r\n", Reason.HTTP),
        (b"POST /a", Reason.HTTP),
        (b"PRI * HTTP/2.0", Reason.HTTP),
    ],
)
@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_frame_reader_reports_an_invalid_length_after_the_preceding_frames(stream, reason, cut):
    reader = FrameReader(Arena(), max_frame_bytes=65_536)
    assert feed(reader, length_prefix(2) + b"ok" + stream, [cut]) == [b"ok"]
    assert reader.error is not None
    if cut > 8:  # cut inside the length, all that can be known is the number
        assert reader.error.reason is reason


def test_a_frame_reader_allocates_little_memory_for_a_large_length_prefix_without_data():
    reader = FrameReader(Arena(), max_frame_bytes=100_000_000)
    tracemalloc.start()
    try:
        feed(reader, LENGTH.pack(100_000_000) + b"x" * 1_000, [5_000])
        assert tracemalloc.get_traced_memory()[1] <= FIRST_BYTES + 100_000
    finally:
        tracemalloc.stop()
    assert reader.receiving
    reader.discard()
    assert not reader.partial


def test_a_connection_receives_a_frame_larger_than_its_first_buffer_completely():
    body = bytes(range(256)) * (FIRST_BYTES // 128)  # twice FIRST_BYTES
    body += b"end"
    reader = FrameReader(Arena(), max_frame_bytes=len(body))
    assert feed(reader, LENGTH.pack(len(body)) + body + length_prefix(1) + b"z", [1 << 20]) == [
        body,
        b"z",
    ]


@given(st.lists(st.integers(0, 2 * JOIN_BYTES), max_size=20))
def test_a_connection_joins_small_send_buffers_without_changing_bytes_or_order(sizes):
    parts = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    gathered = gather(list(parts))
    assert b"".join(gathered) == b"".join(parts)
    assert all(part in gathered for part in parts if len(part) > JOIN_BYTES)
    small = [len(part) <= JOIN_BYTES for part in gathered]
    assert len(gathered) <= 2 * sum(size > JOIN_BYTES for size in sizes) + 1, small
