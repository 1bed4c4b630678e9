"""Compression of a batch's records, in the framings Kafka's clients write.

Each codec has a framing trap:

- **gzip**: members may follow each other. Done by `zlib`, whose output limit is exact.
- **snappy**: Java writes xerial's stream (a 16 byte header, then blocks with an int32 length);
  librdkafka sends one raw snappy block. The header tells them apart. We write xerial's.
- **lz4**: the frame format with *independent* blocks, because Java's reader refuses linked ones.
- **zstd**: plain frames.

The surprise is on the reading side: a few kilobytes can ask for gigabytes. Output is limited before
or while memory is taken, never after: lengths that a format declares are compared with what its
bytes can possibly expand to, and the rest decompress into a buffer that grows up to the limit.

Source: KIP-57 (lz4 framing), KIP-110 (zstd); xerial snappy-java's SnappyOutputStream;
librdkafka's rdkafka_msgset_reader (raw snappy).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import cramjam

from records.errors import (
    CorruptCompressionError,
    DecompressedTooLargeError,
    UnknownCodecError,
)

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED_BYTES: Final = 100 * 1024 * 1024
"""Default limit of a batch's decompressed records: the size of the largest request that a broker
accepts by default (`socket.request.max.bytes`)."""


class Compression(IntEnum):
    """The codec in bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def codec_of(attributes: int) -> Compression:
    """Return the compression codec in a batch's attributes.

    Raises:  UnknownCodecError for 5, 6 and 7.
    """
    codec_id = attributes & 7
    try:
        return Compression(codec_id)
    except ValueError:
        raise UnknownCodecError(codec_id=codec_id) from None


def compress(codec: Compression, data: Buffer) -> bytes:
    """Compress `data` in the framing that Kafka's clients use; empty data stays empty."""
    if not len(data):
        return b""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            packer = zlib.compressobj(wbits=_GZIP_WBITS)
            return packer.compress(data) + packer.flush()
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            frame = cramjam.lz4.Compressor(
                level=_LZ4_LEVEL, block_linked=False, content_checksum=False
            )
            frame.compress(bytes(data))
            return bytes(frame.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(
    codec: Compression, data: Buffer, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """Decompress records, or return `data` itself if it is not compressed.

    Args:    limit_bytes: the most the result may hold (inclusive).
    Raises:  CorruptCompressionError; DecompressedTooLargeError, before memory beyond the limit is
             taken.
    """
    if not len(data):
        return b""
    match codec:
        case Compression.NONE:
            if len(data) > limit_bytes:
                raise DecompressedTooLargeError(codec="none", limit_bytes=limit_bytes)
            return data
        case Compression.GZIP:
            return _decompress_gzip(data, limit_bytes)
        case Compression.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        case Compression.LZ4:
            return _decompress_growing("lz4", cramjam.lz4.decompress_into, data, limit_bytes)
        case Compression.ZSTD:
            return _decompress_growing("zstd", cramjam.zstd.decompress_into, data, limit_bytes)


def decompress_into(codec: Compression, data: Buffer, out: memoryview) -> int | None:
    """Decompress records into the front of a buffer; return their size, or None if it is too small.

    Raises:  CorruptCompressionError.
    """
    if codec in _INTO:
        try:
            return _INTO[codec](data, out)
        except cramjam.DecompressionError:
            pass  # the reason is found by `decompress`, unless there is no room
    try:
        body = decompress(codec, data, limit_bytes=len(out))
    except DecompressedTooLargeError:
        return None
    out[: len(body)] = body
    return len(body)


_INTO: Final[Mapping[Compression, Callable[[Buffer, memoryview], int]]] = {
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}

_GZIP_WBITS: Final = 31  # 15 bits of window, + 16 for the gzip header and trailer
_LZ4_LEVEL: Final = 1  # the fast compressor, as in Kafka by default; from 3 on 20 times slower
_ZSTD_LEVEL: Final = 3  # Kafka's default (`compression.zstd.level`)


_GZIP_WINDOW_BYTES: Final = 16 * 1024


def _decompress_gzip(data: Buffer, limit_bytes: int) -> bytes:
    """Decompress all members of a gzip stream.

    Each member is fed in windows that double: zlib copies what is left of the one it ends in, so
    that thousands of tiny members, given the whole at once, would cost their number squared.
    """
    parts: list[bytes] = []
    room = limit_bytes
    view = memoryview(data)
    position = 0
    while position < len(view):
        member = zlib.decompressobj(wbits=_GZIP_WBITS)
        window_bytes = _GZIP_WINDOW_BYTES
        while not member.eof:
            window = view[position : position + window_bytes]
            if not window:
                raise CorruptCompressionError(codec="gzip", reason="ends inside a member")
            try:
                part = member.decompress(window, room + 1)
            except zlib.error as error:
                raise CorruptCompressionError(codec="gzip", reason=str(error)) from None
            if len(part) > room:
                raise DecompressedTooLargeError(codec="gzip", limit_bytes=limit_bytes)
            parts.append(part)
            room -= len(part)
            position += len(window) - len(member.unused_data)
            window_bytes *= 2
    return b"".join(parts)


_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest reader
_XERIAL_BLOCK_BYTES: Final = 32 * 1024  # of input, as snappy-java's default
_SNAPPY_MAX_EXPANSION: Final = 22  # a three byte copy makes at most 64 bytes


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> bytes | bytearray:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(view, limit_bytes, limit_bytes)
    parts: list[bytearray] = []
    room = limit_bytes
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise CorruptCompressionError(codec="snappy", reason="ends inside xerial's header")
    while position < len(view):
        if bytes(view[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # two streams joined; snappy-java reads on
            continue
        if position + 4 > len(view):
            raise CorruptCompressionError(codec="snappy", reason="ends inside a block length")
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if not 0 < size <= len(view) - position:
            raise CorruptCompressionError(
                codec="snappy", reason=f"block of {size} bytes, {len(view) - position} are left"
            )
        part = _snappy_block(view[position : position + size], room, limit_bytes)
        parts.append(part)
        room -= len(part)
        position += size
    return b"".join(parts)


def _snappy_block(block: memoryview, room: int, limit_bytes: int) -> bytearray:
    """Decompress one raw Snappy block, after checking its declared length against the limit."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptCompressionError(codec="snappy", reason=str(error)) from None
    if size > room:
        raise DecompressedTooLargeError(codec="snappy", limit_bytes=limit_bytes)
    if size > _SNAPPY_MAX_EXPANSION * len(block):
        raise CorruptCompressionError(
            codec="snappy", reason=f"{len(block)} bytes cannot expand to {size}"
        )
    out = bytearray(size)
    try:
        cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CorruptCompressionError(codec="snappy", reason=str(error)) from None
    return out


_FIRST_GUESS_RATIO: Final = 8  # typical records shrink three to six times
_FIRST_GUESS_MIN_BYTES: Final = 4096
_NO_ROOM: Final = "failed to write whole buffer"  # Rust's io::Write into a slice that is full


def _decompress_growing(
    codec: str, into: Callable[[Buffer, bytearray], int], data: Buffer, limit_bytes: int
) -> memoryview:
    """Decompress `data` into a buffer that is doubled until the result fits or exceeds the limit.

    The formats need not declare their length and a hostile one lies, so the bytes themselves are
    asked: a buffer that is too small makes the codec stop at its end.
    """
    size = min(limit_bytes, max(_FIRST_GUESS_MIN_BYTES, _FIRST_GUESS_RATIO * len(data)))
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: into(data, out)]
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise CorruptCompressionError(codec=codec, reason=str(error)) from None
        if size == limit_bytes:
            raise DecompressedTooLargeError(codec=codec, limit_bytes=limit_bytes)
        size = min(limit_bytes, 2 * size)
