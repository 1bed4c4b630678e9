"""Kafka's framings, against other people's code; and no bomb goes off. KIP-57, KIP-110."""

from __future__ import annotations

import contextlib
import gzip
import random
import shutil
import struct
import subprocess
import tracemalloc
import types
import zlib

import cramjam
import kafka.codec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from records.batch import iter_records, read_batch
from records.batch_writer import build_value_batch
from records.compression import Compression, codec_of, compress, decompress
from records.errors import (
    CompressionError,
    CorruptCompressionError,
    DecompressedTooLargeError,
    UnknownCodecError,
)

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
SAMPLE = random.Random(3).randbytes(3000) + b"so it is, so it was, " * 5000
MIB = 1 << 20


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=2000),
    times=st.integers(0, 200),
    codec=st.sampled_from(list(Compression)),
)
def test_records_survive_compression_and_decompression_with_each_codec(data, times, codec):
    assert bytes(decompress(codec, memoryview(compress(codec, data * times)))) == data * times


@pytest.mark.parametrize("codec", CODECS)
def test_decompression_accepts_exactly_the_limit_and_refuses_one_byte_more(codec):
    packed = compress(codec, SAMPLE)
    assert bytes(decompress(codec, packed, limit_bytes=len(SAMPLE))) == SAMPLE
    with pytest.raises(DecompressedTooLargeError) as caught:
        decompress(codec, packed, limit_bytes=len(SAMPLE) - 1)
    assert caught.value.limit_bytes == len(SAMPLE) - 1


@pytest.mark.parametrize("codec", CODECS)
def test_decompression_refuses_truncated_compressed_data(codec):
    packed = compress(codec, SAMPLE)
    for size in (1, 5, 15, 17, 19, 21, len(packed) // 2, len(packed) - 1):
        if codec is Compression.SNAPPY and size == 16:
            continue
        with pytest.raises(CorruptCompressionError):
            decompress(codec, packed[:size])


@settings(max_examples=300, deadline=None)
@given(
    codec=st.sampled_from(CODECS),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), min_size=1, max_size=4),
)
def test_damaged_compressed_data_raises_only_compression_errors(codec, flips):
    packed = bytearray(compress(codec, SAMPLE[:6000]))
    for position, bit in flips:
        packed[position % len(packed)] ^= 1 << bit
    with contextlib.suppress(CompressionError):
        assert len(decompress(codec, packed, limit_bytes=MIB)) <= MIB


@settings(max_examples=200, deadline=None)
@given(codec=st.sampled_from(CODECS), noise=st.binary(min_size=1, max_size=100))
def test_decompressing_random_bytes_raises_only_compression_errors(codec, noise):
    start = compress(codec, b"x" * 50)[:8]
    for data in (noise, start + noise):
        with contextlib.suppress(CompressionError):
            decompress(codec, data, limit_bytes=MIB)


def bomb(codec: Compression) -> bytes:
    """A few kilobytes that say they are, or are, a gigabyte."""
    match codec:
        case Compression.GZIP:
            packer = zlib.compressobj(9, wbits=31)
            return b"".join(packer.compress(bytes(MIB)) for _ in range(64)) + packer.flush()
        case Compression.SNAPPY:
            block = bytes(cramjam.snappy.compress_raw(bytes(32 * MIB)))
            return (
                compress(Compression.SNAPPY, b"x")[:16]
                + (struct.pack(">i", len(block)) + block) * 2
            )
        case Compression.LZ4:
            return compress(codec, bytes(64 * MIB))
        case _:
            return compress(codec, bytes(256 * MIB))


@pytest.mark.parametrize("codec", CODECS)
def test_decompression_refuses_a_bomb_before_it_takes_memory(codec):
    packed = bomb(codec)
    tracemalloc.start()
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, packed, limit_bytes=MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MIB, f"{peak} bytes were taken for a limit of {MIB}"


def test_a_snappy_block_with_an_impossible_declared_length_takes_no_memory():
    """The length is a varint in front: 64 MiB, said by nine bytes."""
    lie = bytes.fromhex("8080 8020") + b"\x00abcd"
    tracemalloc.start()
    with pytest.raises(CorruptCompressionError, match="cannot expand"):
        decompress(Compression.SNAPPY, lie)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()


def test_the_cramjam_librarys_error_for_a_small_output_buffer_has_the_expected_text():
    """`_decompress_growing` tells "too small" from "corrupt" by these words of cramjam's."""
    for codec in (cramjam.lz4, cramjam.zstd):
        with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
            codec.decompress_into(bytes(codec.compress(SAMPLE)), bytearray(100))


def test_snappy_compression_writes_the_golden_xerial_framing():
    assert compress(Compression.SNAPPY, b"abc") == bytes.fromhex(
        "82 534e41505059 00"  # xerial's magic: 0x82, "SNAPPY", 0
        "00000001 00000001"  # version, oldest version that reads it
        "00000005"  # length of the first block
        "03 08 616263"  # snappy: 3 bytes follow uncompressed, a literal of 3
    )


def test_lz4_compression_writes_the_golden_frame():
    """Java refuses linked blocks, and took years to compute the header checksum right (KIP-57)."""
    packed = compress(Compression.LZ4, b"abc")
    assert packed[:7] == bytes.fromhex(
        "04224d18"  # magic, little-endian
        "70"  # version 1, independent blocks, a checksum for each block
        "40"  # blocks of at most 64 KiB
        "ad"  # header checksum: second byte of xxHash32 of the two bytes above
    )
    assert packed[-4:] == bytes(4), "end mark"


def test_esker_decompresses_a_single_raw_snappy_block_as_librdkafka_sends_it():
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(SAMPLE))) == SAMPLE


def test_esker_decompresses_gzip_data_of_several_members():
    packed = gzip.compress(b"one, ") + gzip.compress(b"two")
    assert decompress(Compression.GZIP, packed) == b"one, two"
    with pytest.raises(DecompressedTooLargeError):
        decompress(Compression.GZIP, packed, limit_bytes=7)
    with pytest.raises(CorruptCompressionError):
        decompress(Compression.GZIP, packed + b"junk")


def test_decompressing_tiny_gzip_members_takes_linear_time(monkeypatch):
    """zlib copies what a member leaves over: a hostile MiB of them took a second, 100 MiB hours."""
    fed = []

    class Member:
        def __init__(self, wbits):
            self._member = zlib_decompressobj(wbits=wbits)

        def __getattr__(self, name):
            return getattr(self._member, name)

        def decompress(self, data, max_length):
            fed.append(len(data))
            return self._member.decompress(data, max_length)

    zlib_decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Member)
    packed = gzip.compress(b"") * 5000 + gzip.compress(SAMPLE)
    assert decompress(Compression.GZIP, packed) == SAMPLE
    assert len(packed) > 6 * max(fed)


@pytest.mark.parametrize("tool", ["gzip", "lz4", "zstd"])
def test_the_gzip_tool_decompresses_eskers_gzip_data(tool):
    """The command line tools link the reference libraries, which cramjam's Rust is not all of."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: the reference library was not asked")
    codec = Compression[tool.upper()]

    def run(*options: str, data: bytes) -> bytes:
        return subprocess.run(
            [tool, "-c", *options], input=data, capture_output=True, check=True
        ).stdout

    assert run("-d", data=compress(codec, SAMPLE)) == SAMPLE
    assert bytes(decompress(codec, run(data=SAMPLE))) == SAMPLE


@pytest.fixture
def kafka_with_snappy(monkeypatch):
    """kafka-python's xerial framing; only the raw block inside it is lent from cramjam."""
    raw = types.SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    monkeypatch.setattr(kafka.codec, "snappy", raw)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY])
@pytest.mark.usefixtures("kafka_with_snappy")
def test_kafka_python_and_esker_decode_each_others_compressed_batches(codec):
    values = [SAMPLE[i * 500 : i * 500 + 700] for i in range(100)]
    ours = build_value_batch(values, base_offset=0, leader_epoch=0, timestamp=1, compression=codec)
    assert [record.value for record in DefaultRecordBatch(bytes(ours))] == values

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=MIB,
    )
    for i, value in enumerate(values):
        builder.append(i, 1, None, value, [])
    theirs = read_batch(builder.build())
    assert theirs.header.compression is codec
    assert [bytes(record.value) for record in iter_records(theirs)] == values


def test_decoding_a_batch_with_a_codec_that_kafka_does_not_define_raises_an_error():
    for codec_id in (5, 6, 7):
        with pytest.raises(UnknownCodecError):
            codec_of(0xFFF8 | codec_id)
