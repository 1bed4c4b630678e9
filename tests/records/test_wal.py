"""WAL segment objects explain themselves, and nothing else passes for one.

Source: docs/design/broker.md#wal-segment-objects.
"""

from __future__ import annotations

import contextlib
import struct
from uuid import UUID

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from records.batch_writer import build_value_batch
from records.errors import RecordError
from records.wal import (
    APPENDED,
    FINAL,
    TRAILER,
    DamagedObjectError,
    PartitionBatches,
    build_object,
    read_footer,
    verify_partition,
)

ONE, TWO = UUID(int=1), UUID(int=2)
CLUSTER = "Ck3xYzAAAAAAAAAAAAAAAA"


def batch(*values: bytes) -> bytes:
    return bytes(build_value_batch(list(values), base_offset=0, leader_epoch=0, timestamp=1_000))


def an_object(content: list[PartitionBatches]) -> bytes:
    parts, size_bytes = build_object(
        content, cluster_id=CLUSTER, object_id=7, broker_id=3, broker_epoch=40
    )
    whole = b"".join(parts)
    assert len(whole) == size_bytes
    return whole


def two_partitions() -> bytes:
    return an_object(
        [
            PartitionBatches(ONE, 0, [batch(b"a", b"b"), batch(b"c")], 3),
            PartitionBatches(TWO, 5, [batch(b"d")], 1),
        ]
    )


def audit(whole: bytes | bytearray) -> None:
    for row in read_footer(whole).partitions:
        verify_partition(row, whole[row.byte_offset : row.byte_offset + row.size_bytes])


def with_footer(fields: object, data: bytes = b"") -> bytes:
    footer = msgpack.packb(fields)
    size_bytes = len(data) + len(footer) + TRAILER.size
    return data + footer + TRAILER.pack(len(footer), crc32c(footer), size_bytes, b"EskrWAL1")


def test_the_footer_of_a_wal_object_locates_the_bytes_of_each_partition() -> None:
    whole = two_partitions()
    footer = read_footer(whole)
    assert (footer.cluster_id, footer.object_id) == (CLUSTER, 7)
    assert (footer.broker_id, footer.broker_epoch) == (3, 40)
    assert [(p.topic_id, p.partition, p.batch_count, p.record_count) for p in footer.partitions] \
        == [(ONE, 0, 2, 3), (TWO, 5, 1, 1)]  # fmt: skip
    audit(whole)


def test_encoding_a_wal_object_gives_the_recorded_golden_bytes() -> None:
    whole = an_object([PartitionBatches(ONE, 2, [b"batch"], 9)])
    footer = bytes.fromhex(
        "96"  # six fields
        "01"  # format
        "b6" + CLUSTER.encode().hex() + "07"  # object id
        "03"  # broker id
        "28"  # broker epoch
        "91 97"  # one partition, seven fields
        "c410 00000000000000000000000000000001"  # topic id
        "02 00 05 01 09"  # partition, byte offset, size, batches, records
        "ce" + struct.pack(">I", crc32c(b"batch")).hex()
    )
    trailer = struct.pack(">IIq", len(footer), crc32c(footer), len(whole)) + b"EskrWAL1"
    assert whole == b"batch" + footer + trailer


@given(st.integers(0), st.integers(0, 7))
def test_the_wal_reader_detects_a_flipped_bit_anywhere_in_a_wal_object(
    position: int, bit: int
) -> None:
    whole = bytearray(two_partitions())
    whole[position % len(whole)] ^= 1 << bit
    with pytest.raises(RecordError):
        audit(whole)


@given(st.integers(1))
def test_the_wal_reader_detects_a_truncated_wal_object(size_bytes: int) -> None:
    whole = two_partitions()
    with pytest.raises(DamagedObjectError):
        read_footer(whole[: size_bytes % len(whole)])


@given(st.binary(max_size=200))
def test_reading_random_bytes_as_a_wal_object_raises_an_error(data: bytes) -> None:
    with pytest.raises(DamagedObjectError):
        read_footer(data)


def test_the_wal_reader_refuses_an_invalid_footer_with_a_valid_checksum() -> None:
    row = [ONE.bytes, 0, 0, 1, 1, 1, crc32c(b"x")]
    good = [1, CLUSTER, 7, 3, 40, [row]]
    read_footer(with_footer(good, b"x"))
    for bad in (
        {},
        None,
        good[:5],
        [3, *good[1:]],
        [1, 5, *good[2:]],
        [1, CLUSTER, -1, 3, 40, [row]],
        [1, CLUSTER, 7, "3", 40, [row]],
        [1, CLUSTER, 7, 3, 40, 9],
        [1, CLUSTER, 7, 3, 40, [row[:6]]],
        [1, CLUSTER, 7, 3, 40, [[b"short", *row[1:]]]],
        [1, CLUSTER, 7, 3, 40, [[ONE.bytes, 0, 1, 1, 1, 1, 0]]],  # a gap
        [1, CLUSTER, 7, 3, 40, []],  # a byte that nobody accounts for
        [1, CLUSTER, 7, 3, 40, [[ONE.bytes, True, 0, 1, 1, 1, 0]]],
        [1, CLUSTER, 7, 3, 40, [[]]],
        [1, CLUSTER, 7, 3, 40, [{}]],
        [1, CLUSTER, 7, 3, 40, [["sixteen letters!", *row[1:]]]],
        [1, CLUSTER, 7, 3, 40, [[list(range(16)), *row[1:]]]],
        [1, CLUSTER, 7, 3, 40, [[*row[:4], 2**63, *row[5:]]]],
        [1, CLUSTER, 2**64 - 1, 3, 40, [row]],
        [1, b"\xff", 7, 3, 40, [row]],
        [msgpack.Timestamp(0), CLUSTER, 7, 3, 40, [row]],
        [1, CLUSTER, 7, 3, 40, msgpack.ExtType(5, b"")],
    ):
        with pytest.raises(DamagedObjectError):
            read_footer(with_footer(bad, b"x"))


def test_the_wal_reader_refuses_a_footer_whose_counts_contradict_the_batches() -> None:
    whole = an_object([PartitionBatches(ONE, 0, [batch(b"a", b"b")], 3)])
    row = read_footer(whole).partitions[0]
    with pytest.raises(DamagedObjectError, match="2 records"):
        verify_partition(row, whole[: row.size_bytes])


PLAUSIBLE = st.sampled_from(
    [0, 1, -1, 2**31, 2**63, 2**64 - 1, True, None, "", "x" * 16, b"x" * 16]
)
SHAPES = st.recursive(
    PLAUSIBLE | st.binary(max_size=17) | st.floats(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=20,
)


@given(
    fields=SHAPES | st.lists(SHAPES, min_size=6, max_size=6).map(lambda rest: [1, *rest[1:]]),
    data=st.binary(max_size=3),
)
def test_the_wal_reader_parses_or_refuses_an_arbitrary_footer_with_a_valid_checksum(
    fields: object, data: bytes
) -> None:
    with contextlib.suppress(DamagedObjectError):
        read_footer(with_footer(fields, data))


@given(st.binary(max_size=60))
def test_the_wal_reader_parses_or_refuses_arbitrary_bytes_as_a_footer(footer: bytes) -> None:
    trailer = TRAILER.pack(len(footer), crc32c(footer), len(footer) + TRAILER.size, b"EskrWAL1")
    with contextlib.suppress(DamagedObjectError):
        read_footer(footer + trailer)


def test_reading_a_deeply_nested_wal_footer_raises_an_error() -> None:
    footer = b"\x91" * 100_000
    trailer = TRAILER.pack(len(footer), crc32c(footer), len(footer) + TRAILER.size, b"EskrWAL1")
    with pytest.raises(DamagedObjectError):
        read_footer(footer + trailer)


def test_the_footer_of_a_rewritten_object_states_that_its_batches_have_final_offsets() -> None:
    owner = {"cluster_id": CLUSTER, "object_id": 1, "broker_id": 2, "broker_epoch": 3}
    for object_format in (APPENDED, FINAL):
        parts, _ = build_object((), **owner, object_format=object_format)
        assert read_footer(b"".join(parts)).object_format == object_format
